"""The wide-area line: transfers that share a capacity C max-min, each with its own ceiling r.

Symbols: C capacity of the line [B/s], r ceiling of one transfer [B/s], m = C/r (any positive real), rho = mean bytes/s
over C. A transfer of b bytes takes ``T = T0 + (b/r)·f``, where the factor f >= 1 has mean ``slowdown(m, rho)``.
With m < 1 the line itself is the ceiling: use ``r = min(r, C)`` in b/r and the functions here set m to 1.
How much of T a request feels is the subject of ``overlap``.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from pddplan.serve.discretize import Floats, as_floats, tail_edges
from pddplan.serve.overlap import exposed_transfer_s, rdma_exposed_s, streaming_ceiling_bytes_per_s

__all__ = [
    "averaging",
    "break_even_rate",
    "busy_probability",
    "exposed_transfer_s",
    "fixed_delay_s",
    "flow_ceiling_bytes_per_s",
    "in_flight",
    "mean_ceiling_bytes_per_s",
    "ramp_s",
    "rdma_exposed_s",
    "slowdown",
    "spread",
    "spread_for_size",
    "spread_unequal",
    "streaming_ceiling_bytes_per_s",
    "transfer_time_s",
]

INITIAL_WINDOW_BYTES = 14_600.0  # ten segments of 1,460 bytes, RFC 6928 (https://www.rfc-editor.org/rfc/rfc6928)
SEGMENT_BYTES = 1_460.0  # Ethernet MTU 1,500 less IPv4 and TCP headers, RFC 879 / RFC 9293
MATHIS = float(np.sqrt(1.5))  # Mathis et al., CCR 27(3) 1997, periodic loss, every packet acknowledged


def busy_probability(m: ArrayLike, rho: ArrayLike) -> Floats:
    """Probability that a transfer which starts now gets less than its ceiling, ``P(N >= floor(m))``.

    With k = floor(m), a = m·rho and Poisson(a) mass p and distribution F:
    ``(p_k/(1-rho)) / (F_k + p_k rho/(1-rho))``; Erlang C for whole m. Broadcasts; m < 1 counts as 1; 1 where rho >= 1.
    """
    from scipy.special import gammaincc, gammaln, xlogy

    servers, load = np.maximum(as_floats(m), 1.0), np.maximum(as_floats(rho), 0.0)
    stable = load < 1.0
    inside = np.where(stable, load, 0.5)
    whole, offered = np.floor(servers), servers * inside
    mass = np.exp(xlogy(whole, offered) - offered - gammaln(whole + 1.0))
    below = np.where(offered > 0, gammaincc(whole + 1.0, offered), 1.0)
    busy = mass / (1.0 - inside) / (below + mass * inside / (1.0 - inside))
    return np.where(stable, busy, 1.0)


def slowdown(m: ArrayLike, rho: ArrayLike) -> Floats:
    """Mean factor by which sharing stretches a transfer, ``s = E[N]/(m·rho)`` of the chain of ``in_flight``.

    The chain is geometric above k = floor(m), so the sum closes: ``s = 1 + P(N >= k)·(1/(1-rho) - (m - k))/m``;
    for whole m ``1 + ErlangC(m, m·rho)/(m(1-rho))``, for m = 1 ``1/(1-rho)``. Continuous and falling in m, rising in
    rho; inf where rho >= 1. ``E[T|b] = T0 + (b/r)·s`` holds for every size distribution (processor sharing is
    insensitive). Broadcasts. Source: Kleinrock, Queueing Systems II, 4.4; Cohen, Acta Informatica 12 (1979).
    """
    servers, load = np.maximum(as_floats(m), 1.0), np.maximum(as_floats(rho), 0.0)
    stable = load < 1.0
    inside = np.where(stable, load, 0.5)
    spare = 1.0 / (1.0 - inside) - (servers - np.floor(servers))
    return np.where(stable, 1.0 + busy_probability(servers, inside) * spare / servers, np.inf)


def in_flight(m: float, rho: float, tail: float = 1e-9) -> tuple[Floats, Floats]:
    """Number of transfers in flight: ``pi_n ∝ Π_{j<=n} m·rho/min(j, m)``, cut where less than ``tail`` is left.

    Returns (n, pi) of equal shape, pi summing to 1. Raises ValueError unless 0 <= rho < 1.
    """
    if not 0.0 <= rho < 1.0:
        raise ValueError(f"the number in flight has no law at a load of {rho}")
    servers = max(float(m), 1.0)
    if rho == 0.0:
        return np.zeros(1), np.ones(1)
    beyond = int(np.ceil(np.log(tail) / np.log(rho))) + 1
    n = np.arange(int(servers) + beyond + 1, dtype=np.float64)
    steps = np.log(servers * rho) - np.log(np.minimum(np.maximum(n, 1.0), servers))
    steps[0] = 0.0
    logs = np.cumsum(steps)
    mass = np.exp(logs - logs.max())
    return n, mass / mass.sum()


def spread(m: ArrayLike, rho: ArrayLike, points: int = 12) -> tuple[Floats, Floats]:
    """Law of the factor f as points: ``f = 1 + (max(1, (N+1)/m) - 1)·kappa`` with ``E f = slowdown``.

    Here kappa is 1, always: ``E max(1, (N+1)/m) = E[N]/(m·rho)`` is an identity of the chain (an arrival sees pi, and
    detailed balance turns the one sum into the other), so there is nothing to fit. f is 1 with probability
    ``1 - P(N >= k)``, else ``(k + 1 + G)/m`` with G geometric of ratio rho. Points are means of probability bins of
    ``tail_edges``: E f is exact and each point is continuous. At equal traffic each point falls when C rises (m up, rho
    down), and so does f/r when r rises; at equal rho f is a lattice law and only its mean falls with m.

    Returns factors ``(…, points)`` and probabilities ``(points,)``; factors are inf where rho >= 1.
    f is independent of b, which is within 7 % of simulation at p50/p90/p99 for m = 1…40, rho <= 0.9
    (tests/serve/test_line.py); ``spread_for_size`` uses b and is within 5 %. In whole plans (docs/agreement.md) times
    on the line have median errors of 1.2/1.1/1.2 %; of equal sizes, m up to 8, 12 points p50 is up to 32 % low and p99
    up to 18 % high, and behind a prefill that is as busy as the line at 0.85 up to 44 % high.
    """
    servers, load = np.maximum(as_floats(m), 1.0)[..., None], np.maximum(as_floats(rho), 0.0)[..., None]
    stable = load < 1.0
    inside = np.maximum(np.where(stable, load, 0.5), 1e-12)
    busy = busy_probability(servers, inside)
    survival, probabilities = _bins(points)
    within = np.minimum(survival, busy)  # the part of that mass where the line is busy
    share = within / np.maximum(busy, 1e-300)  # survival of G given busy
    safe = np.where(share > 0, share, 1.0)
    steps = np.floor(np.log(safe) / np.log(inside))  # G at that survival
    partial = steps * share + inside ** (steps + 1.0) / (1.0 - inside)  # E[G; upper share of G's law]
    partial = np.where(share > 0, partial, 0.0)
    above = busy * ((np.floor(servers) + 1.0) * share + partial) / servers + (survival - within)
    factors = (above[..., :-1] - above[..., 1:]) / probabilities
    return np.where(stable, np.maximum(factors, 1.0), np.inf), probabilities


@lru_cache(maxsize=16)
def _bins(points: int) -> tuple[Floats, Floats]:
    """P(f above a bin's edge), from 1 down to 0, and the bins' probabilities; read-only."""
    survival = 1.0 - tail_edges(points)
    probabilities = survival[:-1] - survival[1:]
    survival.flags.writeable = probabilities.flags.writeable = False
    return survival, probabilities


def spread_unequal(own_m: ArrayLike, m: float, rho: float, points: int = 12) -> tuple[Floats, Floats]:
    """Law of the factor of flows whose ceilings differ: ``f_i = max(1, (N+1)/m_i)``, ``m_i = C/r_i``, N ~ pi(m, rho).

    ``m`` is C over ``mean_ceiling_bytes_per_s``. For b/r_i: a flow gets its own ceiling or an equal share, whichever is
    less. Equals ``spread`` where own_m = m. ``own_m`` (…) gives factors (…, points); probabilities are (points,).
    Approximate: max-min leaves a fast flow more than an equal share beside slow ones, so its mean comes out up to 25 %
    too high (ceilings 1:3, m 2…5.3, rho 0.5…0.9), the slow ones' within 8 %; with ``slowdown(m, rho)`` for all, the
    fast one's would be 14 to 51 % too low. Raises ValueError unless 0 <= rho < 1.
    """
    n, pi = in_flight(m, rho)
    edges = tail_edges(points)
    upper = np.cumsum(pi) / pi.sum()
    lower = np.concatenate([[0.0], upper[:-1]])
    overlap = np.minimum(upper, edges[1:, None]) - np.maximum(lower, edges[:-1, None])
    widths = np.diff(edges)
    share = np.maximum(overlap, 0.0) / widths[:, None]  # of each bin, by number in flight
    own = np.maximum(as_floats(own_m), 1.0)[..., None]
    return as_floats(np.maximum(1.0, (n + 1.0) / own) @ share.T), as_floats(widths)


def spread_for_size(factors: ArrayLike, mean: ArrayLike, relative_size: ArrayLike, rho: ArrayLike) -> Floats:
    """Factors of a transfer of a given size: a long one averages the line over its life.

    ``f_b = s + (f - s)·sqrt(g(x))``, ``g(x) = (2/x²)(x - 1 + e^{-x})``, ``x = (b/E b)·(1 - rho)``: the variance of the
    time average of a process that forgets at rate x per transfer. Keeps the mean, never falls below 1, and b·f_b rises
    with b. All broadcast; ``relative_size`` is b/E[b]. The forgetting rate is an approximation: within 5 % of
    simulation at p50/p90/p99 (m = 1…40, rho <= 0.9), where f independent of b is within 7 %.
    """
    mean_factor = as_floats(mean)
    x = np.maximum(as_floats(relative_size) * (1.0 - as_floats(rho)), 0.0)
    return np.asarray(mean_factor + (as_floats(factors) - mean_factor) * np.sqrt(averaging(x)), dtype=np.float64)


def averaging(x: ArrayLike) -> Floats:
    """Variance left after averaging an exponentially forgetting process over x relaxation times.

    ``g(x) = (2/x²)(x - 1 + e^{-x})``, from 1 at x = 0 down to 2/x. Source: variance of the time integral of an
    Ornstein-Uhlenbeck process, e.g. Gardiner, Handbook of Stochastic Methods, 4.4.
    """
    value = as_floats(x)
    small = value < 1e-3
    safe = np.where(small, 1.0, value)
    exact = 2.0 / safe**2 * (safe + np.expm1(-safe))
    return np.where(small, 1.0 - value / 3.0 + value**2 / 12.0, exact)


def flow_ceiling_bytes_per_s(
    streams: ArrayLike,
    stream_bytes_per_s: ArrayLike,
    rtt_s: ArrayLike,
    window_bytes: ArrayLike | None = None,
    loss: ArrayLike | None = None,
) -> Floats:
    """Ceiling of one transfer, ``r = streams · min(given rate, window/RTT, (MSS/RTT)·sqrt(3/2)/sqrt(loss))`` [B/s].

    ``window_bytes`` and ``loss`` (share of packets) count where given. With RTT 0 only the given rate counts.
    Source of the loss limit: Mathis, Semke, Mahdavi, Ott, CCR 27(3) 1997; for Reno-like congestion control.
    """
    rtt = as_floats(rtt_s)
    rate = as_floats(stream_bytes_per_s)
    with np.errstate(divide="ignore"):
        if window_bytes is not None:
            rate = np.minimum(rate, np.where(rtt > 0, as_floats(window_bytes) / np.where(rtt > 0, rtt, 1.0), np.inf))
        if loss is not None:
            per_rtt = SEGMENT_BYTES * MATHIS / np.sqrt(as_floats(loss))
            rate = np.minimum(rate, np.where(rtt > 0, per_rtt / np.where(rtt > 0, rtt, 1.0), np.inf))
    return np.asarray(as_floats(streams) * rate, dtype=np.float64)


def mean_ceiling_bytes_per_s(weights: ArrayLike, transfer_bytes: ArrayLike, ceilings: ArrayLike) -> Floats:
    """The one ceiling that stands for unequal ones in m = C/r: ``Σ w b / Σ w (b/r)`` over the last axis [B/s].

    The byte-weighted harmonic mean: it keeps the mean number in flight on an empty line, λE[b/r], exactly. The flow's
    own ceiling stays in b/r. On a loaded line the mean over all flows is within some per cent, of the fast ones far
    too low: use ``spread_unequal``. Where there are no bytes: the plain weighted mean; where there are no flows either
    (a band of requests may have none of a workload): the mean of the ceilings, so that one without weight is no nan.
    """
    mass = as_floats(weights) * as_floats(transfer_bytes)
    rates = as_floats(ceilings)
    total, busy_time = np.sum(mass, axis=-1), np.sum(mass / rates, axis=-1)
    if np.all(total > 0):
        return as_floats(total / busy_time)
    weight, rates = np.broadcast_arrays(as_floats(weights), rates)
    flows = np.sum(weight, axis=-1)
    plain = np.where(
        flows > 0, np.sum(weight * rates, axis=-1) / np.where(flows > 0, flows, 1.0), np.mean(rates, axis=-1)
    )
    return as_floats(np.where(total > 0, total / np.where(total > 0, busy_time, 1.0), plain))


def ramp_s(
    transfer_bytes: ArrayLike,
    rate: ArrayLike,
    rtt_s: ArrayLike,
    warm: bool = False,
    initial_window_bytes: float = INITIAL_WINDOW_BYTES,
) -> Floats:
    """Start-up time of a transfer beside b/r: slow start on an idle connection, one round trip on a warm one [s].

    Idle ``RTT·log2(1 + min(b, r·RTT/ln 2)/IW)``; warm the smaller of that and RTT. A window that doubles every RTT has
    sent r·RTT/ln 2 bytes when it reaches r·RTT: with this cap ``ramp + b/r`` never rises with r, with the plain r·RTT
    it does, by up to 0.09 RTT (this one is at most 0.53 RTT longer). Several streams share the start: pass
    ``initial_window_bytes`` times their number. Rises with b. Broadcasts.
    """
    size, rtt = as_floats(transfer_bytes), as_floats(rtt_s)
    started = np.minimum(size, as_floats(rate) * rtt / np.log(2.0))
    slow_start = rtt * np.log2(1.0 + started / initial_window_bytes)
    return np.asarray(np.minimum(slow_start, rtt) if warm else slow_start, dtype=np.float64)


def fixed_delay_s(
    transfer_bytes: ArrayLike,
    rate: ArrayLike,
    rtt_s: ArrayLike,
    warm: bool = False,
    initial_window_bytes: float = INITIAL_WINDOW_BYTES,
) -> Floats:
    """T0 of a transfer that nothing hides: one-way delay RTT/2 plus ``ramp_s`` [s]."""
    return np.asarray(
        as_floats(rtt_s) / 2.0 + ramp_s(transfer_bytes, rate, rtt_s, warm, initial_window_bytes), dtype=np.float64
    )


def transfer_time_s(transfer_bytes: ArrayLike, ceiling: ArrayLike, factor: ArrayLike, t0_s: ArrayLike) -> Floats:
    """``T = T0 + (b/r)·f`` [s]; ``ceiling`` r is min(own ceiling, C) [B/s]. Broadcasts."""
    return np.asarray(
        as_floats(t0_s) + as_floats(transfer_bytes) / as_floats(ceiling) * as_floats(factor), dtype=np.float64
    )


def break_even_rate(
    transfer_bytes: ArrayLike, recompute_time_s: ArrayLike, fixed_delay: ArrayLike = 0.0, factor: ArrayLike = 1.0
) -> Floats:
    """Line rate of a flow below which recomputing the tokens (or staying local) is sooner than sending them [B/s].

    ``b·f/(T_recompute - T0)``; inf where the fixed delay alone is longer, 0 where nothing is to be sent.
    """
    size = as_floats(transfer_bytes) * as_floats(factor)
    room = as_floats(recompute_time_s) - as_floats(fixed_delay)
    rate = np.where(room > 0, size / np.where(room > 0, room, 1.0), np.inf)
    return np.where(size > 0, rate, 0.0)
