"""``hardware show`` as text: one chip against another in four dimensions, then every number with its source."""

from __future__ import annotations

from pddplan.report.figures import exact, figure, percent
from pddplan.report.layout import item, paragraph, table
from pddplan.spec.chip_compare import Dimension, compare_chips, extremes
from pddplan.spec.chips import figure_of
from pddplan.spec.types import Chip
from pddplan.units import GB

LOPSIDED = 2.0  # from this factor between the dimensions on a chip is called so
_NAMES = {
    **{f"{d}_tflops": f"compute, {d}" for d in ("bf16", "fp8", "int8", "fp4")},
    "memory_gb": "memory",
    "memory_gb_per_s": "memory bandwidth",
    "interconnect_gb_per_s": "interconnect",
}
_LABELS = {
    "bf16_tflops": ("peak, bf16", "TFLOP/s"),
    "fp16_tflops": ("peak, fp16", "TFLOP/s"),
    "fp8_tflops": ("peak, fp8", "TFLOP/s"),
    "int8_tflops": ("peak, int8", "TOP/s"),
    "fp4_tflops": ("peak, fp4", "TFLOP/s"),
    "memory_gb": ("memory, as sold", "GB"),
    "memory_mib": ("memory, as reported", "GB"),
    "usable_mib": ("memory, left by the driver", "GB"),
    "memory_gb_per_s": ("memory bandwidth", "GB/s"),
    "interconnect_gb_per_s": ("interconnect, one way", "GB/s"),
    "pair_gb_per_s": ("between two chips", "GB/s"),
    "domain_chips": ("interconnect reaches", "chips"),
    "scale_out_gbit_per_s": ("network, one way", "Gbit/s"),
    "chips_per_node": ("node", "chips"),
    "tdp_watts": ("power of the chip", "W"),
    "all_in_kw": ("power with its share", "kW"),
    "usd_per_hour": ("price", "USD/h"),
}


def render_chip(chip: Chip, reference: Chip, width: int) -> str:
    """Four bars against the reference, then every number with confidence and source."""
    title = f"{chip.id}  {chip.name}"
    about = [chip.vendor, chip.chip_class, str(chip.released or ""), chip.status, f"{chip.chips_per_node} a node"]
    lines = [*paragraph(title, width, hanging=2), *paragraph(", ".join(a for a in about if a), width)]
    if chip.aliases:
        lines += paragraph(f"aliases: {', '.join(chip.aliases)}", width, hanging=2)
    lines += ["", *_bars(compare_chips(chip, reference), reference, width), "", *_numbers(chip, width)]
    if chip.missing:
        unknown = ", ".join(chip.missing)
        text = f"Can't be planned with: no published {unknown}. Write the chip inline with these numbers."
        lines += ["", *paragraph(text, width)]
    notes = [line for note in (*chip.warnings, *chip.notes) for line in item(note, width)]
    return "\n".join([*lines, *(["", "notes", *notes] if notes else [])])


def _bars(dimensions: tuple[Dimension, ...], reference: Chip, width: int) -> list[str]:
    """Bars on one scale; ``|`` is where the reference ends."""
    values = [f"{figure(d.value)} {d.unit}" for d in dimensions]
    names = max(len(_NAMES[d.key]) for d in dimensions)
    figures = max(map(len, values))
    room = max(10, min(50, width - names - figures - 16))
    longest = max([1.0, *(d.ratio for d in dimensions if d.ratio is not None)])
    lines = paragraph(f"against {reference.id} (| = 100 %)", width)
    for d, value in zip(dimensions, values, strict=True):
        bar = _bar(d.ratio, longest, room)
        line = f"  {_NAMES[d.key].ljust(names)}  {value.rjust(figures)}  {bar}  {percent(d.ratio).rjust(7)}"
        lines.append(line.rstrip())
    replaced = [d for d in dimensions if d.key != d.against and d.ratio is not None]
    for d in replaced:
        ours, theirs = d.key.removesuffix("_tflops"), d.against.removesuffix("_tflops")
        lines += paragraph(f"{reference.id} has no {ours}: its {theirs} is taken.", width, indent=2)
    return [*lines, *paragraph(_shape(dimensions), width, indent=2)]


def _shape(dimensions: tuple[Dimension, ...]) -> str:
    ends = extremes(dimensions)
    if ends is None:
        return "Too little is published to tell how lopsided it is."
    least, most = ends
    low, high = least.ratio or 1.0, most.ratio or 1.0
    if high < LOPSIDED * low:
        return f"Balanced as the reference: {percent(low)} to {percent(high)} of it."
    weak, strong = (_NAMES[d.key].replace(", ", " in ") for d in ends)
    return f"Lopsided: {strong} {percent(high)}, {weak} {percent(low)}, a factor of {figure(high / low)} between them."


def _bar(ratio: float | None, longest: float, room: int) -> str:
    mark = min(room - 1, max(0, round(room / longest) - 1))
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
    lines = table(("", "value", "unit", "confidence", "source"), rows, width, right=(1, 4), flexible=(2, 0))
    lines += ["", "sources"]
    for source_text, number in sources.items():
        lines += paragraph(f"[{number}] {source_text}", width, indent=2, hanging=6)
    return lines


def _value(chip: Chip, field: str) -> float:
    if field == "memory_mib":
        return round(chip.memory_bytes / GB, 1)  # shown in GB, beside what is sold
    if field == "usable_mib":
        return round((chip.usable_bytes or chip.memory_bytes) / GB, 1)
    return figure_of(chip, field) or 0.0
