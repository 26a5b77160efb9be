"""Storage formats of weights and KV caches: the typed view of ``formats.yaml``, where the numbers and sources are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

KV_FORMATS: tuple[str, ...] = ("bf16", "fp8")


@dataclass(frozen=True)
class WeightFormat:
    """bytes_per_weight includes the scales; ``compute`` may be ``activation``: expanded to the activations' dtype."""

    name: str
    bytes_per_weight: float
    compute: str


@dataclass(frozen=True)
class Recipe:
    """Weight format per class of weights."""

    experts: str
    linear: str
    rest: str
    dense_linear: str  # linears of a model that has no routed experts


@dataclass(frozen=True)
class KvLayout:
    """Bytes of KV cache entries in one format."""

    element: float
    latent_element: float
    latent_scale_bytes: float
    latent_scale_group: int
    rope_element: float
    index_element: float
    index_scale_bytes: float
    index_scale_group: int
    compressed_element: float
    compressed_rope_element: float
    compressed_scale_bytes: float
    compressed_index_element: float
    compressed_index_scale_bytes: float
    compressed_index_scale_group: int


@dataclass(frozen=True)
class StateFormat:
    """Bytes per element of recurrent and convolution state; V4's compressor ring; block sizes in tokens."""

    recurrent_element: float
    conv_element: float
    ring_element: float
    ring_planes: int
    ring_csa_overlap: int
    block_gqa: int
    block_mla: int
    block_compressed: int
    round_gqa: int
    round_mla: int
    compressed_alignment_bytes: int


@dataclass(frozen=True)
class Formats:
    weights: Mapping[str, WeightFormat]
    recipes: Mapping[str, Recipe]
    kv_cache: Mapping[str, KvLayout]
    state: StateFormat


def _kv_layout(data: Mapping[str, Any]) -> KvLayout:
    latent, index = data["latent"], data["index"]
    entry, entry_index = data["compressed"], data["compressed_index"]
    return KvLayout(
        element=data["element"],
        latent_element=latent["element"],
        latent_scale_bytes=latent["scale_bytes"],
        latent_scale_group=latent["scale_group"],
        rope_element=latent["rope_element"],
        index_element=index["element"],
        index_scale_bytes=index["scale_bytes"],
        index_scale_group=index["scale_group"],
        compressed_element=entry["element"],
        compressed_rope_element=entry["rope_element"],
        compressed_scale_bytes=entry["scale_bytes"],
        compressed_index_element=entry_index["element"],
        compressed_index_scale_bytes=entry_index["scale_bytes"],
        compressed_index_scale_group=entry_index["scale_group"],
    )


def _state_format(data: Mapping[str, Any]) -> StateFormat:
    ring, blocks = data["compressor_ring"], data["block_tokens"]
    return StateFormat(
        recurrent_element=data["state"]["recurrent_element"],
        conv_element=data["state"]["conv_element"],
        ring_element=ring["element"],
        ring_planes=ring["planes"],
        ring_csa_overlap=ring["csa_overlap"],
        block_gqa=blocks["gqa"],
        block_mla=blocks["mla"],
        block_compressed=blocks["compressed"],
        round_gqa=blocks["linear_round_gqa"],
        round_mla=blocks["linear_round_mla"],
        compressed_alignment_bytes=blocks["compressed_alignment_bytes"],
    )


@lru_cache(maxsize=1)
def formats() -> Formats:
    """The formats file, read once."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load((resources.files("pddplan.llm") / "formats.yaml").read_text("utf-8"), Loader=loader)
    weights = {
        name: WeightFormat(name, w["bits"] / 8 + w["scale_bytes"] / w["group"], w["compute"])
        for name, w in data["weights"].items()
    }
    recipes = {
        name: Recipe(r["experts"], r["linear"], r["rest"], r.get("dense_linear", r["linear"]))
        for name, r in data["recipes"].items()
    }
    layouts = {name: _kv_layout(layout) for name, layout in data["kv_cache"].items()}
    return Formats(weights, recipes, layouts, _state_format(data))


def kv_layout(kv_format: str) -> KvLayout:
    """Layout of a KV format; ValueError for an unknown one."""
    layouts = formats().kv_cache
    if kv_format not in layouts:
        raise ValueError(f"unknown KV cache format {kv_format!r}; one of {', '.join(layouts)}")
    return layouts[kv_format]
