"""Hand-over from relay decode (RLD) to main decode (MD): token IDs go over the line, MD rebuilds their KV.

Symbols: e tokens to hand over, tau time per token on the relay [s], RTT of the line [s], extend pass on MD
``t0 + e/v`` [s].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pddplan.serve.discretize import Floats, as_floats

TOKEN_ID_BYTES = 15.0  # 1.5 KB per 100 tokens, published PDD micro-benchmark (https://github.com/infinigence/pdd)


@dataclass(frozen=True)
class ExtendCost:
    """Time of one parallel pass over e known tokens on MD, ``t0_s + e/tokens_per_s``; fields may be arrays."""

    t0_s: ArrayLike
    tokens_per_s: ArrayLike

    def time_s(self, tokens: ArrayLike) -> Floats:
        """``t0 + e/v`` [s]; broadcasts."""
        return np.asarray(as_floats(self.t0_s) + as_floats(tokens) / as_floats(self.tokens_per_s), dtype=np.float64)


@dataclass(frozen=True)
class HandoverResult:
    """Extend-decode hand-over, arrays of one shape (``limit_tokens`` and ``contracts`` may be of a smaller one)."""

    rounds: Floats  # hand-overs before the last one
    final_tokens: Floats  # tokens of the last, which the user waits for
    pause_s: Floats  # gap between the relay's last token and MD's first
    extra_relay_s: Floats  # time the relay works longer than with one shot
    extend_passes_s: Floats  # time of all extend passes on MD, the last one included
    limit_tokens: Floats  # where the rounds converge; inf if they don't
    contracts: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]  # v·tau > 1


def wait_for_step_s(step_s: ArrayLike, share: float = 0.5, chunk_s: ArrayLike = 0.0) -> Floats:
    """Wait until MD's running step ends [s]: half a step on average (share 0.5), a whole one at worst (share 1).

    ``chunk_s``: length of a prefill chunk in aggregated serving, when that is what runs.
    """
    return np.asarray(share * np.maximum(as_floats(step_s), as_floats(chunk_s)), dtype=np.float64)


def one_shot_pause_s(
    eager_tokens: ArrayLike,
    rtt_s: ArrayLike,
    cost: ExtendCost,
    step_s: ArrayLike = 0.0,
    *,
    wait_share: float = 0.5,
    chunk_s: ArrayLike = 0.0,
    md_to_gateway_s: ArrayLike | None = None,
    rld_to_gateway_s: ArrayLike = 0.0,
) -> Floats:
    """Gap the user sees when all e tokens are handed over at once [s].

    ``RTT/2 + wait for the running step + t0 + e/v + d(MD→gateway) - d(RLD→gateway)``. By default the gateway stands
    at P's site, so the way back is RTT/2 and the whole is one RTT. Broadcasts.
    """
    back = as_floats(rtt_s) / 2.0 if md_to_gateway_s is None else as_floats(md_to_gateway_s)
    way = as_floats(rtt_s) / 2.0 + back - as_floats(rld_to_gateway_s)
    return np.asarray(way + wait_for_step_s(step_s, wait_share, chunk_s) + cost.time_s(eager_tokens), dtype=np.float64)


def extend_limit_tokens(rtt_s: ArrayLike, cost: ExtendCost, tau_s: ArrayLike) -> Floats:
    """Where the rounds of extend-decode converge, ``(RTT + t0)/(tau - 1/v)`` [tokens]; inf unless v·tau > 1.

    The fixed point of ``e = (RTT + t0 + e/v)/tau``; whole tokens make it stop up to one above.
    """
    margin = as_floats(tau_s) - 1.0 / as_floats(cost.tokens_per_s)
    fixed = as_floats(rtt_s) + as_floats(cost.t0_s)
    return np.where(margin > 0, fixed / np.where(margin > 0, margin, 1.0), np.inf)


def extend_rounds(
    eager_tokens: ArrayLike,
    rtt_s: ArrayLike,
    cost: ExtendCost,
    tau_s: ArrayLike,
    threshold: float = 64.0,
    max_rounds: int = 8,
    *,
    step_s: ArrayLike = 0.0,
    wait_share: float = 0.5,
) -> HandoverResult:
    """Extend-decode hand-over: while MD extends, the relay goes on, and hands over what it made meanwhile.

    ``e' = ceil((RTT + t0 + e/v)/tau)`` until e <= threshold, e' >= e or ``max_rounds``; then one-shot with what is
    left, whose pause is that of ``one_shot_pause_s``. Each round keeps the relay busy for RTT + t0 + e/v more. The
    threshold is reached iff ``extend_limit_tokens`` is below it up to rounding. All broadcast over ``eager_tokens``.
    """
    tokens, rtt, tau, step = as_floats(eager_tokens), as_floats(rtt_s), as_floats(tau_s), as_floats(step_s)
    shape = np.broadcast_shapes(tokens.shape, rtt.shape, tau.shape, step.shape, cost.time_s(0.0).shape)
    rtt, tau = np.broadcast_to(rtt, shape), np.broadcast_to(tau, shape)
    rounds, left, extra = rounds_until(np.broadcast_to(tokens, shape), rtt, cost, tau, threshold, max_rounds)
    return HandoverResult(
        rounds=rounds,
        final_tokens=left,
        pause_s=one_shot_pause_s(left, rtt, cost, step, wait_share=wait_share),
        extra_relay_s=extra,
        extend_passes_s=extra - rounds * rtt + cost.time_s(left),
        limit_tokens=extend_limit_tokens(rtt, cost, tau),
        contracts=np.asarray(as_floats(cost.tokens_per_s) * tau > 1.0),
    )


def rounds_until(
    eager_tokens: Floats, rtt_s: Floats, cost: ExtendCost, tau_s: Floats, threshold: float = 64.0, max_rounds: int = 8
) -> tuple[Floats, Floats, Floats]:
    """The rounds of ``extend_rounds`` alone: their number, the tokens left for the last hand-over, the time they take
    [s]; all of the shape of ``eager_tokens``, with which the rest broadcasts."""
    left = eager_tokens
    rounds, extra = np.zeros(left.shape), np.zeros(left.shape)
    for _round in range(max_rounds):
        go = left > threshold
        if not go.any():
            break
        span = rtt_s + cost.time_s(left)
        following = np.ceil(span / tau_s * (1.0 - 1e-12))
        go &= following < left
        if not go.any():
            break
        rounds += go
        extra += np.where(go, span, 0.0)
        left = np.where(go, following, left)
    return rounds, left, extra


def extend_load(handover_rate: ArrayLike, extra_step_s: ArrayLike, instances: ArrayLike) -> Floats:
    """Share of an MD instance's time that extend passes take, ``lambda_h·Δt_extend/I`` (0…).

    ``extra_step_s``: by how much the passes of one hand-over lengthen the steps of the others. Steps get longer by
    ``1/(1 - load)`` on average.
    """
    return np.asarray(as_floats(handover_rate) * as_floats(extra_step_s) / as_floats(instances), dtype=np.float64)


def ship_kv_pause_s(
    kv_bytes: ArrayLike, rate: ArrayLike, factor: ArrayLike, t0_s: ArrayLike, copy_s: ArrayLike = 0.0
) -> Floats:
    """The other way: ship the KV of the eager tokens, ``T0 + (b/r)·f + device copy`` [s]. Broadcasts."""
    return np.asarray(
        as_floats(t0_s) + as_floats(kv_bytes) / as_floats(rate) * as_floats(factor) + as_floats(copy_s),
        dtype=np.float64,
    )


def one_shot_share(load: ArrayLike, slots: int = 64, high: float = 0.8, low: float = 0.6) -> Floats:
    """Stationary share of time in one-shot mode, switched by RLD load with hysteresis.

    The relay has N ~ Poisson(load·slots) requests (M/M/∞); one-shot begins when N/slots exceeds ``high`` and ends when
    it falls below ``low``. With i = least N above high and j = least N not below low, the share is
    ``P(N >= i) + Σ_{j<=n<i} q_n J``: in one-shot mode the net flow down is J, so ``q_{n+1} = (1 + a·q_n)/(n + 1)`` from
    ``q_j = 1/j``, and J makes it meet the Poisson mass at i. Exact for exponential holding times. Smooth and rising in
    ``load``, which broadcasts; ``slots`` is one number >= 1. Raises ValueError unless 0 <= low <= high.
    """
    from scipy.special import gammainc, gammaln, xlogy

    if not 0.0 <= low <= high:
        raise ValueError(f"hysteresis needs 0 <= low <= high, got {low} and {high}")
    loads = np.maximum(as_floats(load), 0.0) * slots
    offered = float(loads) if loads.ndim == 0 else loads  # the loop is many times quicker on plain numbers
    top = int(np.floor(high * slots + 1e-9)) + 1
    bottom = min(max(int(np.ceil(low * slots - 1e-9)), 1), top)
    flow: Floats | float = 1.0 / bottom
    between: Floats | float = 0.0
    for n in range(bottom, top):
        between = between + flow
        flow = (1.0 + offered * flow) / (n + 1.0)
    at_top = np.exp(xlogy(top, offered) - offered - gammaln(top + 1.0))
    return as_floats(np.minimum(gammainc(top, offered) + at_top * between / flow, 1.0))
