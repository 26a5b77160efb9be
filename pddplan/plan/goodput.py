"""Objective ``goodput``: the largest rate for which a plan exists within the chips and the budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pddplan.plan.records import PlanResult
from pddplan.plan.search import GAP, Found, Search
from pddplan.serve.context import Context
from pddplan.spec.types import Scenario

if TYPE_CHECKING:
    from pddplan.plan.solve import Progress

SolveCost = Callable[[Scenario, float, float, "Progress | None"], tuple[Context, Search]]
FIRST_STEP = 1.6
MAX_RATE_FACTOR = 1e6


def solve_goodput(
    scenario: Scenario, deadline: float, progress: Progress | None, solve_cost: SolveCost
) -> PlanResult:
    """Largest feasible rate by bisection of the cheapest-plan problem, to a proven gap of 0.1 %.

    Feasibility is monotone in the rate for the optimum (a plan for more serves less), so each infeasible rate is an
    upper bound and each feasible one a lower. The scenario's rate is where the search starts.
    """
    from pddplan.plan.infeasible import explain_infeasible
    from pddplan.plan.solve import cheapest, feasible_result

    start = time.perf_counter()
    budget = scenario.objective.max_usd_per_hour or math.inf
    best: tuple[Context, Search, Found] | None = None
    low, high = 0.0, math.inf
    rate = scenario.workload.request_rate_per_s
    last: tuple[Context, Search] | None = None
    while high - low > GAP * low if low > 0 else True:
        if time.monotonic() > deadline or (high < 1e-9 and low == 0.0):
            break
        if progress is not None:
            progress(f"goodput between {low:.4g} and {high:.4g} requests/s")
        trial = replace(scenario, workload=replace(scenario.workload, request_rate_per_s=rate))
        last = solve_cost(trial, budget, deadline, progress)
        if last[1].best is not None:
            low, best = rate, (*last, last[1].best)
        else:
            high = rate
        if math.isinf(high):
            if low > scenario.workload.request_rate_per_s * MAX_RATE_FACTOR:
                break
            rate = low * FIRST_STEP
        elif low == 0.0:
            rate = high / FIRST_STEP
            if rate < scenario.workload.request_rate_per_s * 1e-4:
                break
        else:
            rate = (low + high) / 2
    if best is None:
        assert last is not None
        return explain_infeasible(last[0], last[1], cheapest, deadline)
    result = feasible_result(*best)
    bound = high if math.isfinite(high) else low
    proven = bound - low <= GAP * low * (1 + 1e-9)
    return replace(
        result,
        status="feasible" if proven else "unknown",
        objective="goodput",
        value=low,
        unit="requests/s",
        bound=bound,
        gap=(bound - low) / low,
        timing_s={"load": 0.0, "solve": time.perf_counter() - start, "evaluate": 0.0},
    )
