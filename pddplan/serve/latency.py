"""Quantiles of a latency by mixing over requests: a waiting law plus a constant per kind of request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Mixture:
    """Latency W + constant_i with probability weight_i, W from the waiting law (None: no waiting) [s].

    ``parts`` are the addends of ``constant`` by stage, same shape (requests,), for attribution.
    """

    weight: Array
    constant: Array
    survival: Callable[[Array], Array] | None
    parts: Mapping[str, Array]
    wait_stage: str = "prefill_queue"

    def share_above(self, t_s: float) -> float:
        """P(latency > t) = sum_i weight_i P(W > t - constant_i)."""
        gap = t_s - self.constant
        if self.survival is None:
            return float(self.weight @ (gap < 0))
        late = np.ones_like(gap)
        waits = gap >= 0
        late[waits] = self.survival(gap[waits])
        return float(self.weight @ late)

    def quantile(self, q: float) -> float:
        """Smallest t with P(latency <= t) >= q [s], by bisection to 1e-6 relative.

        Without waiting it is the weighted quantile of the constants, exact.
        """
        order = np.argsort(self.constant, kind="stable")
        total = float(self.weight.sum())
        cumulative = np.cumsum(self.weight[order]) / total
        floor = float(self.constant[order][min(int(np.searchsorted(cumulative, q - 1e-12)), order.size - 1)])
        if self.survival is None or self.share_above(floor) <= (1 - q) * total + 1e-12:
            return floor
        low, high = floor, max(floor, 1e-6) * 2 + 1e-3
        while self.share_above(high) > (1 - q) * total:
            low, high = high, high * 2
            if high > 1e12:
                return float("inf")
        for _ in range(60):
            middle = 0.5 * (low + high)
            if self.share_above(middle) > (1 - q) * total:
                low = middle
            else:
                high = middle
            if high - low <= 1e-6 * high:
                break
        return high

    def owner(self, t_s: float) -> str:
        """Stage with the largest mean addend among the requests whose latency lies around t.

        A request counts by its probability to end within 10 % of t; ties go to the earlier stage.
        """
        width = 0.1 * t_s + 1e-9
        if self.survival is None:
            near = self.weight * (np.abs(self.constant - t_s) <= width)
        else:
            near = self.weight * np.maximum(self._late(t_s - width) - self._late(t_s + width), 0.0)
        if near.sum() <= 0:
            near = self.weight * (np.abs(self.constant - t_s) == np.abs(self.constant - t_s).min())
        shares = {self.wait_stage: float(near @ np.maximum(t_s - self.constant, 0.0)) if self.survival else 0.0}
        for stage, part in self.parts.items():
            shares[stage] = shares.get(stage, 0.0) + float(near @ part)
        return max(shares, key=lambda stage: shares[stage])

    def _late(self, t_s: float) -> Array:
        gap = t_s - self.constant
        late = np.ones_like(gap)
        waits = gap >= 0
        if self.survival is not None:
            late[waits] = self.survival(gap[waits])
        else:
            late[waits] = 0.0
        return late
