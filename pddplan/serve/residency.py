"""Memory as time: how long an idle session's KV stays at main decode, the hit rate that follows, KV under way.

A session's turns are ``gap`` seconds apart. An idle KV cache that isn't asked for within the residence T is evicted
(Che's approximation of LRU). Sums run over the last axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from pddplan.serve.discretize import Floats, as_floats

SQRT_2 = math.sqrt(2.0)
NORMAL_P90 = 1.2815515655446004  # quantile of the standard normal law


@dataclass(frozen=True)
class GapLaw:
    """Gap between the turns of a session: log-normal through p50 and p90 [s].

    ``end_probability``: share of turns that no other follows. Their KV lies idle until evicted.
    """

    p50_s: float
    p90_s: float
    end_probability: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.p50_s <= self.p90_s < np.inf:
            raise ValueError(f"gaps need 0 < p50 <= p90, got {self.p50_s} and {self.p90_s}")
        if not 0.0 <= self.end_probability <= 1.0:
            raise ValueError(f"a share of last turns of {self.end_probability} is not in 0…1")

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of ln gap; at least 1e-9, so equal p50 and p90 give a step."""
        return max(float(np.log(self.p90_s / self.p50_s)) / NORMAL_P90, 1e-9)

    @property
    def mean_s(self) -> float:
        """Mean gap where a turn follows, ``p50·exp(sigma²/2)`` [s]."""
        return self.p50_s * float(np.exp(self.sigma**2 / 2.0))


def gap_cdf(time_s: ArrayLike, gap: GapLaw) -> Floats:
    """``P(gap <= T)``, given that a turn follows: ``Phi(ln(T/p50)/sigma)``. 0 at T <= 0, 1 at inf."""
    from scipy.special import ndtr

    time = as_floats(time_s)
    with np.errstate(divide="ignore"):
        return np.asarray(ndtr(np.log(np.maximum(time, 0.0) / gap.p50_s) / gap.sigma), dtype=np.float64)


def held_share(time_s: float, gap: GapLaw) -> float:
    """``gap_cdf`` of one time, without arrays: planners ask it often."""
    if time_s <= 0.0:
        return 0.0
    return 0.5 * math.erfc(-math.log(time_s / gap.p50_s) / (gap.sigma * SQRT_2)) if time_s < math.inf else 1.0


def mean_min_gap(time_s: ArrayLike, gap: GapLaw) -> Floats:
    """Mean time an idle KV cache stays, ``E[min(gap, T)]`` [s], sessions that end counting T.

    ``(1-q)·(E[gap]·Phi(z - sigma) + T·(1 - Phi(z))) + q·T``, z = ln(T/p50)/sigma, q = end_probability. Rising and
    concave in T; tends to the mean gap for q = 0.
    """
    from scipy.special import ndtr

    time = np.maximum(as_floats(time_s), 0.0)
    with np.errstate(divide="ignore"):
        z = np.log(time / gap.p50_s) / gap.sigma
    finite = np.where(np.isfinite(time), time, 0.0)
    returning = gap.mean_s * ndtr(z - gap.sigma) + finite * ndtr(-z)
    ending = gap.end_probability * time if gap.end_probability > 0 else 0.0  # 0·inf would be nan
    return np.asarray((1.0 - gap.end_probability) * returning + ending, dtype=np.float64)


def residency_s(
    idle_bytes: ArrayLike, turn_rate: ArrayLike, kv_bytes_mean: ArrayLike, gap: GapLaw, iterations: int = 100
) -> Floats:
    """Residence T that idle room M buys: ``turn_rate·E[KV]·E[min(gap, T)] = M`` [s].

    0 without room; inf where all idle sessions fit (only if none ends) or no turn comes. Newton's method from the left:
    E[min(gap, T)] is concave and at most T, so from T = M/(rate·KV) it climbs to the root and never passes it, to 1e-12
    relative. Rising in M, falling in rate and KV. KV size and gap are taken as independent.
    Source: Che, Tung, Wang, IEEE JSAC 20(7) 2002; Fricker, Robert, Roberts, ITC 24 (2012).
    """
    room, rate, size = np.broadcast_arrays(as_floats(idle_bytes), as_floats(turn_rate), as_floats(kv_bytes_mean))
    demand = rate * size
    target = np.where(demand > 0, np.maximum(room, 0.0) / np.where(demand > 0, demand, 1.0), np.inf)
    ending = gap.end_probability
    inner = (target > 0) & (target < (np.inf if ending > 0 else gap.mean_s))
    wanted = np.where(inner, target, gap.mean_s / 2.0)
    time = wanted
    for _ in range(iterations):
        stays = (1.0 - ending) * (1.0 - gap_cdf(time, gap)) + ending  # slope of E[min(gap, T)]
        step = np.maximum(wanted - mean_min_gap(time, gap), 0.0) / np.maximum(stays, 1e-300)
        time = time + step
        if np.all(step <= 1e-12 * time):
            break
    return np.where(inner, time, np.where(target > 0, np.inf, 0.0))


def decode_hit_share(residence_s: ArrayLike, transfer_lag_s: ArrayLike, gap: GapLaw) -> Floats:
    """Share of P's hits that main decode has as well, ``x_M/x_P = P(gap <= T)·(1 - lag)``.

    ``lag = P(gap < transfer_lag_s)``: the next turn comes while the last one's KV is still under way to MD (or still
    runs there unfinished). The two are taken as independent, which errs low: a gap below the lag is also below T.
    In [0, 1], rising in T, falling in the lag. Token-weighted if the inputs are. Broadcasts.
    """
    return np.asarray(gap_cdf(residence_s, gap) * (1.0 - gap_cdf(transfer_lag_s, gap)), dtype=np.float64)


def parametric_hit_share(
    capacity: ArrayLike, half_capacity: ArrayLike, power: float = 1.0, h_max: float = 1.0
) -> Floats:
    """Hit share without known gaps, ``h_max·(1 - 2^{-(C/C50)^p})``: half of ``h_max`` at C50. Same unit for C, C50."""
    ratio = np.maximum(as_floats(capacity), 0.0) / as_floats(half_capacity)
    return np.asarray(-h_max * np.expm1(-np.log(2.0) * ratio**power), dtype=np.float64)


# ------------------------------------------------------------------------------------------------ KV under way


def staging_bytes(rate: ArrayLike, weights: ArrayLike, line_time_s: ArrayLike, transfer_bytes: ArrayLike) -> Floats:
    """KV held at P until the line has taken it, ``lambda Σ w·T_line·b`` [bytes] (Little's law).

    ``line_time_s`` the whole time in transfer, not only the exposed part. Shape (…, atoms) -> (…).
    """
    held = as_floats(weights) * as_floats(line_time_s) * as_floats(transfer_bytes)
    return np.asarray(as_floats(rate) * np.sum(held, axis=-1), dtype=np.float64)


def relay_bytes(rate: ArrayLike, weights: ArrayLike, hold_s: ArrayLike, kv_bytes: ArrayLike) -> Floats:
    """KV held by relay decode, ``lambda Σ w·hold·KV(L + e/2)`` over relayed atoms [bytes] (Little's law).

    With ``hold_s`` of ``relay.relay_hold_s`` this is a_R times the KV weighted by the time it is held: long transfers
    belong to long prompts, so the unweighted mean KV would be too low. Shape (…, atoms) -> (…).
    """
    return staging_bytes(rate, weights, hold_s, kv_bytes)


def reservation_bytes(
    rate: ArrayLike, weights: ArrayLike, line_time_s: ArrayLike, admission_wait_s: ArrayLike, kv_bytes: ArrayLike
) -> Floats:
    """KV room that MD keeps free for requests under way, ``lambda Σ w·(T_line + W)·KV(L)`` [bytes].

    For engines that reserve on dispatch. Shape (…, atoms) -> (…).
    """
    return staging_bytes(rate, weights, as_floats(line_time_s) + as_floats(admission_wait_s), kv_bytes)
