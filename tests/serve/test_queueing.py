"""Waiting laws against textbook queues, a small simulation, and the simulated queues of the reference data."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from pddplan.errors import Excuse
from pddplan.serve.deterministic_service import queue_tail, solve_deterministic
from pddplan.serve.phase_type import exponential, fit_gaps, fit_hyperexponential, fit_phases, solve_queue
from pddplan.serve.queueing import (
    WaitingLaw,
    _rescaled,
    _unit_service,
    erlang_c,
    mean_wait_s,
    queue_moments,
    waiting_law,
)
from tests.reference import reference_dir


def law(rate: float, servers: int, moments: tuple[float, float, float], burstiness: float = 1.0) -> WaitingLaw:
    result = waiting_law(rate, servers, moments, burstiness)
    assert isinstance(result, WaitingLaw)
    return result


def mean_from_survival(w: WaitingLaw) -> float:
    t = np.concatenate([[0.0], np.geomspace(1e-6, 200.0 / w.tail_rate_per_s, 20000)])
    return float(trapezoid(w.survival(t), t))


# ---------------------------------------------------------------- textbook


def test_erlang_c_by_its_sum() -> None:
    for servers, load in ((1, 0.5), (2, 1.0), (10, 8.0), (100, 90.0)):
        term, total = 1.0, 1.0
        for k in range(1, servers):
            term *= load / k
            total += term
        last = term * load / servers / (1 - load / servers)
        assert float(erlang_c(servers, load)) == pytest.approx(last / (total + last), rel=1e-10)
    assert float(erlang_c(2, 1.0)) == pytest.approx(1 / 3)
    assert float(erlang_c(10, 8.0)) == pytest.approx(0.409, abs=5e-4)  # tables
    assert list(erlang_c([3, 3, 3], [0.0, 3.0, 4.0])) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("servers", [1, 3, 12, 40, 90])
@pytest.mark.parametrize("rho", [0.05, 0.6, 0.97])
def test_exponential_service_is_erlang_c(servers: int, rho: float) -> None:
    w = law(rho * servers / 2.0, servers, (2.0, 8.0, 48.0))
    wait = float(erlang_c(servers, rho * servers))
    if wait < 1e-12:
        assert w.p_wait < 1e-11
        return
    assert w.p_wait == pytest.approx(wait, rel=1e-6)
    rate = servers / 2.0 * (1 - rho)
    assert w.mean_s == pytest.approx(wait / rate, rel=1e-6)
    t = np.linspace(0.0, 12.0 / rate, 200)
    assert w.survival(t) == pytest.approx(wait * np.exp(-rate * t), rel=2e-4)


@pytest.mark.parametrize("scv", [0.0, 0.2, 0.49, 0.5, 0.8, 1.0, 1.5, 3.4, 27.0, 500.0])
@pytest.mark.parametrize("rho", [0.01, 0.5, 0.9, 0.999])
def test_one_server_has_the_mean_of_pollaczek_and_khinchine(scv: float, rho: float) -> None:
    m1 = 0.4
    m2 = m1**2 * (1 + scv)
    w = law(rho / m1, 1, (m1, m2, 2.2 * m2**2 / m1))
    assert w.mean_s == pytest.approx(rho / m1 * m2 / (2 * (1 - rho)), rel=1e-6)
    assert w.p_wait == pytest.approx(rho, rel=1e-6)
    assert mean_from_survival(w) == pytest.approx(w.mean_s, rel=3e-3)


def test_one_server_is_the_geometric_sum_of_excesses() -> None:
    """M/H2/1: P(W > t) by solving the level-crossing equation on a grid, independently of phases."""
    m1, m2, m3 = 1.0, 4.4, 45.0
    rho, step, n = 0.7, 0.01, 6000
    service = fit_hyperexponential(m1, m2, m3)
    t = np.arange(n) * step
    tail = sum(p * np.exp(-r * t) for p, r in zip(service.initial, service.rates, strict=True))
    f = np.empty(n)
    for i in range(n):  # f(x) = rho_0 B(x) + lambda int f(y) B(x - y) dy, trapezoid
        past = (f[:i] * tail[i:0:-1]).sum() - 0.5 * f[0] * tail[i] if i else 0.0
        f[i] = (rho * (1 - rho) * tail[i] + rho * step * past) / (1 - 0.5 * step * rho * (i > 0))
    survival = rho - np.concatenate([[0.0], np.cumsum(0.5 * (f[1:] + f[:-1]) * step)])
    w = law(rho, 1, (m1, m2, m3))
    assert w.survival(t[:3000:50]) == pytest.approx(survival[:3000:50], abs=1e-3)


@pytest.mark.parametrize(
    ("servers", "rho", "mean"),
    [(1, 0.5, 0.5), (1, 0.9, 4.5), (2, 0.5, 0.17672), (5, 0.8, 0.28906), (10, 0.9, 0.34458)],
)
def test_constant_service_mean(servers: int, rho: float, mean: float) -> None:
    """c = 1 by Pollaczek-Khinchine; others by Crommelin's sum, computed here."""
    from scipy.stats import poisson

    load = servers * rho
    i = np.arange(1, 4000)  # E[W]/D = sum_i [P(Poisson(i a) >= i c) - (c/a) P(Poisson(i a) >= i c + 1)]
    late = poisson.sf(i * servers - 1, i * load) - servers / load * poisson.sf(i * servers, i * load)
    crommelin = float(late.sum())
    assert solve_deterministic(servers, rho).mean == pytest.approx(crommelin, rel=1e-6)
    assert crommelin == pytest.approx(mean, rel=2e-4)


@pytest.mark.parametrize("servers", [1, 8, 64])
@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_the_mean_alone_is_that_of_the_law(servers: int, burstiness: float) -> None:
    for rho, scv in product((1e-3, 0.5, 0.95, 0.99999), (0.0, 0.2, 0.7, 1.0, 9.0)):
        moments = (2.0, 4.0 * (1.0 + scv), 16.0 * (1.0 + scv) ** 2)
        whole = law(rho * servers / 2.0, servers, moments, burstiness)
        mean = mean_wait_s(rho * servers / 2.0, servers, moments, burstiness)
        assert mean == pytest.approx(whole.mean_s, rel=1e-9)
    overload = Excuse("utilization", 1.0, 1.0)
    assert mean_wait_s(1.0, servers, (float(servers), 2.0 * servers**2, 6.0 * servers**3)) == overload


def test_constant_service_distribution_by_iteration() -> None:
    """P(Q > m) against the recursion Q' = max(Q + Poisson - c, 0) iterated to its limit."""
    from scipy.stats import poisson

    servers, rho = 3, 0.8
    arrivals = poisson.pmf(np.arange(60), servers * rho)
    p = np.zeros(200)
    p[0] = 1.0
    for _ in range(3000):
        moved = np.convolve(p, arrivals)
        p = np.concatenate([[moved[: servers + 1].sum()], moved[servers + 1 : servers + 200]])
        p = np.pad(p, (0, 200 - len(p)))
    tail = 1 - np.cumsum(p)
    assert queue_tail(servers, rho)[:40] == pytest.approx(tail[:40], rel=1e-6, abs=1e-9)


def test_limit_of_the_mixture_is_exponential() -> None:
    at_one = law(3.2, 4, (1.0, 2.0, 6.0))
    above = law(3.2, 4, (1.0, 2.001, 6.01))
    below = law(3.2, 4, (1.0, 1.999, 6.0))
    t = np.linspace(0.0, 8.0, 50)
    assert above.survival(t) == pytest.approx(at_one.survival(t), rel=5e-3)
    assert below.survival(t) == pytest.approx(at_one.survival(t), rel=5e-3)


# ---------------------------------------------------------------- fits


@given(st.floats(1.02, 200.0), st.floats(1.52, 50.0))
def test_mixture_keeps_three_moments(scv: float, skew: float) -> None:
    m1, m2 = 0.7, 0.49 * (1 + scv)
    fit = fit_hyperexponential(m1, m2, skew * m2 * m2 / m1)
    for k, (factorial, value) in enumerate(((1, m1), (2, m2), (6, skew * m2 * m2 / m1)), start=1):
        raw = sum(p * factorial / r**k for p, r in zip(fit.initial, fit.rates, strict=True))
        assert raw == pytest.approx(value, rel=1e-6)


@given(st.floats(0.5, 20.0))
def test_gaps_keep_rate_and_burstiness(burstiness: float) -> None:
    initial, generator = fit_gaps(3.0, burstiness)
    inverse = np.linalg.inv(-generator)
    mean = float(initial @ inverse.sum(axis=1))
    second = 2 * float(initial @ inverse @ inverse.sum(axis=1))
    assert mean == pytest.approx(1 / 3, rel=1e-6)
    assert second / mean**2 - 1 == pytest.approx(burstiness, rel=1e-5)


@pytest.mark.parametrize("scv", [0.1, 0.25, 0.6, 1.0, 3.0])
def test_phases_keep_two_moments(scv: float) -> None:
    initial, generator = fit_phases(2.0, 4.0 * (1 + scv), 100.0 * (1 + scv) ** 2)
    inverse = np.linalg.inv(-generator)
    assert float(initial @ inverse.sum(axis=1)) == pytest.approx(2.0)
    assert 2 * float(initial @ inverse @ inverse.sum(axis=1)) == pytest.approx(4.0 * (1 + scv), rel=1e-6)


# ---------------------------------------------------------------- simulation


def simulated_waits(servers: int, gaps: np.ndarray, services: np.ndarray) -> np.ndarray:
    """First come, first served, by the workload vector of Kiefer and Wolfowitz."""
    import heapq

    free = [0.0] * servers
    waits, now = np.empty(len(gaps)), 0.0
    for i, (gap, service) in enumerate(zip(gaps.tolist(), services.tolist(), strict=True)):
        now += gap
        start = max(free[0], now)
        waits[i] = start - now
        heapq.heapreplace(free, start + service)
    return waits[len(gaps) // 10 :]


@pytest.mark.parametrize("burstiness", [0.5, 4.0])
def test_bursty_arrivals_against_simulation(burstiness: float) -> None:
    rng = np.random.default_rng(7)
    n, servers, rho = 400_000, 3, 0.8
    service = fit_hyperexponential(1.0, 4.0, 40.0)
    sizes = rng.exponential(1.0, n) / np.where(rng.random(n) < service.initial[0], *service.rates)
    gaps = rng.gamma(1 / burstiness, burstiness, n) / (servers * rho)
    waits = simulated_waits(servers, gaps, sizes)
    w = law(servers * rho, servers, (1.0, 4.0, 40.0), burstiness)
    assert w.mean_s == pytest.approx(waits.mean(), rel=0.08)
    assert w.p_wait == pytest.approx((waits > 0).mean(), abs=0.02)
    for t in (1.0, 5.0, 15.0):
        assert float(w.survival(t)) == pytest.approx((waits > t).mean(), abs=0.02)
    plain = law(servers * rho, servers, (1.0, 4.0, 40.0))
    assert (w.mean_s > 1.2 * plain.mean_s) == (burstiness > 1)


# ---------------------------------------------------------------- shape


MOMENTS = [
    (1.0, 1.0, 1.0),
    (1.0, 1.3, 2.0),
    (1.0, 1.7, 4.0),
    (1.0, 2.0, 6.0),
    (1.0, 4.4, 35.0),
    (1.0, 28.0, 1700.0),
    (1.0, 28.0, 1e12),
    (1.0, 1e6, 1e16),
]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(MOMENTS),
    st.integers(1, 60),
    st.floats(0.01, 0.999),
    st.sampled_from([0.0, 0.5, 1.0, 1.5, 5.0]),
)
def test_is_a_distribution(moments: tuple[float, float, float], servers: int, rho: float, burstiness: float) -> None:
    w = law(rho * servers, servers, moments, burstiness)
    t = np.concatenate([[-1.0, 0.0], np.geomspace(1e-6, 1e6, 200)])
    s = w.survival(t)
    assert np.all(np.isfinite(s)) and np.all((s >= 0) & (s <= 1)) and np.all(np.diff(s) <= 1e-15)
    assert s[0] == 1.0
    assert s[1] == pytest.approx(w.p_wait, rel=1e-9, abs=1e-300)
    assert w.cdf(t) == pytest.approx(1 - s)
    assert 0 <= w.mean_s < np.inf


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MOMENTS[:6]), st.integers(1, 50), st.floats(0.05, 0.98), st.integers(1, 8))
def test_more_servers_never_wait_longer(
    moments: tuple[float, float, float], servers: int, rho: float, more: int
) -> None:
    t = np.concatenate([[0.0], np.geomspace(1e-4, 1e3, 60)])
    few, many = (law(rho * servers, c, moments).survival(t) for c in (servers, servers + more))
    assert np.all(many <= few * (1 + 1e-6) + 1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(MOMENTS[:6]),
    st.integers(1, 50),
    st.floats(0.05, 0.98),
    st.floats(0.5, 0.99),
    st.sampled_from([1.0, 3.0]),
)
def test_less_traffic_never_waits_longer(
    moments: tuple[float, float, float], servers: int, rho: float, factor: float, burstiness: float
) -> None:
    t = np.concatenate([[0.0], np.geomspace(1e-4, 1e3, 60)])
    high, low = (law(x * servers, servers, moments, burstiness).survival(t) for x in (rho, factor * rho))
    assert np.all(low <= high * (1 + 1e-6) + 1e-12)


def test_overload_is_an_excuse_and_nonsense_an_error() -> None:
    assert waiting_law(4.0, 4, (1.0, 2.0, 6.0)) == Excuse("utilization", 1.0, 1.0)
    assert law(0.0, 4, (1.0, 2.0, 6.0)).p_wait == 0.0
    for bad in ((1.0, 0.5, 1.0), (float("nan"), 1.0, 1.0), (-1.0, 1.0, 1.0)):
        with pytest.raises(ValueError):
            waiting_law(0.1, 1, bad)


@pytest.mark.parametrize("scv", [0.6, 3.4, 27.0])
@pytest.mark.parametrize("rho", [0.9, 0.95])
def test_many_servers_by_rescaling(scv: float, rho: float) -> None:
    """Above 40 servers the law is rescaled: against the exact chain of 64."""
    exact = solve_queue(64, _unit_service(scv, 2.0), *fit_gaps(64 * rho, 1.0))
    scaled = _rescaled(64, rho, scv, 2.0, 1.0)
    assert scaled.p_wait == pytest.approx(exact.p_wait, rel=0.01)
    assert scaled.mean == pytest.approx(exact.mean, rel=0.01)


# ---------------------------------------------------------------- the simulated queues of the reference data


@dataclass(frozen=True)
class Service:
    """Service time as equal slices of its quantile function."""

    times: np.ndarray
    weights: np.ndarray


def service_of(tokens: np.ndarray) -> np.ndarray:
    return 0.03 + tokens / 20000 * (1 + 0.5 * tokens / 65536)


def services() -> dict[str, Service]:
    from scipy.stats import norm

    u = (np.arange(20000) + 0.5) / 20000
    agent = [(0.75, 0.005, 0.05), (0.21, 0.05, 0.35), (0.04, 0.5, 1.0)]
    z = norm.ppf(u)
    parts = {
        "agent": [(w, 65536 * (a + (b - a) * u)) for w, a, b in agent],
        "claude_code_like": [
            (0.034, 80000 * np.exp(0.5 * z)),
            (0.966, np.minimum(20000, 727 * np.exp(1.3 * z))),
        ],
    }
    return {
        name: Service(
            np.concatenate([service_of(m) for _, m in mixture]),
            np.concatenate([np.full(len(m), w / len(m)) for w, m in mixture]),
        )
        for name, mixture in parts.items()
    }


def coarse(service: Service, bins: int = 3000) -> Service:
    edges = np.geomspace(service.times.min() * 0.9999, service.times.max() * 1.0001, bins)
    place = np.digitize(service.times, edges)
    mass = np.bincount(place, service.weights, bins + 1)
    work = np.bincount(place, service.weights * service.times, bins + 1)
    return Service(work[mass > 0] / mass[mass > 0], mass[mass > 0])


def ttft_quantile(w: WaitingLaw, service: Service, q: float) -> float:
    low, high = 0.0, 1e4
    for _ in range(50):
        middle = 0.5 * (low + high)
        above = float(service.weights @ w.survival(middle - service.times)) > 1 - q
        low, high = (middle, high) if above else (low, middle)
    return 0.5 * (low + high)


BARS = {  # median of p50/p90/p99 [%], worst [%]
    "agent": ((3.0, 5.0, 5.0), 10.0),
    "claude_code_like": ((5.0, 8.0, 5.0), 35.0),
}


@pytest.mark.parametrize("traffic", sorted(BARS))
def test_simulated_queues(traffic: str) -> None:
    rows = list(csv.DictReader((reference_dir() / "oracles" / "waiting.csv").open()))
    service = services()[traffic]
    moments, shape = queue_moments(service.times, service.weights), coarse(service)
    medians, worst = BARS[traffic]
    errors: list[list[float]] = []
    counted: list[list[float]] = []
    means = []
    print(f"\n{traffic}: error of TTFT p50 p90 p99 and of the mean wait [%] (half-widths [%])")
    for row in rows:
        if row["traffic"] != traffic or float(row["p_wait"]) < 0.1:
            continue
        servers, rho = int(row["c"]), float(row["rho"])
        w = law(rho * servers / moments[0], servers, moments)
        reference = [float(row[f"ttft_p{p}_s"]) for p in (50, 90, 99)]
        widths = [100 * float(row[f"ttft_p{p}_halfwidth"]) / r for p, r in zip((50, 90, 99), reference, strict=True)]
        error = [100 * (ttft_quantile(w, shape, q) / r - 1) for q, r in zip((0.5, 0.9, 0.99), reference, strict=True)]
        means.append(100 * (w.mean_s / float(row["mean_wait_s"]) - 1))
        errors.append([abs(e) if h <= m / 3 else np.nan for e, h, m in zip(error, widths, medians, strict=True)])
        counted.append([abs(e) if h <= worst / 3 else np.nan for e, h in zip(error, widths, strict=True)])
        numbers = " ".join(f"{e:6.1f} ({h:4.1f})" for e, h in zip(error, widths, strict=True))
        waits = f"mean {means[-1]:6.1f}  P(wait) {w.p_wait:.3f} {row['p_wait']}"
        print(f"  c {servers:3d} rho {rho:4.2f}  {numbers}  {waits}")
    median, most = np.nanmedian(errors, axis=0), np.nanmax(counted, axis=0)
    print(f"  medians {median.round(2)} of {np.isfinite(errors).sum(axis=0)}, worst {most.round(1)} of {len(means)}")
    assert len(means) >= 25
    assert np.all(median <= medians)
    assert np.all(most <= worst)
    assert np.max(np.abs(means)) <= 15.0


def test_raw_third_moment_is_worse_for_queueing() -> None:
    """Why queue_moments exists: the excess of the fit with the raw third moment is farther from the true one."""
    service = services()["claude_code_like"]
    w = service.weights / service.weights.sum()
    raw = tuple(float(w @ service.times**k) for k in (1, 2, 3))
    chosen = queue_moments(service.times, service.weights)
    assert chosen[:2] == pytest.approx(raw[:2])
    assert chosen[2] < 0.9 * raw[2]
    t = np.linspace(0.0, 60.0, 400)
    true = np.array([float(w @ np.maximum(service.times - x, 0.0)) for x in t]) / raw[0]

    def distance(m: tuple[float, float, float]) -> float:
        fit = fit_hyperexponential(*m)
        mine = sum(p / r * np.exp(-r * t) for p, r in zip(fit.initial, fit.rates, strict=True)) / m[0]
        return float(np.abs(mine - true).mean())

    assert distance(chosen) < 0.7 * distance((raw[0], raw[1], raw[2]))


def test_the_exponential_of_a_generator_is_scipys() -> None:
    from scipy.linalg import expm

    random = np.random.default_rng(1)
    for _ in range(200):
        size = int(random.integers(1, 6))
        matrix = random.exponential(size=(size, size)) * 10 ** random.uniform(-4.0, 2.0)
        matrix[np.diag_indices(size)] *= -random.uniform(0.0, 3.0, size)
        expected = expm(matrix)
        assert np.abs(exponential(matrix) - expected).max() <= 1e-9 * np.abs(expected).max()
