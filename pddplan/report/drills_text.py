"""Drills as text: what breaks, for how long, and what would hold it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pddplan.plan.drills import Addition, Drill
from pddplan.plan.stability import Limit, Stability
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


def render_stability(found: Stability, width: int) -> str:
    """What the plan survives if it lasts, by formula and by simulation."""
    header = ("survives, if it lasts", "formula", "simulation", "then gives out")
    cells = [(_words(limit), _most(limit), _bracket(limit), limit.gives_out or "nothing") for limit in found.limits]
    lines = ["Stability", *table(header, cells, width, right=(1, 2), flexible=3), ""]
    gain = "at 1 misses at main decode and transfers drive each other up"
    lines += item(f"loop gain {figure(found.loop_gain)}; {gain}.", width)
    lines += item("survives: has a steady state, the SLO apart. Between the simulation's two figures it breaks.", width)
    return "\n".join(lines)


def _words(limit: Limit) -> str:
    if limit.what == "rate":
        return "times the requests"
    return "line lost" if limit.name == "line" else f"line lost, {limit.name}"


def _most(limit: Limit) -> str:
    return _value(limit, limit.formula) if limit.gives_out else f"{_value(limit, limit.formula)} and more"


def _bracket(limit: Limit) -> str:
    low, high = _value(limit, limit.survives), _value(limit, limit.breaks)
    return low if low == high else f"{low} to {high}"


def _value(limit: Limit, value: float) -> str:
    return f"{value:.2f}" if limit.what == "rate" else percent(value)
