"""Elements that tensor, expert and pipeline parallelism exchange per token; multiply by bytes per element."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pddplan.llm.types import LanguageModel, LayerGroup

Array = npt.NDArray[np.float64]


def group_all_reduces(group: LayerGroup) -> int:
    """All-reduces of one layer under tensor parallelism: one after each block it has (Nemotron-H layers have one)."""
    return (group.attention.kind != "none") + (group.feed_forward.kind != "none")


def tp_allreduce_elements(model: LanguageModel) -> int:
    """Elements all-reduced per token over the whole model: sum of blocks x hidden; embedding and head not counted."""
    return sum(g.count * group_all_reduces(g) for g in model.groups) * model.hidden


def ring_share(ranks: npt.ArrayLike) -> Array:
    """Bytes a rank puts on the wire per byte all-reduced by a ring: 2(p-1)/p; 0 for one rank."""
    p = np.asarray(ranks, dtype=float)
    return np.asarray(2.0 * (p - 1.0) / p)


def moe_layers(model: LanguageModel) -> int:
    """Layers with routed experts."""
    return sum(g.count for g in model.groups if g.feed_forward.kind == "moe")


def group_ep_elements(group: LayerGroup, hidden: int) -> int:
    """Elements dispatched per token in one MoE layer, and as many combined: k x (hidden, or the latent width)."""
    ff = group.feed_forward
    return ff.top_k * (ff.latent or hidden) if ff.kind == "moe" else 0


def ep_dispatch_elements(model: LanguageModel) -> int:
    """Elements dispatched per token and MoE layer (the widest layer); 0 without experts. Combine moves as many."""
    return max((group_ep_elements(g, model.hidden) for g in model.groups), default=0)


def ep_leaving_share(ranks: npt.ArrayLike) -> Array:
    """Share of dispatched elements that leave the rank: 1 - 1/p under uniform routing."""
    return np.asarray(1.0 - 1.0 / np.asarray(ranks, dtype=float))


def ep_node_copies(experts: int, top_k: int, nodes: npt.ArrayLike) -> Array:
    """Expected distinct nodes that a token's k experts stand on, at most k: what crosses node borders once each.

    N(1 - C(E - E/N, k)/C(E, k)) for k of E experts drawn without replacement, E/N on each node; nodes that don't divide
    E are taken as real. Kernels that de-duplicate per node send this many copies instead of k.
    """
    n = np.asarray(nodes, dtype=float)
    per_node = experts / n
    miss = np.ones_like(n)
    for j in range(top_k):
        miss = miss * np.clip((experts - per_node - j) / (experts - j), 0.0, 1.0)
    return np.asarray(n * (1.0 - miss))


def pp_boundary_elements(model: LanguageModel) -> int:
    """Elements a token passes over a pipeline boundary: hidden, times the residual streams of hyper-connections."""
    streams = max((g.attention.hc_mult for g in model.groups), default=0)
    return model.hidden * max(1, streams)
