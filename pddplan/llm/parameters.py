"""Parameters of a model from its layer groups, by class: routed experts, other linear weights, the rest.

Symbols: h hidden, H query heads, G KV heads, d head dims, ql/r the low ranks of MLA, dn/p(rope)/dV its head dims,
Hi/di indexer heads/dim, E/k experts/top-k, e expert width. "Linear" are the 2-D weights that engines quantise;
"rest" stays in 16 bit: embedding, head, norms, router, biases, convolutions, decay vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from pddplan.llm.types import Attention, FeedForward, LanguageModel, LayerGroup


@dataclass(frozen=True)
class AttentionParameters:
    """Parameters of one token mixer by the way tensor parallelism treats them.

    ``sharded`` splits over all ranks; ``kv`` (K and V projections) only over KV heads; ``replicated`` stands whole on
    every rank (MLA down-projections); ``indexer`` stands whole on every rank too; ``unquantised`` are 2-D weights that
    checkpoints keep in 16 bit, whole on every rank (compressors, indexer weights); ``rest`` are vectors.
    """

    sharded: int = 0
    kv: int = 0
    replicated: int = 0
    indexer: int = 0
    unquantised: int = 0
    rest: int = 0

    @property
    def linear(self) -> int:
        return self.sharded + self.kv + self.replicated + self.indexer

    @property
    def total(self) -> int:
        return self.linear + self.unquantised + self.rest


@dataclass(frozen=True)
class FeedForwardParameters:
    """Parameters of one feed-forward block; ``shared``: linear weights every token passes besides its experts."""

    dense: int = 0
    shared: int = 0
    per_expert: int = 0
    experts: int = 0
    top_k: int = 0
    router: int = 0
    rest: int = 0
    expert_bias: int = 0  # biases of one expert

    @property
    def routed(self) -> int:
        return self.experts * self.per_expert

    @property
    def linear(self) -> int:
        return self.dense + self.shared

    @property
    def total(self) -> int:
        return self.linear + self.routed + self.router + self.rest + self.experts * self.expert_bias

    @property
    def active(self) -> int:
        return self.linear + self.router + self.rest + self.top_k * (self.per_expert + self.expert_bias)


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer of a group; ``norms``: the norms before (and after) its blocks."""

    attention: AttentionParameters
    feed_forward: FeedForwardParameters
    norms: int

    @property
    def total(self) -> int:
        return self.attention.total + self.feed_forward.total + self.norms

    @property
    def active(self) -> int:
        return self.attention.total + self.feed_forward.active + self.norms


@dataclass(frozen=True)
class ParameterCount:
    """Counts of the whole model, without its multi-token-prediction module."""

    total: int
    active: int
    active_no_embed_no_head: int
    embed: int
    head: int
    attention: int
    routed_experts: int
    per_expert: int
    other_linear: int
    rest: int


def _gqa(a: Attention, h: int) -> AttentionParameters:
    """h*H*dk (twice with an output gate) + h*G*(dk+dv) + H*dv*h, gate h*H, q/k norms, biases, sinks.

    Low-rank queries (MFA): h*ql + ql + ql*H*dk in place of h*H*dk; block-sparse: index queries and key h*(Hi+1)*di.
    """
    query = (a.q_lora_rank or h) * a.q_heads * a.head_dim_k * (2 if a.output_gate else 1)
    query += h * a.q_heads if a.head_gate else 0
    down, rest = h * (a.q_lora_rank or 0), a.q_lora_rank or 0
    indexer = h * (a.indexer.heads + 1) * a.indexer.head_dim if a.indexer is not None else 0
    kv = h * a.kv_heads * (a.head_dim_k + a.head_dim_v)
    out = a.q_heads * a.head_dim_v * h
    if a.qk_norm:
        rest += 2 * a.head_dim_k
    if a.full_qk_norm:
        rest += (a.q_heads + a.kv_heads) * a.head_dim_k
    if a.bias:
        rest += a.q_heads * a.head_dim_k + a.kv_heads * (a.head_dim_k + a.head_dim_v)
    if a.output_bias:
        rest += h
    if a.sinks:
        rest += a.q_heads
    return AttentionParameters(sharded=query + out, kv=kv, replicated=down, indexer=indexer, rest=rest)


def _mla(a: Attention, h: int) -> AttentionParameters:
    """h*ql + ql*H*(dn+p) + h*(r+p) + r*H*(dn+dV) + H*dV*h + norms; without ql: h*H*(dn+p); gate h*H*dV."""
    per_head = a.qk_nope_head_dim + a.qk_rope_head_dim
    down = h * (a.kv_lora_rank + a.qk_rope_head_dim)
    sharded = a.kv_lora_rank * a.q_heads * (a.qk_nope_head_dim + a.head_dim_v) + a.q_heads * a.head_dim_v * h
    if a.output_gate:
        sharded += h * a.q_heads * a.head_dim_v
    norms = a.kv_lora_rank
    if a.q_lora_rank is None:
        sharded += h * a.q_heads * per_head
    else:
        down += h * a.q_lora_rank
        sharded += a.q_lora_rank * a.q_heads * per_head
        norms += a.q_lora_rank
    indexer = weights = 0
    if a.indexer is not None and a.indexer.own_cache and a.q_lora_rank is not None:
        i = a.indexer
        indexer, weights = a.q_lora_rank * i.heads * i.head_dim + h * i.head_dim, h * i.heads
        norms += 2 * i.head_dim
    return AttentionParameters(sharded=sharded, replicated=down, indexer=indexer, unquantised=weights, rest=norms)


def _gdn(a: Attention, h: int) -> AttentionParameters:
    """Gated DeltaNet: q, k, v, gate, beta, decay projections; depth-wise convolution; decay vectors; output norm."""
    key, value = a.k_heads * a.k_dim, a.v_heads * a.v_dim
    linear = h * (2 * key + 2 * value) + h * 2 * a.v_heads + value * h
    rest = (2 * key + value) * a.conv_kernel + 2 * a.v_heads + a.v_dim
    return AttentionParameters(sharded=linear, rest=rest)


def _kda(a: Attention, h: int) -> AttentionParameters:
    """Kimi delta attention: q, k, v, decay and gate (of rank d or full), beta; three convolutions; decay vectors."""
    wide, d = a.v_heads * a.v_dim, a.v_dim
    gate = h * wide if a.full_rank_gate else h * d + d * wide
    linear = 3 * h * wide + 2 * gate + h * a.v_heads + wide * h
    rest = 3 * wide * a.conv_kernel + a.v_heads + wide + d
    return AttentionParameters(sharded=linear, rest=rest)


def _lightning(a: Attention, h: int) -> AttentionParameters:
    """Lightning attention: q, k, v, output gate, output projection; norm over all heads."""
    wide = a.v_heads * a.v_dim
    return AttentionParameters(sharded=5 * h * wide, rest=wide)


def _mamba2(a: Attention, h: int) -> AttentionParameters:
    """Mamba2: h*(2*H*P + 2*g*S + H) in, H*P*h out, convolution with bias, dt/A/D, gated norm."""
    inner, conv = a.v_heads * a.v_dim, a.v_heads * a.v_dim + 2 * a.groups * a.state
    linear = h * (inner + conv + a.v_heads) + inner * h
    rest = conv * (a.conv_kernel + 1) + 3 * a.v_heads + inner
    return AttentionParameters(sharded=linear, rest=rest)


def _compressed(a: Attention, h: int) -> AttentionParameters:
    """DeepSeek V4: low-rank q, one shared K=V head, grouped low-rank output, compressor, indexer (CSA).

    Hyper-connections of multiplicity m add 2*((2+m)*m*m*h + 27) to a layer.
    """
    d, wide, ql = a.head_dim_k, a.q_heads * a.head_dim_k, a.q_lora_rank or 0
    sharded = ql * wide + wide * a.o_lora_rank + a.o_groups * a.o_lora_rank * h
    replicated = h * ql + h * d
    rest = ql + d + a.q_heads
    if a.hc_mult:
        rest += 2 * ((2 + a.hc_mult) * a.hc_mult**2 * h + 27)
    indexer = compressor = 0
    if a.kind == "csa" and a.indexer is not None:
        i = a.indexer
        indexer = ql * i.heads * i.head_dim
        compressor = 4 * h * (d + i.head_dim) + h * i.heads
        rest += 9 * d + 9 * i.head_dim
    elif a.kind == "hca":
        compressor = 2 * h * d
        rest += (a.compress_ratio + 1) * d
    return AttentionParameters(
        sharded=sharded, replicated=replicated, indexer=indexer, unquantised=compressor, rest=rest
    )


_MIXERS = {
    "gqa": _gqa,
    "mla": _mla,
    "gdn": _gdn,
    "kda": _kda,
    "lightning": _lightning,
    "mamba2": _mamba2,
    "csa": _compressed,
    "hca": _compressed,
    "swa": _compressed,
}


def attention_parameters(attention: Attention, hidden: int) -> AttentionParameters:
    """Parameters of one layer's token mixer, its inner norms included."""
    if attention.kind == "none":
        return AttentionParameters()
    return _MIXERS[attention.kind](attention, hidden)


def feed_forward_parameters(ff: FeedForward, hidden: int) -> FeedForwardParameters:
    """m*h*e dense; E*m*w*e routed with w = hidden or the latent width; router h*E (+E bias); shared m*h*e_s.

    Score-correction biases that only steer routing are buffers, not parameters: they are not counted.
    """
    h = hidden
    if ff.kind == "none":
        return FeedForwardParameters()
    if ff.kind == "dense":
        rest = (ff.matrices - 1) * ff.intermediate + h if ff.bias else 0
        return FeedForwardParameters(dense=ff.matrices * h * ff.intermediate, rest=rest)
    width = ff.latent or h
    shared = ff.matrices * h * ff.shared_intermediate + (2 * h * ff.latent if ff.latent else 0)
    router = h * ff.experts + (ff.experts if ff.router_bias else 0) + (h if ff.shared_gate else 0)
    return FeedForwardParameters(
        shared=shared,
        per_expert=ff.matrices * width * ff.expert_intermediate,
        experts=ff.experts,
        top_k=ff.top_k,
        router=router,
        expert_bias=(ff.matrices - 1) * ff.expert_intermediate + h if ff.bias else 0,
    )


def layer_parameters(group: LayerGroup, hidden: int) -> LayerParameters:
    """Parameters of one layer of ``group``: token mixer, feed-forward, one norm before each (two if sandwiched)."""
    a, ff = group.attention, group.feed_forward
    norms = hidden * ((a.kind != "none") + (ff.kind != "none")) * (2 if a.sandwich_norms else 1)
    return LayerParameters(attention_parameters(a, hidden), feed_forward_parameters(ff, hidden), norms)


def mtp_parameters(layers: Iterable[LayerGroup], hidden: int, modules: int) -> int:
    """Parameters of the multi-token-prediction modules: each its layers + 2h^2 + 3h, embedding and head shared.

    2h^2 joins the last hidden state and the next token's embedding; 3h are the norms of both and of the output.
    Source: DeepSeek-V3 (https://arxiv.org/abs/2412.19437 section 2.2); an estimate for other families.
    """
    return modules * (sum(layer_parameters(g, hidden).total for g in layers) + 2 * hidden**2 + 3 * hidden)


def hyper_connection_parameters(hidden: int, multiplicity: int) -> int:
    """Parameters of the hyper-connections outside the layers: m^2 h + 5; 0 without. Source: DeepSeek V4."""
    return multiplicity**2 * hidden + 5 if multiplicity else 0


@lru_cache(maxsize=64)
def parameters(model: LanguageModel) -> ParameterCount:
    """Parameters of the model by class, exact integers; the final norm is counted, the MTP module is not.

    Source: per-kind formulas above, equal to the parameter counts of the released checkpoints.
    """
    embed = model.vocab * model.hidden
    head = 0 if model.tied_embeddings else embed
    total = active = attention = routed = linear = per_expert = 0
    for group in model.groups:
        layer = layer_parameters(group, model.hidden)
        total += group.count * layer.total
        active += group.count * layer.active
        attention += group.count * layer.attention.total
        routed += group.count * layer.feed_forward.routed
        linear += group.count * (layer.attention.linear + layer.feed_forward.linear)
        per_expert = max(per_expert, layer.feed_forward.per_expert)
    outside = model.hidden + model.extra_parameters
    total += outside + embed + head
    active += outside
    return ParameterCount(
        total=total,
        active=active + embed + head,
        active_no_embed_no_head=active,
        embed=embed,
        head=head,
        attention=attention,
        routed_experts=routed,
        per_expert=per_expert,
        other_linear=linear,
        rest=total - routed - linear,
    )
