"""Verdicts as lines, as JSON and as JUnit."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from jsonschema import Draft202012Validator

from pddplan.errors import Problem
from pddplan.report.check_report import Verdict, check_payload, junit_xml, render_verdict
from pddplan.report.error_json import error_payload
from pddplan.report.schemas import SCHEMAS
from tests.report import plans

PROBLEM = Problem("no chip 'h2O' <here> & \x07 there.", "sites[0].chips[0].chip", "c.yaml", 14, "Closest: h20.")
VERDICTS = (
    Verdict("a.yaml", "feasible", plans.feasible(), ()),
    Verdict("b.yaml", "infeasible", plans.infeasible(), ()),
    Verdict("c.yaml", "error", None, (PROBLEM,)),
    Verdict("d.yaml", "unknown", plans.unknown(), ()),
)


def test_lines() -> None:
    assert [render_verdict(v) for v in VERDICTS] == [
        "FEASIBLE    a.yaml  $163.8/h  binds: TPOT p90 (slack 0.8 %)",
        "INFEASIBLE  b.yaml  line capacity (north to west) 32.8, limit 9.00 Gbit/s. "
        "Nearest fix: Offer the 100 Gbit/s tier.",
        "ERROR       c.yaml  1 problem",
        "UNKNOWN     d.yaml  $163.8/h  not proven: gap 7.8 %",
    ]


def test_json_validates() -> None:
    payload = check_payload(VERDICTS)
    Draft202012Validator(SCHEMAS["check"]).validate(payload)
    feasible, infeasible, bad, _ = payload["scenarios"]
    assert feasible["usd_per_hour"] == 163.8 and feasible["slo"] and feasible["binding"]
    assert infeasible["usd_per_hour"] is None and infeasible["reasons"][0]["constraint"] == "line_capacity"
    assert bad["problems"][0]["line"] == 14


def test_junit_counts_and_texts() -> None:
    root = ElementTree.fromstring(junit_xml(VERDICTS))
    suite = root[0]
    assert root.tag == "testsuites"
    assert {k: suite.get(k) for k in ("tests", "failures", "errors")} == {"tests": "4", "failures": "1", "errors": "2"}
    good, failed, bad, open_ = suite.findall("testcase")
    assert good.find("failure") is None and good.find("error") is None
    failure = failed.find("failure")
    assert failure is not None and "line capacity" in (failure.get("message") or "")
    error = bad.find("error")
    assert error is not None and "no chip 'h2O' <here> & � there." in (error.text or "")
    assert open_.find("error") is not None


def test_error_payload() -> None:
    payload = error_payload([PROBLEM, Problem("empty.")])
    Draft202012Validator(SCHEMAS["error"]).validate(payload)
    assert payload["errors"][1] == {"file": None, "line": None, "key": None, "message": "empty.", "fix": None}
