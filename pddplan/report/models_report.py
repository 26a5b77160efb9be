"""Language models as text and as ``pddplan.models/1`` and ``pddplan.model/1``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pddplan.llm.describe import ModelFacts
from pddplan.llm.importer import Imported
from pddplan.llm.types import FeedForward, LanguageModel, LayerGroup
from pddplan.report.figures import UNKNOWN, figure
from pddplan.report.json_schema import (
    COUNT,
    FLAG,
    MAYBE_COUNT,
    MAYBE_TEXT,
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


def import_payload(found: Imported, file: str | None) -> dict[str, Any]:
    """``file`` is where the card was written, None where nowhere."""
    return {"schema": "pddplan.import/1", "file": file, "card": dict(found.card), "notes": list(found.notes)}


def _facts(facts: ModelFacts) -> dict[str, Any]:
    return {**_plain(asdict(facts)), "sources": [{"source": s, "confidence": c} for s, c in facts.sources]}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return finite(value) if isinstance(value, float) else value


def render_model_list(facts: Sequence[ModelFacts], width: int) -> str:
    """One line a model: parameters, KV cache at 64K, weights as published. Fits 80 columns whole."""
    header = ["model", "total", "active", "KV at 64K", "weights", "layers"]
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
    text = table(header, lines, width, right=(1, 2, 3, 4), indent=0, flexible=(5, 0))
    note = paragraph(
        "Total and active parameters; KV cache of one sequence of 64K tokens, fp8; weights as published. "
        "One model with sources: pddplan model show MODEL. Your own: pddplan model import config.json",
        width,
    )
    return "\n".join([*text, "", *note])


def render_model(facts: ModelFacts, model: LanguageModel, width: int) -> str:
    """Layers, parameters, KV cache by length, weights by format, sources."""
    context = f"{facts.max_context:,} tokens" if facts.max_context else UNKNOWN
    lines = paragraph(f"{facts.name} ({facts.id})", width)
    lines += (
        paragraph(f"Also known as: {', '.join(facts.aliases)}", width, indent=2, hanging=4) if facts.aliases else []
    )
    lines += ["", "Layers"]
    lines += [line for g in model.groups for line in item(f"{g.count} × {layer_text(g)}", width)]
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


def layer_text(group: LayerGroup) -> str:
    """``gqa attention in windows of 128, 4 of 128 experts``; a block that isn't there isn't named."""
    a = group.attention
    text = f"{a.kind} attention" if a.kind not in ("mamba2", "none") else a.kind.removesuffix("none")
    if a.window:
        text += f" in windows of {a.window:,}"
    if a.chunk:
        text += f" in chunks of {a.chunk:,}"
    if a.compress_ratio:
        text += f" and 1 entry for {a.compress_ratio} tokens"
    if a.indexer is not None:
        text += f", top {a.indexer.top_k:,} entries" + ("" if a.indexer.own_cache else " by another layer's index")
    forward = "" if group.feed_forward.kind == "none" else feed_forward_text(group.feed_forward)
    return ", ".join(part for part in (text, forward) if part)


def feed_forward_text(layer: FeedForward) -> str:
    if layer.kind == "moe":
        shared = " and a shared one" if layer.shared_intermediate else ""
        return f"{layer.top_k} of {layer.experts} experts{shared}"
    return "dense feed-forward"


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

_CARD: dict[str, Schema] = {
    "schema": TEXT,
    "id": TEXT,
    "name": TEXT,
    "hidden": COUNT,
    "vocab": COUNT,
    "tied_embeddings": FLAG,
    "max_context": MAYBE_COUNT,
    "native": record({"experts": TEXT, "other_linear": TEXT, "rest": TEXT}),
    "groups": rows(
        record({"count": COUNT, "attention": record({"kind": TEXT}), "feed_forward": record({"kind": TEXT})}),
        at_least=1,
    ),
    "sources": rows(record({"source": TEXT, "confidence": TEXT}), at_least=1),
}

MODELS: Schema = document(
    "pddplan.models/1", "Answer of pddplan model list --json", {"models": rows(record(_FACTS), at_least=1)}
)
MODEL: Schema = document("pddplan.model/1", "Answer of pddplan model show --json", _FACTS)
IMPORT: Schema = document(
    "pddplan.import/1",
    "Answer of pddplan model import --json",
    {"file": MAYBE_TEXT, "card": record(_CARD), "notes": rows(TEXT)},
)
