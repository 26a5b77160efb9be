"""Waiting for prefill by routing mode: one queue, a queue a server, or home servers with overflow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.serve.phase_type import Waiting, exponential, fit_phases, tabulate
from pddplan.serve.queueing import Moments, WaitingLaw, law_of, mean_of_table, waiting_law

Array = NDArray[np.float64]

# Fitted to 162 simulated queues of this kind, see affine_waiting for their range and the error.
_POOLING = 0.75  # how far servers that exchange all their overflow behave as one pool
_JUST_AFTER = 1e-6  # of the mean service time
_RELIEF = 0.8  # share of phi that thins a busy server's arrivals: times when all are busy come in runs


def prefill_waiting(
    mode: Literal["shared", "sticky", "affine"],
    arrival_rate_per_s: float,
    servers: int,
    moments: Moments,
    burstiness: float = 1.0,
    overflow_wait_s: float | None = None,
    miss_moments: Moments | None = None,
) -> WaitingLaw | Excuse:
    """Waiting law of a prefill pool with service ``moments`` of requests that hit [s, s^2, s^3].

    shared: M/G/c. sticky: each server an M/G/1 of rate lambda/c; a random split of renewal arrivals has squared CV
    1 + (b - 1)/c. affine: ``affine_waiting`` with threshold ``overflow_wait_s``, by default
    ``default_threshold``; ``miss_moments`` default to ``moments``. Utilisation >= 1 is an Excuse.
    """
    if mode == "shared" or servers == 1:
        return waiting_law(arrival_rate_per_s, servers, moments, burstiness)
    split = max(1.0 + (burstiness - 1.0) / servers, 0.0)
    sticky = waiting_law(arrival_rate_per_s / servers, 1, moments, split)
    if mode == "sticky" or isinstance(sticky, Excuse) or sticky.p_wait <= 0.0:
        return sticky
    shared = waiting_law(arrival_rate_per_s, servers, moments, burstiness)
    if isinstance(shared, Excuse):
        return shared
    miss = miss_moments if miss_moments is not None else moments
    threshold = default_threshold(moments, miss) if overflow_wait_s is None else overflow_wait_s
    return affine_waiting(sticky, shared, servers, moments, miss, threshold)


def default_threshold(hit: Moments, miss: Moments) -> float:
    """d = E[S_miss] - E[S] + (E[S_miss^2] - E[S^2])/E[S] [s], not below 0: home wait above which leaving pays.

    The first term is what the request itself loses, the second what a server that works on a miss instead of a hit
    costs those who come to it: lambda E[S^2]/(2 (1 - rho)) each, at rho = 2/3. Independent of rate and servers, so
    that waits stay monotone in both.
    """
    return max(miss[0] - hit[0] + (miss[1] - hit[1]) / hit[0], 0.0)


def affine_waiting(
    sticky: WaitingLaw, shared: WaitingLaw, servers: int, hit: Moments, miss: Moments, overflow_wait_s: float
) -> WaitingLaw:
    """Home servers with overflow: stay home unless its work V > d and another server idles; then go there, as a miss.

    Level crossing for one server: f(x), the density of V, is the sum over the phases of the job whose work crosses
    level x, row vectors g (hits, phase type alpha, S) and m (misses, beta, M), with lambda the home rate:
        g' = g S + lambda(x) f alpha,  m' = m M,  f = g 1 + m 1,  g(0) = lambda P0 alpha,  m(0) = lambda q beta
    lambda(x) = lambda up to d and lambda (1 - 0.8 phi) beyond; P0 = 1 - rho (1 - q) - q lambda E[S_miss];
    q = phi P(V > d). phi, the chance that another server idles, lies between independent servers and one pool:
        1 - phi = r^(c-1) + 0.75 P(V > d | V > 0) (C(c, c r)/r - r^(c-1)),  r = 1 - P0, C the Erlang C formula.
    Overflowed requests don't wait: P(W > t) = P(V > t) - q up to d and (1 - phi) P(V > t) beyond. Exact for many
    servers and as d grows; the pool term and the factors 0.75 and 0.8 are fitted.

    Overflow to busy servers is left out on purpose: misses add work, and with lambda E[S_miss] >= 1 such a router ends
    with everything overflowed for good. To idle ones it is stable at any rho < 1 (a miss is a vacation of its server),
    yet slower than sticky where misses are long and d is short.

    Error against the 162 simulated queues of the fit (c 2..16, rho 0.5..0.9, c_s^2 1..27, E[S_miss]/E[S] 1..2, d
    0..85 E[S]), as a share of simulated quantile + E[S]: median 5/5/8 % at p50/p90/p99 of W (nine in ten within
    32/16/18 %), mean wait 4 % (13 %), q 1 point (3). p99 is low by 6 % at the median, by 15 % with the default d and
    misses longer than hits. Worst where d is 0 and c large: the p50 of a wait that is mostly 0.
    With misses of 6 hits and d well below the default, overflow feeds itself: q up to 8 points, E[W] up to 40 % high.
    Monotone in rate and servers within 1e-3; from one server to two only with d from the default up (a lone server
    loses no hits).
    """
    rho = sticky.p_wait  # as arrivals see it; equals the utilisation for Poisson arrivals
    home = _home(hit, miss, rho, overflow_wait_s)
    phi, idle, q = _solve(home, servers)
    after = overflow_wait_s + _JUST_AFTER * hit[0]  # the two branches may part at d: no interpolation across it
    times = np.unique(np.concatenate([[0.0, overflow_wait_s, after], sticky.times_s, shared.times_s]))
    survival = _survival(home, times, idle, q, phi)
    if hit[1] < 1.5 * hit[0] ** 2:  # a chain of stages stands for service that varies less: measured by its own M/G/1
        alone = _tail_of(home.rate * (1.0 - rho) * home.initial[0], home.thinned(0.0))
        survival = survival * np.minimum(sticky.survival(times) / np.maximum(alone.survival(times), 1e-300), 1.0)
    survival = np.maximum(survival, shared.survival(times))
    return _law(times, survival, sticky, shared, q, overflow_wait_s, home.miss_load)


@dataclass(frozen=True)
class _Home:
    """One home server. Row vectors over the phases of (hits, misses); index 0 per lambda P0, 1 per lambda q."""

    initial: tuple[Array, Array]
    generator: Array  # without arrivals [1/s]
    arrivals: Array  # added per unit of the home rate: column of ones times (alpha, 0)
    at_threshold: tuple[Array, Array]
    mass: tuple[float, float]  # int_0^d f [s]
    rate: float
    rho: float
    miss_load: float  # lambda E[S_miss]
    threshold: float

    def thinned(self, phi: float) -> Array:
        """Generator where a share phi of the home arrivals goes elsewhere [1/s]."""
        return np.asarray(self.generator + (1.0 - phi) * self.rate * self.arrivals)


def _home(hit: Moments, miss: Moments, rho: float, threshold: float) -> _Home:
    """Phases, and the solution of the level-crossing equation up to the threshold."""
    (alpha, hit_generator), (beta, miss_generator) = fit_phases(*hit), fit_phases(*miss)
    rate = rho / hit[0]
    hits, misses = np.concatenate([alpha, 0.0 * beta]), np.concatenate([0.0 * alpha, beta])
    hit_size = len(hit_generator)
    generator = np.zeros((hit_size + len(miss_generator),) * 2)
    generator[:hit_size, :hit_size], generator[hit_size:, hit_size:] = hit_generator, miss_generator
    arrivals = np.outer(np.ones(len(hits)), hits)
    full = generator + rate * arrivals
    way = exponential(full * threshold)
    sums = np.linalg.solve(-full, np.ones(len(full)))
    ends = (hits @ way, misses @ way)
    mass = (float((hits - ends[0]) @ sums), float((misses - ends[1]) @ sums))
    return _Home((hits, misses), generator, arrivals, ends, mass, rate, rho, rate * miss[0], threshold)


def _balance(home: _Home, phi: float) -> tuple[float, float, float]:
    """(P0, q, P(V > d)) when another server idles with chance phi.

    P(V <= d) = a P0 + b q with a = 1 + lambda mass_0, b = lambda mass_1; P0 = 1 - rho - q extra,
    extra = lambda E[S_miss] - rho; q = phi (1 - P(V <= d)).
    """
    extra = home.miss_load - home.rho
    a, b = 1.0 + home.rate * home.mass[0], home.rate * home.mass[1]
    denominator = 1.0 - phi * (extra * a - b)
    q = phi * max(1.0 - (1.0 - home.rho) * a, 0.0) / denominator if denominator > 0.0 else np.inf
    idle = 1.0 - home.rho - q * extra
    if q > 1.0 or idle <= 0.0:
        return 0.0, min(q, 1.0), 1.0
    return idle, q, max(1.0 - idle * a - q * b, 0.0)


def _solve(home: _Home, servers: int) -> tuple[float, float, float]:
    """(phi, P0, q) by bisection: P0 falls as phi grows, so there is one solution."""
    low, high = 0.0, 1.0
    for _ in range(40):
        phi = 0.5 * (low + high)
        low, high = (phi, high) if _idle_chance(home, servers, phi) > phi else (low, phi)
    idle, q, _ = _balance(home, low)
    return low, idle, q


def _pooled_wait(servers: int, load: float) -> float:
    """Erlang C by recursion of Erlang B: B_k = a B_{k-1}/(k + a B_{k-1}); scalar, cheaper than ``erlang_c``."""
    loss = 1.0
    for k in range(1, servers + 1):
        loss = load * loss / (k + load * loss)
    return loss / (1.0 - load / servers * (1.0 - loss))


def _idle_chance(home: _Home, servers: int, phi: float) -> float:
    """phi that follows from the balance at phi (see ``affine_waiting``)."""
    idle, _, above = _balance(home, phi)
    busy = 1.0 - idle
    alone = busy ** (servers - 1)
    pooled = max(_pooled_wait(servers, servers * busy) / busy, alone)
    return 1.0 - alone - _POOLING * min(above / busy, 1.0) * (pooled - alone)


def _survival(home: _Home, times: Array, idle: float, q: float, phi: float) -> Array:
    """P(W > t): int_t^d f + P(V > d) - q up to d, (1 - phi) P(V > t) beyond."""
    flows = (home.rate * idle, home.rate * q)
    start = flows[0] * home.initial[0] + flows[1] * home.initial[1]
    middle = flows[0] * home.at_threshold[0] + flows[1] * home.at_threshold[1]
    inside = _tail_of(start, home.thinned(0.0))
    outside = _tail_of(middle, home.thinned(_RELIEF * phi))
    d = home.threshold
    above = float(outside.survival(0.0))
    early = inside.survival(times) - float(inside.survival(d)) + above - q
    late = (1.0 - phi) * outside.survival(np.maximum(times - d, 0.0))
    return np.asarray(np.clip(np.where(times <= d, np.maximum(early, late[-1]), late), 0.0, 1.0))


def _tail_of(start: Array, generator: Array) -> WaitingLaw:
    """t -> start e^{generator t} (-generator)^-1 1 as a tabulated law."""
    sums: Array = np.linalg.solve(-generator, np.ones(len(generator), dtype=np.float64)).astype(np.float64)
    return law_of(tabulate(Waiting(start, generator, sums, 0.0)), 0.0, 1.0)


def _law(
    times: Array, survival: Array, sticky: WaitingLaw, shared: WaitingLaw, q: float, threshold: float, miss_load: float
) -> WaitingLaw:
    """A law from P(W > t) on a grid; the tail falls as on the last interval."""
    survival = np.minimum.accumulate(survival)
    kept = survival > 1e-15 * survival[0]
    times, log_survival = times[kept], np.log(survival[kept])
    tail = max(sticky.tail_rate_per_s, float((log_survival[-2] - log_survival[-1]) / (times[-1] - times[-2])))
    return replace(
        sticky,
        p_wait=float(np.exp(log_survival[0])),
        mean_s=mean_of_table(times, log_survival, tail),
        utilization=shared.utilization + q * max(miss_load - shared.utilization, 0.0),
        overflow_share=q,
        overflow_wait_s=threshold,
        times_s=times,
        log_survival=log_survival,
        tail_rate_per_s=tail,
    )
