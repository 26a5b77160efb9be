"""Cost per kind of token: exactly additive, and it moves with what causes it."""

from __future__ import annotations

import pytest

from pddplan import load_scenario_text
from pddplan.economics.revenue import revenue_usd_per_hour
from pddplan.plan.solve import solve
from pddplan.spec.types import Prices

SCENARIO = """
name: split
model: llama-3.1-8b
precision: {weights: fp8, kv_cache: fp8}
workload: {request_rate_per_s: 3, prompt_tokens: 8192, output_tokens: OUTPUT, prefix_hit_rate: HIT}
sites:
  - name: a
    roles: [ROLES]
    chips: [{chip: h100, max: 24, usd_per_hour: 2.0, buy_in: 1, parallelism: {tp: [1]}}]
slo: {ttft_s: {p90: 4}, tpot_ms: {p90: 40}}
"""


def cost(output: int = 256, hit: float = 0.5, roles: str = "prefill, main_decode"):
    text = SCENARIO.replace("OUTPUT", str(output)).replace("HIT", str(hit)).replace("ROLES", roles)
    result = solve(load_scenario_text(text))
    assert result.cost is not None
    return result.cost


@pytest.mark.parametrize("roles", ["prefill, main_decode", "aggregated"])
@pytest.mark.parametrize("hit", [0.0, 0.5, 0.9])
def test_cost_per_token_times_tokens_is_the_bill(roles: str, hit: float) -> None:
    c = cost(hit=hit, roles=roles)
    tokens = c.tokens_per_hour
    total = (
        c.input_usd_per_mtok * tokens["input"]
        + c.cached_input_usd_per_mtok * tokens["cached_input"]
        + c.output_usd_per_mtok * tokens["output"]
    ) / 1e6
    assert total == pytest.approx(c.usd_per_hour, rel=1e-9)
    assert c.blended_usd_per_mtok * sum(tokens.values()) / 1e6 == pytest.approx(c.usd_per_hour, rel=1e-9)
    assert min(c.input_usd_per_mtok, c.cached_input_usd_per_mtok, c.output_usd_per_mtok) >= 0


def test_cached_input_costs_less_than_uncached_and_output_most() -> None:
    c = cost()
    assert c.cached_input_usd_per_mtok < c.input_usd_per_mtok < c.output_usd_per_mtok


def test_nothing_cached_costs_nothing() -> None:
    c = cost(hit=0.0)
    assert c.cached_input_usd_per_mtok == 0.0
    assert c.tokens_per_hour["cached_input"] == 0.0


def test_revenue_by_hand() -> None:
    prices = Prices(0.5, 0.05, 2.0)
    earned = revenue_usd_per_hour(prices, {"input": 4e6, "cached_input": 10e6, "output": 1e6})
    assert earned == {"input": 2.0, "cached_input": 0.5, "output": 2.0}
