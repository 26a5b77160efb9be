"""The catalogue of models: cards by id, alias or Hugging Face name; and the user's own by path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from pddplan.errors import InputError, Problem
from pddplan.llm.cards import parse_card
from pddplan.llm.types import LanguageModel
from pddplan.spec.issues import Issue, format_key

_SUFFIX = re.compile(r"-(fp8|fp4|nvfp4|bf16|instruct|chat|it|hf)$")
_CARD = ".yaml"
_PATHS = ("./", "../", "/")
_FILES = (".yaml", ".yml", ".json")


def _folder() -> Path:
    return Path(str(resources.files("pddplan.llm"))) / "cards"


def _read(path: Path) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text("utf-8"), Loader=loader)


@lru_cache(maxsize=1)
def model_ids() -> tuple[str, ...]:
    """Ids of all cards, sorted; from the file names, no card is read."""
    return tuple(sorted(p.stem for p in _folder().glob(f"*{_CARD}")))


@lru_cache(maxsize=1)
def _aliases() -> Mapping[str, tuple[str, ...]]:
    data: dict[str, list[str]] = _read(_folder().parent / "aliases.yaml")
    return {model: tuple(names) for model, names in data.items()}


def plain_name(name: str) -> str:
    """A name as the index knows it: after the last ``/``, lower case, without ``Meta-`` and format suffixes.

    ``meta-llama/Meta-Llama-3.1-70B-Instruct-FP8`` -> ``llama-3.1-70b``.
    """
    text = name.strip().rsplit("/", 1)[-1].lower().removeprefix("meta-")
    while (shorter := _SUFFIX.sub("", text)) != text:
        text = shorter
    return text


@lru_cache(maxsize=1)
def _index() -> Mapping[str, str]:
    """Plain name or alias -> id; ids win over aliases."""
    index = {plain_name(alias): model for model, names in _aliases().items() for alias in names}
    return index | {plain_name(model): model for model in model_ids()}


def find_model(name: str) -> str | None:
    """Id of the card that ``name`` (id, alias, Hugging Face name) means, None where there is none."""
    return name if name in model_ids() else _index().get(plain_name(name))


def closest_models(name: str) -> list[str]:
    """Up to three ids whose name or alias is nearest to ``name``, best first; may be empty."""
    near = difflib.get_close_matches(plain_name(name), list(_index()), n=6, cutoff=0.5)
    return list(dict.fromkeys(_index()[n] for n in near))[:3]


def _problems(issues: list[Issue], file: str) -> InputError:
    return InputError([Problem(i.message, key=format_key(i.where), file=file, fix=i.fix) for i in issues])


@lru_cache(maxsize=64)
def _catalogue_model(model: str) -> LanguageModel:
    path = _folder() / f"{model}{_CARD}"
    card = parse_card(_read(path), _aliases().get(model, ()))
    if isinstance(card, LanguageModel):
        return card
    raise _problems(card, str(path))


def load_model(name: str, base_dir: str = ".") -> LanguageModel:
    """The model of a catalogue id, alias or Hugging Face name, or of a path relative to ``base_dir``.

    A path names a card, a config.json or its folder; one that starts with ``./``, ``../`` or ``/`` is never looked up
    in the catalogue. InputError, with what would be right, for an unknown name, a missing file or a wrong card.
    """
    known = None if name.startswith(_PATHS) else find_model(name)
    if known is not None:
        return _catalogue_model(known)
    path = Path(base_dir, name)
    if path.exists():
        from pddplan.llm.model_file import read_model

        return read_model(path)
    if name.startswith(_PATHS) or name.lower().endswith(_FILES):
        raise InputError(Problem(f"no model card {name!r}: {path} is not a file.", key="model", fix=_listing(name)))
    raise InputError(Problem(f"no model {name!r} in the catalogue.", key="model", fix=_listing(name)))


def _listing(name: str) -> str:
    near = closest_models(re.sub(r"\.(yaml|yml|json)$", "", name))
    return f"Closest: {', '.join(near)}." if near else "All models: pddplan model list"
