"""How many requests run on a decode instance at once: the law, its tail, and what it admits.

Requests arrive at ``rate`` and each needs a number of tokens; with N running, a token takes ``tau(N)``. Every running
request advances at the same speed 1/tau(N), so this is processor sharing with a state-dependent rate and, for every
law of the token counts, ``pi_n ∝ Π_{j<=n} l·tau(j)/j`` with l = rate·E[tokens] (Kelly, Reversibility and Stochastic
Networks, 1979, 3.3). If tau is constant that is Poisson(a), a = l·tau. If the step gets longer with the batch, a full
instance is slow and fills further: with tau = t0 + t1·n it is negative binomial, variance/mean =
``phi = 1/(1 - l·t1)``, and in general ``phi ≈ 1/(1 - d ln tau/d ln B)``. phi is called *dispersion* here; 1 is Poisson.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pddplan.serve.discretize import Floats, as_floats, bin_means, tail_edges
from pddplan.serve.line import averaging

StepTime = Callable[[Floats], Floats]  # batch per instance -> time of a step per token [s], never falling

POISSON = 1e-9  # dispersion - 1 below which the law is Poisson to double precision


def poisson_tail(mean: ArrayLike, slots: ArrayLike) -> Floats:
    """``P(Poisson(a) > K)``, the regularised lower incomplete gamma ``P(K+1, a)``; smooth in real K. Broadcasts."""
    from scipy.special import gammainc

    return np.asarray(gammainc(as_floats(slots) + 1.0, np.maximum(as_floats(mean), 0.0)), dtype=np.float64)


def occupancy_tail(mean: ArrayLike, slots: ArrayLike, dispersion: ArrayLike = 1.0) -> Floats:
    """``P(N > K)`` for N of mean a and variance phi·a: Poisson (phi 1) or negative binomial (phi > 1).

    Negative binomial: ``I_{1-1/phi}(K+1, a/(phi-1))``, the regularised incomplete beta function. Rises in a, falls in
    K, both real. Broadcasts.
    """
    from scipy.special import betainc

    a, k, phi = np.maximum(as_floats(mean), 0.0), as_floats(slots), as_floats(dispersion)
    wide = (phi > 1.0 + POISSON) & (a > 0)
    if wide.all():  # one law for all, the usual case: the other is not asked for
        over = phi - 1.0
        return np.asarray(betainc(k + 1.0, a / over, over / (1.0 + over)), dtype=np.float64)
    if phi.ndim == 0 and not wide.any():
        return poisson_tail(a, k)
    over = np.where(wide, phi - 1.0, 1.0)
    spread_out = betainc(k + 1.0, np.where(wide, a / over, 1.0), over / (1.0 + over))
    return np.where(wide, spread_out, poisson_tail(a, k))


def max_offered(slots: ArrayLike, epsilon: float = 0.01, dispersion: ArrayLike = 1.0) -> Floats:
    """Largest mean occupancy a with ``P(N > K) <= epsilon``: the admission row of a pool of K slots.

    Poisson: the inverse of the incomplete gamma function; load a/K at 1 % is 0.55, 0.73, 0.81, 0.89 for K = 16, 54,
    128, 432. Negative binomial: bisection to 1e-12 relative. Rises in K, falls in phi. Broadcasts; 0 < epsilon < 1.
    """
    from scipy.special import betainc, gammaincinv

    k, phi = np.broadcast_arrays(as_floats(slots), as_floats(dispersion))
    poisson = as_floats(gammaincinv(k + 1.0, epsilon))
    wide = phi > 1.0 + POISSON
    if not np.any(wide):
        return poisson
    over = np.where(wide, phi - 1.0, 1.0)
    # A wider law isn't always the larger tail (at a large epsilon), so the bracket is opened upwards too
    low, high = np.zeros_like(poisson), np.maximum(8.0 * poisson, 4.0 * (k + 1.0) * phi)
    for _ in range(50):
        middle = (low + high) / 2.0
        fits = betainc(k + 1.0, middle / over, over / (1.0 + over)) <= epsilon
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(wide, low, poisson)


def elasticity(batch: float, step_time: StepTime) -> float:
    """``d ln tau/d ln B`` of the step time at a batch, by a central difference of 1 %; at least 0."""
    if batch <= 0:
        return 0.0
    low, high = as_floats(step_time(as_floats([batch * 0.99, batch * 1.01])))
    return max(float(np.log(high / low) / np.log(1.01 / 0.99)), 0.0)


def dispersion(batch: float, step_time: StepTime) -> float:
    """Variance/mean of the occupancy, ``1/(1 - elasticity)``; inf where steps lengthen as fast as the batch."""
    slope = elasticity(batch, step_time)
    return 1.0 / (1.0 - slope) if slope < 1.0 else float("inf")


def occupancy_pmf(tokens_per_s: float, step_time: StepTime, slots: int, tail: float = 1e-12) -> tuple[Floats, Floats]:
    """The exact law ``pi_n ∝ Π_{j<=n} l·tau(j)/j`` of one instance that admits everybody.

    ``tokens_per_s`` l asked of this instance; beyond ``slots`` the step time is taken as tau(slots) (requests wait, the
    batch stays full: ``pi_{n+1} = pi_n·l·tau(K)/K``, exact for exponential token counts). Returns (n, pi), cut where
    less than ``tail`` is left. Raises ValueError when the instance can't keep up, ``l·tau(K) >= K``.
    """
    n = np.arange(1.0, slots + 1.0)
    ratios = tokens_per_s * as_floats(step_time(n)) / n
    last = float(ratios[-1])
    if last >= 1.0:
        raise ValueError(f"{slots} slots can't keep up: offered {last:.3g} of what they serve")
    beyond = int(np.ceil(np.log(tail) / np.log(last))) if last > 0 else 0
    with np.errstate(divide="ignore"):
        logs = np.concatenate([[0.0], np.cumsum(np.log(np.concatenate([ratios, np.full(beyond, last)])))])
    mass = np.exp(logs - logs.max())
    return np.arange(mass.size, dtype=np.float64), mass / mass.sum()


# ------------------------------------------------------------------------------------------------ what a request sees


def size_biased_occupancy(
    a_per_instance: float, life_ratio: ArrayLike, points: int = 12, dispersion: float = 1.0
) -> tuple[Floats, Floats]:
    """Batch that a running request sees, averaged over its life: points and probabilities.

    A moment of running is size-biased: mean ``a + phi`` (Poisson: 1 + N), variance ``phi·a`` for phi = 1. Over a life
    of x mean lives the batch moves: it forgets at rate 1/phi per mean life, and its average keeps the share
    ``g = (2/y²)(y - 1 + e^{-y})``, y = x/phi, of the variance. So the points are ``mean + (N_seen - mean)·sqrt(g)``.

    ``life_ratio`` x of shape (…) gives batches of shape (…, points); probabilities are (points,) of ``tail_edges``.
    The mean is exact; batches rise with a, and spread less for longer lives. Uses one exponential rate of forgetting;
    exact for exponential lives and constant step time.
    """
    a = max(float(a_per_instance), 0.0)
    phi = max(float(dispersion), 1.0)
    if a < 1e-9:  # alone; the laws below would divide rounding errors
        values, seen = np.array([1.0]), np.array([1.0])
    else:
        values, mass = _law(a, phi)
        seen = values * mass
    edges = tail_edges(points)
    batches = bin_means(values, seen, edges)
    probabilities = np.diff(edges)
    mean = float(np.sum(batches * probabilities))
    keep = np.sqrt(averaging(np.maximum(as_floats(life_ratio), 0.0) / phi))
    return np.maximum(mean + (batches - mean) * keep[..., None], 1.0), probabilities


def _law(mean: float, phi: float) -> tuple[Floats, Floats]:
    """Values and masses of the Poisson or negative binomial law of that mean and dispersion, 9 sigma wide."""
    from scipy.special import gammaln, xlogy

    width = 9.0 * np.sqrt(phi * mean) + 30.0 * phi
    n = np.arange(max(np.floor(mean - width), 0.0), np.ceil(mean + width) + 1.0)
    if phi <= 1.0 + POISSON or mean <= 0:
        logs = xlogy(n, mean) - gammaln(n + 1.0)
    else:
        size = mean / (phi - 1.0)
        logs = gammaln(n + size) - gammaln(n + 1.0) + n * np.log1p(-1.0 / phi)
    weights = np.exp(logs - logs.max())
    return n, weights / weights.sum()


# ------------------------------------------------------------------------------------------------ waiting for a slot


@dataclass(frozen=True)
class AdmissionWait:
    """Wait for a decode slot: P(W > 0), mean of all requests [s], and the rate of the exponential tail [1/s]."""

    p_wait: Floats
    mean_s: Floats
    decay_per_s: Floats

    def tail(self, time_s: ArrayLike) -> Floats:
        """``P(W > t) = P(W > 0)·exp(-decay·t)``, t >= 0. Broadcasts; 1 where the pool can't keep up."""
        return np.asarray(self.p_wait * np.exp(-self.decay_per_s * as_floats(time_s)), dtype=np.float64)

    def quantile(self, q: ArrayLike) -> Floats:
        """The q-quantile of the wait [s], ``max(0, ln(P(W > 0)/(1 - q))/decay)``; inf where it can't keep up."""
        with np.errstate(divide="ignore", invalid="ignore"):
            time = np.log(self.p_wait / (1.0 - as_floats(q))) / self.decay_per_s
        return np.where(self.decay_per_s > 0, np.maximum(time, 0.0), np.inf)


def admission_wait(
    offered: ArrayLike, slots: ArrayLike, life_s: ArrayLike, life_cv2: ArrayLike = 1.0, dispersion: ArrayLike = 1.0
) -> AdmissionWait:
    """Wait for one of K slots when the mean occupancy without a limit would be a (M/G/K by Kingman's scaling).

    ``P(W > 0) = p_K/(1-rho) / (F_{K-1} + p_K/(1-rho))`` with p, F of the law of mean a and dispersion phi and
    ``rho = p_K/p_{K-1}`` (Poisson: Erlang C and a/K). Then W is exponential of rate ``(1 - rho)·K/(S·(1 + cv²)/2)``,
    S = ``life_s`` the mean life with full slots, cv² its squared variation. Exact for exponential lives and tau linear
    in the batch; else the usual approximation (mean within 15 %, P(W > 0) within 12 % of simulation at K = 16,
    load 0.875, cv² 0 and 2.25).
    K >= 1 may be real; P(W > 0) = 1 and inf waits where rho >= 1. Broadcasts.
    """
    from scipy.special import gammaln

    a, k = np.maximum(as_floats(offered), 1e-300), np.maximum(as_floats(slots), 1.0)
    phi, life = as_floats(dispersion), as_floats(life_s)
    wide = phi > 1.0 + POISSON
    over = np.where(wide, phi - 1.0, 1.0)
    size = a / over
    log_nb = gammaln(k + size) - gammaln(k + 1.0) - gammaln(size) + k * np.log(over / (1.0 + over))
    log_nb = log_nb - size * np.log1p(over)
    log_poisson = k * np.log(a) - a - gammaln(k + 1.0)
    mass = np.exp(np.where(wide, log_nb, log_poisson))
    ratio = np.where(wide, over / (1.0 + over) * (size + k - 1.0) / k, a / k)
    stable = ratio < 1.0
    spare = np.where(stable, 1.0 - ratio, 1.0)
    below = 1.0 - occupancy_tail(a, k - 1.0, np.where(wide, phi, 1.0))
    within = below + mass / spare
    waiting = np.where(stable & (within > 0), mass / spare / np.where(within > 0, within, 1.0), 1.0)
    decay = np.where(stable, spare * k / (life * (1.0 + as_floats(life_cv2)) / 2.0), 0.0)
    mean = np.where(stable, waiting / np.where(stable, decay, 1.0), np.inf)
    return AdmissionWait(p_wait=waiting, mean_s=mean, decay_per_s=decay)
