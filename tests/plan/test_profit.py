"""Profit against the least cost at many rates, at the ends of the prices, and as prices, demand and money move."""

from __future__ import annotations

import itertools
import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np
import pytest

from pddplan.economics.cost import bill
from pddplan.plan.cost_curve import CostCurve
from pddplan.plan.options import build_shop
from pddplan.plan.profit import solve_profit, usd_per_rps
from pddplan.plan.records import PlanResult
from pddplan.plan.solve import cheapest, prepare, solve
from pddplan.plan.state import GAP
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Objective, Prices, Scenario
from tests.plan.fleet import FLEET, PRICES
from tests.plan.small_worlds import world

WORLDS = 32
RATES = 6
ROUNDING = 1e-9

HIGH = "prices.output_usd_per_mtok=50"
LOW = "prices.output_usd_per_mtok=0.1"


def fleet(*overrides: str) -> Scenario:
    return load_scenario_text(f"objective: profit\n{FLEET}{PRICES}", "fleet.yaml", overrides=overrides)


@cache
def plan(*overrides: str) -> PlanResult:
    return solve(fleet(*overrides))


def idle_usd_per_hour(scenario: Scenario) -> float:
    return bill(scenario, Deployment(), ()).usd_per_hour


# ---------------------------------------------------------------- against many rates


def priced_world(seed: int) -> Scenario:
    """A small world with prices around what its plans cost, so that some serve all, some a part and some nothing."""
    scenario = world(seed)
    context, rng = prepare(scenario), np.random.default_rng(seed)
    best = cheapest(context).best
    usd = best.usd_per_hour if best is not None else 10.0
    atoms = context.demand.atoms
    tokens = atoms.mean(atoms.output) + 0.2 * atoms.mean(atoms.uncached) + 0.02 * atoms.mean(atoms.cached)
    output = float(rng.uniform(0.7, 1.6)) * usd / (context.rate * 3600 / 1e6 * tokens)
    return replace(scenario, prices=Prices(0.2 * output, 0.02 * output, output), objective=Objective("profit"))


@dataclass(frozen=True)
class Result:
    """What ``solve`` says of one world, and the most that the cheapest plans at many rates leave."""

    seed: int
    status: str
    value: float | None
    bound: float
    gap: float
    share: float  # of the demand
    idle: float  # bill of serving nothing
    most: float  # profit over the rates tried, -inf without a plan
    stake: float


def compare(seed: int) -> Result:
    scenario = priced_world(seed)
    result = solve(scenario)
    context = prepare(scenario)
    assert scenario.prices is not None
    per_rps, shop = usd_per_rps(context, scenario.prices), build_shop(context)
    rates = list(context.rate * (np.arange(RATES) + np.random.default_rng(seed).uniform()) / RATES)
    served = result.goodput_rps or 0.0
    # a little more and less than what is served, where a slip would show
    rates += [context.rate, *(served * f for f in (0.98, 1.0, 1.003, 1.02) if 0 < served * f < context.rate)]
    most, largest = -math.inf, 0.0
    for rate in rates:
        best = cheapest(context.at_rate(rate), shop=shop).best
        if best is not None:
            most, largest = max(most, per_rps * rate - best.usd_per_hour), max(largest, rate)
    usd = result.cost.usd_per_hour if result.cost is not None else math.inf
    stake = max(per_rps * max(largest, served), usd if math.isfinite(usd) else -most)
    bound = math.inf if result.bound is None else result.bound
    gap = math.inf if result.gap is None else result.gap
    idle = idle_usd_per_hour(scenario)
    return Result(seed, result.status, result.value, bound, gap, served / context.rate, idle, most, stake)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(pool.map(compare, range(WORLDS), chunksize=3))


def test_no_rate_leaves_more(results: list[Result]) -> None:
    for found in results:
        if found.value is None:
            assert found.status == "infeasible" and found.most == -math.inf, found
            continue
        assert found.status != "unknown" and found.gap <= GAP, found
        assert found.value >= found.most - GAP * found.stake, found
        assert found.most <= found.bound + ROUNDING * found.stake, found
        assert -found.idle - ROUNDING <= found.value <= found.bound, found


def test_nothing_is_served_only_where_nothing_pays(results: list[Result]) -> None:
    for found in results:
        if found.status == "infeasible" and found.value is not None:
            assert found.value == -found.idle and found.share == 0.0, found
            assert found.most <= -found.idle + GAP * found.stake, found


def test_the_worlds_hold_every_case(results: list[Result]) -> None:
    feasible = [found for found in results if found.status == "feasible"]
    assert sum(0 < found.share < 0.99 for found in feasible) >= 5
    assert sum(found.share == 1.0 for found in feasible) >= 5
    assert any(found.status == "infeasible" and found.value is not None for found in results)
    assert any(found.idle > 0 for found in feasible)


def test_the_plan_is_worth_what_it_says() -> None:
    result = plan()
    assert result.status == "feasible" and result.cost is not None and result.revenue is not None
    assert result.value == pytest.approx(result.revenue.usd_per_hour - result.cost.usd_per_hour)
    assert result.value == pytest.approx(result.revenue.margin_usd_per_hour)
    assert result.goodput_rps is not None
    at_rate = fleet(f"workload.request_rate_per_s={result.goodput_rps!r}", "objective=cost")
    cost = solve(at_rate).cost
    assert cost is not None and cost.usd_per_hour == pytest.approx(result.cost.usd_per_hour, rel=GAP)
    assert result.evaluation is not None and result.evaluation.feasible


# ---------------------------------------------------------------- the ends of the prices


def test_at_high_prices_all_is_served_by_the_cheapest_plan() -> None:
    result, cost = plan(HIGH), solve(fleet(HIGH, "objective=cost"))
    assert result.goodput_rps == 40 and result.demand_rps == 40
    assert result.roles == cost.roles and result.links == cost.links and result.cost == cost.cost
    assert "whole demand" in result.recommendation


def test_at_low_prices_nothing_pays_and_the_break_even_price_is_told() -> None:
    result = plan(LOW)
    assert (result.status, result.value, result.goodput_rps) == ("infeasible", 0.0, 0.0)
    assert result.roles == () and result.cost is None
    assert result.bound is not None and result.bound >= 0.0 and result.gap is not None and result.gap <= GAP
    (fix,) = result.fixes
    assert "no plan earns its cost" in result.recommendation and "breaks even" in result.recommendation
    pays = plan(LOW, *fix.overrides)
    assert pays.status == "feasible" and pays.value is not None and pays.value >= 0.0
    # it is the least such price: three per cent less isn't enough
    price = fleet(*fix.overrides).prices
    assert price is not None
    less = plan(LOW, f"prices.output_usd_per_mtok={price.output_usd_per_mtok * 0.97:.6g}")
    assert less.status == "infeasible"


def test_free_tokens_earn_nothing() -> None:
    free = "prices={input_usd_per_mtok: 0, output_usd_per_mtok: 0}"
    assert plan(free).status == "infeasible" and plan(free).value == 0.0


def test_owned_chips_serve_at_a_loss_that_is_less_than_theirs() -> None:
    owned = ("sites[0].chips[0].owned=400",)
    result, idle = plan(*owned), idle_usd_per_hour(fleet(*owned))
    assert result.status == "feasible" and result.value is not None
    assert -idle < result.value < 0 and "serving nothing" in result.recommendation
    assert result.goodput_rps == 40  # chips that are paid anyway


def test_idle_owned_chips_stay_on_the_bill() -> None:
    """One instance is owned; what it needs beside it costs more than tokens bring."""
    some = ("sites[0].chips[0].owned=8", LOW)
    result = plan(*some)
    assert result.status == "infeasible" and result.value == -idle_usd_per_hour(fleet(*some)) == -16.0
    assert "owned" in result.recommendation


def test_no_plan_at_any_rate() -> None:
    result = plan("slo={ttft_s: {p90: 0.000001}}")
    assert result.status == "infeasible" and result.value is None and result.excuses
    assert "earns" not in result.recommendation


# ---------------------------------------------------------------- monotone


def worth(result: PlanResult) -> float:
    assert result.value is not None
    return result.value


@pytest.mark.parametrize("change", ["prices.output_usd_per_mtok=4", "prices.input_usd_per_mtok=0.2"])
def test_better_prices_never_lower_the_profit(change: str) -> None:
    less, more = plan(), plan(change)
    assert more.revenue is not None
    assert worth(more) >= worth(less) - GAP * more.revenue.usd_per_hour


def test_profit_never_falls_with_the_demand() -> None:
    answers = [plan(f"workload.request_rate_per_s={rate}") for rate in (10, 20, 40, 80)]
    for less, more in itertools.pairwise(answers):
        assert less.cost is None or worth(more) >= worth(less) - GAP * less.cost.usd_per_hour
    assert worth(answers[-1]) > worth(answers[0])


def test_a_budget_limits_what_is_spent() -> None:
    free = plan(HIGH)
    assert free.cost is not None
    budget = free.cost.usd_per_hour * 0.6
    tight = plan(HIGH, f"objective={{profit: {{max_usd_per_hour: {budget!r}}}}}")
    assert tight.status == "feasible" and tight.cost is not None and tight.cost.usd_per_hour <= budget * (1 + ROUNDING)
    assert tight.goodput_rps is not None and tight.goodput_rps < 40 and worth(tight) < worth(free)


def test_a_budget_that_buys_nothing_is_told() -> None:
    result = plan("objective={profit: {max_usd_per_hour: 1}}")
    assert result.status == "infeasible" and result.excuses[0].constraint == "budget"
    assert result.fixes and "profit" in result.fixes[0].overrides[0]


def test_average_hours_earn_less() -> None:
    """Sized for the peak, paid by the mean."""
    day = f"workload.hourly_load={[1] * 12 + [2] * 12}"
    peak, mean = plan(HIGH), plan(HIGH, day)
    assert peak.revenue is not None and mean.revenue is not None and mean.goodput_rps == peak.goodput_rps
    assert mean.revenue.usd_per_hour == pytest.approx(0.75 * peak.revenue.usd_per_hour)


# ---------------------------------------------------------------- time, runner-ups, the curve


def test_a_time_limit_leaves_a_plan_and_a_bound() -> None:
    result = solve(fleet(), time_limit_s=0.001)
    assert result.status == "unknown" and result.objective == "profit"


def test_stopped_later_the_plan_is_given_and_the_bound_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock strikes when the whole demand has been looked at."""
    monkeypatch.setattr("pddplan.plan.cost_curve.time", SimpleNamespace(monotonic=lambda: 1e18))
    result = solve_profit(prepare(fleet()), 1e17, None)
    assert result.status == "unknown" and result.goodput_rps == 40 and result.roles
    assert result.bound is not None and result.gap is not None and result.gap > GAP
    assert worth(result) < worth(plan()) <= result.bound


def test_stopped_after_the_first_search_the_bound_holds() -> None:
    """The deadline comes when the whole demand has been looked at: its plan is known, and no rate leaves more than the
    bound."""
    scenario = fleet()
    context = prepare(scenario)
    assert scenario.prices is not None
    per_rps = usd_per_rps(context, scenario.prices)
    curve = CostCurve(context, build_shop(context), cheapest, 0.0)
    curve.search(context.rate)
    assert curve.upper(per_rps) >= worth(plan()) and len(curve.served) == 1


def test_runner_ups_serve_the_same_rate() -> None:
    result = solve(fleet(), top=3)
    assert result.runner_ups is not None and result.runner_ups.asked == 2
    assert result.cost is not None and result.value == pytest.approx(plan().value, rel=GAP)
    for other in result.alternatives:
        assert other.roles and other.usd_per_hour >= result.cost.usd_per_hour * (1 - GAP)


def test_the_curve_never_falls_and_bounds_every_plan() -> None:
    context: Context = prepare(fleet())
    assert context.scenario.prices is not None
    per_rps = usd_per_rps(context, context.scenario.prices)
    curve = CostCurve(context, build_shop(context), cheapest, 0.0)
    assert curve.maximise(per_rps)
    assert curve.rates == sorted(curve.rates) and curve.lows == sorted(curve.lows)
    for served in curve.served:
        below = [low for rate, low in zip(curve.rates, curve.lows, strict=True) if rate <= served.rate]
        assert served.usd_per_hour >= below[-1] * (1 - ROUNDING)
        assert served.profit(per_rps) <= curve.upper(per_rps) + ROUNDING
