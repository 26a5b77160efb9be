"""``pddplan solve``: the cheapest plan, and why."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pddplan.cli.options import Json, Overrides, Quiet, ScenarioFile, Seed, Version, quiet_of
from pddplan.cli.output import emit, emit_json, note, text_width, to_json, write_atomically

if TYPE_CHECKING:
    from pddplan.plan.records import PlanResult
    from pddplan.plan.verified import Verified
    from pddplan.spec.types import Scenario

EXIT_OF_STATUS = {"feasible": 0, "infeasible": 1, "unknown": 3}


class ObjectiveName(StrEnum):
    cost = "cost"
    goodput = "goodput"
    profit = "profit"


def register(app: typer.Typer) -> None:
    app.command(
        "solve",
        short_help="The cheapest plan that holds the SLO, proven optimal, with why.",
        epilog="Example: pddplan solve scenario.yaml --set workload.request_rate_per_s=20 -o plan.json",
    )(solve)


def solve(
    context: typer.Context,
    scenario: ScenarioFile = None,
    overrides: Overrides = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Keep the plan's JSON in FILE.")
    ] = None,
    as_json: Json = False,
    explain: Annotated[bool, typer.Option("--explain", help="List every assumption with its source.")] = False,
    objective: Annotated[
        ObjectiveName | None, typer.Option("--objective", help="Instead of the scenario's own objective.")
    ] = None,
    seed: Seed = 0,
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", min=0.1, metavar="SECONDS", help="Stop then, with the best plan found; exit 3."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", min=1, metavar="N", help="With up to N - 1 other kinds of plan within 5 % of its cost."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Simulate the plan, and solve again where that breaks a limit.")
    ] = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """The cheapest plan that holds the SLO, proven optimal, with why.

    Exit code 0: feasible; 1: infeasible, with the nearest fix; 2: bad input; 3: time limit without a proven plan.
    """
    from pddplan.cli.scenario import required_path
    from pddplan.report.plan_json import plan_payload

    # With --json the notes are in the payload, and stderr stays free for an error that a program reads.
    quiet = quiet_of(context, quiet) or as_json
    path, goal = required_path(scenario, "solve"), objective.value if objective else None
    loaded, result = solve_file(
        path, list(overrides or ()), seed, quiet, time_limit_s=time_limit, objective=goal, top=top
    )
    for warning in result.warnings:
        note(f"note: {warning}", quiet=quiet)
    checked = _verified(loaded, result, seed, quiet) if verify else None
    if checked is not None:
        result = replace(checked.result, warnings=result.warnings)
    payload = plan_payload(result)
    if checked is not None:
        from pddplan.report.verified_report import verification_payload

        payload["verification"] = verification_payload(checked)
    if output is not None:
        write_atomically(output, to_json(payload) + "\n")
    if as_json:
        emit_json(payload)
    else:
        print_plan(loaded, result, explain=explain)
        if checked is not None:
            from pddplan.report.verified_report import render_verified

            emit("\n" + render_verified(checked, text_width()))
    raise typer.Exit(EXIT_OF_STATUS[result.status])


def _verified(scenario: Scenario, result: PlanResult, seed: int, quiet: bool) -> Verified:
    """The plan simulated, on standard error what takes time."""
    from pddplan.cli.progress import ProgressBar
    from pddplan.cli.simulate import tell_speed
    from pddplan.plan.verified import verify

    tell_speed(quiet)
    with ProgressBar("Verifying", quiet=quiet) as bar:
        return verify(scenario, result, seed, bar.share)


def solve_file(
    path: str,
    overrides: list[str],
    seed: int,
    quiet: bool,
    *,
    time_limit_s: float | None = None,
    objective: str | None = None,
    top: int | None = None,
) -> tuple[Scenario, PlanResult]:
    """Load and solve one file; ``check`` and ``solve`` share this path."""
    from pddplan.cli.progress import ProgressBar
    from pddplan.cli.scenario import read_scenario

    loaded, load_s = read_scenario(path, overrides, objective)
    # Only now: a file with a mistake is answered before the solver is loaded.
    from pddplan.plan.solve import solve as find_plan

    asked: dict[str, Any] = {} if time_limit_s is None else {"time_limit_s": time_limit_s}
    if top is not None:
        asked["top"] = top
    with ProgressBar("Solving", quiet=quiet) as progress:
        result = find_plan(loaded, seed=seed, progress=progress, **asked)
    warnings = tuple(dict.fromkeys((*loaded.warnings, *result.warnings)))
    return loaded, replace(result, timing_s={**result.timing_s, "load": load_s}, warnings=warnings)


def print_plan(scenario: Scenario, result: PlanResult, *, explain: bool) -> None:
    """The plan as text; coloured on a terminal."""
    import sys

    from pddplan.cli.output import is_rich_terminal
    from pddplan.report.plan_text import render_plan

    text = render_plan(result, scenario, width=text_width(), explain=explain)
    if is_rich_terminal(sys.stdout):
        from pddplan.report.colour import print_coloured

        print_coloured(text)
    else:
        emit(text)
