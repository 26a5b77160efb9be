from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.errors import Excuse
from pddplan.serve import main_decode as md

untimed = settings(deadline=None)


@untimed
@given(st.floats(0.01, 50), st.floats(1, 4000), st.floats(0.001, 0.1), st.floats(0, 1e-3), st.integers(1, 50))
def test_fixed_point_is_the_closed_form(rate: float, tokens: float, t0: float, t1: float, instances: int) -> None:
    closed = float(md.occupancy_linear(rate, tokens, t0, t1, instances))
    got = md.occupancy(rate, tokens, lambda b: t0 + t1 * b, instances)
    if isinstance(got, Excuse):
        assert closed > 16_000
        assert got.value > got.limit and got.unit == "tokens/s per instance"
        return
    assert got.batch == pytest.approx(closed, rel=1e-8)
    assert got.requests == pytest.approx(rate * tokens * got.tpot_s, rel=1e-8)  # Little
    load = rate * tokens * t1 / instances
    if got.batch > 1e-2:
        assert got.dispersion == pytest.approx(1 / (1 - load), rel=1e-2)


def test_fixed_point_limits() -> None:
    assert md.occupancy(0.0, 500, lambda b: 0.02 + 0 * b, 3) == md.Occupancy(0.0, 0.0, 0.02, 1.0)
    assert isinstance(md.occupancy(1.0, 500, lambda b: 0.02 + 0 * b, 0), Excuse)
    excuse = md.occupancy(10, 960, lambda b: 0.02 + 0.0003 * b, 2)
    assert isinstance(excuse, Excuse)
    assert excuse.value == 4800 and excuse.limit == pytest.approx(1 / 0.0003, rel=0.01)
    assert np.isinf(md.occupancy_linear(10, 960, 0.02, 0.0003, 2))


def test_smallest_of_two_fixed_points() -> None:
    """A step that explodes with the batch: tau = 20 ms + 10 µs·B² has two fixed points; the lower one is stable."""
    demand = 1000.0
    got = md.occupancy(1.0, demand, lambda b: 0.02 + 1e-5 * b**2, 1)
    assert not isinstance(got, Excuse)
    assert got.batch == pytest.approx((1 - math.sqrt(1 - 4 * demand**2 * 0.02 * 1e-5)) / (2 * demand * 1e-5), rel=1e-9)
    assert isinstance(md.occupancy(1.0, 1200.0, lambda b: 0.02 + 1e-5 * b**2, 1), Excuse)


@untimed
@given(st.floats(0.1, 20), st.floats(1.0, 1.5))
def test_more_load_or_fewer_instances_never_help(rate: float, more: float) -> None:
    def tpot(r: float, instances: float) -> float:
        got = md.occupancy(r, 800, lambda b: 0.015 + 0.0002 * b + 1e-7 * b**2, instances)
        return math.inf if isinstance(got, Excuse) else got.tpot_s

    assert tpot(rate * more, 5) >= tpot(rate, 5) * (1 - 1e-9)
    assert tpot(rate, 5 * more) <= tpot(rate, 5) * (1 + 1e-9)


def test_length_biased_context() -> None:
    # by hand: 100 tokens at 1,050 and 300 tokens at 2,150
    got = md.length_biased_context([0.5, 0.5], [1000, 2000], [100, 300], [0, 0])
    assert float(got) == pytest.approx((100 * 1050 + 300 * 2150) / 400)
    assert float(md.length_biased_context([1.0], [1000], [100], [40])) == pytest.approx(1070)
    assert float(md.length_biased_context([1.0], [1000], [100], [100])) == 0.0
    # independent: sum the context of each step of each request
    rng = np.random.default_rng(0)
    prompts, outputs = rng.integers(10, 5000, 200), rng.integers(1, 400, 200)
    eager = np.minimum(outputs, rng.integers(0, 100, 200))
    contexts = [p + s + 0.5 for p, n, e in zip(prompts, outputs, eager, strict=True) for s in range(e, n)]
    got = md.length_biased_context(np.full(200, 1 / 200), prompts, outputs, eager)
    assert float(got) == pytest.approx(np.mean(contexts))
    assert float(md.decode_tokens_mean(np.full(200, 1 / 200), outputs, eager)) == pytest.approx(len(contexts) / 200)


def test_tpot_quantile() -> None:
    batches, probabilities = md.size_biased_occupancy(60.0, np.array([0.0, 1.0]), points=40)
    weights = probabilities * np.array([[0.3], [0.7]])
    p50, p99 = (md.tpot_quantile(q, batches, weights, lambda b: 0.02 + 0.0003 * b) for q in (0.5, 0.99))
    assert p50 == pytest.approx(0.02 + 0.0003 * 61, rel=0.01)
    # normal law of the mixture: sqrt(60·(0.3 + 0.7·2/e)) · 2.33
    assert p99 == pytest.approx(0.02 + 0.0003 * (61 + 2.33 * math.sqrt(60 * (0.3 + 0.7 * 2 / math.e))), rel=0.02)


# ---------------------------------------------------------------- ranks


def test_dp_imbalance_of_the_design() -> None:
    got = md.dp_imbalance([8, 32, 144, 144], [16, 16, 16, 64])
    assert got == pytest.approx([1.37, 1.61, 1.88, 1.37], rel=0.015)


@pytest.mark.parametrize(("ranks", "batch", "draws"), [(8, 16, 8000), (2, 4, 20_000), (144, 4, 1500), (64, 64, 500)])
def test_dp_imbalance_against_simulation(ranks: int, batch: int, draws: int) -> None:
    rng = np.random.default_rng(12)
    context = np.exp(0.8 * rng.standard_normal((draws, ranks, batch)))
    simulated = context.sum(axis=2).max(axis=1).mean() / batch / math.exp(0.32)
    assert float(md.dp_imbalance(ranks, batch)) == pytest.approx(simulated, rel=0.03)


def test_dp_imbalance_limits() -> None:
    assert float(md.dp_imbalance(1, 16)) == 1.0
    assert float(md.dp_imbalance(64, 16, sigma=0.0)) == 1.0
    assert float(md.dp_imbalance(64, 1e8)) == pytest.approx(1.0, abs=1e-3)
    # two log-normal values: E max = 2·Phi(sigma/sqrt 2)·mean, textbook
    phi = 0.5 * (1 + math.erf(0.8 / 2))
    assert float(md.dp_imbalance(2, 1)) == pytest.approx(2 * phi, rel=1e-3)


@untimed
@given(st.floats(1, 500), st.floats(1, 500), st.floats(1, 2), st.floats(0.1, 1.2))
def test_dp_imbalance_is_monotone(ranks: float, batch: float, more: float, sigma: float) -> None:
    here = float(md.dp_imbalance(ranks, batch, sigma))
    assert here >= 1
    assert float(md.dp_imbalance(ranks * more, batch, sigma)) >= here * (1 - 1e-9)
    assert float(md.dp_imbalance(ranks, batch * more, sigma)) <= here * (1 + 1e-9)
