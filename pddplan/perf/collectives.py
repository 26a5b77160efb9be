"""Time of collectives and expert exchange between chips of one instance.

``message_bytes`` is the whole buffer of one rank: the tensor for all-reduce, the output for all-gather, the input for
reduce-scatter, everything a rank sends (its own share included) for all-to-all. So all-reduce = reduce-scatter +
all-gather at the same ``message_bytes``. All functions broadcast, return seconds and are 0 for one rank or no bytes.

Inside the scale-up domain: alpha(n) + fill(n) S/(S + S_half) + factor(n) S / (eta bandwidth), factor 2(n-1)/n for
all-reduce and (n-1)/n for the others; ``fill`` is what a pipelined protocol needs before it streams. Beyond it the
collective is hierarchical: over the domain, then over nodes through each chip's NIC with the 1/domain share.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pddplan.perf.curves import CollectiveCurve, EfficiencyCurves, ExpertExchangeCurve
from pddplan.spec.types import Chip

Array = NDArray[np.float64]


def all_reduce_time_s(chip: Chip, curves: EfficiencyCurves, ranks: ArrayLike, message_bytes: ArrayLike) -> Array:
    """All-reduce of a tensor of ``message_bytes`` over ``ranks`` [s]: the faster of the ring and the custom kernel.

    Across nodes: reduce-scatter and all-gather inside, all-reduce of the shard over nodes by NIC.
    """
    ranks, size = np.asarray(ranks, dtype=float), np.asarray(message_bytes, dtype=float)
    family = curves.collectives
    inside = np.minimum(ranks, chip.scale_up_domain)
    time = _ring(chip, family.all_reduce, inside, size, 2.0)
    if family.all_reduce_custom is not None:
        time = np.minimum(time, _ring(chip, family.all_reduce_custom, inside, size, 2.0))
    return _busy(ranks, size, time + _outside(chip, curves, ranks, size / np.maximum(inside, 1.0), 2.0))


def all_gather_time_s(chip: Chip, curves: EfficiencyCurves, ranks: ArrayLike, message_bytes: ArrayLike) -> Array:
    """All-gather whose output on each rank is ``message_bytes`` [s]; across nodes each NIC carries 1/domain of it."""
    return _one_way(chip, curves, curves.collectives.all_gather, ranks, message_bytes)


def reduce_scatter_time_s(chip: Chip, curves: EfficiencyCurves, ranks: ArrayLike, message_bytes: ArrayLike) -> Array:
    """Reduce-scatter of an input of ``message_bytes`` on each rank [s]; the mirror image of all-gather."""
    return _one_way(chip, curves, curves.collectives.reduce_scatter, ranks, message_bytes)


def all_to_all_time_s(chip: Chip, curves: EfficiencyCurves, ranks: ArrayLike, message_bytes: ArrayLike) -> Array:
    """All-to-all: each rank sends ``message_bytes`` / ranks to every rank, itself included [s].

    Across nodes the share (nodes - 1) / nodes leaves through the NIC; both legs run one after the other.
    """
    ranks, size = np.asarray(ranks, dtype=float), np.asarray(message_bytes, dtype=float)
    inside = np.minimum(ranks, chip.scale_up_domain)
    time = _ring(chip, curves.collectives.all_to_all, inside, size, 1.0)
    return _busy(ranks, size, time + _outside(chip, curves, ranks, size, 1.0))


def dispatch_combine_time_s(
    chip: Chip,
    curves: EfficiencyCurves,
    ep_ranks: ArrayLike,
    tokens_per_rank: ArrayLike,
    hidden_bytes_dispatch: ArrayLike,
    hidden_bytes_combine: ArrayLike,
    top_k: ArrayLike,
    node_limit: ArrayLike = np.inf,
) -> Array:
    """Expert dispatch plus combine of one MoE layer [s], each in the faster of its two modes.

    ``hidden_bytes_*``: bytes of one token's hidden state (scales included). A token goes once to each distinct
    rank, or node, among its k experts: expected (r - 1)(1 - (1 - 1/r)^k) remote ones of r under uniform routing,
    on at most ``node_limit`` nodes (group-limited routing).
    Low latency: k copies straight to the ranks. Normal: once per node through the NIC, then once per rank inside.
    """
    family = curves.collectives
    ranks, tokens, k, limit = (np.asarray(a, dtype=float) for a in (ep_ranks, tokens_per_rank, top_k, node_limit))
    there, back = np.asarray(hidden_bytes_dispatch, dtype=float), np.asarray(hidden_bytes_combine, dtype=float)
    low, normal = family.dispatch_low_latency, family.dispatch_normal
    dispatch = expert_exchange_time_s(chip, low, normal, ranks, tokens, k, limit, there)
    low, normal = family.combine_low_latency, family.combine_normal
    return dispatch + expert_exchange_time_s(chip, low, normal, ranks, tokens, k, limit, back)


def expert_exchange_time_s(
    chip: Chip,
    low_latency: ExpertExchangeCurve,
    normal: ExpertExchangeCurve,
    ranks: Array,
    tokens: Array,
    top_k: Array,
    node_limit: Array,
    hidden_bytes: Array,
) -> Array:
    """One direction of expert exchange in the faster of two modes [s]; see ``dispatch_combine_time_s``."""
    times = (
        low_latency_exchange_time_s(chip, low_latency, ranks, tokens, top_k, hidden_bytes),
        normal_exchange_time_s(chip, normal, ranks, tokens, top_k, node_limit, hidden_bytes),
    )
    return _busy(ranks, tokens * hidden_bytes, np.minimum(*times))


def low_latency_exchange_time_s(
    chip: Chip, curve: ExpertExchangeCurve, ranks: Array, tokens: Array, top_k: Array, hidden_bytes: Array
) -> Array:
    """k copies of each token, each straight to its expert's rank, by link inside a node and by NIC outside [s]."""
    up, out = low_latency_bytes(ranks, float(chip.scale_up_domain), tokens, top_k, hidden_bytes)
    return exchange_curve_time_s(curve, chip.scale_up_bytes_per_s, _nic(chip), up, out)


def low_latency_bytes(
    ranks: Array, domain: float, tokens: Array, top_k: Array, hidden_bytes: Array
) -> tuple[Array, Array]:
    """Bytes (by link, by NIC) that a rank sends in low-latency mode: of k copies (d-1)/d inside, 1 - d/ranks outside.

    The inside share is that of a lone domain for any number of ranks: an upper bound that hides behind the NIC.
    """
    inside = np.minimum(ranks, domain)
    copies = tokens * top_k * hidden_bytes
    return copies * (inside - 1.0) / np.maximum(inside, 1.0), copies * (1.0 - inside / np.maximum(ranks, 1.0))


def normal_exchange_time_s(
    chip: Chip,
    curve: ExpertExchangeCurve,
    ranks: Array,
    tokens: Array,
    top_k: Array,
    node_limit: Array,
    hidden_bytes: Array,
) -> Array:
    """One copy per distinct remote node by NIC, then one per distinct rank inside; the slower leg counts [s]."""
    up, out = normal_bytes(ranks, float(chip.scale_up_domain), tokens, top_k, node_limit, hidden_bytes)
    return exchange_curve_time_s(curve, chip.scale_up_bytes_per_s, _nic(chip), up, out)


def normal_bytes(
    ranks: Array, domain: float, tokens: Array, top_k: Array, node_limit: Array | float, hidden_bytes: Array
) -> tuple[Array, Array]:
    """Bytes (by link, by NIC) that a rank sends in normal mode: one copy per distinct rank, per distinct node.

    A token's k experts lie on g = min(nodes, node_limit) nodes, distinct g (1 - (1 - 1/g)^k), remote (nodes-1)/nodes.
    """
    nodes = np.maximum(ranks / domain, 1.0)
    chosen = np.minimum(nodes, node_limit)
    remote = chosen * (1.0 - (1.0 - 1.0 / chosen) ** top_k) * (nodes - 1.0) / nodes
    return tokens * hidden_bytes * distinct_remote(ranks, top_k), tokens * hidden_bytes * remote


def exchange_curve_time_s(
    curve: ExpertExchangeCurve, link: ArrayLike, nic: ArrayLike, up_bytes: Array, out_bytes: Array
) -> Array:
    """alpha + max(up / (eta_up link), out / (eta_out NIC)), plus alpha_out where anything leaves the domain [s]."""
    up = up_bytes / (curve.eta_up * np.asarray(link))
    out = out_bytes / (curve.eta_out * np.asarray(nic))
    return curve.alpha_s + np.where(out_bytes > 0, curve.alpha_out_s, 0.0) + np.maximum(up, out)


def send_time_s(chip: Chip, curves: EfficiencyCurves, message_bytes: ArrayLike, across_nodes: ArrayLike) -> Array:
    """Point-to-point send at a pipeline boundary [s]: alpha + S / (eta bandwidth) of scale-up link or NIC."""
    size, far = np.asarray(message_bytes, dtype=float), np.asarray(across_nodes, dtype=bool)
    family = curves.collectives
    near_s = family.send_alpha_s + size / (family.send_eta * chip.scale_up_bytes_per_s)
    far_s = family.out_alpha_s + size / (family.out_eta * _nic(chip))
    return np.where(size > 0, np.where(far, far_s, near_s), 0.0)


def _one_way(
    chip: Chip, curves: EfficiencyCurves, curve: CollectiveCurve, ranks: ArrayLike, message_bytes: ArrayLike
) -> Array:
    ranks, size = np.asarray(ranks, dtype=float), np.asarray(message_bytes, dtype=float)
    inside = np.minimum(ranks, chip.scale_up_domain)
    time = _ring(chip, curve, inside, size, 1.0)
    return _busy(ranks, size, time + _outside(chip, curves, ranks, size / np.maximum(inside, 1.0), 1.0))


def _ring(chip: Chip, curve: CollectiveCurve, ranks: Array, size: Array, passes: float) -> Array:
    return np.where(ranks > 1, ring_curve_time_s(curve, chip.scale_up_bytes_per_s, ranks, size, passes), 0.0)


def ring_curve_time_s(curve: CollectiveCurve, link: ArrayLike, ranks: Array, size: Array, passes: float) -> Array:
    """alpha(n) + fill(n) S/(S + S_half) + passes (n-1)/n S / (eta (2/n)^contention bandwidth) inside the domain [s]."""
    further = np.maximum(ranks - 2.0, 0.0)
    alpha = curve.alpha_s + curve.alpha_rank_s * further
    fill = (curve.fill_s + curve.fill_rank_s * further) * size / (size + curve.fill_half_bytes)
    eta = curve.eta * np.power(2.0 / np.maximum(ranks, 2.0), curve.contention)
    wire = passes * (ranks - 1.0) / np.maximum(ranks, 1.0) * size / (eta * np.asarray(link))
    return np.asarray(alpha + fill + wire, dtype=float)


def _outside(chip: Chip, curves: EfficiencyCurves, ranks: Array, size: Array, passes: float) -> Array:
    """The leg over nodes through one NIC per chip: alpha log2(nodes) + passes (nodes-1)/nodes S / (eta NIC) [s]."""
    nodes = _nodes(chip, ranks)
    wire = passes * (nodes - 1.0) / nodes * size / (curves.collectives.out_eta * _nic(chip))
    return passes * curves.collectives.out_alpha_s * np.log2(nodes) + wire


def _nodes(chip: Chip, ranks: Array) -> Array:
    """Scale-up domains that ``ranks`` span, a fraction counted as such from the second on (monotone, >= 1)."""
    return np.maximum(np.asarray(ranks, dtype=float) / chip.scale_up_domain, 1.0)


def _nic(chip: Chip) -> float:
    """NIC bandwidth [B/s]; a chip without a NIC of its own leaves by its scale-up ports."""
    return chip.scale_out_bytes_per_s or chip.scale_up_bytes_per_s


def distinct_remote(places: Array, top_k: Array) -> Array:
    """Expected number of distinct other places among k uniform choices of ``places``: (r-1)(1 - (1 - 1/r)^k)."""
    places = np.maximum(places, 1.0)
    return (places - 1.0) * (1.0 - (1.0 - 1.0 / places) ** top_k)


def _busy(ranks: Array, size: Array, time: Array) -> Array:
    return np.where((ranks > 1) & (size > 0), time, 0.0)
