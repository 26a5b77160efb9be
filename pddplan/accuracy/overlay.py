"""A file of fitted factors and the points of measured rows: applied, and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from pddplan.accuracy.calibrate import Calibrated, FittedFactor
from pddplan.accuracy.records import Measurements, Part
from pddplan.estimate.records import OperatingPoint, Workers
from pddplan.spec.calibration import SCHEMA, Overlay, load_overlay
from pddplan.spec.identity import Same
from pddplan.spec.types import Calibration, Chip

__all__ = ["apply", "calibrated_measurements", "load_overlay", "overlay_text"]
_DIGITS = 4


def apply(point: OperatingPoint, overlay: Overlay) -> OperatingPoint:
    """The point with the file's factors on its chips and engine. InputError where a share would be impossible."""
    pools = tuple(_workers(pool, overlay) for pool in point.pools)
    return replace(point, engine=overlay.engine(point.engine), pools=pools)


def _workers(workers: Workers, overlay: Overlay) -> Workers:
    found = overlay.chips.get(workers.chip.id)
    return workers if found is None else replace(workers, chip=_chip(Same(workers.chip), found))


@lru_cache(maxsize=256)  # services are kept by their chip: under one calibration it has to stay one record
def _chip(same: Same[Chip], calibration: Calibration) -> Chip:
    return replace(same.value, calibration=calibration)


def calibrated_measurements(measurements: Measurements, overlay: Overlay) -> Measurements:
    """Measured rows whose points have the file's factors."""
    rows = tuple(
        replace(row, parts=tuple(Part(apply(part.point, overlay), part.metrics) for part in row.parts))
        for row in measurements.rows
    )
    return replace(measurements, rows=rows)


def overlay_text(found: Calibrated, date: str, version: str) -> str:
    """The file as a person reads it: what moved and from where, what it rests on, what it gained."""
    lines = [
        f"# Factors fitted to measurements by pddplan {version}. A scenario in this folder names the file:",
        "#   calibration: FILE.yaml",
        "# A chip's factors multiply its efficiency curves, an engine's numbers replace those of its profile. What the",
        "# rows don't determine isn't here: it stays as shipped.",
        f"schema: {SCHEMA}",
        *_section("chips", [f for f in found.moved if f.factor.kind == "chip"]),
        *_section("engines", [f for f in found.moved if f.factor.kind == "engine"]),
        "fit:",
        f'  date: "{date}"',
        f"  files: [{', '.join(_quoted(file) for file in found.files)}]",
        f"  rows: {found.used}",
    ]
    if found.held_out:
        lines.append("  held_out_mape_percent:  # on rows that the fit had not seen: before, after")
        lines += [
            f"    {h.metric}: {{rows: {h.before.n}, before: {h.before.mape:.1f}, after: {h.after.mape:.1f}}}"
            for h in found.held_out
        ]
    left = [f.factor.label for f in found.factors if not f.identified]
    if left:
        lines.append(f"  not_identified: [{', '.join(left)}]")
    return "\n".join(lines) + "\n"


def _section(name: str, fitted: Sequence[FittedFactor]) -> list[str]:
    if not fitted:
        return []
    lines = [f"{name}:"]
    for owner in dict.fromkeys(f.factor.owner for f in fitted):
        lines.append(f"  {owner}:")
        for f in (f for f in fitted if f.factor.owner == owner):
            note = f"shipped {f.factor.shipped:.{_DIGITS}g}, one deviation {f.low:.3g} to {f.high:.3g}"
            lines.append(f"    {f.factor.name}: {f.value:.{_DIGITS}g}  # {note}")
    return lines


def _quoted(text: str) -> str:
    """A YAML string whatever the name of a file holds: JSON's notation is YAML's."""
    import json

    return json.dumps(text)
