"""Options that several commands share, so that they read and behave alike."""

from __future__ import annotations

from typing import Annotated

import typer

import pddplan
from pddplan.cli.completion import scenario_files, scenario_keys


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pddplan {pddplan.__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No notes, warnings or progress on stderr.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
ScenarioFile = Annotated[
    str | None,
    typer.Argument(
        metavar="SCENARIO",
        help="Scenario file (YAML or JSON), or - for standard input.",
        autocompletion=scenario_files,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Override a key of the scenario, as workload.request_rate_per_s=30. Repeatable.",
        autocompletion=scenario_keys,
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]


def quiet_of(context: typer.Context, quiet: bool) -> bool:
    """True where -q stands before or after the command's name."""
    root = context.find_root()
    return quiet or bool((root.params or {}).get("quiet"))


def command_group(text: str) -> typer.Typer:
    """Commands under one name, as ``hardware list``."""
    return typer.Typer(rich_markup_mode=None, invoke_without_command=True, callback=_help_if_bare, help=text)


def _help_if_bare(context: typer.Context) -> None:
    """A group without a command shows what it has."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
