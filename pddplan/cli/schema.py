"""``pddplan schema``: the JSON Schema of the scenario, and of what the commands print."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from pddplan.cli.options import Json, Quiet, Version
from pddplan.cli.output import emit_json


class Kind(StrEnum):
    scenario = "scenario"
    plan = "plan"
    comparison = "comparison"
    check = "check"
    simulation = "simulation"
    validation = "validation"
    estimate = "estimate"
    calibration = "calibration"
    chips = "chips"
    chip = "chip"
    chip_check = "chip_check"
    lines = "lines"
    models = "models"
    model = "model"
    import_ = "import"
    init = "init"
    error = "error"


def register(app: typer.Typer) -> None:
    app.command(
        "schema",
        short_help="JSON Schema of the scenario, for editors, or of an answer.",
        epilog="Example: pddplan schema --of scenario > pddplan.schema.json",
    )(schema)


def schema(
    of: Annotated[Kind, typer.Option("--of", metavar="NAME", help=f"Whose schema: {', '.join(Kind)}.")] = Kind.scenario,
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """JSON Schema (draft 2020-12) of the scenario, for editors, or of what a command prints with --json."""
    from pddplan.report.schemas import SCHEMAS

    if of is Kind.scenario:
        from pddplan.spec.schema import scenario_schema

        emit_json(scenario_schema())
    else:
        emit_json(SCHEMAS[of.value])
