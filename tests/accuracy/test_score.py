"""Errors by hand, groups, order."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pddplan.accuracy import fitted
from pddplan.accuracy.ranks import regret, spearman
from pddplan.accuracy.score import errors_of, worst
from pddplan.accuracy.validation import validate
from pddplan.estimate.records import OperatingPoint
from tests.accuracy.tables import E2E_AGG, OWN, SERVING, e2e, own, read, serving

Asked = list[OperatingPoint]


def test_errors_by_hand() -> None:
    """Predictions of 100: 25 % over 80, 50 % under 200, right at 100, a third over 75."""
    found = errors_of([100, 100, 100, 100], [80, 200, 100, 75])
    assert found.n == 4
    assert found.mape == pytest.approx((25 + 50 + 0 + 100 / 3) / 4)
    assert found.median_ape == pytest.approx((25 + 100 / 3) / 2)
    assert found.bias == pytest.approx(12.5)
    assert found.spearman is None  # a constant ranks nothing


def test_rank_correlation_is_that_of_the_books() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        a, b = rng.integers(0, 8, 12).astype(float), rng.normal(size=12)
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    assert spearman(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None


def test_regret_is_what_the_first_choice_costs() -> None:
    assert regret(np.array([3.0, 1.0, 2.0]), np.array([10.0, 12.0, 30.0])) == pytest.approx(20.0)
    assert regret(np.array([1.0, 2.0]), np.array([10.0, 12.0])) == 0.0


def test_groups_and_the_peer(asked: Asked) -> None:
    """The stand-in says 10 ms and 1 ms a user; measured 20: 18 ms for 8 users, 26 for 16; the peer answers one."""
    rows = [e2e(concurrency=8, silicon_tpot_ms=20, aic_tpot_ms=25, silicon_ttft_ms="")]
    rows += [e2e(concurrency=16, silicon_tpot_ms=20, aic_tpot_ms="", silicon_ttft_ms="", system="h200_sxm")]
    found = {g.group: g for g in validate(read(E2E_AGG, *rows)).groups}
    assert set(found) == {
        *("all", "mode=aggregated", "model=deepseek-v3", "engine=trtllm", "fitted=no"),
        *("chip=nvidia-b200-sxm", "chip=nvidia-h200-sxm"),
        "mode=aggregated,chip=nvidia-b200-sxm,model=deepseek-v3,engine=trtllm",
        "mode=aggregated,chip=nvidia-h200-sxm,model=deepseek-v3,engine=trtllm",
    }
    everything = found["all"]
    assert everything.errors.mape == pytest.approx(20.0) and everything.errors.n == 2
    assert everything.peer is not None and everything.peer.n == 1 and everything.peer.mape == pytest.approx(25.0)
    assert everything.ours_where_peer is not None and everything.ours_where_peer.mape == pytest.approx(10.0)
    assert found["chip=nvidia-h200-sxm"].peer is None


def test_tiers_of_confidence_are_never_averaged(asked: Asked) -> None:
    cells = serving(mode="agg", parallelism="TP8", osl=100, concurrency=10, tpot_ms=10)
    found = validate(read(SERVING, cells, cells | {"confidence": "B", "tpot_ms": 40}))
    tiers = {g.confidence: g.errors for g in found.groups if g.group == "all" and g.metric == "tpot_ms"}
    assert (tiers["A"].bias, tiers["B"].bias) == (pytest.approx(100.0), pytest.approx(-50.0))
    assert {e.n for e in tiers.values()} == {1}


def test_points_added_for_their_error_are_averaged_apart(asked: Asked) -> None:
    header = f"{OWN},confidence,worst"
    rows = [own(confidence="B"), own(confidence="B", tpot_ms=1, worst="added"), own(confidence="B", worst="yes")]
    found = validate(read(header, *rows)).groups
    assert {(g.confidence, g.errors.n) for g in found if g.group == "all"} == {("B", 2), ("B worst", 1)}


def test_order_within_a_sweep(asked: Asked) -> None:
    """Users 1 to 5 of one configuration, measured in order but for the first two."""
    measured = (30, 20, 40, 50, 60)
    rows = [own(concurrency=i, tpot_ms=m, ttft_ms="") for i, m in enumerate(measured, 1)]
    other = [own(concurrency=i, tpot_ms=50 - i, ttft_ms="", isl=4096) for i in range(1, 5)]  # four are too few
    (order,) = validate(read(OWN, *rows, *other)).orders
    assert (order.groups, order.who, order.metric) == (1, "ours", "tpot_ms")
    assert order.median == pytest.approx(0.9)
    assert order.median_regret == pytest.approx(50.0)


def test_rows_without_a_prediction_and_why(asked: Asked) -> None:
    found = validate(read(OWN, own(), own(model="x-1b"), own(tp=2048), own(chip="y"), own(chip="y")))
    assert found.predicted == 1 and len(found.rows) == 5
    assert [n for _, n in found.reasons] == [2, 1, 1]
    assert "unknown chip 'y'" in found.reasons[0][0]
    assert found.rows[2].why == "chips of llama-3.1-8b: 2,048 chips, limit 1,000 chips"
    assert ("chips above its limit", 1) in found.reasons
    assert len(asked) == 2  # only points are asked


def test_two_questions_of_one_row(asked: Asked) -> None:
    cells = serving(mode="prefill+decode isolated", model="llama2-70b", weight_dtype="fp16", parallelism="TP8")
    (row,) = validate(read(SERVING, cells | {"osl": 128, "concurrency": 5, "ttft_ms": 53, "tpot_ms": 30})).rows
    assert row.figures is not None and row.figures["ttft_ms"] == pytest.approx(100.0)
    assert row.figures["tpot_ms"] == pytest.approx(15.0)
    assert (row.mode_of("ttft_ms"), row.mode_of("tpot_ms")) == ("prefill", "decode")


def test_worst_counts_under_and_over_alike(asked: Asked) -> None:
    """18 ms predicted: a tenth of 180 is worse than nine times 2."""
    rows = [own(tpot_ms=180, ttft_ms=""), own(tpot_ms=2, ttft_ms=""), own(tpot_ms=18, ttft_ms="")]
    found = worst(validate(read(OWN, *rows)).rows, 2)
    assert [m.row.row.number for m in found] == [1, 2]


def test_fitted_groups_are_shown_apart(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted, "fitted_groups", lambda: frozenset({("llama-3.1", "nvidia-h100-sxm", "vllm")}))
    found = {g.group: g for g in validate(read(OWN, own(), own(engine="sglang"))).groups}
    assert found["fitted=yes"].errors.n == found["fitted=no"].errors.n == 1
    assert found["fitted=yes"].fitted is True and found["all"].fitted is None
