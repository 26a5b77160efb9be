"""A model card as text: YAML as the catalogue's own cards are written, or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

_WIDTH = 118
_FLOW = "      "  # where a mapping goes on when it is longer than a line


def card_yaml(card: Mapping[str, Any]) -> str:
    """One line a field, blocks of a layer in braces, sources last."""
    lines: list[str] = []
    for key, value in card.items():
        if key == "groups":
            lines.append("groups:")
            lines += [line for group in value for line in _group(group)]
        elif key == "sources":
            lines.append("sources:")
            for entry in value:
                lines += [f"  - source: {json.dumps(entry['source'], ensure_ascii=False)}"]
                lines += [f"    confidence: {entry['confidence']}"]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def card_json(card: Mapping[str, Any]) -> str:
    return json.dumps(card, indent=2, ensure_ascii=False) + "\n"


def _group(group: Mapping[str, Any]) -> list[str]:
    lines = [f"  - count: {group['count']}"]
    for key in ("attention", "feed_forward"):
        lines += _wrapped(f"    {key}: ", group[key])
    return lines


def _wrapped(start: str, value: Mapping[str, Any]) -> list[str]:
    """A flow mapping on one line, or from the next line on where it is too long."""
    whole = start + _flow(value)
    if len(whole) <= _WIDTH:
        return [whole]
    lines, current = [start + "{"], _FLOW
    parts = [f"{key}: {_flow(inner)}" for key, inner in value.items()]
    for i, part in enumerate(parts):
        end = "}" if i == len(parts) - 1 else ","
        if len(current) + len(part) + 1 > _WIDTH and current.strip():
            lines.append(current.rstrip())
            current = _FLOW
        current += f"{part}{end} "
    return [*lines, current.rstrip()]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    return str(value)


def _is_plain(text: str) -> bool:
    """Whether YAML reads the word back as it is; characters that are signs to YAML are quoted in any case."""
    if not text or not all(c.isalnum() or c in " ._-/" for c in text) or text != text.strip() or text[0] in "-.":
        return False
    return bool(yaml.safe_load(text) == text)
