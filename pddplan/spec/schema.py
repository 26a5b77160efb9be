"""JSON Schema of the scenario, for editors: made from the input models, so that it can't drift from the loader."""

from __future__ import annotations

import re
from typing import Any

from pddplan.spec.money import VARIANTS, spellings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def scenario_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a scenario file. It accepts all that the loader does.

    What one schema can't say (a line between sites that the roles connect, names that must exist) the loader
    checks on top.
    """
    from pddplan.spec.input import ScenarioInput

    schema = ScenarioInput.model_json_schema(by_alias=True)
    for model in (schema, *schema.get("$defs", {}).values()):
        _open_short_forms(model)
        _add_money_spellings(model)
    schema = _plain_titles(schema)
    return {"$schema": DIALECT, **schema, "title": "pddplan scenario", "description": "What pddplan plans for."}


def _open_short_forms(model: dict[str, Any]) -> None:
    """The key of the short form is internal: the short form itself is in the ``anyOf`` around the model."""
    model.get("properties", {}).pop("=", None)


def _add_money_spellings(model: dict[str, Any]) -> None:
    """Money keys may be written in CNY and per month or year."""
    properties: dict[str, Any] = model.get("properties", {})
    for key in [k for k in properties if k in VARIANTS]:
        required: list[str] = model.get("required", [])
        if key in required:  # one of its spellings is: that is more than a schema should say
            required.remove(key)
        for other in spellings(key):
            if other != key:
                properties.setdefault(other, {**properties[key], "description": f"As {key}, in its own unit."})


def _plain_titles(node: Any) -> Any:
    """Titles that pydantic makes of field names say nothing that the key doesn't."""
    if isinstance(node, list):
        return [_plain_titles(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _plain_titles(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str) and re.match(r"^[A-Z]", value))
    }
