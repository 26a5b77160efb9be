"""The way from prefill to decode for every atom: bytes, ceilings, line load, exposed transfer, RDMA to the relay.

Requests come in two kinds, axis 0 of every array: row 0, main decode still *held* the session's prefix (weight q);
row 1, it is *cold* there (evicted, or no decode-side cache). Axis 1 are the atoms, axis 2 the spread points of
the line's sharing factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pddplan.perf.instance import request_nic_bytes_per_s
from pddplan.serve import line as line_law
from pddplan.serve.conversion import conversion_bytes_per_s, conversion_s, crossing_format, held_format
from pddplan.serve.demand import Demand
from pddplan.serve.deployment import Deployment, Pool
from pddplan.serve.overlap import Exposure, exposure, rdma_exposed_s, streaming_ceiling_bytes_per_s
from pddplan.serve.prefill_stage import PrefillStage

Array = NDArray[np.float64]
Index = NDArray[np.intp]

STATES_KEPT = 8  # of a transfer


@dataclass(frozen=True)
class Transfer:
    """What doesn't depend on the hit rate at main decode. Shapes (2, atoms), bytes and B/s."""

    size: Array
    prefix: Array  # of size: KV that already lies at prefill
    ceiling: Array  # of one flow while nothing else limits it
    streaming_ceiling: Array
    ramp_s: Array
    delay_s: float
    rtt_s: float
    capacity: float  # inf inside a site
    rdma_s: Array  # (atoms,) exposed time of the whole KV to the relay; empty without one
    exposure: Exposure  # exposed time by factor, (2, atoms, 1)
    kind_bytes: Array  # (2, workloads) mean bytes if all are held, all cold; each workload's part of the mean
    kind_ceiling: Array  # (2, workloads) ceiling that stands for the flows of a kind
    kv_format: str  # of what crosses; the sizes are in it
    main_converts_s: Array | None = None  # (2, atoms) what main decode takes to turn it into its own format; None: same
    relay_converts_s: Array | None = None  # (atoms,) the relay's for the whole KV
    states: dict[tuple[float, float, float, float], LineState] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class LineState:
    """The line at one hit rate. ``exposed`` (2, atoms, points) with ``probability`` (points,)."""

    weight: Array  # (2, atoms) held and cold requests
    rho: float
    bytes_per_request: float
    factor_mean: float
    probability: Array
    exposed: Array
    predicted: Array  # (2, atoms): exposed time at the mean factor, what the router goes by
    line_time: Array  # (2, atoms): mean time under way from the start of prefill [s]


def nic_bytes_per_s(pool: Pool, goodput: float) -> float:
    """Network rate of one request's chips of a pool [B/s]."""
    return request_nic_bytes_per_s(pool.offer.chip, pool.service.parallelism, goodput)


def transfer(
    demand: Demand,
    deployment: Deployment,
    stage: PrefillStage,
    nic_goodput: float,
    conversion: Callable[[Pool], float] = conversion_bytes_per_s,
) -> Transfer:
    """Sizes and ceilings of a deployment's transfers; all (2, atoms), in the format that crosses.

    A flow's ceiling is min(streams x stream rate, line, NIC at either end); inside a site only the NICs count, so
    an infinite free line at RTT 0 equals one site. A receiver that holds another format converts layer by layer behind
    the transfer, at ``conversion`` [B/s]: of two stages in a row the slower sets the pace, so the ceiling is at most
    b/t_conversion, and the last layer's t_conversion/layers comes after its last byte.
    """
    assert deployment.prefill is not None and deployment.main is not None
    crossing = crossing_format(demand, deployment.prefill, deployment.main)
    given, demand = demand, demand.in_format(crossing)
    size = np.stack([demand.delta_held if deployment.decode_cache else demand.delta_cold, demand.delta_cold])
    fresh = np.minimum(demand.delta_held, size)
    nic = min(nic_bytes_per_s(deployment.prefill, nic_goodput), nic_bytes_per_s(deployment.main, nic_goodput))
    rtt, capacity, rate, window = 0.0, float("inf"), nic, line_law.INITIAL_WINDOW_BYTES
    if deployment.line is not None:
        link = deployment.line.link
        rtt, capacity = link.rtt_s, deployment.line.capacity_bytes_per_s
        flow = float(line_law.flow_ceiling_bytes_per_s(link.streams, link.stream_bytes_per_s, rtt))
        rate = min(flow, nic, capacity)
        window *= link.streams
    ceiling = np.full_like(size, rate)
    delay: float | Array = rtt / 2.0
    converts = None
    if crossing != held_format(given, deployment.main):
        own = given.in_format(held_format(given, deployment.main))
        kept = np.stack([own.delta_held if deployment.decode_cache else own.delta_cold, own.delta_cold])
        converts = conversion_s(size, kept, conversion(deployment.main))
        ceiling = np.minimum(ceiling, np.divide(size, converts, out=np.full_like(size, np.inf), where=converts > 0))
        delay = delay + converts[..., None] / demand.layers
    relay, relay_converts = _to_relay(given, deployment, stage, nic_goodput, conversion)
    streaming = streaming_ceiling_bytes_per_s(ceiling, size, stage.time_s)
    ramp = line_law.ramp_s(size, ceiling, rtt, initial_window_bytes=window) if rtt > 0 else np.zeros_like(size)
    return Transfer(
        size=size,
        prefix=size - fresh,
        ceiling=ceiling,
        streaming_ceiling=streaming,
        ramp_s=ramp,
        delay_s=rtt / 2.0,
        rtt_s=rtt,
        capacity=capacity,
        rdma_s=relay,
        exposure=exposure(
            (size - fresh)[..., None],
            fresh[..., None],
            ceiling[..., None],
            stage.time_s[:, None],
            demand.layers,
            first_chunk_share=stage.first_chunk_share[:, None],
            last_chunk_share=stage.last_chunk_share[:, None],
            ramp=ramp[..., None],
            delay_s=delay,
        ),
        kind_bytes=demand.atoms.by_workload(size),
        kind_ceiling=_kind_ceilings(demand, size, np.minimum(streaming, capacity)),
        kv_format=crossing,
        main_converts_s=converts,
        relay_converts_s=relay_converts,
    )


def _to_relay(
    demand: Demand,
    deployment: Deployment,
    stage: PrefillStage,
    nic_goodput: float,
    conversion: Callable[[Pool], float],
) -> tuple[Array, Array | None]:
    """Exposed time of the whole KV to the relay (atoms,), empty without one; and what the relay converts of it."""
    prefill, relay = deployment.prefill, deployment.relay
    if prefill is None or relay is None:
        return np.empty(0), None
    crossing, held = crossing_format(demand, prefill, relay), held_format(demand, relay)
    sent = demand.in_format(crossing)
    rdma: float | Array = min(nic_bytes_per_s(prefill, nic_goodput), nic_bytes_per_s(relay, nic_goodput))
    if crossing == held:
        return rdma_exposed_s(sent.kv_prompt, sent.kv_last_layer, rdma, stage.time_s, demand.layers), None
    converts = conversion_s(sent.kv_prompt, demand.in_format(held).kv_prompt, conversion(relay))
    rdma = np.minimum(rdma, sent.kv_prompt / converts)
    exposed = rdma_exposed_s(sent.kv_prompt, sent.kv_last_layer, rdma, stage.time_s, demand.layers)
    return exposed + converts / demand.layers, converts


def main_conversion_s(move: Transfer, weight: Array, kept: tuple[Index, Index, Array] | None = None) -> float:
    """Main decode's time per request for converting what it gets [s]: sum of ``weight`` (2, atoms) over all sent ones.
    ``kept``: kind, atom and weight of what the filter keeps on the relay, which isn't sent."""
    if move.main_converts_s is None:
        return 0.0
    total = float((weight * move.main_converts_s).sum())
    if kept is not None:
        kind, atom, stays = kept
        total -= float(stays @ move.main_converts_s[kind, atom])
    return total


def _kind_ceilings(demand: Demand, size: Array, ceiling: Array) -> Array:
    """Ceiling that stands for the flows of each kind and workload, (2, workloads) [B/s]."""
    weights = demand.atoms.weights
    return np.stack([line_law.mean_ceiling_bytes_per_s(weight, size, ceiling) for weight in weights], axis=-1)


def line_state(
    demand: Demand,
    move: Transfer,
    stage: PrefillStage,
    rate: float,
    held_share: float,
    sent: float = 1.0,
    others_bytes_per_s: float = 0.0,
) -> LineState:
    """The line when main decode holds a share ``held_share`` of the prefixes, each workload its own part of it.

    ``sent`` is the share of the bytes that is sent at all, the same for all (1 without the filter);
    ``others_bytes_per_s`` what other routes send over the same line: its load counts, their flows' ceilings are taken
    as these. rho >= 1 gives infinite times: the caller refuses it. The first few states of a transfer are kept: every
    relay threshold starts from the same ones.
    """
    key = (rate, held_share, sent, others_bytes_per_s)
    if key not in move.states:
        state = _line_state(demand, move, stage, rate, held_share, sent, others_bytes_per_s)
        if len(move.states) >= STATES_KEPT:
            return state
        move.states[key] = state
    return move.states[key]


def _line_state(
    demand: Demand,
    move: Transfer,
    stage: PrefillStage,
    rate: float,
    held_share: float,
    sent: float,
    others_bytes_per_s: float,
) -> LineState:
    each = demand.sessions.of_each(held_share)
    share, kind_bytes = np.concatenate([each, 1.0 - each]), move.kind_bytes.ravel()
    bytes_per_request = sent * float(share @ kind_bytes)
    rho, mean = 0.0, 1.0
    factors = probability = np.ones(1)
    if np.isfinite(move.capacity):
        rho = (rate * bytes_per_request + others_bytes_per_s) / move.capacity
        # the byte-weighted harmonic mean over the kinds of their own is that over all flows
        ceiling = line_law.mean_ceiling_bytes_per_s(share, kind_bytes, move.kind_ceiling.ravel())
        m = move.capacity / float(ceiling)
        factors, probability = line_law.spread(m, rho)
        mean = float(factors @ probability)  # exactly ``slowdown``, see there
    predicted = move.exposure.at(mean)[..., 0]
    return LineState(
        weight=kinds(demand, held_share),
        rho=rho,
        bytes_per_request=bytes_per_request,
        factor_mean=mean,
        probability=probability,
        exposed=move.exposure.at(factors),
        predicted=predicted,
        line_time=move.delay_s + np.maximum(predicted - move.delay_s, 0.0) + stage.time_s,
    )


def kinds(demand: Demand, held_share: float) -> Array:
    """Weights (2, atoms) of held and cold requests; atoms without a prefix are the same either way."""
    if not demand.sessions.several:
        return np.array([[held_share], [1.0 - held_share]]) * demand.atoms.weight
    held = demand.held(held_share)
    return np.stack([held * demand.atoms.weight, (1.0 - held) * demand.atoms.weight])
