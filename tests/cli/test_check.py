"""``pddplan check``: many files, the worst exit code, JSON, JUnit."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.report.schemas import SCHEMAS
from tests.cli.test_solve import Captured, Install
from tests.report import plans


@pytest.fixture
def bad_file(tmp_path: Path, scenario_file: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text(scenario_file.read_text().replace("request_rate_per_s", "request_rate"))
    return path


@pytest.mark.parametrize(("answer", "code"), [(None, 0), (plans.infeasible(), 1), (plans.unknown(), 3)])
def test_code_of_one_file(solver: Install, scenario_file: Path, capsys: Captured, answer: Any, code: int) -> None:
    solver(answer)
    assert main(["check", str(scenario_file)]) == code
    assert main(["check", str(scenario_file), "--json"]) == code
    lines = capsys.readouterr().out
    payload = json.loads(lines[lines.index("{") :])
    Draft202012Validator(SCHEMAS["check"]).validate(payload)
    assert [s["path"] for s in payload["scenarios"]] == [str(scenario_file)]


def test_the_worst_code_counts(solver: Install, scenario_file: Path, bad_file: Path, capsys: Captured) -> None:
    solver(plans.infeasible())
    assert main(["check", str(bad_file), str(scenario_file)]) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].startswith("ERROR ")
    assert captured.out.splitlines()[1].startswith("INFEASIBLE")
    assert "request_rate_per_s" in captured.err
    solver(plans.unknown())
    assert main(["check", str(bad_file), str(scenario_file)]) == 3


def test_json_stdout_is_empty_on_two(solver: Install, scenario_file: Path, bad_file: Path, capsys: Captured) -> None:
    solver()
    assert main(["check", str(scenario_file), str(bad_file), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    Draft202012Validator(SCHEMAS["error"]).validate(json.loads(captured.err))


def test_json_without_problems_leaves_stderr_empty(solver: Install, scenario_file: Path, capsys: Captured) -> None:
    solver()
    assert main(["check", str(scenario_file), "--json", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_junit(solver: Install, scenario_file: Path, bad_file: Path, tmp_path: Path) -> None:
    solver(plans.infeasible())
    report = tmp_path / "report.xml"
    assert main(["check", str(scenario_file), str(bad_file), "--junit", str(report)]) == 2
    suite = ElementTree.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "1")
    assert [case.get("name") for case in suite.findall("testcase")] == [str(scenario_file), str(bad_file)]


def test_set_applies_to_every_file(solver: Install, scenario_file: Path) -> None:
    seen = solver()
    main(["check", str(scenario_file), str(scenario_file), "--set", "workload.request_rate_per_s=3"])
    assert [s.workload.request_rate_per_s for s, _ in seen.calls] == [3, 3]
