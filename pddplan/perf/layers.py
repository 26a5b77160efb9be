"""Ops of a pass that depend on the number of tokens only: projections, feed-forward, experts, communication.

Attention over the context is in ``prefill`` and ``decode``. Times are of the whole model (all layers, the sum over
pipeline stages) on the slowest chip of each stage; FLOPs and bytes are per chip of a stage, summed over stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pddplan.llm.experts import distinct_experts
from pddplan.llm.kv import layer_kv
from pddplan.llm.parameters import attention_parameters
from pddplan.llm.types import Attention, FeedForward
from pddplan.perf.collectives import (
    all_gather_time_s,
    all_reduce_time_s,
    dispatch_combine_time_s,
    reduce_scatter_time_s,
    send_time_s,
)
from pddplan.perf.instance import (
    Array,
    Instance,
    WeightFormats,
    attention_groups,
    feed_forward_groups,
    kv_share_per_rank,
    weight_formats,
)
from pddplan.perf.maxima import normal_maximum
from pddplan.perf.ops import BYTES_PER_VALUE, compute_dtype, gemm_time_s, grouped_gemm_time_s, stream_time_s

OpKind = Literal["gemm", "experts", "attention", "memory", "communication", "expert_communication", "overhead"]
Part = Literal["attention", "dense", "shared", "experts", "dispatch", "combine", "head"]
ACTIVATION_BYTES = 2.0  # bf16
FP8_SCALE_BYTES = 4.0 / 128.0  # one fp32 scale per 128 values of a dispatched hidden state
NORM_PASSES = 8.0  # two norms with residual add: read and write of the hidden state and of the residual, each


@dataclass(frozen=True)
class OpTime:
    """One op of one layer kind: ``count`` launches; the arrays are per launch and per chip; ``part`` of a layer it is
    in.

    seconds [s], flops [FLOP], memory_bytes [B] read or written, link_bytes [B] sent by the chip, dtype of the compute
    roof.
    """

    name: str
    kind: OpKind
    count: float
    seconds: Array
    flops: Array
    memory_bytes: Array
    link_bytes: Array
    dtype: str = "bf16"
    part: Part = "attention"


@dataclass(frozen=True)
class _Pass:
    """What the op builders need: tokens of one attention rank, and of all ranks of the stage."""

    instance: Instance
    formats: WeightFormats
    tokens: Array
    stage_tokens: Array


def token_ops(instance: Instance, tokens: Array, logit_rows: Array, mean_tokens: Array | None = None) -> list[OpTime]:
    """All ops of a pass except attention over the context.

    ``tokens``: through the linear layers of one attention (dp) rank, real >= 0; ``logit_rows``: rows of the head on
    that rank; ``mean_tokens``: tokens per rank averaged over dp ranks (default: all alike), which is what experts see.
    """
    tokens = np.asarray(tokens, dtype=float)
    mean = tokens if mean_tokens is None else np.asarray(mean_tokens, dtype=float)
    context = _Pass(instance, weight_formats(instance), tokens, mean * instance.parallelism.dp)
    ops: list[OpTime] = []
    for attention, count in attention_groups(instance.model).items():
        ops += [op for op in _attention_linears(context, attention, count)]
        ops.append(_kv_write(context, attention, count))
        ops += _all_reduce(context, "attention all-reduce", count)
    for ffn, count in feed_forward_groups(instance.model).items():
        ops += list(_dense(context, ffn, count) if ffn.kind == "dense" else _moe(context, ffn, count))
    ops.append(_norms(context))
    ops.append(_head(context, np.asarray(logit_rows, dtype=float)))
    ops += _stage_sends(context)
    return ops


# ---------------------------------------------------------------- multiplications


def _gemm(
    p: _Pass,
    name: str,
    count: float,
    m: Array,
    n: float,
    k: float,
    dtype: str,
    bytes_per_weight: float,
    part: Part = "attention",
) -> OpTime:
    """Dense multiplication [m, k] x [k, n] with weights read once."""
    weights = n * k * bytes_per_weight
    seconds = gemm_time_s(p.instance.chip, p.instance.curves, m, n, k, dtype, weights)
    moved = np.where(m > 0, weights + m * (k + n) * ACTIVATION_BYTES, 0.0)
    return OpTime(name, "gemm", count, seconds, 2.0 * m * n * k, moved, np.zeros_like(seconds), dtype, part)


def _linear(p: _Pass, name: str, count: float, n: float, k: float, part: Part = "attention") -> OpTime:
    return _gemm(p, name, count, p.tokens, n, k, p.formats.linear_dtype, p.formats.linear_bytes, part)


def _attention_linears(p: _Pass, att: Attention, count: int) -> Iterator[OpTime]:
    """Projections of one token mixer on one TP rank: what is split over heads, over KV heads, and what is copied."""
    hidden, tp = p.instance.model.hidden, p.instance.parallelism.tp
    size = attention_parameters(att, hidden)
    kv = size.kv * kv_share_per_rank(att, tp) if att.kind == "gqa" else 0.0
    if att.kind == "gqa":
        out = att.q_heads * att.head_dim_v / tp
        if att.q_lora_rank:
            yield _linear(p, "latent projection", count, (size.replicated + kv) / hidden, hidden)
            yield _linear(p, "query projection", count, att.q_heads * att.head_dim_k / tp, att.q_lora_rank)
        else:
            yield _linear(p, "qkv projection", count, (size.sharded / tp + kv) / hidden - out, hidden)
    elif att.kind == "mla":
        out = att.q_heads * att.head_dim_v / tp
        query_rank = att.q_lora_rank or 0
        query = att.q_heads * (att.qk_nope_head_dim + att.qk_rope_head_dim) / tp
        yield _linear(p, "latent projection", count, size.replicated / hidden + (0 if query_rank else query), hidden)
        if query_rank:
            yield _linear(p, "query projection", count, query, query_rank)
        if att.output_gate:
            yield _linear(p, "output gate", count, out, hidden)
        up = att.q_heads * (att.qk_nope_head_dim + att.head_dim_v) / tp
        yield _linear(p, "latent expansion", count, up, att.kv_lora_rank)
    elif att.kind in ("csa", "hca", "swa"):
        out = att.o_groups * att.o_lora_rank / tp
        wide = att.q_heads * att.head_dim_k / tp
        yield _linear(p, "latent projection", count, size.replicated / hidden, hidden)
        yield _linear(p, "query projection", count, wide, att.q_lora_rank or hidden)
        yield _linear(p, "grouped output", count, float(att.o_lora_rank), wide)
    else:
        out = att.v_heads * att.v_dim / tp
        yield _linear(p, "input projection", count, size.sharded / tp / hidden - out, hidden)
    if size.indexer:
        yield _linear(p, "indexer projection", count, size.indexer / hidden, hidden)
    yield _linear(p, "output projection", count, hidden, out)


def _dense(p: _Pass, ffn: FeedForward, count: int) -> Iterator[OpTime]:
    hidden, width = p.instance.model.hidden, ffn.intermediate / p.instance.parallelism.tp
    yield _linear(p, "ffn in", count, (ffn.matrices - 1) * width, hidden, "dense")
    yield _linear(p, "ffn out", count, hidden, width, "dense")
    yield _stream(p, "ffn activation", count, p.tokens * ffn.matrices * width * ACTIVATION_BYTES, "dense")
    yield from _all_reduce(p, "ffn all-reduce", count, "dense")


def _moe(p: _Pass, ffn: FeedForward, count: int) -> Iterator[OpTime]:
    """Router, exchange, routed experts of a chip, shared expert. Latent experts work in a narrower width."""
    hidden, tp = p.instance.model.hidden, p.instance.parallelism.tp
    yield _gemm(p, "router", count, p.tokens, ffn.experts, hidden, "bf16", p.formats.rest_bytes, "shared")
    if ffn.latent:
        yield _linear(p, "latent in", count, ffn.latent / tp, hidden, "shared")
        yield _linear(p, "latent out", count, hidden, ffn.latent / tp, "shared")
    if ffn.shared_intermediate:
        width = ffn.shared_intermediate / tp
        yield _linear(p, "shared expert in", count, (ffn.matrices - 1) * width, hidden, "shared")
        yield _linear(p, "shared expert out", count, hidden, width, "shared")
    yield from _routed_experts(p, ffn, count)
    yield from _expert_exchange(p, ffn, count)


def _routed_experts(p: _Pass, ffn: FeedForward, count: int) -> Iterator[OpTime]:
    """Grouped multiplications on the busiest expert rank, each expert split over expert_tp."""
    par, inst = p.instance.parallelism, p.instance
    inner = ffn.latent or inst.model.hidden
    width = ffn.expert_intermediate / par.expert_tp
    rows, experts = busiest_rank(ffn, p.stage_tokens, par.ep, inst.engine.expert_imbalance)
    for name, n, k in (("experts in", (ffn.matrices - 1) * width, inner), ("experts out", inner, width)):
        weights = experts * n * k * p.formats.expert_bytes
        seconds = grouped_gemm_time_s(inst.chip, inst.curves, rows, experts, n, k, p.formats.expert_dtype, weights)
        moved = weights + rows * (n + k) * ACTIVATION_BYTES
        flops = 2.0 * rows * n * k
        zero = np.zeros_like(seconds)
        yield OpTime(name, "experts", count, seconds, flops, moved, zero, p.formats.expert_dtype, "experts")
    yield _stream(p, "expert activation", count, rows * ffn.matrices * width * ACTIVATION_BYTES, "experts")


def busiest_rank(ffn: FeedForward, tokens: Array, ep: int, imbalance: float) -> tuple[Array, Array]:
    """(rows, active experts) of the busiest of ``ep`` expert ranks for ``tokens`` tokens of a stage.

    Mean rows ``m = T k / ep`` x ``imbalance`` (skewed routing), mean active ``a = D(T) / ep``. Under random routing the
    busiest rank has ``m + z sqrt(m)`` rows (Poisson) and ``a + z sqrt(a (1 - a/A))`` of its A = E/ep experts, at most
    A; z: mean of the largest of ep standard normals. Both rise with T. This is what makes expert parallelism slower
    than splitting experts at small batches.
    """
    mean_rows = tokens * ffn.top_k / ep
    active = distinct_experts(ffn.experts, ffn.top_k, tokens) / ep
    if ep <= 1:
        return mean_rows, active
    z, _ = normal_maximum(ep)
    here = ffn.experts / ep
    rows = np.minimum(mean_rows * imbalance + z * np.sqrt(mean_rows), tokens * min(float(ffn.top_k), here))
    spread = z * np.sqrt(active * np.maximum(1.0 - active / here, 0.0))
    return rows, np.minimum(np.minimum(active + spread, here), np.maximum(rows, active))


def _head(p: _Pass, rows: Array) -> OpTime:
    """Logits of ``rows`` tokens; the head's vocabulary is split over tp."""
    model, tp = p.instance.model, p.instance.parallelism.tp
    return _gemm(p, "lm head", 1.0, rows, model.vocab / tp, model.hidden, "bf16", p.formats.rest_bytes, "head")


# ---------------------------------------------------------------- memory traffic


def _stream(p: _Pass, name: str, count: float, moved: Array, part: Part = "attention") -> OpTime:
    seconds = stream_time_s(p.instance.chip, p.instance.curves, moved)
    zero = np.zeros_like(seconds)
    return OpTime(name, "memory", count, seconds, zero, moved, zero, part=part)


def _norms(p: _Pass) -> OpTime:
    """Norms and residual adds of a layer, fused into one stream each: 8 passes over the hidden state."""
    model = p.instance.model
    return _stream(p, "norms", model.layers, p.tokens * model.hidden * NORM_PASSES * ACTIVATION_BYTES)


def _kv_write(p: _Pass, att: Attention, count: int) -> OpTime:
    per_token = sum(term.slope_bytes for term in layer_kv(att, p.instance.kv_cache).terms)
    share = kv_share_per_rank(att, p.instance.parallelism.tp)
    return _stream(p, "kv write", count, p.tokens * per_token * share)


# ---------------------------------------------------------------- communication


def _all_reduce(p: _Pass, name: str, count: float, part: Part = "attention") -> list[OpTime]:
    """All-reduce of the hidden states of one rank's tokens over its tp chips; wire 2 (tp-1)/tp of the message."""
    tp = p.instance.parallelism.tp
    if tp == 1:
        return []
    message = p.tokens * p.instance.model.hidden * ACTIVATION_BYTES
    seconds = all_reduce_time_s(p.instance.chip, p.instance.curves, tp, message)
    return [_wire(name, "communication", count, seconds, 2.0 * (tp - 1) / tp * message, part)]


def _wire(name: str, kind: OpKind, count: float, seconds: Array, link_bytes: Array, part: Part = "attention") -> OpTime:
    zero = np.zeros_like(seconds)
    return OpTime(name, kind, count, seconds, zero, zero, link_bytes, part=part)


def _expert_exchange(p: _Pass, ffn: FeedForward, count: int) -> Iterator[OpTime]:
    """One attention rank: all-reduce of the experts' outputs. Several: tokens go to the experts' chips and back.

    Each direction in the cheaper of two forms: all-to-all (needs whole experts on each chip; a rank's tokens are spread
    over its tp chips first, by reduce-scatter in place of the attention all-reduce) or all-gather and reduce-scatter of
    all tokens of the stage.
    """
    inst, par = p.instance, p.instance.parallelism
    if par.dp == 1:
        yield from _all_reduce(p, "experts all-reduce", count, "shared")
        return
    chip, curves, ranks = inst.chip, inst.curves, par.stage_chips
    inner = ffn.latent or inst.model.hidden
    narrow = compute_dtype(chip, p.formats.expert_dtype) in ("fp8", "int8", "fp4")
    own, message = p.stage_tokens / ranks, p.stage_tokens * inner * ACTIVATION_BYTES
    dispatch = inner * (BYTES_PER_VALUE["fp8"] + FP8_SCALE_BYTES if narrow else ACTIVATION_BYTES)
    directions: tuple[tuple[Part, float, float, Array], ...] = (
        ("dispatch", dispatch, 0.0, all_gather_time_s(chip, curves, ranks, message)),
        ("combine", 0.0, inner * ACTIVATION_BYTES, reduce_scatter_time_s(chip, curves, ranks, message)),
    )
    for part, there, back, seconds in directions:
        sent = message * (ranks - 1) / ranks
        if par.ep == ranks:
            exchange = dispatch_combine_time_s(chip, curves, ranks, own, there, back, ffn.top_k)
            copies = own * min(ffn.top_k, ranks) * (1.0 - 1.0 / ranks) * (there + back)
            sent = np.where(exchange <= seconds, copies, sent)
            seconds = np.minimum(exchange, seconds)
        yield _wire(f"expert {part}", "expert_communication", count, seconds, sent, part)


def _stage_sends(p: _Pass) -> list[OpTime]:
    """Hidden states handed from stage to stage, pp - 1 times, each chip its 1/tp of them."""
    par = p.instance.parallelism
    if par.pp == 1:
        return []
    message = p.tokens * p.instance.model.hidden * ACTIVATION_BYTES / par.tp
    far = par.chips > max(p.instance.chip.chips_per_node, p.instance.chip.scale_up_domain)
    seconds = send_time_s(p.instance.chip, p.instance.curves, message, far)
    return [_wire("stage send", "communication", par.pp - 1, seconds, message)]
