"""Queues of the prefill pool by routing mode: limits, monotonicity, and simulated home servers with overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from pddplan.errors import Excuse
from pddplan.serve.prefill_queue import _pooled_wait, default_threshold, prefill_waiting
from pddplan.serve.queueing import WaitingLaw, _unit_service, erlang_c, waiting_law

Moments = tuple[float, float, float]

# Own event simulation of the router of affine_waiting with its default threshold, 600,000 requests each, mean hit 1 s.
# c_s^2, m1 m3/m2^2, E[S_miss]/E[S], c, rho, overflow share, P(wait), E[W], W p50, p90, p99
SIMULATED = [
    (1, 1.5, 1, 2, 0.7, 0.1575, 0.5436, 1.3693, 0.2059, 4.2642, 10.2145),
    (1, 1.5, 1, 4, 0.7, 0.3407, 0.3599, 0.6797, 0.0000, 2.4060, 6.8881),
    (1, 1.5, 1, 10, 0.7, 0.5570, 0.1446, 0.2011, 0.0000, 0.5061, 3.7352),
    (1, 1.5, 1.3, 2, 0.9, 0.0415, 0.8707, 6.4027, 3.9312, 15.9054, 35.4384),
    (1, 1.5, 1.3, 4, 0.9, 0.0916, 0.8340, 4.3998, 2.5240, 11.2434, 25.1840),
    (1, 1.5, 1.3, 10, 0.9, 0.1608, 0.7838, 2.7760, 1.4428, 7.3630, 17.2179),
    (1, 1.5, 2, 2, 0.7, 0.0102, 0.6978, 2.1131, 1.0911, 5.8067, 11.9747),
    (1, 1.5, 2, 4, 0.7, 0.0205, 0.6949, 1.9083, 1.0506, 5.2608, 9.6595),
    (1, 1.5, 2, 10, 0.7, 0.0300, 0.6922, 1.7439, 1.0154, 4.8730, 6.9297),
    (3.4, 1.95, 1, 2, 0.9, 0.0706, 0.8287, 12.9317, 7.0268, 34.6300, 74.6223),
    (3.4, 1.95, 1, 4, 0.9, 0.1792, 0.7207, 7.4200, 3.0164, 21.0767, 49.4514),
    (3.4, 1.95, 1, 10, 0.9, 0.3785, 0.5212, 3.1427, 0.1143, 10.2855, 26.9022),
    (3.4, 1.95, 1.3, 2, 0.7, 0.0656, 0.6473, 3.4960, 0.9108, 10.6941, 26.3267),
    (3.4, 1.95, 1.3, 4, 0.7, 0.1329, 0.5944, 2.2030, 0.4120, 6.8153, 19.2488),
    (3.4, 1.95, 1.3, 10, 0.7, 0.2035, 0.5390, 1.1815, 0.1299, 3.0532, 11.8550),
    (3.4, 1.95, 2, 2, 0.9, 0.0166, 0.8980, 16.2641, 10.4944, 40.9478, 82.2834),
    (3.4, 1.95, 2, 4, 0.9, 0.0346, 0.8963, 13.1286, 9.0050, 31.9726, 66.1748),
    (3.4, 1.95, 2, 10, 0.9, 0.0570, 0.8944, 10.3130, 7.7046, 23.6550, 51.8951),
    (27, 2.1, 1, 2, 0.7, 0.1508, 0.5583, 20.4987, 0.4647, 67.0509, 166.4260),
    (27, 2.1, 1, 4, 0.7, 0.3309, 0.3780, 10.2505, 0.0000, 37.4800, 111.9620),
    (27, 2.1, 1, 10, 0.7, 0.5478, 0.1612, 3.2239, 0.0000, 5.7929, 65.9732),
    (27, 2.1, 1.3, 2, 0.9, 0.0379, 0.8850, 102.9370, 61.6121, 264.1740, 511.6000),
    (27, 2.1, 1.3, 4, 0.9, 0.0852, 0.8509, 69.0919, 36.7115, 185.1420, 399.1170),
    (27, 2.1, 1.3, 10, 0.9, 0.1503, 0.8037, 41.4468, 17.8988, 115.8910, 269.9480),
    (27, 2.1, 2, 2, 0.7, 0.0160, 0.7032, 30.1626, 11.3967, 85.0225, 195.7250),
    (27, 2.1, 2, 4, 0.7, 0.0319, 0.7015, 26.3298, 10.4871, 74.5725, 160.5570),
    (27, 2.1, 2, 10, 0.7, 0.0500, 0.6952, 21.5985, 8.8810, 63.7378, 104.8790),
]


def law(mode: str, rate: float, servers: int, moments: Moments, **keys: object) -> WaitingLaw:
    result = prefill_waiting(mode, rate, servers, moments, **keys)  # type: ignore[arg-type]
    assert isinstance(result, WaitingLaw)
    return result


def scaled(moments: Moments, ratio: float) -> Moments:
    return moments[0] * ratio, moments[1] * ratio**2, moments[2] * ratio**3


def mixture(scv: float, skew: float) -> Moments:
    fit = _unit_service(scv, skew)
    phases = list(zip(fit.initial, fit.rates, strict=True))
    m1, m2, m3 = (float(sum(p * f / r**k for p, r in phases)) for k, f in ((1, 1), (2, 2), (3, 6)))
    return m1, m2, m3


def quantile(w: WaitingLaw, q: float) -> float:
    low, high = 0.0, 1e5
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(w.survival(middle)) > 1 - q else (low, middle)
    return high


MOMENTS: list[Moments] = [(1.0, 1.0, 1.0), (1.0, 1.3, 2.0), (1.0, 2.0, 6.0), (1.0, 4.4, 35.0), (1.0, 28.0, 1700.0)]
GRID = np.concatenate([[0.0], np.geomspace(1e-3, 300.0, 60)])


def test_shared_and_sticky() -> None:
    moments = (1.0, 4.4, 35.0)
    assert law("shared", 7.0, 10, moments) == waiting_law(7.0, 10, moments)
    sticky = law("sticky", 7.0, 10, moments)
    assert sticky.mean_s == pytest.approx(0.7 * 4.4 / (2 * 0.3), rel=1e-6)  # Pollaczek-Khinchine
    assert sticky.overflow_share == 0.0
    assert quantile(sticky, 0.9) > 4 * quantile(law("shared", 7.0, 10, moments), 0.9)
    bursty = law("sticky", 7.0, 10, moments, burstiness=5.0)
    assert sticky.mean_s < bursty.mean_s < law("sticky", 0.7, 1, moments, burstiness=5.0).mean_s


@pytest.mark.parametrize("mode", ["shared", "sticky", "affine"])
def test_overload_is_an_excuse(mode: str) -> None:
    assert prefill_waiting(mode, 4.0, 4, (1.0, 2.0, 6.0)) == Excuse("utilization", 1.0, 1.0)  # type: ignore[arg-type]


def test_one_server_has_one_queue() -> None:
    for mode in ("sticky", "affine"):
        assert law(mode, 0.7, 1, (1.0, 4.4, 35.0)) == law("shared", 0.7, 1, (1.0, 4.4, 35.0))


@pytest.mark.parametrize("moments", MOMENTS)
def test_patient_router_is_sticky(moments: Moments) -> None:
    sticky = law("sticky", 2.8, 4, moments)
    affine = law("affine", 2.8, 4, moments, overflow_wait_s=5000.0, miss_moments=scaled(moments, 3.0))
    assert affine.overflow_share < 1e-6
    assert affine.survival(GRID) == pytest.approx(sticky.survival(GRID), rel=5e-3, abs=1e-6)


def test_many_servers_overflow_by_the_truncated_queue() -> None:
    """Some server idles for sure, misses cost what hits cost: M/M/1 whose V <= d is that of the free queue, by hand."""
    rho, d = 0.5, 2.0
    below = 1 - rho * np.exp(-(1 - rho) * d)
    idle_and_overflow = np.linalg.solve(
        # P0 = 1 - rho (miss_load = rho); 1 - q = P0 A + rho q B, B = int_0^d e^{-x} A(d - x) dx
        np.array([[1.0, 0.0], [below / (1 - rho), 1.0 + rho * _b(rho, d)]]),
        np.array([1 - rho, 1.0]),
    )
    w = law("affine", rho * 60, 60, (1.0, 2.0, 6.0), overflow_wait_s=d)
    assert w.overflow_share == pytest.approx(float(idle_and_overflow[1]), rel=1e-3)


def _b(rho: float, d: float) -> float:
    x = np.linspace(0.0, d, 20001)
    a = (1 - rho * np.exp(-(1 - rho) * (d - x))) / (1 - rho)
    return float(trapezoid(np.exp(-x) * a, x))


def test_pooled_wait_is_erlang_c() -> None:
    for c, load in ((1, 0.3), (4, 3.1), (100, 90.0)):
        assert _pooled_wait(c, load) == pytest.approx(float(erlang_c(c, load)), rel=1e-9)


def test_default_threshold() -> None:
    hit = (1.0, 2.0, 6.0)
    assert default_threshold(hit, hit) == 0.0
    assert default_threshold(hit, scaled(hit, 2.0)) == pytest.approx(1.0 + 6.0)


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("ratio", [1.0, 1.2, 2.0, 8.0])
def test_affine_lies_between(moments: Moments, ratio: float) -> None:
    """In the mean time to the first token, lost hits included."""
    for servers in (2, 4, 12):
        for rho in (0.3, 0.7, 0.95):
            sticky, shared = (law(m, rho * servers, servers, moments) for m in ("sticky", "shared"))
            affine = law("affine", rho * servers, servers, moments, miss_moments=scaled(moments, ratio))
            mean = affine.mean_s + affine.overflow_share * (ratio - 1.0)
            assert shared.mean_s * 0.99 <= mean <= sticky.mean_s * 1.03


# ---------------------------------------------------------------- monotone


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["shared", "sticky", "affine"]),
    st.sampled_from(MOMENTS),
    st.integers(1, 24),
    st.floats(0.05, 0.97),
    st.integers(1, 6),
    st.floats(0.5, 0.98),
    st.sampled_from([1.0, 1.3, 4.0]),
    st.sampled_from([None, 0.5, 5.0]),
)
def test_monotone(
    mode: str, moments: Moments, servers: int, rho: float, more: int, less: float, ratio: float, d: float | None
) -> None:
    assume(servers > 1 or d is None)  # with a short d, the second server costs hits that a lone one never loses
    keys = {"overflow_wait_s": d, "miss_moments": scaled(moments, ratio)}
    base = law(mode, rho * servers, servers, moments, **keys).survival(GRID)
    roomy = law(mode, rho * servers, servers + more, moments, **keys).survival(GRID)
    quiet = law(mode, less * rho * servers, servers, moments, **keys).survival(GRID)
    assert np.all(roomy <= base + 1e-3)
    assert np.all(quiet <= base + 1e-3)


# ---------------------------------------------------------------- simulation


def simulate(
    rng: np.random.Generator, servers: int, rate: float, d: float, hits: np.ndarray, misses: np.ndarray
) -> tuple[np.ndarray, float]:
    """Waits and overflow share: home servers at random, first come first served, overflow to an idle one above d."""
    n = len(hits)
    times = np.cumsum(rng.exponential(1 / rate, n)).tolist()
    homes = rng.integers(servers, size=n).tolist()
    free = [0.0] * servers
    waits, left = np.empty(n), 0
    for i, (now, home, hit, miss) in enumerate(zip(times, homes, hits.tolist(), misses.tolist(), strict=True)):
        work = free[home] - now
        if work > d:
            idlest = min(range(servers), key=free.__getitem__)
            if free[idlest] <= now:
                free[idlest] = now + miss
                waits[i] = 0.0
                left += 1
                continue
        waits[i] = max(work, 0.0)
        free[home] = max(free[home], now) + hit
    return waits[n // 10 :], left / n


@pytest.mark.parametrize(("servers", "rho", "d", "ratio"), [(4, 0.7, 2.0, 1.5), (10, 0.6, 3.0, 1.5)])
def test_affine_against_simulation(servers: int, rho: float, d: float, ratio: float) -> None:
    rng = np.random.default_rng(11)
    n = 200_000
    waits, left = simulate(rng, servers, rho * servers, d, rng.exponential(1.0, n), rng.exponential(ratio, n))
    moments = (1.0, 2.0, 6.0)
    w = law("affine", rho * servers, servers, moments, overflow_wait_s=d, miss_moments=scaled(moments, ratio))
    assert w.overflow_share == pytest.approx(left, abs=0.03)
    assert w.mean_s == pytest.approx(waits.mean(), rel=0.15)
    for t in (0.0, 1.0, d - 0.01, d + 2.0):
        assert float(w.survival(t)) == pytest.approx((waits > t).mean(), abs=0.03)


def test_affine_against_simulated_table() -> None:
    """The fit, on its own cases with the default threshold: errors as a share of the simulated quantile + E[S]."""
    errors = []
    print("\n c_s^2 ratio  c  rho | overflow model/simulated | error of E[W], W p50 p90 p99 [%]")
    for scv, skew, ratio, servers, rho, left, _, mean, *quantiles in SIMULATED:
        moments = mixture(scv, skew)
        w = law("affine", rho * servers, int(servers), moments, miss_moments=scaled(moments, ratio))
        pairs = [(w.mean_s, mean), *((quantile(w, q), s) for q, s in zip((0.5, 0.9, 0.99), quantiles, strict=True))]
        error = [100 * (mine - simulated) / (simulated + 1.0) for mine, simulated in pairs]
        errors.append([*error, 100 * (w.overflow_share - left)])
        numbers = " ".join(f"{e:6.1f}" for e in error)
        print(f" {scv:5.1f} {ratio:4.1f} {servers:3d} {rho:4.2f} | {w.overflow_share:.3f} {left:.3f} | {numbers}")
    size = np.abs(errors)
    median = np.median(size, axis=0)
    print(f" medians {median.round(1)}, nine in ten {np.quantile(size, 0.9, axis=0).round(1)}")
    assert np.all(median <= [8.0, 10.0, 10.0, 15.0, 2.0])
    assert np.all(np.quantile(size, 0.9, axis=0)[[0, 2, 3]] <= [22.0, 27.0, 27.0])
    assert size[:, 4].max() <= 10.0
