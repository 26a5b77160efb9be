"""Rows that no factor could explain: faster than the chip would be at 1.05 of every roof and without any overhead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pddplan.accuracy.predict import figures_of
from pddplan.accuracy.records import TIMES, MeasuredRow, Metric
from pddplan.accuracy.trial import Observation, observations
from pddplan.errors import Excuse
from pddplan.estimate.records import Answer, OperatingPoint
from pddplan.perf.curves import EfficiencyCurves, load_curves, with_kernels
from pddplan.spec.types import MAX_EFFICIENCY, Engine

# Time of an op at its roof alone: an exponent large enough to make the roofs a maximum, small enough to be computed.
_SHARP = 16.0
_LEAST_LAUNCH = 1e-6
_NO_OVERHEAD: dict[str, Any] = {
    "step_overhead_s": 0.0,
    "layer_overhead_s": 0.0,
    "router_delay_s": 0.0,
    "expert_imbalance": 1.0,
    "context_sigma": 0.0,
    "launch_share": _LEAST_LAUNCH,
    "expert_layer_overhead_s": 0.0,
    "request_overhead_s": 0.0,
    "poll_steps": 0.0,
    "batch_wait_steps": 0.0,
    "first_output_s": 0.0,
    "first_output_steps": 0.0,
    "expert_first_output_s": 0.0,
    "prompt_factor": 1.0,
    "handoff_s": 0.0,
    "handoff_steps": 0.0,
}


@dataclass(frozen=True)
class Impossible:
    """A measured value beyond what is possible, and the bound it breaks, in the metric's unit."""

    row: int  # position
    metric: Metric
    measured: float
    bound: float


def impossible(rows: Sequence[MeasuredRow]) -> tuple[Impossible, ...]:
    """Times below those of a request that has the chips to itself at the roofs; rows in order."""
    from pddplan.estimate.estimate import estimate_many

    asked = [o for o in observations(rows) if o.metric in TIMES]
    answers = estimate_many([_alone(o.point) for o in asked]) if asked else []
    found = (_broken(o, answer) for o, answer in zip(asked, answers, strict=True))
    return tuple(one for one in found if one is not None)


def _broken(observed: Observation, answer: Answer) -> Impossible | None:
    least = None if isinstance(answer, Excuse) else figures_of(answer).get(observed.metric)
    if least is None or observed.measured >= least:
        return None
    return Impossible(observed.row, observed.metric, observed.measured, least)


def _alone(point: OperatingPoint) -> OperatingPoint:
    pools = tuple(replace(w, curves=at_the_roof(load_curves(w.chip))) for w in point.pools)
    engine: Engine = replace(point.engine, **_NO_OVERHEAD)
    return replace(point, engine=engine, pools=pools, concurrency=1.0, request_rate_per_s=None, requests_per_user=4.0)


def at_the_roof(curves: EfficiencyCurves) -> EfficiencyCurves:
    """Curves of a chip that reaches ``MAX_EFFICIENCY`` of every roof at every size, at once."""
    family = curves.collectives
    links = {f.name: _ideal(record) for f in fields(family) if hasattr(record := getattr(family, f.name), "alpha_s")}
    return with_kernels(
        curves, _ideal, op_overhead_s=0.0, roof_exponent=_SHARP, collectives=replace(_ideal(family), **links)
    )


def _ideal(record: Any) -> Any:
    """Every share at its most, every size at which half is reached and every latency at 0."""
    new: dict[str, float] = {}
    for f in fields(record):
        if f.name.startswith("eta") or f.name.endswith("_eta"):
            new[f.name] = MAX_EFFICIENCY
        elif f.name == "roof_exponent":
            new[f.name] = _SHARP
        elif isinstance(getattr(record, f.name), float):
            new[f.name] = 0.0
    return replace(record, **new)
