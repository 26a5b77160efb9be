"""A model card (plain data from YAML) -> ``LanguageModel``, with every problem of the card found in one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pddplan.llm.formats import formats
from pddplan.llm.types import Attention, FeedForward, Indexer, LanguageModel, LayerGroup, WeightRecipe
from pddplan.spec.issues import Issue, KeyPath, closest, shown

SCHEMA = "pddplan.card/1"
MAX_COUNT = 10**13  # no field of a card is larger than this

_SOFTMAX = ("q_heads", "kv_heads", "head_dim_k", "head_dim_v")
_COMPRESSED = (*_SOFTMAX, "qk_rope_head_dim", "q_lora_rank", "o_groups", "o_lora_rank")
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "gqa": _SOFTMAX,
    "mla": ("q_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "head_dim_v"),
    "gdn": ("k_heads", "v_heads", "k_dim", "v_dim", "conv_kernel"),
    "kda": ("k_heads", "v_heads", "k_dim", "v_dim", "conv_kernel"),
    "lightning": ("k_heads", "v_heads", "k_dim", "v_dim"),
    "mamba2": ("v_heads", "v_dim", "groups", "state", "conv_kernel"),
    "csa": (*_COMPRESSED, "window", "compress_ratio", "indexer"),
    "hca": (*_COMPRESSED, "window", "compress_ratio"),
    "swa": (*_COMPRESSED, "window"),
    "dense": ("intermediate",),
    "moe": ("experts", "top_k", "expert_intermediate"),
    "none": (),
}


def _near(word: object, words: Iterable[str]) -> str:
    near = closest(str(word), words)
    return f"Did you mean {near}?" if near else ""


class _Reader:
    """Collects what is wrong while records are built; a record with a problem is None."""

    def __init__(self) -> None:
        self.issues: list[Issue] = []

    def wrong(self, where: KeyPath, message: str, fix: str = "") -> None:
        self.issues.append(Issue(message, fix, where))

    def mapping(self, data: Any, where: KeyPath) -> Mapping[str, Any] | None:
        if isinstance(data, Mapping):
            return data
        self.wrong(where, f"must be a mapping, not {shown(data)}.")
        return None

    def value(self, data: Any, kind: Any, where: KeyPath) -> Any:
        """One scalar of the type a field declares: int, bool, str, a Literal, or None where the type allows it."""
        allowed = get_args(kind)
        if get_origin(kind) is Literal:
            if data in allowed:
                return data
            self.wrong(where, f"must be one of {', '.join(allowed)}, not {shown(data)}.", _near(data, allowed))
        elif data is None and type(None) in allowed:
            return None
        elif kind is bool:
            if isinstance(data, bool):
                return data
            self.wrong(where, f"must be true or false, not {shown(data)}.")
        elif kind is str:
            if isinstance(data, str) and data:
                return data
            self.wrong(where, f"must be text, not {shown(data)}.")
        else:
            if isinstance(data, int) and not isinstance(data, bool) and 0 <= data <= MAX_COUNT:
                return data
            self.wrong(where, f"must be a whole number from 0, not {shown(data)}.")
        return None

    def record(self, cls: type, data: Any, where: KeyPath, nested: Mapping[str, type] | None = None) -> dict[str, Any]:
        """Keyword arguments of dataclass ``cls``: unknown keys, missing keys and wrong types are noted."""
        found: dict[str, Any] = {}
        mapping = self.mapping(data, where)
        if mapping is None:
            return found
        known, hints = _fields(cls), _hints(cls)
        for key, value in mapping.items():
            if key not in known:
                fix = _near(key, known) or f"Known: {', '.join(known)}."
                self.wrong((*where, str(key)), "unknown key.", fix)
            elif nested and key in nested:
                found[key] = value
            else:
                found[key] = self.value(value, hints[key], (*where, key))
        for name, f in known.items():
            if name not in mapping and f.default is MISSING:
                self.wrong((*where, name), "is missing.")
        return found

    def needed(self, kind: Any, found: Mapping[str, Any], where: KeyPath) -> None:
        for name in _NEEDED.get(kind, ()):
            if not found.get(name):
                self.wrong((*where, name), f"must be given and above 0 for kind {kind}.")


@lru_cache(maxsize=16)
def _fields(cls: type) -> dict[str, Field[Any]]:
    return {f.name: f for f in fields(cls)}


@lru_cache(maxsize=16)
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _attention(reader: _Reader, data: Any, where: KeyPath) -> Attention | None:
    before = len(reader.issues)
    found = reader.record(Attention, data, where, {"indexer": Indexer})
    if found.get("indexer") is not None:
        index = reader.record(Indexer, found["indexer"], (*where, "indexer"))
        found["indexer"] = Indexer(**index) if len(reader.issues) == before else None
    reader.needed(found.get("kind"), found, where)
    return Attention(**found) if len(reader.issues) == before else None


def _feed_forward(reader: _Reader, data: Any, where: KeyPath) -> FeedForward | None:
    before = len(reader.issues)
    found = reader.record(FeedForward, data, where)
    reader.needed(found.get("kind"), found, where)
    if found.get("kind") == "moe" and (found.get("top_k") or 0) > (found.get("experts") or 0):
        reader.wrong((*where, "top_k"), f"is {found['top_k']}, more than the {found['experts']} experts.")
    return FeedForward(**found) if len(reader.issues) == before else None


def _groups(reader: _Reader, data: Any) -> tuple[LayerGroup, ...]:
    if not isinstance(data, list) or not data:
        reader.wrong(("groups",), f"must be a list of layer groups, not {shown(data)}.")
        return ()
    groups = []
    for i, item in enumerate(data):
        where: KeyPath = ("groups", i)
        found = reader.record(LayerGroup, item, where, {"attention": Attention, "feed_forward": FeedForward})
        attention = _attention(reader, found["attention"], (*where, "attention")) if "attention" in found else None
        ff = _feed_forward(reader, found["feed_forward"], (*where, "feed_forward")) if "feed_forward" in found else None
        if found.get("count") == 0:
            reader.wrong((*where, "count"), "must be at least 1.")
        if attention and ff and found.get("count"):
            groups.append(LayerGroup(found["count"], attention, ff))
    return tuple(groups)


def parse_groups(data: Any) -> tuple[LayerGroup, ...] | list[Issue]:
    """Layer groups by themselves, or all that is wrong with them."""
    reader = _Reader()
    groups = _groups(reader, data)
    return reader.issues or groups


def _native(reader: _Reader, data: Any) -> WeightRecipe | None:
    before = len(reader.issues)
    found = reader.record(WeightRecipe, data, ("native",))
    for key, name in found.items():
        if isinstance(name, str) and name not in formats().weights:
            reader.wrong(("native", key), f"no weight format {shown(name)}.", f"Known: {', '.join(formats().weights)}.")
    return WeightRecipe(**found) if len(reader.issues) == before else None


def _sources(reader: _Reader, data: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(data, list) or not data:
        reader.wrong(("sources",), "must list where the numbers are from.", "As {source: URL, confidence: documented}.")
        return ()
    out = []
    for i, item in enumerate(data):
        mapping = reader.mapping(item, ("sources", i)) or {}
        pair = [reader.value(mapping.get(k), str, ("sources", i, k)) for k in ("source", "confidence")]
        out.append((str(pair[0]), str(pair[1])))
    return tuple(out)


def parse_card(data: Any, aliases: tuple[str, ...] = ()) -> LanguageModel | list[Issue]:
    """The model of a card, or all that is wrong with it. ``aliases`` come from the catalogue's index."""
    reader = _Reader()
    if isinstance(data, Mapping) and "schema" in data:
        if data["schema"] != SCHEMA:
            reader.wrong(("schema",), f"must be {SCHEMA}, not {shown(data['schema'])}.")
        data = {k: v for k, v in data.items() if k != "schema"}
    nested = {"groups": LayerGroup, "native": WeightRecipe, "sources": tuple, "aliases": tuple}
    body = {"aliases": (), **data} if isinstance(data, Mapping) else data
    found = reader.record(LanguageModel, body, (), nested)
    if not isinstance(data, Mapping):
        return reader.issues
    for key in ("hidden", "vocab"):
        if found.get(key) == 0:
            reader.wrong((key,), "must be above 0.")
    groups = _groups(reader, found["groups"]) if "groups" in found else ()
    native = _native(reader, found["native"]) if "native" in found else None
    sources = _sources(reader, found.get("sources"))
    own = found["aliases"]
    if not isinstance(own, (list, tuple)) or not all(isinstance(a, str) for a in own):
        reader.wrong(("aliases",), "must be a list of names.")
    if reader.issues or native is None:
        return reader.issues
    found |= {"groups": groups, "native": native, "sources": sources, "aliases": (*own, *aliases)}
    return LanguageModel(**found)
