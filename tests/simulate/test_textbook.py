"""The event loop against textbook queues."""

from __future__ import annotations

import numpy as np
import pytest

from pddplan.serve.line import slowdown
from pddplan.serve.queueing import WaitingLaw, erlang_c, waiting_law
from pddplan.simulate import world as wd
from pddplan.simulate.compiled import COMPILED
from pddplan.simulate.outcome import quantile_of
from tests.simulate.worlds import Setup, exponential, mean, simulate

pytestmark = pytest.mark.skipif(not COMPILED, reason="numba (extra `fast`) isn't installed: the simulation is slow")
MANY = 400_000


def conserved(world: wd.World) -> None:
    """Little's law, and bytes."""
    assert world.total[wd.AREA] == pytest.approx(world.total[wd.SPENT], rel=1e-9)
    waiting = sum(
        world.requests["bytes"][world.flows[n, : world.lines[n].flow_count]].sum() for n in range(world.lines.size)
    )
    assert world.total[wd.LINE_BYTES] == pytest.approx(world.total[wd.FLOW_BYTES] - waiting, rel=1e-9, abs=1e-3)


# ---------------------------------------------------------------- prefill


@pytest.mark.parametrize(("servers", "rho"), [(1, 0.6), (1, 0.85), (4, 0.6), (4, 0.85)])
def test_exponential_service(servers: int, rho: float) -> None:
    """M/M/c: P(wait) and E[W] are Erlang's, within 2 % and 5 %; p99 of the sojourn with them."""
    world = simulate(Setup(rate=rho * servers, service_s=exponential(1.0), servers=servers), MANY)
    conserved(world)
    wait = float(erlang_c(servers, rho * servers))
    assert mean(world, wd.BATCH_QUEUED) == pytest.approx(wait, rel=0.02)
    assert mean(world, wd.BATCH_WAIT) == pytest.approx(wait / (servers * (1 - rho)), rel=0.06)


@pytest.mark.parametrize(("servers", "rho"), [(1, 0.7), (4, 0.85)])
def test_constant_service(servers: int, rho: float) -> None:
    """M/D/c: mean and p99 of the wait are the exact law's."""
    world = simulate(Setup(rate=rho * servers, service_s=[1.0], servers=servers), MANY)
    law = waiting_law(rho * servers, servers, (1.0, 1.0, 1.0))
    assert isinstance(law, WaitingLaw)
    assert mean(world, wd.BATCH_WAIT) == pytest.approx(law.mean_s, rel=0.05)
    sojourn = quantile_of(world.histogram[0, wd.AT_PREFILL, 3:].sum(axis=0), 0.99)
    assert float(law.survival(np.array(sojourn - 1.0))) == pytest.approx(0.01, rel=0.2)  # a bin is half a per cent


def test_queues_of_their_own() -> None:
    """Sticky: each server is an M/G/1, Pollaczek and Khinchine's mean wait."""
    service = np.concatenate([np.full(90, 0.5), np.full(10, 5.5)])
    world = simulate(Setup(rate=2.8, service_s=service, servers=4, mode=wd.STICKY), MANY)
    rho, second = 0.7, float((service**2).mean())
    assert mean(world, wd.BATCH_WAIT) == pytest.approx(0.7 * second / (2 * (1 - rho)), rel=0.06)
    assert mean(world, wd.BATCH_QUEUED) == pytest.approx(rho, rel=0.02)


def test_home_and_elsewhere() -> None:
    """Affine: between queues of their own and one queue; with an endless threshold it is the former."""
    setups = [Setup(rate=2.8, service_s=exponential(1.0, 500), servers=4, mode=m) for m in (wd.STICKY, wd.SHARED)]
    own, shared = (mean(simulate(s, 200_000), wd.BATCH_WAIT) for s in setups)
    affine = [
        mean(simulate(Setup(2.8, exponential(1.0, 500), 4, wd.AFFINE, leave_s=d), 200_000), wd.BATCH_WAIT)
        for d in (0.0, 1.0, 1e9)
    ]
    assert shared < affine[0] < affine[1] < affine[2] == pytest.approx(own, rel=1e-9)


# ---------------------------------------------------------------- the line


@pytest.mark.parametrize("sizes", [[1.0], [0.2] * 9 + [8.2]], ids=["one size", "few large ones"])
@pytest.mark.parametrize("m", [1.0, 4.0])
def test_shared_line(sizes: list[float], m: float) -> None:
    """Processor sharing: mean time is size/ceiling x slowdown(m, rho), whatever the sizes."""
    rho, capacity = 0.7, 10.0
    setup = Setup(rate=rho * capacity, sizes=sizes, ceilings=[capacity / m], capacity=capacity)
    world = simulate(setup, MANY)
    conserved(world)
    hist = world.histogram[0, wd.LINE_TIME, 3:].sum(axis=0)
    centres = 1e-6 * np.exp((np.arange(hist.size) - 0.5) / 200.0)
    assert float(hist @ centres / hist.sum()) == pytest.approx(m / capacity * float(slowdown(m, rho)), rel=0.05)


def test_unequal_ceilings() -> None:
    """Two kinds of flows against a small simulation of max-min sharing of its own, flow by flow."""
    setup = Setup(rate=6.0, sizes=[1.0, 1.0], ceilings=[2.0, 8.0], capacity=10.0)
    world = simulate(setup, 200_000, seed=3)
    hist = world.histogram[0, wd.LINE_TIME, 3:].sum(axis=0)
    centres = 1e-6 * np.exp((np.arange(hist.size) - 0.5) / 200.0)
    assert float(hist @ centres / hist.sum()) == pytest.approx(maxmin_mean(6.0, (2.0, 8.0), 10.0, 60_000), rel=0.03)


def maxmin_mean(rate: float, ceilings: tuple[float, float], capacity: float, count: int) -> float:
    """Mean time of flows of size 1, each with one of two ceilings, on a line shared max-min."""
    rng = np.random.default_rng(7)
    now, next_at, done, total = 0.0, rng.exponential(1 / rate), 0, 0.0
    flows: list[list[float]] = []  # [left, ceiling, began]
    while done < count:
        speeds = _maxmin([flow[1] for flow in flows], capacity)
        ends = [flow[0] / speed for flow, speed in zip(flows, speeds, strict=True)]
        step = min([next_at - now, *ends])
        now += step
        for flow, speed in zip(flows, speeds, strict=True):
            flow[0] -= speed * step
        for flow in [f for f in flows if f[0] <= 1e-12]:
            flows.remove(flow)
            done, total = done + 1, total + now - flow[2]
        if now >= next_at - 1e-15:
            flows.append([1.0, ceilings[rng.integers(2)], now])
            next_at = now + rng.exponential(1 / rate)
    return total / done


def _maxmin(ceilings: list[float], capacity: float) -> list[float]:
    given = [0.0] * len(ceilings)
    left, rest = capacity, sorted(range(len(ceilings)), key=lambda i: ceilings[i])
    while rest:
        first = rest.pop(0)
        given[first] = min(ceilings[first], left / (len(rest) + 1))
        left -= given[first]
    return given


# ---------------------------------------------------------------- decode


def occupancy(world: wd.World) -> tuple[float, float]:
    """Mean and variance of the requests decoding, from the time series."""
    rows = world.series[world.series[:, wd.AT] > 0][40:]
    return float(rows[:, wd.ON_MAIN_NOW].mean()), float(rows[:, wd.ON_MAIN_NOW].var())


def test_many_slots() -> None:
    """M/G/inf: a Poisson number of requests, rate x tokens x step."""
    world = simulate(Setup(rate=50.0, tokens=[10.0, 30.0], step_s=(0.1, 0.0)), 200_000)
    conserved(world)
    average, variance = occupancy(world)
    assert world.busy[1] / world.now[wd.SEEN_AT] == pytest.approx(100.0, rel=0.01)
    assert variance / average == pytest.approx(1.0, abs=0.35)


def test_steps_that_lengthen_with_the_batch() -> None:
    """tau = t0 + t1 B: processor sharing with the fixed point B = asked (t0 + t1)/(1 - asked t1)."""
    asked, t0, t1 = 400.0, 0.05, 0.00125
    world = simulate(Setup(rate=asked / 20, tokens=[20.0], step_s=(t0, t1)), 300_000)
    average, _ = occupancy(world)
    assert world.busy[1] / world.now[wd.SEEN_AT] == pytest.approx(asked * (t0 + t1) / (1 - asked * t1), rel=0.03)
    assert average == pytest.approx(asked * (t0 + t1) / (1 - asked * t1), rel=0.06)


def test_few_slots() -> None:
    """K slots, exponential answers: those that wait are Erlang's; nobody exceeds the slots."""
    world = simulate(Setup(rate=8.0, tokens=exponential(10.0, 1000), step_s=(0.1, 0.0), slots=10), 200_000)
    conserved(world)
    assert mean(world, wd.BATCH_SLOT_WAITED, wd.BATCH_SLOT_ASKED) == pytest.approx(float(erlang_c(10, 8.0)), rel=0.05)
    assert world.series[:, wd.ON_MAIN_NOW].max() <= 10
