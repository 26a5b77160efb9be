"""Prefill under load: service times of the atoms, how far passes are shared, and the waiting law."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.perf.protocols import PrefillService
from pddplan.serve.demand import Demand
from pddplan.serve.prefill_queue import prefill_waiting
from pddplan.serve.queueing import WaitingLaw, erlang_c, queue_moments

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PrefillTimes:
    """Times of one service over the atoms, before any load is known; shape (atoms,), seconds."""

    alone: Array
    shared: Array
    miss_shared: Array  # a request that overflowed to an instance without its prefix
    first_chunk_share: Array
    last_chunk_share: Array
    fetch: Array  # prefix from a pool-wide store


@dataclass(frozen=True)
class PrefillStage:
    """Prefill of a pool at a rate."""

    law: WaitingLaw
    time_s: Array  # T_P per atom
    saturated_s: float  # mean cost of a request when the queue never empties
    first_chunk_share: Array
    last_chunk_share: Array
    rho: float
    busy_servers: float


def prefill_times(demand: Demand, service: PrefillService, chunk_tokens: int, fetch_bytes_per_s: float) -> PrefillTimes:
    """Service times by atom: alone, sharing passes, and without the prefix."""
    atoms = demand.atoms
    new = atoms.uncached
    tail = np.where(new > chunk_tokens, np.mod(new, chunk_tokens), new)
    tail = np.where(tail <= 0, np.minimum(new, chunk_tokens), tail)
    shared_store = demand.traffic.prefix_cache == "shared"
    return PrefillTimes(
        alone=np.asarray(service.request_time_s(new, atoms.cached, 0.0), dtype=float),
        shared=np.asarray(service.saturated_time_s(new, atoms.cached, atoms.weight), dtype=float),
        miss_shared=np.asarray(service.saturated_time_s(atoms.prompt, np.zeros_like(new), atoms.weight), dtype=float),
        first_chunk_share=np.minimum(chunk_tokens / new, 1.0),
        last_chunk_share=tail / new,
        fetch=demand.kv_prefix / fetch_bytes_per_s if shared_store else np.zeros_like(new),
    )


def converting(times: PrefillTimes, seconds: Array) -> PrefillTimes:
    """The times with ``seconds`` (atoms,) of each request's KV conversion in them, see ``conversion.sender_s``."""
    return replace(
        times,
        alone=times.alone + seconds,
        shared=times.shared + seconds,
        miss_shared=times.miss_shared + seconds,
    )


def prefill_stage(
    demand: Demand, times: PrefillTimes, servers: int, rate: float, max_utilization: float
) -> PrefillStage | Excuse:
    """Waiting and service at ``rate`` on ``servers`` scheduling units.

    Capacity: rho = rate E[T_shared] / servers must stay below 1 and within ``max_utilization`` (passes are shared
    when the queue never empties). Latency: one fixed-point step, a tail is merged when somebody waits, so
    T = (1 - P(wait)) T_alone + P(wait) T_shared. P(wait) from the saturated times: Erlang C for one queue
    (close for any law of service times), rho for queues per server.
    """
    atoms = demand.atoms
    shared = times.shared
    saturated = atoms.mean(shared)
    rho = rate * saturated / servers
    if rho > max_utilization * (1 + 1e-9) or rho >= 1.0:
        return Excuse("prefill_utilization", rho, min(max_utilization, 1.0), "", "prefill")
    one_queue = demand.traffic.prefix_cache == "shared"
    merged = float(erlang_c(servers, rate * saturated)) if one_queue else rho
    time = (1.0 - merged) * times.alone + merged * shared
    law = _law(demand, time, np.maximum(times.miss_shared, time), rate, servers)
    if isinstance(law, Excuse):  # unmerged tails alone would not fit: the queue then never empties
        time, law = shared, _law(demand, shared, times.miss_shared, rate, servers)
    if isinstance(law, Excuse):
        return law
    return PrefillStage(
        law=law,
        time_s=time + times.fetch,
        saturated_s=saturated,
        first_chunk_share=times.first_chunk_share,
        last_chunk_share=times.last_chunk_share,
        rho=rho,
        busy_servers=rate * atoms.mean(time),
    )


def _law(demand: Demand, time: Array, miss: Array, rate: float, servers: int) -> WaitingLaw | Excuse:
    weight = demand.atoms.weight
    moments, miss_moments = queue_moments(time, weight), queue_moments(miss, weight)
    return prefill_waiting(
        demand.traffic.prefix_cache,
        rate,
        servers,
        moments,
        burstiness=demand.traffic.burstiness,
        miss_moments=miss_moments,
    )


def departing_burstiness(
    arriving: float, utilization: float, servers: int, service_cv2: float, service_s: float, horizon_s: float
) -> float:
    """Burstiness of what leaves a queue, as seen over ``horizon_s``.

    Next to each other departures have ``1 + (1 - rho^2)(b - 1) + rho^2 (c_s^2 - 1)/sqrt(c)`` (Whitt, The queueing
    network analyzer, 1983, eq. 39): a busy queue gives its own rhythm on. Over long times as many leave as come, b. In
    between they are weighed by horizon and relaxation time, ``E[S] (b + c_s^2)/(2 c (1 - rho)^2)``. Range: rho below 1,
    any c; its error is that of TPOT behind a busy prefill, see ``MainState.seen_steps``.
    """
    near = 1.0 + (1.0 - utilization**2) * (arriving - 1.0) + utilization**2 * (service_cv2 - 1.0) / math.sqrt(servers)
    relaxes = service_s * (arriving + service_cv2) / (2.0 * servers * max(1.0 - utilization, 1e-6) ** 2)
    share = horizon_s / (horizon_s + relaxes) if horizon_s + relaxes > 0 else 0.0
    return float(max(near + (arriving - near) * share, 0.0))
