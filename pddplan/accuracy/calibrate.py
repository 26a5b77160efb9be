"""A user's measurements -> few factors: what moves, what the rows can tell, and what it gains on rows held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.accuracy.factors import Factor, factors_of
from pddplan.accuracy.folds import Folds, folds_of
from pddplan.accuracy.records import METRICS, MeasuredRow, Measurements, Metric
from pddplan.accuracy.regression import (
    Anchor,
    Fit,
    Knowledge,
    knowledge,
    search,
    solve_straight,
)
from pddplan.accuracy.roof import impossible
from pddplan.accuracy.score import Errors, errors_of
from pddplan.accuracy.trial import Trial, observations
from pddplan.errors import InputError, Problem
from pddplan.perf.curves import SHIPPED, impossible_factors, largest_factor, load_curves, with_factor
from pddplan.spec.catalogue import load_chip
from pddplan.spec.types import MAX_EFFICIENCY

Array = NDArray[Any]
Tell = Callable[[str], None]
_SHOWN = 8  # impossible rows that are named one by one
_DOUBT = 2.0  # deviations: an efficiency this far above what is possible is no noise
_OTHER_MACHINE = "The chip, its layout or its formats are others than the rows say, or several tokens come a step."
_UNITS: dict[Metric, str] = {"ttft_ms": "ms", "tpot_ms": "ms"}


@dataclass(frozen=True)
class FittedFactor:
    """A factor, where it went, and the range of one posterior deviation. One that the rows don't determine stays as
    shipped; ``like``: the factor that the rows can't tell it from, "" where they just say too little."""

    factor: Factor
    value: float
    low: float
    high: float
    identified: bool
    deviation: float  # after the rows over before, 0..1
    like: str = ""


@dataclass(frozen=True)
class HeldOut:
    """Errors [percent] of one metric on rows that a fit had not seen, with shipped and with fitted factors."""

    metric: Metric
    before: Errors
    after: Errors


@dataclass(frozen=True)
class Calibrated:
    """``off``: geometric mean of how far held-out values are off, ``exp(mean |ln(predicted/measured)|)``, before and
    after; None where nothing could be held out."""

    files: tuple[str, ...]
    rows: int
    used: int
    factors: tuple[FittedFactor, ...]
    held_out: tuple[HeldOut, ...]
    folds: Folds | None
    off: tuple[float, float] | None
    reasons: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]

    @property
    def better(self) -> bool | None:
        """Whether held-out values are less far off than before; None where nothing could be held out."""
        return None if self.off is None else self.off[1] < self.off[0]

    @property
    def moved(self) -> tuple[FittedFactor, ...]:
        return tuple(f for f in self.factors if f.identified)


def calibrate(sources: Sequence[Measurements], tell: Tell = lambda _: None) -> Calibrated:
    """Fit to all rows of all files that have a point and a prediction.

    InputError where no row has, where a row is faster than its chips can be, and where the fit wants an efficiency
    above ``MAX_EFFICIENCY``: such rows describe another machine than they say.
    """
    pairs = [(source.file, row) for source in sources for row in source.rows]
    usable = [(file, row) for file, row in pairs if row.parts and row.measured]
    _refuse_impossible(usable)
    rows, reasons = _predictable(pairs, usable)
    if not rows:
        raise InputError(_nothing(sources, reasons))
    observed = observations(rows)
    factors = factors_of([o.point for o in observed])
    trial = Trial(factors, observed)
    kinds = np.array([METRICS.index(o.metric) for o in observed])
    fit = _search(trial, kinds, np.zeros(len(factors)), 2, True, tell)
    known = knowledge(fit)
    kept = [f for f, yes in zip(factors, known.identified, strict=True) if yes]
    if len(kept) < len(factors):
        trial = Trial(kept, observed)
        fit = _search(trial, kinds, fit.anchor.u[list(known.identified)], 1, False, tell)
    fitted = _fitted(factors, known, fit)
    believed = _believed(fitted, sources)
    if believed != list(trial.factors):
        trial = Trial(believed, observed)
        fit = _search(trial, kinds, np.minimum(fit.anchor.u, _bounds(believed)[1]), 1, False, tell)
        fitted = _fitted(factors, known, fit)
    folds = folds_of(rows)
    tell("rows held out")
    before, after = _held_out(trial, fit, kinds, folds)
    return Calibrated(
        files=tuple(source.file for source in sources),
        rows=len(pairs),
        used=len(rows),
        factors=fitted,
        held_out=_by_metric(trial, kinds, before, after),
        folds=folds,
        off=_off(before, after),
        reasons=reasons,
        notes=_notes(sources),
    )


# ---------------------------------------------------------------- rows


def _predictable(
    pairs: Sequence[tuple[str, MeasuredRow]], usable: Sequence[tuple[str, MeasuredRow]]
) -> tuple[list[MeasuredRow], tuple[tuple[str, int], ...]]:
    """Rows that the shipped model predicts, and why others aren't used, most frequent first."""
    from collections import Counter

    from pddplan.accuracy.predict import predict

    predicted = predict([row for _, row in usable])
    rows = [p.row for p in predicted if p.metrics()]
    reasons = Counter(row.why or "nothing measured" for _, row in pairs if not (row.parts and row.measured))
    reasons += Counter(
        p.why or "its measured values aren't predicted in its mode" for p in predicted if not p.metrics()
    )
    return rows, tuple(sorted(reasons.items(), key=lambda x: (-x[1], x[0])))


def _nothing(sources: Sequence[Measurements], reasons: Sequence[tuple[str, int]]) -> list[Problem]:
    why = f" Most often: {reasons[0][0]}." if reasons else ""
    fix = "See: pddplan validate --help"
    return [Problem(f"no row can be predicted and compared.{why}", file=s.file, fix=fix) for s in sources]


def _refuse_impossible(usable: Sequence[tuple[str, MeasuredRow]]) -> None:
    found = impossible([row for _, row in usable])
    problems = []
    for one in found[:_SHOWN]:
        file, row = usable[one.row]
        unit = _UNITS.get(one.metric, "")
        message = (
            f"row {row.number}: {one.metric} {one.measured:.4g} is impossible: {row.labels.chip} needs {one.bound:.3g} "
            f"{unit} at {MAX_EFFICIENCY:g} of its peaks."
        )
        fix = "Check chip, layout, formats and lengths; several tokens a step (mtp_accepted_tokens), a prefix_hit?"
        problems.append(Problem(message, file=file, fix=fix))
    if len(found) > _SHOWN:
        problems.append(Problem(f"{len(found) - _SHOWN} more values are impossible.", file=usable[0][0]))
    if problems:
        raise InputError(problems)


def _believed(fitted: Sequence[FittedFactor], sources: Sequence[Measurements]) -> list[Factor]:
    """The factors that move, those of chips bounded by ``MAX_EFFICIENCY`` where the fit went beyond it.

    InputError where the rows insist: where even ``_DOUBT`` deviations below the fit a share is above it.
    """
    problems, found = [], []
    for one in (f for f in fitted if f.identified):
        factor = one.factor
        if factor.kind == "chip":
            curves = load_curves(load_chip(factor.owner))
            most = largest_factor(curves, factor.name)
            u = factor.coordinate(one.value)
            if factor.value(u - _DOUBT * one.deviation) > most:
                asked = with_factor(SHIPPED, factor.name, one.value)
                problems += [
                    Problem(f"the rows ask for {factor.owner} {name} {why}", file=sources[0].file, fix=_OTHER_MACHINE)
                    for name, why in impossible_factors(curves, asked)
                ]
            elif one.value > most:
                factor = replace(factor, high=most)
        found.append(factor)
    if problems:
        raise InputError(problems)
    return found


def _notes(sources: Sequence[Measurements]) -> tuple[str, ...]:
    told = [f"{s.file}: {text}" for s in sources for text in s.notes]
    told += [f"{s.file}: row {row.number}: {text}" for s in sources for row in s.rows for text in row.notes]
    return tuple(told)


# ---------------------------------------------------------------- fit


def _bounds(factors: Sequence[Factor]) -> tuple[Array, Array]:
    low, high = ([f.coordinate(getattr(f, end)) for f in factors] for end in ("low", "high"))
    return np.array(low), np.array(high)


def _search(trial: Trial, kinds: Array, start: Array, fresh: int, exact: bool, tell: Tell) -> Fit:
    return search(
        trial.slopes,
        lambda u: np.asarray(trial.residuals(u)[0]),
        kinds,
        _bounds(trial.factors),
        start,
        fresh,
        exact,
        lambda step: tell(f"{len(trial.factors)} factors, step {step + 1}"),
    )


def _fitted(factors: Sequence[Factor], known: Knowledge, fit: Fit) -> tuple[FittedFactor, ...]:
    place = iter(fit.anchor.u)
    found = []
    for i, factor in enumerate(factors):
        identified, deviation, like = known.identified[i], float(known.deviation[i]), known.like[i]
        u = float(next(place)) if identified else 0.0
        value = factor.value(u) if identified else factor.shipped
        name = "" if like is None else factors[like].label
        found.append(FittedFactor(factor, value, *factor.spread(u, deviation), identified, deviation, name))
    return tuple(found)


def _held_out(trial: Trial, fit: Fit, kinds: Array, folds: Folds | None) -> tuple[Array, Array]:
    """Residuals (n,) under shipped factors, and under those that are fitted to the other folds; NaN without folds.

    A fold's factors come from the straight model at the fit of all rows, without the fold's own residuals, once more
    from the model's own predictions there: a full search for each fold would say the same for five times the time.
    Its slopes are those of all rows, its predictions the model's.
    """
    before = trial.residuals(np.zeros(len(trial.factors)))[0]
    if folds is None:
        return before, np.full(len(before), np.nan)
    fold = folds.of_row[[o.row for o in trial.observed]]
    low, high = _bounds(trial.factors)
    anchors = [fit.anchor] * folds.count
    for _ in range(2):
        us = np.array([solve_straight(a, kinds, low, high, fold != k) for k, a in enumerate(anchors)])
        found = trial.residuals(us)
        anchors = [Anchor(u, r, fit.anchor.slopes) for u, r in zip(us, found, strict=True)]
    return before, found[fold, np.arange(len(fold))]


def _by_metric(trial: Trial, kinds: Array, before: Array, after: Array) -> tuple[HeldOut, ...]:
    measured = np.array([o.measured for o in trial.observed])
    known = np.isfinite(before) & np.isfinite(after)
    held = []
    for i, metric in enumerate(METRICS):
        use = known & (kinds == i)
        if use.any():
            m = measured[use]
            pair = [errors_of(m * np.exp(r[use]), m) for r in (before, after)]
            held.append(HeldOut(metric, *pair))
    return tuple(held)


def _off(before: Array, after: Array) -> tuple[float, float] | None:
    known = np.isfinite(before) & np.isfinite(after)
    if not known.any():
        return None
    was, now = (float(np.exp(np.mean(np.abs(r[known])))) for r in (before, after))
    return was, now
