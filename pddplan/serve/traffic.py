"""Traffic as weighted atoms: the joint distribution of prompt, hit at prefill and output.

Every stage works on atoms, never on the mean request: a few per cent of the requests carry most of the
uncached tokens, so TTFT, line bytes, relay load and KV memory of the mean request are wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.spec.workload import HitRate, TokenDistribution, Traffic, Workload

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# The mixture of hit rates (definition of the scenario key `prefix_hit_rate`): the share above 95 % has
# 1-x uniform on this interval; the rest lies on [0, HIT_REST_MAX].
MISS_OF_TOP = (0.005, 0.05)
HIT_REST_MAX = 0.95

# Strata of a length, an output and a hit rate: of one or two workloads, and the fewest of one among many
STRATA = {"prompt": (10, 4), "output": (8, 4), "hit": (24, 12)}
FULL_WORKLOADS = 2  # a mix has no more atoms than so many workloads of the finest strata, up to the fewest each


@dataclass(frozen=True)
class Atoms:
    """Requests of all workloads by kind: weights sum to 1; arrays of shape (atoms,); tokens are real-valued.

    Workload k's atoms have the weights ``lambda_k/lambda`` times their own. ``workload`` is its index in the scenario.
    """

    weight: Array
    prompt: Array  # L, tokens
    cached: Array  # hit at prefill, tokens
    output: Array  # n, tokens
    workload: Index

    @cached_property
    def workloads(self) -> int:
        return int(self.workload.max()) + 1

    @cached_property
    def weights(self) -> tuple[Array, ...]:
        """Weights within each workload, summing to 1, 0 for the atoms of others; of one workload ``weight``."""
        if self.workloads == 1:
            return (self.weight,)
        mine = [np.where(self.workload == k, self.weight, 0.0) for k in range(self.workloads)]
        return tuple(weight / (weight.sum() or 1.0) for weight in mine)

    @cached_property
    def parts(self) -> tuple[float, ...]:
        """Share of each workload in the requests."""
        return tuple(float(self.weight[self.workload == k].sum()) for k in range(self.workloads))

    def by_workload(self, values: Array) -> Array:
        """Σ weight x values over each workload's atoms, (…, atoms) -> (…, workloads); they sum to the mean over all."""
        if self.workloads == 1:
            return np.asarray(values @ self.weight)[..., None]
        return np.stack([values @ np.where(self.workload == k, self.weight, 0.0) for k in range(self.workloads)], -1)

    @property
    def uncached(self) -> Array:
        """Tokens that prefill computes, m = L - hit, at least one (the last token is always computed)."""
        return self.prompt - self.cached

    @cached_property
    def by_uncached(self) -> Index:
        """The atoms in the order of their uncached tokens, fewest first."""
        return np.argsort(self.uncached, kind="stable")

    def mean(self, values: Array) -> float:
        """E[values] over requests."""
        return float(self.weight @ values)

    @property
    def hit_rate(self) -> float:
        """Token-weighted hit rate at prefill, E[hit] / E[L]."""
        return self.mean(self.cached) / self.mean(self.prompt)


def strata(count: int, tail: str = "both") -> Array:
    """Edges in [0, 1] of ``count`` strata, finer towards the named tail (``low``, ``high``, ``both``).

    The cosine spacing halves the stratum towards an end, so a heavy tail keeps its own atoms.
    """
    u = np.linspace(0.0, 1.0, count + 1)
    if tail == "low":
        return np.asarray(1.0 - np.cos(u * math.pi / 2))
    if tail == "high":
        return np.asarray(np.sin(u * math.pi / 2))
    return np.asarray((1.0 - np.cos(u * math.pi)) / 2)


def _normal_cdf(z: Array) -> Array:
    return np.asarray([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z])


def lognormal_strata(mu: float, sigma: float, count: int) -> tuple[Array, Array]:
    """Conditional means and weights of ``count`` strata of LogNormal(mu, sigma).

    E[X; a<X<b] = exp(mu + sigma^2/2) (Phi(zb - sigma) - Phi(za - sigma)), so the mean is exact and the
    upper tail has its own strata.
    """
    from statistics import NormalDist

    edges = strata(count, "high")
    z = np.asarray([-math.inf, *(NormalDist().inv_cdf(float(p)) for p in edges[1:-1]), math.inf])
    weight = np.diff(edges)
    part = np.diff(_normal_cdf(z - sigma)) * math.exp(mu + sigma**2 / 2)
    return part / weight, weight


def token_atoms(law: TokenDistribution, count: int) -> tuple[Array, Array]:
    """Values [tokens] and weights of a length distribution; at least one token each."""
    if law.fixed is not None:
        values, weights = np.array([law.fixed]), np.array([1.0])
    elif law.histogram is not None:
        values = np.array([v for v, _ in law.histogram], dtype=float)
        weights = np.array([w for _, w in law.histogram], dtype=float)
        weights = weights / weights.sum()
    else:
        assert law.lognormal is not None
        mu, sigma = law.lognormal
        if sigma <= 1e-9:
            values, weights = np.array([math.exp(mu)]), np.array([1.0])
        else:
            values, weights = lognormal_strata(mu, sigma, count)
    return np.maximum(values, 1.0), weights


def rest_mean(hit: HitRate) -> float:
    """Mean hit of the requests outside the top share and the zero share; must lie in (0, 0.95).

    mean = 0.9725 s + (1 - s - z) x', with s = share_above_95 and z = zero_share.
    """
    top = 1.0 - sum(MISS_OF_TOP) / 2
    rest = 1.0 - hit.share_above_95 - hit.zero_share
    if rest <= 0:
        return math.nan
    return (hit.mean - top * hit.share_above_95) / rest


def hit_atoms(hit: HitRate, count: int) -> tuple[Array, Array]:
    """Hit rates x and weights; the mean of x equals ``hit.mean``.

    share_above_95: 1-x uniform on [0.005, 0.05]; the rest x = 0.95 Beta(alpha, 1) with
    alpha = x'/(0.95 - x'), whose strata have the conditional mean
    0.95 (q1^(1+1/alpha) - q0^(1+1/alpha)) / ((1+1/alpha)(q1-q0)).
    """
    if hit.fixed:
        return np.array([hit.mean]), np.array([1.0])
    if hit.histogram is not None:
        values = np.array([v for v, _ in hit.histogram], dtype=float)
        weights = np.array([w for _, w in hit.histogram], dtype=float)
        return values, weights / weights.sum()
    parts: list[tuple[Array, Array]] = []
    if hit.zero_share > 0:
        parts.append((np.array([0.0]), np.array([hit.zero_share])))
    if hit.share_above_95 > 0:
        k = max(6, count // 4)
        low, high = MISS_OF_TOP
        middle = (np.arange(k) + 0.5) / k
        parts.append((1.0 - (low + (high - low) * middle), np.full(k, hit.share_above_95 / k)))
    rest = 1.0 - hit.share_above_95 - hit.zero_share
    if rest > 1e-12:
        mean = rest_mean(hit)
        alpha = mean / (HIT_REST_MAX - mean)
        q = strata(count, "low")
        power = 1.0 + 1.0 / alpha
        width = np.diff(q)
        parts.append((HIT_REST_MAX * np.diff(q**power) / (power * width), width * rest))
    values = np.concatenate([v for v, _ in parts])
    weights = np.concatenate([w for _, w in parts])
    return values, weights / weights.sum()


def mix_atoms(traffic: Traffic, granularity_tokens: float = 1.0) -> Atoms:
    """Atoms of all workloads in their order; beyond ``FULL_WORKLOADS`` each keeps fewer strata, finest in the tails."""
    if not traffic.several:
        return build_atoms(traffic.workloads[0], granularity_tokens)
    count = len(traffic.workloads)
    scale = min(FULL_WORKLOADS / count, 1.0) ** (1.0 / len(STRATA))
    parts = [build_atoms(workload, granularity_tokens, scale) for workload in traffic.workloads]
    total = traffic.request_rate_per_s
    weights = [part.weight * (rate / total) for part, rate in zip(parts, traffic.rates, strict=True)]
    return Atoms(
        np.concatenate(weights),
        np.concatenate([part.prompt for part in parts]),
        np.concatenate([part.cached for part in parts]),
        np.concatenate([part.output for part in parts]),
        np.repeat(np.arange(count), [part.weight.size for part in parts]),
    )


def build_atoms(workload: Workload, granularity_tokens: float = 1.0, scale: float = 1.0) -> Atoms:
    """Atoms of a workload: lengths, hits and outputs independent of each other (said in the output).

    Hits are rounded down to the granularity at which a prefix can be reused (page, compression block or
    checkpoint interval of linear-state layers) and leave at least one token to compute.
    Between about 40 and 4,000 atoms. ``scale`` of the strata of each law, at least the fewest of ``STRATA``.
    """
    strata_of = {name: max(round(scale * most), fewest) for name, (most, fewest) in STRATA.items()}
    length, length_w = token_atoms(workload.prompt_tokens, strata_of["prompt"])
    output, output_w = token_atoms(workload.output_tokens, strata_of["output"])
    points = strata_of["hit"] * (2 if length.size * output.size == 1 else 1)
    hit, hit_w = hit_atoms(workload.prefix_hit_rate, points)
    shape = (length.size, hit.size, output.size)
    weight = (length_w[:, None, None] * hit_w[None, :, None] * output_w[None, None, :]).ravel()
    prompt = np.broadcast_to(length[:, None, None], shape).ravel()
    cached = np.broadcast_to(length[:, None, None] * hit[None, :, None], shape).ravel()
    if granularity_tokens > 1.0:
        cached = np.floor(cached / granularity_tokens) * granularity_tokens
    cached = np.minimum(cached, prompt - 1.0)
    out = np.broadcast_to(output[None, None, :], shape).ravel()
    keep = weight > 0
    weight, one = weight[keep] / weight[keep].sum(), np.zeros(int(keep.sum()), dtype=np.intp)
    return Atoms(weight, prompt[keep], np.maximum(cached[keep], 0.0), out[keep].copy(), one)
