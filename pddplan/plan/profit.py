"""Objective ``profit``: how much of the demand to serve, and with which plan, so that revenue less cost is largest."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pddplan.economics.cost import bill
from pddplan.economics.revenue import revenue_usd_per_hour
from pddplan.economics.split import tokens_per_hour
from pddplan.errors import Excuse
from pddplan.plan.cost_curve import COARSE, CostCurve, Served
from pddplan.plan.network_search import search_networks
from pddplan.plan.options import Shop, build_shop, mixable
from pddplan.plan.records import Fix, PlanResult
from pddplan.plan.state import GAP, Search
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.spec.types import Prices

if TYPE_CHECKING:
    from pddplan.plan.solve import Progress

NEAR = 1.05  # of the plan's cost: what the last search may also meet, for its other plans
WHOLE = 1 - 1e-9  # of the demand
SECONDS_FOR_PRICE = 12.0
PRICE_DIGITS = 3
ROUNDING = 1e-12


def solve_profit(context: Context, deadline: float, progress: Progress | None, top: int | None = None) -> PlanResult:
    """Rate from 0 to the scenario's and plan of the largest profit, proven to 0.1 % of what is at stake.

    Revenue is r lambda: tokens of the average hour at the scenario's prices. The least cost C(lambda) never falls, see
    ``CostCurve.maximise``. ``gap`` = (bound - value) over the larger of the revenue of the most that can be served and
    the plan's bill, so that it means the same where the profit is near zero or a loss. Serving nothing is a choice too:
    where that is best the answer is infeasible, with the price of output at which a plan breaks even as the fix.
    ``top`` - 1 runner-ups serve the same rate. The rate is chosen among plans of one pool per role (of several only
    where none of one holds the whole demand); the plan that serves it may have several.
    """
    from pddplan.plan.infeasible import explain_infeasible, search_budget
    from pddplan.plan.solve import cheapest

    start = time.perf_counter()
    prices = context.scenario.prices
    assert prices is not None  # the scenario's checks see to it
    per_rps = usd_per_rps(context, prices)
    idle = bill(context.scenario, Deployment(), ()).usd_per_hour
    most = search_budget(context.scenario)
    shop = build_shop(context)
    search = partial(cheapest, networks="if_none" if _needs_network(context, shop, most, deadline) else "never")
    curve = CostCurve(context, shop, search, idle, most, deadline, progress)
    curve.maximise(per_rps)
    if not curve.served and curve.search(context.rate * GAP).best is not None:
        curve.maximise(per_rps)  # plans hold, but none that was cheap enough to be looked for
    best = curve.best(per_rps)
    if best is not None:
        result = _plan(curve, best, per_rps, top)
    elif curve.served:
        result = _nothing_pays(curve, per_rps, prices)
    else:
        assert curve.last is not None
        result = explain_infeasible(curve.last.context, curve.last, cheapest, deadline)
        result = replace(result, bound=None)  # it is one of the cost
    timing = {"load": 0.0, "solve": time.perf_counter() - start, "evaluate": 0.0}
    return replace(result, timing_s=timing, objective="profit", unit="USD/h", demand_rps=context.rate)


def _needs_network(context: Context, shop: Shop, most_usd_per_hour: float, deadline: float) -> bool:
    """Whether several pools in a role could serve the whole demand, and no plan of one pool per role does."""
    from pddplan.plan.solve import cheapest

    if not mixable(shop):
        return False
    single = cheapest(context, most_usd_per_hour, deadline, None, shop, first_only=True, networks="never")
    return single.best is None


def usd_per_rps(context: Context, prices: Prices) -> float:
    """What a request/s of the peak earns in an average hour [USD/h per 1/s]."""
    return sum(revenue_usd_per_hour(prices, tokens_per_hour(context)).values()) / context.rate


def _plan(curve: CostCurve, best: Served, per_rps: float, top: int | None) -> PlanResult:
    """The answer for a plan: the cheapest one at its rate, which is this one to the gap."""
    from pddplan.plan.runner_ups import with_runner_ups
    from pddplan.plan.solve import feasible_result

    final = _whole_demand_by_several(curve, best, per_rps)
    if final is not None and final.best is not None:
        best = Served(curve.demand, final.best.deployment, final.best.usd_per_hour)
    else:
        final = _search_at(curve, best)
    assert final.best is not None
    result = feasible_result(final.context, final, final.best)
    if top is not None:
        result = with_runner_ups(result, final, top - 1)
    value = per_rps * best.rate - final.best.usd_per_hour
    stake = curve.stake(per_rps)
    bound = max(curve.upper(per_rps), value)
    gap = (bound - value) / stake if stake > 0 else 0.0
    return replace(
        result,
        status="feasible" if gap <= GAP else "unknown",
        value=value,
        bound=bound,
        gap=gap,
        recommendation=f"{_served_words(curve, best, value, result)} {result.recommendation}",
    )


def _search_at(curve: CostCurve, best: Served) -> Search:
    """A finished search at the best plan's rate with a plan that is no dearer."""
    search = curve.searches.get(best.rate)
    if search is None:
        budget = min(best.usd_per_hour * NEAR, curve.most_usd_per_hour)
        at = curve.context.at_rate(best.rate)
        search = curve.cheapest(at, budget, curve.deadline, curve.progress, curve.shop)
    search.try_plan(best.deployment)  # where the deadline came first, or the search ended within its gap
    if mixable(curve.shop):
        search_networks(search)
    return search


def _whole_demand_by_several(curve: CostCurve, best: Served, per_rps: float) -> Search | None:
    """Several pools in a role that serve the whole demand and leave more than the best plan; None without any."""
    if not mixable(curve.shop):
        return None
    budget = min(per_rps * curve.demand - (per_rps * best.rate - best.usd_per_hour), curve.most_usd_per_hour)
    search = Search(curve.context, curve.shop, budget, curve.deadline, curve.progress)
    search_networks(search)
    return search if search.best is not None else None


def _served_words(curve: CostCurve, best: Served, value: float, result: PlanResult) -> str:
    """How much of the demand, why not more, and what it leaves."""
    assert result.cost is not None
    tokens = sum(result.cost.tokens_per_hour.values())
    each = abs(value) / tokens * 1e6 if tokens > 0 else 0.0
    margin = f"{_usd(abs(value))}/h, {_usd(each)} per M tokens"
    if best.rate >= WHOLE * curve.demand:
        served = f"Serve the whole demand of {_number(curve.demand)} requests/s"
    else:
        served = f"Serve {_share_words(curve, best.rate)} ({best.rate / curve.demand:.0%})"
        affordable = " within the budget" if math.isfinite(curve.most_usd_per_hour) else ""
        held = math.isfinite(curve.lows[-1])
        served += f": {'more would cost more than it earns' if held else f'no plan{affordable} holds for all of them'}"
    if value >= 0:
        return f"{served}; profit {margin}."
    return f"{served}; it loses {margin}, less than the {_usd(curve.idle)}/h of serving nothing."


def _share_words(curve: CostCurve, rate: float) -> str:
    return f"{_number(rate)} of {_number(curve.demand)} requests/s"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def _usd(value: float) -> str:
    return f"${_number(value)}"


# ---------------------------------------------------------------- nothing pays


def _nothing_pays(curve: CostCurve, per_rps: float, prices: Prices) -> PlanResult:
    """Serving nothing is best: which plan comes nearest, and the price of output at which it breaks even."""
    from pddplan.plan.infeasible import refusal

    bound, stake = curve.upper(per_rps), curve.stake(per_rps)
    gap = (bound + curve.idle) / stake if stake > 0 else 0.0
    nearest = _break_even(curve)
    extra, revenue = nearest.usd_per_hour - curve.idle, per_rps * nearest.rate
    price = _output_price(curve.context, prices, extra / nearest.rate)
    served = _share_words(curve, nearest.rate)
    what = f"output tokens at ${price:g} per million (now {prices.output_usd_per_mtok:g}), to serve {served}"
    given = f"input_usd_per_mtok: {prices.input_usd_per_mtok!r}"
    given += f", cached_input_usd_per_mtok: {prices.cached_input_usd_per_mtok!r}, output_usd_per_mtok: {price!r}"
    fix = Fix(what, (f"prices={{{given}}}",), nearest.usd_per_hour)
    assert curve.last is not None
    excuse = Excuse("cost_against_revenue", extra, revenue, "USD/h", "")
    result = refusal(curve.context, curve.last, (excuse,), (fix,))
    paid = f" Serving nothing still costs the {_usd(curve.idle)}/h of what is owned." if curve.idle > 0 else ""
    words = (
        f"At these prices no plan earns its cost: the nearest serves {served} and loses {_usd(extra - revenue)}/h; it"
        f" breaks even with output at ${price:g} per M tokens (now {prices.output_usd_per_mtok:g}).{paid}"
    )
    return replace(
        result,
        status="infeasible" if gap <= GAP else "unknown",
        value=0.0 - curve.idle,
        bound=bound,
        gap=gap,
        goodput_rps=0.0,
        recommendation=words,
    )


def _break_even(curve: CostCurve) -> Served:
    """The plan with the least cost beyond ``idle`` per request/s: at that price it is the first to pay.

    Raises the price to what the best plan known needs and looks for one that leaves something there, until none does;
    what is known of the least cost holds at every price. A time limit leaves the best one known.
    """
    least = _least_price(curve)
    curve.carry(least, (least.usd_per_hour - curve.idle) / least.rate, COARSE * GAP)
    least = _least_price(curve)
    deadline = curve.deadline
    curve.deadline = min(deadline, time.monotonic() + SECONDS_FOR_PRICE)
    while curve.maximise((least.usd_per_hour - curve.idle) / least.rate):
        nearer = _least_price(curve)
        if nearer is least:
            break
        least = nearer
    curve.deadline = deadline
    return _least_price(curve)


def _least_price(curve: CostCurve) -> Served:
    return min(curve.served, key=lambda s: ((s.usd_per_hour - curve.idle) / s.rate, -s.rate))


def _output_price(context: Context, prices: Prices, needed_usd_per_rps: float) -> float:
    """Price of a million output tokens at which a request/s earns so much, rounded up to three digits [USD]."""
    rest = usd_per_rps(context, replace(prices, output_usd_per_mtok=0.0))
    price = float(needed_usd_per_rps - rest) / (tokens_per_hour(context)["output"] / context.rate / 1e6)
    digits = PRICE_DIGITS - 1 - math.floor(math.log10(price))
    scale = 10.0**digits
    return round(math.ceil(price * scale * (1 - ROUNDING)) / scale, max(digits, 0))
