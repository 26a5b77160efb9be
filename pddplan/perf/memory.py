"""Memory of an instance: what stands on each chip, and how much KV cache the instance can hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pddplan.errors import Excuse
from pddplan.llm.kv import kv_replication
from pddplan.llm.parameters import ParameterCount, attention_parameters, feed_forward_parameters, parameters
from pddplan.llm.weights import WeightBytes, weight_bytes, weight_recipe
from pddplan.perf.activations import ACTIVATION_BYTES, activation_bytes_per_chip
from pddplan.perf.instance import Instance, kv_share_per_rank, stage_imbalance
from pddplan.spec.types import Chip
from pddplan.units import GB

EXPERT_ALIGNMENT = 256  # mxfp4 kernels pad the hidden width to a multiple of it


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
    """Weights on one chip of the fullest stage as the engine holds them [B].

    ``(experts/(tp dp) + linears/tp) * stage share + ends``: routed experts are spread over all tp x dp chips (by expert
    or by slice, the bytes are the same), attention, dense and shared weights are split over tp and copied per dp
    rank, routers and norms are copied on each chip; KV projections are copied where tp > kv heads; MLA down
    projections are copied. Embedding and head are split over tp and stand on the first and the last stage. Experts in
    mxfp4 are padded, tables and absorbed projections added (``engine_copies_bytes_per_chip``). Within 0.5 % of vLLM's
    "Model loading took" on 15 logs.
    """
    par = instance.parallelism
    count = parameters(instance.model)
    size = weight_bytes(instance.model, instance.weights)
    share = stage_imbalance(instance.model, par.pp) / par.pp
    experts = size.routed_experts * _expert_padding(instance) / par.stage_chips
    split, copied = _linear_split(instance, count, size)
    ends, norms = _end_bytes(instance, count, size)
    layers = share * (experts + split / par.tp + copied + norms)
    return layers + ends / par.tp + engine_copies_bytes_per_chip(instance)


def _expert_padding(instance: Instance) -> float:
    """Bytes of the experts as held over those of the checkpoint: 3072/2880 for gpt-oss in mxfp4."""
    if weight_recipe(instance.model, instance.weights).experts != "mxfp4":
        return 1.0
    return math.ceil(instance.model.hidden / EXPERT_ALIGNMENT) * EXPERT_ALIGNMENT / instance.model.hidden


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


def engine_copies_bytes_per_chip(instance: Instance) -> float:
    """What an engine makes of the checkpoint and counts as weights, on one chip of the fullest stage [B].

    Rotary tables: ``max_context * rotary dims * 2``, one per width (2.5 GiB for Llama-4-Scout's 10M positions, 32 MiB
    for Llama 3). MLA: the up-projections once more, transposed and 16 bit, so that decode can absorb them:
    ``layers H/tp (d_nope + d_v) r 2`` (vllm/v1/attention/backends/mla/common.py, process_weights_after_loading).
    """
    model, par = instance.model, instance.parallelism
    rotary: set[int] = set()
    absorbed = 0.0
    for group in model.groups:
        att = group.attention
        rotary.add(att.qk_rope_head_dim or att.head_dim_k)
        if att.kind == "mla":
            absorbed += group.count * att.q_heads * (att.qk_nope_head_dim + att.head_dim_v) * att.kv_lora_rank
    share = stage_imbalance(model, par.pp) / par.pp
    return ((model.max_context or 0) * sum(rotary) + share * absorbed / par.tp) * ACTIVATION_BYTES


def memory_map(instance: Instance, max_batch_tokens: float) -> MemoryMap | Excuse:
    """Memory per chip for passes of at most ``max_batch_tokens`` per DP rank; an excuse where the weights don't fit.

    ``kv_pool = pool/chip * tp * pp * dp / replication(tp) / imbalance of the stages`` (models.md section 2: MLA, DSA
    and V4 caches are copied over TP, KV heads where tp > kv heads); pool/chip by the engine's law, ``pool_per_chip``.
    """
    chip, par, engine = instance.chip, instance.parallelism, instance.engine
    weights = weight_bytes_per_chip(instance)
    logit_rows = min(max_batch_tokens, float(engine.max_batch))
    activations = activation_bytes_per_chip(instance, max_batch_tokens, logit_rows)
    pool = pool_per_chip(instance, weights, activations)
    if isinstance(pool, Excuse):
        return pool
    copies = kv_replication(instance.model, par.tp, instance.kv_cache)
    logical = pool * par.chips / copies / stage_imbalance(instance.model, par.pp)
    rest = chip.memory_bytes - weights - activations - pool
    return MemoryMap(chip.memory_bytes, weights, activations, rest, pool, logical)


def pool_per_chip(instance: Instance, weights: float, activations: float) -> float | Excuse:
    """What the engine gives to the KV cache on one chip [B]; an excuse where that is nothing.

    U is the memory that the driver leaves, R what CUDA and NCCL take outside the engine's allocator, f the fraction:
    all (vLLM): ``U f - R - weights - activations``; static (SGLang): ``(U - R) f - weights``, and what is left of the
    chip must hold the activations; free (TensorRT-LLM): ``(U - R - weights - activations) f``.
    """
    engine, usable = instance.engine, usable_bytes(instance.chip)
    reserve = reserve_bytes(instance)
    fraction = memory_fraction(instance)
    free = usable - reserve
    if engine.memory_covers == "all":
        room, share = usable * fraction - reserve, 1.0
    else:
        room, share = free, fraction if engine.memory_covers == "free" else 1.0
    used = weights + activations
    if engine.memory_covers == "static" and free * fraction - weights < room - used:
        room, used = free * fraction, weights
    if room <= used:
        return Excuse("memory", used / GB, room / GB, "GB per chip", instance.label)
    return (room - used) * share


def usable_bytes(chip: Chip) -> float:
    """Memory that programs can have [B]: 0.3 to 1.3 % less than the chip reports on NVIDIA's; all where not known."""
    return chip.memory_bytes if chip.usable_bytes is None else chip.usable_bytes


def reserve_bytes(instance: Instance) -> float:
    """Memory outside the engine's allocator [B]: CUDA's own, and where chips exchange, NCCL's and the all-reduce's."""
    engine = instance.engine
    return engine.reserve_bytes + (engine.exchange_bytes if instance.parallelism.stage_chips > 1 else 0.0)


def memory_fraction(instance: Instance) -> float:
    """The engine's fraction, or what is left when the engine sets aside ``outside`` for all but weights and KV."""
    engine, par = instance.engine, instance.parallelism
    if engine.memory_fraction is not None:
        return engine.memory_fraction
    o = engine.outside
    aside = o.bytes + o.bytes_per_token * engine.chunk_tokens + o.bytes_per_request * engine.max_batch
    aside += o.bytes_per_chip * par.tp * par.pp
    return max(1.0 - aside / instance.chip.memory_bytes, 0.0)
