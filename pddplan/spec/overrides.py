"""``--set key.path=value``: changes the plain data of a scenario before it is checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pddplan.errors import InputError, Problem
from pddplan.spec.issues import KeyPath, format_key, shown
from pddplan.spec.money import VARIANTS
from pddplan.spec.yaml_source import Document, parse_document

FILE = "--set"
_PART = re.compile(r"([^.\[\]]+)|\[([^\[\]]*)\]")
_SHORT_FORMS = {"engine": "name"}  # `engine: sglang` is {name: sglang}
_MAX_PARTS = 20


def apply_overrides(document: Document, overrides: Sequence[str]) -> list[Problem]:
    """Apply in order, in place; returns what is wrong with those that can't be applied."""
    return [problem for text in overrides if (problem := _apply(document, text)) is not None]


def _apply(document: Document, text: str) -> Problem | None:
    key, sign, value_text = text.partition("=")
    key = key.strip()
    parts = _split(key)
    if not sign or not parts:
        return Problem(f"{shown(text)} is not key=value.", key, FILE, fix="Write --set workload.request_rate_per_s=30")
    value = _value(value_text, key)
    if isinstance(value, Problem):
        return value
    return _set(document, parts, value, key)


def _split(key: str) -> list[str]:
    """``sites[0].chips.1.max`` -> sites, 0, chips, 1, max; empty if it isn't a path."""
    parts: list[str] = []
    position = 0
    while position < len(key):
        if parts and key[position] == ".":
            position += 1
        match = _PART.match(key, position)
        if match is None:
            return []
        parts.append(match[1] if match[1] is not None else match[2])
        position = match.end()
    return parts if len(parts) <= _MAX_PARTS else []


def _value(text: str, key: str) -> Any:
    if not text.strip():
        return None
    try:
        parsed = parse_document(f"value: {text}", FILE)
    except InputError as error:
        first = error.problems[0]
        return Problem(f"the value {shown(text)} {first.message}", key, FILE, fix=first.fix)
    if parsed.problems:
        return Problem(f"{shown(text)}: {parsed.problems[0].message}", key, FILE, fix=parsed.problems[0].fix)
    return parsed.data["value"] if list(parsed.data) == ["value"] else _not_one_value(text, key)


def _not_one_value(text: str, key: str) -> Problem:
    return Problem(f"{shown(text)} is not one value.", key, FILE, fix="Write one line of YAML, like {mean: 0.5}.")


def _set(document: Document, parts: list[str], value: Any, key: str) -> Problem | None:
    node: Any = document.data
    path: KeyPath = ()
    created: KeyPath | None = None  # the outermost mapping that the file didn't have
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if isinstance(node, list):
            index = _index(node, part)
            if index is None:
                return Problem(f"{format_key(path)} has no entry '{part}'.", key, FILE, fix=_entries(node))
            path = (*path, index)
            if last:
                node[index] = value
            else:
                node = node[index]
        elif isinstance(node, dict):
            if last:
                _drop_other_spellings(node, part)
                node[part] = value
            elif node.get(part) is None:
                node[part] = {}
                created = created or (*path, part)
            elif isinstance(node[part], str) and not path and part in _SHORT_FORMS:
                node[part] = {_SHORT_FORMS[part]: node[part]}
            path = (*path, part)
            node = node[part]
        else:
            message = f"{format_key(path)} is {shown(node)}, it has no key '{part}'."
            return Problem(message, key, FILE, fix=f"Set the whole: --set '{format_key(path)}={{{part}: …}}'")
    _mark(document, created or path)
    return None


def _index(items: list[Any], part: str) -> int | None:
    """Position in a list: a number, or the name of a site, chip or workload."""
    if part.isdecimal() and part.isascii():
        return int(part) if len(part) < 6 and int(part) < len(items) else None
    for index, item in enumerate(items):
        if isinstance(item, dict) and part in (item.get("name"), item.get("chip")):
            return index
    return None


def _entries(items: list[Any]) -> str:
    names = [str(i.get("name") or i.get("chip") or "") for i in items if isinstance(i, dict)]
    listed = ", ".join(n for n in names if n)
    return f"It has {len(items)}, counted from 0{f': {listed}' if listed else ''}."


def _drop_other_spellings(node: dict[str, Any], key: str) -> None:
    # usd_per_hour replaces usd_per_month: left beside each other they would contradict
    if key in VARIANTS:
        for other in [k for k in node if k in VARIANTS and VARIANTS[k].canonical == VARIANTS[key].canonical]:
            if other != key:
                del node[other]


def _mark(document: Document, path: KeyPath) -> None:
    """Messages about this path now speak of --set, not of a line that no longer counts."""
    for old in [p for p in document.lines if p[: len(path)] == path]:
        del document.lines[old]
    document.overridden.add(path)
