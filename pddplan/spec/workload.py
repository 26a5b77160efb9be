"""The traffic of a scenario as typed records: lengths, hits and sessions of a workload, and all workloads together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

PrefixCache = Literal["shared", "sticky", "affine"]
HOURS = 24


@dataclass(frozen=True)
class TokenDistribution:
    """Length in tokens: exactly one of fixed, lognormal (mu, sigma of ln tokens) or histogram."""

    fixed: float | None = None
    lognormal: tuple[float, float] | None = None
    histogram: tuple[tuple[float, float], ...] | None = None  # (tokens, weight), weights sum to 1


@dataclass(frozen=True)
class HitRate:
    """Prefix hit rate at prefill. ``mean`` is token-weighted.

    ``fixed``: every request hits exactly ``mean``. Else, with ``histogram`` None, the mixture of
    2-model.md section 4: a share ``zero_share`` misses wholly, ``share_above_95`` has 1-x uniform on
    [0.005, 0.05], the rest x = 0.95 * Beta(alpha, 1).
    """

    mean: float
    fixed: bool = False
    share_above_95: float = 0.0
    zero_share: float = 0.0
    histogram: tuple[tuple[float, float], ...] | None = None  # (hit rate, weight)


@dataclass(frozen=True)
class Sessions:
    """Turns of a session and the gap between them (log-normal through p50 and p90) [s]."""

    turns: float
    gap_p50_s: float
    gap_p90_s: float


@dataclass(frozen=True)
class Workload:
    name: str
    request_rate_per_s: float
    prompt_tokens: TokenDistribution
    output_tokens: TokenDistribution
    prefix_hit_rate: HitRate
    decode_prefix_hit_rate: float | None  # pins main decode's hit rate
    burstiness: float  # squared CV of the gaps, 1 = Poisson
    prefix_cache: PrefixCache
    first_token: Literal["after_transfer", "on_prefill"]
    hourly_load: tuple[float, ...] | None  # 24 relative values
    sessions: Sessions
    output_forecast: tuple[float, float] | None  # precision, recall of the forecast; None: no filter
    key: str = field(default="workload", compare=False)  # "workloads[1]", for messages and overrides


@dataclass(frozen=True)
class Traffic:
    """All workloads of a scenario, one at least: the same pools serve them together.

    What belongs to the deployment (``prefix_cache``, ``first_token``, ``output_forecast``) is the same in all of them,
    which the loader sees to. Rates are those of the hour in which the sum of all is highest.
    """

    workloads: tuple[Workload, ...]

    @property
    def several(self) -> bool:
        return len(self.workloads) > 1

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Requests/s of each workload in the peak hour of the sum; its own peak where it is alone."""
        if not self.several:
            return (self.workloads[0].request_rate_per_s,)
        return tuple(self._hourly[k][self.peak_hour] for k in range(len(self.workloads)))

    @property
    def request_rate_per_s(self) -> float:
        """Of all, the rate to plan for."""
        return sum(self.rates)

    @property
    def burstiness(self) -> float:
        """Index of dispersion of the superposition, Σ lambda_k I_k / lambda: the counts of independent streams add up,
        and so do their variances; for one stream its squared CV."""
        if not self.several:
            return self.workloads[0].burstiness
        each = zip(self.rates, self.workloads, strict=True)
        return sum(rate * w.burstiness for rate, w in each) / self.request_rate_per_s

    @property
    def prefix_cache(self) -> PrefixCache:
        return self.workloads[0].prefix_cache

    @property
    def first_token(self) -> Literal["after_transfer", "on_prefill"]:
        return self.workloads[0].first_token

    @property
    def output_forecast(self) -> tuple[float, float] | None:
        return self.workloads[0].output_forecast

    @property
    def pinned(self) -> bool:
        """Whether the user gives main decode's hit rate, of every workload or of none."""
        return self.workloads[0].decode_prefix_hit_rate is not None

    @property
    def mean_load(self) -> float:
        """Mean over peak of the day's load of all workloads together, 1 without a profile."""
        if not self.several:
            load = self.workloads[0].hourly_load
            return 1.0 if not load else sum(load) / len(load) / max(load)
        return sum(self._sum) / HOURS / max(self._sum)

    @cached_property
    def peak_hour(self) -> int:
        """Hour in which the sum is highest, the first of several."""
        return self._sum.index(max(self._sum))

    @cached_property
    def _hourly(self) -> tuple[tuple[float, ...], ...]:
        return tuple(hourly_rates(w.request_rate_per_s, w.hourly_load) for w in self.workloads)

    @cached_property
    def _sum(self) -> tuple[float, ...]:
        return tuple(map(sum, zip(*self._hourly, strict=True)))

    def at_rate(self, request_rate_per_s: float) -> Traffic:
        """The same mix at another rate of all."""
        if not self.several:
            return Traffic((replace(self.workloads[0], request_rate_per_s=request_rate_per_s),))
        factor = request_rate_per_s / self.request_rate_per_s
        return Traffic(tuple(replace(w, request_rate_per_s=w.request_rate_per_s * factor) for w in self.workloads))

    def with_forecast(self, output_forecast: tuple[float, float] | None) -> Traffic:
        """The same with another forecast of the outputs, None: no filter."""
        return Traffic(tuple(replace(w, output_forecast=output_forecast) for w in self.workloads))


def hourly_rates(peak_per_s: float, load: tuple[float, ...] | None) -> tuple[float, ...]:
    """Requests/s by hour, ``peak_per_s`` in the busiest; without a profile the same all day."""
    if not load:
        return (peak_per_s,) * HOURS
    return tuple(peak_per_s * value / max(load) for value in load)
