"""A user's own model: a card (YAML or JSON), or the config.json of a Hugging Face repository, told apart by content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pddplan.errors import InputError, Problem
from pddplan.llm.cards import parse_card
from pddplan.llm.importer import Imported, import_config
from pddplan.llm.types import LanguageModel
from pddplan.spec.json_source import json_error
from pddplan.spec.yaml_source import Document, Wording, parse_document, read_text

CONFIG = "config.json"
_FROM_HUB = "Take the config.json that lies beside the weights on Hugging Face."
_WORDS = Wording(
    noun="model",
    start=_FROM_HUB,
    folder=f"Name the {CONFIG} inside it.",
    size="A config.json is a few KB: is this the right file?",
    keys="A config.json has keys: model_type, hidden_size, num_hidden_layers.",
    depth="A config.json is 4 deep.",
)
_HUB_FOLDER = re.compile(r"^models--.+--(.+)$")  # of the Hugging Face cache: models--ORG--NAME/snapshots/REVISION
_CONFIG_KEYS = ("model_type", "architectures", "text_config")


def config_path(path: Path) -> Path:
    """The config.json of a folder; a file as it is."""
    return path / CONFIG if path.is_dir() else path


def read_model(path: Path) -> LanguageModel:
    """The model of a card or a config.json. InputError with every problem, its line and key."""
    path = config_path(path)
    document = _document(path)
    if _is_config(document.data, path):
        return _imported(document, model_name(path)).model
    card = parse_card(document.data)
    if isinstance(card, LanguageModel):
        return card
    raise InputError([document.problem(i.where, i.message, i.fix) for i in card])


def read_config(file: str, name: str = "") -> Imported:
    """The card of a config.json (``-``: standard input); ``name`` instead of what the path says."""
    path = Path(file) if file == "-" else config_path(Path(file))
    document = _document(path)
    if "groups" in document.data and not any(key in document.data for key in _CONFIG_KEYS):
        fix = f"Use it as it is, model: {path}, or look at it with: pddplan model show {path}"
        raise InputError(Problem("is a model card already.", file=document.file, fix=fix))
    return _imported(document, name or model_name(path))


def model_name(path: Path) -> str:
    """What a file's model is called: the file, or for a config.json its folder or its repository in a cache."""
    if str(path) == "-":
        return "model"
    if path.name != CONFIG:
        return path.stem
    folder = path.resolve().parent
    hub = next((m[1] for p in folder.parents if (m := _HUB_FOLDER.match(p.name))), "")
    return hub or folder.name or "model"


def _document(path: Path) -> Document:
    text, file = read_text(path, _WORDS)
    if path.suffix.lower() == ".json" and text.strip() and (error := json_error(text)):
        raise InputError(Problem(f"is not valid JSON: {error[0]}.", file=file, line=error[1], fix=_FROM_HUB))
    document = parse_document(text, file, _WORDS)
    if document.problems:
        raise InputError(document.problems)
    return document


def _is_config(data: Mapping[str, Any], path: Path) -> bool:
    if "schema" in data or "groups" in data:
        return False
    return path.suffix.lower() == ".json" or any(key in data for key in _CONFIG_KEYS)


def _imported(document: Document, name: str) -> Imported:
    found = import_config(document.data, name, document.file)
    if isinstance(found, Imported):
        return found
    raise InputError([document.problem(i.where, i.message, i.fix) for i in found])
