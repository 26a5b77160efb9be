"""Text of a scenario -> plain data with the line of every key; bombs, tags and binary are refused.

YAML is read as events, so that depth, size and aliases are bounded before anything is built, and scalars follow
the YAML 1.2 core schema (``1e3`` is a number, ``no`` is text, ``010`` is ten).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pddplan.errors import Problem
from pddplan.spec.issues import KeyPath, format_key, shown
from pddplan.spec.user_file import decoded, read_bytes, refusal

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_NODES = 50_000  # after aliases are expanded
MAX_DIGITS = 400  # more digits than a float can hold

_INT = re.compile(r"^[-+]?[0-9]+(_[0-9]+)*$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_STR = "tag:yaml.org,2002:str"
_TAGS = {None, "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq"))}
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "inf", "Infinity"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF", "-inf", "-Infinity"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN", "nan", "NaN"), float("nan")),
}


@dataclass(frozen=True)
class Wording:
    """What messages call a file and advise for it."""

    noun: str = "scenario"
    start: str = "Write a starter scenario with: pddplan init"
    folder: str = "Name the scenario file inside it."
    size: str = "A scenario is a few KB: is this the right file?"
    keys: str = "A scenario has keys: model, workload, sites."
    depth: str = "Scenarios are 6 deep."


SCENARIO = Wording()


@dataclass
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and where each key stands."""

    data: Any
    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overridden: set[KeyPath] = field(default_factory=set)  # paths set by --set
    problems: list[Problem] = field(default_factory=list)  # duplicate keys, tags: the rest can still be checked

    def place(self, path: KeyPath) -> tuple[str, int | None]:
        """(file, line) of a path: its own, else that of the nearest parent."""
        for length in range(len(path), -1, -1):
            head = path[:length]
            if head in self.overridden:
                return "--set", None
            if head in self.lines:
                return self.file, self.lines[head]
        return self.file, None

    def problem(self, path: KeyPath, message: str, fix: str = "") -> Problem:
        file, line = self.place(path)
        return Problem(message, key=format_key(path), file=file, line=line, fix=fix)


def read_text(path: str | Path, words: Wording = SCENARIO) -> tuple[str, str]:
    """(text, name for messages) of a file, or of standard input for ``-``."""
    raw, name = read_bytes(path, MAX_BYTES, missing=words.start, folder=words.folder, size=words.size)
    return decoded(raw, name, f"Save the {words.noun} as UTF-8 YAML or JSON."), name


def parse_document(text: str, file: str, words: Wording = SCENARIO) -> Document:
    """Parse YAML or JSON; duplicate keys and tags are in ``problems``. Raises InputError where nothing can be read."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise refusal(file, "is larger than 1 MiB.", words.size)
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        from pddplan.spec.json_source import events as json_events
        from pddplan.spec.json_source import is_json

        # JSON is YAML but for tabs and some escapes; real JSON gets its own reader
        if is_json(text):
            return _Composer(file, json_events(text), words).document()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Composer(file, yaml.parse(text, Loader=loader), words).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = min(mark.line, text.rstrip("\n").count("\n")) + 1 if mark else None
        what = f"is not valid YAML: {error.problem or error.context}."
        raise refusal(file, what, _syntax_fix(error, words), line) from None
    except (yaml.YAMLError, UnicodeError):
        fix = f"Save the {words.noun} as UTF-8 YAML or JSON."
        raise refusal(file, "holds characters that are not text.", fix) from None


def _syntax_fix(error: yaml.MarkedYAMLError, words: Wording) -> str:
    problem = str(error.problem)
    if "nesting" in problem:
        return words.depth
    if "\\t" in problem or "'\t'" in problem or "cannot start any token" in problem:
        return "Indent with spaces, not tabs, and quote special characters."
    return "Check indentation, colons and brackets there."


def scalar(text: str) -> Any:
    """Value of a plain scalar by the YAML 1.2 core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        # a number too long for an integer becomes inf and is refused as not finite
        return int(text) if len(text) <= MAX_DIGITS else float("inf")
    if _FLOAT.match(text):
        return float(text)
    return text


def _clean(text: str) -> str:
    """Text without lone surrogates (JSON escapes can hold them): they can't be printed."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _depth(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, children), default=0)


class _Composer:
    """Builds data from events, one document, bounded in depth and in expanded nodes."""

    def __init__(self, file: str, events: Iterator[Any], words: Wording) -> None:
        self.file = file
        self.words = words
        self.events = events
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self.anchors: dict[str, tuple[Any, int]] = {}  # name -> (data, nodes in it)
        self.open_anchors: set[str] = set()
        self.nodes = 0

    def document(self) -> Document:
        root: Any = None
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    fix = f"Keep one {self.words.noun} a file."
                    raise refusal(self.file, "holds more than one YAML document.", fix)
            elif isinstance(event, yaml.NodeEvent):
                root = self.node(event, ())
        if documents == 0 or root is None:
            raise refusal(self.file, "is empty.", self.words.start)
        if not isinstance(root, dict):
            raise refusal(self.file, f"holds {shown(root)}, not keys with values.", self.words.keys, 1)
        return Document(root, self.file, self.lines, problems=self.problems)

    def node(self, event: Any, path: KeyPath) -> Any:
        line = event.start_mark.line + 1
        self.nodes += 1
        self.check_size(line, path, 0)
        self.lines.setdefault(path, line)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, path, line)
        if event.tag not in _TAGS:
            message, fix = f"YAML tags are not read: {shown(event.tag)}.", "Remove it and write a plain value."
            self.problems.append(Problem(message, format_key(path), self.file, line, fix))
        anchor, before = event.anchor, self.nodes
        if anchor:
            self.open_anchors.add(anchor)
        if isinstance(event, yaml.MappingStartEvent):
            value: Any = self.mapping(path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self.sequence(path)
        else:
            typed = event.tag not in (None, "!", _STR)  # !!int "8"
            value = scalar(event.value) if event.implicit[0] or typed else _clean(event.value)
        if anchor:
            self.open_anchors.discard(anchor)
            self.anchors[anchor] = (value, self.nodes - before)
        return value

    def check_size(self, line: int, path: KeyPath, depth_below: int) -> None:
        if self.nodes > MAX_NODES:
            fix = "Write it out without aliases, or shorter."
            raise refusal(self.file, f"expands to more than {MAX_NODES:,} values.", fix, line, format_key(path[:4]))
        if len(path) + depth_below > MAX_DEPTH:
            raise refusal(self.file, f"is nested more than {MAX_DEPTH} deep.", self.words.depth, line)

    def alias(self, event: Any, path: KeyPath, line: int) -> Any:
        if event.anchor in self.open_anchors or event.anchor not in self.anchors:
            why = "contains itself" if event.anchor in self.open_anchors else "is not defined above"
            fix = "Write the value out."
            raise refusal(self.file, f"alias '*{event.anchor}' {why}.", fix, line, format_key(path))
        value, nodes = self.anchors[event.anchor]
        self.nodes += nodes
        self.check_size(line, path, _depth(value))
        return copy.deepcopy(value)  # an override of one use must not change the others

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for event in self.events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                raise refusal(self.file, "a key is not plain text.", "Keys are words.", line, format_key(path))
            key = _clean(event.value)
            here = (*path, key)
            if key == "<<" and event.implicit[0]:
                value = self.node(next(self.events), here)
                for source in value if isinstance(value, list) else [value]:
                    if isinstance(source, dict):
                        merged = {**source, **merged}
                continue
            if key in result:
                first = self.lines.get(here)
                message = f"key '{key}' is given twice" + (f", first on line {first}." if first else ".")
                self.problems.append(Problem(message, format_key(here), self.file, line, "Keep one of them."))
            else:
                self.lines[here] = line
            result[key] = self.node(next(self.events), here)
        return {**merged, **result}

    def sequence(self, path: KeyPath) -> list[Any]:
        result: list[Any] = []
        for event in self.events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            result.append(self.node(event, (*path, len(result))))
        return result
