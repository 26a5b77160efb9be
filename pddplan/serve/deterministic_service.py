"""Waiting time of M/D/c, exact: the anchor for service times that vary little."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.phase_type import WaitTable, no_wait

Array = NDArray[np.float64]

_HIGHEST_UTILIZATION = 0.9995  # above: the same law stretched by (1 - this)/(1 - rho), as in heavy traffic
_RELATIVE_FLOOR = 1e-15


def _outer_root(utilization: float) -> float:
    """The z > 1 with rho (z - 1) = ln z: P(Q > m) falls as z^-m in M/D/c, whatever c."""
    low, high = 1.0, 1.0 / utilization  # the minimum of rho (z - 1) - ln z stands at 1/rho
    while utilization * (high - 1.0) < math.log(high):
        low, high = high, 2.0 * high
    for _ in range(100):
        middle = 0.5 * (low + high)
        if utilization * (middle - 1.0) < math.log(middle):
            low = middle
        else:
            high = middle
    return high


def queue_tail(servers: int, utilization: float) -> Array:
    """P(Q > m), m = 0, 1, ..., Q the jobs waiting in M/D/c; shape (n,).

    Q' = max(Q + Poisson(c rho) - c, 0) per service time, so by Spitzer E z^Q = exp(sum l_k (1 - z^k)), l_k the
    coefficients, k > 0, of log[(1 - e^{c rho (z - 1)} z^{-c})/(1 - 1/z)], here by FFT on a circle between 1 and the
    outer root, where both sides of the series fall fast. Relative error about 1e-10.
    """
    radius = min(float(np.sqrt(_outer_root(utilization))), 2.0)
    size = 2 ** int(np.ceil(np.log2(max(512.0, 4.0 * servers, 50.0 / np.log(radius)))))
    size = min(size, 2**20)
    z = radius * np.exp(2j * np.pi * np.arange(size // 2 + 1) / size)
    ratio = (1.0 - np.exp(servers * (utilization * (z - 1.0) - np.log(z)))) / (1.0 - 1.0 / z)
    logarithm = np.log(np.abs(ratio)) + 1j * np.unwrap(np.angle(ratio))
    scaled = np.fft.irfft(np.conj(logarithm), size)  # l_k radius^k
    scaled[0] = 0.0
    scaled[size // 2 :] = 0.0
    falling = np.exp(-np.log(radius) * np.arange(size // 2))
    transform = np.exp((scaled[: size // 2] * falling).sum() - np.conj(np.fft.rfft(scaled)))
    probability = np.maximum(np.fft.irfft(np.conj(transform), size)[: size // 2], 0.0) * falling
    return np.asarray(np.cumsum(probability[::-1])[::-1][1:])


def mean_deterministic(servers: int, utilization: float) -> float:
    """E[W] of M/D/c in units of the service time, by Little's law: E[Q]/lambda; ``utilization`` below 1."""
    rho, stretch = _stretched(utilization)
    return float(queue_tail(servers, rho).sum()) / (servers * rho) * stretch


def _stretched(utilization: float) -> tuple[float, float]:
    rho = min(utilization, _HIGHEST_UTILIZATION)
    return rho, (1.0 - rho) / (1.0 - utilization)


def solve_deterministic(servers: int, utilization: float) -> WaitTable:
    """Waiting time in units of the service time, M/D/c; ``utilization`` below 1.

    P(W > k - y) = sum_j P(Poisson(c rho y) = j) P(Q > kc - 1 - j), 0 < y <= 1 (Franx, Oper. Res. Lett. 29 (2001) 221).
    Relative error about 1e-9 down to 1e-15 P(W > 0), exponential beyond.
    """
    from scipy.special import gammaln

    rho, stretch = _stretched(utilization)
    tail = queue_tail(servers, rho)
    last = int(np.argmax(tail <= _RELATIVE_FLOOR * tail[0])) // servers + 2  # service times until the tail drowns
    early = np.geomspace(1.0 / (64.0 * servers), 1.0, 97)
    late = np.concatenate([np.arange(17, 129) / 16.0, np.geomspace(8.0, max(last, 9), 96).round()])
    times = np.unique(np.concatenate([[0.0], early, late[late <= last]]))
    whole = np.floor(times) + 1.0
    mean_arrivals = servers * rho * (whole - times)
    longest = int(servers * rho + 12.0 * np.sqrt(servers * rho) + 30.0)
    arrivals = np.arange(longest + 1)
    log_weight = arrivals * np.log(mean_arrivals)[:, None] - mean_arrivals[:, None] - gammaln(arrivals + 1.0)
    index = (whole[:, None] * servers - 1 - arrivals).astype(int)
    exceed = np.where(index < 0, 1.0, tail[np.clip(index, 0, len(tail) - 1)])
    survival = np.minimum.accumulate((np.exp(log_weight) * exceed).sum(axis=1))
    kept = survival > _RELATIVE_FLOOR * survival[0]
    if survival[0] < 1e-250 or kept.sum() < 10:
        return no_wait()
    times, survival = times[kept] * stretch, survival[kept]
    log_survival = np.log(survival)
    back = max(len(times) - 8, 0)
    decay = float((log_survival[back] - log_survival[-1]) / (times[-1] - times[back]))
    mean = float(tail.sum()) / (servers * rho) * stretch
    return WaitTable(float(survival[0]), mean, times, log_survival, decay)
