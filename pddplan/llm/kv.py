"""Bytes of the KV cache of one sequence: KV(L) = const + sum_g slope_g * min(L, W_g), whole model, unsharded.

Kinds: GQA G(dk+dv)b, block-sparse with di b of index keys; MLA (r+p)b; with an indexer the 656-byte fp8 latent plus
index keys; sliding windows and chunks cap at W; linear-state layers are constant; DeepSeek V4 keeps a window of raw
entries plus one entry per ``ratio`` tokens. The floors of V4's ratio 4 and 128 are not modelled (under one entry a
layer). Lengths are tokens, any shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from pddplan.llm.formats import KvLayout, formats, kv_layout
from pddplan.llm.types import Attention, Indexer, LanguageModel, LayerGroup

Array = npt.NDArray[np.float64]
Sharding = Literal["heads", "replicated"]


@dataclass(frozen=True)
class KvTerm:
    """slope * min(L, window) bytes of one layer; ``heads`` split over TP up to ``heads``, else whole on every rank."""

    slope_bytes: float  # [B/token]
    window_tokens: float  # inf: the whole length
    heads: int  # 0: replicated over TP
    read_top_k: float = math.inf  # tokens of it that a decode step reads at most


@dataclass(frozen=True)
class LayerKv:
    """KV cache of one layer: terms that grow with the length, and constant state bytes."""

    terms: tuple[KvTerm, ...]
    state_bytes: float
    state_heads: int


def _entry(attention: Attention, layout: KvLayout) -> float:
    """Bytes of one V4 entry (K = V shared): (d - p) elements, p rope elements, scales: 1024 bf16, 584 fp8."""
    rope = attention.qk_rope_head_dim
    plain = (attention.head_dim_k - rope) * layout.compressed_element
    return plain + rope * layout.compressed_rope_element + layout.compressed_scale_bytes


def _latent(attention: Attention, layout: KvLayout) -> float:
    """Bytes of one MLA latent: (r + p)b, or with an indexer r elements, their scales and 16-bit rope: 656 fp8."""
    r, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
    if attention.indexer is None:
        return (r + rope) * layout.element
    scales = r / layout.latent_scale_group * layout.latent_scale_bytes
    return r * layout.latent_element + scales + rope * layout.rope_element


def _index_key(indexer: Indexer, layout: KvLayout) -> float:
    """Bytes of one index key with its scales: 132."""
    scales = indexer.head_dim / layout.index_scale_group * layout.index_scale_bytes
    return indexer.head_dim * layout.index_element + scales


def _compressed_index_key(indexer: Indexer, layout: KvLayout) -> float:
    """Bytes of one V4 index key: 256 bf16, 68 fp4."""
    scales = indexer.head_dim / layout.compressed_index_scale_group * layout.compressed_index_scale_bytes
    return indexer.head_dim * layout.compressed_index_element + scales


def state_bytes_per_layer(attention: Attention) -> float:
    """Recurrent state (fp32) plus convolution rows of one linear-attention or state-space layer [B].

    GDN Hv*dk*dv and (2Hk*dk + Hv*dv)(K-1); KDA H*d*d and 3H*d(K-1); lightning H*d*d; Mamba2 H*P*S and (H*P + 2gS)(K-1).
    """
    a, f = attention, formats().state
    key, value, rows = a.k_heads * a.k_dim, a.v_heads * a.v_dim, max(0, a.conv_kernel - 1)
    if a.kind in ("gdn", "kda"):
        return value * a.k_dim * f.recurrent_element + (2 * key + value) * rows * f.conv_element
    if a.kind == "lightning":
        return value * a.k_dim * f.recurrent_element
    if a.kind == "mamba2":
        return value * a.state * f.recurrent_element + (value + 2 * a.groups * a.state) * rows * f.conv_element
    return 0.0


@lru_cache(maxsize=512)
def layer_kv(attention: Attention, kv_format: str) -> LayerKv:
    """Terms and state of one layer in one format. ValueError for an unknown format."""
    a, layout = attention, kv_layout(kv_format)
    if a.kind == "gqa":
        slope = a.kv_heads * (a.head_dim_k + a.head_dim_v) * layout.element
        window = min(a.window or math.inf, a.chunk or math.inf)
        if a.indexer is None:
            return LayerKv((KvTerm(slope, window, a.kv_heads),), 0.0, 0)
        keys = KvTerm(a.indexer.head_dim * layout.element, math.inf, 0)
        return LayerKv((KvTerm(slope, window, a.kv_heads, read_top_k=a.indexer.top_k), keys), 0.0, 0)
    if a.kind == "mla":
        latent = _latent(a, layout)
        if a.indexer is None:
            return LayerKv((KvTerm(latent, math.inf, 0),), 0.0, 0)
        terms = [KvTerm(latent, math.inf, 0, read_top_k=a.indexer.top_k)]
        if a.indexer.own_cache:
            terms.append(KvTerm(_index_key(a.indexer, layout), math.inf, 0))
        return LayerKv(tuple(terms), 0.0, 0)
    if a.kind in ("csa", "hca", "swa"):
        entry = _entry(a, layout)
        terms = [KvTerm(entry, a.window or math.inf, 0)]
        if a.compress_ratio:
            top = a.indexer.top_k * a.compress_ratio if a.indexer is not None else math.inf
            terms.append(KvTerm(entry / a.compress_ratio, math.inf, 0, read_top_k=top))
        if a.indexer is not None:
            terms.append(KvTerm(_compressed_index_key(a.indexer, layout) / a.compress_ratio, math.inf, 0))
        return LayerKv(tuple(terms), 0.0, 0)
    return LayerKv((), state_bytes_per_layer(a), a.v_heads)


def _terms(model: LanguageModel, kv_format: str) -> list[tuple[int, KvTerm]]:
    return [(g.count, t) for g in model.groups for t in layer_kv(g.attention, kv_format).terms]


def state_bytes(model: LanguageModel) -> float:
    """State of all linear-attention and state-space layers of one sequence [B]; independent of the KV format."""
    return sum(g.count * state_bytes_per_layer(g.attention) for g in model.groups)


def kv_constant_bytes(model: LanguageModel, kv_format: str) -> float:
    """The constant of KV(L): linear state, whatever the length [B]. Checks the format."""
    kv_layout(kv_format)
    return state_bytes(model)


def kv_bytes_per_token(model: LanguageModel, kv_format: str) -> float:
    """Asymptotic slope of KV(L): the terms without a window [B/token]."""
    return sum(n * t.slope_bytes for n, t in _terms(model, kv_format) if math.isinf(t.window_tokens))


def kv_window_cap_bytes(model: LanguageModel, kv_format: str) -> float:
    """What the windowed terms hold once the length exceeds every window [B]."""
    return sum(n * t.slope_bytes * t.window_tokens for n, t in _terms(model, kv_format) if t.window_tokens < math.inf)


def kv_bytes(model: LanguageModel, length: npt.ArrayLike, kv_format: str) -> Array:
    """KV cache of one sequence of ``length`` tokens, whole model, unsharded [B]; shape of ``length``."""
    tokens = np.asarray(length, dtype=float)
    total = np.full_like(tokens, kv_constant_bytes(model, kv_format))
    for n, t in _terms(model, kv_format):
        total = total + n * t.slope_bytes * np.minimum(tokens, t.window_tokens)
    return total


def group_kv_bytes(group: LayerGroup, length: npt.ArrayLike, kv_format: str) -> Array:
    """KV cache of one layer of ``group`` at ``length`` tokens, state included [B]; shape of ``length``."""
    tokens, layer = np.asarray(length, dtype=float), layer_kv(group.attention, kv_format)
    total = np.full_like(tokens, layer.state_bytes)
    for t in layer.terms:
        total = total + t.slope_bytes * np.minimum(tokens, t.window_tokens)
    return total


def layer_kv_bytes(model: LanguageModel, length: npt.ArrayLike, kv_format: str) -> Array:
    """KV cache of one layer of each group [B]; shape (groups, *length.shape)."""
    return np.stack([group_kv_bytes(g, length, kv_format) for g in model.groups])


def kv_last_layer_bytes(model: LanguageModel, length: npt.ArrayLike, kv_format: str) -> Array:
    """KV of the layer that a layer-wise transfer sends last [B]: the largest layer, an upper bound over all orders."""
    return np.asarray(layer_kv_bytes(model, length, kv_format).max(axis=0))


def transfer_bytes(model: LanguageModel, length: npt.ArrayLike, held_share: npt.ArrayLike, kv_format: str) -> Array:
    """What must cross a line when the far side holds the share x of the prefix: const + sum_g slope_g min((1-x)L, W_g).

    Linear state always moves whole. Not KV(L) - KV(xL): for windows that difference is 0, but the last W tokens that
    the far side lacks must move. ``length`` and ``held_share`` in [0, 1] broadcast.
    """
    missing = (1.0 - np.asarray(held_share, dtype=float)) * np.asarray(length, dtype=float)
    return kv_bytes(model, missing, kv_format)


def group_kv_read_bytes(group: LayerGroup, context: npt.ArrayLike, kv_format: str, tp: int = 1) -> Array:
    """Bytes of tokens that one of ``tp`` ranks reads of one layer in a decode step of one sequence, without state.

    slope * min(L, W), sparse terms at most their top-k entries: MLA with indexer 132 L + 656 min(L, k); V4 CSA
    584 min(L, 128) + 584 min(L/4, k) + 68 L/4. Shape of ``context``.
    """
    tokens = np.asarray(context, dtype=float)
    total = np.zeros_like(tokens)
    for t in layer_kv(group.attention, kv_format).terms:
        share = term_copies(t, tp) / tp
        total = total + share * t.slope_bytes * np.minimum(tokens, min(t.window_tokens, t.read_top_k))
    return total


def kv_read_bytes(model: LanguageModel, context: npt.ArrayLike, kv_format: str) -> Array:
    """Bytes that one decode step reads of one sequence's token cache, state not included [B]; shape of ``context``."""
    tokens = np.asarray(context, dtype=float)
    total = np.zeros_like(tokens)
    for g in model.groups:
        total = total + g.count * group_kv_read_bytes(g, tokens, kv_format)
    return total


def kv_write_bytes(model: LanguageModel, kv_format: str) -> float:
    """Bytes that one new token writes into the token cache [B]: the slopes of all terms, windowed ones too."""
    return sum(n * t.slope_bytes for n, t in _terms(model, kv_format))


def compressor_state_bytes(model: LanguageModel) -> float:
    """Raw fp32 entries of the block that V4's compressors are filling, per sequence [B]; 0 for other kinds.

    CSA 2*4 slots x 2 planes x 2 halves x (d + di); HCA 128 slots x 2 planes x d. Resident beside KV(L) on each rank,
    not part of it: published KV sizes leave it out.
    """
    f, total = formats().state, 0.0
    for g in model.groups:
        a = g.attention
        if a.kind not in ("csa", "hca"):
            continue
        overlap = f.ring_csa_overlap if a.kind == "csa" else 1
        width = a.head_dim_k + (a.indexer.head_dim if a.indexer is not None else 0)
        total += g.count * a.compress_ratio * overlap * f.ring_planes * overlap * width * f.ring_element
    return total


def _copies(heads: int, tp: int) -> float:
    """Physical over logical copies when ``heads`` are split over ``tp`` ranks: tp*ceil(heads/tp)/heads; 0 heads: tp."""
    return float(tp) if heads == 0 else tp * math.ceil(heads / tp) / heads


def term_copies(term: KvTerm, tp: int) -> float:
    """Physical over logical bytes of one term under TP: tp where it is replicated, tp*ceil(heads/tp)/heads else."""
    return _copies(term.heads, tp)


def group_kv_replication(group: LayerGroup, tp: int) -> float:
    """Bytes over all TP ranks / logical bytes of one layer: tp for MLA and V4, max(1, tp/G) for GQA, 1 for state."""
    layer = layer_kv(group.attention, "bf16")
    return _copies(layer.terms[0].heads, tp) if layer.terms else 1.0


def kv_replication(model: LanguageModel, tp: int, kv_format: str = "bf16") -> float:
    """Bytes over all TP ranks / logical bytes of the token cache, weighted by slope; 1 for a model without one."""
    slopes = [(n * t.slope_bytes, _copies(t.heads, tp)) for n, t in _terms(model, kv_format)]
    total = sum(s for s, _ in slopes)
    return sum(s * c for s, c in slopes) / total if total else 1.0


def kv_bytes_per_rank(model: LanguageModel, length: npt.ArrayLike, kv_format: str, tp: int) -> Array:
    """KV of one sequence on the fullest of ``tp`` ranks [B]: each term x its copies / tp, state split by heads.

    Shape of ``length``. V4's compressor ring is not included.
    """
    tokens = np.asarray(length, dtype=float)
    total = np.zeros_like(tokens)
    for g in model.groups:
        layer = layer_kv(g.attention, kv_format)
        state = layer.state_bytes * (_copies(layer.state_heads, tp) / tp if layer.state_heads else 1.0)
        total = total + g.count * state
        for t in layer.terms:
            share = _copies(t.heads, tp) / tp
            total = total + g.count * share * t.slope_bytes * np.minimum(tokens, t.window_tokens)
    return total


def hit_granularity_tokens(model: LanguageModel, kv_format: str = "bf16") -> int:
    """Prefix hits come in multiples of this many tokens.

    A page (16 GQA, 64 MLA, 256 V4); in hybrid models the page grows until an attention layer's page holds the state of
    a linear layer: ceil(state bytes / bytes per token) rounded up (1056 for Qwen3-Next bf16, 2096 fp8).
    """
    f = formats().state
    layers = [layer_kv(g.attention, kv_format) for g in model.groups]
    kinds = {g.attention.kind for g in model.groups}
    mla = "mla" in kinds
    if kinds & {"csa", "hca"}:
        return f.block_compressed
    state = max((layer.state_bytes for layer in layers), default=0.0)
    page = f.block_mla if mla else f.block_gqa
    slopes = [sum(t.slope_bytes for t in layer.terms) for layer in layers if layer.terms]
    if not state or not slopes:
        return page
    step = f.round_mla if mla else f.round_gqa
    return max(page, math.ceil(state / max(slopes) / step) * step)
