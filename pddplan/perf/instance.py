"""An instance: one copy of a model on a group of chips, under one engine and one precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from pddplan.llm.kv import group_kv_replication
from pddplan.llm.parameters import parameters
from pddplan.llm.types import Attention, FeedForward, LanguageModel, LayerGroup
from pddplan.llm.weights import experts_dtype, linear_dtype, weight_bytes
from pddplan.perf.curves import EfficiencyCurves
from pddplan.spec.identity import Same
from pddplan.spec.types import Chip, Engine

Array = NDArray[Any]


@dataclass(frozen=True)
class Parallelism:
    """tp: tensor parallel ranks of one attention rank; pp: stages; dp: attention data-parallel ranks; ep: expert ranks.

    ``ep`` experts groups are spread over the tp x dp chips of a stage; what is left, tp x dp / ep, splits each
    expert (``expert_tp``).
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def chips(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def stage_chips(self) -> int:
        return self.tp * self.dp

    @property
    def expert_tp(self) -> int:
        return max(1, self.stage_chips // self.ep)

    def __str__(self) -> str:
        parts = [f"{key}{value}" for key, value in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)) if value > 1]
        if self.ep > 1:
            parts.append(f"ep{self.ep}")
        return "-".join(parts) or "tp1"


def request_nic_bytes_per_s(chip: Chip, parallelism: Parallelism, goodput: float) -> float:
    """Network rate of one request's chips: NIC x chips that hold its KV (tp x pp) x goodput [B/s]."""
    return chip.scale_out_bytes_per_s * (parallelism.tp * parallelism.pp) * goodput


@dataclass(frozen=True)
class Instance:
    """Chip x model x parallelism x engine x formats; ``weights`` and ``kv_cache`` are format names."""

    chip: Chip
    model: LanguageModel
    parallelism: Parallelism
    engine: Engine
    weights: str
    kv_cache: str
    curves: EfficiencyCurves

    @property
    def label(self) -> str:
        return f"{self.model.id} on {self.chip.id} {self.parallelism}"


@dataclass(frozen=True)
class WeightFormats:
    """Effective bytes per weight and compute type of the three classes of weights."""

    expert_bytes: float
    linear_bytes: float
    rest_bytes: float
    expert_dtype: str
    linear_dtype: str


def weight_formats(instance: Instance) -> WeightFormats:
    """bytes(class) / parameters(class), scales included [B/weight], and the type the multiplication runs in."""
    count = parameters(instance.model)
    size = weight_bytes(instance.model, instance.weights)
    return WeightFormats(
        expert_bytes=size.routed_experts / count.routed_experts if count.routed_experts else 0.0,
        linear_bytes=size.other_linear / count.other_linear if count.other_linear else 0.0,
        rest_bytes=size.rest / count.rest if count.rest else 0.0,
        expert_dtype=experts_dtype(instance.model, instance.weights),
        linear_dtype=linear_dtype(instance.model, instance.weights),
    )


def attention_groups(model: LanguageModel) -> Mapping[Attention, int]:
    """Distinct token mixers and how many layers have each."""
    return _attention_groups(Same(model))


@lru_cache(maxsize=1024)
def _attention_groups(model: Same[LanguageModel]) -> Mapping[Attention, int]:
    counts: dict[Attention, int] = {}
    for group in model.value.groups:
        if group.attention.kind != "none":
            counts[group.attention] = counts.get(group.attention, 0) + group.count
    return counts


def feed_forward_groups(model: LanguageModel) -> Mapping[FeedForward, int]:
    """Distinct feed-forward blocks and how many layers have each."""
    counts: dict[FeedForward, int] = {}
    for group in model.groups:
        if group.feed_forward.kind != "none":
            counts[group.feed_forward] = counts.get(group.feed_forward, 0) + group.count
    return counts


def one_layer(attention: Attention) -> LayerGroup:
    """A single layer of this mixer alone: the group functions of ``llm`` then give its figures."""
    return LayerGroup(1, attention, FeedForward("none"))


def kv_share_per_rank(attention: Attention, tp: int) -> float:
    """Part of a layer's KV cache that one TP rank holds: replication/tp.

    GQA: ``ceil(G/tp)/G`` (a head is never split); MLA, DSA, CSA, HCA: 1 (copied); linear states: ``1/tp``.
    """
    return group_kv_replication(one_layer(attention), tp) / tp


def stage_imbalance(model: LanguageModel, pp: int) -> float:
    """Layers of the fullest pipeline stage over the mean: ``ceil(N/pp) pp / N``, at least 1."""
    return math.ceil(model.layers / pp) * pp / model.layers
