"""``solve``: the cheapest plan that holds every row, proven, or what stands in its way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pddplan.llm.catalogue import load_model
from pddplan.plan.aggregated import search_aggregated
from pddplan.plan.explain import alternatives, assumptions, bindings, recommendation
from pddplan.plan.options import Shop, all_pinned, build_shop, mixable
from pddplan.plan.records import PlanResult, Solved, Status
from pddplan.plan.result import (
    architecture_of,
    cost_of,
    headroom_rps,
    link_plans,
    revenue_of,
    role_plans,
)
from pddplan.plan.search import run
from pddplan.plan.state import GAP, Found, Search
from pddplan.serve.context import Context, build_context
from pddplan.serve.evaluate import evaluate
from pddplan.spec.catalogue import catalogue_date, link_defaults
from pddplan.spec.types import Scenario

Progress = Callable[[str], None]
# Several pools in a role: looked for where chips run out, where no plan of one pool per role holds, or not at all
Networks = Literal["if_short", "if_none", "never"]


def prepare(scenario: Scenario) -> Context:
    """Context of a scenario: model and catalogue defaults looked up."""
    model = load_model(scenario.model, scenario.base_dir)
    return build_context(scenario, model, link_defaults().nic_goodput)


def solve(
    scenario: Scenario,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    top: int | None = None,
) -> PlanResult:
    """Cheapest plan (objective ``cost``), largest rate (``goodput``) or largest profit (``profit``) of a scenario.

    ``status`` is feasible with gap <= 0.1 % when proven; unknown when the time limit hit first (then with the best
    plan so far and the bound); infeasible with what binds and the nearest fix. Deterministic for equal input.
    ``top``: besides the best plan up to ``top`` - 1 others, different in kind and within 5 % of its cost.
    """
    start = time.perf_counter()
    deadline = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    context = prepare(scenario)
    # What few answers need is imported where it is needed, here and below: the start of a command is part of its time
    if scenario.objective.name == "goodput":
        from pddplan.plan.goodput import solve_goodput

        return replace(solve_goodput(context, deadline, progress, top), seed=seed)
    if scenario.objective.name == "profit":
        from pddplan.plan.profit import solve_profit

        return replace(solve_profit(context, deadline, progress, top), seed=seed)
    search = cheapest(context, deadline=deadline, progress=progress)
    solved = time.perf_counter()
    if search.best is not None:
        result = feasible_result(context, search, search.best)
    else:
        from pddplan.plan.infeasible import explain_infeasible

        result = explain_infeasible(context, search, cheapest, deadline)
    told = time.perf_counter()
    if top is not None:
        from pddplan.plan.runner_ups import with_runner_ups

        result = with_runner_ups(result, search, top - 1)
    searched = solved - start + time.perf_counter() - told
    timing = {"load": 0.0, "solve": searched, "evaluate": told - solved}
    return replace(result, timing_s=timing, seed=seed)


def cheapest(
    context: Context,
    budget_usd_per_hour: float = math.inf,
    deadline: float = math.inf,
    progress: Progress | None = None,
    shop: Shop | None = None,
    first_only: bool = False,
    networks: Networks = "if_short",
) -> Search:
    """Search of one scenario over all architectures that roles, chips and lines permit: one pool per role, and several
    of different offers where the chips of one run out (``networks``).

    ``first_only`` ends it at the first plan that holds. ``shop`` of an earlier search of the same offers
    is used as is.
    """
    shop = shop or build_shop(context)
    search = Search(context, shop, budget_usd_per_hour, deadline, progress, first_only)
    if all_pinned(shop):
        _networks(search)
        return search
    search_aggregated(search)
    run(search)
    if (
        networks != "never"
        and mixable(shop)
        and (search.best is None or (networks == "if_short" and not first_only and chips_run_short(search)))
    ):
        _networks(search)
    return search


def _networks(search: Search) -> None:
    from pddplan.plan.network_search import search_networks  # late: most scenarios have no use for it

    search_networks(search)


def chips_run_short(search: Search) -> bool:
    """Whether a plan of one pool per role would be cheaper if chips and power had no limit: then other chips or sites
    beside them may be worth their while."""
    if search.best is None:
        return True
    from pddplan.plan.variants import unlimited

    lifted = replace(search.context, scenario=unlimited(search.context.scenario))
    budget = search.best.usd_per_hour * (1 - GAP)
    free = Search(lifted, build_shop(lifted), budget, search.deadline, search.progress, first_only=True)
    search_aggregated(free)
    run(free)
    return free.best is not None


def feasible_result(context: Context, search: Search, best: Found) -> PlanResult:
    """The answer for a found plan."""
    evaluation = evaluate(context, best.deployment, routing=best.evaluation.routing)
    costs, cost, split = cost_of(context, best.deployment, evaluation)
    gap = max(cost.usd_per_hour - search.bound, 0.0) / cost.usd_per_hour if cost.usd_per_hour > 0 else 0.0
    status: Status = "feasible" if search.complete or gap <= GAP else "unknown"
    roles = role_plans(context, best.deployment, evaluation, costs)
    links = link_plans(context, best.deployment, evaluation, costs)
    rate = context.rate
    architecture = architecture_of(best.deployment, evaluation)
    scenario = context.scenario
    return PlanResult(
        status=status,
        architecture=architecture,
        objective="cost",
        value=cost.usd_per_hour,
        unit="USD/h",
        bound=min(search.bound, cost.usd_per_hour),
        gap=gap,
        roles=roles,
        links=links,
        evaluation=evaluation,
        goodput_rps=rate,
        within_slo_rps=rate * evaluation.within_slo_share,
        headroom_rps=headroom_rps(context, best.deployment, evaluation.routing),
        cost=cost,
        revenue=revenue_of(context, split.tokens_per_hour, cost.usd_per_hour),
        binding=bindings(context, best.deployment, evaluation),
        alternatives=alternatives(search, best),
        assumptions=assumptions(context, best.deployment),
        recommendation=recommendation(context, best.deployment, evaluation, cost, architecture),
        warnings=scenario.warnings,
        scenario_name=scenario.name,
        scenario_sha256=scenario.sha256,
        catalogue_date=catalogue_date(),
        bcr=rate / cost.usd_per_hour if cost.usd_per_hour > 0 else None,
        cny_per_usd=scenario.cny_per_usd,
        solved=Solved(context, best.deployment),
    )
