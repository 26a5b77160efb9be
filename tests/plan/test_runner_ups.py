"""Runner-ups against trying everything: no other kind of plan near the best is missing, cheapest first."""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import pytest

from pddplan.plan.explain import alternatives
from pddplan.plan.kinds import kind_of
from pddplan.plan.options import build_shop
from pddplan.plan.runner_ups import NEAR, differs, runner_ups
from pddplan.plan.search import run
from pddplan.plan.solve import cheapest, prepare, solve
from pddplan.plan.state import GAP, Search
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.evaluate import evaluate
from pddplan.spec.load import load_scenario_text
from tests.plan.small_worlds import cost_of, every_plan, world

WORLDS = 60
WIDE_WORLDS = 40
COUNT = 4
WIDE = 0.5  # of the cost: small worlds have few plans near their best one
MOST_PLANS = 300  # that are tried at the wide limit
ROUNDING = 1e-9

Kind = tuple[Any, ...]


def kind(deployment: Deployment) -> Kind:
    """All that isn't a count, said anew here."""
    line = deployment.line
    pools = tuple((p.role, p.site.name, p.offer.chip.id, str(p.service.parallelism)) for p in deployment.pools)
    where = None if line is None else (line.from_site, line.to_site, line.tier, line.lines)
    return (*pools, where, deployment.use_filter)


def least_of_each_kind(context: Context, below: float) -> dict[Kind, float]:
    """The cheapest plan of every kind, by trying all that stand below a cost, of instances on the planner's list."""
    listed = {
        (o.role, o.offer.key, o.service.parallelism) for pools in build_shop(context).pools.values() for o in pools
    }
    least: dict[Kind, float] = {}
    for plan in every_plan(context):
        if plan.usd_per_hour > below:
            break
        deployment = plan.deployment
        if any((p.role, p.offer.key, p.service.parallelism) not in listed for p in deployment.pools):
            continue
        if plan.usd_per_hour >= least.get(kind(deployment), math.inf):
            continue
        seen = evaluate(context, deployment, detail=False)
        idle = deployment.use_filter and seen.routing.filtered_share <= 0
        usd = cost_of(context.scenario, deployment, seen)
        if seen.feasible and usd <= below and not idle:
            least[kind(deployment)] = min(usd, least.get(kind(deployment), math.inf))
    return least


@dataclass(frozen=True)
class Result:
    """One world at one width: costs of the runner-ups, and of the kinds that trying everything finds."""

    seed: int
    near: float
    best: float
    found: list[tuple[Kind, float, bool]]  # kind, USD/h, holds when evaluated anew
    proven: bool
    complete: bool
    least: dict[Kind, float]  # without the best plan's own kind


def compare(seed: int) -> list[Result]:
    scenario = world(seed)
    results = []
    for near in (NEAR, WIDE) if seed < WIDE_WORLDS else (NEAR,):
        search = cheapest(prepare(scenario), networks="never")
        if search.best is None:
            return []
        best = search.best.usd_per_hour
        fresh = prepare(scenario)
        if near == WIDE and sum(p.usd_per_hour <= best * (1 + near) for p in every_plan(fresh)) > MOST_PLANS:
            continue
        ups, complete = runner_ups(search, COUNT, near)
        found = []
        for up in ups:
            seen = evaluate(fresh, up.plan.deployment)
            found.append((kind(up.plan.deployment), cost_of(scenario, up.plan.deployment, seen), seen.feasible))
        least = least_of_each_kind(fresh, best * (1 + near))
        least.pop(kind(search.best.deployment), None)
        results.append(Result(seed, near, best, found, all(u.proven for u in ups), complete, least))
    return results


@pytest.fixture(scope="module")
def results() -> list[Result]:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return [r for some in pool.map(compare, range(WORLDS), chunksize=4) for r in some]


def test_no_cheaper_kind_is_missing(results: list[Result]) -> None:
    """A kind that isn't listed costs no less than the dearest that is; where places are left, it isn't near."""
    for r in results:
        listed = {k for k, _, _ in r.found}
        full = len(r.found) == COUNT
        edge = max(usd for _, usd, _ in r.found) if full else r.best * (1 + r.near)
        missing = {k: usd for k, usd in r.least.items() if k not in listed and usd < edge * (1 - GAP)}
        assert not missing, (r.seed, r.near, missing)


def test_each_is_the_cheapest_of_its_kind(results: list[Result]) -> None:
    for r in results:
        assert r.proven and r.complete
        for name, usd, holds in r.found:
            assert holds
            assert r.least[name] * (1 - ROUNDING) <= usd <= r.least[name] * (1 + GAP), (r.seed, r.near)
            assert usd <= r.best * (1 + r.near) * (1 + ROUNDING)


def test_each_is_of_another_kind_cheapest_first(results: list[Result]) -> None:
    for r in results:
        kinds = [k for k, _, _ in r.found]
        assert len(set(kinds)) == len(kinds)
        costs = [usd for _, usd, _ in r.found]
        assert costs == sorted(costs)
        assert len(r.found) <= COUNT


def test_the_worlds_are_worth_it(results: list[Result]) -> None:
    """Runner-ups in many, more than are asked for in some, none in others."""
    wide = [r for r in results if r.near == WIDE]
    assert sum(len(r.found) > 0 for r in results if r.near == NEAR) >= 5
    assert sum(len(r.found) for r in wide) >= 20
    assert sum(len(r.least) > COUNT for r in wide) >= 1
    assert sum(not r.found for r in results) >= 5


TWO_LAYOUTS = """\
name: layouts
model: llama-3.1-8b
precision: {weights: bf16, kv_cache: bf16}
workload:
  {request_rate_per_s: 2, prompt_tokens: 8K, output_tokens: 128, prefix_hit_rate: 0.5}
slo: {tpot_ms: {p90: 60}}
sites:
  - name: north
    chips: [{chip: h100, max: 16, usd_per_hour: 2, buy_in: 1, parallelism: {tp: [1, 2], pp: [1]}}]
    roles: [prefill, relay_decode, main_decode, aggregated]
  - name: west
    chips: [{chip: h20, max: 16, usd_per_hour: 1.9, buy_in: 1, parallelism: {tp: [1, 2], pp: [1]}}]
    roles: [main_decode]
links:
  - between: [north, west]
    rtt_ms: 5
    max_lines: 2
    tiers: [{gbit_per_s: 10, usd_per_hour: 0.05}, {gbit_per_s: 20, usd_per_hour: 0.1}]
"""
SPLIT = TWO_LAYOUTS.replace("[prefill, relay_decode, main_decode, aggregated]", "[prefill, relay_decode]")


def test_every_line_is_a_kind_of_its_own() -> None:
    """Two lines of 10 for one of 20 Gbit/s cost the same: the planner's own list has one of the two, the list of
    runner-ups both."""
    search = cheapest(prepare(load_scenario_text(SPLIT, "layouts.yaml")))
    assert search.best is not None
    found, complete = runner_ups(search, 40, 0.2)
    assert complete
    everything = [search.best.deployment, *(up.plan.deployment for up in found)]
    bought = {(d.line.tier, d.line.lines) for d in everything if d.line is not None}
    assert bought >= {(0, 2), (1, 1)}


def test_what_is_found_in_time_is_not_called_proven() -> None:
    """With no time left, plans of other kinds that the first search met are listed as found, and nobody says all."""
    for seed in range(WORLDS):
        search = cheapest(prepare(world(seed)))
        if search.best is not None and len({kind(f.deployment) for f in search.feasible}) > 1:
            search.deadline = -math.inf
            found, complete = runner_ups(search, COUNT, 10.0)
            assert found and not complete
            assert not any(up.proven for up in found)
            return
    raise AssertionError("no world whose search meets two kinds")


def test_without_asking_nothing_changes() -> None:
    """The answer without ``top`` is what the search met; with it, all but the alternatives is the same."""
    scenario = load_scenario_text(SPLIT, "layouts.yaml")
    plain, asked, alone = solve(scenario), solve(scenario, top=5), solve(scenario, top=1)
    search = cheapest(prepare(scenario))
    assert search.best is not None
    assert plain.runner_ups is None and plain.alternatives == alternatives(search, search.best)
    assert (asked.value, asked.roles, asked.links) == (plain.value, plain.roles, plain.links)
    assert alone.alternatives == () and alone.runner_ups is not None and alone.runner_ups.asked == 0
    assert asked.alternatives and asked.runner_ups is not None
    for other in asked.alternatives:
        total = sum(r.usd_per_hour for r in other.roles) + sum(link.usd_per_hour for link in other.links)
        assert total <= other.usd_per_hour * (1 + ROUNDING) and other.differs


def test_of_the_largest_rate_too() -> None:
    text = TWO_LAYOUTS.replace("name: layouts", "name: layouts\nobjective: goodput").replace("max: 16", "max: 2")
    result = solve(load_scenario_text(text, "layouts.yaml"), top=3)
    assert result.status == "feasible" and result.objective == "goodput"
    assert result.runner_ups is not None and result.cost is not None
    for other in result.alternatives:
        assert other.usd_per_hour <= result.cost.usd_per_hour * (1 + NEAR) * (1 + ROUNDING)


def test_excluded_kinds_are_no_answer() -> None:
    """The search itself, with one kind excluded, answers as if that kind weren't there."""
    context = prepare(load_scenario_text(SPLIT, "layouts.yaml"))
    first = cheapest(context)
    assert first.best is not None
    (second, third), _ = runner_ups(first, 2, WIDE)
    excluded = frozenset(kind_of(plan.deployment) for plan in (first.best, second.plan))
    again = Search(context, first.shop, excluded=excluded)
    run(again)
    assert again.best is not None and kind_of(again.best.deployment) not in excluded
    assert third.plan.usd_per_hour <= again.best.usd_per_hour * (1 + GAP)


def test_differences_in_words() -> None:
    """Every plan of a world says how it differs from another; plans of one kind say nothing."""
    context = prepare(load_scenario_text(TWO_LAYOUTS.replace("max: 16", "max: 3"), "layouts.yaml"))
    plans = list({kind(plan.deployment): plan.deployment for plan in every_plan(context)}.values())
    said = set()
    for plan in plans:
        for other in plans:
            words = differs(plan, other)
            assert bool(words) == (kind(plan) != kind(other))
            said |= set(words.split(", "))
    for words in (
        "no line",
        "a line of 1 × 20 Gbit/s",
        "line 2 × 10 instead of 1 × 10 Gbit/s",
        "no relay decode",
        "no aggregated pool",
        "prefill tp2 instead of tp1",
        "aggregated pool on nvidia-h100-sxm in north",
        "main decode in west on nvidia-h20-96g instead of nvidia-h100-sxm",
    ):
        assert words in said, (words, sorted(said))
