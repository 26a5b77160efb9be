"""Which layers a ``model_type`` of Hugging Face has: the typed view of ``architectures.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

Names = tuple[str, ...]


@dataclass(frozen=True)
class Mixer:
    """How a token mixer is read: its kind, what the class has without saying so, what keys switch on."""

    kind: str
    facts: Mapping[str, Any]
    when: Mapping[str, Names]
    inside: str  # a mapping whose keys come first
    prefix: str  # names that come first with this before them


@dataclass(frozen=True)
class FeedForwardRule:
    names: Mapping[str, Names]  # of this family, before the common ones
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class PredictionModules:
    """Multi-token prediction: modules where no key says so, and the layer each has ("" = as the last layer)."""

    default: int | None
    mixers: Names
    feed_forward: str


@dataclass(frozen=True)
class Family:
    name: str
    pattern: Names
    mixers: Mapping[str, Mixer]
    experts: bool
    feed_forward: FeedForwardRule
    mtp: PredictionModules
    tied_embeddings: bool
    source: str

    def has(self, label: str) -> bool:
        return label in self.mixers or (label in ("window", "chunk") and "full" in self.mixers)

    def mixer(self, label: str) -> Mixer:
        """The mixer of layers with this label; windows and chunks are as full attention unless named."""
        return self.mixers[label] if label in self.mixers else self.mixers["full"]


@dataclass(frozen=True)
class Architectures:
    fields: Mapping[str, Any]  # mixer, or another group of fields -> card field -> names in config.json
    families: Mapping[str, Family]


def _names(data: Mapping[str, Any] | None) -> Mapping[str, Names]:
    return {key: tuple(names) for key, names in (data or {}).items()}


def _mixer(data: Mapping[str, Any]) -> Mixer:
    return Mixer(
        data["kind"], data.get("facts", {}), _names(data.get("when")), data.get("inside", ""), data.get("prefix", "")
    )


def _family(name: str, data: Mapping[str, Any]) -> Family:
    ffn, mtp = data.get("feed_forward", {}), data.get("mtp", {})
    return Family(
        name=name,
        pattern=tuple(data["pattern"]),
        mixers={label: _mixer(mixer) for label, mixer in data["mixers"].items()},
        experts=data.get("experts", False),
        feed_forward=FeedForwardRule(_names(ffn.get("names")), ffn.get("facts", {})),
        mtp=PredictionModules(mtp.get("default"), tuple(mtp.get("mixers", ())), mtp.get("feed_forward", "")),
        tied_embeddings=data.get("tied_embeddings", False),
        source=data["source"],
    )


@lru_cache(maxsize=1)
def architectures() -> Architectures:
    """The table, read once."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load((resources.files("pddplan.llm") / "architectures.yaml").read_text("utf-8"), Loader=loader)
    return Architectures(data["fields"], {name: _family(name, family) for name, family in data["families"].items()})


@lru_cache(maxsize=1)
def known_names() -> frozenset[str]:
    """Every name that some field has in config.json."""
    groups = (group.values() if isinstance(group, Mapping) else (group,) for group in architectures().fields.values())
    return frozenset(name for lists in groups for names in lists for name in names)
