"""A Hugging Face config.json -> the data of a model card. Maps fields to layer groups; the formulas are elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pddplan.llm.architectures import Family, Mixer, Names, architectures
from pddplan.llm.cards import MAX_COUNT, SCHEMA, parse_card, parse_groups
from pddplan.llm.config_layers import COMPRESS_RATIOS, layer_labels
from pddplan.llm.config_quantization import native_formats
from pddplan.llm.config_reader import MAX_TOKENS, ConfigReader
from pddplan.llm.parameters import hyper_connection_parameters, mtp_parameters, parameters
from pddplan.llm.types import LanguageModel
from pddplan.spec.issues import Issue, closest, shown

_COMPRESSED = ("csa", "hca", "swa")
_MATRICES = 3
_NOT_IN_IDS = re.compile(r"[^a-z0-9._]+")

Card = dict[str, Any]


@dataclass(frozen=True)
class Imported:
    """The card of a config.json, the model it describes, and what the file doesn't say but the card had to."""

    card: Card
    model: LanguageModel
    notes: tuple[str, ...]


def card_id(name: str) -> str:
    """A name as an id: lower case, words joined by ``-``."""
    return _NOT_IN_IDS.sub("-", name.lower()).strip("-.") or "model"


def import_config(data: Mapping[str, Any], name: str, source: str) -> Imported | list[Issue]:
    """The card of a config.json under ``name``, or all that is wrong with it, by key of the file."""
    issues: list[Issue] = []
    top = ConfigReader([(data, ())], issues)
    view = top.inside("text_config")  # of models that also see or hear
    family = _family(view)
    if family is None:
        return issues
    card = _card(view, family)
    if issues:
        return issues
    card = {"schema": SCHEMA, "id": card_id(name), "name": name, **card}
    card["sources"] = [
        {"source": source, "confidence": "documented"},
        {"source": family.source, "confidence": "secondary"},
    ]
    model = parse_card(card)
    if not isinstance(model, LanguageModel):
        return [Issue(f"gives a card that can't be: {i.message}", i.fix, i.where) for i in model]
    if _too_large(view, parameters(model).total):
        return issues
    return Imported(card, model, _notes(view, card))


def _family(view: ConfigReader) -> Family | None:
    """The entry of the table for ``model_type``; None after the problem was noted."""
    families = architectures().families
    kind, where = view.find(("model_type",))
    if kind is None:
        view.missing(("model_type",))
        return None
    wanted = kind if isinstance(kind, str) else ""
    for known in (wanted, f"{wanted}_text"):
        if known in families:
            return families[known]
    near = closest(wanted, families, 0.75)
    hint = f"Closest: {near}." if near else f"Known: {', '.join(sorted(families))}."
    fix = f"{hint} Or write a card by hand, after one that pddplan model import makes."
    view.wrong(where, f"no architecture {shown(kind)} is known.", fix)
    return None


def _card(view: ConfigReader, family: Family) -> Card:
    """All of a card but its name and sources; with issues noted it is no card."""
    names = architectures().fields["top"]
    hidden = view.count(names["hidden"])
    card: Card = {
        "hidden": hidden,
        "vocab": view.count(names["vocab"]),
        "tied_embeddings": view.flag(("tie_word_embeddings",), family.tied_embeddings),
        "max_context": view.count(names["max_context"], None, most=MAX_TOKENS),
    }
    labels = layer_labels(view, family)
    reader = _Layers(view, family, hidden)
    if not labels and "full" in family.mixers:
        reader.attention("full", 0)  # what is wrong with it is told in the same run
    layers = [(reader.attention(m, i), reader.feed_forward(f)) for i, (m, f) in enumerate(labels)]
    native = native_formats(view)
    if view.issues or not layers:
        if not view.issues:
            view.missing(names["layers"])
        return card
    multiplicity = layers[0][0].get("hc_mult", 0)
    if extra := hyper_connection_parameters(hidden, multiplicity):
        card["extra_parameters"] = extra
    if (modules := reader.prediction_modules(labels)) and not _too_large(view, modules):
        card["mtp_parameters"] = modules
    return {**card, "native": native, "groups": _groups(layers)}


def _too_large(view: ConfigReader, count: int) -> bool:
    """Each field may be within its limits, and yet no such model can be."""
    if count > MAX_COUNT:
        message = f"the layers make {count:.3g} parameters, more than any model has."
        view.wrong((*view.home, "model_type"), message, "Is one of the sizes wrong by some digits?")
    return count > MAX_COUNT


def _groups(layers: list[tuple[Card, Card]]) -> list[Card]:
    """Equal layers counted together, in the order in which they first appear."""
    groups: list[Card] = []
    for attention, feed_forward in layers:
        alike = (g for g in groups if g["attention"] == attention and g["feed_forward"] == feed_forward)
        group = next(alike, None)
        if group is None:
            groups.append({"count": 1, "attention": attention, "feed_forward": feed_forward})
        else:
            group["count"] += 1
    return groups


class _Layers:
    """Reads the blocks of layers; each distinct one once."""

    def __init__(self, view: ConfigReader, family: Family, hidden: int) -> None:
        self.view, self.family, self.hidden = view, family, hidden
        self.fields = architectures().fields
        self.known: dict[Any, Card] = {}

    def attention(self, label: str, layer: int) -> Card:
        """Card fields of a layer's token mixer."""
        mixer = self.family.mixer(label)
        view = self.view.inside(mixer.inside, mixer.kind != "gqa") if mixer.inside else self.view
        view = view.prefixed(mixer.prefix)
        sparse = _has_indexer(view, mixer, layer)
        key = (label, sparse, sparse and _owns_index(view, layer))
        if key not in self.known:
            self.known[key] = self._attention(view, mixer, label, key)
        return self.known[key]

    def _attention(self, view: ConfigReader, mixer: Mixer, label: str, key: tuple[str, bool, bool]) -> Card:
        if mixer.kind == "none":
            return {"kind": "none"}
        card: Card = {"kind": mixer.kind}
        if mixer.kind == "gqa":
            card |= self._gqa(view, label)
        else:
            fields = self.fields["compressed" if mixer.kind in _COMPRESSED else mixer.kind]
            for field, names in fields.items():
                nullable = field == "q_lora_rank" and mixer.kind == "mla"
                card[field] = view.count(names, None) if nullable else view.count(names)
        if key[1]:
            card["indexer"] = self._indexer(view.inside(mixer.inside) if mixer.inside else view) | (
                {} if key[2] else {"own_cache": False}
            )
        ratios = {kind: ratio for ratio, kind in COMPRESS_RATIOS.items()}
        if ratio := ratios.get(mixer.kind, 0):
            card["compress_ratio"] = ratio
        return card | _switched(view, mixer.facts, mixer.when)

    def _gqa(self, view: ConfigReader, label: str) -> Card:
        """Heads and head dims; a head is hidden / heads wide where nothing is said, V as wide as K."""
        names = self.fields["gqa"]
        heads = view.count(names["q_heads"])
        kv_heads = view.count(names["kv_heads"], heads)
        dim = view.count(names["head_dim_k"], 0)
        if not dim and heads:
            if self.hidden % heads:
                view.wrong(view.find(names["q_heads"])[1], f"{heads} doesn't divide hidden_size {self.hidden}.")
            dim = self.hidden // heads
        if heads and kv_heads > heads:
            view.wrong(view.find(names["kv_heads"])[1], f"{kv_heads} is more than the {heads} query heads.")
        card = {"q_heads": heads, "kv_heads": kv_heads, "head_dim_k": dim}
        card["head_dim_v"] = view.count(names["head_dim_v"], dim)
        if label in ("window", "chunk"):
            card[label] = view.count(names[label])
        if rank := view.count(names["q_lora_rank"], 0):
            card["q_lora_rank"] = rank
        return card

    def _indexer(self, view: ConfigReader) -> Card:
        """Index heads and what they choose: entries, or blocks of keys."""
        names = self.fields["indexer"]
        card = {"heads": view.count(names["heads"]), "head_dim": view.count(names["head_dim"])}
        if view.has(names["blocks"][0]):
            card["top_k"] = view.count(names["blocks"]) * view.count(names["block_tokens"])
        else:
            card["top_k"] = view.count(names["top_k"])
        return card

    def feed_forward(self, label: str) -> Card:
        """Card fields of a layer's feed-forward: dense, moe or none."""
        if label not in self.known:
            self.known[label] = {"kind": "none"} if label == "none" else self._feed_forward(label)
        return self.known[label]

    def _feed_forward(self, label: str) -> Card:
        view, rule = self.view, self.family.feed_forward
        names: dict[str, Names] = {**self.fields["feed_forward"], **rule.names}
        matrices = rule.facts.get("matrices", _MATRICES)
        if label == "dense":
            return {"kind": "dense", "intermediate": view.count(names["intermediate"]), "matrices": matrices}
        card: Card = {"kind": "moe", "experts": view.count(names["experts"]), "top_k": view.count(names["top_k"])}
        card["expert_intermediate"] = width = view.count(names["expert_intermediate"])
        if card["experts"] and card["top_k"] > card["experts"]:
            message = f"{card['top_k']} is more than the {card['experts']} experts."
            view.wrong(view.find(names["top_k"])[1], message)
        shared = view.count(names["shared_intermediate"], None, 0)
        if shared is None:
            shared = view.count(names["shared_experts"], 0, 0) * width
        optional = {"shared_intermediate": shared, "latent": view.count(names["latent"], 0, 0)}
        card |= {field: value for field, value in optional.items() if value}
        facts = {field: value for field, value in rule.facts.items() if field != "matrices"}
        return card | {"matrices": matrices} | facts

    def prediction_modules(self, labels: list[tuple[str, str]]) -> int:
        """Parameters of the multi-token-prediction modules that config.json, or else the table, says there are."""
        rule = self.family.mtp
        modules = self.view.count(self.fields["mtp"], rule.default or 0, 0, 100)
        if rule.default == 0:
            modules = 0
        last_mixer, last_forward = labels[-1]
        mixers = rule.mixers or (last_mixer,)
        forwards = ["none"] * (len(mixers) - 1) + [rule.feed_forward or last_forward]
        groups = [
            {"count": 1, "attention": self.attention(m, len(labels) - 1), "feed_forward": self.feed_forward(f)}
            for m, f in zip(mixers, forwards, strict=True)
        ]
        found = parse_groups(groups)
        return mtp_parameters(found, self.hidden, modules) if isinstance(found, tuple) else 0


def _switched(view: ConfigReader, facts: Mapping[str, Any], when: Mapping[str, Names]) -> Card:
    """Facts of the class, and fields that keys of the file switch on."""
    return dict(facts) | {field: True for key, fields in when.items() if view.flag((key,)) for field in fields}


def _has_indexer(view: ConfigReader, mixer: Mixer, layer: int) -> bool:
    if mixer.kind == "gqa":
        chosen, where = view.find(("sparse_attention_freq",))
        if not mixer.inside or chosen is None or not view.flag(("use_sparse_attention",), True):
            return False
        if not isinstance(chosen, list) or layer >= len(chosen):
            view.wrong(where, "must be a list with one entry a layer.")
            return False
        return bool(chosen[layer])
    return mixer.kind == "csa" or bool(mixer.kind == "mla" and view.has("index_topk"))


def _owns_index(view: ConfigReader, layer: int) -> bool:
    """Whether a layer scores its own index: listed, or every n-th after an offset; all where nothing is said."""
    kinds, where = view.find(("indexer_types",))
    if kinds is not None:
        if not isinstance(kinds, list) or layer >= len(kinds):
            view.wrong(where, "must be a list with one entry a layer, full or shared.")
            return True
        return bool(kinds[layer] != "shared")
    step = view.count(("index_topk_freq",), 1) or 1
    offset = view.count(("index_skip_topk_offset",), 1, 0)
    return int(max(layer - offset + 1, 0) % step) == 0


def _notes(view: ConfigReader, card: Card) -> tuple[str, ...]:
    """What a reader of the card should know: what was left out or taken for granted."""
    notes = []
    if view.has("vision_config") or view.has("audio_config"):
        notes.append("The language model alone: encoders of images or sound are not counted.")
    if "mtp_parameters" in card:
        notes.append("mtp_parameters: one layer a module, an estimate where the checkpoint wasn't seen.")
    if card["max_context"] is None:
        notes.append("The longest context isn't given.")
    return tuple(notes)
