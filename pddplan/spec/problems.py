"""Validation errors of the models -> problems with file, line, key, message and fix."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError

from pddplan.errors import Problem
from pddplan.spec.fields import PLAIN, SMALLEST
from pddplan.spec.input import ScenarioInput
from pddplan.spec.issues import LONGEST_NAME, Issue, KeyPath, closest, format_key, shown
from pddplan.spec.money import VARIANTS, Normalised, spellings
from pddplan.spec.values import not_a_number
from pddplan.spec.yaml_source import Document

# What people write who know the thing under another name; taken where the suggestion is known in the same mapping.
_OTHER_NAMES = {
    "ttft": "ttft_s", "tpot": "tpot_ms", "itl": "tpot_ms", "itl_ms": "tpot_ms", "tbt_ms": "tpot_ms", "e2e": "e2e_s",
    "rtt": "rtt_ms", "latency_ms": "rtt_ms", "gbps": "gbit_per_s", "bandwidth": "gbit_per_s", "gbit": "gbit_per_s",
    "qps": "request_rate_per_s", "rps": "request_rate_per_s", "rate": "request_rate_per_s",
    "isl": "prompt_tokens", "input_tokens": "prompt_tokens", "osl": "output_tokens", "hit_rate": "prefix_hit_rate",
    "gpus": "chips", "gpu": "chip", "count": "max", "num": "max", "price": "usd_per_hour", "quantization": "precision",
}  # fmt: skip


def problems_of(error: ValidationError, document: Document, money: Normalised) -> list[Problem]:
    """One problem per error; a missing key whose misspelling stands beside it is left out."""
    details = error.errors(include_url=False)
    unknown = [_path(d) for d in details if d["type"] == "extra_forbidden"]
    suggested = {(*path[:-1], near) for path in unknown if (near := _nearest(path)) is not None}
    problems: list[Problem] = []
    for detail in details:
        path = _path(detail)
        if detail["type"] == "missing" and path in suggested:
            continue
        for issue in _issues(detail, path):
            where = money.path_as_written((*path, *issue.where))
            if detail["type"] == "missing":
                file, line = document.place(where[:-1])
                problems.append(Problem(issue.message, format_key(where), file, line, issue.fix))
            else:
                problems.append(document.problem(where, issue.message, issue.fix))
    return problems


def _path(detail: Any) -> KeyPath:
    return tuple(part for part in detail["loc"] if part != PLAIN)


def _issues(detail: Any, path: KeyPath) -> list[Issue]:
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if kind == "issues":
        return list(context["issues"])
    if kind == "extra_forbidden":
        return [_unknown_key(path)]
    if value is None and kind != "missing":
        return [Issue("has no value.", "Write one, or remove the key.")]
    if kind == "missing":
        return [Issue("is missing.", _example(path))]
    if kind in ("float_type", "int_type", "int_from_float", "float_parsing", "int_parsing", "int_parsing_size"):
        return [not_a_number(value, whole=kind.startswith("int"))]
    return [_plain_issue(kind, value, context)]


def _plain_issue(kind: str, value: Any, context: Mapping[str, Any]) -> Issue:
    bounds = {
        "greater_than": ("is too small.", "It must be above {gt:g}."),
        "greater_than_equal": ("is too small.", "It must be at least {ge:g}."),
        "less_than": ("is too large.", "It must be below {lt:g}."),
        "less_than_equal": ("is too large.", "It must be at most {le:g}."),
    }
    if kind == "greater_than_equal" and context["ge"] == SMALLEST and not (_is_number(value) and value > 0):
        return Issue(f"{shown(value)} is too small.", "It must be above 0.")
    if kind in bounds:
        what, fix = bounds[kind]
        return Issue(f"{shown(value)} {what}", fix.format(**context))
    if kind == "finite_number":
        return Issue(f"{shown(value)} is not a finite number.", "Write a finite number.")
    if kind == "bool_type":
        return Issue(f"{shown(value)} is not true or false.", "Write true or false.")
    if kind.startswith("string"):
        fix = "Write a name." if kind == "string_type" else f"Write 1 to {LONGEST_NAME} characters."
        return Issue(f"{shown(value)} is not text." if kind == "string_type" else "is empty or too long.", fix)
    if kind == "list_type":
        return Issue(f"{shown(value)} is not a list.", f"Write it in brackets: [{_bare(value)}].")
    if kind in ("too_short", "too_long"):
        have, least, most = context["actual_length"], context.get("min_length"), context.get("max_length")
        need = least if kind == "too_short" else most
        return Issue(f"holds {have if have else 'no'} entries.", f"It needs at {_least(kind)} {need}.")
    if kind == "literal_error":
        options = [o.strip("'\"") for o in str(context["expected"]).replace(" or ", ", ").split(", ")]
        near = closest(value, options) if isinstance(value, str) else None
        fix = f"Did you mean {near}? " if near else ""
        return Issue(f"{shown(value)} is not known here.", f"{fix}One of {', '.join(options)}.")
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return Issue(f"{shown(value)} is not a mapping.", "Write keys with values, indented below or in {braces}.")
    return Issue(f"{shown(value)} is not right here.", "See: pddplan schema")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _least(kind: str) -> str:
    return "least" if kind == "too_short" else "most"


def _bare(value: Any) -> str:
    return "…" if isinstance(value, (dict, list)) else str(value)[:40]


# ---------------------------------------------------------------- known keys, by place


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) is typing.Annotated:
        yield from _models_in(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType, list):
        for part in typing.get_args(annotation):
            yield from _models_in(part)


def model_at(path: KeyPath) -> type[BaseModel] | None:
    """The model that describes the mapping at a path; None where a plain function reads it."""
    model: type[BaseModel] | None = ScenarioInput
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        known = model.model_fields.get(part)
        model = next(_models_in(known.annotation), None) if known else None
    return model


def known_keys(model: type[BaseModel]) -> list[str]:
    """Keys of a model in the order of its fields, with every spelling of its money keys."""
    keys: list[str] = []
    for name, info in model.model_fields.items():
        if info.alias != PLAIN:
            keys += spellings(name) if name in VARIANTS else (name,)
    return keys


@lru_cache(maxsize=1)
def _places() -> dict[str, list[str]]:
    """Key -> the places where it is known, outermost first."""
    places: dict[str, list[str]] = {}
    todo: list[tuple[str, type[BaseModel]]] = [("", ScenarioInput)]
    while todo:
        prefix, model = todo.pop(0)
        for name, info in model.model_fields.items():
            if info.alias == PLAIN:
                continue
            places.setdefault(name, []).append(prefix or "top level")
            for inner in _models_in(info.annotation):
                mark = "[]" if name in ("sites", "chips", "links", "tiers", "workloads") else ""
                todo.append((f"{prefix}.{name}{mark}".lstrip("."), inner))
    return places


def _nearest(path: KeyPath) -> str | None:
    """The known key of the same mapping that an unknown one most likely means."""
    model = model_at(path[:-1])
    if model is None:
        return None
    key, keys = str(path[-1]), known_keys(model)
    if _OTHER_NAMES.get(key.lower()) in keys:
        return _OTHER_NAMES[key.lower()]
    starts = [k for k in keys if k.startswith(f"{key}_")]
    if starts:
        return starts[0]
    found = difflib.get_close_matches(key.lower().replace("-", "_"), keys, n=1)
    return found[0] if found else None


def _unknown_key(path: KeyPath) -> Issue:
    key, near = str(path[-1]), _nearest(path)
    message = f"unknown key {shown(key)}."
    elsewhere = [p for p in _places().get(key, []) if not p.startswith("workloads")]
    if elsewhere:
        place = elsewhere[0]
        return Issue(
            message, f"'{key}' belongs to {place}." if place == "top level" else f"'{key}' belongs under {place}."
        )
    if near:
        return Issue(message, f"Did you mean '{near}'?")
    model = model_at(path[:-1])
    known = known_keys(model) if model else []
    return Issue(message, f"Known here: {', '.join(known[:24])}." if known else "")


def _example(path: KeyPath) -> str:
    """What to write for a missing key: its description."""
    model = model_at(path[:-1])
    info = model.model_fields.get(str(path[-1])) if model else None
    examples = {
        "model": "Write model: deepseek-v3.2",
        "sites": "Write sites: [{name: north, chips: [{chip: nvidia-h800-sxm, max: 64}]}]",
        "max": "Write the most chips there are to have, like max: 64.",
        "chip": "Write a chip's id, like chip: nvidia-h800-sxm.",
        "chips": "Write chips: [{chip: nvidia-h800-sxm, max: 64}].",
        "tiers": "Write tiers: [{gbit_per_s: 100, usd_per_hour: 23}].",
        "request_rate_per_s": "Write request_rate_per_s: 10.",
    }
    return examples.get(str(path[-1]), (info.description or "") if info else "")
