"""JSON as the same events that the YAML reader yields: one builder for both, with line numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

_TOKEN = re.compile(r'[ \t\r\n]*(?:([{}\[\],:])|("(?:[^"\\]|\\.)*")|([^\s{}\[\],:"]+))')


def is_json(text: str) -> bool:
    """Whether the text is JSON as a whole (then it is read as JSON, tabs and all)."""
    return json_error(text) is None


def json_error(text: str) -> tuple[str, int] | None:
    """What keeps the text from being JSON, and on which line; None where nothing does."""
    try:
        json.loads(text, parse_int=_no_number, parse_float=_no_number)
    except json.JSONDecodeError as error:
        return error.msg.lower(), error.lineno
    except (ValueError, RecursionError):
        return "it is nested too deep", 1
    return None


def _no_number(text: str) -> str:
    return text  # the digits are looked at later, with the limits of the YAML reader


def events(text: str) -> Iterator[Any]:
    """Node events of valid JSON; marks hold the 0-based line."""
    position, line = 0, 0
    yield yaml.DocumentStartEvent()
    while match := _TOKEN.match(text, position):
        start = match.start(match.lastindex or 0)
        line += text.count("\n", position, start)
        mark = yaml.Mark("json", start, line, 0, None, 0)
        sign, quoted, word = match.groups()
        if sign == "{":
            yield yaml.MappingStartEvent(None, None, True, mark, mark)
        elif sign == "[":
            yield yaml.SequenceStartEvent(None, None, True, mark, mark)
        elif sign == "}":
            yield yaml.MappingEndEvent(mark, mark)
        elif sign == "]":
            yield yaml.SequenceEndEvent(mark, mark)
        elif quoted is not None:
            yield yaml.ScalarEvent(None, None, (False, True), json.loads(quoted), mark, mark)
        elif word is not None:
            yield yaml.ScalarEvent(None, None, (True, False), word, mark, mark)
        position = match.end()
    yield yaml.DocumentEndEvent()
