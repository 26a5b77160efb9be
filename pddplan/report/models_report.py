"""Language models as text and as ``pddplan.models/1`` and ``pddplan.model/1``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pddplan.llm.describe import ModelFacts
from pddplan.llm.types import FeedForward, LanguageModel
from pddplan.report.figures import UNKNOWN, figure
from pddplan.report.json_schema import (
    COUNT,
    MAYBE_COUNT,
    NUMBER,
    TEXT,
    Schema,
    document,
    numbers_by_name,
    record,
    rows,
)
from pddplan.report.layout import item, paragraph, table
from pddplan.report.plan_json import finite
from pddplan.units import GB, KIB

BILLION = 1e9


def models_payload(facts: Sequence[ModelFacts]) -> dict[str, Any]:
    return {"schema": "pddplan.models/1", "models": [_facts(f) for f in facts]}


def model_payload(facts: ModelFacts) -> dict[str, Any]:
    return {"schema": "pddplan.model/1", **_facts(facts)}


def _facts(facts: ModelFacts) -> dict[str, Any]:
    return {**_plain(asdict(facts)), "sources": [{"source": s, "confidence": c} for s, c in facts.sources]}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return finite(value) if isinstance(value, float) else value


def render_model_list(facts: Sequence[ModelFacts], width: int) -> str:
    """One line a model: parameters, KV cache at 64K, weights as published."""
    header = ["model", "parameters", "active", "KV at 64K, fp8", "weights", "layers"]
    lines = [
        [
            f.id,
            f"{figure(f.parameters / BILLION)} B",
            f"{figure(f.active_parameters / BILLION)} B",
            f"{figure(f.kv_bytes['fp8']['64K'] / GB)} GB",
            f"{figure(f.weight_bytes['native'] / GB)} GB",
            ", ".join(f.attention_kinds),
        ]
        for f in facts
    ]
    text = table(header, lines, width, right=(1, 2, 3, 4), indent=0)
    note = paragraph("Weights as published. One model with sources: pddplan model show MODEL", width)
    return "\n".join([*text, "", *note])


def render_model(facts: ModelFacts, model: LanguageModel, width: int) -> str:
    """Layers, parameters, KV cache by length, weights by format, sources."""
    context = f"{facts.max_context:,} tokens" if facts.max_context else UNKNOWN
    lines = paragraph(f"{facts.name} ({facts.id})", width)
    lines += (
        paragraph(f"Also known as: {', '.join(facts.aliases)}", width, indent=2, hanging=4) if facts.aliases else []
    )
    lines += ["", "Layers"]
    lines += [
        line
        for g in model.groups
        for line in item(f"{g.count} × {g.attention.kind} attention, {feed_forward_text(g.feed_forward)}", width)
    ]
    shape = f"hidden {facts.hidden:,}, vocabulary {facts.vocab:,}, context {context}"
    lines += [
        *item(shape, width),
        "",
        "Parameters",
        *paragraph(
            f"{figure(facts.parameters / BILLION)} B, active {figure(facts.active_parameters / BILLION)} B"
            f" (without embedding and head {figure(facts.active_parameters_no_embed_no_head / BILLION)} B)",
            width,
            indent=2,
        ),
        "",
        "KV cache of one sequence",
        *_kv_table(facts, width),
        *_kv_notes(facts, width),
        "",
        "Weights",
        *table(
            ["format", "GB"],
            [
                [f"{name} ({facts.native_weights})" if name == "native" else name, figure(size / GB)]
                for name, size in facts.weight_bytes.items()
            ],
            width,
            right=(1,),
            flexible=0,
        ),
        "",
        "Sources",
        *(line for source, confidence in facts.sources for line in item(f"{source} ({confidence})", width)),
    ]
    return "\n".join(lines)


def feed_forward_text(layer: FeedForward) -> str:
    if layer.kind == "moe":
        shared = " and a shared one" if layer.shared_intermediate else ""
        return f"{layer.top_k} of {layer.experts} experts{shared}"
    return "dense feed-forward" if layer.kind == "dense" else "no feed-forward"


def _kv_table(facts: ModelFacts, width: int) -> list[str]:
    lengths = list(next(iter(facts.kv_bytes.values())))
    header = ["format", "KB/token", *(f"{length}, GB" for length in lengths)]
    body = [
        [
            name,
            figure(facts.kv_bytes_per_token[name] / 1e3),
            *(figure(facts.kv_bytes[name][length] / GB) for length in lengths),
        ]
        for name in facts.kv_bytes
    ]
    return table(header, body, width, right=tuple(range(1, len(header))))


def _kv_notes(facts: ModelFacts, width: int) -> list[str]:
    lines: list[str] = []
    if facts.kv_constant_bytes:
        lines += paragraph(
            f"State of linear layers, any length: {figure(facts.kv_constant_bytes / 1e6)} MB", width, indent=2
        )
    windows = {name: size for name, size in facts.kv_window_cap_bytes.items() if size}
    if windows:
        sizes = ", ".join(f"{figure(size / 1e6)} MB ({name})" for name, size in windows.items())
        lines += paragraph(f"Windows hold at most: {sizes}", width, indent=2)
    grain = max(facts.hit_granularity_tokens.values(), default=1)
    if grain > 1:
        shown = f"{grain / KIB:g}K" if grain % KIB == 0 else f"{grain:,}"
        lines += paragraph(f"Prefix hits come in steps of {shown} tokens", width, indent=2)
    return lines


_FACTS: dict[str, Schema] = {
    "id": TEXT,
    "name": TEXT,
    "aliases": rows(TEXT),
    "layers": COUNT,
    "hidden": COUNT,
    "vocab": COUNT,
    "max_context": MAYBE_COUNT,
    "parameters": COUNT,
    "active_parameters": COUNT,
    "kv_bytes_per_token": record({"bf16": NUMBER, "fp8": NUMBER}),
    "kv_constant_bytes": NUMBER,
    "weight_bytes": numbers_by_name(),
    "sources": rows(record({"source": TEXT, "confidence": TEXT})),
}

MODELS: Schema = document(
    "pddplan.models/1", "Answer of pddplan model list --json", {"models": rows(record(_FACTS), at_least=1)}
)
MODEL: Schema = document("pddplan.model/1", "Answer of pddplan model show --json", _FACTS)
