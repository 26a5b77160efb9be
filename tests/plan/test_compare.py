"""The same demand under each architecture; and the price at which the choice turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddplan.plan.compare import Compared, Comparison, compare
from pddplan.plan.options import PoolOption, build_shop
from pddplan.plan.solve import cheapest, prepare, solve
from pddplan.plan.state import GAP
from pddplan.plan.variants import ARCHITECTURES, ONE_SITE, chunk_budgets, unlimited, variants, with_chunk
from pddplan.plan.workbench import Workbench
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Scenario

TEXT = """
name: two
model: llama-3.1-8b
workload:
  request_rate_per_s: 4
  prompt_tokens: 16K
  output_tokens: 400
  prefix_hit_rate: 0.5
  sessions: {turns: 10, seconds_between_turns: {p50: 10, p90: 40}}
sites:
  - name: north
    roles: [prefill]
    chips:
      - chip: {name: fast, bf16_tflops: 900, memory_gb: 80, memory_gb_per_s: 2400, interconnect_gb_per_s: 400}
        max: 20
        usd_per_hour: 3
        buy_in: 1
        parallelism: {tp: [1], pp: [1]}
  - name: west
    roles: [main_decode]
    chips:
      - chip: {name: wide, bf16_tflops: 120, memory_gb: 96, memory_gb_per_s: 4000, interconnect_gb_per_s: 400}
        max: 20
        usd_per_hour: 1
        buy_in: 1
        parallelism: {tp: [1], pp: [1]}
links: [{between: [north, west], rtt_ms: 2, streams: 16, max_lines: 2, tiers: [{gbit_per_s: 30, usd_per_hour: 1}]}]
slo: {ttft_s: {p90: 3}, tpot_ms: {p90: 20}}
"""


def scenario(*overrides: str) -> Scenario:
    return load_scenario_text(TEXT, overrides=overrides)


@pytest.fixture(scope="module")
def made() -> Comparison:
    return compare(scenario())


def row(made: Comparison, name: str, *, hypothetical: bool = False) -> Compared:
    return next(r for r in made.rows if (r.architecture, r.hypothetical) == (name, hypothetical))


def test_every_architecture_has_its_row_in_order(made: Comparison) -> None:
    names = [r.architecture for r in made.rows if not r.hypothetical]
    assert names == [name for name in ARCHITECTURES if name in names]
    assert set(names) == set(ARCHITECTURES)


def test_each_row_is_the_cheapest_over_places_and_chunks(made: Comparison) -> None:
    """Solved again one by one, by ``solve`` itself."""
    for name in ("aggregated", "pd_one_site", "pd_cross_site_drc"):
        costs = []
        for variant in variants(made.scenario):
            if variant.architecture == name and not variant.hypothetical:
                found = [solve(with_chunk(variant.scenario, chunk)) for chunk in chunk_budgets(variant)]
                costs += [r.cost.usd_per_hour for r in found if r.cost is not None]
        assert row(made, name).usd_per_hour == pytest.approx(min(costs), rel=GAP)


def test_what_only_adds_never_costs_more(made: Comparison) -> None:
    assert row(made, "pdd").usd_per_hour <= row(made, "pd_cross_site_drc").usd_per_hour
    assert row(made, "pdd_filter").usd_per_hour <= row(made, "pdd").usd_per_hour
    together = row(made, "pd_one_site", hypothetical=True)
    assert together.usd_per_hour < row(made, "pd_one_site").usd_per_hour
    assert together is not made.recommended


def test_the_recommended_is_the_cheapest_that_holds(made: Comparison) -> None:
    best = made.recommended
    assert best is not None and best.architecture == "pd_cross_site_drc"
    assert all(r.usd_per_hour >= best.usd_per_hour * (1 - GAP) for r in made.rows if r.holds)
    assert made.split is best


def test_without_its_cache_main_decode_is_sent_everything(made: Comparison) -> None:
    plain = row(made, "pd_cross_site")
    assert plain.result.cost is None
    assert any(e.constraint == "line_utilization" for e in plain.result.excuses)
    wider = compare(scenario("links.0.max_lines=4"))
    whole, held = row(wider, "pd_cross_site"), row(wider, "pd_cross_site_drc")
    assert whole.result.links[0].needed_gbit_per_s > 1.5 * held.result.links[0].needed_gbit_per_s
    assert whole.usd_per_hour > held.usd_per_hour


def test_what_is_short_of_chips_says_how_many_it_needs() -> None:
    few = compare(scenario("sites.0.chips.0.max=2", "sites.1.chips.0.max=4"))
    assert few.recommended is None and few.turns_at is None
    short = row(few, "pd_cross_site_drc")
    assert not short.holds and {n.chip for n in short.needs} <= {"fast", "wide"}
    assert all(n.chips > n.offered for n in short.needs)
    grown = unlimited(scenario())
    assert grown.sites[0].offers[0].max_chips > 20


def test_the_bench_sets_up_what_is_made_from_nothing() -> None:
    """Options in their order, excuses and figures; with limits lifted, at another price, in another role."""
    bench = Workbench(prepare)
    given = scenario()
    dearer = scenario("sites.0.chips.0.usd_per_hour=5")
    made = [(v, chunk) for each in (given, dearer) for v in variants(each) for chunk in chunk_budgets(v)]
    for variant, chunk in made:
        for changed in (with_chunk(variant.scenario, chunk), unlimited(with_chunk(variant.scenario, chunk))):
            context, shop = bench.set_up(changed)
            fresh = build_shop(prepare(changed))
            assert context.scenario is changed
            assert shop.excuses == fresh.excuses and shop.lines == fresh.lines
            for role, options in shop.pools.items():
                assert [_told(o) for o in options] == [_told(o) for o in fresh.pools[role]]
    ways = [v for v in variants(given) if v.where == "north > west"]
    services = [[o.service for o in bench.set_up(v.scenario)[1].pools["prefill"]] for v in ways]
    assert len(services) == 4 and services[0] and all(s is t for s, t in zip(services[0], services[-1], strict=True))


def _told(option: PoolOption) -> tuple[object, ...]:
    service = option.service
    return option.role, option.site, option.offer, option.max_instances, option.usd_per_hour, service.parallelism


@pytest.mark.parametrize("budget", [0.5, 0.999, 1.0, 1.3])
def test_an_aggregated_pool_within_a_budget_is_the_least_there_is(budget: float) -> None:
    """The same count whether or not the largest within the budget is looked at first; none where none is within it."""
    variant = next(v for v in variants(scenario()) if v.architecture == "aggregated")
    context = prepare(variant.scenario)
    free = cheapest(context)
    assert free.best is not None
    within = cheapest(context, budget * free.best.usd_per_hour)
    assert within.complete
    if budget < 1.0:
        assert within.best is None and within.evaluations < free.evaluations
    else:
        assert within.best is not None and within.best.usd_per_hour == free.best.usd_per_hour


@pytest.mark.parametrize("overrides", [(), ("sites.1.chips.0.usd_per_hour=9",)])
def test_beyond_the_turning_point_the_other_side_wins(overrides: tuple[str, ...]) -> None:
    given = scenario(*overrides)
    before = compare(given)
    turn = before.turns_at
    assert turn is not None and before.recommended is not None
    splits = before.recommended.architecture not in ONE_SITE
    assert turn.then == ("whole" if splits else "split")
    for share, flipped in ((0.93, False), (1.07, True)):
        factor = (turn.value / turn.now) ** share
        changed = compare(_priced(given, turn.what, factor))
        assert changed.recommended is not None
        assert (changed.recommended.architecture not in ONE_SITE) == (splits != flipped)


def _priced(given: Scenario, what: str, factor: float) -> Scenario:
    if what == "line":
        tiers = tuple(replace(t, usd_per_hour=t.usd_per_hour * factor) for t in given.links[0].tiers)
        return replace(given, links=(replace(given.links[0], tiers=tiers),))
    sites = tuple(
        replace(
            site,
            offers=tuple(
                replace(o, usd_per_hour=o.usd_per_hour * (factor if o.chip.id == what else 1.0)) for o in site.offers
            ),
        )
        for site in given.sites
    )
    return replace(given, sites=sites)


def test_one_site_has_nothing_to_split() -> None:
    alone = load_scenario_text(
        TEXT.split("  - name: west")[0].replace("roles: [prefill]", "roles: [aggregated]")
        + "slo: {ttft_s: {p90: 3}, tpot_ms: {p90: 20}}\n"
    )
    made = compare(alone)
    assert [r.architecture for r in made.rows] == ["aggregated", "pd_one_site"]
    assert made.turns_at is None and made.recommended is not None
