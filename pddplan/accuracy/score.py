"""Errors of predictions by group and metric, beside those of a peer on the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pddplan.accuracy.predict import Predicted
from pddplan.accuracy.ranks import spearman
from pddplan.accuracy.records import METRICS, TIMES, Metric

ALL = "all"


@dataclass(frozen=True)
class Errors:
    """Of n rows [percent]: mean and median of ``|p/m − 1|``, median of ``p/m − 1``; rank correlation of p and m."""

    n: int
    mape: float
    median_ape: float
    bias: float
    spearman: float | None


@dataclass(frozen=True)
class GroupErrors:
    """A group's errors in one metric. Tiers of confidence are never in one group; ``fitted`` None: both kinds.

    ``peer``: the other tool's on the rows that it answers; ``ours_where_peer``: ours on those that both answer.
    """

    group: str
    metric: Metric
    confidence: str
    fitted: bool | None
    errors: Errors
    peer: Errors | None = None
    ours_where_peer: Errors | None = None


@dataclass(frozen=True)
class _Pair:
    measured: float
    predicted: float
    peer: float | None


def errors_of(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Errors of at least one pair; see ``Errors``. Measured values are positive."""
    p, m = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
    signed = 100.0 * (p / m - 1.0)
    ape = np.abs(signed)
    return Errors(len(p), float(ape.mean()), float(np.median(ape)), float(np.median(signed)), spearman(p, m))


def group_errors(rows: Sequence[Predicted]) -> tuple[GroupErrors, ...]:
    """Every group that has rows, metric by metric: all, mode, chip, model family, engine, fitted or not, and crossed.

    Sorted: all first, then one label by one, the crossed ones last; each metric in its order.
    """
    pairs: dict[tuple[str, str, Metric], list[_Pair]] = {}
    kinds: dict[tuple[str, str], set[bool]] = {}
    for row in rows:
        for metric in row.metrics():
            pair = _pair(row, metric)
            for group in _groups(row, metric):
                pairs.setdefault((group, row.row.confidence, metric), []).append(pair)
                kinds.setdefault((group, row.row.confidence), set()).add(row.fitted)
    found = [
        _errors(group, tier, metric, kinds[group, tier], members) for (group, tier, metric), members in pairs.items()
    ]
    return tuple(sorted(found, key=lambda g: (_rank(g.group), g.group, g.confidence, METRICS.index(g.metric))))


def _rank(group: str) -> int:
    return 0 if group == ALL else 2 if "," in group else 1


def crossed_name(row: Predicted, metric: Metric) -> str:
    """``mode=aggregated,chip=nvidia-h200-sxm,model=qwen3,engine=vllm``."""
    labels = row.row.labels
    return f"mode={row.mode_of(metric)},chip={labels.chip},model={labels.family},engine={labels.engine}"


def _groups(row: Predicted, metric: Metric) -> Iterable[str]:
    crossed = crossed_name(row, metric)
    return (ALL, *crossed.split(","), f"fitted={'yes' if row.fitted else 'no'}", crossed)


def _pair(row: Predicted, metric: Metric) -> _Pair:
    assert row.figures is not None
    return _Pair(row.row.measured[metric], row.figures[metric], row.row.peer.get(metric))


def _errors(group: str, tier: str, metric: Metric, kinds: set[bool], members: Sequence[_Pair]) -> GroupErrors:
    own = errors_of([x.predicted for x in members], [x.measured for x in members])
    answered = [(x.peer, x) for x in members if x.peer is not None]
    fitted = kinds.copy().pop() if len(kinds) == 1 else None
    if not answered:
        return GroupErrors(group, metric, tier, fitted, own)
    measured = [x.measured for _, x in answered]
    peer = errors_of([p for p, _ in answered], measured)
    shared = own if len(answered) == len(members) else errors_of([x.predicted for _, x in answered], measured)
    return GroupErrors(group, metric, tier, fitted, own, peer, shared)


@dataclass(frozen=True)
class Miss:
    """One row's error in one metric [percent, signed]."""

    row: Predicted
    metric: Metric
    predicted: float
    measured: float
    error: float


def worst(rows: Sequence[Predicted], count: int, metrics: Sequence[Metric] = TIMES) -> tuple[Miss, ...]:
    """The ``count`` largest errors over these metrics, largest first; ties by row number. An overestimate by 2 and an
    underestimate to a half are equally large."""
    found = [
        Miss(row, metric, p, m, 100.0 * (p / m - 1.0))
        for row in rows
        for metric in row.metrics()
        if metric in metrics
        for p, m in ((row.figures[metric] if row.figures else 0.0, row.row.measured[metric]),)
    ]
    return tuple(sorted(found, key=lambda x: (-_size(x), x.row.row.number, METRICS.index(x.metric)))[:count])


def _size(miss: Miss) -> float:
    return max(miss.predicted, miss.measured) / max(min(miss.predicted, miss.measured), 1e-300)
