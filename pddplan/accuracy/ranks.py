"""Does the model put configurations in the right order? Rank correlation, and what trusting its first choice costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.accuracy.predict import Predicted
from pddplan.accuracy.records import TIMES, Metric

FEWEST = 5  # rows of a group whose order says something
FEWEST_FOR_A_RANK = 3


@dataclass(frozen=True)
class Order:
    """Over groups of at least ``FEWEST`` rows of one sweep: rank correlation (median and 10th percentile), and the
    regret [percent]: measured value of the row ranked first over the best measured one, less 1 (median and 90th
    percentile)."""

    metric: Metric
    confidence: str
    who: str  # ours | peer
    groups: int
    median: float
    tenth_percentile: float
    median_regret: float
    regret_90: float


def ranks(values: NDArray[Any]) -> NDArray[Any]:
    """Ranks from 0; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2.0)[inverse])


def spearman(predicted: NDArray[Any], measured: NDArray[Any]) -> float | None:
    """Correlation of the ranks, -1..1; None for fewer than three rows or where one side is constant."""
    if len(predicted) < FEWEST_FOR_A_RANK:
        return None
    p, m = ranks(predicted), ranks(measured)
    p, m = p - p.mean(), m - m.mean()
    size = float(np.sqrt((p @ p) * (m @ m)))
    return float(p @ m) / size if size > 0.0 else None


def regret(predicted: NDArray[Any], measured: NDArray[Any]) -> float:
    """Measured time of the row with the least predicted one over the least measured, less 1 [percent]."""
    return float(100.0 * (measured[int(np.argmin(predicted))] / measured.min() - 1.0))


def orders(rows: Sequence[Predicted]) -> tuple[Order, ...]:
    """Order within each sweep (same mode, chip, model, weights, lengths, engine), for times, ours and the peer's."""
    sweeps: dict[tuple[Metric, str], dict[str, list[tuple[float, float, float | None]]]] = {}
    for row in rows:
        for metric in row.metrics():
            if metric in TIMES and row.figures is not None:
                value = (row.figures[metric], row.row.measured[metric], row.row.peer.get(metric))
                sweeps.setdefault((metric, row.row.confidence), {}).setdefault(row.row.sweep, []).append(value)
    found = []
    for (metric, tier), groups in sorted(sweeps.items(), key=lambda x: (TIMES.index(x[0][0]), x[0][1])):
        enough = [members for members in groups.values() if len(members) >= FEWEST]
        for who in ("ours", "peer"):
            order = _order(metric, tier, who, enough)
            if order is not None:
                found.append(order)
    return tuple(found)


def _order(
    metric: Metric, tier: str, who: str, groups: Sequence[Sequence[tuple[float, float, float | None]]]
) -> Order | None:
    correlations, regrets = [], []
    for members in groups:
        pairs = [(p if who == "ours" else peer, m) for p, m, peer in members]
        known = np.array([(p, m) for p, m in pairs if p is not None], dtype=float)
        if len(known) < FEWEST:
            continue
        value = spearman(known[:, 0], known[:, 1])
        if value is not None:
            correlations.append(value)
            regrets.append(regret(known[:, 0], known[:, 1]))
    if not correlations:
        return None
    return Order(
        metric,
        tier,
        who,
        len(correlations),
        float(np.median(correlations)),
        float(np.percentile(correlations, 10)),
        float(np.median(regrets)),
        float(np.percentile(regrets, 90)),
    )
