"""What a newcomer types on the first day: odd numbers, wrong files, pipes; answers stay readable and true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.report.figures import figure, money
from pddplan.report.schemas import SCHEMAS

ROOT = Path(__file__).parent.parent.parent
Captured = pytest.CaptureFixture[str]

# Layouts are pinned, so that a solve takes a fraction of a second.
SMALL = """
name: first-day
model: llama-3.1-8b
engine: vllm
workload: {request_rate_per_s: 2, prompt_tokens: 2048, output_tokens: 256, prefix_hit_rate: 0.5}
sites:
  - name: here
    roles: [aggregated]
    chips: [{chip: h100, max: 8, usd_per_hour: 2, parallelism: {tp: 1, pp: 1, dp: 1, ep: 1}}]
slo: {ttft_s: {p90: 2}, tpot_ms: {p90: 50}}
"""
MEASURED = """
name: fleet
model: llama-3.1-8b
workload: {request_rate_per_s: 2, prompt_tokens: 2048, output_tokens: 256, prefix_hit_rate: 0.5}
sites:
  - name: here
    roles: [prefill, main_decode]
    chips:
      - chip: h100
        max: 16
        usd_per_hour: 2
        measured:
          prefill: {chips_per_instance: 8, tokens_per_s: 20000}
          main_decode: {chips_per_instance: 8, tokens_per_s: 3000}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def solve(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["solve", *arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and "internal error" not in captured.err, captured.err
    return code, captured.out, captured.err


# ---------------------------------------------------------------- odd numbers

ODD = {
    "rate of an idle service": ("workload.request_rate_per_s=0.000001", 0),
    "rate beyond any fleet": ("workload.request_rate_per_s=1e9", 1),
    "rate of zero": ("workload.request_rate_per_s=0", 2),
    "prompt of one token": ("workload.prompt_tokens=1", 0),
    "prompt of 10M tokens": ("workload.prompt_tokens=10M", 1),
    "no hits": ("workload.prefix_hit_rate=0", 0),
    "nearly all hits": ("workload.prefix_hit_rate=0.9999", 0),
    "all hits": ("workload.prefix_hit_rate=1", 0),
    "one output token": ("workload.output_tokens=1", 0),
    "a million output tokens": ("workload.output_tokens=1000000", 1),
    "even arrivals": ("workload.burstiness=0.000001", 0),
    "bursts": ("workload.burstiness=5", 0),
    "shared cache": ("workload.prefix_cache=shared", 0),
    "sticky cache": ("workload.prefix_cache=sticky", 0),
    "first token on prefill": ("workload.first_token=on_prefill", 0),
    "pinned decode hits": ("workload.decode_prefix_hit_rate=0.3", 0),
    "a day": (f"workload.hourly_load={[1] * 23 + [4]}", 0),
    "half a day": (f"workload.hourly_load={[1] * 12}", 2),
    "free chips": ("sites.0.chips.0.usd_per_hour=0", 0),
    "one chip": ("sites.0.chips.0.max=1", 0),
    "owned chips": ("sites.0.chips.0.owned=8", 0),
    "a spare": ("spares={aggregated: 1}", 0),
    "yuan": ("exchange={cny_per_usd: 7.2}", 0),
    "tiered cache": ("sites.0.cache={host_gb_per_chip: 128, host_gb_per_s: 20, usd_per_tb_hour: 0.5}", 0),
    "power": ("sites.0.power={max_kw: 100, usd_per_kwh: 0.1, pue: 1.2}", 0),
    "first token in a microsecond": ("slo.ttft_s={p90: 0.000001}", 1),
    "token in a microsecond": ("slo.tpot_ms={p90: 0.001}", 1),
    "model that doesn't fit": ("model=deepseek-v3", 1),
    "another engine": ("engine={name: sglang, chunk_tokens: 2K, mtp_accepted_tokens: 1.8}", 0),
    "engine that nobody has": ("engine=vlm", 2),
    "profit": ("objective=profit", 2),
    "model with an endless name": (f"model={'a' * 500}", 2),
    "chip of 1 GB": (
        "sites.0.chips.0={chip: {name: x, bf16_tflops: 400, memory_gb: 1, memory_gb_per_s: 2000,"
        " interconnect_gb_per_s: 200}, max: 8, usd_per_hour: 1}",
        1,
    ),
    "chip of 1e9 TFLOP/s": (
        "sites.0.chips.0={chip: {name: x, bf16_tflops: 1e9, memory_gb: 96, memory_gb_per_s: 2000,"
        " interconnect_gb_per_s: 200}, max: 1, usd_per_hour: 1}",
        0,
    ),
}


@pytest.mark.parametrize(("override", "expected"), ODD.values(), ids=ODD)
def test_odd_numbers_get_an_answer_or_a_message(small: Path, capsys: Captured, override: str, expected: int) -> None:
    code, out, err = solve(capsys, str(small), "--set", override)
    assert code == expected, (out, err)
    assert "Warning" not in err
    if expected == 2:
        assert out == "" and err.startswith("--set: ")
        return
    assert out.startswith("FEASIBLE  " if expected == 0 else "INFEASIBLE  ")
    assert not re.search(r"(?<![\w.-])(nan|inf|None)(?![\w.-])", out)
    assert "none is 0" not in out


def test_a_value_below_the_floor_is_told_the_floor(small: Path, capsys: Captured) -> None:
    _, _, err = solve(capsys, str(small), "--set", "workload.request_rate_per_s=1e-9")
    assert "1e-09 is too small. It must be at least 1e-06." in err


# ---------------------------------------------------------------- true and readable


def test_text_and_json_say_the_same(small: Path, capsys: Captured) -> None:
    _, text, _ = solve(capsys, str(small), "-q")
    _, out, err = solve(capsys, str(small), "--json")
    plan = json.loads(out)
    Draft202012Validator(SCHEMAS["plan"]).validate(plan)
    assert err == ""
    cost, (role,) = plan["cost"], plan["roles"]
    first = text.splitlines()[0]
    blended = figure(cost["usd_per_million_tokens"]["blended"])
    head = f"FEASIBLE  {plan['architecture']}  ${money(cost['usd_per_hour'])}/h  ${blended} per M tokens"
    assert first == f"{head}  {role['chips']} h100"
    rows = [" ".join(line.replace("~", "").split()) for line in text.splitlines()]
    told = {(level["metric"], level["quantile"]): level["value"] for level in plan["slo"]}
    assert f"TPOT p90 {figure(1e3 * told['tpot', 0.9])} ms 50 ms" in " ".join(rows)
    assert f"total {money(cost['usd_per_hour'])} 100 %" in rows
    assert any(f"at {figure(plan['headroom_rps'])} requests/s" in row for row in rows)


def test_a_small_answer_fits_one_screen(small: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, text, _ = solve(capsys, str(small), "-q")
    lines = text.splitlines()
    assert len(lines) <= 52 and max(map(len, lines)) <= 80
    _, full, _ = solve(capsys, str(small), "-q", "--explain")
    assert len(full.splitlines()) > len(lines)
    for assumption in ("workload.burstiness = 1", "engine.max_batch", "Estimates", "Defaults"):
        assert assumption in full


def test_a_measured_fleet_claims_nothing_that_was_not_measured(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(MEASURED)
    _, text, _ = solve(capsys, str(path), "-q")
    row = next(line.split() for line in text.splitlines() if line.startswith("  main decode"))
    assert "measured" in row and "–" in row and "0" not in row
    assert "breaks its SLO" not in text and "is full at" in text
    _, out, _ = solve(capsys, str(path), "--json")
    assert next(r for r in json.loads(out)["roles"] if r["role"] == "main_decode")["batch"] is None


def test_an_infeasible_answer_leads_with_the_reason_and_a_fix_that_works(small: Path, capsys: Captured) -> None:
    code, text, _ = solve(capsys, str(small), "-q", "--set", "slo.tpot_ms.p90=4")
    assert code == 1
    assert text.splitlines()[1].startswith("Nearest fix: ")
    flags = re.findall(r"--set ('[^']+'|\S+)", text)
    assert flags
    fix = [part for flag in flags[:1] for part in ("--set", flag.strip("'"))]
    assert solve(capsys, str(small), "-q", "--set", "slo.tpot_ms.p90=4", *fix)[0] == 0


# ---------------------------------------------------------------- wrong files


def test_a_plan_given_as_scenario_is_one_message(small: Path, tmp_path: Path, capsys: Captured) -> None:
    plan = tmp_path / "plan.json"
    assert solve(capsys, str(small), "-q", "-o", str(plan))[0] == 0
    code, out, err = solve(capsys, str(plan))
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert "this is a pddplan.plan/1, not a scenario. Give the scenario that it was made from." in err


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("workload.qps=3", "request_rate_per_s"),
        ("workload.isl=3", "prompt_tokens"),
        ("workload.hit_rate=0.5", "prefix_hit_rate"),
        ("sites.0.gpus=8", "chips"),
        ("sites.0.chips.0.count=8", "max"),
        ("slo.itl=8", "tpot_ms"),
        ("slo.ttft=8", "ttft_s"),
    ],
)
def test_names_from_elsewhere_are_understood(small: Path, capsys: Captured, wrong: str, right: str) -> None:
    code, _, err = solve(capsys, str(small), "--set", wrong)
    assert code == 2 and f"Did you mean '{right}'?" in err


def test_measured_aggregated_is_refused(small: Path, capsys: Captured) -> None:
    rates = "sites.0.chips.0.measured={aggregated: {chips_per_instance: 1, tokens_per_s: 3000}}"
    code, _, err = solve(capsys, str(small), "--set", rates)
    assert code == 2 and "measured rates of aggregated serving are not supported yet" in err


def test_an_argument_that_is_wrong_names_the_command(capsys: Captured) -> None:
    assert main(["hardware", "show", "h21"]) == 2
    assert capsys.readouterr().err.startswith("pddplan hardware show: no chip 'h21' in the catalogue.")
    assert main(["model", "show", "nope"]) == 2
    assert capsys.readouterr().err.startswith("pddplan model show: no model 'nope' in the catalogue.")


# ---------------------------------------------------------------- streams


def pddplan(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "pddplan", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, check=False)


def test_standard_input_json_and_a_dumb_terminal() -> None:
    text = json.dumps(yaml.safe_load(SMALL))
    done = pddplan("solve", "-", "-q", stdin=text, TERM="dumb", NO_COLOR="1", COLUMNS="80")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("FEASIBLE  ") and "\x1b" not in done.stdout


def test_a_reader_that_stops_early_is_no_error(small: Path) -> None:
    shell = f'"{sys.executable}" -m pddplan solve "{small}" --explain | head -1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    first, status = done.stdout.splitlines()
    assert first.startswith("FEASIBLE  ") and status == "0" and done.stderr == ""


def test_check_takes_many_files_and_says_the_worst(small: Path, tmp_path: Path, capsys: Captured) -> None:
    tight = tmp_path / "tight.yaml"
    tight.write_text(SMALL.replace("p90: 50", "p90: 0.001"))
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    report: Any = tmp_path / "junit.xml"
    assert main(["check", "-q", str(small), str(tight), "--junit", str(report)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["FEASIBLE", "INFEASIBLE"] and "binds: " in lines[0]
    assert 'tests="2" failures="1" errors="0"' in report.read_text()
    assert main(["check", "-q", str(small), str(tight), str(empty), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "is empty" in json.loads(captured.err)["errors"][0]["message"]
