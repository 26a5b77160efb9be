"""Which instances a role could run on a chip: a short list of parallelisms that fit, and why the others don't."""

from __future__ import annotations

from collections.abc import Iterable

from pddplan.errors import Excuse
from pddplan.llm.types import LanguageModel
from pddplan.perf.curves import load_curves
from pddplan.perf.instance import Instance, Parallelism
from pddplan.perf.memory import memory_map
from pddplan.perf.precision import kv_on, weights_on
from pddplan.spec.types import Chip, ChipOffer, Engine, ParallelismChoice, Precision, Role

MAX_TP = 16
NODE_MULTIPLES = (1, 2, 3, 4, 6, 8)  # nodes of a wide expert-parallel instance
DP_TP = (1, 4, 8)  # tensor parallel ranks inside a DP rank
PIPELINES = (1, 2)
LAST_RESORT_PIPELINE = 4
MAX_GROWTH = 8  # largest instance over the smallest that fits; beyond, copies do the same work with less exchange


def candidate_instances(
    offer: ChipOffer,
    model: LanguageModel,
    engine: Engine,
    precision: Precision,
    role: Role,
    *,
    max_chips_per_instance: int = 64,
) -> tuple[list[Instance], list[Excuse]]:
    """Instances of ``model`` on ``offer`` for ``role``, smallest first, and an excuse for each layout that doesn't fit.

    tp: powers of two up to the scale-up domain and 16 that divide the heads; pp 1, or 2 with the two widest tp (4
    where nothing else fits); dp, only for models with experts: what makes 1, 2, 3, 4, 6 or 8 nodes, with tp 1, 4 or 8
    inside; ep = tp x dp, beside it ep = 1 where dp = pp = 1. Instances divide a node or are whole nodes, and none has
    more than 8 times the chips of the smallest (or a node). ``offer.parallelism`` narrows each, and values that it
    names count although they are not on the list. ``precision``, the scenario's, is followed where the
    chip can (``precision.weights_on``, ``kv_on``). Measured roles are the caller's.
    """
    weights = weights_on(offer, model, precision.weights).weights
    kv_cache = kv_on(offer, precision.kv_cache)
    curves = load_curves(offer.chip)
    fits: list[Instance] = []
    excuses: list[Excuse] = []
    limit = offer.max_chips if _pinned(offer.parallelism) else min(offer.max_chips, max_chips_per_instance)
    for pipelines in (offer.parallelism.pp or PIPELINES, (LAST_RESORT_PIPELINE,)):
        for par in layouts(offer.chip, model, offer.parallelism, pipelines):
            instance = Instance(offer.chip, model, par, engine, weights, kv_cache, curves)
            if par.chips > limit:
                excuses.append(Excuse("chips", par.chips, limit, "chips per instance", instance.label))
                continue
            memory = memory_map(instance, pass_tokens(engine, role))
            if isinstance(memory, Excuse):
                excuses.append(memory)
            else:
                fits.append(instance)
        if fits or offer.parallelism.pp:
            break
    fits.sort(key=lambda i: (i.parallelism.chips, i.parallelism.dp, i.parallelism.pp, -i.parallelism.ep))
    if fits and not _pinned(offer.parallelism):
        most = max(MAX_GROWTH * fits[0].parallelism.chips, offer.chip.chips_per_node)
        fits = [i for i in fits if i.parallelism.chips <= most]
    return fits, excuses


def pass_tokens(engine: Engine, role: Role) -> float:
    """Most tokens of one pass per DP rank in a role: decides the activations."""
    if role == "prefill":
        return float(engine.chunk_tokens)
    return float(engine.max_batch + (engine.chunk_tokens if role == "aggregated" else 0))


def layouts(chip: Chip, model: LanguageModel, choice: ParallelismChoice, pipelines: Iterable[int]) -> list[Parallelism]:
    """Parallelisms worth a look, without regard to memory."""
    experts = max((g.feed_forward.experts for g in model.groups), default=0)
    found: dict[Parallelism, None] = {}
    for pp in pipelines:
        if pp > model.layers:
            continue
        for tp in choice.tp or tensor_ranks(chip, model)[-2 if pp > 1 else 0 :]:
            for dp in data_ranks(chip, tp, pp, experts, choice):
                for ep in expert_ranks(tp, pp, dp, experts, choice):
                    par = Parallelism(tp=tp, pp=pp, dp=dp, ep=ep)
                    if _whole_nodes(chip, par) or _pinned(choice):
                        found[par] = None
    return list(found)


def tensor_ranks(chip: Chip, model: LanguageModel) -> list[int]:
    """Powers of two up to min(scale-up domain, 16) that divide the heads of every token mixer."""
    heads = [g.attention.q_heads or g.attention.v_heads for g in model.groups if g.attention.kind != "none"]
    limit = min(max(chip.scale_up_domain, 1), MAX_TP)
    ranks = [2**i for i in range(5) if 2**i <= limit]
    return [tp for tp in ranks if all(h % tp == 0 for h in heads if h)]


def data_ranks(chip: Chip, tp: int, pp: int, experts: int, choice: ParallelismChoice) -> list[int]:
    """Attention data-parallel ranks: 1; with experts also what fills whole nodes (single stage, tp 1, 4 or 8)."""
    if choice.dp is not None:
        return list(choice.dp)
    ranks = {1}
    if choice.ep is not None and (pp == 1 or choice.pp is not None):
        ranks |= {ep // tp for ep in choice.ep if ep % tp == 0 and ep >= tp}
    elif choice.ep is None and experts and pp == 1 and tp in DP_TP:
        stages = {chip.chips_per_node * nodes for nodes in NODE_MULTIPLES}
        ranks |= {stage // tp for stage in stages if stage % tp == 0 and stage // tp > 1 and stage <= experts}
    return sorted(ranks)


def expert_ranks(tp: int, pp: int, dp: int, experts: int, choice: ParallelismChoice) -> list[int]:
    """Expert ranks: tp x dp, and 1 (split experts) where there is one DP rank and one stage; 1 without experts."""
    if not experts:
        return [1] if choice.ep is None or 1 in choice.ep else []
    if choice.ep is not None:
        return [ep for ep in choice.ep if ep <= min(tp * dp, experts) and (tp * dp) % ep == 0]
    natural = [tp * dp] if tp * dp <= experts else []
    return natural + ([1] if dp == pp == 1 and tp > 1 else [])


def _pinned(choice: ParallelismChoice) -> bool:
    return any(values is not None for values in (choice.tp, choice.pp, choice.dp, choice.ep))


def _whole_nodes(chip: Chip, par: Parallelism) -> bool:
    """An instance divides a node or is a multiple of it, so that none is left half used."""
    node = max(chip.chips_per_node, 1)
    return node % par.chips == 0 or par.chips % node == 0
