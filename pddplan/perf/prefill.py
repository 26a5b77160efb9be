"""Attention of a prefill pass, and how the chunks of a request add up."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pddplan.llm.flops import AttentionFlops, group_prefill_attention_flops
from pddplan.llm.kv import group_kv_bytes
from pddplan.llm.types import Attention
from pddplan.perf.instance import Array, Instance, attention_groups, kv_share_per_rank, one_layer
from pddplan.perf.layers import OpTime
from pddplan.perf.ops import prefill_attention_time_s

LINEAR_KINDS = frozenset({"gdn", "kda", "lightning", "mamba2"})
SPARSE_KINDS = frozenset({"csa", "hca", "swa"})


def kernel_kind(attention: Attention) -> str:
    """Which efficiency curve a token mixer runs on: gqa, mla, sparse or linear."""
    if attention.kind in LINEAR_KINDS:
        return "linear"
    if attention.kind in SPARSE_KINDS or attention.indexer is not None:
        return "sparse"
    return "mla" if attention.kind == "mla" else "gqa"


def prefill_attention_ops(instance: Instance, sequences: Array, new: Array, cached: Array) -> list[OpTime]:
    """Attention of one pass over ``sequences`` alike, each ``new`` tokens after ``cached`` ones, on one TP rank.

    FLOPs of ``llm.flops`` (models.md section 5), heads split over tp, indexer copied; bytes: KV(cached + new) once.
    Shapes broadcast; one OpTime per distinct token mixer.
    """
    tp = instance.parallelism.tp
    ops: list[OpTime] = []
    for attention, count in attention_groups(instance.model).items():
        group = one_layer(attention)
        flops = group_prefill_attention_flops(group, new, cached)
        held = group_kv_bytes(group, cached + new, instance.kv_cache) * kv_share_per_rank(attention, tp) * sequences
        split = sequences * (flops.dense + flops.linear) / tp
        kind = kernel_kind(attention)
        pair = _pair_flops(attention)
        before = _attended_before(flops.dense, pair.dense, new) if kind != "linear" else 0.0
        seconds = prefill_attention_time_s(
            instance.chip, instance.curves, split, new, held, kind=kind, cached_tokens=before
        )
        zero = np.zeros_like(seconds)
        ops.append(OpTime(f"{attention.kind} attention", "attention", count, seconds, split + zero, held + zero, zero))
        if attention.indexer is not None:
            index = sequences * flops.indexer
            before = _attended_before(flops.indexer, pair.indexer, new)
            seconds = prefill_attention_time_s(
                instance.chip, instance.curves, index, new, zero, dtype="fp8", kind="sparse", cached_tokens=before
            )
            ops.append(OpTime("indexer", "attention", count, seconds, index + zero, zero, zero, "fp8"))
    return ops


@lru_cache(maxsize=1024)
def _pair_flops(attention: Attention) -> AttentionFlops:
    """FLOPs of one query and one key."""
    return group_prefill_attention_flops(one_layer(attention), 1.0, 0.0)


def _attended_before(flops: Array, pair: Array, new: Array) -> Array:
    """Cached tokens that a full-attention pass of the same FLOPs would have: attended context per query - n/2.

    ``pair``: FLOPs of one query and one key. Kernels reach their speed on what they attend, not on what lies outside
    a window or a top-k.
    """
    return np.asarray(flops / (np.maximum(new, 1e-9) * np.maximum(pair, 1e-9)) - 0.5 * new)


def chunk_split(uncached: Array, chunk_tokens: int) -> tuple[Array, Array]:
    """(number of full passes before the last, tokens of the last pass): ``u = full C + tail``, tail in (0, C]."""
    full = np.maximum(np.ceil(uncached / chunk_tokens) - 1.0, 0.0)
    return full, uncached - full * chunk_tokens


def sum_of_full_chunks(full: Array, cached: Array, chunk_tokens: int, grid: Array, seconds: Array) -> Array:
    """Sum of T(C, c + jC) for j < full [s], flat arrays of equal length.

    T is interpolated linearly over the cached tokens on ``grid`` (it is linear in c but for windows and top-k, which
    lie on one side of a grid interval: error below 0.5 %, tested).
    """
    counts = full.astype(np.int64)
    owner = np.repeat(np.arange(counts.size), counts)
    first = np.cumsum(counts) - counts
    before = cached[owner] + (np.arange(owner.size) - first[owner]) * float(chunk_tokens)
    times = np.interp(before, grid, seconds)
    return np.bincount(owner, weights=times, minlength=counts.size)
