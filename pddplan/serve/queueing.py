"""Waiting for a pool of servers with one queue: Erlang C and the three-moment waiting law.

Against the simulated queues of 2-model.md section 5 (tests/serve/test_queueing.py prints the table; P(wait) >= 0.1, c 1
to 40, rho up to 0.9), with the moments of ``queue_moments``: TTFT p50/p90/p99 at worst 4/5/7 % off at c_s^2 3.4 and
15/10/16 % at c_s^2 27, medians 0.6/0.5/0.4 % and 2.1/4.5/2.3 %, E[W] within 5 % and 12 %. With the raw third moment the
medians are 1.3/0.7/0.2 % and 3.7/5.2/2.0 %, the worst 6/5/7 % and 37/47/14 %, E[W] within 8 % and 33 %. In whole plans
(docs/agreement.md, bursts of 2 and 4 and shared passes too): medians 0.2/0.3/0.3 % up to c_s^2 5 and 0.3/1.2/0.3 % to
30, the worst 10/6/7 % and 7/11/4 %; E[W] beyond 15 % where bursts of 4 meet few waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pddplan.errors import Excuse
from pddplan.serve.deterministic_service import mean_deterministic, solve_deterministic
from pddplan.serve.phase_type import (
    LEAST_SKEW,
    PhaseType2,
    WaitTable,
    clipped_skew,
    fit_gaps,
    fit_hyperexponential,
    fit_two_stages,
    no_wait,
    solve_queue,
    waiting,
)

Array = NDArray[np.float64]
Moments = tuple[float, float, float]

_EXACT_SERVERS = 40  # above: the law of this many servers, rescaled
_SMOOTHEST_CHAIN = 0.5  # least squared CV of two stages
_NEAR_ONE = 1e-4
IDLE = 1e-9  # utilisation below which nobody waits


@dataclass(frozen=True)
class WaitingLaw:
    """Distribution of the wait of a request, an atom at 0 and a density: P(W > 0) = ``p_wait``.

    ``overflow_share`` is the share of requests that leave their home server (affine routing), ``overflow_wait_s`` the
    wait at home above which they do; ``utilization`` then includes the misses this makes. The grid is log-linear
    in P(W > t), exponential beyond its end; against the formula it interpolates within 1e-3 relative.
    """

    p_wait: float
    mean_s: float
    utilization: float
    overflow_share: float = 0.0
    overflow_wait_s: float = float("inf")
    times_s: Array = field(default_factory=lambda: np.zeros(1), repr=False, compare=False)
    log_survival: Array = field(default_factory=lambda: np.full(1, -np.inf), repr=False, compare=False)
    tail_rate_per_s: float = field(default=1.0, repr=False)

    def survival(self, t_s: ArrayLike) -> Array:
        """P(W > t), any shape, t [s]; 1 for t < 0."""
        t = np.asarray(t_s, dtype=float)
        inside = np.interp(t, self.times_s, self.log_survival, left=0.0)
        return np.asarray(np.exp(inside - self.tail_rate_per_s * np.maximum(t - self.times_s[-1], 0.0)))

    def cdf(self, t_s: ArrayLike) -> Array:
        """P(W <= t), any shape, t [s]."""
        return np.asarray(1.0 - self.survival(t_s))


def erlang_c(servers: ArrayLike, offered_load: ArrayLike) -> Array:
    """Probability of waiting in M/M/c, c = ``servers`` >= 1, a = lambda E[S] = ``offered_load``; broadcasts.

    C = B/(1 - rho (1 - B)), B = (a^c/c!)/sum_{k<=c} a^k/k!, rho = a/c; c needn't be whole (sum as incomplete gamma
    function). 1 at rho >= 1. Error about 1e-13. Source: Erlang 1917; Cooper, Introduction to Queueing Theory, 1981.
    """
    from scipy.special import gammaincc, gammaln

    c, a = np.broadcast_arrays(np.asarray(servers, dtype=float), np.asarray(offered_load, dtype=float))
    stable = np.clip(a, 1e-300, c * (1.0 - 1e-15))
    log_term = c * np.log(stable) - stable - gammaln(c + 1.0)
    loss = np.exp(log_term) / gammaincc(c + 1.0, stable)
    rho = stable / c
    return np.asarray(np.where(a >= c, 1.0, np.where(a <= 0.0, 0.0, loss / (1.0 - rho * (1.0 - loss)))))


def queue_moments(times_s: ArrayLike, weights: ArrayLike) -> Moments:
    """Moments (m1, m2, m3) of service times given as atoms, the third chosen for queueing; shapes (n,), (n,).

    What a queue sees of the service time is its excess, P(S_e > t) = E[(S - t)+]/m1 (Pollaczek-Khinchine: M/G/1
    waiting is a geometric sum of S_e). m1 and m2 are exact; where c_s^2 > 1, m3 is that of the mixture of two
    exponentials whose excess is nearest, min over m3 of int |P(S_e > t) - P(H2_e > t)| dt. The raw third moment is
    ruled by a tail that few waits see. ``weights`` are normalised.
    """
    x, w = np.asarray(times_s, dtype=float), np.asarray(weights, dtype=float)
    order = np.argsort(x, kind="stable")
    x, w = x[order], w[order] / w.sum()
    m1, m2, m3 = (float(w @ x**k) for k in (1, 2, 3))
    if m1 <= 0.0 or m2 <= m1 * m1 * (2.0 + _NEAR_ONE):
        return m1, m2, m3
    t = np.concatenate([[0.0], np.geomspace(1e-4 * m1, max(x[-1], 10.0 * m1), 300)])
    above = np.searchsorted(x, t, side="right")
    mass, work = (np.concatenate([np.cumsum(v[::-1])[::-1], [0.0]]) for v in (w, w * x))
    excess = (work[above] - t * mass[above]) / m1

    def nearest(skews: Array) -> int:
        fits = [fit_hyperexponential(m1, m2, skew * m2 * m2 / m1) for skew in skews.tolist()]
        share, rate = (np.array([getattr(fit, name) for fit in fits])[:, :, None] for name in ("initial", "rates"))
        gap = np.abs(excess - (share / rate * np.exp(-rate * t)).sum(axis=1) / m1)
        return int(np.argmin(((gap[:, 1:] + gap[:, :-1]) * np.diff(t)).sum(axis=1)))

    grid = np.geomspace(LEAST_SKEW, max(3.0 * m1 * m3 / m2**2, 6.0), 48)
    best = nearest(grid)
    fine = np.geomspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 17)
    return m1, m2, float(fine[nearest(fine)]) * m2 * m2 / m1


def waiting_law(
    arrival_rate_per_s: float, servers: int, moments: Moments, burstiness: float = 1.0
) -> WaitingLaw | Excuse:
    """Waiting time of a first-come-first-served pool of ``servers``, service moments [s, s^2, s^3].

    Service: squared CV c_s^2 > 1 a mixture of two exponentials with the three moments (m1 m3/m2^2 raised to 1.5 where
    it is below), 0.5..1 two stages, below 0.5 quantiles interpolated in c_s^2 between two stages and a constant, which
    is exact in the mean at c = 1 and in heavy traffic. Gaps: renewal with squared CV ``burstiness`` (see ``fit_gaps``).
    Exact for these distributions up to 40 servers; above, the law of 40 servers at the utilisation with the same
    Erlang C, times scaled by the M/M/c conditional wait (P(W > 0) within 2 %, E[W] within 2 % where P(W > 0) > 0.05
    at 64 and 120 servers, c_s^2 up to 27). rho >= 1 gives Excuse("utilization", rho, 1).
    ValueError where an argument is not finite, negative, or m2 < m1^2.
    """
    checked = _checked(arrival_rate_per_s, servers, moments, burstiness)
    if isinstance(checked, Excuse):
        return checked
    rho, scv, skew = checked
    if rho < IDLE:
        return WaitingLaw(0.0, 0.0, rho)
    return law_of(_unit_table(servers, rho, scv, skew, burstiness), rho, moments[0])


def mean_wait_s(arrival_rate_per_s: float, servers: int, moments: Moments, burstiness: float = 1.0) -> float | Excuse:
    """The mean of ``waiting_law`` [s] at a fraction of its cost: the law itself isn't tabulated."""
    checked = _checked(arrival_rate_per_s, servers, moments, burstiness)
    if isinstance(checked, Excuse):
        return checked
    rho, scv, skew = checked
    return moments[0] * _unit_mean(servers, rho, scv, skew, burstiness) if rho >= IDLE else 0.0


def _checked(rate: float, servers: int, moments: Moments, burstiness: float) -> tuple[float, float, float] | Excuse:
    """(utilisation, c_s^2, m1 m3/m2^2) of a queue that is stable."""
    m1, m2, m3 = moments
    if not all(np.isfinite(v) and v >= 0.0 for v in (rate, m1, m2, m3, burstiness)) or servers < 1:
        raise ValueError("arrival rate, moments and burstiness must be finite and not negative, servers at least 1")
    if m2 < m1 * m1 * (1.0 - 1e-9):
        raise ValueError("the second moment is below the square of the first")
    rho = rate * m1 / servers
    if rho >= 1.0:
        return Excuse("utilization", rho, 1.0)
    if rho < IDLE:
        return rho, 0.0, 1.0
    return rho, max(m2 / (m1 * m1) - 1.0, 0.0), m1 * m3 / (m2 * m2)


def law_of(table: WaitTable, utilization: float, unit_s: float) -> WaitingLaw:
    """A table in units of ``unit_s`` as a law in seconds."""
    return WaitingLaw(
        p_wait=table.p_wait,
        mean_s=table.mean * unit_s,
        utilization=utilization,
        times_s=table.times * unit_s,
        log_survival=table.log_survival,
        tail_rate_per_s=table.tail_rate / unit_s,
    )


@lru_cache(maxsize=4096)
def _unit_table(servers: int, rho: float, scv: float, skew: float, burstiness: float) -> WaitTable:
    """Law in units of the mean service time."""
    if servers > _EXACT_SERVERS:
        return _rescaled(servers, rho, scv, skew, burstiness)
    if scv >= _SMOOTHEST_CHAIN:
        return solve_queue(servers, _unit_service(scv, skew), *fit_gaps(servers * rho, burstiness))
    return _between(servers, rho, scv, burstiness)


@lru_cache(maxsize=4096)
def _unit_mean(servers: int, rho: float, scv: float, skew: float, burstiness: float) -> float:
    """Mean of ``_unit_table``."""
    if servers > _EXACT_SERVERS or burstiness < 1.0:  # the latter: quantiles are cut at 0
        return _unit_table(servers, rho, scv, skew, burstiness).mean
    if scv >= _SMOOTHEST_CHAIN:
        found = waiting(servers, _unit_service(scv, skew), *fit_gaps(servers * rho, burstiness))
        return 0.0 if found is None else found.mean
    chain, bursty = (_unit_mean(servers, rho, _SMOOTHEST_CHAIN, 0.0, b) for b in (1.0, burstiness))
    return bursty - (1.0 - scv / _SMOOTHEST_CHAIN) * (chain - mean_deterministic(servers, rho))


def _unit_service(scv: float, skew: float) -> PhaseType2:
    """Two-phase service time of mean 1; c_s^2 within 1e-4 of 1 is taken as exponential."""
    if abs(scv - 1.0) < _NEAR_ONE:
        return PhaseType2((0.5, 0.5), (1.0, 1.0))
    if scv < 1.0:
        return fit_two_stages(1.0, scv)
    m2 = 1.0 + scv
    return fit_hyperexponential(1.0, m2, clipped_skew(1.0, m2, skew * m2 * m2) * m2 * m2)


def _rescaled(servers: int, rho: float, scv: float, skew: float, burstiness: float) -> WaitTable:
    """Law of c > 40 servers from that of 40 with the same Erlang C (same many-server diffusion limit)."""
    target = float(erlang_c(servers, servers * rho))
    if target < 1e-12:
        return no_wait()
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if erlang_c(_EXACT_SERVERS, _EXACT_SERVERS * middle) < target else (low, middle)
    table = _unit_table(_EXACT_SERVERS, low, scv, skew, burstiness)
    factor = _EXACT_SERVERS * (1.0 - low) / (servers * (1.0 - rho))
    return replace(table, mean=table.mean * factor, times=table.times * factor, tail_rate=table.tail_rate / factor)


def _between(servers: int, rho: float, scv: float, burstiness: float) -> WaitTable:
    """c_s^2 below 0.5: quantiles Q = Q_b - (1 - s)(Q_chain - Q_constant), s = c_s^2/0.5.

    Q_b the chain of two stages with bursty arrivals, the others with Poisson arrivals: linear in c_s^2 and in the
    burstiness as Kingman's mean wait (c_a^2 + c_s^2)/2.
    """
    chain = _unit_table(servers, rho, _SMOOTHEST_CHAIN, 0.0, 1.0)
    bursty = _unit_table(servers, rho, _SMOOTHEST_CHAIN, 0.0, burstiness)
    constant = solve_deterministic(servers, rho)
    if bursty.p_wait <= 0.0:
        return no_wait()
    share = scv / _SMOOTHEST_CHAIN
    levels = bursty.log_survival
    times = bursty.times - (1.0 - share) * (_quantiles(chain, levels) - _quantiles(constant, levels))
    times = np.maximum.accumulate(np.maximum(times, 0.0))
    times[0] = 0.0
    first = int(np.searchsorted(times, 0.0, side="right")) - 1  # lowest level reached at t = 0
    times, levels = times[first:], levels[first:]
    distinct = np.concatenate([[True], np.diff(times) > 0.0])
    times, levels = times[distinct], levels[distinct]
    if len(times) < 3:
        return no_wait()
    back = max(len(times) - 6, 0)
    tail = float((levels[back] - levels[-1]) / (times[-1] - times[back]))
    mean = bursty.mean - (1.0 - share) * (chain.mean - constant.mean)
    if burstiness < 1.0:  # quantiles were cut at 0: the mean isn't that of the parts
        mean = mean_of_table(times, levels, tail)
    return WaitTable(float(np.exp(levels[0])), mean, times, levels, tail)


def mean_of_table(times: Array, log_survival: Array, tail_rate: float) -> float:
    """int P(W > t) dt of a log-linear table: (S_i - S_{i+1})/slope per interval."""
    survival, steps = np.exp(log_survival), np.diff(times)
    slope = -np.diff(log_survival) / steps
    flat = slope * steps < 1e-9
    pieces = np.where(flat, survival[:-1] * steps, -np.diff(survival) / np.where(flat, 1.0, slope))
    tail = survival[-1] / tail_rate if tail_rate > 0 else 0.0
    return float(pieces.sum() + tail)


def _quantiles(table: WaitTable, log_levels: Array) -> Array:
    """t with log P(W > t) = level; 0 above P(W > 0), on the exponential tail below the grid."""
    inside = np.interp(-log_levels, -table.log_survival, table.times, left=0.0)
    beyond = np.maximum(table.log_survival[-1] - log_levels, 0.0)
    return np.asarray(inside + (beyond / table.tail_rate if table.tail_rate > 0 else 0.0))
