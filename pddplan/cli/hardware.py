"""``pddplan hardware``: the chips of the catalogue, and the lines between sites."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pddplan.cli.completion import chip_names, scenario_files
from pddplan.cli.options import Json, Quiet, Version, command_group
from pddplan.cli.output import emit, emit_json, text_width
from pddplan.errors import InputError

if TYPE_CHECKING:
    from pddplan.spec.types import Chip


def register(app: typer.Typer) -> None:
    group = command_group("Chips and lines: list, show, add.")
    group.command(
        "list", epilog='Example: pddplan hardware list --dtype fp8 --where "memory_gb>=96" --sort memory_gb_per_s'
    )(list_chips)
    group.command("show", epilog="Example: pddplan hardware show h20 --against h800")(show_chip)
    group.command("add", epilog="Example: pddplan hardware add mychip.yaml")(add_chip)
    app.add_typer(group, name="hardware")


def list_chips(
    vendor: Annotated[
        list[str] | None, typer.Option("--vendor", metavar="NAME", help="Only this vendor's. Repeatable: any of them.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", metavar="TYPE", help="Only with a peak in bf16, fp16, fp8, int8 or fp4. Repeatable."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY>=NUMBER",
            help='Only where it holds, as "memory_gb>=96"; >, <, <=, = too. Keys as in a chip file. Repeatable.',
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort", metavar="KEY", help="Order by it: numbers from the largest, prices and watts from the smallest."
        ),
    ] = "vendor",
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    plannable: Annotated[bool, typer.Option("--plannable", help="Without the incomplete ones.")] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Instead: lines between sites, their prices, what is taken by default.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """All chips of the catalogue: the four dimensions, price, aliases; those that lack one, with what is missing."""
    if lines:
        if vendor or dtype or where or plannable or reverse or sort != "vendor":
            raise typer.BadParameter(
                "lines aren't filtered or sorted: leave the other options out", param_hint="--lines"
            )
        _list_lines(as_json)
        return
    from pddplan.report.chip_list_table import render_chip_list
    from pddplan.report.chips_json import chips_payload
    from pddplan.spec.catalogue import catalogue_date
    from pddplan.spec.chip_list import chip_summaries, read_condition, select_chips, sort_chips

    conditions = [read_condition(text) for text in where or ()]
    everything = chip_summaries()
    chosen = select_chips(
        everything, vendors=vendor or (), dtypes=dtype or (), conditions=conditions, plannable=plannable
    )
    rows = sort_chips(chosen, sort, reverse=reverse)
    if as_json:
        emit_json(chips_payload(rows, catalogue_date()))
    else:
        asked = (sort.lower(), *(f"{d.lower()}_tflops" for d in dtype or ()), *(c.key for c in conditions))
        emit(render_chip_list(rows, text_width(), asked=asked, total=len(everything)))


def _list_lines(as_json: bool) -> None:
    from pddplan.report.lines_table import lines_payload, render_lines
    from pddplan.spec.catalogue import link_defaults

    if as_json:
        emit_json(lines_payload(link_defaults()))
    else:
        emit(render_lines(link_defaults(), text_width()))


def show_chip(
    chip: Annotated[
        str,
        typer.Argument(metavar="CHIP", help="Id, alias or another tool's name, as h20.", autocompletion=chip_names),
    ],
    against: Annotated[
        str,
        typer.Option("--against", metavar="CHIP", help="The chip to compare with.", autocompletion=chip_names),
    ] = "h100",
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """One chip: its four dimensions against another chip's, each number with source and confidence."""
    from pddplan.report.chip_sheet import render_chip
    from pddplan.report.chips_json import chip_payload
    from pddplan.spec.catalogue import load_chip

    found, reference = load_chip(chip), _reference(against)
    if as_json:
        emit_json(chip_payload(found, reference))
    else:
        emit(render_chip(found, reference, text_width()))


def _reference(name: str) -> Chip:
    """The chip of ``--against``; what is wrong with its name is said of the option, not of the chip shown."""
    from pddplan.spec.catalogue import load_chip

    try:
        return load_chip(name)
    except InputError as error:
        here = "pddplan hardware show"
        raise InputError([p if p.file else replace(p, file=here, key="--against") for p in error.problems]) from None


def add_chip(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A chip's file, or - for standard input.", autocompletion=scenario_files),
    ],
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """Looks a new chip's file over: what is missing, and what is implausible against its class. Writes nothing.

    Four numbers suffice: bf16_tflops (or another format's), memory_gb, memory_gb_per_s, interconnect_gb_per_s.
    """
    from pddplan.report.chip_check_report import chip_check_payload, render_chip_check
    from pddplan.spec.chip_check import check_chip_file

    check = check_chip_file(file)
    if as_json:
        emit_json(chip_check_payload(check))
    else:
        emit(render_chip_check(check, text_width()))
