"""Field types of the input models: bounded numbers, and values that may be written in more than one form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pddplan.spec import tables, values
from pddplan.spec.issues import LONGEST_NAME, Issue
from pddplan.spec.workload import HitRate, TokenDistribution

SMALLEST = 1e-6  # of what must be above 0: below it a value is a typing error, and its inverse overflows
PLAIN = "="  # key (field ``plain``) under which the short form of a mapping is kept: ``max_utilization: 0.9``


class Strict(BaseModel):
    """No unknown keys, no coercion; a key without a value counts as absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


@dataclass(frozen=True, eq=False)  # by identity: Annotated must be hashable
class Also:
    """The value may be written as a scalar or list too: it becomes ``{key: value}`` before validation."""

    key: str
    json_form: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def widen(value: Any) -> Any:
            return value if value is None or isinstance(value, dict) else {self.key: value}

        return core_schema.no_info_before_validator_function(widen, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [self.json_form, handler(schema)]}


@dataclass(frozen=True, eq=False)  # by identity: Annotated must be hashable
class Form:
    """The value is parsed by a plain function that returns the record or its issues."""

    parse: Callable[[Any], Any]
    json_form: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def run(value: Any) -> Any:
            parsed = self.parse(value)
            issues = [parsed] if isinstance(parsed, Issue) else parsed
            if isinstance(issues, list) and issues and isinstance(issues[0], Issue):
                raise PydanticCustomError("issues", "{text}", {"text": issues[0].message, "issues": issues})
            return parsed

        return core_schema.no_info_plain_validator_function(run)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.json_form


def _whole(value: Any) -> Any:
    # 8.0 is the whole number 8: JSON writers print it so
    return int(value) if isinstance(value, float) and value.is_integer() else value


Positive = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=SMALLEST, le=1e12)]
NonNegative = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=0, le=1e12)]
Share = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=0, le=1)]
PositiveShare = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=SMALLEST, le=1)]
OpenShare = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=0, lt=1)]
Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000), BeforeValidator(_whole)]
CountOrZero = Annotated[int, Field(strict=True, ge=0, le=10_000_000), BeforeValidator(_whole)]
Text = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST_NAME)]
Flag = Annotated[bool, Field(strict=True)]

# ---------------------------------------------------------------- JSON Schema of the forms

_TOKEN_TEXT = r"^\s*[0-9]+(\.[0-9]+)?\s*[kKmM]?\s*$"
TOKEN_JSON: dict[str, Any] = {
    "anyOf": [
        {"type": "number", "minimum": 1, "maximum": values.MAX_TOKENS},
        {"type": "string", "pattern": _TOKEN_TEXT},
    ]
}
_WEIGHTS: dict[str, Any] = {"type": "object", "minProperties": 1, "additionalProperties": {"exclusiveMinimum": 0}}
_WEIGHTS["additionalProperties"]["type"] = "number"
QUANTILE_PATTERN = r"^p[0-9]{1,4}(\.[0-9]{1,3})?$"


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _two_quantiles(value: dict[str, Any]) -> dict[str, Any]:
    patterns = {QUANTILE_PATTERN: value}
    return {
        "type": "object",
        "patternProperties": patterns,
        "additionalProperties": False,
        "minProperties": 2,
        "maxProperties": 2,
    }


TOKENS_JSON: dict[str, Any] = {
    "anyOf": [
        *TOKEN_JSON["anyOf"],
        _two_quantiles(TOKEN_JSON),
        _closed({"mean": TOKEN_JSON, "cv": {"type": "number", "minimum": 0, "maximum": 100}}, ["mean", "cv"]),
        _closed({"histogram": _WEIGHTS}, ["histogram"]),
    ]
}
_FRACTION: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
_OPTIONAL_FRACTION: dict[str, Any] = {"anyOf": [_FRACTION, {"type": "null"}]}
HIT_RATE_JSON: dict[str, Any] = {
    "anyOf": [
        _FRACTION,
        _closed({"mean": _FRACTION, "share_above_95": _OPTIONAL_FRACTION, "zero_share": _OPTIONAL_FRACTION}, ["mean"]),
        _closed({"histogram": _WEIGHTS}, ["histogram"]),
    ]
}
QUANTILES_JSON: dict[str, Any] = {
    "type": "object",
    "patternProperties": {QUANTILE_PATTERN: {"type": "number", "exclusiveMinimum": 0}},
    "additionalProperties": False,
    "minProperties": 1,
}
_MONEY_JSON: dict[str, Any] = {"type": "number", "minimum": 0}
PER_GB_JSON: dict[str, Any] = {
    "anyOf": [
        _MONEY_JSON,
        {"type": "object", "patternProperties": {"^from_": _MONEY_JSON}, "additionalProperties": False},
    ]
}
GAP_JSON: dict[str, Any] = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        _two_quantiles({"type": "number", "exclusiveMinimum": 0}),
    ]
}
TTFT_TABLE_JSON: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
}
_COUNT_JSON = {"type": "integer", "minimum": 1}
COUNTS_JSON: dict[str, Any] = {"anyOf": [_COUNT_JSON, {"type": "array", "items": _COUNT_JSON, "minItems": 1}]}

Tokens = Annotated[TokenDistribution, Form(values.tokens, TOKENS_JSON)]
TokenCount = Annotated[float, Form(values.token_count, TOKEN_JSON)]
HitRateField = Annotated[HitRate, Form(values.hit_rate, HIT_RATE_JSON)]
Quantiles = Annotated[tuple[tuple[float, float], ...], Form(tables.quantile_limits, QUANTILES_JSON)]
PerGb = Annotated[dict[str, float], Form(tables.usd_per_gb, PER_GB_JSON)]
Gap = Annotated[tuple[float, float], Form(tables.gap_quantiles, GAP_JSON)]
TtftTable = Annotated[tuple[tuple[float, float], ...], Form(tables.ttft_table, TTFT_TABLE_JSON)]
Counts = Annotated[tuple[int, ...], Form(tables.counts, COUNTS_JSON)]
