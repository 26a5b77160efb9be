"""Chips as text: the list with the four dimensions, and one chip against another with its sources."""

from __future__ import annotations

from collections.abc import Sequence

from pddplan.report.figures import UNKNOWN, exact, figure, percent
from pddplan.report.layout import item, paragraph, table
from pddplan.spec.catalogue import ChipSummary
from pddplan.spec.types import Chip
from pddplan.units import GB, GBIT_PER_S_IN_BYTES_PER_S, TFLOPS

WIDE = 90  # from here on the list carries the month of the price
_LEFT = (0, 1, 7)
_LEGEND = (
    "bf16/8-bit: dense peak in TFLOP/s (8-bit: fp8, else int8). link x n: GB/s of a chip in one direction, "
    "chips that it reaches so. s: from secondary sources, e: estimated (the weakest of the four dimensions)."
)
_MARK = {"datasheet": "", "measured": "", "documented": "", "secondary": "s", "estimate": "e", "input": "i"}
_LABELS = {
    "bf16_tflops": ("peak, bf16", "TFLOP/s"),
    "fp16_tflops": ("peak, fp16", "TFLOP/s"),
    "fp8_tflops": ("peak, fp8", "TFLOP/s"),
    "int8_tflops": ("peak, int8", "TOP/s"),
    "fp4_tflops": ("peak, fp4", "TFLOP/s"),
    "memory_gb": ("memory, as sold", "GB"),
    "memory_mib": ("memory, as reported", "GB"),
    "memory_gb_per_s": ("memory bandwidth", "GB/s"),
    "interconnect_gb_per_s": ("interconnect, one way", "GB/s"),
    "pair_gb_per_s": ("between two chips", "GB/s"),
    "domain_chips": ("interconnect reaches", "chips"),
    "scale_out_gbit_per_s": ("network, one way", "Gbit/s"),
    "chips_per_node": ("node", "chips"),
    "all_in_kw": ("power with its share", "kW"),
    "usd_per_hour": ("price", "USD/h"),
}


# ---------------------------------------------------------------- list


def render_chip_list(rows: Sequence[ChipSummary], width: int) -> str:
    """One line a chip, grouped by vendor; a narrow terminal does without the month of the price."""
    wide = width >= WIDE
    head = ("chip", "alias", "bf16/8-bit", "GB", "GB/s", "link x n", "USD/h", "", "priced")
    cells = [head] + [_row(r) for r in sorted(rows, key=lambda r: (r.vendor.lower(), r.id))]
    columns = range(len(head) if wide else len(head) - 1)
    widths = {i: max(len(row[i]) for row in cells) for i in columns}
    lines = []
    for row in cells:
        text = ""
        for i in columns:
            gap = "" if i == 0 else "  " if wide or i == 1 else " "
            text += gap + (row[i].ljust(widths[i]) if i in _LEFT else row[i].rjust(widths[i]))
        lines.append(text.rstrip())
    lines += ["", *paragraph(_LEGEND, width)]
    for r in rows:
        if not r.plannable:
            lines += paragraph(f"{r.id} can't be planned with: no published {', '.join(r.missing)}.", width, hanging=2)
    return "\n".join(lines)


def _row(r: ChipSummary) -> tuple[str, ...]:
    eight_bit = r.fp8_tflops or r.int8_tflops
    link = f"{exact(r.interconnect_gb_per_s)} x {r.domain_chips}" if r.interconnect_gb_per_s else UNKNOWN
    return (
        r.id,
        r.aliases[0] if r.aliases else "",
        f"{_short(r.bf16_tflops)}/{_short(eight_bit)}",
        _short(r.memory_gb),
        _short(r.memory_gb_per_s),
        link,
        f"{r.usd_per_hour:.2f}" if r.usd_per_hour is not None else UNKNOWN,
        _MARK[r.confidence],
        r.price_date or UNKNOWN,
    )


def _short(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


# ---------------------------------------------------------------- show


def render_chip(chip: Chip, reference: Chip, width: int) -> str:
    """Four bars against the reference, then every number with confidence and source."""
    title = f"{chip.id}  {chip.name}"
    about = [chip.vendor, chip.chip_class, str(chip.released or ""), f"{chip.chips_per_node} a node"]
    lines = [*paragraph(title, width, hanging=2), *paragraph(", ".join(a for a in about if a), width)]
    if chip.aliases:
        lines += paragraph(f"aliases: {', '.join(chip.aliases)}", width, hanging=2)
    lines += ["", *_bars(chip, reference, width), "", *_numbers(chip, width)]
    if chip.missing:
        unknown = ", ".join(chip.missing)
        text = f"Can't be planned with: no published {unknown}. Write the chip inline with these numbers."
        lines += ["", *paragraph(text, width)]
    notes = [line for note in (*chip.warnings, *chip.notes) for line in item(note, width)]
    return "\n".join([*lines, *(["", "notes", *notes] if notes else [])])


def _dimensions(chip: Chip) -> dict[str, tuple[float | None, str]]:
    """The four dimensions as (value, unit); None where unknown."""

    def known(field: str, value: float) -> float | None:
        return None if field in chip.missing else value

    return {
        "compute, bf16": (chip.peak_flops["bf16"] / TFLOPS if "bf16" in chip.peak_flops else None, "TFLOP/s"),
        "memory": (known("memory_gb", chip.memory_bytes / GB), "GB"),
        "memory bandwidth": (known("memory_gb_per_s", chip.memory_bytes_per_s / GB), "GB/s"),
        "interconnect": (known("interconnect_gb_per_s", chip.scale_up_bytes_per_s / GB), "GB/s"),
    }


def _bars(chip: Chip, reference: Chip, width: int) -> list[str]:
    """Bars on one scale; ``|`` is where the reference ends."""
    ours, theirs = _dimensions(chip), _dimensions(reference)
    ratios = {d: v / r if (v := ours[d][0]) and (r := theirs[d][0]) else None for d in ours}
    values = {d: f"{figure(v)} {unit}" for d, (v, unit) in ours.items()}
    names = max(len(d) for d in ours)
    figures = max(len(v) for v in values.values())
    room = max(10, min(50, width - names - figures - 16))
    longest = max(1.0, *(r for r in ratios.values() if r is not None), 1.0)
    lines = paragraph(f"against {reference.id} (| = 100 %)", width)
    for d, ratio in ratios.items():
        bar = _bar(ratio, longest, room)
        lines.append(f"  {d.ljust(names)}  {values[d].rjust(figures)}  {bar}  {percent(ratio).rjust(7)}".rstrip())
    return lines


def _bar(ratio: float | None, longest: float, room: int) -> str:
    mark = min(room - 1, round(room / longest) - 1)
    filled = 0 if ratio is None else max(1, round(room * ratio / longest))
    return "".join("|" if i == mark else "█" if i < filled else " " for i in range(room))


def _numbers(chip: Chip, width: int) -> list[str]:
    sources: dict[str, int] = {}
    rows = []
    for field, (label, unit) in _LABELS.items():
        if field not in chip.provenance:
            continue
        source = chip.provenance[field]
        number = sources.setdefault(source.source, len(sources) + 1)
        dated = f", {chip.price_kind} {chip.price_date}".rstrip() if field == "usd_per_hour" else ""
        rows.append((label, exact(round(_value(chip, field), 6)), unit + dated, source.confidence, f"[{number}]"))
    lines = table(("", "value", "unit", "confidence", "source"), rows, width, right=(1, 4), flexible=(2,))
    lines += ["", "sources"]
    for source_text, number in sources.items():
        lines += paragraph(f"[{number}] {source_text}", width, indent=2, hanging=6)
    return lines


def _value(chip: Chip, field: str) -> float:
    if field.endswith("_tflops"):
        return chip.peak_flops[field.removesuffix("_tflops")] / TFLOPS
    return {
        "memory_gb": chip.memory_gb_nominal or 0.0,
        "memory_mib": round(chip.memory_bytes / GB, 1),
        "memory_gb_per_s": chip.memory_bytes_per_s / GB,
        "interconnect_gb_per_s": chip.scale_up_bytes_per_s / GB,
        "pair_gb_per_s": (chip.scale_up_pair_bytes_per_s or 0.0) / GB,
        "domain_chips": float(chip.scale_up_domain),
        "scale_out_gbit_per_s": chip.scale_out_bytes_per_s / GBIT_PER_S_IN_BYTES_PER_S,
        "chips_per_node": float(chip.chips_per_node),
        "all_in_kw": (chip.all_in_watts or 0.0) / 1e3,
        "usd_per_hour": chip.usd_per_hour or 0.0,
    }[field]
