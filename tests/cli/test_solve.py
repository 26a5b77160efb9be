"""``pddplan solve``: exit codes, streams, files, flags; the solver itself is put in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.report.schemas import SCHEMAS
from pddplan.spec.catalogue import examples_dir
from tests.plan.fleet import FLEET, PRICES
from tests.report import plans

Install = Callable[..., SimpleNamespace]
Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("answer", "code", "word"),
    [(plans.feasible(), 0, "FEASIBLE"), (plans.infeasible(), 1, "INFEASIBLE"), (plans.unknown(), 3, "UNKNOWN")],
)
def test_status_is_the_exit_code(
    solver: Install, scenario_file: Path, capsys: Captured, answer: Any, code: int, word: str
) -> None:
    solver(answer)
    assert main(["solve", str(scenario_file)]) == code
    assert capsys.readouterr().out.startswith(word)
    assert main(["solve", str(scenario_file), "--json"]) == code
    payload = json.loads(capsys.readouterr().out)
    assert payload["status"] == word.lower()
    Draft202012Validator(SCHEMAS["plan"]).validate(payload)


def test_json_is_one_object_and_notes_go_to_stderr(solver: Install, scenario_file: Path, capsys: Captured) -> None:
    from dataclasses import replace

    solver(replace(plans.feasible(), warnings=("the trunk is old",)))
    main(["solve", str(scenario_file), "--json"])
    captured = capsys.readouterr()
    assert "the trunk is old" in json.loads(captured.out)["warnings"]
    assert captured.err == ""
    main(["solve", str(scenario_file)])
    captured = capsys.readouterr()
    assert "note: the trunk is old" in captured.err and "note:" not in captured.out
    for quiet in (["-q", "solve"], ["solve", "-q"]):
        main([*quiet, str(scenario_file)])
        assert capsys.readouterr().err == ""


def test_top_reaches_the_solver_only_where_asked(solver: Install, scenario_file: Path) -> None:
    seen = solver()
    assert main(["solve", str(scenario_file)]) == 0
    assert main(["solve", str(scenario_file), "--top", "5"]) == 0
    assert "top" not in seen.calls[0][1] and seen.calls[1][1]["top"] == 5


@pytest.mark.parametrize("count", ["0", "-1", "x", "1.5", ""])
def test_a_wrong_top_is_one_message(solver: Install, scenario_file: Path, capsys: Captured, count: str) -> None:
    seen = solver()
    assert main(["solve", str(scenario_file), "--top", count]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and "--top" in captured.err
    assert seen.calls == []


def test_runner_ups_of_an_example(capsys: Captured) -> None:
    """The real solver: JSON by its schema, text at 80 columns."""
    path = str(examples_dir() / "agent_64k.yaml")
    assert main(["solve", path, "--top", "3", "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMAS["plan"]).validate(payload)
    assert payload["runner_ups"] == {"asked": 2, "within": 0.05, "complete": True}
    others = payload["alternatives"]
    assert len(others) == 2 and all(other["proven"] and other["differs"] and other["roles"] for other in others)
    best = payload["cost"]["usd_per_hour"]
    assert all(best * 0.999 <= other["usd_per_hour"] <= best * 1.05 for other in others)
    kinds = [[(r["role"], r["chip"], r["parallelism"]) for r in plan["roles"]] for plan in (payload, *others)]
    lines = [[(k["lines"], k["gbit_per_s"]) for k in plan["links"]] for plan in (payload, *others)]
    assert len({str(kind) for kind in zip(kinds, lines, strict=True)}) == 3


def test_flags_reach_the_solver(solver: Install, scenario_file: Path) -> None:
    seen = solver()
    command = ["solve", str(scenario_file), "--seed", "7", "--time-limit", "2.5", "--objective", "goodput"]
    assert main([*command, "--set", "workload.request_rate_per_s=30", "--set", "sites.north.chips.0.max=64"]) == 0
    scenario, options = seen.calls[0]
    assert scenario.workload.request_rate_per_s == 30
    assert scenario.sites[0].offers[0].max_chips == 64
    assert scenario.objective.name == "goodput"
    assert (options["seed"], options["time_limit_s"]) == (7, 2.5)


def test_objective_flag_keeps_the_budget_of_the_same_objective(solver: Install, scenario_file: Path) -> None:
    seen = solver()
    scenario_file.write_text(scenario_file.read_text() + "objective: {goodput: {max_usd_per_hour: 500}}\n")
    main(["solve", str(scenario_file), "--objective", "goodput"])
    main(["solve", str(scenario_file), "--objective", "cost"])
    first, second = (scenario.objective for scenario, _ in seen.calls)
    assert (first.name, first.max_usd_per_hour) == ("goodput", 500)
    assert second.name == "cost"


def test_profit_serves_the_share_that_pays_best(tmp_path: Path, capsys: Captured) -> None:
    """The real solver, in text and JSON."""
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET + PRICES)
    command = ["solve", str(path), "--objective", "profit", "-q"]
    assert main([*command, "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMAS["plan"]).validate(payload)
    objective = payload["objective"]
    assert (objective["name"], objective["unit"]) == ("profit", "USD/h")
    assert objective["value"] == pytest.approx(payload["revenue"]["margin_usd_per_hour"])
    assert objective["value"] <= objective["bound"] and 0 <= objective["gap"] <= 1e-3
    assert 0 < payload["goodput_rps"] < payload["demand_rps"] == 40
    assert main(command) == 0
    text = capsys.readouterr().out
    first, second = text.splitlines()[:2]
    assert first.startswith(
        "FEASIBLE  pd_one_site  profit $26.3/h  serves 35.2 of 40 requests/s  cost $80.0/h  40 h100"
    )
    assert second.startswith("Serve 35.2 of 40 requests/s (88%): more would cost more than it earns; profit $26.3/h")


def test_profit_where_nothing_pays(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET + PRICES)
    command = ["solve", str(path), "--objective", "profit", "-q", "--set", "prices.output_usd_per_mtok=0.1"]
    assert main([*command, "--json"]) == 1
    payload = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMAS["plan"]).validate(payload)
    assert payload["status"] == "infeasible" and payload["roles"] == [] and payload["goodput_rps"] == 0
    assert payload["objective"]["value"] == 0 and payload["reasons"][0]["constraint"] == "cost_against_revenue"
    (change,) = payload["fixes"][0]["overrides"]
    assert main(command) == 1
    text = capsys.readouterr().out
    assert text.startswith("INFEASIBLE  no plan earns its cost: at best ")
    assert "breaks even with output at $1.59 per M tokens (now 0.1)" in " ".join(text.split())
    assert main([*command, "--set", change]) == 0


@pytest.mark.parametrize("asked", [["--objective", "profit"], ["--set", "objective=profit"]])
def test_profit_needs_prices(tmp_path: Path, capsys: Captured, asked: list[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    assert main(["solve", str(path), *asked]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    assert "objective: profit needs prices" in captured.err and "Add prices: {input_usd_per_mtok" in captured.err


def test_load_time_is_added(solver: Install, scenario_file: Path, capsys: Captured) -> None:
    solver()
    main(["solve", str(scenario_file), "--json"])
    timing = json.loads(capsys.readouterr().out)["timing_s"]
    assert timing["load"] > 0 and timing["solve"] == 1.2


def test_explain(solver: Install, scenario_file: Path, capsys: Captured) -> None:
    solver()
    main(["solve", str(scenario_file), "--explain"])
    assert "published traces of coding agents" in " ".join(capsys.readouterr().out.split())


# ---------------------------------------------------------------- -o


def test_output_file_is_the_json(solver: Install, scenario_file: Path, tmp_path: Path, capsys: Captured) -> None:
    solver()
    target = tmp_path / "plan.json"
    assert main(["solve", str(scenario_file), "-o", str(target)]) == 0
    assert json.loads(target.read_text())["schema"] == "pddplan.plan/1"
    assert capsys.readouterr().out.startswith("FEASIBLE")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.json", "scenario.yaml"]


def test_an_infeasible_or_unproven_answer_is_kept_too(solver: Install, scenario_file: Path, tmp_path: Path) -> None:
    solver(plans.unknown())
    assert main(["solve", str(scenario_file), "-o", str(tmp_path / "plan.json")]) == 3
    assert json.loads((tmp_path / "plan.json").read_text())["objective"]["gap"] == 0.078


def test_output_is_never_half_written(
    solver: Install, scenario_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    solver()
    target = tmp_path / "plan.json"
    target.write_text("the old plan")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert main(["solve", str(scenario_file), "-o", str(target)]) == 2
    assert target.read_text() == "the old plan"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.json", "scenario.yaml"]
    captured = capsys.readouterr()
    assert captured.out == "" and "No space left on device" in captured.err


@pytest.mark.parametrize("name", ["absent/plan.json", "."])
def test_output_that_cannot_be_written(
    solver: Install, scenario_file: Path, tmp_path: Path, capsys: Captured, name: str
) -> None:
    solver()
    assert main(["solve", "-q", str(scenario_file), "-o", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1


def test_output_permissions_are_those_of_a_new_file(solver: Install, scenario_file: Path, tmp_path: Path) -> None:
    solver()
    (tmp_path / "plain").write_text("")
    main(["solve", str(scenario_file), "-o", str(tmp_path / "plan.json")])
    assert (tmp_path / "plan.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


# ---------------------------------------------------------------- bad input


def test_bare_solve_and_a_wrong_path_suggest_init(solver: Install, capsys: Captured) -> None:
    solver()
    for command in (["solve"], ["solve", "nowhere.yaml"], ["check"]):
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and "pddplan init" in captured.err
        assert "Traceback" not in captured.err


def test_all_problems_in_one_run_with_their_lines(solver: Install, scenario_file: Path, capsys: Captured) -> None:
    seen = solver()
    text = scenario_file.read_text().replace("nvidia-h20-96g", "nvidia-h20-96").replace("mean: 0.90", "mean: 1.2")
    scenario_file.write_text(text.replace("deepseek-v3.2 ", "deepseek-v9.9 "))
    assert main(["solve", str(scenario_file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and seen.calls == []
    line = 1 + next(i for i, row in enumerate(text.splitlines()) if "nvidia-h20-96," in row)
    assert f"{scenario_file}:{line}: sites[1].chips[0].chip: no chip 'nvidia-h20-96' in the catalogue." in captured.err
    assert "nvidia-h20-96g" in captured.err
    assert "prefix_hit_rate" in captured.err and "deepseek-v9.9" in captured.err


def test_with_json_an_error_is_json_on_stderr(solver: Install, scenario_file: Path, capsys: Captured) -> None:
    solver()
    scenario_file.write_text(scenario_file.read_text().replace("nvidia-h20-96g", "nvidia-h20-96"))
    for command in (["solve", str(scenario_file), "--json"], ["solve", "--json"], ["solve", "--json", "--nope"]):
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        payload = json.loads(captured.err)
        Draft202012Validator(SCHEMAS["error"]).validate(payload)
    main(["solve", str(scenario_file), "--json"])
    error = json.loads(capsys.readouterr().err)["errors"][0]
    assert error["file"] == str(scenario_file) and error["line"] > 1
    assert error["key"] == "sites[1].chips[0].chip" and "h20" in error["fix"]


def test_bad_override(solver: Install, scenario_file: Path, capsys: Captured) -> None:
    solver()
    assert main(["solve", str(scenario_file), "--set", "workload.request_rate=30"]) == 2
    assert "request_rate_per_s" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["solve", "a.yaml", "--nope"],
        ["solve", "a.yaml", "--seed", "x"],
        ["solve", "a.yaml", "--objective", "joy"],
        ["solve", "a.yaml", "--time-limit", "-1"],
        ["solve", "a.yaml", "b.yaml"],
        ["slove"],
        ["hardware", "shwo"],
        ["hardware", "show"],
        ["schema", "--of", "nope"],
    ],
)
def test_usage_errors_are_two_and_one_message(capsys: Captured, arguments: list[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    assert "--help" in captured.err


# ---------------------------------------------------------------- the boundary


def test_an_internal_error_is_three_and_one_line(
    solver: Install, scenario_file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PDDPLAN_DEBUG", raising=False)
    solver(ZeroDivisionError("float\ndivision"))
    assert main(["solve", str(scenario_file)]) == 3
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    assert "internal error: ZeroDivisionError: float division" in captured.err
    monkeypatch.setenv("PDDPLAN_DEBUG", "1")
    assert main(["solve", str(scenario_file)]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_130(solver: Install, scenario_file: Path, tmp_path: Path, capsys: Captured) -> None:
    solver(KeyboardInterrupt())
    assert main(["solve", str(scenario_file), "-o", str(tmp_path / "plan.json")]) == 130
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "Interrupted.\n"
    assert not (tmp_path / "plan.json").exists()
