from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.serve.handover import (
    TOKEN_ID_BYTES,
    ExtendCost,
    extend_limit_tokens,
    extend_load,
    extend_rounds,
    one_shot_pause_s,
    one_shot_share,
    ship_kv_pause_s,
    wait_for_step_s,
)

untimed = settings(deadline=None)


def textbook_rounds(e: int, rtt: float, t0: float, v: float, tau: float) -> tuple[int, int, float]:
    """The rule as written, one request, whole tokens."""
    rounds, extra = 0, 0.0
    while e > 64 and rounds < 8:
        span = rtt + t0 + e / v
        following = math.ceil(round(span / tau, 9))
        if following >= e:
            break
        rounds, extra, e = rounds + 1, extra + span, following
    return rounds, e, extra


# ---------------------------------------------------------------- published micro-benchmark (100 tokens)


def test_micro_benchmark() -> None:
    """IDs: 1.5 KB, mean 305 ms, max 321.4 ms; KV: 4,649 KB in 185 ms and a copy of 24.5 ms."""
    assert 100 * TOKEN_ID_BYTES == 1500
    cost = ExtendCost(t0_s=0.290, tokens_per_s=100 / 0.015)
    assert float(cost.time_s(100)) == pytest.approx(0.305)
    # a running step of 32.8 ms explains mean and maximum: half a step lies between the average and the worst wait
    step = 2 * (0.3214 - 0.305)
    mean = one_shot_pause_s(100, 0.0, cost, step)
    assert float(one_shot_pause_s(100, 0.0, cost, step, wait_share=1.0) - mean) == pytest.approx(0.0164)
    shipped = ship_kv_pause_s(4.649e6, 1e9, 1.0, 0.185 - 4.649e6 / 1e9, copy_s=0.0245)
    assert float(shipped) == pytest.approx(0.2095)
    assert float(shipped) < float(mean)  # "often faster, but jittery"


@pytest.mark.parametrize(("rtt", "v"), [(0.0, 1750.0), (0.008, 2200.0)])
def test_limits_of_extend_decode(rtt: float, v: float) -> None:
    """t0 0.29 s: at 39 ms a token the rounds converge to 8 tokens, at 5 ms they are stuck at 66, above 64."""
    cost = ExtendCost(0.29, v)
    limits = extend_limit_tokens(rtt, cost, [0.039, 0.005])
    assert np.ceil(limits - 1e-9).tolist() == [8, 66]
    slow = extend_rounds([100, 1000, 5000], rtt, cost, 0.039)
    assert np.all(slow.final_tokens <= 64) and np.all(slow.contracts)
    fast = extend_rounds([100, 1000, 5000], rtt, cost, 0.005)
    assert np.all(fast.final_tokens > 64)
    assert float(extend_rounds(5000, rtt, cost, 0.005, max_rounds=30).final_tokens) == 66
    # with the threshold out of the way, the 39 ms rounds go down to the limit
    assert float(extend_rounds(5000, rtt, cost, 0.039, threshold=1).final_tokens) == 8


# ---------------------------------------------------------------- rounds


@untimed
@given(st.integers(0, 5000), st.floats(0, 0.2), st.floats(0.01, 0.5), st.floats(50, 20_000), st.floats(0.005, 0.1))
def test_rounds_follow_the_rule(e: int, rtt: float, t0: float, v: float, tau: float) -> None:
    result = extend_rounds([e], rtt, ExtendCost(t0, v), tau)
    rounds, final, extra = textbook_rounds(e, rtt, t0, v, tau)
    assert int(result.rounds[0]) == rounds
    assert int(result.final_tokens[0]) == final
    assert result.extra_relay_s[0] == pytest.approx(extra)
    assert result.pause_s[0] == pytest.approx(rtt + t0 + final / v)
    assert bool(result.contracts[0]) == (v * tau > 1)
    one_shot = float(one_shot_pause_s(e, rtt, ExtendCost(t0, v)))
    assert result.pause_s[0] <= one_shot + 1e-12
    if e > 64 and v * tau <= 1:
        assert math.isinf(float(result.limit_tokens[0]))
    if result.limit_tokens[0] <= 63 and rounds < 8:
        assert final <= 64  # it reaches the threshold iff the limit is below it, up to rounding


def test_shapes_and_passes() -> None:
    cost = ExtendCost(np.array([[0.01], [0.02]]), 5000.0)
    result = extend_rounds([10.0, 100.0, 1000.0], 0.01, cost, 0.03, step_s=0.02)
    assert result.final_tokens.shape == (2, 3)
    assert result.rounds[0].tolist() == [0, 1, 1]
    # 1,000 tokens: pass 0.21 s, meanwhile ceil(0.22/0.03) = 8; second pass 0.0116 s; wait half a step
    assert result.final_tokens[0, 2] == 8
    assert result.extend_passes_s[0, 2] == pytest.approx(0.21 + 0.0116)
    assert result.pause_s[0, 2] == pytest.approx(0.01 + 0.01 + 0.0116)


def test_one_shot_pause_by_hand() -> None:
    cost = ExtendCost(0.02, 1000.0)
    assert float(one_shot_pause_s(100, 0.03, cost, 0.04)) == pytest.approx(0.03 + 0.02 + 0.12)
    # a gateway beside MD: nothing to go back, and the relay's tokens came late by 15 ms
    beside = one_shot_pause_s(100, 0.03, cost, 0.04, md_to_gateway_s=0.0, rld_to_gateway_s=0.015)
    assert float(beside) == pytest.approx(0.0 + 0.02 + 0.12)
    assert float(wait_for_step_s(0.04, 1.0, chunk_s=0.3)) == 0.3


def test_extend_load() -> None:
    assert float(extend_load(5.0, 0.02, 4)) == pytest.approx(0.025)


# ---------------------------------------------------------------- mode


def simulated_share(load: float, slots: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    steps = 300_000
    jumps, waits = rng.random(steps), rng.exponential(1.0, steps)
    n, one_shot, total, inside = int(load * slots), False, 0.0, 0.0
    for i in range(steps):
        speed = load * slots + n
        time = waits[i] / speed
        total += time
        inside += time * one_shot
        n += 1 if jumps[i] < load * slots / speed else -1
        one_shot = n / slots > 0.8 or (one_shot and n / slots >= 0.6)
    return inside / total


@pytest.mark.parametrize(("load", "slots"), [(0.7, 20), (0.55, 8), (0.75, 64)])
def test_one_shot_share_against_simulation(load: float, slots: int) -> None:
    assert float(one_shot_share(load, slots)) == pytest.approx(simulated_share(load, slots, 2), abs=0.03)


@untimed
@given(st.floats(0, 1.5), st.floats(0, 0.1), st.integers(1, 300))
def test_one_shot_share_rises_with_load(load: float, more: float, slots: int) -> None:
    here, there = one_shot_share([load, load + more], slots)
    assert 0 <= here <= there + 1e-12 <= 1 + 1e-9


def test_one_shot_share_limits() -> None:
    assert float(one_shot_share(0.0)) == 0.0
    assert float(one_shot_share(0.2, 200)) < 1e-9
    assert float(one_shot_share(1.5, 200)) > 1 - 1e-9
    # without hysteresis it is the Poisson probability of a load above the threshold
    poisson = sum(math.exp(-14) * 14**n / math.factorial(n) for n in range(17))
    assert float(one_shot_share(0.7, 20, 0.8, 0.8 + 0.0)) <= 1 - poisson + 0.08
    assert float(one_shot_share(0.7, 20, 0.8, 0.8)) >= 1 - poisson
    with pytest.raises(ValueError, match="hysteresis"):
        one_shot_share(0.5, 10, 0.5, 0.6)
