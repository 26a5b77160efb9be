"""Served TTFT and TPOT of the reference data against the bars of 2-model.md section 9, fitted and other groups apart.

Engine profiles were fitted to half of the (model family, chip, engine) groups (``accuracy.engine_fit``); kernels
to none of these rows. Rows without a prediction would fail: all count.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pddplan.accuracy.engine_fit import FILES, group_of, halves, log_errors_of, summary
from pddplan.accuracy.fitted import fitted_groups
from pddplan.accuracy.predict import Predicted, predict
from pddplan.accuracy.ranks import orders
from pddplan.accuracy.rows import read_measurements
from pddplan.accuracy.score import Errors, errors_of
from pddplan.spec.datafile import hardware_dir, read_data_file
from tests.reference import reference_dir

MODES = ("aggregated", "disaggregated")


@pytest.fixture(scope="module")
def folder() -> Path:
    found = reference_dir() / "measurements"
    if not found.is_dir():
        pytest.skip(f"{found} is missing")
    return found


@pytest.fixture(scope="module")
def rows(folder: Path) -> tuple[Predicted, ...]:
    found = [predict(read_measurements(str(folder / name)).rows) for name in FILES]
    return tuple(row for part in found for row in part)


def errors(rows: tuple[Predicted, ...], metric: str, **chosen: object) -> Errors:
    """Errors of the rows with these labels; ``fitted``: whether a fit has seen their group."""
    pairs = [
        (row.figures[metric], row.row.measured[metric])  # type: ignore[index]
        for row in rows
        if row.figures is not None
        and all((row.fitted if k == "fitted" else getattr(row.row.labels, k)) == v for k, v in chosen.items())
    ]
    return errors_of(*zip(*pairs, strict=True))


def test_every_row_is_predicted(rows: tuple[Predicted, ...]) -> None:
    assert len(rows) == 734 + 245
    assert [row.why for row in rows if row.figures is None] == []


def test_the_table(rows: tuple[Predicted, ...]) -> None:
    print(f"\n{'':34} {'n':>4} {'MAPE':>6} {'median':>6} {'bias':>6}")
    for metric in ("tpot_ms", "ttft_ms"):
        for mode in MODES:
            for fitted in (True, False):
                e = errors(rows, metric, mode=mode, fitted=fitted)
                half = "fitted groups" if fitted else "other groups"
                print(f"{metric:8} {mode:14} {half:13} {e.n:4d} {e.mape:6.1f} {e.median_ape:6.1f} {e.bias:+6.1f}")


@pytest.mark.parametrize(("mode", "mape", "median"), [("aggregated", 20.0, 12.0), ("disaggregated", 18.0, 12.0)])
def test_tpot_of_groups_that_were_not_fitted(
    rows: tuple[Predicted, ...], mode: str, mape: float, median: float
) -> None:
    found = errors(rows, "tpot_ms", mode=mode, fitted=False)
    assert found.n > 100
    assert found.mape <= mape
    assert found.median_ape <= median


def test_ttft(rows: tuple[Predicted, ...]) -> None:
    assert errors(rows, "ttft_ms", mode="aggregated").median_ape <= 30.0


def test_fitted_groups_are_every_second_of_each_engine(rows: tuple[Predicted, ...]) -> None:
    fitted, other = halves(row.row for row in rows)
    assert fitted_groups() == frozenset(fitted)
    assert not fitted_groups() & set(other)
    assert {group_of(row.row) for row in rows} == set(fitted) | set(other)


def test_recorded_errors_are_those_of_the_shipped_profiles(rows: tuple[Predicted, ...]) -> None:
    """``fitted_groups.yaml`` says what the profiles reach: not better than they do."""
    recorded = read_data_file(hardware_dir() / "fitted_groups.yaml")
    for half in ("fitted", "unfitted"):
        for mode in MODES:
            for metric, said in recorded["errors_percent"][half][mode].items():
                found = errors(rows, metric, mode=mode, fitted=half == "fitted")
                assert found.median_ape <= said["median_ape"] * 1.1 + 0.5
    for mode in MODES:  # each model family predicted by a fit to the others
        assert recorded["left_out_tpot_percent"][mode]["mape"] <= 25.0


def test_order_within_a_sweep(rows: tuple[Predicted, ...]) -> None:
    """Median Spearman at least 0.97, tenth percentile 0.85; the first choice within 5 %."""
    found = next(o for o in orders(rows) if o.metric == "tpot_ms" and o.who == "ours")
    print(found)
    assert found.median >= 0.97
    assert found.tenth_percentile >= 0.85
    assert found.median_regret <= 5.0


def test_log_errors_are_those_of_the_table(rows: tuple[Predicted, ...]) -> None:
    """The fit minimises what the table shows."""
    some = [row.row for row in rows if row.row.labels.engine == "vllm"]
    direct = summary(log_errors_of(some, {})["tpot_ms"])
    assert direct["mape"] == pytest.approx(errors(rows, "tpot_ms", engine="vllm").mape, abs=0.06)
    assert np.isfinite(direct["bias"])
