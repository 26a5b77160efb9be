"""``pddplan simulate`` as a person runs it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.plan.simulated import SimulatedPlan
from pddplan.report.schemas import SCHEMAS
from pddplan.spec.catalogue import examples_dir
from tests.compiled import needs_numba
from tests.report.plans import feasible
from tests.simulated import simulation

AGENT = str(examples_dir() / "agent_64k.yaml")


@needs_numba
def test_formula_and_simulation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulas' numbers are those that solve prints, and the simulation is near them."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["solve", AGENT, "--json", "-q"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert main(["simulate", AGENT, "--requests", "100k", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMAS["simulation"]).validate(found)
    said = {(row["metric"], row["quantile"]): row["value"] for row in solved["slo"]}
    rows = [row for row in found["quantiles"] if row["stage"] == "all"]
    assert {(row["metric"], row["quantile"]): row["analytic"] for row in rows} == pytest.approx(said)
    assert found["littles_law_error"] < 1e-9 and found["line_bytes_error"] < 1e-9
    assert found["throughput_rps"] == pytest.approx(10.0, rel=0.02)
    for row in rows:
        if row["metric"] == "pause":  # the formulas have a typical one
            continue
        assert row["analytic"] == pytest.approx(row["simulated"], rel=0.05 + (row["high"] / row["low"] - 1.0))


@needs_numba
def test_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed gives the same bytes, another one others."""
    outs = []
    for seed in ("3", "3", "4"):
        assert main(["simulate", AGENT, "--requests", "5k", "--seed", seed, "--json"]) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1] != outs[2]


@needs_numba
def test_a_plan_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that was bought for 10 requests/s, at 10 and at 30: then it has no steady state, and no latency."""
    plan = str(tmp_path / "plan.json")
    assert main(["solve", AGENT, "-o", plan, "-q"]) == 0
    capsys.readouterr()
    assert main(["simulate", AGENT, "--plan", plan, "--requests", "20k"]) == 0
    assert capsys.readouterr().out.startswith(("HOLDS", "BREAKS"))
    load = ["--set", "workload.request_rate_per_s=30"]
    assert main(["simulate", AGENT, "--plan", plan, "--requests", "60k", *load]) == 0
    out = capsys.readouterr().out
    assert out.startswith("OVERLOADED  no steady state") and "TTFT" not in out


def test_where_there_is_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(examples_dir() / "infeasible.yaml"), "--requests", "1k"]) == 1
    assert capsys.readouterr().out.startswith("INFEASIBLE")


@pytest.mark.parametrize("count", ["0", "999", "21M", "many", "-5", "1e4", "nan", ""])
def test_a_number_of_requests_that_cant_be(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", AGENT, "--requests", count]) == 2
    err = capsys.readouterr().err
    assert "--requests" in err and "Traceback" not in err


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    assert main(["simulate", str(empty)]) == 2
    assert main(["simulate"]) == 2
    assert main(["simulate", AGENT, "--plan", str(tmp_path / "no.json")]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["run.gif", "run", "/no/such/folder/run.png"])
def test_a_picture_that_cant_be_is_told_before_the_run(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pddplan.plan.simulated.simulate_plan", _no_run)
    assert main(["simulate", AGENT, "--plot", path]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and path in captured.err and len(captured.err.splitlines()) == 1


def test_without_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pddplan.plan.simulated.simulate_plan", _no_run)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["simulate", AGENT, "--plot", "run.png"]) == 2
    assert "python3 -m pip install 'pddplan[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [False, True])
def test_warnings_are_told(quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the file and of the plan, on stderr or in the JSON; simulation and plan are made up here."""
    result = replace(feasible(), warnings=("The price is old.",))
    monkeypatch.setattr("pddplan.cli.simulate._pools", lambda found: [])
    monkeypatch.setattr(
        "pddplan.plan.simulated.simulate_plan", lambda *_: SimulatedPlan(result, None, None, simulation())
    )
    assert main(["simulate", AGENT, *["-q"] * quiet]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("HOLDS") and ("note: The price is old." in captured.err) is not quiet
    assert main(["simulate", AGENT, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    Draft202012Validator(SCHEMAS["simulation"]).validate(found)
    assert "The price is old." in found["warnings"] and captured.err == ""
    assert (found["architecture"], found["usd_per_hour"]) == (result.architecture, result.cost.usd_per_hour)


@pytest.mark.parametrize("options", [[], ["--json"], ["--drill"]])
def test_rates_without_step_times(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A clock that stopped is no answer."""
    assert main(["simulate", str(examples_dir() / "prfaas_1t.yaml"), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "tpot_ms" in captured.err


@needs_numba
def test_drills_of_an_aggregated_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """There are none, which is said; the simulation stands."""
    chat = str(examples_dir() / "chat_8k.yaml")
    assert main(["simulate", chat, "--requests", "1k", "--drill", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drills"] == [] and any("aggregated" in warning for warning in found["warnings"])


def _no_run(*_: object) -> SimulatedPlan:
    raise AssertionError("it must not come to a run")


@needs_numba
def test_drills(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each role, line, site, burst, hits and cache; the loss of one instance is held by one spare of its role."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["simulate", AGENT, "--requests", "5k", "--drill", "--json"]) == 0
    drills = {drill["name"]: drill for drill in json.loads(capsys.readouterr().out)["drills"]}
    assert len(drills) == 10
    for role in ("prefill", "relay_decode", "main_decode"):
        lost = drills[f"one {role} lost"]
        assert lost["addition"]["spares"] == {role: 1} and lost["late_s"] > 0
    assert drills["line at half"]["addition"]["lines"] >= 1
    assert drills["line down"]["worst_late_share"] == 1.0
    assert main(["simulate", AGENT, "--requests", "5k", "--drill"]) == 0
    out = capsys.readouterr().out
    assert "spares: {prefill: 1}" in out and max(map(len, out.splitlines())) <= 80


def log_file(folder: Path, requests: int, rate: float, output: int = 1024) -> str:
    """A log of random moments, prompts as agent_64k's at 98 % hits."""
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(size=requests)) / rate
    rows = [f"{at:.4f},65536,{output},64000" for at in times]
    path = folder / "log.csv"
    path.write_text("timestamp,input_tokens,output_tokens,cached_tokens\n" + "\n".join(rows) + "\n")
    return str(path)


@needs_numba
def test_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its requests at their own times; the formulas beside are of the same requests."""
    path = log_file(tmp_path, 4000, 10.0)
    assert main(["simulate", AGENT, "--trace", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMAS["simulation"]).validate(found)
    assert found["requests"] + found["warmup_requests"] == 4000
    assert found["throughput_rps"] == pytest.approx(10.0, rel=0.1)
    assert any("4,000 requests of the log" in note for note in found["notes"])
    assert any("no sessions" in note for note in found["notes"])
    ttft = next(q for q in found["quantiles"] if (q["metric"], q["quantile"], q["stage"]) == ("ttft", 0.5, "all"))
    assert ttft["analytic"] == pytest.approx(ttft["simulated"], rel=0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trace", "none.csv"], "no such file"),
        (["--trace", "none.csv", "--drill"], "don't go together"),
        (["--trace", "few.csv"], "has 3 requests in 2 s: too few to simulate"),
    ],
)
def test_no_log(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.csv").write_text("timestamp,input_tokens,output_tokens,cached_tokens\n0,9,9,0\n1,9,9,0\n2,9,9,0\n")
    assert main(["simulate", AGENT, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err


def test_a_log_for_what_it_cant_stand_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log_file(tmp_path, 1500, 10.0)
    assert main(["simulate", str(examples_dir() / "two_workloads.yaml"), "--trace", path]) == 2
    assert "several workloads" in capsys.readouterr().err
    assert main(["simulate", str(examples_dir() / "chat_8k.yaml"), "--trace", path]) == 2
    assert "only plans of one pool per role" in capsys.readouterr().err


@needs_numba
def test_a_short_log_of_more_than_the_plan_can_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Soon over, it isn't seen to grow; the formulas have no steady state, the limits stand beside the simulation."""
    assert main(["simulate", AGENT, "--trace", log_file(tmp_path, 1200, 200.0), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMAS["simulation"]).validate(found)
    assert found["growth"] is None and not found["holds"]
    rows = [row for row in found["quantiles"] if row["stage"] == "all"]
    assert all(row["analytic"] is None for row in rows)
    assert {row["limit"] for row in rows if row["metric"] == "ttft"} == {3.0, 8.0, 20.0}
