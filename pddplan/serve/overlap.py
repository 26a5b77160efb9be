"""What a request feels of a transfer that runs beside its own prefill: over the line and over RDMA.

Time runs from the start of the prefill at P. Everything here is a maximum of linear terms: exact for a source whose
output rate never rises during the prefill (attention gets dearer with position, so it does not), and monotone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pddplan.serve.discretize import Floats, as_floats


def streaming_ceiling_bytes_per_s(rate: ArrayLike, transfer_bytes: ArrayLike, prefill_time_s: ArrayLike) -> Floats:
    """Ceiling of a transfer while it streams layer by layer, ``min(r, b/T_P)``: it can't outrun its source [B/s].

    For m (through ``line.mean_ceiling_bytes_per_s``): such a flow takes less of the line for longer. r where T_P is 0.
    """
    time, size = as_floats(prefill_time_s), as_floats(transfer_bytes)
    limited = (time > 0) & (size > 0)
    return np.where(limited, np.minimum(as_floats(rate), size / np.where(limited, time, 1.0)), as_floats(rate))


@dataclass(frozen=True)
class Exposure:
    """Exposed transfer as a function of the sharing factor f: the greatest of three lines in f, never negative.

    Made by ``exposure``, which has the formula. Arrays [s] that broadcast with each other and with the factors.
    """

    whole_s: Floats  # slope, per unit of f
    whole_offset_s: Floats
    streamed_s: Floats
    streamed_offset_s: Floats
    last_s: Floats
    delay_s: Floats

    def at(self, factor: ArrayLike) -> Floats:
        """Exposed time at the factors [s]; broadcasts; inf where f is and there is something to send."""
        f = as_floats(factor)
        whole = _stretched(self.whole_s, f) + self.whole_offset_s
        streamed = _stretched(self.streamed_s, f) + self.streamed_offset_s
        last = np.maximum(_stretched(self.last_s, f), 0.0)
        return np.asarray(np.maximum(np.maximum(whole, streamed), last) + self.delay_s, dtype=np.float64)


def _stretched(seconds: Floats, factor: Floats) -> Floats:
    """``seconds·factor``; nothing to send takes no time at an infinite factor either."""
    if np.isfinite(factor).all():
        return np.asarray(seconds * factor)
    with np.errstate(invalid="ignore"):
        return np.where(seconds > 0, seconds * factor, 0.0)


def exposure(
    prefix_bytes: ArrayLike,
    new_bytes: ArrayLike,
    rate: ArrayLike,
    prefill_time_s: ArrayLike,
    layers: int,
    *,
    first_chunk_share: ArrayLike = 1.0,
    last_chunk_share: ArrayLike = 1.0,
    ramp: ArrayLike = 0.0,
    delay_s: ArrayLike = 0.0,
    head_start_s: ArrayLike = 0.0,
) -> Exposure:
    """Time from the end of the prefill until the last byte is at MD, with layer-wise streaming, for any factor.

    ``prefix_bytes`` b0: KV cached at P but not at MD; it leaves at arrival, ``head_start_s`` h (the wait at P) before
    the prefill starts. ``new_bytes`` b1: KV that this prefill makes; it leaves chunk by chunk and layer by layer.
    With the rate that sharing leaves, R = r/f, the time of the first layer t1 = T_P·first_chunk_share/layers and the
    bytes of the last layer of the last chunk b_last = b1·last_chunk_share/layers::

        exposed = max( (b0 + b1)/R + ramp - h - T_P,     the line is the bottleneck from the arrival on
                       t1 + b1/R + ramp - T_P,           … from the first layer on (the prefix was through by then)
                       b_last/R )                        P is the bottleneck: only the last layer is left
                  + delay                                one way

    the latest completion over the points where the source can hold up the line (max-plus), of which only the ends
    matter. Without prefix and with one chunk it is the design's ``max(T_line - T_P(1 - 1/layers), b_last/r) + delay``;
    with a prefix that form adds t1 although the line is already busy, up to T_P/layers too much.

    The ramp (``line.ramp_s``) runs beside the prefill too. Never negative; never falls when bytes, f, ramp or delay
    rise or r falls; never rises with h. Shares are of the new tokens, in (0, 1]. Broadcasts.
    """
    own, fresh, pace = as_floats(prefix_bytes), as_floats(new_bytes), 1.0 / as_floats(rate)
    time, start = as_floats(prefill_time_s), as_floats(ramp)
    streamed = fresh * pace
    first = time * as_floats(first_chunk_share) / layers
    # the connection has opened during the prefix only if there was one; counting the ramp anyway is the cautious side
    return Exposure(
        whole_s=as_floats((own + fresh) * pace),
        whole_offset_s=as_floats(start - np.maximum(as_floats(head_start_s), 0.0) - time),
        streamed_s=as_floats(streamed),
        streamed_offset_s=np.where(fresh > 0, first + start - time, 0.0),
        last_s=as_floats(streamed * as_floats(last_chunk_share) / layers),
        delay_s=as_floats(delay_s),
    )


def exposed_transfer_s(
    prefix_bytes: ArrayLike,
    new_bytes: ArrayLike,
    rate: ArrayLike,
    factor: ArrayLike,
    prefill_time_s: ArrayLike,
    layers: int,
    **beside: ArrayLike,
) -> Floats:
    """``exposure`` (whose keywords ``beside`` are) at one factor for each transfer [s]; all arguments broadcast."""
    return exposure(prefix_bytes, new_bytes, rate, prefill_time_s, layers, **beside).at(factor)


def rdma_exposed_s(
    kv_bytes: ArrayLike,
    kv_last_layer_bytes: ArrayLike,
    rate: ArrayLike,
    prefill_time_s: ArrayLike,
    layers: int,
) -> Floats:
    """Time from the end of the prefill until the *whole* KV(L) is at the relay [s].

    ``max(KV/rate - T_P(1 - 1/layers), KV_last/rate)``, layer by layer; ``rate = min(NIC_P, NIC_RLD)·goodput`` [B/s].
    The relay holds nothing beforehand, so the prefix counts too. Broadcasts.
    """
    speed = as_floats(rate)
    hidden = as_floats(prefill_time_s) * (1.0 - 1.0 / layers)
    return np.asarray(
        np.maximum(as_floats(kv_bytes) / speed - hidden, as_floats(kv_last_layer_bytes) / speed), dtype=np.float64
    )
