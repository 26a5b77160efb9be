"""Key paths of a scenario by their beginning, as ``--set`` takes them; from the scenario's JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FIRST = "0"  # stands for every entry of a list


def key_paths(beginning: str) -> list[str]:
    """Paths that begin so, one level at a time: ``workload.`` where more follows, ``workload.name=`` where a value may.

    A single path that goes on gives way to what follows it.
    """
    from pddplan.spec.schema import scenario_schema

    schema = scenario_schema()
    head, dot, tail = beginning.rpartition(".")
    nodes = [schema]
    for part in head.split(".") if dot else []:
        below = [entry for node in nodes for entry in _children(schema, node)]
        nodes = [child for key, child in below if key == part or (key == FIRST and part)]  # sites.1, sites.north
    found = list(dict.fromkeys(_ends(schema, nodes, head + dot, tail)))
    if len(found) == 1 and found[0].endswith(".") and found[0] != beginning:
        return key_paths(found[0])
    return found


def _ends(schema: dict[str, Any], nodes: list[dict[str, Any]], head: str, tail: str) -> Iterator[str]:
    for node in nodes:
        for key, child in _children(schema, node):
            if key.startswith(tail):
                goes_on = any(True for _ in _children(schema, child))
                yield from [f"{head}{key}."] if goes_on else []
                yield from [f"{head}{key}="] if _has_value(schema, child) else []


def _variants(schema: dict[str, Any], node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a node may be, references followed."""
    if "$ref" in node:
        yield from _variants(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[-1]])
    for way in ("anyOf", "oneOf", "allOf"):
        for part in node.get(way, ()):
            yield from _variants(schema, part)
    yield node


def _children(schema: dict[str, Any], node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keys below a node; those of a list are those of its entries."""
    for variant in _variants(schema, node):
        yield from variant.get("properties", {}).items()
        if isinstance(variant.get("items"), dict):
            yield FIRST, variant["items"]


def _has_value(schema: dict[str, Any], node: dict[str, Any]) -> bool:
    """Whether a plain value may stand there."""
    plain = {"string", "number", "integer", "boolean"}
    return any(v.get("type") in plain or "enum" in v or "const" in v for v in _variants(schema, node))
