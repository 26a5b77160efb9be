"""Parallelism from columns and from text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pddplan.accuracy.names import shown
from pddplan.accuracy.records import NoPoint
from pddplan.llm.parameters import parameters
from pddplan.llm.types import LanguageModel
from pddplan.perf.instance import Parallelism

_AIC = re.compile(r"attntp(\d+|-) attndp(\d+|-) moetp(\d+|-) moeep(\d+|-)")
_DEP = re.compile(r"dep(\d+)")
_WORD = re.compile(r"\b(tp|pp|dp|ep)(\d+)\b")
_REPLICAS = re.compile(r"\bx(\d+)\b")


@dataclass(frozen=True)
class Layout:
    """Parallelism of one instance, and how many alike there are."""

    parallelism: Parallelism
    replicas: int = 1


def checked(parallelism: Parallelism) -> Parallelism:
    """As given, if its expert groups fit its chips; NoPoint otherwise."""
    if parallelism.stage_chips % parallelism.ep:
        raise NoPoint(f"ep {parallelism.ep} doesn't divide tp x dp = {parallelism.stage_chips}")
    return parallelism


def of_groups(model: LanguageModel, tp: int, pp: int, dp: int, moe_tp: int, moe_ep: int) -> Parallelism:
    """From attention and expert groups: tp x dp = moe_tp x moe_ep chips of a stage, for a model with routed experts.

    NoPoint where the groups differ in size: which of the two is the instance isn't known.
    """
    if not parameters(model).routed_experts:
        return Parallelism(tp, pp, dp)
    if moe_tp * moe_ep != tp * dp:
        raise NoPoint(f"attention runs on {tp * dp} chips, experts on {moe_tp * moe_ep}")
    return Parallelism(tp, pp, dp, moe_ep)


def undo_product(tp: int, dp: int, moe_tp: int, moe_ep: int) -> tuple[int, int, int, int]:
    """Groups of an aggregated InferenceX run whose converter multiplied TP by EP.

    InferenceX states ``tp: 8, ep: 8`` for eight chips that hold the attention in 8 shards (or, with dp-attn, 8
    replicas) and the experts in 8 groups. Two of the three dumps turned this into 64 chips: attention 64, experts
    8 x 8. The same measurements, to the digit, stand in the third dump as attention 8, experts 1 x 8; and the runs are
    on one node of 8. So where moe_tp = moe_ep and their product is the attention's size, one node of moe_ep chips ran.
    """
    if moe_tp == moe_ep > 1 and tp * dp == moe_tp * moe_ep and 1 in (tp, dp):
        return (moe_ep, 1, 1, moe_ep) if dp == 1 else (1, moe_ep, 1, moe_ep)
    return tp, dp, moe_tp, moe_ep


def of_text(text: str, model: LanguageModel, chips: int | None, *, one_node: bool = False) -> Layout:
    """``TP8``, ``DEP8``, ``EP32 DP-attn``, ``TP1 PP1 x8 replicas``, ``attnTP1 attnDP8 moeTP1 moeEP8``.

    ``chips``: of the whole, where stated; a single chip needs no text. ``one_node``: see ``undo_product``. NoPoint
    where the text doesn't say.
    """
    plain = text.strip().lower()
    if not plain:
        if chips == 1:
            return Layout(Parallelism())
        raise NoPoint("parallelism is not stated")
    if groups := _AIC.fullmatch(plain):
        tp, dp, moe_tp, moe_ep = (1 if g == "-" else int(g) for g in groups.groups())
        if one_node:
            tp, dp, moe_tp, moe_ep = undo_product(tp, dp, moe_tp, moe_ep)
        return Layout(of_groups(model, tp, 1, dp, moe_tp, moe_ep))
    replicas = int(found[1]) if (found := _REPLICAS.search(plain)) else 1
    if dep := _DEP.match(plain):
        return Layout(Parallelism(dp=int(dep[1]), ep=int(dep[1])), replicas)
    words = {key: int(size) for key, size in _WORD.findall(plain)}
    if not words:
        raise NoPoint(f"parallelism {shown(text)} is not understood")
    tp, pp, dp, ep = (words.get(key, 1) for key in ("tp", "pp", "dp", "ep"))
    if dp == 1 and ("dp-attn" in plain or ep > tp):
        # attention runs data-parallel over the chips that hold the experts, or that TP names
        tp, dp = 1, max(ep, tp)
    if not parameters(model).routed_experts:
        ep = 1
    return Layout(checked(Parallelism(tp, pp, dp, ep)), replicas)
