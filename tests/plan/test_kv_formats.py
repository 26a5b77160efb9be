"""Answers for chips that hold KV caches in different formats: what the line carries and what is told of it."""

from __future__ import annotations

from functools import cache

import pytest
from jsonschema import Draft202012Validator

from pddplan.llm.catalogue import load_model
from pddplan.llm.kv import kv_bytes
from pddplan.plan.records import PlanResult
from pddplan.plan.solve import solve
from pddplan.report.plan_json import plan_payload
from pddplan.report.schemas import SCHEMAS
from pddplan.spec.load import load_scenario_text

A100, H20 = "nvidia-a100-80g-sxm", "nvidia-h20-96g"
REST = "max: 8, usd_per_hour: 1, buy_in: 1, parallelism: {tp: [1], pp: [1]}"
SCENARIO = """
name: formats
model: llama-3.1-8b
precision: {weights: fp8, kv_cache: fp8}
workload:
  request_rate_per_s: 4
  prompt_tokens: 16K
  output_tokens: 256
  prefix_hit_rate: {histogram: {0.9: 1.0}}
sites:
  - {name: north, roles: [prefill, relay_decode], chips: [{chip: FIRST, REST}]}
  - {name: west, roles: [main_decode], chips: [{chip: SECOND, REST}]}
links: [{between: [north, west], rtt_ms: 8, streams: 16, tiers: [{gbit_per_s: 40, usd_per_hour: 5}]}]
slo: {ttft_s: {p99: 5}, tpot_ms: {p90: 40}}
"""


@cache
def plan(first: str, second: str, *overrides: str) -> PlanResult:
    text = SCENARIO.replace("FIRST", first).replace("SECOND", second).replace("REST", REST)
    result = solve(load_scenario_text(text, "formats.yaml", overrides=overrides))
    assert result.status == "feasible"
    return result


def told(result: PlanResult) -> dict[str, tuple[object, str]]:
    marks = ("kv_format.", "].precision.")
    return {a.name: (a.value, a.source) for a in result.assumptions if any(m in a.name for m in marks)}


def missing_bytes(result: PlanResult, kv_format: str) -> float:
    """KV of a prompt's tokens that main decode doesn't hold."""
    assert result.evaluation is not None
    share = 1 - result.evaluation.decode_hit_rate
    return share * float(kv_bytes(load_model("llama-3.1-8b"), 16 * 1024, kv_format))


def test_the_line_from_an_a100_carries_bf16_and_the_h20_turns_it_into_fp8() -> None:
    result = plan(A100, H20)
    assert told(result) == {
        "sites[0].chips[0].precision.weights": ("int8", "default"),
        "sites[0].chips[0].precision.kv_cache": ("bf16", "default"),
        "kv_format.prefill": ("bf16", "default"),
        "kv_format.line": ("bf16", "default"),
    }
    note = next(a.note for a in result.assumptions if a.name == "kv_format.line")
    assert "nvidia-h20-96g turns it into fp8" in note
    assert result.links[0].needed_gbit_per_s == pytest.approx(4 * missing_bytes(result, "bf16") * 8e-9, rel=1e-3)
    assert any(
        "no fp8" in w and "State sites[0].chips[0].precision.kv_cache to change that" in w for w in result.warnings
    )


def test_the_line_to_an_a100_carries_bf16_and_the_h20_makes_it() -> None:
    result = plan(H20, A100)
    found = told(result)
    assert found["kv_format.main_decode"] == found["kv_format.line"] == ("bf16", "default")
    assert "kv_format.prefill" not in found
    note = next(a.note for a in result.assumptions if a.name == "kv_format.line")
    assert "nvidia-h20-96g makes it of its fp8" in note
    assert result.links[0].needed_gbit_per_s == pytest.approx(4 * missing_bytes(result, "bf16") * 8e-9, rel=1e-3)


def test_the_json_says_so_where_it_differs_and_nothing_where_it_does_not() -> None:
    payload = plan_payload(plan(A100, H20))
    Draft202012Validator(SCHEMAS["plan"]).validate(payload)
    formats = {role["role"]: role.get("kv_format") for role in payload["roles"]}
    assert (formats["prefill"], formats["main_decode"]) == ("bf16", None)
    assert payload["links"][0]["kv_format"] == "bf16"
    same = plan_payload(plan(H20, H20))
    assert not [row for row in (*same["roles"], *same["links"]) if "kv_format" in row]
    assert told(plan(H20, H20)) == {}


def test_a_stated_cache_counts() -> None:
    """An A100 that stores fp8 and widens it: fp8 crosses, nothing is converted, half the bytes are on the line."""
    stated = plan(A100, H20, "sites[0].chips[0].precision={kv_cache: fp8}")
    assert told(stated) == {"sites[0].chips[0].precision.weights": ("int8", "default")}
    assert stated.links[0].needed_gbit_per_s == pytest.approx(4 * missing_bytes(stated, "fp8") * 8e-9, rel=1e-3)
    assert any("KV cache is stored so and widened to bf16" in w for w in stated.warnings)
