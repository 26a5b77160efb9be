"""The solver against trying everything: 200 small random scenarios, every plan evaluated by the full model."""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import pytest

from pddplan.plan.search import GAP
from pddplan.plan.solve import cheapest, prepare
from pddplan.serve.evaluate import evaluate
from tests.plan.small_worlds import brute_force, cost_of, every_plan, world

WORLDS = 200
WHOLE = 12  # of them: not only the plans that could be cheaper are tried, but all
ROUNDING = 1e-9


@dataclass(frozen=True)
class Result:
    """One scenario: what the solver says (USD/h, inf: infeasible) and what trying everything finds."""

    seed: int
    solved: float
    bound: float
    holds: bool  # the solver's plan holds when evaluated anew
    least: float  # of all instances that fit
    listed: float  # of those on the planner's short list
    p99_binds: bool
    tried: int
    plans: int


def compare(seed: int) -> Result:
    scenario = world(seed)
    search = cheapest(prepare(scenario))
    solved, holds = math.inf, True
    if search.best is not None:
        fresh = evaluate(prepare(scenario), search.best.deployment)
        solved, holds = cost_of(scenario, search.best.deployment, fresh), fresh.feasible
    below = math.inf if seed < WHOLE else solved
    tried = brute_force(prepare(scenario), below_usd_per_hour=below)
    return Result(
        seed, solved, search.bound, holds, tried.usd_per_hour, tried.listed_usd_per_hour, tried.p99_binds, tried.tried, tried.plans
    )


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """All comparisons, on all cores; spawned, since a fork would take the threads of numerical libraries with it."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(pool.map(compare, range(WORLDS), chunksize=5))


def test_nothing_is_cheaper(results: list[Result]) -> None:
    """Where nothing cheaper was found ``least`` is inf, except in the first scenarios, where it is the minimum."""
    wrong = [r for r in results if r.solved > r.least * (1 + GAP)]
    assert not wrong


def test_feasible_iff_some_plan_holds(results: list[Result]) -> None:
    assert not [r for r in results if math.isinf(r.solved) and math.isfinite(r.least)]
    assert not [r for r in results if not r.holds]
    whole = [r for r in results if r.seed < WHOLE]
    assert [math.isinf(r.solved) for r in whole] == [math.isinf(r.least) for r in whole]


def test_bounds_are_bounds(results: list[Result]) -> None:
    """Of everything on the planner's short list; what the list leaves out may save less than the gap, see above."""
    assert not [r for r in results if r.bound > min(r.listed, r.solved) * (1 + ROUNDING)]


def test_gap(results: list[Result]) -> None:
    assert not [r for r in results if math.isfinite(r.solved) and r.solved - r.bound > GAP * r.solved]


def test_scenarios_are_worth_it(results: list[Result]) -> None:
    """About half feasible, a third of these ruled by the 99th percentile of the first token, many plans each."""
    feasible = [r for r in results if math.isfinite(r.solved)]
    assert 0.4 * WORLDS <= len(feasible) <= 0.7 * WORLDS
    assert sum(r.p99_binds for r in feasible) >= len(feasible) / 3
    assert sum(r.plans for r in results) > 50 * WORLDS
    assert sum(r.tried for r in results) > 20 * WORLDS


def test_brute_force_finds_what_the_solver_misses() -> None:
    """The comparison can fail: with the solver's plan taken as 5 % dearer, something cheaper turns up."""
    scenario = world(3)
    search = cheapest(prepare(scenario))
    assert search.best is not None
    found = brute_force(prepare(scenario), below_usd_per_hour=search.best.usd_per_hour * 1.05)
    assert found.usd_per_hour == pytest.approx(search.best.usd_per_hour, rel=GAP)


def test_every_plan_is_every_plan() -> None:
    """Counted by hand: roles, counts, lines and relays of a scenario, less what the inventory lacks."""
    scenario = world(3)
    context = prepare(scenario)
    plans = every_plan(context)
    assert len({_shape(p.deployment) for p in plans}) == len(plans)
    assert [p.usd_per_hour for p in plans] == sorted(p.usd_per_hour for p in plans)


def _shape(deployment) -> tuple[object, ...]:  # type: ignore[no-untyped-def]
    line = deployment.line
    pools = tuple((p.role, p.site.name, p.offer.key, p.service.parallelism, p.instances) for p in deployment.pools)
    return (*pools, None if line is None else (line.tier, line.lines))
