"""Drills as text: what breaks, for how long, and what would hold it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pddplan.plan.drills import Addition, Drill
from pddplan.report.figures import cash, figure, percent
from pddplan.report.layout import item, table

ROWS = {"all": "everything"}


def render_drills(drills: Sequence[Drill], width: int) -> str:
    """A table, then what would hold each that breaks."""
    cells = [
        (
            drill.name,
            _lasts(drill),
            _minutes(drill.late_s) + ("" if drill.recovers else "+"),
            percent(drill.worst_late_share),
            _rows(drill.breaks),
        )
        for drill in drills
    ]
    header = ("drill", "lasts", "late for", "worst", "rows it breaks")
    lines = ["Drills", *table(header, cells, width, right=(1, 2, 3), flexible=4), ""]
    lines += item(
        "late for: time in which more requests are outside the SLO than it allows, the aftermath included; +: not "
        "over when the simulation ended. rows: what the formulas say while it lasts.",
        width,
    )
    held = [drill for drill in drills if drill.breaks]
    if held:
        lines += ["", "What would hold it"]
    for drill in held:
        lines += item(f"{drill.name}: {_holds(drill)}", width)
    return "\n".join(lines)


def _lasts(drill: Drill) -> str:
    if drill.lasts_s == 0.0:
        return "once"
    return "stays" if math.isinf(drill.lasts_s) else _minutes(drill.lasts_s)


def _minutes(seconds: float) -> str:
    return f"{figure(seconds / 60)} min" if seconds > 0 else "–"


def _rows(names: Sequence[str]) -> str:
    return ", ".join(ROWS.get(name, name.replace("_", " ")) for name in names) if names else "none"


def _holds(drill: Drill) -> str:
    if drill.addition is None:
        return drill.note or "nothing was found."
    return addition_text(drill.addition)


def addition_text(addition: Addition) -> str:
    """ "spares: {prefill: 1}, $32.0/h"."""
    parts = []
    if addition.spares:
        inner = ", ".join(f"{role}: {count}" for role, count in addition.spares.items())
        parts.append(f"spares: {{{inner}}}")
    if addition.lines:
        parts.append(f"{addition.lines} more line{'s' if addition.lines > 1 else ''} of the tier")
    return f"{' and '.join(parts)}, {cash(addition.usd_per_hour)}/h"
