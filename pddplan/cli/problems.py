"""Problems of an input on stderr: one message each, or one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pddplan.cli.output import emit_json, tell
from pddplan.errors import Problem
from pddplan.report.error_json import error_payload


def report_problems(problems: Iterable[Problem], *, as_json: bool) -> None:
    if as_json:
        emit_json(error_payload(problems), sys.stderr)
        return
    for problem in problems:
        tell(str(problem))
