"""``pddplan model``: the language models of the catalogue, and cards from config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pddplan.cli.completion import config_files, model_names
from pddplan.cli.options import Json, Quiet, Version, command_group, quiet_of
from pddplan.cli.output import emit, emit_json, note, text_width, write_atomically
from pddplan.errors import InputError, Problem


def register(app: typer.Typer) -> None:
    group = command_group("Language models: list, show, import.")
    group.command("list", epilog="Example: pddplan model list --json")(list_models)
    group.command("show", epilog="Example: pddplan model show deepseek-v3.2")(show_model)
    group.command("import", epilog="Example: pddplan model import config.json -o my-model.yaml")(import_model)
    app.add_typer(group, name="model")


def list_models(as_json: Json = False, quiet: Quiet = False, version: Version = False) -> None:
    """All models of the catalogue: parameters, KV cache per token, weights."""
    from pddplan.llm.catalogue import load_model, model_ids
    from pddplan.llm.describe import describe
    from pddplan.report.models_report import models_payload, render_model_list

    facts = [describe(load_model(name)) for name in model_ids()]
    if as_json:
        emit_json(models_payload(facts))
    else:
        emit(render_model_list(facts, text_width()))


def show_model(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Id, alias, Hugging Face name, or path of a card or config.json.",
            autocompletion=model_names,
        ),
    ],
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """One model: layers, parameters, KV cache by length, weight bytes by format, sources."""
    from pddplan.llm.catalogue import load_model
    from pddplan.llm.describe import describe
    from pddplan.report.models_report import model_payload, render_model

    found = load_model(model)
    if as_json:
        emit_json(model_payload(describe(found)))
    else:
        emit(render_model(describe(found), found, text_width()))


def import_model(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="config.json, its folder, or - for standard input.", autocompletion=config_files
        ),
    ],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="CARD", help="Write the card there; as JSON where it ends so.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Name of the model; else that of the file or its folder.")] = "",
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """Make a model card from a Hugging Face config.json, offline.

    The card is what 'model show' and a scenario's 'model:' take. Both take the config.json itself, too.
    """
    from pddplan.llm.card_text import card_json, card_yaml
    from pddplan.llm.model_file import config_path, read_config
    from pddplan.report.models_report import import_payload

    found = read_config(file, name)
    if output and file != "-" and Path(output).exists() and Path(output).samefile(config_path(Path(file))):
        raise InputError(Problem("would be overwritten by its own card.", file=output, fix="Give -o another name."))
    if output:
        write_atomically(output, card_json(found.card) if output.lower().endswith(".json") else card_yaml(found.card))
    if as_json:
        emit_json(import_payload(found, output or None))
        return
    silent = quiet_of(context, quiet)
    for text in found.notes:
        note(text, quiet=silent)
    if output:
        emit(f"Wrote {output}.")
        note(f"Next: pddplan model show {output}", quiet=silent)
    else:
        emit(card_yaml(found.card).rstrip("\n"))
