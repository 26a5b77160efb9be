"""Memory of an instance: what stands on each chip, and how much KV cache the instance can hold."""

from __future__ import annotations

from dataclasses import dataclass

from pddplan.errors import Excuse
from pddplan.llm.kv import kv_replication
from pddplan.llm.parameters import ParameterCount, attention_parameters, feed_forward_parameters, parameters
from pddplan.llm.weights import WeightBytes, weight_bytes
from pddplan.perf.instance import Instance, kv_share_per_rank, stage_imbalance
from pddplan.units import GB

ACTIVATION_BYTES = 2.0  # bf16 activations
LOGIT_BYTES = 4.0  # logits are sampled in fp32


@dataclass(frozen=True)
class MemoryMap:
    """Bytes per chip (of the fullest pipeline stage), and the logical KV room of the whole instance.

    ``kv_pool_bytes`` is what the sum of KV(L) over the distinct sequences of the instance may reach: copies of
    the same cache over TP ranks count once, DP ranks hold different sequences, stages hold different layers.
    """

    chip_bytes: float
    weight_bytes: float
    activation_bytes: float
    reserve_bytes: float
    kv_bytes_per_chip: float
    kv_pool_bytes: float

    @property
    def capacity_used_without_kv(self) -> float:
        """Share of the chip's memory that isn't KV pool, 0..1."""
        return 1.0 - self.kv_bytes_per_chip / self.chip_bytes


def weight_bytes_per_chip(instance: Instance) -> float:
    """Weights on one chip of the fullest stage [B].

    ``(experts/(tp dp) + linears/tp) * stage share + ends``: routed experts are spread over all tp x dp chips (by expert
    or by slice, the bytes are the same), attention, dense and shared weights are split over tp and copied per dp
    rank, routers and norms are copied on each chip; KV projections are copied where tp > kv heads; MLA down
    projections are copied. Embedding and head are split over tp and stand on the first and the last stage.
    """
    par = instance.parallelism
    count = parameters(instance.model)
    size = weight_bytes(instance.model, instance.weights)
    share = stage_imbalance(instance.model, par.pp) / par.pp
    experts = size.routed_experts / par.stage_chips
    split, copied = _linear_split(instance, count, size)
    ends, norms = _end_bytes(instance, count, size)
    return share * (experts + split / par.tp + copied + norms) + ends / par.tp


def _linear_split(instance: Instance, count: ParameterCount, size: WeightBytes) -> tuple[float, float]:
    """(bytes split over tp, bytes copied on every rank) of the linears that aren't routed experts."""
    per_weight = size.other_linear / count.other_linear if count.other_linear else 0.0
    tp = instance.parallelism.tp
    copied = split = 0.0
    for group in instance.model.groups:
        att = attention_parameters(group.attention, instance.model.hidden)
        split += group.count * (att.sharded + feed_forward_parameters(group.feed_forward, instance.model.hidden).linear)
        copied += group.count * (att.replicated + att.indexer)
        if att.kv:
            copied += group.count * att.kv * kv_share_per_rank(group.attention, tp)
    return split * per_weight, copied * per_weight


def _end_bytes(instance: Instance, count: ParameterCount, size: WeightBytes) -> tuple[float, float]:
    """(embedding and head on the fullest stage, all other unquantised weights) [B]."""
    per_weight = size.rest / count.rest if count.rest else 0.0
    embed, head = count.embed * per_weight, count.head * per_weight
    ends = embed + head if instance.parallelism.pp == 1 else max(embed, head)
    return ends, max(size.rest - embed - head, 0.0)


def activation_bytes_per_chip(instance: Instance, tokens: float, logit_rows: float) -> float:
    """Peak of the activations of a pass of ``tokens`` per DP rank on one chip [B].

    ``tokens (2 h + widest) * 2 + logit_rows * V/tp * 4``: residual stream and its copy, the widest intermediate of any
    layer (FFN in and out, attention in and out, or the expert buffers ``k (h + 2 e)`` of the tokens a chip receives)
    and fp32 logits. An estimate: engines print 1.2 to 7.4 GiB for 8K tokens; the rest is in the engine's reserve.
    """
    model, par = instance.model, instance.parallelism
    widest = 0.0
    for group in model.groups:
        att, ffn = group.attention, group.feed_forward
        heads = att.q_heads * (att.head_dim_k + 2 * att.head_dim_v) + att.kv_heads * (att.head_dim_k + att.head_dim_v)
        if att.kind == "mla":
            heads = att.q_heads * (2 * att.qk_nope_head_dim + 2 * att.qk_rope_head_dim + 2 * att.head_dim_v)
        widest = max(widest, heads / par.tp)
        if ffn.kind == "dense":
            widest = max(widest, ffn.matrices * ffn.intermediate / par.tp)
        elif ffn.kind == "moe":
            # every rank of one DP rank sets aside top_k rows for each token; with several, what arrives: top_k / tp
            rows = ffn.top_k / (par.tp if par.dp > 1 else 1)
            inner = ffn.latent or model.hidden
            widest = max(widest, rows * (inner + ffn.matrices * ffn.expert_intermediate / par.expert_tp))
    return tokens * (2.0 * model.hidden + widest) * ACTIVATION_BYTES + logit_rows * model.vocab / par.tp * LOGIT_BYTES


def memory_map(instance: Instance, max_batch_tokens: float) -> MemoryMap | Excuse:
    """Memory per chip for passes of at most ``max_batch_tokens`` per DP rank; an excuse where the weights don't fit.

    ``pool/chip = memory * fraction - reserve - weights - activations``;
    ``kv_pool = pool/chip * tp * pp * dp / replication(tp) / imbalance of the stages`` (models.md section 2: MLA, DSA
    and V4 caches are copied over TP, KV heads where tp > kv heads).
    """
    chip, par, engine = instance.chip, instance.parallelism, instance.engine
    usable = chip.memory_bytes * engine.memory_fraction - engine.reserve_bytes
    weights = weight_bytes_per_chip(instance)
    logit_rows = min(max_batch_tokens, float(engine.max_batch))
    activations = activation_bytes_per_chip(instance, max_batch_tokens, logit_rows)
    pool = usable - weights - activations
    if pool <= 0.0:
        return Excuse("memory", (weights + activations) / GB, usable / GB, "GB per chip", instance.label)
    copies = kv_replication(instance.model, par.tp, instance.kv_cache)
    logical = pool * par.chips / copies / stage_imbalance(instance.model, par.pp)
    return MemoryMap(chip.memory_bytes, weights, activations, chip.memory_bytes - usable, pool, logical)
