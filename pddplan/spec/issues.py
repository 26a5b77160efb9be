"""What a value parser found wrong, before its place in the file is known; and paths of keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
LONGEST_NAME = 200  # characters of any text in a scenario


@dataclass(frozen=True)
class Issue:
    """One thing wrong with a value; ``where`` is the path below the value that was parsed."""

    message: str
    fix: str = ""
    where: KeyPath = ()


def format_key(path: Sequence[str | int]) -> str:
    """``("sites", 0, "name")`` -> ``sites[0].name``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if part.isprintable() else repr(part)[1:-1]
            name = name if len(name) <= 60 else f"{name[:57]}..."
            text += f".{name}" if text else name
    return text


def closest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The most similar of ``words``, None when nothing is similar."""
    lowered = {w.lower(): w for w in words}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=cutoff)
    return lowered[found[0]] if found else None


def shown(value: object, limit: int = 40) -> str:
    """A value as the message quotes it: YAML words for true/false/null, cut when long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, float):
        return f"{value:g}"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
