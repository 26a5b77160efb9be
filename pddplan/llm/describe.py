"""The numbers of a model in one record: what ``model show`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pddplan.llm.flops import head_flops, linear_flops_per_token
from pddplan.llm.formats import KV_FORMATS
from pddplan.llm.kv import (
    compressor_state_bytes,
    hit_granularity_tokens,
    kv_bytes,
    kv_bytes_per_token,
    kv_constant_bytes,
    kv_window_cap_bytes,
)
from pddplan.llm.parameters import parameters
from pddplan.llm.types import LanguageModel
from pddplan.llm.weights import weight_bytes, weight_formats
from pddplan.units import KIB

KV_LENGTHS: Mapping[str, int] = {"1K": KIB, "8K": 8 * KIB, "32K": 32 * KIB, "64K": 64 * KIB, "128K": 128 * KIB}


@dataclass(frozen=True)
class ModelFacts:
    """Whole model, one sequence, unsharded. Per-format mappings have the keys bf16 and fp8 (KV) or weight formats."""

    id: str
    name: str
    aliases: tuple[str, ...]
    layers: int
    hidden: int
    vocab: int
    max_context: int | None
    attention_kinds: tuple[str, ...]
    parameters: int
    active_parameters: int  # embedding and head included
    active_parameters_no_embed_no_head: int
    mtp_parameters: int
    kv_bytes_per_token: Mapping[str, float]  # asymptotic slope
    kv_constant_bytes: float
    kv_window_cap_bytes: Mapping[str, float]
    compressor_state_bytes: float
    kv_bytes: Mapping[str, Mapping[str, float]]  # format -> length (1K … 128K) -> bytes
    weight_bytes: Mapping[str, float]  # format -> bytes
    native_weights: str  # formats of the checkpoint: experts / other linears / rest
    linear_flops_per_token: float
    head_flops: float
    hit_granularity_tokens: Mapping[str, int]
    sources: tuple[tuple[str, str], ...]


def describe(model: LanguageModel) -> ModelFacts:
    """Facts of ``model``, all from the closed forms of this layer."""
    count, native = parameters(model), model.native
    return ModelFacts(
        id=model.id,
        name=model.name,
        aliases=model.aliases,
        layers=model.layers,
        hidden=model.hidden,
        vocab=model.vocab,
        max_context=model.max_context,
        attention_kinds=tuple(dict.fromkeys(g.attention.kind for g in model.groups if g.attention.kind != "none")),
        parameters=count.total,
        active_parameters=count.active,
        active_parameters_no_embed_no_head=count.active_no_embed_no_head,
        mtp_parameters=model.mtp_parameters,
        kv_bytes_per_token={f: kv_bytes_per_token(model, f) for f in KV_FORMATS},
        kv_constant_bytes=kv_constant_bytes(model, KV_FORMATS[0]),
        kv_window_cap_bytes={f: kv_window_cap_bytes(model, f) for f in KV_FORMATS},
        compressor_state_bytes=compressor_state_bytes(model),
        kv_bytes={f: {k: float(kv_bytes(model, n, f)) for k, n in KV_LENGTHS.items()} for f in KV_FORMATS},
        weight_bytes={f: weight_bytes(model, f).total for f in weight_formats()},
        native_weights=f"{native.experts} / {native.other_linear} / {native.rest}",
        linear_flops_per_token=linear_flops_per_token(model),
        head_flops=head_flops(model),
        hit_granularity_tokens={f: hit_granularity_tokens(model, f) for f in KV_FORMATS},
        sources=model.sources,
    )
