"""What the event loop keeps: laws of conservation, seeds, sessions, changes; and the statistics of its counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pddplan.simulate import world as wd
from pddplan.simulate.compiled import COMPILED
from pddplan.simulate.outcome import interval, quantile_of, t_quantile, warm_up
from tests.simulate.worlds import Setup, mean, simulate

needs_numba = pytest.mark.skipif(not COMPILED, reason="numba (extra `fast`) isn't installed: the simulation is slow")
SMALL = """
import json, sys
from tests.simulate.worlds import Setup, simulate
setup = Setup(rate=3.0, service_s=[0.2, 0.9], servers=2, mode=2, sizes=[1.0, 3.0], ceilings=[4.0], capacity=9.0,
              tokens=[20.0, 60.0], step_s=(0.01, 0.001), slots=30, sessions=(0.2, 5.0, 1.0), memory=200.0)
world = simulate(setup, 300, at_once=500, sessions=500)
print(json.dumps([world.total.tolist(), world.batch_sums.sum(axis=0).tolist(), world.series.sum(axis=0).tolist()]))
"""


@needs_numba
def test_compiled_and_plain_are_one() -> None:
    """Plain Python gives the very numbers of the compiled loop."""
    root = Path(__file__).parents[2]
    found = []
    for disabled in ("0", "1"):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": disabled, "PYTHONPATH": str(root)}
        done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, cwd=root, env=environment)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    for compiled, plain in zip(*found, strict=True):
        assert compiled == pytest.approx(plain, rel=1e-9)


@needs_numba
def test_seeds() -> None:
    setup = Setup(rate=3.0, service_s=[0.2, 0.9], servers=3)
    one, same, other = (simulate(setup, 5_000, seed) for seed in (1, 1, 2))
    assert (one.total == same.total).all() and (one.histogram == same.histogram).all()
    assert (one.total != other.total).any()
    assert one.histogram[0, wd.TTFT].sum() == one.total[wd.COUNT] == 5_000


@needs_numba
def test_bursty_arrivals() -> None:
    """Gamma gaps: the same rate, longer waits."""
    plain, bursty = (simulate(Setup(rate=0.7, service_s=[1.0], servers=1, burstiness=b), 200_000) for b in (1.0, 4.0))
    assert plain.total[wd.COUNT] / plain.now[wd.SEEN_AT] == pytest.approx(0.7, rel=0.01)
    assert bursty.total[wd.COUNT] / bursty.now[wd.SEEN_AT] == pytest.approx(0.7, rel=0.02)
    assert mean(bursty, wd.BATCH_WAIT) > 2.0 * mean(plain, wd.BATCH_WAIT)


# ---------------------------------------------------------------- sessions


@needs_numba
@pytest.mark.parametrize("residence", [5.0, 20.0, 80.0])
def test_least_recently_used(residence: float) -> None:
    """Idle room for a residence T holds P(gap <= T) of the returning prefixes, and all of the first turns'."""
    gap, sigma, ends, rate = 17.0, 1.2, 0.1, 20.0
    law = stats.lognorm(s=sigma, scale=gap)
    grid = np.linspace(0.0, residence, 4001)
    stays = (1 - ends) * np.trapezoid(law.sf(grid), grid) + ends * residence
    setup = Setup(rate=rate, tokens=[1.0], sessions=(ends, gap, sigma), memory=rate * stays + 0.1)
    world = simulate(setup, 300_000, sessions=100_000)
    held = mean(world, wd.BATCH_HELD, wd.BATCH_HIT, skip=10)
    assert held == pytest.approx(ends + (1 - ends) * law.cdf(residence), abs=0.02)
    assert world.total[wd.COUNT] / world.now[wd.SEEN_AT] == pytest.approx(rate, rel=0.03)


@needs_numba
def test_sessions_come_and_go() -> None:
    """No session is lost or kept for ever: as many live at the end as Little's law says."""
    setup = Setup(rate=20.0, tokens=[1.0], sessions=(0.1, 10.0, 0.5), memory=1000.0)
    world = simulate(setup, 200_000)
    alive = (world.sessions["turn"] >= 0) & ((world.sessions["lives"] == 1) | (world.sessions["asking"] == 1))
    thinking = 20.0 * 0.9 * 10.0 * np.exp(0.125)
    assert alive.sum() == pytest.approx(thinking, rel=0.25)
    idle = world.sessions["idle"] == 1
    assert world.decodes[0].idle == pytest.approx(world.sessions["bytes"][idle].sum(), rel=1e-9)
    assert world.decodes[0].idle <= 1000.0


# ---------------------------------------------------------------- changes


@needs_numba
def test_nothing_is_lost_when_things_break() -> None:
    """Servers and instances go and come back, the line shrinks, the rate doubles: all are answered or still here."""
    setup = Setup(
        rate=4.0, service_s=[0.5, 1.0], servers=6, mode=wd.STICKY, sizes=[1.0], ceilings=[2.0], capacity=12.0,
        tokens=[20.0], step_s=(0.02, 0.0), slots=20, instances=3, pooled=0,
    )  # fmt: skip
    changes = [
        (100.0, wd.SERVERS, 0, 1), (160.0, wd.SERVERS, 0, 6), (200.0, wd.INSTANCES, 0, 1), (260.0, wd.INSTANCES, 0, 3),
        (300.0, wd.LINE_SHARE, 0, 3.0), (360.0, wd.LINE_SHARE, 0, 12.0), (400.0, wd.RATE, 0, 2.0),
        (500.0, wd.RATE, 0, 1.0),
    ]  # fmt: skip
    world = simulate(setup, 8_000, changes=changes)
    assert world.total[wd.AREA] == pytest.approx(world.total[wd.SPENT], rel=1e-9)
    assert world.total[wd.LOST] > 0
    here = (world.requests["place"] != wd.FREE) & (world.requests["place"] != wd.ANSWERED)
    assert here.sum() == world.now[wd.IN_SYSTEM]
    assert world.now[wd.IN_SYSTEM] < 60
    assert world.prefills[0].busy == (world.servers["serving"] >= 0).sum()
    assert world.decodes[0].held == world.instances["batch"].sum()
    assert (world.servers["up"] == 1).all() and (world.instances["alive"] == 1).all()


@needs_numba
def test_overload_grows() -> None:
    """Twice what one server can do: half of the requests pile up."""
    setup = Setup(rate=2.0, service_s=[1.0], servers=1)
    world = simulate(setup, 2_000, at_once=50_000)
    assert world.now[wd.IN_SYSTEM] == pytest.approx(2_000, rel=0.1)


# ---------------------------------------------------------------- statistics


def test_quantiles_of_counts() -> None:
    """Bins of half a per cent give the quantiles of the sample within as much."""
    from pddplan.simulate.arriving import BINS, bin_of

    sample = np.random.default_rng(1).lognormal(0.0, 1.5, 20_000)
    counts = np.bincount([bin_of(float(x)) for x in sample], minlength=BINS)
    for q in (0.01, 0.5, 0.9, 0.99):
        assert quantile_of(counts, q) == pytest.approx(float(np.quantile(sample, q)), rel=0.006)
    assert quantile_of(np.array([5, 0, 0]), 0.5) == 0.0


@pytest.mark.parametrize("freedom", [4, 10, 30, 100])
def test_students_t(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(float(stats.t.ppf(0.975, freedom)), rel=0.005)


def test_intervals_cover() -> None:
    """Of 95 % intervals of the mean of 20 batches, 95 % hold the mean."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(2_000):
        parts = rng.normal(5.0, 1.0, 20)
        found = interval(float(parts.mean()), parts.tolist())
        held += found.low <= 5.0 <= found.high
    assert held / 2_000 == pytest.approx(0.95, abs=0.015)


def test_warm_up_is_found() -> None:
    """A start from empty that fades over the first eighth of the run."""
    rng = np.random.default_rng(3)
    cuts = [warm_up(1.0 + rng.normal(0, 0.02, 32) - np.where(np.arange(32) < 4, 0.5, 0.0)) for _ in range(50)]
    assert min(cuts) >= 4 and np.median(cuts) <= 8
    assert np.median([warm_up(rng.normal(1.0, 0.02, 32)) for _ in range(50)]) <= 8
