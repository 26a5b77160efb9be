"""``hardware list`` as text: the chips to plan with in four dimensions, then those that lack one."""

from __future__ import annotations

from collections.abc import Sequence

from pddplan.report.figures import UNKNOWN
from pddplan.report.layout import paragraph, table
from pddplan.spec.chip_list import ChipSummary

WIDE = 90  # from here on the list carries the month of the price
MARKS = {"datasheet": "", "measured": "", "documented": "", "secondary": "s", "estimate": "e", "input": "i"}
_LEGEND = (
    "bf16/8-bit: dense peak in TFLOP/s (8-bit: fp8, else int8). link x n: GB/s of a chip in one direction, "
    "chips that it reaches so. s: from secondary sources, e: estimated (the weakest of the four dimensions)."
)
_ANNOUNCED = "*: announced, not shipping."
_COLUMNS = {  # header -> its keys; asked for by name, every other key gets a column of its own
    "chip": ("id",),
    "alias": (),
    "bf16/8-bit": ("bf16_tflops",),
    "GB": ("memory_gb",),
    "GB/s": ("memory_gb_per_s",),
    "link x n": ("interconnect_gb_per_s", "domain_chips"),
    "USD/h": ("usd_per_hour",),
}
_EXTRA = {
    "fp16_tflops": "fp16",
    "fp8_tflops": "fp8",
    "int8_tflops": "int8",
    "fp4_tflops": "fp4",
    "scale_out_gbit_per_s": "Gbit/s",
    "chips_per_node": "node",
    "tdp_watts": "W",
    "all_in_kw": "kW",
    "released": "year",
    "status": "status",
    "name": "name",
}
_LEFT = ("chip", "alias", "", "status", "name")


def render_chip_list(rows: Sequence[ChipSummary], width: int, *, asked: Sequence[str] = (), total: int = 0) -> str:
    """One line a chip, in the order given; ``asked`` are the keys that were sorted or filtered by.

    A narrow terminal does without the month of the price, then without aliases and names.
    """
    if not rows:
        return f"None of {total} chips fits." if total else "No chips."
    whole = [r for r in rows if r.plannable]
    lines = _table(whole, width, asked) if whole else []
    if whole:
        announced = _ANNOUNCED if any(r.status == "announced" for r in whole) else ""
        lines += ["", *paragraph(f"{_LEGEND} {announced}".strip(), width)]
    lacking = [(r.id, r.aliases[0] if r.aliases else "", ", ".join(r.missing)) for r in rows if not r.plannable]
    if lacking:
        lines += ["", *paragraph("Incomplete: can't be planned with before these numbers are known.", width)]
        lines += table(("chip", "alias", "missing"), lacking, width, indent=0)
    of = f" of {total}" if total > len(rows) else ""
    found = f"{len(rows)}{of} chips: {len(whole)} to plan with, {len(lacking)} incomplete."
    return "\n".join([*lines, "", found])


def _table(rows: Sequence[ChipSummary], width: int, asked: Sequence[str]) -> list[str]:
    wide = width >= WIDE
    shown = {key for keys in _COLUMNS.values() for key in keys}
    extra = [key for key in dict.fromkeys(asked) if key not in shown and key in _EXTRA]
    names = [*list(_COLUMNS)[:-1], *(_EXTRA[k] for k in extra), "USD/h", "", *(["priced"] if wide else [])]
    cells = [names, *([*_row(r, wide), *(_extra(r, k) for k in extra), *_price(r, wide)] for r in rows)]
    for spare in ("", "alias", "name"):  # what a narrow terminal does without
        if spare in names and spare:
            at = names.index(spare)
            cells = [row[:at] + row[at + 1 :] for row in cells]
            names = cells[0]
        lines = _aligned(cells, names, wide)
        if max(map(len, lines)) <= width:
            break
    return lines


def _aligned(cells: Sequence[Sequence[str]], names: Sequence[str], wide: bool) -> list[str]:
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    lines = []
    for row in cells:
        text = ""
        for i, name in enumerate(names):
            gap = "" if i == 0 else "  " if wide or i == 1 else " "
            text += gap + (row[i].ljust(widths[i]) if name in _LEFT else row[i].rjust(widths[i]))
        lines.append(text.rstrip())
    return lines


def _row(r: ChipSummary, wide: bool) -> list[str]:
    eight_bit = r.fp8_tflops or r.int8_tflops
    times = " x " if wide else "x"
    link = f"{short(r.interconnect_gb_per_s)}{times}{r.domain_chips}" if r.interconnect_gb_per_s else UNKNOWN
    return [
        r.id,
        r.aliases[0] if r.aliases else "",
        f"{short(r.bf16_tflops or r.fp16_tflops)}/{short(eight_bit)}",
        short(r.memory_gb),
        short(r.memory_gb_per_s),
        link,
    ]


def _price(r: ChipSummary, wide: bool) -> list[str]:
    price = f"{r.usd_per_hour:.2f}" if r.usd_per_hour is not None else UNKNOWN
    mark = MARKS[r.confidence] + ("*" if r.status == "announced" else "")
    return [price, mark, *([r.price_date or UNKNOWN] if wide else [])]


def _extra(r: ChipSummary, key: str) -> str:
    value = getattr(r, key)
    if key == "all_in_kw" and value is not None:
        return f"{value:.2f}"
    return short(value) if isinstance(value, (int, float)) else value or UNKNOWN


def short(value: float | None) -> str:
    """To the unit: the exact figure is in ``hardware show``."""
    return UNKNOWN if value is None else f"{value:.0f}"
