"""The solver against trying everything: 240 small random scenarios, every plan evaluated by the full model."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest

from pddplan.errors import Excuse
from pddplan.plan.choices import Choices, pace_of
from pddplan.plan.highs import _quiet
from pddplan.plan.levels import roots
from pddplan.plan.options import PoolOption, build_shop
from pddplan.plan.program import solve_program
from pddplan.plan.relaxation import tuple_bounds
from pddplan.plan.solve import cheapest, prepare
from pddplan.plan.state import GAP, Node, Search
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, LineChoice, Pool
from pddplan.serve.evaluate import evaluate
from pddplan.serve.records import Evaluation
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Scenario
from tests.plan.small_worlds import brute_force, cost_of, every_plan, mixed_world, world

WORLDS = 200
FORMATS = 30  # more, with chips that hold KV caches in different formats
MIXED = 40  # worlds of two workloads beside them, with seeds from MIXED_FROM
MIXED_FROM = 10_000
WHOLE = 12  # of either: not only the plans that could be cheaper are tried, but all
ROUNDING = 1e-9


@dataclass(frozen=True)
class Result:
    """One scenario: what the solver says (USD/h, inf: infeasible) and what trying everything finds."""

    seed: int
    solved: float
    bound: float
    single: bool  # one pool per role: what is enumerated here, and proven
    holds: bool  # the solver's plan holds when evaluated anew
    least: float  # of all instances that fit
    listed: float  # of those on the planner's short list
    p99_binds: bool
    tried: int
    plans: int


def scenario_of(seed: int, mixed_formats: bool = False) -> Scenario:
    return world(seed, mixed_formats=mixed_formats) if seed < MIXED_FROM else mixed_world(seed)


def compare(seed: int, mixed_formats: bool = False) -> Result:
    scenario = scenario_of(seed, mixed_formats)
    search = cheapest(prepare(scenario))
    solved, holds = math.inf, True
    if search.best is not None:
        fresh = evaluate(prepare(scenario), search.best.deployment)
        solved, holds = cost_of(scenario, search.best.deployment, fresh), fresh.feasible
    below = math.inf if seed % MIXED_FROM < WHOLE else solved
    tried = brute_force(prepare(scenario), below_usd_per_hour=below)
    return Result(
        seed,
        solved,
        search.bound,
        search.best is None or isinstance(search.best.deployment, Deployment),
        holds,
        tried.usd_per_hour,
        tried.listed_usd_per_hour,
        tried.p99_binds,
        tried.tried,
        tried.plans,
    )


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """All comparisons."""
    return _on_all_cores(compare, [*range(WORLDS), *range(MIXED_FROM, MIXED_FROM + MIXED)])


def _on_all_cores(made: Callable[[int], Result], seeds: Iterable[int]) -> list[Result]:
    """Spawned, since a fork would take the threads of numerical libraries with it."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(pool.map(made, seeds, chunksize=5))


@pytest.fixture(scope="module")
def formats() -> list[Result]:
    """The same with mixed KV formats."""
    return _on_all_cores(partial(compare, mixed_formats=True), range(FORMATS))


def test_nothing_is_cheaper_with_mixed_kv_formats(formats: list[Result]) -> None:
    assert not [r for r in formats if r.solved > r.least * (1 + GAP)]
    assert not [r for r in formats if math.isinf(r.solved) and math.isfinite(r.least)]
    assert not [r for r in formats if not r.holds]
    assert not [r for r in formats if r.bound > min(r.listed, r.solved) * (1 + ROUNDING)]
    assert not [r for r in formats if r.single and math.isfinite(r.solved) and r.solved - r.bound > GAP * r.solved]
    assert sum(math.isfinite(r.solved) for r in formats) >= FORMATS / 3


def test_nothing_is_cheaper(results: list[Result]) -> None:
    """Where nothing cheaper was found ``least`` is inf, except in the first scenarios, where it is the minimum."""
    wrong = [r for r in results if r.solved > r.least * (1 + GAP)]
    assert not wrong


def test_feasible_iff_some_plan_holds(results: list[Result]) -> None:
    assert not [r for r in results if math.isinf(r.solved) and math.isfinite(r.least)]
    assert not [r for r in results if not r.holds]
    whole = [r for r in results if r.seed % MIXED_FROM < WHOLE and r.single]
    assert [math.isinf(r.solved) for r in whole] == [math.isinf(r.least) for r in whole]


def test_bounds_are_bounds(results: list[Result]) -> None:
    """Of everything on the planner's short list; what the list leaves out may save less than the gap, see above."""
    assert not [r for r in results if r.bound > min(r.listed, r.solved) * (1 + ROUNDING)]


def test_gap(results: list[Result]) -> None:
    assert not [r for r in results if r.single and math.isfinite(r.solved) and r.solved - r.bound > GAP * r.solved]


def test_scenarios_are_worth_it(results: list[Result]) -> None:
    """About half feasible, a third of these ruled by the 99th percentile of the first token, many plans each."""
    feasible = [r for r in results if math.isfinite(r.solved)]
    assert 0.4 * len(results) <= len(feasible) <= 0.7 * len(results)
    assert sum(r.p99_binds for r in feasible) >= len(feasible) / 3
    assert sum(r.plans for r in results) > 50 * len(results)
    assert sum(r.tried for r in results) > 20 * len(results)


def test_brute_force_finds_what_the_solver_misses() -> None:
    """The comparison can fail: with the solver's plan taken as 5 % dearer, something cheaper turns up."""
    for seed in range(20):
        scenario = world(seed)
        search = cheapest(prepare(scenario))
        if search.best is not None:
            break
    assert search.best is not None
    found = brute_force(prepare(scenario), below_usd_per_hour=search.best.usd_per_hour * 1.05)
    assert found.usd_per_hour == pytest.approx(search.best.usd_per_hour, rel=GAP)


COUNTED = """\
name: counted
model: llama-3.1-8b
workload: {request_rate_per_s: 1, prompt_tokens: 4K, output_tokens: 100}
sites:
  - {name: north, roles: [prefill, relay_decode], chips: [{chip: CHIP, max: 4, usd_per_hour: 1, parallelism: PAR}]}
  - {name: west, roles: [main_decode, aggregated], chips: [{chip: CHIP, max: 3, usd_per_hour: 1, parallelism: PAR}]}
links: [{between: [north, west], rtt_ms: 5, max_lines: 2, tiers: [TIERS]}]
spares: {main_decode: 1}
"""


def test_every_plan_is_every_plan() -> None:
    """Counted by hand. Prefill and relay on 4 chips: 4 + 3 + 2 + 1 with 0, 1, 2, 3 relays; main decode on 3 less the
    spare: 2; 2 tiers x 1 or 2 lines: 10 x 2 x 4. And 1, 2 or 3 aggregated instances."""
    chip = "{name: x, bf16_tflops: 200, memory_gb: 48, memory_gb_per_s: 2000, interconnect_gb_per_s: 200}"
    text = COUNTED.replace("CHIP", chip).replace("PAR", "{tp: [1], pp: [1]}")
    text = text.replace("TIERS", "{gbit_per_s: 10, usd_per_hour: 1}, {gbit_per_s: 25, usd_per_hour: 2}")
    plans = every_plan(prepare(load_scenario_text(text, "counted.yaml")))
    assert len(plans) == 10 * 2 * 4 + 3
    assert len({_shape(p.deployment) for p in plans}) == len(plans)
    assert [p.usd_per_hour for p in plans] == sorted(p.usd_per_hour for p in plans)


def _shape(deployment: Deployment) -> tuple[object, ...]:
    line = deployment.line
    pools = tuple((p.role, p.site.name, p.offer.key, p.service.parallelism, p.instances) for p in deployment.pools)
    return (*pools, None if line is None else (line.tier, line.lines))


def test_the_program_keeps_stdout_clean(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS prints some warnings past Python; they would stand in the middle of a JSON answer."""
    library = ctypes.CDLL(None)
    with _quiet():
        library.printf(b"HighsMipSolverData::something")
    library.printf(b"kept")
    library.fflush(None)
    assert capfd.readouterr().out == "kept"


# ---------------------------------------------------------------- the rows of the integer program

ROW_WORLDS = (*range(1000, 1040), *range(11_000, 11_015))
PLANS_OF_A_WORLD = 2
WIDTHS = (0.0, 0.004, 0.3)  # of the interval of hit shares around the plan's own
STEPS = 10  # of the bisection of the rate


@pytest.mark.parametrize("mixed_formats", [False, True])
def test_the_program_admits_every_plan_that_holds(mixed_formats: bool) -> None:
    """Random plans, each at the largest rate that it holds, so that some row is tight: the program of its level tuple,
    with nothing else on offer, has a solution and doesn't make it dearer. A row that is no bound shows here first."""
    checked, relayed, converted, wrong = 0, 0, 0, []
    worlds = ROW_WORLDS[: len(ROW_WORLDS) // 2] if mixed_formats else ROW_WORLDS
    for seed in worlds:
        for context, deployment, evaluation in _at_their_limits(prepare(scenario_of(seed, mixed_formats)), seed):
            node = _node_of([n for n, _ in roots(Search(context, build_shop(context)))], deployment)
            if node is None:
                continue
            usd = cost_of(context.scenario, deployment, evaluation)
            checked, relayed = checked + 1, relayed + (deployment.relay is not None)
            converted += len({context.demand_on(p.offer).kv_format for p in deployment.pools}) > 1
            for bound in _bounds_of(context, node, deployment, evaluation):
                if not bound <= usd * (1 + 1e-7):
                    wrong.append((seed, _shape(deployment), usd, bound))
    assert wrong == []
    assert checked > 0.8 * len(worlds) and relayed > checked / 4
    assert converted > checked / 4 if mixed_formats else converted == 0


def _at_their_limits(context: Context, seed: int) -> list[tuple[Context, Deployment, Evaluation]]:
    """Random plans that hold, with the scenario at the rate where they just do (to 0.1 %)."""
    plans = [p.deployment for p in every_plan(context) if p.deployment.aggregated is None]
    found: list[tuple[Context, Deployment, Evaluation]] = []
    for index in np.random.default_rng(seed).permutation(len(plans))[:30]:
        if len(found) == PLANS_OF_A_WORLD:
            break
        if evaluate(context, plans[index], detail=False).feasible:
            low, high = context.rate, 4 * context.rate
            for _ in range(STEPS):
                middle = math.sqrt(low * high)
                holds = evaluate(context, plans[index], middle, detail=False).feasible
                low, high = (middle, high) if holds else (low, middle)
            limit = context.at_rate(low)
            found.append((limit, plans[index], evaluate(limit, plans[index], detail=False)))
    return [f for f in found if f[2].feasible]


def _node_of(nodes: list[Node], deployment: Deployment) -> Node | None:
    """A node with the plan's own choices and nothing else; None where the short list lacks one of its options."""
    prefill, main, relay = deployment.prefill, deployment.main, deployment.relay
    assert prefill is not None and main is not None
    for node in nodes:
        mains = Choices(c for c in node.mains if _is(c.option, main) and c.instances == main.instances)
        count = relay.instances if relay is not None else 0
        relays = Choices(c for c in node.relays if _is(c.option, relay) and c.instances == count)
        if not _is(node.prefill, prefill) or _line(node.line) != _line(deployment.line):
            continue
        if node.use_filter == deployment.use_filter and mains and bool(relays) == (relay is not None):
            return replace(node, instances=prefill.instances, mains=mains, relays=relays)
    return None


def _is(option: PoolOption, pool: Pool | None) -> bool:
    same = pool is not None and option.offer.key == pool.offer.key
    return same and pool is not None and option.service.parallelism == pool.service.parallelism


def _line(line: LineChoice | None) -> tuple[object, ...] | None:
    return None if line is None else (line.from_site, line.to_site, line.tier, line.lines)


def _bounds_of(context: Context, node: Node, deployment: Deployment, evaluation: Evaluation) -> list[float]:
    """Optimum of the program around the plan's own hit share, narrow and wide [USD/h]; inf where it has none."""
    own = context.demand.atoms.hit_rate
    share = evaluation.decode_hit_rate / own if own > 0 else 0.0
    pinned = own <= 0 or context.scenario.traffic.pinned
    pace = pace_of(context, node.mains, node.relays)
    stage = context.prefill_stage(node.prefill.pool(node.instances), context.rate, *node.receivers)
    assert not isinstance(stage, Excuse)
    found = []
    for width in WIDTHS:
        q = (share, share) if pinned else (max(share - width, 0.0), min(share + width, 1.0))
        bounds = tuple_bounds(
            context, node.prefill, stage, node.instances, node.line, *pace.fastest, q, pace, node.use_filter
        )
        relaxed = None if isinstance(bounds, Excuse) else solve_program(context, node.level, bounds, math.inf, q[1])
        found.append(math.inf if relaxed is None else relaxed.bound_usd_per_hour)
    return found
