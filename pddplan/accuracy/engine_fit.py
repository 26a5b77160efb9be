"""Fits the engine profiles to served rows: ``python -m pddplan.accuracy.engine_fit MEASUREMENTS_DIR [--write]``.

Kernels come from the op curves and stay as they are: a profile has only what lies between kernels and a served token,
seven numbers per engine with a meaning each (``Parameter``), with a prior that holds where rows say nothing. Rows are
split by whole (model family, chip, engine) groups: every second group of each engine's sorted list is fitted, the
others check it. ``fitted_groups.yaml`` lists the fitted ones with the errors of both halves, and the error on families
that a fit left out. Reproducible: no randomness, a fixed row order.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from pddplan.accuracy.predict import predict
from pddplan.accuracy.records import MeasuredRow, Metric
from pddplan.accuracy.rows import read_measurements
from pddplan.accuracy.score import errors_of
from pddplan.spec.calibration import with_numbers
from pddplan.spec.datafile import hardware_dir

Array = NDArray[np.float64]
FILES = ("e2e_agg_measured_vs_aic.csv", "e2e_disagg_measured_vs_aic.csv")
MODES = ("aggregated", "disaggregated")
ENGINES = ("sglang", "trtllm", "vllm")
SOFT = 0.15  # log error from which a row counts linearly: some hold compilation or hidden drafts
PULL = 0.1  # weight of one prior sigma beside one row's log error, times sqrt(rows)
STEP = 0.1  # of a sigma, for differences: the closed loop is not smooth at smaller ones
EVALUATIONS = 7

Group = tuple[str, str, str]


@dataclass(frozen=True)
class Parameter:
    """A number of an engine profile, and the prior in the unit of its key."""

    key: str
    prior: float
    sigma: float
    low: float
    high: float


TPOT_PARAMETERS = (
    Parameter("step_overhead_ms", 1.0, 1.0, 0.0, 8.0),
    Parameter("request_overhead_us", 15.0, 8.0, 0.0, 100.0),
    Parameter("expert_layer_overhead_us", 25.0, 12.0, 0.0, 150.0),
)
TTFT_PARAMETERS = (
    Parameter("first_output_ms", 50.0, 50.0, 0.0, 400.0),
    Parameter("expert_first_output_us", 1000.0, 1000.0, 0.0, 5000.0),
    Parameter("prompt_factor", 1.0, 0.1, 0.7, 2.5),
    Parameter("handoff_ms", 100.0, 100.0, 0.0, 300.0),
)
Stages = tuple[tuple[Metric, tuple[Parameter, ...]], ...]
STAGES: Stages = (
    ("tpot_ms", TPOT_PARAMETERS),
    ("ttft_ms", TTFT_PARAMETERS),
)


def group_of(row: MeasuredRow) -> Group:
    return row.labels.family, row.labels.chip, row.labels.engine


def halves(rows: Iterable[MeasuredRow]) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """(fitted groups, groups that check): of each engine the second, fourth … of its sorted groups, and the others."""
    groups = sorted({group_of(row) for row in rows})
    of_engine = [[group for group in groups if group[2] == engine] for engine in sorted({g[2] for g in groups})]
    fitted = sorted(group for own in of_engine for group in own[1::2])
    return tuple(fitted), tuple(group for group in groups if group not in fitted)


def read_rows(folder: Path) -> list[MeasuredRow]:
    """All rows of the served tables that have a point."""
    found = [row for name in FILES for row in read_measurements(str(folder / name)).rows]
    return [row for row in found if row.parts]


def with_engine(rows: Sequence[MeasuredRow], values: Mapping[str, float]) -> list[MeasuredRow]:
    """The rows with numbers of their engines replaced, by key and in its unit."""
    return [
        replace(
            row,
            parts=tuple(
                replace(part, point=replace(part.point, engine=with_numbers(part.point.engine, values)))
                for part in row.parts
            ),
        )
        for row in rows
    ]


def log_errors(rows: Sequence[MeasuredRow], metric: Metric, values: Mapping[str, float]) -> Array:
    """ln(predicted / measured) of a metric; nan where a row has no prediction."""
    predicted = predict(with_engine(rows, values))
    pairs = [((p.figures or {}).get(metric), p.row.measured.get(metric)) for p in predicted]
    return np.array([np.log(a / b) if a and b else np.nan for a, b in pairs])


def fit_engine(rows: Sequence[MeasuredRow], stages: Stages = STAGES) -> dict[str, float]:
    """Values by key that minimise the soft-L1 log error over ``rows`` of one engine, every group alike, and the plain
    square of their distance from the prior: no row weighs more for being far off, every sigma does. Stage by stage:
    what the first token needs beside steps is fitted after the steps."""
    from scipy.optimize import least_squares

    sizes = Counter(group_of(row) for row in rows)
    weight = np.array([sizes[group_of(row)] ** -0.5 for row in rows])
    weight *= np.sqrt(len(rows) / np.sum(weight**2))
    chosen: dict[str, float] = {}
    for metric, parameters in stages:
        fixed = dict(chosen)
        prior = np.array([p.prior for p in parameters])
        sigma = np.array([p.sigma for p in parameters])

        def residuals(
            z: Array,
            metric: Metric = metric,
            parameters: tuple[Parameter, ...] = parameters,
            prior: Array = prior,
            sigma: Array = sigma,
            fixed: dict[str, float] = fixed,
        ) -> Array:
            values = prior + sigma * z
            numbers = {p.key: float(v) for p, v in zip(parameters, values, strict=True)}
            errors = np.nan_to_num(weight * log_errors(rows, metric, {**fixed, **numbers}))
            return np.concatenate([_softened(errors), PULL * np.sqrt(len(rows)) * z])

        low = (np.array([p.low for p in parameters]) - prior) / sigma
        high = (np.array([p.high for p in parameters]) - prior) / sigma
        jacobian = _differences(residuals)
        found = least_squares(
            residuals,
            np.zeros(len(prior)),
            jac=jacobian,
            bounds=(low, high),
            max_nfev=EVALUATIONS,
        )
        for parameter, z in zip(parameters, found.x, strict=True):
            chosen[parameter.key] = float(f"{parameter.prior + parameter.sigma * z:.3g}")
    return chosen


def _softened(errors: Array) -> Array:
    """Residuals whose square is the soft-L1 loss ``2 s^2 (sqrt(1 + (e/s)^2) - 1)``, s = ``SOFT``."""
    scaled = (errors / SOFT) ** 2
    return np.asarray(np.sign(errors) * SOFT * np.sqrt(2.0 * scaled / (1.0 + np.sqrt(1.0 + scaled))))


def _differences(residuals: Any) -> Any:
    """Forward differences in steps of ``STEP``."""

    def jacobian(z: Array) -> Array:
        base = residuals(z)
        return np.stack([(residuals(z + STEP * e) - base) / STEP for e in np.eye(z.size)], axis=1)

    return jacobian


def fit_all(
    rows: Sequence[MeasuredRow], groups: Iterable[Group], stages: Stages = STAGES
) -> dict[str, dict[str, float]]:
    """Values of every engine, from the rows of ``groups`` alone."""
    chosen = set(groups)
    found = {}
    for engine in ENGINES:
        own = [row for row in rows if row.labels.engine == engine and group_of(row) in chosen]
        if own:
            found[engine] = fit_engine(own, stages)
    return found


def log_errors_of(rows: Sequence[MeasuredRow], fitted: Mapping[str, Mapping[str, float]]) -> dict[Metric, Array]:
    """ln(predicted / measured) of all rows by metric, with each engine's fitted values."""
    found: dict[Metric, Array] = {metric: np.full(len(rows), np.nan) for metric, _ in STAGES}
    for engine in {row.labels.engine for row in rows}:
        at = [i for i, row in enumerate(rows) if row.labels.engine == engine]
        for metric in found:
            found[metric][at] = log_errors([rows[i] for i in at], metric, fitted.get(engine, {}))
    return found


def summary(log_error: Array) -> dict[str, float]:
    """MAPE, median APE and median signed error in percent, to one digit."""
    known = np.exp(log_error[np.isfinite(log_error)])
    if not known.size:
        return {"n": 0}
    found = errors_of(known.tolist(), np.ones(known.size).tolist())
    figures = {"mape": found.mape, "median_ape": found.median_ape, "bias": found.bias}
    return {"n": found.n, **{name: round(value, 1) for name, value in figures.items()}}


def left_out(rows: Sequence[MeasuredRow]) -> dict[str, dict[str, float]]:
    """TPOT error on each model family, predicted by a fit to all the others, and on both modes over all families."""
    found: dict[str, dict[str, float]] = {}
    errors = np.full(len(rows), np.nan)
    for family in sorted({row.labels.family for row in rows}):
        others = [row for row in rows if row.labels.family != family]
        own = [i for i, row in enumerate(rows) if row.labels.family == family]
        fitted = fit_all(others, {group_of(row) for row in others}, STAGES[:1])
        errors[own] = log_errors_of([rows[i] for i in own], fitted)["tpot_ms"]
        found[family] = summary(errors[own])
    modes = np.array([row.labels.mode for row in rows])
    return {**found, **{mode: summary(errors[modes == mode]) for mode in MODES}}


def report(rows: Sequence[MeasuredRow], fitted: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Errors by half, mode and metric."""
    chosen = set(halves(rows)[0])
    errors = log_errors_of(rows, fitted)
    found: dict[str, Any] = {}
    for half in ("fitted", "unfitted"):
        for mode in MODES:
            of_half = [(group_of(row) in chosen) == (half == "fitted") for row in rows]
            mask = np.array([h and row.labels.mode == mode for h, row in zip(of_half, rows, strict=True)])
            found.setdefault(half, {})[mode] = {metric: summary(values[mask]) for metric, values in errors.items()}
    return found


def write(fitted: Mapping[str, Mapping[str, float]], rows: Sequence[MeasuredRow], families: Any, date: str) -> None:
    """Puts the values into the engine files, beside their sources, and lists the groups with the errors."""
    import re

    for engine, values in fitted.items():
        path = hardware_dir() / "engines" / f"{engine}.yaml"
        text = path.read_text("utf-8")
        for key, value in values.items():
            text = re.sub(rf"^{key}: \{{value: [^,]+,", f"{key}: {{value: {value:g},", text, flags=re.M)
        path.write_text(text, "utf-8")
    groups = [dict(zip(("family", "chip", "engine"), group, strict=True)) for group in halves(rows)[0]]
    body = {"date": date, "errors_percent": report(rows, fitted), "left_out_tpot_percent": families, "groups": groups}
    head = "# Written by `python -m pddplan.accuracy.engine_fit DIR --write DATE`; change the fit, not this file.\n"
    (hardware_dir() / "fitted_groups.yaml").write_text(head + yaml.safe_dump(body, sort_keys=False), "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Prints values and errors; with ``--left-out`` the families as well; with ``--write DATE`` writes the files."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    rows = read_rows(Path(arguments[0]))
    fitted = fit_all(rows, halves(rows)[0])
    print(yaml.safe_dump({"values": fitted, "errors_percent": report(rows, fitted)}, sort_keys=False))
    families = left_out(rows) if "--left-out" in arguments else None
    if families:
        print(yaml.safe_dump({"left_out_tpot_percent": families}, sort_keys=False))
    if "--write" in arguments:
        write(fitted, rows, families, arguments[arguments.index("--write") + 1])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
