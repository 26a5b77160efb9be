"""The way from prefill to decode for every atom: bytes, ceilings, line load, exposed transfer, RDMA to the relay.

Requests come in two kinds, axis 0 of every array: row 0, main decode still *held* the session's prefix (weight q);
row 1, it is *cold* there (evicted, or no decode-side cache). Axis 1 are the atoms, axis 2 the spread points of
the line's sharing factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.perf.service import DecodeService, PrefillService
from pddplan.serve import line as line_law
from pddplan.serve.demand import Demand
from pddplan.serve.deployment import Deployment, Pool
from pddplan.serve.overlap import exposed_transfer_s, rdma_exposed_s, streaming_ceiling_bytes_per_s
from pddplan.serve.prefill_stage import PrefillStage

Array = NDArray[np.float64]


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


@dataclass(frozen=True)
class LineState:
    """The line at one hit rate. ``exposed`` (2, atoms, points) with ``probability`` (points,)."""

    rho: float
    bytes_per_request: float
    factor_mean: float
    probability: Array
    exposed: Array
    predicted: Array  # (2, atoms): exposed time at the mean factor, what the router goes by
    line_time: Array  # (2, atoms): mean time under way from the start of prefill [s]


def nic_bytes_per_s(pool: Pool, goodput: float) -> float:
    """Network rate of one request's chips: NIC x chips that hold its KV (tp x pp) x goodput [B/s]."""
    service: PrefillService | DecodeService = pool.prefill if pool.role == "prefill" else pool.decode
    ranks = service.parallelism.tp * service.parallelism.pp
    return pool.offer.chip.scale_out_bytes_per_s * ranks * goodput


def transfer(demand: Demand, deployment: Deployment, stage: PrefillStage, nic_goodput: float) -> Transfer:
    """Sizes and ceilings of a deployment's transfers.

    A flow's ceiling is min(streams x stream rate, line, NIC at either end); inside a site only the NICs count, so
    an infinite free line at RTT 0 equals one site.
    """
    assert deployment.prefill is not None and deployment.main is not None
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
    relay = np.empty(0)
    if deployment.relay is not None:
        rdma = min(nic_bytes_per_s(deployment.prefill, nic_goodput), nic_bytes_per_s(deployment.relay, nic_goodput))
        relay = rdma_exposed_s(demand.kv_prompt, demand.kv_last_layer, rdma, stage.time_s, demand.layers)
    return Transfer(
        size=size,
        prefix=size - fresh,
        ceiling=ceiling,
        streaming_ceiling=streaming_ceiling_bytes_per_s(ceiling, size, stage.time_s),
        ramp_s=line_law.ramp_s(size, ceiling, rtt, initial_window_bytes=window) if rtt > 0 else np.zeros_like(size),
        delay_s=rtt / 2.0,
        rtt_s=rtt,
        capacity=capacity,
        rdma_s=relay,
    )


def line_state(
    demand: Demand, move: Transfer, stage: PrefillStage, rate: float, held_share: float, sent: Array | None = None
) -> LineState:
    """The line when main decode holds the prefix of a share ``held_share`` of the requests.

    ``sent`` (2, atoms) is the share of each kind that is sent at all (1 without the filter). rho >= 1 gives
    infinite times: the caller refuses it.
    """
    weight = kinds(demand, held_share)
    on_line = weight if sent is None else weight * sent
    bytes_per_request = float((on_line * move.size).sum())
    if np.isinf(move.capacity):
        rho, factors, probability, mean = 0.0, np.ones(1), np.ones(1), 1.0
    else:
        rho = rate * bytes_per_request / move.capacity
        ceiling = line_law.mean_ceiling_bytes_per_s(
            on_line.ravel(), move.size.ravel(), np.minimum(move.streaming_ceiling, move.capacity).ravel()
        )
        m = move.capacity / float(ceiling)
        mean = float(line_law.slowdown(m, rho))
        factors, probability = line_law.spread(m, rho)
    exposed = _exposed(demand, move, stage, factors)
    predicted = _exposed(demand, move, stage, np.array([mean]))[..., 0]
    line_time = move.delay_s + np.maximum(predicted - move.delay_s, 0.0) + stage.time_s
    return LineState(rho, bytes_per_request, mean, probability, exposed, predicted, np.asarray(line_time))


def kinds(demand: Demand, held_share: float) -> Array:
    """Weights (2, atoms) of held and cold requests; atoms without a prefix are the same either way."""
    return np.stack([held_share * demand.atoms.weight, (1.0 - held_share) * demand.atoms.weight])


def _exposed(demand: Demand, move: Transfer, stage: PrefillStage, factors: Array) -> Array:
    return exposed_transfer_s(
        move.prefix[..., None],
        (move.size - move.prefix)[..., None],
        move.ceiling[..., None],
        factors,
        stage.time_s[:, None],
        demand.layers,
        first_chunk_share=stage.first_chunk_share[:, None],
        last_chunk_share=stage.last_chunk_share[:, None],
        ramp=move.ramp_s[..., None],
        delay_s=move.delay_s,
    )
