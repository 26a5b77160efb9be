from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.serve import residency as res
from tests.serve.small_simulations import lru_sessions

untimed = settings(deadline=None)
AGENT = res.GapLaw(17.0, 129.0)


def test_gap_law_by_hand() -> None:
    assert res.gap_cdf([0.0, 17.0, 129.0, math.inf], AGENT) == pytest.approx([0, 0.5, 0.9, 1])
    rng = np.random.default_rng(0)
    gaps = 17 * np.exp(AGENT.sigma * rng.standard_normal(400_000))
    assert AGENT.mean_s == pytest.approx(gaps.mean(), rel=0.03)
    for horizon in (1.0, 17.0, 300.0):
        assert float(res.mean_min_gap(horizon, AGENT)) == pytest.approx(np.minimum(gaps, horizon).mean(), rel=0.01)
    assert float(res.mean_min_gap(math.inf, AGENT)) == pytest.approx(AGENT.mean_s)
    assert float(res.mean_min_gap(0.0, AGENT)) == 0.0


def test_last_turns_stay_until_evicted() -> None:
    ending = res.GapLaw(17.0, 129.0, end_probability=0.25)
    expected = 0.75 * float(res.mean_min_gap(40.0, AGENT)) + 0.25 * 40.0
    assert float(res.mean_min_gap(40.0, ending)) == pytest.approx(expected)
    assert float(res.gap_cdf(40.0, ending)) == float(res.gap_cdf(40.0, AGENT))
    assert math.isinf(float(res.mean_min_gap(math.inf, ending)))


def test_equal_quantiles_are_a_step() -> None:
    fixed = res.GapLaw(10.0, 10.0)
    assert res.gap_cdf([9.99, 10.01], fixed).tolist() == [0, 1]
    assert res.mean_min_gap([4.0, 10.0, 99.0], fixed) == pytest.approx([4, 10, 10])


@pytest.mark.parametrize(("p50", "p90", "end"), [(0.0, 1.0, 0.0), (2.0, 1.0, 0.0), (1.0, 2.0, 1.5), (1.0, math.nan, 0)])
def test_bad_gap_laws(p50: float, p90: float, end: float) -> None:
    with pytest.raises(ValueError):
        res.GapLaw(p50, p90, end)


@untimed
@given(st.floats(1e-3, 1e4), st.floats(0.01, 100), st.floats(1e6, 1e11), st.floats(0, 0.5), st.floats(1, 3))
def test_residence_solves_its_equation(time: float, rate: float, kv: float, end: float, more: float) -> None:
    gap = res.GapLaw(17.0, 129.0, end)
    room = rate * kv * float(res.mean_min_gap(time, gap))
    got = float(res.residency_s(room, rate, kv, gap))
    if math.isfinite(got):
        assert float(res.mean_min_gap(got, gap)) == pytest.approx(room / rate / kv, rel=1e-9)
    if time < 300:
        assert got == pytest.approx(time, rel=1e-6)
    assert float(res.residency_s(room * more, rate, kv, gap)) >= got * (1 - 1e-9)
    assert float(res.residency_s(room, rate * more, kv, gap)) <= got * (1 + 1e-9)
    assert float(res.residency_s(room, rate, kv * more, gap)) <= got * (1 + 1e-9)


def test_residence_limits() -> None:
    assert res.residency_s([0.0, -5.0], 10.0, 1e9, AGENT).tolist() == [0, 0]
    assert math.isinf(float(res.residency_s(1e13, 10.0, 1e9, AGENT)))  # 59 s · 10 GB/s = 0.6 TB is enough for all
    assert math.isinf(float(res.residency_s(1e9, 0.0, 1e9, AGENT)))
    # fixed gaps: room for half of the idle sessions buys half a gap, and so no hit at all
    fixed = res.GapLaw(10.0, 10.0)
    assert float(res.residency_s(5e9, 1.0, 1e9, fixed)) == pytest.approx(5.0)
    assert float(res.decode_hit_share(5.0, 0.0, fixed)) == 0.0


@pytest.mark.parametrize("room", [100, 300, 900])
def test_che_against_an_lru(room: int) -> None:
    rng = np.random.default_rng(3)
    end, turn_rate = 0.1, 10.0
    gap = res.GapLaw(17.0, 129.0, end)
    hits = lru_sessions(rng, 80_000, turn_rate, end, lambda k: 17 * np.exp(gap.sigma * rng.standard_normal(k)), room)
    # the room holds sessions; those that have just come count too, for no time
    time = res.residency_s(float(room), turn_rate, 1.0, gap)
    assert float(res.decode_hit_share(time, 0.0, gap)) == pytest.approx(hits, abs=0.02)


@untimed
@given(st.floats(0, 1e4), st.floats(0, 1e3), st.floats(0, 100))
def test_hit_share_is_monotone(time: float, lag: float, more: float) -> None:
    here = float(res.decode_hit_share(time, lag, AGENT))
    assert 0 <= here <= 1
    assert float(res.decode_hit_share(time + more, lag, AGENT)) >= here
    assert float(res.decode_hit_share(time, lag + more, AGENT)) <= here


def test_hit_share_by_hand() -> None:
    assert float(res.decode_hit_share(math.inf, 0.0, AGENT)) == 1.0
    assert float(res.decode_hit_share(129.0, 17.0, AGENT)) == pytest.approx(0.45)


def test_parametric_hit_share() -> None:
    assert res.parametric_hit_share([0.0, 2.0, 1e9], 2.0, 0.7, 0.9) == pytest.approx([0, 0.45, 0.9])
    assert float(res.parametric_hit_share(4.0, 2.0)) == pytest.approx(0.75)


def test_memory_under_way_by_hand() -> None:
    assert float(res.staging_bytes(10.0, [0.9, 0.1], [0.2, 3.0], [1e8, 3e9])) == pytest.approx(10 * (0.018e9 + 0.9e9))
    assert float(res.relay_bytes(10.0, [0.0, 0.1], [0.0, 3.5], [1e9, 3e9])) == pytest.approx(1.05e10)
    assert float(res.reservation_bytes(10.0, [1.0], [2.0], [0.5], [3e9])) == pytest.approx(7.5e10)
    # Little by counting: 1,000 transfers in 100 s, of 1 s and 1 GB each, sampled at random moments
    rng = np.random.default_rng(1)
    starts = rng.uniform(-10, 110, 1200)
    moments = rng.uniform(0, 100, 2000)
    held = ((starts[None, :] <= moments[:, None]) & (moments[:, None] < starts[None, :] + 1.0)).sum(axis=1) * 1e9
    assert float(res.staging_bytes(10.0, [1.0], [1.0], [1e9])) == pytest.approx(held.mean(), rel=0.05)
