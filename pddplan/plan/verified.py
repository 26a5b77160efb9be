"""``solve --verify``: the winning plan simulated; limits that the simulation breaks are tightened, and solved again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pddplan.errors import InputError
from pddplan.plan.records import PlanResult
from pddplan.plan.simulated import simulate_deployment
from pddplan.plan.solve import solve
from pddplan.serve.evaluate import evaluate
from pddplan.simulate.records import Asked, Simulated, Simulation
from pddplan.spec.types import Scenario

Progress = Callable[[float, str], None]
Solving = Callable[[Scenario], PlanResult]

REQUESTS = 200_000
WITHIN = 0.05  # of the TTFT p99, either way
ROUNDS = 4
NO_PLAN = "there is no plan to simulate."
MARGIN = 0.005  # below what would just have held


@dataclass(frozen=True)
class Tightened:
    """A limit that the simulation of a plan broke although the formulas kept it."""

    row: str  # "ttft p99", with the workload's name where there are several
    limit_s: float
    simulated_s: float
    tightened_s: float


@dataclass(frozen=True)
class Verified:
    """The last plan, its simulation against the scenario's own limits, and what was tightened on the way."""

    result: PlanResult
    simulation: Simulation | None  # None: ``why`` not
    tightened: tuple[Tightened, ...]
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether the simulation keeps every limit of the scenario."""
        return self.simulation is not None and self.simulation.growth is None and not _broken(self.simulation)


def verify(
    scenario: Scenario, result: PlanResult, seed: int = 1, progress: Progress | None = None, again: Solving = solve
) -> Verified:
    """Simulates the plan of ``result`` until the interval of its TTFT p99 is within 5 % either way. Where it breaks a
    limit that the formulas kept, that limit is tightened in proportion and the scenario solved ``again``, up to four
    times. The limits in the answer are the scenario's own."""
    tight, told = scenario, list[Tightened]()
    for left in range(ROUNDS, -1, -1):
        if result.solved is None or result.evaluation is None or result.status == "infeasible":
            return Verified(result, None, tuple(told), NO_PLAN)
        context = result.solved.context
        context = replace(context, scenario=replace(context.scenario, slo=scenario.slo))
        deployment = result.solved.deployment
        known = evaluate(context, deployment, routing=result.evaluation.routing)
        asked = Asked(REQUESTS, seed, p99_within=WITHIN)
        try:
            found = simulate_deployment(context, deployment, asked, progress, known)
        except InputError as error:
            first = error.problems[0]
            return Verified(result, None, tuple(told), " ".join((first.message, first.fix)).strip())
        broken = _broken(found)
        if found.growth is not None or not broken or left == 0:
            return Verified(replace(result, evaluation=known), found, tuple(told))
        tight, now = _tighter(tight, broken)
        told += now
        result = again(tight)
    raise AssertionError("the last round returns")


def _broken(found: Simulation) -> list[Simulated]:
    """Rows whose limit lies below the simulated quantile."""
    return [row for row in found.quantiles if row.stage == "all" and not row.met]


def _tighter(scenario: Scenario, broken: list[Simulated]) -> tuple[Scenario, list[Tightened]]:
    """The scenario with the limits of the broken rows lowered by as much as the formulas told too little."""
    limits, told = list(scenario.slo), []
    for row in broken:
        for n, limit in enumerate(limits):
            if (limit.metric, limit.quantile, limit.workload) != (row.metric, row.quantile, row.workload):
                continue
            assert row.analytic_s is not None and row.limit_s is not None
            lower = min(limit.limit_s, row.analytic_s) * row.limit_s / row.simulated.value * (1.0 - MARGIN)
            limits[n] = replace(limit, limit_s=lower)
            name = f"{row.metric} p{100 * row.quantile:g}" + (f" of {row.workload}" if row.workload else "")
            told.append(Tightened(name, row.limit_s, row.simulated.value, lower))
    return replace(scenario, slo=tuple(limits)), told
