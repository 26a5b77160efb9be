"""``pddplan init``: a scenario to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pddplan.cli.options import Json, Quiet, Version, quiet_of
from pddplan.cli.output import emit, emit_json, note, write_atomically
from pddplan.errors import InputError, Problem

NAME = "scenario.yaml"


def register(app: typer.Typer) -> None:
    app.command(
        "init",
        short_help="Write a commented scenario to start from.",
        epilog="Example: pddplan init && pddplan solve scenario.yaml",
    )(init)


def init(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder for scenario.yaml; made if absent.")] = ".",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a scenario.yaml that is there.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """Write a commented scenario to start from: DIR/scenario.yaml."""
    from pddplan.spec.starter import starter_text

    target = Path(folder) / NAME
    if target.exists() and not force:
        raise InputError(Problem("exists already.", file=str(target), fix="Use --force to overwrite it."))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(Problem(f"can't be made: {reason}.", file=folder, fix="Name another folder.")) from error
    write_atomically(str(target), starter_text())
    if as_json:
        emit_json({"schema": "pddplan.init/1", "file": str(target)})
        return
    emit(f"Wrote {target}.")
    note(f"Next: pddplan solve {target}", quiet=quiet_of(context, quiet))
