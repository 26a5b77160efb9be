"""Latencies over groups of requests that each have their own: the routes of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pddplan.serve.latency import Blend, Mixture
from pddplan.serve.metrics import Latencies
from pddplan.spec.types import Metric

METRICS: tuple[Metric, ...] = ("ttft", "tpot", "pause", "e2e")


def blended(parts: Sequence[tuple[float, Latencies]], tolerance: float) -> Latencies:
    """All four metrics over groups of requests, by (share of the requests, their latencies), of all and of each
    workload by itself; quantiles to ``tolerance``."""

    def maker(metric: Metric) -> Callable[[], Mixture | Blend]:
        return lambda: _blend(parts, metric, tolerance)

    names = dict.fromkeys(name for _, own in parts for name in own.parts)
    total = sum(share for share, _ in parts)
    workloads, shares = {}, {}
    for name in names:
        mine = [(share * own.parts[name], own.workloads[name]) for share, own in parts if own.parts[name] > 0]
        workloads[name] = blended(mine, tolerance)
        shares[name] = sum(share for share, _ in mine) / total

    def within() -> float:
        return sum(share * own.within for share, own in parts) / total

    return Latencies({metric: maker(metric) for metric in METRICS}, within, {}, workloads, shares)


def _blend(parts: Sequence[tuple[float, Latencies]], metric: Metric, tolerance: float) -> Blend:
    groups = []
    for share, own in parts:
        mixture, mass = own.of(metric), share * (own.paced_share() if metric == "tpot" else 1.0)
        assert isinstance(mixture, Mixture)
        if mass > 0:
            groups.append((mass, mixture))
    return Blend(tuple(groups), tolerance)
