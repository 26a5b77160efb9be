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
from pddplan.simulate.outcome import interval, quantile_of, t_quantile, warm_up
from tests.compiled import needs_numba
from tests.simulate.worlds import Setup, consistent, mean, simulate

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
    consistent(one)


@needs_numba
def test_bursty_arrivals() -> None:
    """Gamma gaps: the same rate, longer waits."""
    plain, bursty = (simulate(Setup(rate=0.7, service_s=[1.0], servers=1, burstiness=b), 100_000) for b in (1.0, 4.0))
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
    world = simulate(setup, 200_000, sessions=100_000)
    held = mean(world, wd.BATCH_HELD, wd.BATCH_HIT, skip=10)
    assert held == pytest.approx(ends + (1 - ends) * law.cdf(residence), abs=0.02)
    assert world.total[wd.COUNT] / world.now[wd.SEEN_AT] == pytest.approx(rate, rel=0.05)


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
    kept = world.sessions["turn"] >= 0
    assert (alive | idle)[kept].all()  # nobody stays without a reason
    consistent(world)


@needs_numba
def test_turns_of_a_session() -> None:
    """Without room for idle sessions only first turns are held: one in 1/ends, the mean number of turns, within 2 %;
    nobody comes back to a cache."""
    setup = Setup(rate=20.0, tokens=[1.0], sessions=(0.1, 10.0, 0.5), memory=0.0)
    world = simulate(setup, 200_000)
    consistent(world)
    assert mean(world, wd.BATCH_HELD, wd.BATCH_HIT, skip=10) == pytest.approx(0.1, rel=0.02)
    assert world.decodes[0].idle == 0.0
    plenty = simulate(Setup(rate=20.0, tokens=[1.0], sessions=(0.1, 10.0, 0.5)), 50_000)
    assert mean(plenty, wd.BATCH_HELD, wd.BATCH_HIT) == pytest.approx(1.0, abs=1e-6)


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
