"""``pddplan model``: the language models of the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

from pddplan.cli.options import Json, Quiet, Version, command_group
from pddplan.cli.output import emit, emit_json, text_width


def register(app: typer.Typer) -> None:
    group = command_group("Language models: list, show.")
    group.command("list", epilog="Example: pddplan model list --json")(list_models)
    group.command("show", epilog="Example: pddplan model show deepseek-v3.2")(show_model)
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
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Id, alias, Hugging Face name or a card's path.")],
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
