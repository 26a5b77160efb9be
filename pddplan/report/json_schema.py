"""Small pieces of JSON Schema, so that the schemas of answers read like the contract."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
MAYBE_COUNT: Schema = {"type": ["integer", "null"]}
MAYBE_SHARE: Schema = {"type": ["number", "null"], "minimum": 0, "maximum": 1}


def one_of(*values: str | None) -> Schema:
    return {"enum": list(values)}


def record(
    properties: dict[str, Schema], *, nullable: bool = False, optional: dict[str, Schema] | None = None
) -> Schema:
    """An object that has at least these keys: programs may rely on all of them (not on ``optional``); more may come."""
    kind: Any = ["object", "null"] if nullable else "object"
    return {"type": kind, "properties": {**properties, **(optional or {})}, "required": list(properties)}


def rows(item: Schema, *, at_least: int = 0) -> Schema:
    return {"type": "array", "items": item, **({"minItems": at_least} if at_least else {})}


def numbers_by_name(*, nullable: bool = False) -> Schema:
    return {"type": "object", "additionalProperties": MAYBE_NUMBER if nullable else NUMBER}


def document(
    name: str, title: str, properties: dict[str, Schema], *, optional: dict[str, Schema] | None = None
) -> Schema:
    """A whole answer: its ``schema`` key says what it is."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **record({"schema": {"const": name}, **properties}, optional=optional),
    }
