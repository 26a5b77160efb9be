"""DeepSeek's own fleet: an accounting identity that a planner must give back.

Published for one day (https://github.com/deepseek-ai/open-infra-index, 202502OpenSourceWeek, day 6; confidence A):
608B tokens in, 342B of them from the disk cache, 168B out; a node of 8 H800 does 73.7k tokens/s in (hits counted) or
14.8k out; 226.75 nodes on average; prefill units of 4 nodes (EP32), decode units of 18 (EP144); $87,072 a day at $2 a
chip-hour, $562,027 of revenue at R1's prices. Nothing is fitted here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pddplan import load_scenario, load_scenario_text, solve
from pddplan.economics.revenue import revenue_usd_per_hour
from pddplan.plan.records import PlanResult, RolePlan
from pddplan.spec.types import Prices

EXAMPLE = Path(__file__).parents[2] / "examples" / "deepseek_fleet.yaml"
TOKENS_IN, TOKENS_CACHED, TOKENS_OUT = 608e9, 342e9, 168e9  # per day
DAY_S = 86_400.0
NODE = 8
PREFILL_PER_NODE, DECODE_PER_NODE = 73_700.0, 14_800.0  # tokens/s
NODES_OF_PREFILL = TOKENS_IN / DAY_S / PREFILL_PER_NODE
NODES_OF_DECODE = TOKENS_OUT / DAY_S / DECODE_PER_NODE
PUBLISHED_NODES = 226.75

UNITS = """
model: deepseek-v3
precision: {weights: fp8, kv_cache: bf16}
workload: {request_rate_per_s: 1605.16, prompt_tokens: 4384, output_tokens: 1211, prefix_hit_rate: 0.563}
sites:
  - name: fleet
    roles: [prefill, main_decode]
    chips:
      - chip: nvidia-h800-sxm
        max: 4096
        usd_per_hour: 2.00
        measured:      # the units that DeepSeek deploys: 4 and 18 nodes at the rate per node
          prefill: {chips_per_instance: 32, tokens_per_s: 294800, cached_counted: true}
          main_decode: {chips_per_instance: 144, tokens_per_s: 266400}
max_utilization: 1
"""


def role(plan: PlanResult, name: str) -> RolePlan:
    return next(r for r in plan.roles if r.role == name)


def busy_nodes(plan: PlanResult, name: str) -> float:
    """Nodes before rounding: instances x nodes of one x the share of them that is busy."""
    assert plan.evaluation is not None
    found = role(plan, name)
    return found.chips / NODE * plan.evaluation.pools[found.role].busy_share


@pytest.fixture(scope="module")
def fleet() -> PlanResult:
    return solve(load_scenario(EXAMPLE))


def test_the_published_figures_agree_with_each_other() -> None:
    assert pytest.approx(95.5, abs=0.05) == NODES_OF_PREFILL
    assert pytest.approx(131.4, abs=0.05) == NODES_OF_DECODE
    assert pytest.approx(PUBLISHED_NODES, rel=1e-3) == NODES_OF_PREFILL + NODES_OF_DECODE


def test_example_gives_the_fleet(fleet: PlanResult) -> None:
    """Before rounding 95.5 and 131.4 nodes, ratio 0.727 +- 0.002; about 1,814 chips, 1,824 in whole nodes."""
    prefill, decode = busy_nodes(fleet, "prefill"), busy_nodes(fleet, "main_decode")
    print(f"\nnodes: prefill {prefill:.2f}, decode {decode:.2f}, ratio {prefill / decode:.4f}")
    assert fleet.architecture == "pd_one_site"
    assert prefill == pytest.approx(NODES_OF_PREFILL, rel=1e-3)
    assert decode == pytest.approx(NODES_OF_DECODE, rel=1e-3)
    assert prefill / decode == pytest.approx(0.727, abs=0.002)
    assert (role(fleet, "prefill").chips, role(fleet, "main_decode").chips) == (96 * NODE, 132 * NODE)
    chips = sum(r.chips for r in fleet.roles)
    assert chips == pytest.approx(PUBLISHED_NODES * NODE, rel=0.01)
    assert role(fleet, "prefill").chips / role(fleet, "main_decode").chips == pytest.approx(0.73, abs=0.05)


def test_whole_units_of_four_and_eighteen_nodes() -> None:
    plan = solve(load_scenario_text(UNITS))
    assert role(plan, "prefill").chips == 96 * NODE
    assert role(plan, "main_decode").chips == 144 * NODE


def test_a_tenth_of_the_load_takes_a_tenth_of_the_fleet() -> None:
    """A tenth before rounding; whole nodes add less than one per role."""
    plan = solve(load_scenario(EXAMPLE, ["workload.request_rate_per_s=160.516"]))
    for name, whole in (("prefill", NODES_OF_PREFILL), ("main_decode", NODES_OF_DECODE)):
        assert busy_nodes(plan, name) == pytest.approx(whole / 10, rel=1e-3)
        assert 0 <= role(plan, name).chips / NODE - whole / 10 < 1


def test_cost_and_revenue_of_the_day(fleet: PlanResult) -> None:
    """$87,072 for 226.75 nodes, $562,027 at R1's prices: cost profit margin 545 %."""
    prices = Prices(input_usd_per_mtok=0.55, cached_input_usd_per_mtok=0.14, output_usd_per_mtok=2.19)
    hourly = {"input": (TOKENS_IN - TOKENS_CACHED) / 24, "cached_input": TOKENS_CACHED / 24, "output": TOKENS_OUT / 24}
    revenue = 24 * sum(revenue_usd_per_hour(prices, hourly).values())
    assert revenue == pytest.approx(562_027, rel=1e-3)
    cost = 24 * PUBLISHED_NODES * NODE * 2.00
    assert cost == pytest.approx(87_072, rel=1e-6)
    assert revenue / cost - 1 == pytest.approx(5.45, abs=0.01)
    assert fleet.cost is not None
    assert 24 * fleet.cost.usd_per_hour == pytest.approx(cost, rel=0.01)
