"""Verdicts of ``check``: one line each, ``pddplan.check/1`` and JUnit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pddplan.errors import Problem
from pddplan.report.error_json import problem_payload
from pddplan.report.excuses import excuse_text, worded
from pddplan.report.figures import constraint_name, percent, price
from pddplan.report.plan_json import binding_payload, excuse_payload, finite, fix_payload, slo_payload

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from pddplan.plan.records import PlanResult

# XML 1.0 has no way to write these, not even escaped.
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Verdict:
    """What became of one scenario file; ``result`` is None where the file couldn't be used."""

    path: str
    status: Literal["feasible", "infeasible", "unknown", "error"]
    result: PlanResult | None
    problems: tuple[Problem, ...]


def render_verdict(verdict: Verdict) -> str:
    """``FEASIBLE    plans/a.yaml  $163.8/h  binds: TPOT p90 (slack 0.8 %)``."""
    return "  ".join(part for part in (verdict.status.upper().ljust(10), verdict.path, reason(verdict)) if part)


def reason(verdict: Verdict) -> str:
    """The cost and what binds, or why there is no plan and what would give one."""
    result = verdict.result
    if result is None:
        return f"{len(verdict.problems)} problem{'' if len(verdict.problems) == 1 else 's'}"
    if result.status == "infeasible":
        why = "; ".join(excuse_text(e) for e in result.excuses) or "no plan holds"
        return f"{why}. Nearest fix: {worded(result.fixes[0].what, result.excuses)}" if result.fixes else why
    if result.cost is None:
        return "no plan found within the time limit"
    cost = price(result.cost.usd_per_hour, result.cny_per_usd, "/h")
    if result.status == "unknown":
        return f"{cost}  not proven: gap {percent(result.gap)}"
    if not result.binding:
        return cost
    first = result.binding[0]
    return f"{cost}  binds: {worded(constraint_name(first.constraint))} (slack {percent(first.slack)})"


def check_payload(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {"schema": "pddplan.check/1", "scenarios": [verdict_payload(v) for v in verdicts]}


def verdict_payload(verdict: Verdict) -> dict[str, Any]:
    result = verdict.result
    evaluation = result.evaluation if result else None
    return {
        "path": verdict.path,
        "status": verdict.status,
        "usd_per_hour": finite(result.cost.usd_per_hour) if result and result.cost else None,
        "slo": [slo_payload(value) for value in evaluation.slo] if evaluation else [],
        "binding": binding_payload(result) if result else [],
        "reasons": [excuse_payload(e) for e in result.excuses] if result else [],
        "fixes": [fix_payload(f) for f in result.fixes] if result else [],
        "problems": [problem_payload(p) for p in verdict.problems],
    }


def junit_xml(verdicts: Sequence[Verdict]) -> str:
    """One test case a file: infeasible is a failure; bad input, or no proven answer, an error."""
    from xml.etree.ElementTree import Element, SubElement, indent, tostring

    suite = Element("testsuite", name="pddplan check", tests=str(len(verdicts)))
    suite.set("failures", str(sum(v.status == "infeasible" for v in verdicts)))
    suite.set("errors", str(sum(v.status in ("error", "unknown") for v in verdicts)))
    suite.set("skipped", "0")
    suite.set("time", f"{sum(_time_s(v) for v in verdicts):.3f}")
    for verdict in verdicts:
        case = SubElement(suite, "testcase", classname="pddplan.check", name=_clean(verdict.path))
        case.set("time", f"{_time_s(verdict):.3f}")
        _add_outcome(case, verdict)
    root = Element("testsuites", suite.attrib)
    root.append(suite)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _add_outcome(case: Element, verdict: Verdict) -> None:
    from xml.etree.ElementTree import SubElement

    text = _clean("\n".join(str(p) for p in verdict.problems) or reason(verdict))
    if verdict.status == "feasible":
        SubElement(case, "system-out").text = text
        return
    kind = "failure" if verdict.status == "infeasible" else "error"
    SubElement(case, kind, type=verdict.status, message=_clean(reason(verdict))).text = text


def _time_s(verdict: Verdict) -> float:
    return sum(verdict.result.timing_s.values()) if verdict.result else 0.0


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("�", text)
