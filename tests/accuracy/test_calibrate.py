"""Factors come back from rows that they made; what the rows don't know stays; what can't be is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pddplan.accuracy.calibrate import Calibrated, FittedFactor, calibrate
from pddplan.accuracy.factors import factors_of
from pddplan.accuracy.folds import folds_of
from pddplan.accuracy.regression import Anchor, Fit, knowledge, solve_straight
from pddplan.errors import InputError
from pddplan.estimate.records import OperatingPoint
from tests.accuracy.sweeps import H100, LENGTHS, TRUE, sweep


def factor(found: Calibrated, owner: str, name: str) -> FittedFactor:
    return next(f for f in found.factors if (f.factor.owner, f.factor.name) == (owner, name))


@pytest.fixture(scope="module")
def found() -> Calibrated:
    return calibrate([sweep(TRUE, noise=0.01)])


@pytest.mark.parametrize(("key", "within"), [((H100, "compute"), 0.03), ((H100, "memory"), 0.05)])
def test_factors_of_a_chip_come_back(found: Calibrated, key: tuple[str, str], within: float) -> None:
    one = factor(found, *key)
    assert one.identified and one.value == pytest.approx(TRUE[key], rel=within)
    assert one.low < one.value < one.high


def test_an_overhead_comes_back(found: Calibrated) -> None:
    one = factor(found, "vllm", "step_overhead_ms")
    assert one.identified and one.factor.shipped != pytest.approx(3.0, rel=0.2)
    assert one.value == pytest.approx(3.0, rel=0.15)


def test_what_was_not_changed_stays_near_the_shipped_value(found: Calibrated) -> None:
    for name in ("first_output_ms", "prompt_factor"):
        one = factor(found, "vllm", name)
        assert one.value == pytest.approx(one.factor.shipped, rel=0.1)


def test_held_out_rows_get_better(found: Calibrated) -> None:
    assert found.better and found.off is not None and found.off[1] < 1.05 < found.off[0]
    assert {h.metric for h in found.held_out} == {"ttft_ms", "tpot_ms"}
    for held in found.held_out:
        assert held.before.n == held.after.n == found.used == 24
        assert held.before.mape > 10 and held.after.mape < 3


def test_a_factor_that_the_rows_say_nothing_of_stays() -> None:
    """One user and short prompts: compute and the scheduler's work per request hardly show."""
    found = calibrate([sweep(TRUE, tps=(1,), lengths=((64, 512), (128, 512)), users=(1,))])
    for owner, name in ((H100, "compute"), ("vllm", "request_overhead_us")):
        one = factor(found, owner, name)
        assert not one.identified and one.value == one.factor.shipped and one.deviation > 0.5


def test_two_factors_that_the_rows_cannot_tell_apart_are_named(found: Calibrated) -> None:
    one = factor(found, "vllm", "prompt_factor")
    assert not one.identified and one.like == f"{H100} compute"


def test_no_communication_within_one_chip() -> None:
    def names(tp: int) -> set[str]:
        rows = sweep({}, tps=(tp,), lengths=LENGTHS[:1], users=(1,)).rows
        return {f.name for f in factors_of([r.parts[0].point for r in rows])}

    assert names(2) - names(1) == {"communication"} and "handoff_ms" not in names(2)


def test_rows_faster_than_the_roof_are_refused() -> None:
    rows = sweep({}, tps=(1,), lengths=LENGTHS[:1], users=(1, 4))
    fast = replace(rows, rows=tuple(replace(r, measured={m: v / 10 for m, v in r.measured.items()}) for r in rows.rows))
    with pytest.raises(InputError) as error:
        calibrate([fast])
    first = error.value.problems[0]
    assert first.file == "sweep.csv" and "row 1" in first.message and "impossible" in first.message


def test_a_fit_that_wants_more_than_the_peak_is_refused() -> None:
    """Each row alone is possible; together they ask for 1.5 times the bandwidth that the curves have at 0.86."""
    with pytest.raises(InputError) as error:
        calibrate([sweep({(H100, "memory"): 1.5, (H100, "compute"): 1.5}, users=(16, 64), lengths=LENGTHS)])
    assert any("memory" in p.message or "compute" in p.message for p in error.value.problems)


def test_nothing_to_fit_is_one_message(asked: list[OperatingPoint]) -> None:
    source = replace(sweep_without_values(), rows=())
    with pytest.raises(InputError, match="no row can be predicted"):
        calibrate([source])
    assert asked == []


def sweep_without_values() -> object:
    from tests.accuracy.tables import OWN, own, read

    return read(OWN, own(ttft_ms="", tpot_ms=""))


def test_folds_keep_configurations_whole() -> None:
    rows = sweep({}, tps=(1,), users=(1, 4, 16, 64)).rows
    folds = folds_of(rows)
    assert folds is not None and (folds.count, folds.configurations, folds.lone) == (3, 3, 0)
    assert all(len(set(folds.of_row[i : i + 4])) == 1 for i in (0, 4, 8))
    lone = folds_of(rows[:4])
    assert lone is not None and (lone.count, lone.lone) == (4, 4)
    assert folds_of(rows[:1]) is None


# ---------------------------------------------------------------- regression


def straight(slopes: np.ndarray, truth: np.ndarray, start: np.ndarray) -> Anchor:
    return Anchor(start, slopes @ (start - truth), slopes)


def test_one_wild_row_hardly_moves_the_solution() -> None:
    slopes = np.linspace(0.5, 1.5, 20)[:, None]
    anchor = straight(slopes, np.array([0.5]), np.zeros(1))
    wild = replace(anchor, residuals=anchor.residuals + 3.0 * (np.arange(20) == 4))
    far, kinds = np.full(1, 10.0), np.zeros(20, dtype=int)
    assert solve_straight(wild, kinds, -far, far)[0] == pytest.approx(0.5, abs=0.03)


def test_the_solution_stays_within_bounds() -> None:
    anchor = straight(np.ones((20, 1)), np.array([2.0]), np.zeros(1))
    assert solve_straight(anchor, np.zeros(20, dtype=int), np.array([-1.0]), np.array([1.0]))[0] == pytest.approx(1.0)


def test_of_two_coordinates_with_the_same_slopes_one_is_given_up() -> None:
    column = np.linspace(0.1, 1.0, 30)
    slopes = np.column_stack([column, 0.9 * column, 0.0 * column, np.sin(40 * column)])
    known = knowledge(Fit(Anchor(np.zeros(4), np.zeros(30), slopes), np.full(30, 0.03)))
    assert known.identified == (True, False, False, True)
    assert known.like == (None, 0, None, None) and known.deviation[2] == pytest.approx(1.0)
