"""Several workloads' idle sessions in one cache: Che by hand and against an LRU, and the share of each."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.serve.idle_sessions import IdleSessions
from pddplan.serve.residency import GapLaw, gap_cdf, mean_min_gap
from tests.serve.small_simulations import Floats, lru_streams

QUICK, SLOW = GapLaw(17.0, 129.0, 0.1), GapLaw(200.0, 900.0, 0.2)
MIX = IdleSessions((QUICK, SLOW), 3e9, (0.7, 0.3), (0.9, 0.1), None)
ALONE = IdleSessions((QUICK,), 3e9, (1.0,), (1.0,), None)


@pytest.mark.parametrize("residence_s", [5.0, 60.0, 400.0, 4000.0])
def test_che_by_hand(residence_s: float) -> None:
    """sum_k lambda_k E[KV_k] E[min(gap_k, T)] = M, and h_k = P(gap_k <= T)."""
    rate = 20.0
    stays = [float(mean_min_gap(residence_s, gap)) for gap in (QUICK, SLOW)]
    room = rate * 3e9 * (0.7 * stays[0] + 0.3 * stays[1])
    assert MIX.residence_s(room, rate) == pytest.approx(residence_s, rel=1e-4)
    held = [float(gap_cdf(residence_s, gap)) for gap in (QUICK, SLOW)]
    q = 0.9 * held[0] + 0.1 * held[1]
    assert MIX.share_at(residence_s) == pytest.approx(q, rel=1e-12)
    assert MIX.of_each(q) == pytest.approx(held, abs=1e-5)
    assert MIX.idle_bytes(q, rate) == pytest.approx(room, rel=1e-6)


@pytest.mark.parametrize("room", [300, 800])
def test_against_an_lru(room: int) -> None:
    """Sessions of two kinds, one slot each: the quick ones come back before they are evicted, the slow ones often not.
    Their shares of the cache are their turn rates."""
    rng = np.random.default_rng(5)

    def gaps(law: GapLaw, count: int) -> Floats:
        return np.asarray(law.p50_s * np.exp(law.sigma * rng.standard_normal(count)))

    streams = [(120_000, 6.0, 0.1, lambda k: gaps(QUICK, k)), (80_000, 4.0, 0.2, lambda k: gaps(SLOW, k))]
    hits = lru_streams(rng, streams, room)
    one_slot = IdleSessions((QUICK, SLOW), 1.0, (0.6, 0.4), (0.6, 0.4), None)
    residence = one_slot.residence_s(float(room), 10.0)
    assert [float(gap_cdf(residence, gap)) for gap in (QUICK, SLOW)] == pytest.approx(hits, abs=0.02)
    assert hits[0] > hits[1] + 0.2


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_each_share_rises_with_the_mixture_s(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert np.all(MIX.of_each(high) >= MIX.of_each(low) - 1e-12)
    assert float(np.array(MIX.hit_parts) @ MIX.of_each(low)) == pytest.approx(low, abs=1e-12)
    assert ALONE.of_each(low).tolist() == [low]


def test_two_halves_are_one() -> None:
    halves = IdleSessions((QUICK, QUICK), 3e9, (0.5, 0.5), (0.5, 0.5), None)
    for room in (1e10, 1e12, 1e13):
        assert halves.residence_s(room, 10.0) == pytest.approx(ALONE.residence_s(room, 10.0), rel=1e-9)
    for q in (0.1, 0.5, 0.99):
        assert halves.of_each(q) == pytest.approx([q, q])
        assert halves.idle_bytes(q, 10.0) == pytest.approx(ALONE.idle_bytes(q, 10.0), rel=1e-6)


def test_the_idle_room_of_a_share_is_the_least() -> None:
    """The planner's bound: what it asks for never holds more than the share."""
    for q in np.linspace(0.02, 0.98, 25):
        assert MIX.share_at(MIX.residence_s(MIX.idle_bytes(float(q), 10.0), 10.0)) <= q + 2e-5


def test_pinned_shares_are_those_given() -> None:
    pinned = IdleSessions((QUICK, SLOW), 3e9, (0.7, 0.3), (0.9, 0.1), (0.8, 0.4))
    assert pinned.pinned_share == pytest.approx(0.76)
    assert pinned.of_each(0.76) == pytest.approx([0.8, 0.4])
    assert pinned.of_each(0.0).tolist() == [0.0, 0.0]
    assert MIX.pinned_share is None


def test_late_turns_and_fetches_go_by_their_own_gaps() -> None:
    lag = np.array([[1.0, 50.0], [1.0, 50.0]])
    chance = MIX.late(lag, np.array([0, 1]))
    assert chance[0] == pytest.approx(gap_cdf(lag[0], QUICK)) and chance[1] == pytest.approx(gap_cdf(lag[1], SLOW))
    inside, whole = ([float(gap_cdf(t, gap)) for gap in (QUICK, SLOW)] for t in (60.0, 300.0))
    assert MIX.fetched(60.0, 300.0) == pytest.approx([1 - a / b for a, b in zip(inside, whole, strict=True)])
    assert MIX.fetched(math.inf, math.inf).tolist() == [0.0, 0.0]
    assert MIX.fetched(0.0, 0.0).tolist() == [0.0, 0.0]
