"""``pddplan compare``: the same demand under each architecture."""

from __future__ import annotations

from typing import Annotated

import typer

from pddplan.cli.options import Json, Overrides, Quiet, ScenarioFile, Seed, Version, quiet_of
from pddplan.cli.output import emit, emit_json, note, text_width, to_json, write_atomically

SECONDS_EACH = 20.0


def register(app: typer.Typer) -> None:
    app.command(
        "compare",
        short_help="The same demand under each architecture: split it, or not?",
        epilog="Example: pddplan compare scenario.yaml --set workload.request_rate_per_s=20",
    )(compare)


def compare(
    context: typer.Context,
    scenario: ScenarioFile = None,
    overrides: Overrides = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Keep the comparison's JSON in FILE.")
    ] = None,
    as_json: Json = False,
    seed: Seed = 0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=0.1, metavar="SECONDS", help="For each architecture.")
    ] = SECONDS_EACH,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """The same demand under each architecture, side by side: one pool, prefill and decode apart in one site, over a
    line, with a cache at main decode, with a relay, with a filter. Says which to build, and at which price that turns.

    Roles and pinned counts of the scenario are lifted. Exit code 0 whatever it finds; 2: bad input.
    """
    from pddplan.cli.progress import ProgressBar
    from pddplan.cli.scenario import read_scenario, required_path

    quiet = quiet_of(context, quiet) or as_json
    loaded, _ = read_scenario(required_path(scenario, "compare"), list(overrides or ()), "cost")
    from pddplan.plan.compare import compare as compared
    from pddplan.report.compare_json import comparison_payload
    from pddplan.report.compare_text import render_comparison

    for warning in loaded.warnings:
        note(f"note: {warning}", quiet=quiet)
    with ProgressBar("Comparing", quiet=quiet) as progress:
        made = compared(loaded, seed=seed, time_limit_s=time_limit, progress=progress)
    payload = comparison_payload(made)
    if output is not None:
        write_atomically(output, to_json(payload) + "\n")
    if as_json:
        emit_json(payload)
    else:
        emit(render_comparison(made, width=text_width()))
