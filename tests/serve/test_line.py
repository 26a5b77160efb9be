from __future__ import annotations

import csv
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.serve import line
from tests.reference import reference_dir
from tests.serve.small_simulations import agent_uncached_share, shared_line, shared_line_unequal

untimed = settings(deadline=None)

loads = st.floats(0.01, 0.98)
ratios = st.floats(0.3, 60.0)


def chain(m: float, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """The birth-death chain summed term by term."""
    m = max(m, 1.0)
    terms, n = [1.0], 0
    while n < m or terms[-1] > 1e-16 * max(terms):
        n += 1
        terms.append(terms[-1] * m * rho / min(n, m))
    return np.arange(len(terms)), np.array(terms) / math.fsum(terms)


def erlang_c(servers: int, offered: float) -> float:
    """Textbook: Erlang B by recursion, then C."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


# ---------------------------------------------------------------- slowdown


@untimed
@given(ratios, loads)
def test_slowdown_is_the_mean_of_the_chain(m: float, rho: float) -> None:
    n, pi = chain(m, rho)
    assert float(line.slowdown(m, rho)) == pytest.approx(np.sum(n * pi) / (max(m, 1.0) * rho), rel=1e-9)


@pytest.mark.parametrize("m", [1, 2, 7, 40, 200])
@pytest.mark.parametrize("rho", [0.1, 0.6, 0.95])
def test_slowdown_of_whole_m_is_erlang_c(m: int, rho: float) -> None:
    c = erlang_c(m, m * rho)
    assert float(line.slowdown(m, rho)) == pytest.approx(1 + c / (m * (1 - rho)), rel=1e-10)
    assert float(line.busy_probability(m, rho)) == pytest.approx(c, rel=1e-9)


def test_slowdown_by_hand() -> None:
    assert line.slowdown(1.0, [0.0, 0.5, 0.9]) == pytest.approx([1, 2, 10])
    assert float(line.slowdown(0.4, 0.5)) == 2.0  # the line is the ceiling
    assert np.all(np.isinf(line.slowdown([1, 8, 100], [1.0, 1.2, 3.0])))
    assert float(line.slowdown(1e6, 0.9)) == pytest.approx(1.0, abs=1e-12)
    assert line.slowdown(np.ones((3, 1)), np.full(4, 0.5)).shape == (3, 4)


@untimed
@given(ratios, loads, st.floats(1.0, 1.3), st.floats(1.0, 1.02))
def test_slowdown_is_monotone(m: float, rho: float, wider: float, busier: float) -> None:
    here = float(line.slowdown(m, rho))
    assert here >= 1
    assert float(line.slowdown(m * wider, rho)) <= here * (1 + 1e-12)
    assert float(line.slowdown(m, rho * busier)) >= here * (1 - 1e-12)


def test_slowdown_has_no_step_at_whole_m() -> None:
    for m in (2.0, 5.0, 30.0):
        assert float(line.slowdown(m - 1e-9, 0.8)) == pytest.approx(float(line.slowdown(m, 0.8)), rel=1e-7)


def test_in_flight_is_the_chain() -> None:
    for m, rho in [(0.5, 0.4), (1, 0.7), (10.5, 0.9), (300, 0.95)]:
        n, pi = line.in_flight(m, rho)
        expected = chain(m, rho)[1]
        short = min(len(n), len(expected))
        assert pi.sum() == pytest.approx(1)
        assert pi[:short] == pytest.approx(expected[:short], abs=2e-9)
    assert line.in_flight(3, 0.0)[1].tolist() == [1.0]
    with pytest.raises(ValueError, match="no law"):
        line.in_flight(3, 1.0)


# ---------------------------------------------------------------- spread


@untimed
@given(ratios, loads, st.integers(1, 30))
def test_spread_keeps_the_mean_and_kappa_is_one(m: float, rho: float, points: int) -> None:
    factors, probabilities = line.spread(m, rho, points)
    slow = float(line.slowdown(m, rho))
    assert probabilities.sum() == pytest.approx(1)
    assert np.sum(factors * probabilities) == pytest.approx(slow, rel=1e-9)
    assert np.all(factors >= 1) and np.all(np.diff(factors) >= -1e-9)
    n, pi = chain(m, rho)
    assert np.sum(np.maximum(1, (n + 1) / max(m, 1)) * pi) == pytest.approx(slow, rel=1e-9)  # the identity: kappa = 1


@untimed
@given(ratios, loads, st.floats(1.0, 1.3))
def test_spread_is_monotone(m: float, rho: float, more: float) -> None:
    """At equal traffic: in load, in the line's capacity (m up, rho down), and in the ceiling (m down, b/r down)."""
    here, _ = line.spread(m, rho)
    assert np.all(line.spread(m, min(rho * more, 0.99))[0] >= here * (1 - 1e-9))
    if m >= 1:
        assert np.all(line.spread(m * more, rho / more)[0] <= here * (1 + 1e-9))
    if m / more >= 1:
        assert np.all(line.spread(m / more, rho)[0] / more <= here * (1 + 1e-9))


@pytest.mark.parametrize(("m", "rho"), [(1, 0.7), (4, 0.8), (10.5, 0.9)])
def test_spread_resolves_the_tail(m: float, rho: float) -> None:
    n, pi = chain(m, rho)
    exact = np.maximum(1, (n + 1) / m)
    p99 = exact[np.searchsorted(np.cumsum(pi), 0.99)]
    factors, probabilities = line.spread(m, rho)
    middle = np.cumsum(probabilities) - probabilities / 2
    assert np.interp(0.99, middle, factors) == pytest.approx(p99, rel=0.09)


def test_spread_limits_and_shapes() -> None:
    factors, probabilities = line.spread(np.ones((3, 1)) * 8, np.array([0.2, 0.99, 1.0, 1.5]))
    assert factors.shape == (3, 4, 12) and probabilities.shape == (12,)
    assert np.all(np.isinf(factors[:, 2:])) and np.all(np.isfinite(factors[:, :2]))
    assert line.spread(1e5, 0.9)[0] == pytest.approx(np.ones(12), abs=1e-9)
    assert line.spread(1.0, 0.0)[0] == pytest.approx(np.ones(12), abs=1e-9)


@untimed
@given(ratios, loads, st.floats(1e-6, 1e4), st.floats(1.0, 3.0))
def test_size_keeps_the_mean_and_the_order(m: float, rho: float, size: float, longer: float) -> None:
    factors, probabilities = line.spread(m, rho)
    mean = float(line.slowdown(m, rho))
    own = line.spread_for_size(factors, mean, size, rho)
    longest = line.spread_for_size(factors, mean, size * longer, rho)
    assert np.sum(own * probabilities) == pytest.approx(mean, rel=1e-9)
    assert np.all(own >= 1 - 1e-9)
    assert np.all(size * longer * longest >= size * own * (1 - 1e-9))


def test_averaging() -> None:
    assert line.averaging([0.0, 1e-4, 1e-3]) == pytest.approx([1, 1 - 1e-4 / 3, 1 - 1e-3 / 3], abs=1e-7)
    x = 2.0
    steps = np.linspace(0, x, 4001)
    by_integral = 2 / x**2 * np.trapezoid((x - steps) * np.exp(-steps), steps)
    assert float(line.averaging(x)) == pytest.approx(by_integral, rel=1e-6)
    assert np.all(np.diff(line.averaging(np.geomspace(1e-6, 1e6, 500))) <= 0)


# ---------------------------------------------------------------- oracle


def oracle_rows() -> list[dict[str, float]]:
    with (reference_dir() / "oracles" / "line.csv").open() as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def oracle_quantiles(m: float, rho: float, by_size: bool) -> np.ndarray:
    share = agent_uncached_share((np.arange(20_000) + 0.5) / 20_000)
    seconds = 46.5e3 * 65_536 * share / 125e6
    factors, probabilities = line.spread(m, rho)
    spread = factors[None, :]
    if by_size:
        spread = line.spread_for_size(factors[None, :], line.slowdown(m, rho), (seconds / seconds.mean())[:, None], rho)
    times = (seconds[:, None] * spread).ravel()
    weights = np.broadcast_to(probabilities, (len(seconds), len(probabilities))).ravel()
    order = np.argsort(times)
    cumulative = np.cumsum(weights[order]) / weights.sum()
    return times[order][np.searchsorted(cumulative, [0.5, 0.9, 0.99])]


def test_oracle_mean_slowdown() -> None:
    for row in oracle_rows():
        printed = row["mean_slowdown_exact"]
        slow = float(line.slowdown(row["m"], row["rho"]))
        assert slow == pytest.approx(printed, abs=5.1e-5)  # four decimals are printed
        assert slow == pytest.approx(row["mean_slowdown_simulated"], rel=0.012)


@pytest.mark.parametrize(("by_size", "bar"), [(False, 0.08), (True, 0.06)])
def test_oracle_quantiles(by_size: bool, bar: float) -> None:
    worst = 0.0
    for row in oracle_rows():
        simulated = np.array([row["t_p50_s"], row["t_p90_s"], row["t_p99_s"]])
        worst = max(worst, float(np.max(np.abs(oracle_quantiles(row["m"], row["rho"], by_size) / simulated - 1))))
    assert worst < bar


# ---------------------------------------------------------------- small simulations


@pytest.mark.parametrize(("m", "rho"), [(1.0, 0.6), (2.5, 0.7), (10.5, 0.85)])
def test_mean_given_size_is_linear(m: float, rho: float) -> None:
    """Processor sharing: E[T|b] = (b/r)·s in each class of size, here of very unequal ones."""
    rng = np.random.default_rng(7)
    count = 120_000
    sizes = np.where(rng.random(count) < 0.9, 1.0, 12.0)
    arrivals = np.cumsum(rng.exponential(sizes.mean() / (rho * m), count))
    times = shared_line(arrivals, sizes, capacity=m, ceiling=1.0)[count // 10 :]
    late = sizes[count // 10 :]
    slow = float(line.slowdown(m, rho))
    for size in (1.0, 12.0):
        assert times[late == size].mean() / size == pytest.approx(slow, rel=0.05)


@pytest.mark.parametrize(("capacity", "rho"), [(3.0, 0.7), (8.0, 0.7), (8.0, 0.85)])
def test_unequal_ceilings(capacity: float, rho: float) -> None:
    """Two kinds of flows under max-min: the law with the flow's own ceiling is near, one factor for all is not."""
    rng = np.random.default_rng(3)
    count = 14_000
    ceilings = np.where(rng.random(count) < 0.5, 1.0, 3.0)
    sizes = rng.exponential(1.0, count)
    arrivals = np.cumsum(rng.exponential(1 / (rho * capacity), count))
    times = shared_line_unequal(arrivals, sizes, ceilings, capacity)
    mean = float(line.mean_ceiling_bytes_per_s([0.5, 0.5], [1.0, 1.0], [1.0, 3.0]))
    assert mean == pytest.approx(1.5)
    factors, probabilities = line.spread_unequal(capacity / np.array([1.0, 3.0]), capacity / mean, rho)
    own = factors @ probabilities
    late = np.arange(count) > count // 10
    for index, (ceiling, low, high) in enumerate([(1.0, -0.1, 0.1), (3.0, -0.1, 0.27)]):
        kind = late & (ceilings == ceiling)
        simulated = times[kind].mean() / (sizes[kind].mean() / ceiling)
        assert low <= own[index] / simulated - 1 <= high
    assert float(line.slowdown(capacity / mean, rho)) < 0.75 * simulated  # of the fast flows


@untimed
@given(ratios, loads, st.integers(1, 20))
def test_equal_ceilings_are_a_case_of_unequal_ones(m: float, rho: float, points: int) -> None:
    general, probabilities = line.spread_unequal([m, m * 2, m / 2], m, rho, points)
    assert general[0] == pytest.approx(line.spread(m, rho, points)[0], rel=1e-4)
    assert probabilities.sum() == pytest.approx(1)
    assert np.all(general[1] <= general[0] + 1e-9) and np.all(general[2] >= general[0] - 1e-9)


# ---------------------------------------------------------------- ceilings, fixed delays


def test_flow_ceiling_by_hand() -> None:
    assert float(line.flow_ceiling_bytes_per_s(8, 125e6, 0.008)) == 1e9
    assert float(line.flow_ceiling_bytes_per_s(2, 125e6, 0.1, window_bytes=1e6)) == pytest.approx(2e7)
    # Mathis: 1,460 B / 0.1 s · 1.2247 / 0.01 = 1.788 MB/s
    assert float(line.flow_ceiling_bytes_per_s(1, 125e6, 0.1, loss=1e-4)) == pytest.approx(1.7881e6, rel=1e-4)
    assert float(line.flow_ceiling_bytes_per_s(3, 125e6, 0.0, window_bytes=1e5, loss=1e-3)) == 375e6
    assert float(line.flow_ceiling_bytes_per_s(1, 125e6, 0.1, loss=0.0)) == 125e6


def test_mean_ceiling_weighs_by_bytes() -> None:
    mean = line.mean_ceiling_bytes_per_s([0.9, 0.1], [1.0, 99.0], [1.0, 10.0])
    assert float(mean) == pytest.approx((0.9 + 9.9) / (0.9 + 0.99))
    assert float(line.mean_ceiling_bytes_per_s([0.5, 0.5], [0.0, 0.0], [2.0, 4.0])) == 3.0


def test_mean_ceiling_of_no_flows_is_a_number() -> None:
    # a band of requests without any of one workload: its ceiling has no weight, but must not turn the mean into nan
    none = [0.0, 0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = line.mean_ceiling_bytes_per_s(none, [[5.0, 7.0], none], [[2.0, 4.0], [2.0, 6.0]])
        beside = line.mean_ceiling_bytes_per_s([0.0, 1.0], [0.0, 5.0], [float(alone[0]), 10.0])
    assert alone.tolist() == [3.0, 4.0]
    assert float(beside) == 10.0


def test_fixed_delay_by_hand() -> None:
    # 14.6 KB idle: one doubling; one-way 4 ms + 8 ms
    assert float(line.fixed_delay_s(14_600, 1e9, 0.008)) == pytest.approx(0.012)
    # long transfer: the window has grown to r·RTT when r·RTT/ln 2 is sent
    long = 0.004 + 0.008 * math.log2(1 + 1e9 * 0.008 / math.log(2) / 14_600)
    assert float(line.fixed_delay_s(1e10, 1e9, 0.008)) == pytest.approx(long)
    assert float(line.fixed_delay_s(1e10, 1e9, 0.008, warm=True)) == pytest.approx(0.012)
    assert float(line.fixed_delay_s(1e10, 1e9, 0.0)) == 0.0
    design = 0.004 + 0.008 * math.log2(1 + 1e9 * 0.008 / 14_600)
    assert 0 <= long - design <= 0.53 * 0.008


sizes_bytes = st.floats(1.0, 1e11)
rates = st.floats(1e5, 1e11)


@untimed
@given(sizes_bytes, rates, st.floats(0, 0.3), st.floats(1, 30), st.floats(1, 3), st.booleans(), st.floats(1, 2))
def test_transfer_is_monotone(
    size: float, rate: float, rtt: float, factor: float, more: float, warm: bool, busier: float
) -> None:
    def time(b: float, r: float, f: float) -> float:
        return float(line.transfer_time_s(b, r, f, line.fixed_delay_s(b, r, rtt, warm)))

    here = time(size, rate, factor)
    tolerance = 1e-9 * here
    assert time(size * more, rate, factor) >= here - tolerance
    assert time(size, rate * more, factor) <= here + tolerance
    assert time(size, rate, factor * busier) >= here - tolerance
    assert float(line.fixed_delay_s(size, rate, rtt, True)) <= float(line.fixed_delay_s(size, rate, rtt, False))


def test_break_even() -> None:
    assert float(line.break_even_rate(1e9, 2.0)) == 5e8
    assert float(line.break_even_rate(1e9, 2.0, fixed_delay=2.5)) == math.inf
    assert float(line.break_even_rate(0.0, 2.0)) == 0.0
    rate = float(line.break_even_rate(1e9, 2.0, fixed_delay=0.5, factor=1.5))
    assert float(line.transfer_time_s(1e9, rate, 1.5, 0.5)) == pytest.approx(2.0)
