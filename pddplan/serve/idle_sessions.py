"""Idle sessions of all workloads in one cache at main decode: one residence for all, a held share for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.residency import GapLaw, gap_cdf, held_share, mean_min_gap

Array = NDArray[np.float64]
Index = NDArray[np.intp]

RESIDENCE_POINTS = 3000
SIGMAS = 9.0  # of ln gap, either side of the median: where the table ends
HALVINGS = 50


@dataclass(frozen=True)
class IdleSessions:
    """Sessions of W workloads that lie idle in one LRU cache, so with one residence T for all.

    Che's approximation for several classes: ``Σ_k lambda_k E[KV_k] E[min(gap_k, T)] = M``. Workload k's prefix is held
    with probability ``h_k = P(gap_k <= T)``. What a plan's stages agree on is one number, the share of the hits at
    prefill that main decode has as well, by tokens: ``q = Σ_k c_k h_k`` with c_k workload k's part of all cached
    prompt tokens. All h_k rise with T, so q does, and each h_k is a rising function of q; of one workload it is q.
    """

    gaps: tuple[GapLaw, ...]
    kv_mean: float  # E[KV(L + n)] over all requests [bytes]
    kv_parts: tuple[float, ...]  # lambda_k E[KV_k] / (lambda E[KV])
    hit_parts: tuple[float, ...]  # c_k
    pinned: tuple[float, ...] | None  # h_k where the user gives them

    @property
    def several(self) -> bool:
        return len(self.gaps) > 1

    @cached_property
    def _residence(self) -> tuple[Array, Array]:
        """T [s] and Σ_k E[min(gap_k, T)], weighted by ``kv_parts`` [s], both ascending."""
        reach = [SIGMAS * max(gap.sigma, 0.3) for gap in self.gaps]
        if not self.several:
            gap = self.gaps[0]
            steps = np.linspace(-SIGMAS, SIGMAS, RESIDENCE_POINTS) * max(gap.sigma, 0.3)
            times = np.concatenate([[0.0], gap.p50_s * np.exp(steps)])
            return times, np.maximum.accumulate(mean_min_gap(times, gap))
        low = min(math.log(g.p50_s) - r for g, r in zip(self.gaps, reach, strict=True))
        high = max(math.log(g.p50_s) + r for g, r in zip(self.gaps, reach, strict=True))
        times = np.concatenate([[0.0], np.exp(np.linspace(low, high, RESIDENCE_POINTS))])
        stays = sum(part * mean_min_gap(times, gap) for part, gap in zip(self.kv_parts, self.gaps, strict=True))
        return times, np.maximum.accumulate(np.asarray(stays))

    @cached_property
    def _shares(self) -> tuple[Array, Array]:
        """h_k (workloads, points) at the times of ``_residence``, and q there (points,)."""
        each = np.array([gap_cdf(self._residence[0], gap) for gap in self.gaps])
        return each, np.maximum.accumulate(np.asarray(self.hit_parts) @ each)

    def residence_s(self, idle_bytes: float, rate: float) -> float:
        """T that idle room M buys at ``rate`` requests/s of all, read off a fine table [s]; inf where all fit."""
        target = max(idle_bytes, 0.0) / (rate * self.kv_mean)
        times, stays = self._residence
        if target >= stays[-1]:
            return math.inf
        return float(np.interp(target, stays, times))

    def share_at(self, residence_s: float, arrived: Array | None = None) -> float:
        """q at a residence; ``arrived`` (workloads,): share whose KV was there in time, all without it."""
        there: list[float] = [1.0] * len(self.gaps) if arrived is None else arrived.tolist()
        if not self.several:
            return held_share(residence_s, self.gaps[0]) * there[0]
        each = zip(self.hit_parts, self.gaps, there, strict=True)
        return sum(c * held_share(residence_s, gap) * kept for c, gap, kept in each)

    def idle_bytes(self, share: float, rate: float) -> float:
        """Least idle room with which a share q in (0, 1) is held [bytes]."""
        if not self.several:
            gap = self.gaps[0]
            needed = gap.p50_s * math.exp(NormalDist().inv_cdf(share) * gap.sigma)
            return rate * self.kv_mean * float(mean_min_gap(needed, gap))
        needed = self._time_of(share)
        stays = (p * float(mean_min_gap(needed, gap)) for p, gap in zip(self.kv_parts, self.gaps, strict=True))
        return rate * self.kv_mean * sum(stays)

    def _time_of(self, share: float) -> float:
        """Least T at which q reaches ``share``, from below [s]."""
        times, q = self._residence[0], self._shares[1]
        at = int(np.searchsorted(q, share, side="left"))
        if at in (0, q.size):
            return float(times[min(at, q.size - 1)])
        low, high = float(times[at - 1]), float(times[at])
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.share_at(middle) < share else (low, middle)
        return low

    def of_each(self, share: float) -> Array:
        """h_k where q is ``share``, (workloads,). Linear between the table's points, so Σ c_k h_k is q again."""
        if not self.several:
            return np.array([share])
        if self.pinned is not None:
            given = self.pinned_share
            return np.minimum(np.asarray(self.pinned) * (share / given if given else 0.0), 1.0)
        each, q = self._shares
        return np.array([np.interp(share, q, of_one) for of_one in each])

    def mean(self, share: float, held: Array, cold: Array) -> float:
        """Mean over the requests where q is ``share``; ``held`` and ``cold`` (workloads,) are each workload's part of
        the mean if all its prefixes were held, if none were."""
        each = self.of_each(share)
        return float((each * held + (1.0 - each) * cold).sum())

    @property
    def pinned_share(self) -> float | None:
        """q where the user pins it, None where it is an outcome."""
        if self.pinned is None:
            return None
        if not self.several:
            return self.pinned[0]
        return sum(c * held for c, held in zip(self.hit_parts, self.pinned, strict=True))

    def late(self, lag_s: Array, workload: Index) -> Array:
        """P(gap <= lag): the session's next turn comes within ``lag_s`` (rows, …), ``workload`` (rows,) of each row."""
        if not self.several:
            return np.asarray(gap_cdf(lag_s, self.gaps[0]))
        chance = np.empty(lag_s.shape)
        for k, gap in enumerate(self.gaps):
            chance[workload == k] = gap_cdf(lag_s[workload == k], gap)
        return chance

    def fetched(self, inside_s: float, whole_s: float) -> Array:
        """P(a held prefix was asked for after ``inside_s``), the whole residence being ``whole_s``, (workloads,)."""
        shares = [(held_share(inside_s, gap), held_share(whole_s, gap)) for gap in self.gaps]
        return np.array([max(1.0 - inside / whole, 0.0) if whole > 0 else 0.0 for inside, whole in shares])


def gap_laws(turns_and_gaps: Sequence[tuple[float, float, float]]) -> tuple[GapLaw, ...]:
    """Laws of (turns, p50, p90 of the gap [s]) per workload; 1/turns of the turns end their session."""
    return tuple(GapLaw(p50, p90, 1.0 / max(turns, 1.0)) for turns, p50, p90 in turns_and_gaps)
