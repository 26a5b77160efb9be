"""KV caches that change their format on the way: who converts, how long it takes, whose time it is.

``perf.precision.kv_between`` says what crosses; an end that holds another format converts, layer by layer, so no second
copy of the cache stands anywhere. Converting b bytes of one format into c of another reads b and writes c at memory
speed: ``(b + c)/(memory bandwidth x share that a stream reaches)`` [s] on the chips that hold the request (tp x pp:
each converts the part that its NIC carries, copies over TP come after it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.perf.curves import load_curves
from pddplan.perf.precision import kv_between, kv_on
from pddplan.serve.demand import Demand
from pddplan.serve.deployment import Pool

Array = NDArray[np.float64]


def conversion_bytes_per_s(pool: Pool) -> float:
    """Bytes read and written per second by the chips that hold one request [B/s]."""
    chip, parallelism = pool.offer.chip, pool.service.parallelism
    stream = load_curves(chip).stream.eta_max
    return chip.memory_bytes_per_s * stream * parallelism.tp * parallelism.pp


def conversion_s(read_bytes: Array, written_bytes: Array, bytes_per_s: float) -> Array:
    """``(read + written)/rate`` [s]; any shape."""
    return np.asarray((read_bytes + written_bytes) / bytes_per_s, dtype=float)


def held_format(demand: Demand, pool: Pool) -> str:
    """KV format that a pool holds."""
    return kv_on(pool.offer, demand.kv_format)


def crossing_format(demand: Demand, sender: Pool, receiver: Pool) -> str:
    """KV format that crosses between two pools."""
    return kv_between(sender.offer, receiver.offer, demand.kv_format)


@dataclass(frozen=True)
class Sending:
    """What prefill converts: the line's part for main decode (to ``line``), the whole cache for a relay (to
    ``relay``); None: nothing, it sends what it holds."""

    line: str | None = None
    relay: str | None = None


def sending(demand: Demand, prefill: Pool, main: Pool | None, relay: Pool | None) -> Sending:
    """What a prefill pool converts for the pools that its caches go to."""
    held = held_format(demand, prefill)

    def other(receiver: Pool | None) -> str | None:
        crossing = held if receiver is None else crossing_format(demand, prefill, receiver)
        return None if crossing == held else crossing

    return Sending(other(main), other(relay))


def sender_s(demand: Demand, prefill: Pool, sent: Sending, held_share: float) -> Array:
    """Time that a request's conversion adds to its prefill, (atoms,) [s]: it runs between the passes' layers, so it
    stands in T_P and in the pool's load, and nothing of it is left for the line.

    For the line what main decode lacks, where it holds the prefix of a share ``held_share`` of the requests (0: as if
    it held none). With a relay in the plan the whole KV(L), as if every request were relayed: who is, isn't known when
    prefill is sized. What was converted for one serves the other.
    """
    own = demand.in_format(held_format(demand, prefill))
    rate = conversion_bytes_per_s(prefill)
    if sent.relay is not None:
        return conversion_s(own.kv_prompt, demand.in_format(sent.relay).kv_prompt, rate)
    assert sent.line is not None
    line = demand.in_format(sent.line)
    return held_share * conversion_s(own.delta_held, line.delta_held, rate) + (1.0 - held_share) * conversion_s(
        own.delta_cold, line.delta_cold, rate
    )


def stretch_of(busy_share: float) -> float:
    """Factor on the steps of instances that spend a share of their time otherwise: 1/(1 - u), u at most 0.95."""
    return 1.0 / max(1.0 - min(busy_share, 0.95), 0.05)
