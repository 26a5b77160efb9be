"""``solve --verify``: formulas beside the simulation of the plan, and limits that were tightened on the way."""

from __future__ import annotations

from typing import Any

from pddplan.plan.verified import Verified
from pddplan.report.figures import figure
from pddplan.report.layout import item
from pddplan.report.plan_json import finite
from pddplan.report.simulation_json import quantile_payload
from pddplan.report.simulation_text import headline, quantile_table


def render_verified(found: Verified, width: int) -> str:
    """What the simulation says of the plan."""
    lines = ["Verified by simulation"]
    if found.simulation is None:
        return "\n".join([*lines, *item(found.why, width), *_tightened(found, width)])
    lines += item(headline(found.simulation), width)
    lines += item(f"{found.simulation.requests:,} requests, seed {found.simulation.seed}.", width)
    lines += _tightened(found, width)
    for note in found.simulation.notes:
        lines += item(note, width)
    return "\n".join([*lines, *quantile_table(found.simulation, width)])


def _tightened(found: Verified, width: int) -> list[str]:
    """One line for each limit that was lowered."""
    lines: list[str] = []
    for one in found.tightened:
        lines += item(
            f"{one.row}: simulated {figure(one.simulated_s)} s, limit {figure(one.limit_s)} s: solved again with "
            f"{figure(one.tightened_s)} s.",
            width,
        )
    return lines


def verification_payload(found: Verified) -> dict[str, Any]:
    """What a plan's JSON has beside the plan."""
    simulation = found.simulation
    return {
        "holds": found.holds,
        "why_not_simulated": found.why or None,
        "requests": simulation.requests if simulation is not None else 0,
        "quantiles": [quantile_payload(row) for row in simulation.quantiles] if simulation is not None else [],
        "tightened": [
            {
                "row": one.row,
                "limit_s": finite(one.limit_s),
                "simulated_s": finite(one.simulated_s),
                "tightened_s": finite(one.tightened_s),
            }
            for one in found.tightened
        ],
    }
