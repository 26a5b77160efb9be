"""FLOPs (2 per multiply-add) of prefill and decode: projections per token plus attention over query-key pairs.

n new tokens over c cached ones see S(n,c) = nc + n(n+1)/2 pairs under a causal mask; within a window W
sum_i min(c+i, W). All functions broadcast over n, c and context. Sources per kind stand at the functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pddplan.llm.parameters import parameters
from pddplan.llm.types import Attention, LanguageModel, LayerGroup

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AttentionFlops:
    """FLOPs of one layer beyond its projections, by class of kernel; arrays of one shape."""

    dense: Array  # softmax attention over the attended entries
    indexer: Array  # scoring of index keys (fp8)
    linear: Array  # recurrences of linear attention and state-space layers

    @property
    def total(self) -> Array:
        return self.dense + self.indexer + self.linear


def causal_pairs(new: npt.ArrayLike, cached: npt.ArrayLike) -> Array:
    """Query-key pairs of n new tokens over c cached: nc + n(n+1)/2."""
    n, c = np.asarray(new, dtype=float), np.asarray(cached, dtype=float)
    return np.asarray(n * c + n * (n + 1.0) / 2.0)


def window_pairs(new: npt.ArrayLike, cached: npt.ArrayLike, window: float) -> Array:
    """sum_{i=1..n} min(c + i, W): a queries still inside the window see c + i keys, the others W."""
    n, c = np.asarray(new, dtype=float), np.asarray(cached, dtype=float)
    inside = np.clip(window - c, 0.0, n)
    return np.asarray(inside * c + inside * (inside + 1.0) / 2.0 + (n - inside) * window)


def chunk_pairs(new: npt.ArrayLike, cached: npt.ArrayLike, chunk: float) -> Array:
    """Pairs when attention restarts at multiples of C: T(c+n) - T(c), T(m) = qC(C+1)/2 + r(r+1)/2, m = qC + r.

    Grows with n, but not with c: a prefix that ends at a multiple of C has nothing to attend.
    """

    def up_to(m: Array) -> Array:
        whole = np.floor(m / chunk)
        left = m - whole * chunk
        return np.asarray(whole * chunk * (chunk + 1.0) / 2.0 + left * (left + 1.0) / 2.0)

    n, c = np.asarray(new, dtype=float), np.asarray(cached, dtype=float)
    return up_to(c + n) - up_to(c)


def _linear_per_token(a: Attention) -> float:
    """Recurrence FLOPs per token: GDN and KDA 8H dk dv, lightning 4H d^2, Mamba2 6H P S.

    The recurrent form; chunked kernels add O(chunk) per token.
    """
    if a.kind in ("gdn", "kda"):
        return 8.0 * a.v_heads * a.k_dim * a.v_dim
    if a.kind == "lightning":
        return 4.0 * a.v_heads * a.k_dim * a.v_dim
    if a.kind == "mamba2":
        return 6.0 * a.v_heads * a.v_dim * a.state
    return 0.0


def _mla_pair_flops(a: Attention, absorbed: bool) -> float:
    """FLOPs of one pair: absorbed 2H(2r+p), un-absorbed 2H(dn+p+dV)."""
    if absorbed:
        return 2.0 * a.q_heads * (2 * a.kv_lora_rank + a.qk_rope_head_dim)
    return 2.0 * a.q_heads * (a.qk_nope_head_dim + a.qk_rope_head_dim + a.head_dim_v)


def _mla_prefill(a: Attention, n: Array, c: Array, absorbed: bool | None) -> Array:
    """MLA: un-absorbed pairs plus re-expansion of cached latents 2cr H(dn+dV), or absorbed pairs; None: the cheaper.

    With an indexer the absorbed form attends min(c+i, k) entries (DeepSeek-V3.2); its other form is the masked MHA that
    DeepSeek uses for short prompts (https://arxiv.org/abs/2512.02556). A pass of 0 tokens expands nothing.
    """
    top = a.indexer.top_k if a.indexer is not None else np.inf
    sparse = window_pairs(n, c, top) if np.isfinite(top) else causal_pairs(n, c)
    in_latents = _mla_pair_flops(a, True) * sparse
    if absorbed or (absorbed is False and a.indexer is not None):
        return in_latents
    expand = 2.0 * a.kv_lora_rank * a.q_heads * (a.qk_nope_head_dim + a.head_dim_v) * c * (n > 0)
    expanded = np.asarray(_mla_pair_flops(a, False) * causal_pairs(n, c) + expand)
    return expanded if absorbed is False else np.minimum(in_latents, expanded)


def _indexer_prefill(a: Attention, n: Array, c: Array) -> Array:
    """Index scores 2 Hi di S, over S/ratio compressed keys in V4; layers that share an index don't score again."""
    if a.indexer is None or not a.indexer.own_cache:
        return np.zeros(np.broadcast_shapes(n.shape, c.shape))
    ratio = a.compress_ratio or 1
    return 2.0 * a.indexer.heads * a.indexer.head_dim / ratio * causal_pairs(n, c)


def _compressed_prefill(a: Attention, n: Array, c: Array) -> Array:
    """V4: 2H(dk+dv)(S_W + S_{ratio*k}/ratio) for CSA, 2H(dk+dv)(S_W + S/ratio) for HCA."""
    pairs = window_pairs(n, c, float(a.window or np.inf))
    if a.compress_ratio and a.indexer is not None:
        pairs = pairs + window_pairs(n, c, float(a.indexer.top_k * a.compress_ratio)) / a.compress_ratio
    elif a.compress_ratio:
        pairs = pairs + causal_pairs(n, c) / a.compress_ratio
    return 2.0 * a.q_heads * (a.head_dim_k + a.head_dim_v) * pairs


def group_prefill_attention_flops(
    group: LayerGroup, new: npt.ArrayLike, cached: npt.ArrayLike, absorbed: bool | None = None
) -> AttentionFlops:
    """Attention FLOPs of ONE layer of ``group`` for n new tokens over c cached, by kernel class.

    ``absorbed``: how MLA attends, None = the cheaper. GQA 2H(dk+dv) per pair, block-sparse at most top-k keys a
    query; kernels that don't skip masked tiles do up to twice as much. Shapes broadcast.
    """
    a = group.attention
    n, c = np.broadcast_arrays(np.asarray(new, dtype=float), np.asarray(cached, dtype=float))
    zero = np.zeros(n.shape)
    if a.kind == "gqa":
        seen = a.indexer.top_k if a.indexer is not None else a.window
        if a.chunk:
            pairs = chunk_pairs(n, c, float(a.chunk))
        else:
            pairs = window_pairs(n, c, float(seen)) if seen else causal_pairs(n, c)
        dense = 2.0 * a.q_heads * (a.head_dim_k + a.head_dim_v) * pairs
        return AttentionFlops(dense, _indexer_prefill(a, n, c), zero)
    if a.kind == "mla":
        return AttentionFlops(_mla_prefill(a, n, c, absorbed), _indexer_prefill(a, n, c), zero)
    if a.kind in ("csa", "hca", "swa"):
        return AttentionFlops(_compressed_prefill(a, n, c), _indexer_prefill(a, n, c), zero)
    return AttentionFlops(zero, zero, _linear_per_token(a) * n)


def _sparse_decode(a: Attention, length: Array) -> tuple[Array, Array]:
    """(entries attended, FLOPs of index scores) of one new token: min(L, k) and 2 Hi di L with an indexer."""
    if a.indexer is None:
        return length, np.zeros_like(length)
    scored = length if a.indexer.own_cache else np.zeros_like(length)
    return np.minimum(length, a.indexer.top_k), 2.0 * a.indexer.heads * a.indexer.head_dim * scored


def group_decode_attention_flops(group: LayerGroup, context: npt.ArrayLike) -> AttentionFlops:
    """Attention FLOPs of ONE layer for one new token that attends ``context`` tokens (itself among them).

    The absorbed form of MLA; chunked attention at its full chunk, as an upper bound. Shape of ``context``.
    """
    a, length = group.attention, np.asarray(context, dtype=float)
    zero = np.zeros_like(length)
    if a.kind == "gqa":
        seen, index = _sparse_decode(a, np.minimum(length, min(a.window or np.inf, a.chunk or np.inf)))
        return AttentionFlops(2.0 * a.q_heads * (a.head_dim_k + a.head_dim_v) * seen, index, zero)
    if a.kind == "mla":
        seen, index = _sparse_decode(a, length)
        return AttentionFlops(_mla_pair_flops(a, True) * seen, index, zero)
    if a.kind in ("csa", "hca", "swa"):
        seen, index = np.minimum(length, a.window or np.inf), zero
        if a.compress_ratio:
            entries = length / a.compress_ratio
            if a.indexer is not None:
                index = 2.0 * a.indexer.heads * a.indexer.head_dim * entries
                entries = np.minimum(entries, a.indexer.top_k)
            seen = seen + entries
        return AttentionFlops(2.0 * a.q_heads * (a.head_dim_k + a.head_dim_v) * seen, index, zero)
    return AttentionFlops(zero, zero, zero + _linear_per_token(a))


def linear_flops_per_token(model: LanguageModel) -> float:
    """2 x active parameters without embedding and head: every weight a token passes, once."""
    return 2.0 * parameters(model).active_no_embed_no_head


def head_flops(model: LanguageModel) -> float:
    """2hV: FLOPs of the logits of one token."""
    return 2.0 * model.hidden * model.vocab


def prefill_attention_flops(
    model: LanguageModel, new: npt.ArrayLike, cached: npt.ArrayLike, absorbed: bool | None = None
) -> Array:
    """Attention FLOPs of the whole model for n new tokens over c cached; see ``group_prefill_attention_flops``."""
    total = np.zeros(np.broadcast_shapes(np.shape(new), np.shape(cached)))
    for g in model.groups:
        total = total + g.count * group_prefill_attention_flops(g, new, cached, absorbed).total
    return total


def prefill_flops(
    model: LanguageModel, new: npt.ArrayLike, cached: npt.ArrayLike, absorbed: bool | None = False
) -> Array:
    """FLOPs of a prefill pass: linear x n + attention + one head (the last token's logits).

    ``absorbed`` False: MLA un-absorbed, but sparse (DSA) layers in their absorbed form. Shapes broadcast.
    """
    linear = linear_flops_per_token(model) * np.asarray(new, dtype=float)
    return linear + head_flops(model) + prefill_attention_flops(model, new, cached, absorbed)


def decode_flops(model: LanguageModel, context: npt.ArrayLike) -> Array:
    """FLOPs of one decoded token at ``context`` tokens: linear + head + attention. Shape of ``context``."""
    length = np.asarray(context, dtype=float)
    total = np.full_like(length, linear_flops_per_token(model) + head_flops(model))
    for g in model.groups:
        total = total + g.count * group_decode_attention_flops(g, length).total
    return total
