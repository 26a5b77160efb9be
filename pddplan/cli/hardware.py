"""``pddplan hardware``: the chips of the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

from pddplan.cli.options import Json, Quiet, Version, command_group
from pddplan.cli.output import emit, emit_json, text_width


def register(app: typer.Typer) -> None:
    group = command_group("Chips: list, show.")
    group.command("list", epilog="Example: pddplan hardware list --json")(list_chips)
    group.command("show", epilog="Example: pddplan hardware show h20 --against h800")(show_chip)
    app.add_typer(group, name="hardware")


def list_chips(as_json: Json = False, quiet: Quiet = False, version: Version = False) -> None:
    """All chips of the catalogue: the four dimensions, price, aliases."""
    from pddplan.report.chips_json import chips_payload
    from pddplan.report.hardware_table import render_chip_list
    from pddplan.spec.catalogue import catalogue_date, chip_summaries

    rows = chip_summaries()
    if as_json:
        emit_json(chips_payload(rows, catalogue_date()))
    else:
        emit(render_chip_list(rows, text_width()))


def show_chip(
    chip: Annotated[str, typer.Argument(metavar="CHIP", help="Id or alias, as h20.")],
    against: Annotated[str, typer.Option("--against", metavar="CHIP", help="The chip to compare with.")] = "h800",
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """One chip: its four dimensions against another chip's, each number with source and confidence."""
    from pddplan.report.chips_json import chip_payload
    from pddplan.report.hardware_table import render_chip
    from pddplan.spec.catalogue import load_chip

    found = load_chip(chip)
    if as_json:
        emit_json(chip_payload(found))
    else:
        emit(render_chip(found, load_chip(against), text_width()))
