"""Several workloads on the same chips: two halves are one, each one's own limit binds, and every fix can be typed."""

from __future__ import annotations

import copy
import math
from functools import lru_cache
from typing import Any

import pytest
import yaml

from pddplan.plan.compare import compare
from pddplan.plan.records import PlanResult
from pddplan.plan.solve import solve
from pddplan.report.compare_text import render_comparison
from pddplan.serve.records import SloValue
from pddplan.spec.catalogue import examples_dir
from pddplan.spec.load import load_scenario_text

TEXT = """
name: mix
model: llama-3.1-8b
workloads:
  - name: agents
    request_rate_per_s: 3
    prompt_tokens: 16K
    output_tokens: 400
    prefix_hit_rate: {histogram: {0.95: 0.8, 0.2: 0.2}}
    sessions: {turns: 10, seconds_between_turns: {p50: 10, p90: 40}}
    slo: {ttft_s: {p90: 8}, tpot_ms: {p90: 20}}
  - name: chat
    request_rate_per_s: 6
    prompt_tokens: 2K
    output_tokens: 200
    prefix_hit_rate: 0.3
    sessions: {turns: 5, seconds_between_turns: {p50: 60, p90: 300}}
    slo: {ttft_s: {p90: 1.5}, tpot_ms: {p90: 30}}
sites:
  - name: north
    roles: [prefill]
    chips:
      - chip: {name: fast, bf16_tflops: 900, memory_gb: 80, memory_gb_per_s: 2400, interconnect_gb_per_s: 400}
        max: 12
        usd_per_hour: 3
        buy_in: 1
        parallelism: {tp: [1], pp: [1]}
  - name: west
    roles: [main_decode]
    chips:
      - chip: {name: wide, bf16_tflops: 120, memory_gb: 96, memory_gb_per_s: 4000, interconnect_gb_per_s: 400}
        max: 12
        usd_per_hour: 1
        buy_in: 1
        parallelism: {tp: [1], pp: [1]}
links: [{between: [north, west], rtt_ms: 2, streams: 16, max_lines: 2, tiers: [{gbit_per_s: 30, usd_per_hour: 1}]}]
prices: {input_usd_per_mtok: 0.5, cached_input_usd_per_mtok: 0.1, output_usd_per_mtok: 2}
"""


@lru_cache
def solved(*overrides: str) -> PlanResult:
    return solve(load_scenario_text(TEXT, overrides=overrides))


def value(result: PlanResult, workload: str, metric: str, quantile: float) -> SloValue:
    assert result.evaluation is not None
    found = [v for v in result.evaluation.slo if (v.workload, v.metric, v.quantile) == (workload, metric, quantile)]
    assert len(found) == 1
    return found[0]


def usd(result: PlanResult) -> float:
    assert result.cost is not None
    return result.cost.usd_per_hour


def whole_and_halves(name: str) -> tuple[PlanResult, PlanResult]:
    """An example, and the same as two identical workloads at half the rate."""
    data = yaml.safe_load((examples_dir() / f"{name}.yaml").read_text(encoding="utf-8"))
    halved: dict[str, Any] = copy.deepcopy(data)
    work = halved.pop("workload")
    work["request_rate_per_s"] /= 2
    halved["workloads"] = [{"name": "one", **work}, {"name": "other", **work}]
    return solve(load_scenario_text(yaml.safe_dump(data))), solve(load_scenario_text(yaml.safe_dump(halved)))


def test_two_halves_of_a_network_are_the_same_pools() -> None:
    """The same pools at the same cost. How the load is shared among them isn't the same: the found networks differ in
    it (main decode 71 : 29 for the whole, 72 : 28 for the halves), and with it the headroom."""
    whole, halves = whole_and_halves("egress_priced")
    assert whole.cost is not None and halves.cost is not None
    assert halves.cost.usd_per_hour == pytest.approx(whole.cost.usd_per_hour, rel=1e-6)
    bought = [[(r.role, r.site, r.chip, r.instances, r.tp, r.pp, r.dp, r.ep) for r in x.roles] for x in (whole, halves)]
    assert bought[0] == bought[1] and bought[0]


@pytest.mark.parametrize("name", ["agent_64k"])
def test_two_halves_are_one(name: str) -> None:
    """Two identical workloads at half the rate: the same cost, the same quantiles of either, to 1e-6."""
    whole, halves = whole_and_halves(name)
    assert whole.cost is not None and halves.cost is not None and whole.evaluation is not None
    assert halves.cost.usd_per_hour == pytest.approx(whole.cost.usd_per_hour, rel=1e-6)
    assert halves.cost.output_usd_per_mtok == pytest.approx(whole.cost.output_usd_per_mtok, rel=1e-6)
    assert halves.headroom_rps == pytest.approx(whole.headroom_rps, rel=1e-6)
    assert halves.within_slo_rps == pytest.approx(whole.within_slo_rps, rel=1e-6)
    for level in whole.evaluation.slo:
        for half in ("one", "other"):
            same = value(halves, half, level.metric, level.quantile)
            assert same.value_s == pytest.approx(level.value_s, rel=1e-6)
            assert (same.limit_s, same.stage) == (level.limit_s, level.stage)


def test_a_list_of_one_is_the_workload() -> None:
    data = yaml.safe_load((examples_dir() / "egress_priced.yaml").read_text(encoding="utf-8"))
    alone = solve(load_scenario_text(yaml.safe_dump(data)))
    data["workloads"] = [{"name": "only", **data.pop("workload"), "slo": data.pop("slo")}]
    listed = solve(load_scenario_text(yaml.safe_dump(data)))
    assert (listed.cost, listed.evaluation, listed.roles) == (alone.cost, alone.evaluation, alone.roles)


def test_each_row_is_over_its_own_requests() -> None:
    result = solved()
    assert result.status == "feasible"
    agents, chat = (value(result, name, "ttft", 0.9) for name in ("agents", "chat"))
    assert agents.value_s > 1.5 > chat.value_s  # over all requests together neither would be seen
    assert (agents.limit_s, chat.limit_s) == (8.0, 1.5)
    assert [v.limit_s is not None for v in result.evaluation.slo][:4] == [True] * 4  # type: ignore[union-attr]
    assert {v.workload for v in result.evaluation.slo} == {"agents", "chat"}  # type: ignore[union-attr]


@pytest.mark.parametrize("tight", ["agents", "chat"])
def test_a_tighter_limit_makes_exactly_its_row_bind(tight: str) -> None:
    """Less than the plan reaches for one workload: more prefill, for that workload's sake."""
    easy = solved()
    limit = 0.9 * value(easy, tight, "ttft", 0.9).value_s
    hard = solved(f"workloads.{tight}.slo.ttft_s.p90={limit:.3g}")
    assert hard.status == "feasible" and usd(hard) > usd(easy)
    other = "chat" if tight == "agents" else "agents"
    prefill = next(b.constraint for b in hard.binding if b.constraint.startswith("prefill"))
    assert f"ttft_p90 of {tight} " in prefill and other not in prefill


def test_main_decode_is_set_to_the_tightest_tpot() -> None:
    result = solved("workloads.chat.slo.tpot_ms.p90=17")
    assert value(result, "chat", "tpot", 0.9).value_s <= 0.017
    assert value(result, "agents", "tpot", 0.9).value_s == pytest.approx(
        value(result, "chat", "tpot", 0.9).value_s, rel=0.02
    )


def test_a_workload_without_an_slo_has_no_rows() -> None:
    result = solved("workloads.agents.slo=")
    assert {v.workload for v in result.evaluation.slo if v.limit_s is not None} == {"chat"}  # type: ignore[union-attr]
    assert usd(result) <= usd(solved())


def test_within_counts_each_workload_by_itself() -> None:
    easy = solved("workloads.chat.slo.within=0.9")
    hard = solved("workloads.chat.slo.within=0.97")
    assert easy.status == "feasible" and usd(easy) == usd(solved())
    assert usd(hard) > usd(easy)


def test_tokens_cost_and_revenue_are_those_of_both() -> None:
    result = solved()
    assert result.cost is not None and result.revenue is not None
    tokens = result.cost.tokens_per_hour
    assert tokens["output"] == pytest.approx(3600 * (3 * 400 + 6 * 200))
    assert tokens["input"] + tokens["cached_input"] == pytest.approx(3600 * (3 * 16384 + 6 * 2048))
    assert tokens["cached_input"] == pytest.approx(3600 * (3 * 16384 * 0.8 + 6 * 2048 * 0.3), rel=3e-3)  # whole pages
    assert result.revenue.output_usd_per_hour == pytest.approx(2 * tokens["output"] / 1e6)


def test_goodput_keeps_the_mix() -> None:
    result = solved("objective=goodput")
    assert result.status == "feasible" and result.value is not None and result.cost is not None
    assert result.value > 9
    tokens = result.cost.tokens_per_hour
    assert tokens["output"] == pytest.approx(3600 * result.value * (3 * 400 + 6 * 200) / 9, rel=1e-9)


# ---------------------------------------------------------------- fixes


def test_every_fix_of_an_slo_can_be_typed() -> None:
    tight = ("workloads.chat.slo.ttft_s.p90=0.2", "sites.0.chips.0.max=4")
    result = solved(*tight)
    assert result.status == "infeasible"
    assert ("ttft_p90", "chat") in {(e.constraint, e.workload) for e in result.excuses}
    looser = [fix for fix in result.fixes if fix.overrides[0].startswith("workloads[1].slo.ttft_s.p90=")]
    assert len(looser) == 1 and looser[0].what.startswith("ttft_p90 of chat limit of")
    assert solved(*tight, *looser[0].overrides).status == "feasible"


def test_a_limit_at_top_level_is_loosened_for_all() -> None:
    top = ("workloads.agents.slo=", "workloads.chat.slo=", "slo={ttft_s: {p90: 0.5}, tpot_ms: {p90: 20}}")
    result = solved(*top, "sites.0.chips.0.max=3")
    assert result.status == "infeasible"
    looser = [fix for fix in result.fixes if fix.overrides[0].startswith("slo.ttft_s.p90=")]
    assert len(looser) == 1 and " of " not in looser[0].what.replace("limit of", "")
    assert solved(*top, "sites.0.chips.0.max=3", *looser[0].overrides).status == "feasible"


def test_a_lower_rate_sets_each_workload() -> None:
    """Where 16 times the chips, or a faster line alone, aren't enough, less traffic is what helps."""
    few = ("workloads.0.request_rate_per_s=5e2", "workloads.1.request_rate_per_s=1e3")
    free = ("workloads.agents.slo=", "workloads.chat.slo=")
    result = solved(*few, *free)
    assert result.status == "infeasible" and len(result.fixes) == 1
    keys = [override.split("=")[0] for override in result.fixes[0].overrides]
    assert keys == ["workloads[0].request_rate_per_s", "workloads[1].request_rate_per_s"]
    rates = [float(override.split("=")[1]) for override in result.fixes[0].overrides]
    assert rates[1] == pytest.approx(2 * rates[0], rel=1e-3)
    assert solved(*few, *free, *result.fixes[0].overrides).status == "feasible"


def test_an_slo_inside_the_only_workload_has_its_own_key() -> None:
    data = yaml.safe_load(TEXT)
    data["workload"] = data.pop("workloads")[1]
    data["workload"]["slo"]["ttft_s"] = {"p90": 0.02}
    result = solve(load_scenario_text(yaml.safe_dump(data)))
    assert result.status == "infeasible"
    assert any(fix.overrides[0].startswith("workload.slo.ttft_s.p90=") for fix in result.fixes)


def test_compare_serves_both() -> None:
    made = compare(load_scenario_text(TEXT))
    assert made.recommended is not None and math.isfinite(made.recommended.usd_per_hour)
    assert "Latency is that of the slowest workload" in render_comparison(made, width=100)
