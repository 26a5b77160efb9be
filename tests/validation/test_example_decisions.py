"""What four examples are there to show, by ``solve`` and by ``compare``: when not to split, two chips of which one
lacks fp8, which way the KV cache goes where one way costs per GB, and who waits for whom on shared chips."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from pddplan.llm.catalogue import load_model
from pddplan.llm.kv import kv_bytes
from pddplan.perf.candidates import candidate_instances
from pddplan.plan.compare import Comparison, compare
from pddplan.plan.records import PlanResult
from pddplan.plan.solve import prepare, solve
from pddplan.plan.variants import ONE_SITE
from pddplan.report.compare_text import headline
from pddplan.spec.catalogue import examples_dir
from pddplan.spec.load import load_scenario
from pddplan.spec.types import Role, Scenario
from pddplan.spec.workload import Traffic

SPLIT = ("sites[0].roles=[prefill, relay_decode]", "sites[1].roles=[main_decode]")
# One layout a chip where a test solves every architecture: the plans stay, the search is short.
NARROW = {
    "chat_8k": ("sites[0].chips[0].parallelism={tp: [4], pp: [1]}",),
    "910c_h20_metro": (
        "sites[0].chips[0].parallelism={tp: [1], dp: [8]}",
        "sites[1].chips[0].parallelism={tp: [1], dp: [48, 64]}",
    ),
    "egress_priced": (
        "sites[0].chips[0].parallelism={tp: [4], dp: [1], pp: [1]}",
        "sites[1].chips[0].parallelism={tp: [2], dp: [1], pp: [1]}",
    ),
}


@lru_cache
def scenario(name: str, *overrides: str) -> Scenario:
    return load_scenario(examples_dir() / f"{name}.yaml", overrides=overrides)


@lru_cache
def plan(name: str, *overrides: str) -> PlanResult:
    result = solve(scenario(name, *overrides))
    assert result.status == "feasible"
    return result


@lru_cache
def compared(name: str) -> Comparison:
    return compare(scenario(name, *NARROW[name]))


def usd(result: PlanResult) -> float:
    assert result.cost is not None
    return result.cost.usd_per_hour


def chips(result: PlanResult) -> dict[tuple[str, str], int]:
    return {(role.role, role.chip): role.chips for role in result.roles}


# ---------------------------------------------------------------- chat_8k: don't split


@pytest.mark.parametrize("line", [0.5, 2.0])
@pytest.mark.parametrize("rate", [5, 10, 20])
def test_chat_stays_in_one_site_though_a_split_would_do(rate: int, line: float) -> None:
    """Half to twice the rate, half to twice the line's price; the split holds and is dearer by more than a tenth."""
    tiers = [f"links[0].tiers[{i}].usd_per_month={price * line}" for i, price in enumerate((2500, 25000))]
    given = (f"workload.request_rate_per_s={rate}", *tiers)
    free, split = plan("chat_8k", *given), plan("chat_8k", *given, *SPLIT)
    assert free.architecture in ONE_SITE and not free.links
    assert split.architecture not in ONE_SITE and split.links
    assert usd(split) > 1.1 * usd(free)


def test_it_is_the_line_that_speaks_against_splitting_chat() -> None:
    """A free line turns the answer: the chips alone would ask for the split."""
    free_line = tuple(f"links[0].tiers[{i}].usd_per_month=0" for i in (0, 1))
    split = plan("chat_8k", *SPLIT)
    line = sum(link.usd_per_hour for link in split.links)
    assert usd(split) - line < usd(plan("chat_8k")) < usd(split)
    assert plan("chat_8k", *free_line).architecture not in ONE_SITE


def test_compare_says_not_to_split_chat() -> None:
    made = compared("chat_8k")
    assert headline(made).startswith("DON'T SPLIT  aggregated in north")
    assert made.split is not None and made.whole is not None and made.whole is made.recommended
    assert made.split.usd_per_hour > 1.3 * made.whole.usd_per_hour
    by_name = {row.architecture: row for row in made.rows if not row.hypothetical}
    assert all(by_name[name].holds for name in ("pd_cross_site", "pd_cross_site_drc", "pdd"))
    together = next(row for row in made.rows if row.hypothetical and row.architecture == "pd_one_site")
    assert together.usd_per_hour < made.whole.usd_per_hour  # the chips of both, in one place


# ---------------------------------------------------------------- 910c_h20_metro: int8 and fp8, CNY


def test_each_chip_of_the_metro_has_its_weights_and_all_one_kv_cache() -> None:
    given = scenario("910c_h20_metro")
    model = load_model(given.model)
    roles: tuple[Role, Role] = ("prefill", "main_decode")
    for site, role, weights in zip(given.sites, roles, ("int8", "fp8"), strict=True):
        fits, _ = candidate_instances(site.offers[0], model, given.engine, given.precision, role)
        assert fits and {(i.weights, i.kv_cache) for i in fits} == {(weights, "bf16")}


def test_a_format_that_the_910c_lacks_is_said() -> None:
    """Nothing in the example as it stands; with fp8 weights or an fp8 cache stated for it, what that means."""
    assert not any("910c" in warning for warning in scenario("910c_h20_metro").warnings)
    stated = scenario("910c_h20_metro", "sites[0].chips[0].precision={weights: fp8, kv_cache: fp8}").warnings
    assert any("910c has no fp8" in w and "precision: {weights: int8}" in w for w in stated)
    assert [w for w in stated if "KV cache" in w and "910c" in w] and not [w for w in stated if "h20" in w]


def test_the_910c_runs_what_it_has_where_nothing_is_stated() -> None:
    """Weights of int8 and a cache of bf16: among the assumptions, of that chip alone."""
    given = scenario("910c_h20_metro", "precision.kv_cache=fp8", "sites[0].chips[0].precision=null")
    found = {a.name: a for a in prepare(given).scenario.assumptions if ".precision." in a.name}
    assert {name: (a.value, a.source) for name, a in found.items()} == {
        "sites[0].chips[0].precision.weights": ("int8", "default"),
        "sites[0].chips[0].precision.kv_cache": ("bf16", "default"),
    }
    assert all("910c has no fp8" in a.note for a in found.values())


@pytest.mark.parametrize("kv_cache", ["bf16", "fp8"])
def test_the_line_of_the_metro_carries_what_the_910c_reads(kv_cache: str) -> None:
    """Rate x tokens that main decode doesn't hold x bytes a token of bf16, whatever the H20 holds."""
    result = plan("910c_h20_metro", f"precision.kv_cache={kv_cache}")
    assert result.evaluation is not None
    given = scenario("910c_h20_metro")
    whole = float(kv_bytes(load_model(given.model), 32 * 1024, "bf16"))
    assert result.links[0].kv_format == ("" if kv_cache == "bf16" else "bf16")
    missing = 1 - result.evaluation.decode_hit_rate
    assert result.links[0].needed_gbit_per_s == pytest.approx(10 * missing * whole * 8 / 1e9, rel=0.02)


def test_the_metro_plan_and_its_bill_in_cny() -> None:
    result = plan("910c_h20_metro")
    assert result.architecture == "pd_cross_site_drc"  # 2 ms away: nothing to hide, no relay
    assert chips(result) == {("prefill", "huawei-ascend-910c"): 16, ("main_decode", "nvidia-h20-96g"): 48}
    link = result.links[0]
    assert (link.from_site, link.lines, link.gbit_per_s) == ("north", 4, 40)
    assert result.cny_per_usd == 7.2
    cny = 16 * 7750 / 730 + 48 * 14.58 + 4 * 10000 / 730
    assert 7.2 * usd(result) == pytest.approx(cny, rel=1e-9)


def test_one_instance_is_not_called_the_smallest_where_smaller_ones_fit() -> None:
    """Smaller layouts of the H20 have the memory, and not the slots for this traffic."""
    given = scenario("910c_h20_metro")
    offer = given.sites[1].offers[0]
    fits, _ = candidate_instances(offer, load_model(given.model), given.engine, given.precision, "main_decode")
    assert min(i.parallelism.chips for i in fits) < 48
    said = next(b.constraint for b in plan("910c_h20_metro").binding if b.constraint.startswith("main decode"))
    assert said == "main decode: one instance, of 48 chips"


def test_compare_splits_the_metro_while_the_910c_are_few() -> None:
    made = compared("910c_h20_metro")
    assert made.recommended is not None
    assert headline(made) == "SPLIT  pd_cross_site_drc in north > west  $128.4/h (¥924.5/h)"
    assert usd(made.recommended.result) == pytest.approx(usd(plan("910c_h20_metro")), rel=1e-3)


# ---------------------------------------------------------------- egress_priced: the cheaper direction


def per_gb(north: float, west: float) -> str:
    return f"links[0].tiers[0].usd_per_gb={{from_north: {north}, from_west: {west}}}"


def direction(result: PlanResult) -> tuple[str, str]:
    """Ends of the line: the KV cache goes from a site that prefills to one that decodes. Part of it may stay."""
    (link,) = result.links
    places = {(role.role, role.site) for role in result.roles}
    assert {("prefill", link.from_site), ("main_decode", link.to_site)} <= places
    return link.from_site, link.to_site


def test_what_leaves_north_costs_so_west_prefills() -> None:
    result = plan("egress_priced")
    assert direction(result) == ("west", "north")
    assert result.links[0].usd_per_hour == pytest.approx(3.96 * result.links[0].lines)  # ports; nothing per GB
    other = plan("egress_priced", "sites[0].roles=[prefill]", "sites[1].roles=[main_decode]")
    assert direction(other) == ("north", "west") and usd(other) > 2 * usd(result)
    assert {(r.role, r.site) for r in other.roles} == {("prefill", "north"), ("main_decode", "west")}
    (link,) = other.links
    gb_per_hour = link.needed_gbit_per_s / 8 * 3600
    assert link.usd_per_hour - 3.96 * link.lines == pytest.approx(0.02 * gb_per_hour, rel=1e-6)


def test_prices_swapped_the_direction_turns() -> None:
    swapped = plan("egress_priced", per_gb(0, 0.02))
    assert direction(swapped) == ("north", "west")
    assert swapped.links[0].usd_per_hour == pytest.approx(3.96 * swapped.links[0].lines)


@pytest.mark.parametrize("price", [0.0005, 0.02])
def test_at_one_price_both_ways_the_chips_decide(price: float) -> None:
    """With the chips of the two sites exchanged it turns, at the same cost. (Of free lines several plans cost as much,
    one in either direction.)"""
    north, west = (
        "{chip: nvidia-h100-sxm, max: 24, usd_per_hour: 3.93",
        "{chip: nvidia-h200-sxm, max: 16, usd_per_hour: 6.31",
    )
    layouts = ", parallelism: {tp: [2, 4], pp: [1]}}"
    exchanged = (f"sites[0].chips=[{west}{layouts}]", f"sites[1].chips=[{north}{layouts}]")
    given, mirrored = (
        plan("egress_priced", per_gb(price, price)),
        plan("egress_priced", per_gb(price, price), *exchanged),
    )
    ways, back = ({(k.from_site, k.to_site) for k in result.links} for result in (given, mirrored))
    assert back == {(b, a) for a, b in ways}
    assert usd(mirrored) == pytest.approx(usd(given), rel=0.02)  # several pools in a role: found, not proven


def test_compare_agrees_on_the_direction() -> None:
    """And says that with the roles lifted each site had better serve a part by itself, without a line."""
    made = compared("egress_priced")
    assert headline(made).startswith("DON'T SPLIT  aggregated in north + west")
    assert made.recommended is not None and not made.recommended.result.links
    apart = [row for row in made.rows if row.holds and row.result.links]
    assert apart and direction(min(apart, key=lambda row: usd(row.result)).result) == ("west", "north")
    assert all(usd(row.result) > usd(made.recommended.result) for row in apart)
    short = {row.architecture: row for row in made.rows if not row.hypothetical and row is not made.recommended}
    assert short["aggregated"].needs and short["pd_one_site"].needs  # neither site alone


# ---------------------------------------------------------------- two_workloads: chat waits behind the agents' prompts


def test_chat_sizes_the_prefill_that_it_shares_with_agents() -> None:
    """Its limit is the one that breaks, and loosening it saves; agents are far from theirs."""
    result = plan("two_workloads")
    prefill = next(b.constraint for b in result.binding if b.constraint.startswith("prefill"))
    assert "ttft_p99 of chat would be" in prefill
    patient = plan("two_workloads", "workloads.chat.slo.ttft_s.p99=10")
    assert usd(patient) < 0.8 * usd(result)
    assert chips(patient)["main_decode", "nvidia-h20-96g"] == chips(result)["main_decode", "nvidia-h20-96g"]


def test_agents_and_chat_are_cheaper_apart() -> None:
    """Each on chips of its own: three fifths of what they cost together."""
    given = scenario("two_workloads")
    alone = []
    for work in given.traffic.workloads:
        limits = tuple(replace(limit, workload=None) for limit in given.slo if limit.workload == work.name)
        alone.append(usd(solve(replace(given, traffic=Traffic((work,)), slo=limits))))
    assert sum(alone) == pytest.approx(0.6 * usd(plan("two_workloads")), rel=0.1)
