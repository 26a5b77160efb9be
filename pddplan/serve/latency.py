"""Quantiles of a latency by mixing over requests: a waiting law plus a constant per kind of request."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLEND_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Mixture:
    """Latency W + constant_i with probability weight_i, W from the waiting law (None: no waiting) [s].

    ``parts`` are the addends of ``constant`` by stage, same shape (requests,), for attribution. ``smooth``, without
    waiting: the constants are means of bins of a law without jumps, which is read linearly between them.
    """

    weight: Array
    constant: Array
    survival: Callable[[Array], Array] | None
    parts: Mapping[str, Array]
    wait_stage: str = "prefill_queue"
    smooth: bool = False

    @cached_property
    def _ascending(self) -> tuple[Array, Array]:
        """Constants in ascending order, and their weights."""
        order = np.argsort(self.constant, kind="stable")
        return self.constant[order], self.weight[order]

    @cached_property
    def _middles(self) -> Array:
        """P(latency <= constant), ascending, where each weight counts half."""
        weight = self._ascending[1]
        return np.asarray((np.cumsum(weight) - 0.5 * weight) / weight.sum())

    def share_above(self, t_s: float) -> float:
        """P(latency > t) = sum_i weight_i P(W > t - constant_i)."""
        if self.smooth:
            constant, weight = self._ascending
            return float(weight.sum() * (1.0 - np.interp(t_s, constant, self._middles, left=0.0, right=1.0)))
        if self.survival is None:  # without sorting: often all that is asked
            return float(self.weight[self.constant > t_s].sum())
        constant, weight = self._ascending
        count = int(constant.searchsorted(t_s, side="right"))  # from here on the constant alone is longer
        return self._waiting(count, t_s) + float(weight[count:].sum())

    def quantile(self, q: float) -> float:
        """Smallest t with P(latency <= t) >= q [s], to 1e-10 relative.

        P(latency > t) falls continuously between the constants and jumps at each (those who don't wait). So the first
        constant at which it is at most 1 - q is looked up; the quantile is that one if it jumps past 1 - q there, else
        a root before it, by the Illinois method on the logarithm (close to a straight line in t).
        """
        constant, weight = self._ascending
        if self.smooth:
            return float(np.interp(q, self._middles, constant))
        cumulative = np.cumsum(weight)
        target = (1.0 - q) * float(cumulative[-1])
        first = min(int(np.searchsorted(cumulative, (q - 1e-12) * float(cumulative[-1]))), constant.size - 1)
        if self.survival is None:
            return float(constant[first])
        target += 1e-12
        low, high = first, constant.size  # the latency is at least the constant
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.share_above(float(constant[middle])) <= target else (middle + 1, high)
        top = float(constant[low]) if low < constant.size else self._beyond(target)
        if low < constant.size and float(weight[low:].sum()) + self._waiting(low, top) > target:
            return top
        bottom = float(constant[max(low - 1, first)])
        return top if bottom >= top else self._root(bottom, top, target)

    def _waiting(self, count: int, t_s: float) -> float:
        """Share of the requests with the ``count`` smallest constants that is above t."""
        constant, weight = self._ascending
        return float(weight[:count] @ self.survival(t_s - constant[:count])) if self.survival is not None else 0.0

    def _beyond(self, target: float) -> float:
        """A time above all constants at which the share above is at most ``target`` [s]; inf if there is none."""
        high = max(float(self._ascending[0][-1]), 1e-6) * 2 + 1e-3
        while self.share_above(high) > target:
            high *= 2
            if high > 1e12:
                return float("inf")
        return high

    def _root(self, low: float, high: float, target: float) -> float:
        """Where the share above falls to ``target`` between two neighbouring constants, or beyond the last [s]."""
        if math.isinf(high):
            return high
        count = int(self._ascending[0].searchsorted(low, side="right"))
        certain, goal = float(self._ascending[1][count:].sum()), math.log(target)

        def excess(t_s: float) -> float:
            return math.log(max(certain + self._waiting(count, t_s), 1e-300)) - goal

        # Illinois; not scipy.optimize, whose import takes longer than all roots of a plan
        above, below, last = excess(low), excess(high), 0
        while above > 0 and high - low > 1e-10 * high:
            middle = min(max(high - below * (high - low) / (below - above), low), high)
            at = excess(middle)
            if abs(at) < 1e-13:
                return middle
            if at > 0:
                low, above, below, last = middle, at, below * (0.5 if last > 0 else 1.0), 1
            else:
                high, below, above, last = middle, at, above * (0.5 if last < 0 else 1.0), -1
        return high if above > 0 else low

    def owner(self, t_s: float) -> str:
        """Stage with the largest mean addend among the requests whose latency lies around t.

        A request counts by its probability to end within 10 % of t; ties go to the earlier stage.
        """
        near = self.near(t_s)
        if near.sum() <= 0:
            near = self.weight * (np.abs(self.constant - t_s) == np.abs(self.constant - t_s).min())
        shares = self.addends(near, t_s)
        return max(shares, key=lambda stage: shares[stage])

    def near(self, t_s: float) -> Array:
        """Weight of each request by its probability to end within 10 % of t."""
        width = 0.1 * t_s + 1e-9
        if self.survival is None:
            return self.weight * (np.abs(self.constant - t_s) <= width)
        return self.weight * np.maximum(self._late(t_s - width) - self._late(t_s + width), 0.0)

    def addends(self, near: Array, t_s: float) -> dict[str, float]:
        """Sum of each stage's addend over the requests, which count ``near`` each; waiting is what t leaves [s]."""
        shares = {self.wait_stage: float(near @ np.maximum(t_s - self.constant, 0.0)) if self.survival else 0.0}
        for stage, part in self.parts.items():
            shares[stage] = shares.get(stage, 0.0) + float(near @ part)
        return shares

    def _late(self, t_s: float) -> Array:
        """P(latency > t) of each request."""
        gap = t_s - self.constant
        return np.where(gap < 0, 1.0, self.survival(np.maximum(gap, 0.0)) if self.survival is not None else 0.0)


@dataclass(frozen=True)
class Blend:
    """A latency over several groups of requests, each with a law of its own: ``parts`` (share of requests, mixture)."""

    parts: tuple[tuple[float, Mixture], ...]
    tolerance: float = BLEND_TOLERANCE  # of a quantile, relative

    def share_above(self, t_s: float) -> float:
        """P(latency > t) = sum of share x P(latency > t) of the groups, over the sum of the shares."""
        total = sum(share for share, _ in self.parts)
        return sum(share * group.share_above(t_s) / float(group.weight.sum()) for share, group in self.parts) / total

    def quantile(self, q: float) -> float:
        """Smallest t with P(latency <= t) >= q [s], to ``tolerance``: it lies between the groups' own quantiles, and is
        bisected for, as jumps of one group may stand anywhere."""
        own = [group.quantile(q) for share, group in self.parts if share > 0]
        low, high = min(own), max(own)
        while high - low > self.tolerance * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.share_above(middle) <= 1.0 - q + 1e-12 else (middle, high)
        return high

    def owner(self, t_s: float) -> str:
        """Stage with the largest mean addend among all requests whose latency lies around t."""
        shares: dict[str, float] = {}
        for share, group in self.parts:
            near = group.near(t_s) * share
            for stage, addend in group.addends(near, t_s).items():
                shares[stage] = shares.get(stage, 0.0) + addend
        if max(shares.values()) <= 0:
            closest = min(self.parts, key=lambda part: float(np.abs(part[1].constant - t_s).min()))
            return closest[1].owner(t_s)
        return max(shares, key=lambda stage: shares[stage])
