"""``pddplan check``: does a plan hold? For CI: many files, the worst exit code, JUnit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pddplan.cli.completion import scenario_files
from pddplan.cli.options import Json, Overrides, Quiet, Seed, Version, quiet_of
from pddplan.cli.output import emit, emit_json, note, write_atomically

if TYPE_CHECKING:
    from pddplan.report.check_report import Verdict

EXIT_OF_STATUS = {"feasible": 0, "infeasible": 1, "error": 2, "unknown": 3}


def register(app: typer.Typer) -> None:
    app.command(
        "check",
        short_help="For CI: is there a plan that holds? Many files, worst exit code, JUnit.",
        epilog="Example: pddplan check plans/*.yaml --junit results.xml",
    )(check)


def check(
    context: typer.Context,
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCENARIO...", help="Scenario files, or - for standard input.", autocompletion=scenario_files
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
    junit: Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit report.")] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """For CI: is there a plan that holds the SLO? One line a file; the worst exit code of all files.

    Exit code 0: all feasible; 1: one infeasible; 2: one can't be read; 3: one without a proven answer.
    """
    from pddplan.cli.problems import report_problems
    from pddplan.cli.scenario import required_path
    from pddplan.report.check_report import check_payload, junit_xml, render_verdict

    quiet = quiet_of(context, quiet) or as_json
    paths = scenarios or [required_path(None, "check")]
    verdicts = [_judge(path, list(overrides or ()), seed, quiet) for path in paths]
    code = max(EXIT_OF_STATUS[v.status] for v in verdicts)
    if junit is not None:
        write_atomically(junit, junit_xml(verdicts))
    problems = [p for v in verdicts for p in v.problems]
    if problems:
        report_problems(problems, as_json=as_json)
    # stdout stays empty on exit 2, whatever the other files gave: a program sees one or the other.
    if as_json and code != EXIT_OF_STATUS["error"]:
        emit_json(check_payload(verdicts))
    elif not as_json:
        for verdict in verdicts:
            emit(render_verdict(verdict))
    raise typer.Exit(code)


def _judge(path: str, overrides: list[str], seed: int, quiet: bool) -> Verdict:
    from pddplan.cli.solve import solve_file
    from pddplan.errors import InputError
    from pddplan.report.check_report import Verdict

    try:
        _, result = solve_file(path, overrides, seed, quiet)
    except InputError as error:
        return Verdict(path, "error", None, tuple(error.problems))
    for warning in result.warnings:
        note(f"note: {path}: {warning}", quiet=quiet)
    return Verdict(path, result.status, result, ())
