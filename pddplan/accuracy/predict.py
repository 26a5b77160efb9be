"""Predictions of measured rows: all points of a file in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from pddplan.accuracy.fitted import is_fitted
from pddplan.accuracy.records import METRICS, Figures, MeasuredRow, Metric
from pddplan.errors import Excuse
from pddplan.estimate.records import Answer, Estimate, OperatingPoint
from pddplan.perf.curves import load_curves
from pddplan.spec.identity import Same
from pddplan.spec.types import Chip
from pddplan.units import MS

ROOMY = 4.0  # far more than any error of the memory law


@dataclass(frozen=True)
class Predicted:
    """A row with its prediction; ``figures`` is None where there is none, and ``why`` then says why. ``reason`` is the
    same without the row's own numbers: what rows are counted by."""

    row: MeasuredRow
    figures: Figures | None
    why: str
    fitted: bool
    reason: str = ""

    def metrics(self) -> tuple[Metric, ...]:
        """Metrics that were measured and predicted."""
        found = self.figures or {}
        return tuple(m for m in METRICS if m in found and m in self.row.measured)

    def mode_of(self, metric: Metric) -> str:
        """Mode that a metric belongs to: a row of prefill and decode apart has two."""
        return next((p.point.mode for p in self.row.parts if metric in p.metrics), self.row.labels.mode)


def predict(rows: Sequence[MeasuredRow]) -> tuple[Predicted, ...]:
    """Every row with its prediction or the reason why it has none, in order."""
    from pddplan.estimate.estimate import estimate_many

    points = [part.point for row in rows for part in row.parts]
    found = estimate_many(points) if points else []
    tight = [i for i, answer in enumerate(found) if _lacks_memory(points[i], answer)]
    if tight:
        for i, answer in zip(tight, estimate_many([_as_it_fits(points[i]) for i in tight]), strict=True):
            found[i] = answer
    answers = iter(found)
    return tuple(_predicted(row, [next(answers) for _ in row.parts]) for row in rows)


def _lacks_memory(point: OperatingPoint, answer: Answer) -> bool:
    """Whether the model's memory law contradicts what was measured: weights that ran, a decode batch that was held."""
    if isinstance(answer, Excuse):
        return answer.constraint == "memory"
    held = point.mode == "decode" and answer.asked_concurrency is not None
    return held and answer.effective_concurrency < 0.99 * (answer.asked_concurrency or 0.0)


def _as_it_fits(point: OperatingPoint) -> OperatingPoint:
    """The point on chips of ``ROOMY`` times the memory: what was measured ran, so it fitted somehow."""
    pools = tuple(replace(w, chip=_roomy(Same(w.chip)), curves=w.curves or load_curves(w.chip)) for w in point.pools)
    return replace(point, pools=pools)


@lru_cache(maxsize=256)
def _roomy(chip: Same[Chip]) -> Chip:
    return replace(chip.value, memory_bytes=ROOMY * chip.value.memory_bytes, usable_bytes=None)


def _predicted(row: MeasuredRow, answers: Sequence[Answer]) -> Predicted:
    fitted = is_fitted(row)
    if not answers:
        return Predicted(row, None, row.why, fitted, row.why)
    figures: dict[Metric, float] = {}
    excuses = []
    for part, answer in zip(row.parts, answers, strict=True):
        if isinstance(answer, Excuse):
            excuses.append(answer)
        else:
            figures |= {m: v for m, v in figures_of(answer).items() if m in part.metrics}
    if figures:
        return Predicted(row, figures, "", fitted)
    why = "; ".join(dict.fromkeys(excuse_text(e) for e in excuses)) or "the model gives none of what was measured"
    reason = "; ".join(dict.fromkeys(f"{e.name.replace('_', ' ')} above its limit" for e in excuses)) or why
    return Predicted(row, None, why, fitted, reason)


def figures_of(answer: Estimate) -> Figures:
    """The four metrics of an estimate, in their units; without those that its mode doesn't have."""
    found = {
        "ttft_ms": None if answer.ttft is None else answer.ttft.mean / MS,
        "tpot_ms": None if answer.tpot_s is None else answer.tpot_s / MS,
        "prefill_tok_s_per_chip": answer.prefill_tokens_per_s_per_chip,
        "decode_tok_s_per_chip": answer.decode_tokens_per_s_per_chip,
    }
    return {m: v for m in METRICS if (v := found[m]) is not None and math.isfinite(v)}


def excuse_text(excuse: Excuse) -> str:
    """``kv_memory of qwen3-32b on nvidia-h100-sxm tp1: 92.3 GB, limit 80 GB``."""
    subject = f" of {excuse.subject}" if excuse.subject else ""
    unit = f" {excuse.unit}" if excuse.unit else ""
    limit = f", limit {_three_digits(excuse.limit)}{unit}" if math.isfinite(excuse.limit) else ""
    return f"{excuse.name}{subject}: {_three_digits(excuse.value)}{unit}{limit}"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.3g}"
