"""Objective ``goodput``: the largest rate for which a plan exists within the chips and the budget."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pddplan.plan.options import Shop, build_shop
from pddplan.plan.records import PlanResult
from pddplan.plan.result import headroom_rps
from pddplan.plan.state import GAP, Search
from pddplan.serve.context import Context

if TYPE_CHECKING:
    from pddplan.plan.solve import Progress

STEP_UP = 1.5  # while no upper bound is known
STEP_DOWN = 4.0  # while no rate is feasible
LEAST_FACTOR = 1e-6  # of the scenario's rate: below it nothing is tried
MOST_FACTOR = 1e6


@dataclass
class Bracket:
    """Largest rate with a plan and smallest at which none was found [1/s]; ``none`` is the smallest for which it is
    proven that there is none."""

    low: float = 0.0
    high: float = math.inf
    none: float = math.inf
    last: Search | None = None

    @property
    def closed(self) -> bool:
        return self.low > 0 and self.high - self.low <= GAP * self.low


def solve_goodput(context: Context, deadline: float, progress: Progress | None, top: int | None = None) -> PlanResult:
    """Largest feasible rate, to a proven gap of 0.1 %.

    A plan for more serves less, so feasibility is monotone in the rate: each rate without a plan bounds from above.
    A feasible one is raised at once to the rate at which its own plan breaks. The cheapest plan at that rate is the
    answer, ``top`` - 1 runner-ups serve the same rate.
    """
    from pddplan.plan.infeasible import explain_infeasible, search_budget
    from pddplan.plan.runner_ups import with_runner_ups
    from pddplan.plan.solve import cheapest, feasible_result

    start = time.perf_counter()
    budget = search_budget(context.scenario)
    shop = build_shop(context)
    bracket = Bracket()
    rate = context.rate
    while not bracket.closed and time.monotonic() < deadline:
        if progress is not None:
            progress(f"goodput between {bracket.low:.4g} and {bracket.high:.4g} requests/s")
        _try_rate(context, shop, budget, deadline, rate, bracket)
        if not LEAST_FACTOR < rate / context.rate < MOST_FACTOR:
            break
        rate = _next(bracket, rate)
    if bracket.low == 0.0:
        assert bracket.last is not None
        return explain_infeasible(bracket.last.context, bracket.last, cheapest, deadline)
    at = context.at_rate(bracket.low)
    final = cheapest(at, budget, deadline, progress, shop)
    if final.best is None:  # the deadline came first: the last plan that held is what is known
        final = bracket.last or final
    assert final.best is not None
    result = feasible_result(at, final, final.best)
    if top is not None:
        result = with_runner_ups(result, final, top - 1)
    bound = bracket.none
    if bracket.none > bracket.high:  # several pools in a role were tried, and none was found
        from pddplan.plan.network_search import most_by_program

        bound = min(bound, most_by_program(context, shop, budget, bracket.high))
    bound = bound if math.isfinite(bound) else bracket.low
    return replace(
        result,
        status="feasible" if bracket.closed else "unknown",
        objective="goodput",
        value=bracket.low,
        unit="requests/s",
        bound=bound,
        gap=(bound - bracket.low) / bracket.low,
        timing_s={"load": 0.0, "solve": time.perf_counter() - start, "evaluate": 0.0},
    )


def _try_rate(context: Context, shop: Shop, budget: float, deadline: float, rate: float, bracket: Bracket) -> None:
    """Look for any plan at a rate and move one end of the bracket."""
    from pddplan.plan.solve import cheapest

    search = cheapest(context.at_rate(rate), budget, deadline, None, shop, first_only=True)
    if search.best is not None:
        bracket.last = search
        reached = headroom_rps(search.context, search.best.deployment)
        bracket.low = max(bracket.low, min(reached, bracket.high * (1 - GAP / 4)))
    elif search.complete:
        bracket.high = min(bracket.high, rate)
        if not search.open:
            bracket.none = min(bracket.none, rate)
        bracket.last = bracket.last or search


def _next(bracket: Bracket, rate: float) -> float:
    if math.isinf(bracket.high):
        return bracket.low * STEP_UP
    if bracket.low == 0.0:
        return rate / STEP_DOWN
    # a little above what a plan is known for: the usual case is that nothing more is to be had
    if bracket.high > bracket.low * 1.05:
        return bracket.low * (1 + 0.25 * (bracket.high / bracket.low - 1))
    return max((bracket.low + bracket.high) / 2, bracket.low * (1 + GAP * 0.9))
