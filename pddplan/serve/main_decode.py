"""Main decode: the batch it settles at, the contexts it reads, the ranks that wait for each other.

Symbols: lambda rate of requests [1/s], n output tokens, e eager tokens made by the relay, tau(B) time per token at
batch B per instance [s], I instances. The law of the occupancy is in ``occupancy_law``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pddplan.errors import Excuse
from pddplan.serve.discretize import Floats, as_floats, weighted_quantile
from pddplan.serve.occupancy_law import (
    AdmissionWait,
    StepTime,
    admission_wait,
    dispersion,
    elasticity,
    max_offered,
    occupancy_pmf,
    occupancy_tail,
    poisson_tail,
    size_biased_occupancy,
)

__all__ = [
    "AdmissionWait",
    "Occupancy",
    "StepTime",
    "admission_wait",
    "decode_tokens_mean",
    "dispersion",
    "dp_imbalance",
    "elasticity",
    "length_biased_context",
    "length_biased_mean",
    "max_offered",
    "occupancy",
    "occupancy_linear",
    "occupancy_pmf",
    "occupancy_tail",
    "poisson_tail",
    "size_biased_occupancy",
    "tpot_quantile",
]


@dataclass(frozen=True)
class Occupancy:
    """Where main decode settles: mean batch of an instance, of the pool, and the time per token there."""

    batch: float
    requests: float
    tpot_s: float
    dispersion: float  # variance/mean of the number running on an instance


def decode_tokens_mean(weights: ArrayLike, output_tokens: ArrayLike, eager: ArrayLike) -> Floats:
    """``E[n - e]``, tokens that main decode makes for a request of the mix; over the last axis, weights sum to 1."""
    rest = np.maximum(as_floats(output_tokens) - as_floats(eager), 0.0)
    return np.asarray(np.sum(as_floats(weights) * rest, axis=-1), dtype=np.float64)


def occupancy(
    rate: float, tokens_mean: float, step_time_fn: StepTime, instances: float, max_batch: float = 16_384.0
) -> Occupancy | Excuse:
    """Fixed point B of ``B = (lambda·E[n - e]/I)·tau(B)``, the smallest; an Excuse when there is none up to max_batch.

    Looks for the first of 512 geometrically spaced batches at which the instances keep up (steps of under 3.3 %), then
    narrows to 1e-10 in four vectorised calls. ``step_time_fn`` takes an array of batches per instance (real, > 0) and
    must not fall. The batch is that of a mean step; ``occupancy_pmf`` gives the law around it.
    """
    demand = rate * tokens_mean / instances if instances > 0 else np.inf
    if demand <= 0:
        return Occupancy(0.0, 0.0, float(as_floats(step_time_fn(as_floats([1e-9])))[0]), 1.0)
    grid = np.geomspace(1e-3, max_batch, 512)
    speed = grid / as_floats(step_time_fn(grid))  # tokens/s of an instance at each batch
    if speed.max() < demand:
        return Excuse("main decode throughput", float(demand), float(speed.max()), "tokens/s per instance")
    first = int(np.argmax(speed >= demand))
    low, high = (float(grid[first - 1]) if first else 1e-9), float(grid[first])
    for _ in range(3):
        finer = np.linspace(low, high, 65)
        spare = finer - demand * as_floats(step_time_fn(finer))
        after = max(int(np.argmax(spare >= 0)), 1)
        low, high = float(finer[after - 1]), float(finer[after])
    here, there = float(spare[after - 1]), float(spare[after])
    batch = low + (high - low) * min(max(-here / (there - here), 0.0), 1.0) if there > here else high
    tpot = float(as_floats(step_time_fn(as_floats([batch])))[0])
    return Occupancy(batch, batch * instances, tpot, dispersion(batch, step_time_fn))


def occupancy_linear(
    rate: ArrayLike, tokens_mean: ArrayLike, t0_s: ArrayLike, t1_s: ArrayLike, instances: ArrayLike
) -> Floats:
    """The same for tau = t0 + t1·B: ``B = l·t0/(I - l·t1)``, l = lambda·E[n - e]; inf unless l·t1 < I. Broadcasts."""
    demand = as_floats(rate) * as_floats(tokens_mean)
    room = as_floats(instances) - demand * as_floats(t1_s)
    return np.where(room > 0, demand * as_floats(t0_s) / np.where(room > 0, room, 1.0), np.inf)


def length_biased_mean(weights: ArrayLike, values: ArrayLike, tokens: ArrayLike) -> Floats:
    """Mean of a quantity over running requests, ``Σ w·tokens·value/Σ w·tokens`` over the last axis.

    A request runs for as many steps as it has tokens. Give ``KV(L + (n + e)/2)`` for the running KV [bytes]. 0 where
    nothing runs.
    """
    mass = as_floats(weights) * np.maximum(as_floats(tokens), 0.0)
    mass, amounts = np.broadcast_arrays(mass, as_floats(values))
    total = np.sum(mass, axis=-1)
    return np.where(total > 0, np.sum(mass * amounts, axis=-1) / np.where(total > 0, total, 1.0), 0.0)


def length_biased_context(
    weights: ArrayLike, prompt_tokens: ArrayLike, output_tokens: ArrayLike, eager: ArrayLike
) -> Floats:
    """Mean context of a running request, ``E[(n - e)(L + (n + e)/2)]/E[n - e]`` [tokens].

    From L + e at the hand-over to L + n at the end, the middle being L + (n + e)/2. Over the last axis.
    """
    n, e = np.broadcast_arrays(as_floats(output_tokens), as_floats(eager))
    return length_biased_mean(weights, as_floats(prompt_tokens) + (n + e) / 2.0, n - e)


def tpot_quantile(quantile: float, batch: ArrayLike, probabilities: ArrayLike, step_time_fn: StepTime) -> float:
    """Quantile of tau over the batches of ``size_biased_occupancy`` [s].

    ``batch`` (…, points) and ``probabilities`` broadcast; multiply the latter by the weights of several lives.
    """
    batches = as_floats(batch)
    times = as_floats(step_time_fn(batches.ravel())).reshape(batches.shape)
    return weighted_quantile(times, probabilities, quantile)


def dp_imbalance(ranks: ArrayLike, requests_per_rank: ArrayLike, sigma: float = 0.8) -> Floats:
    """Expected max/mean over DP ranks of the KV they read, contexts log-normal with ``sigma`` of the logarithm.

    The sum over B requests of a rank is taken as a shifted log-normal with its mean, variance and third moment (exact
    for B = 1), and ``E max = ∫ x d(F^R)``. With omega = e^{sigma²}: cv² = (omega - 1)/B and skewness
    ``(omega + 2)·sqrt(omega - 1)/sqrt(B)``; the shifted law's own omega' solves ``(w + 2)·sqrt(w - 1) = skewness``.
    1 for one rank; rises in R, falls in B (real, counted as at least 1). 8x16 1.37, 32x16 1.61, 144x16 1.88, 144x64
    1.37; within 3 % of simulation (tests/serve/test_main_decode.py). Broadcasts.
    """
    from scipy.special import log_ndtr

    count, batch = np.broadcast_arrays(np.maximum(as_floats(ranks), 1.0), np.maximum(as_floats(requests_per_rank), 1.0))
    if sigma <= 0:
        return np.ones(count.shape)
    omega = np.exp(sigma**2)
    cv = np.sqrt((omega - 1.0) / batch)
    skew = (omega + 2.0) * np.sqrt(omega - 1.0) / np.sqrt(batch)
    # x³ + 3x - skew = 0 with x = sqrt(w - 1): one real root, written without cancellation
    x = 2.0 * np.sinh(np.arcsinh(skew / 2.0) / 3.0)
    own_sigma = np.sqrt(np.log1p(x**2))
    z = np.linspace(-9.0, 9.0 + 2.0 * sigma, 721)
    power = count[..., None] * log_ndtr(z)
    mass = np.diff(np.exp(power), axis=-1)
    middle = (z[:-1] + z[1:]) / 2.0
    scaled = np.expm1(own_sigma[..., None] * middle - own_sigma[..., None] ** 2 / 2.0) / x[..., None]
    expected = np.sum(mass * scaled, axis=-1) / np.sum(mass, axis=-1)
    return np.where(count > 1.0, np.maximum(1.0 + cv * expected, 1.0), 1.0)
