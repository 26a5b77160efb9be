"""Bad input as ``pddplan.error/1``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pddplan.errors import Problem


def error_payload(problems: Iterable[Problem]) -> dict[str, Any]:
    return {"schema": "pddplan.error/1", "errors": [problem_payload(p) for p in problems]}


def problem_payload(problem: Problem) -> dict[str, Any]:
    """Keys without a value are null, so that a program can tell "" from "not known"."""
    return {
        "file": problem.file or None,
        "line": problem.line,
        "key": problem.key or None,
        "message": problem.message,
        "fix": problem.fix or None,
    }
