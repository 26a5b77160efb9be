"""A thousand damaged scenarios through the whole command: exit code 0, 1 or 2, an answer or a message, no traceback.

The scenarios have measured rates: without the roofline a solve takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.report.schemas import SCHEMAS
from tests.properties.damage import ODD, damaged

ONE_SITE = """
model: llama-3.1-8b
engine: vllm
workload:
  {request_rate_per_s: 2, prompt_tokens: 2K, output_tokens: 256, prefix_hit_rate: 0.5, prefix_cache: shared}
sites:
  - name: here
    roles: [prefill, main_decode]
    chips:
      - chip: h100
        max: 16
        usd_per_hour: 2
        measured:
          prefill: {chips_per_instance: 8, tokens_per_s: 20000}
          main_decode: {chips_per_instance: 8, tokens_per_s: 3000, batch: 64, tpot_ms: 20}
slo: {ttft_s: {p90: 2}}
prices: {input_usd_per_mtok: 0.5, output_usd_per_mtok: 2}
"""
TWO_SITES = """
model: qwen3-8b
workload:
  request_rate_per_s: 2
  prompt_tokens: {histogram: {2K: 0.5, 4K: 0.5}}
  output_tokens: 256
  prefix_hit_rate: {mean: 0.6}
  prefix_cache: shared
sites:
  - name: a
    roles: [prefill]
    chips:
      - {chip: h100, max: 8, usd_per_hour: 2, measured: {prefill: {chips_per_instance: 8, ttft_s: {1K: 0.05, 8K: 0.4}}}}
    power: {max_kw: 100, usd_per_kwh: 0.1, pue: 1.2}
  - name: b
    roles: [main_decode]
    chips:
      - chip: {name: own, bf16_tflops: 400, memory_gb: 96, memory_gb_per_s: 2000, interconnect_gb_per_s: 200}
        max: 8
        usd_per_hour: 1
        measured: {main_decode: {chips_per_instance: 8, batch: 64, tpot_ms: 20}}
    cache: {host_gb_per_chip: 64, host_gb_per_s: 20, usd_per_tb_hour: 0.5}
links:
  - {between: [a, b], rtt_ms: 8, max_lines: 1, tiers: [{gbit_per_s: 100, usd_per_hour: 2}]}
"""
TWO_WORKLOADS = (
    TWO_SITES[: TWO_SITES.index("workload:")]
    + """
workloads:
  - {name: long, request_rate_per_s: 1, prompt_tokens: 4K, output_tokens: 256, prefix_hit_rate: 0.6}
  - {name: short, request_rate_per_s: 3, prompt_tokens: 512, output_tokens: 64, slo: {ttft_s: {p90: 2}, within: 0.9}}
"""
    + TWO_SITES[TWO_SITES.index("sites:") :]
)
BASES = [yaml.safe_load(ONE_SITE), yaml.safe_load(TWO_SITES), yaml.safe_load(TWO_WORKLOADS)]
FACTORS = (-1, 0, 1e-6, 0.1, 0.25, 0.5, 2, 3, 7, 100)
ACTIONS = (*["scale"] * 5, "replace", "delete", "rename", "move", "double")  # half of them stay valid: they are solved
NO_NUMBER = re.compile(r"(?<![\w.-])(nan|inf|None)(?![\w.-])")

thousand = settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def run(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def check_answer(code: int, out: str, err: str) -> None:
    assert code in (0, 1, 2), err
    assert "Traceback" not in err and "internal error" not in err and "Warning" not in err
    if code == 2:
        assert out == "" and err.strip()
        return
    first = out.split("\n", 1)[0]
    assert first.split("  ")[0] == ("FEASIBLE" if code == 0 else "INFEASIBLE")
    assert not NO_NUMBER.search(out), NO_NUMBER.search(out)
    assert max(len(line) for line in out.splitlines() if "--set" not in line) <= 100


def check_json(code: int, out: str, err: str) -> None:
    assert code in (0, 1, 2), err
    if code == 2:
        assert out == ""
        Draft202012Validator(SCHEMAS["error"]).validate(json.loads(err))
        return
    assert err == ""
    plan = json.loads(out)
    Draft202012Validator(SCHEMAS["plan"]).validate(plan)
    assert plan["status"] == ("feasible" if code == 0 else "infeasible")
    if code == 1:
        return
    cost = plan["cost"]
    parts = sum(r["usd_per_hour"] for r in plan["roles"]) + sum(r["usd_per_hour"] for r in plan["links"])
    assert math.isclose(parts + cost["other_usd_per_hour"], cost["usd_per_hour"], rel_tol=1e-9, abs_tol=1e-9)
    assert all(level["met"] for level in plan["slo"])
    routing = plan["routing"]
    assert math.isclose(routing["direct_share"] + routing["relay_share"] + routing["filtered_share"], 1.0, abs_tol=1e-9)


@pytest.mark.parametrize("text", [ONE_SITE, TWO_SITES, TWO_WORKLOADS])
def test_the_undamaged_scenarios_are_feasible(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    code, out, err = run("solve", str(path))
    assert code == 0
    check_answer(code, out, err)


@thousand
@given(data=damaged(BASES, FACTORS, ACTIONS))
def test_damaged_scenarios(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    text = json.dumps(data)
    path.write_text(text)
    # either form of the answer, by the text, so that each example is run once
    if len(text) % 2:
        check_answer(*run("solve", str(path)))
    else:
        check_json(*run("solve", str(path), "--json"))


KEYS = ("workload.request_rate_per_s", "sites.here.chips.0.max", "slo.ttft_s.p90", "slo", "objective", "spares", "x.y")


@settings(thousand, max_examples=100)
@given(key=st.sampled_from(KEYS), value=st.sampled_from(ODD) | st.text(max_size=6))
def test_any_override(tmp_path_factory: pytest.TempPathFactory, key: str, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "scenario.yaml"
    path.write_text(ONE_SITE)
    text = value if isinstance(value, str) else json.dumps(value)
    check_answer(*run("solve", str(path), "--set", f"{key}={text}"))
