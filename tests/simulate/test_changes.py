"""Servers and instances that go and come back, lines that shrink, rates that rise; and the relay, whole or broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pddplan.simulate import world as wd
from pddplan.simulate.arriving import bin_of
from pddplan.simulate.outcome import quantile_of
from tests.compiled import needs_numba
from tests.simulate.worlds import Setup, consistent, mean, mean_of, simulate

pytestmark = needs_numba
ALL = Setup(
    rate=4.0, service_s=[0.5, 1.0], servers=6, sizes=[1.0], ceilings=[2.0], capacity=12.0, tokens=[20.0],
    step_s=(0.1, 0.0), slots=20, instances=3,
)  # fmt: skip
BREAKS = {
    "servers": [(100.0, wd.SERVERS, 0, 1), (160.0, wd.SERVERS, 0, 6)],
    "all servers": [(100.0, wd.SERVERS, 0, 0), (130.0, wd.SERVERS, 0, 6)],
    "instances": [(200.0, wd.INSTANCES, 0, 1), (260.0, wd.INSTANCES, 0, 3)],
    "line at half": [(300.0, wd.LINE_SHARE, 0, 6.0), (360.0, wd.LINE_SHARE, 0, 12.0)],
    "line down": [(300.0, wd.LINE_SHARE, 0, 0.0), (330.0, wd.LINE_SHARE, 0, 12.0)],
    "twice the rate": [(400.0, wd.RATE, 0, 2.0), (500.0, wd.RATE, 0, 1.0)],
    "cold": [(450.0, wd.COLD, 0, 0.0)],
}


@pytest.mark.parametrize("mode", [wd.SHARED, wd.STICKY, wd.AFFINE])
@pytest.mark.parametrize("name", [*BREAKS, "all of it"])
def test_nothing_is_lost_when_things_break(mode: int, name: str) -> None:
    """All are answered or still here, at the end of the trouble and long after; then it is as if nothing had been."""
    changes = sorted(change for one in BREAKS.values() for change in one) if name == "all of it" else BREAKS[name]
    setup = replace(ALL, mode=mode, leave_s=1.0, pooled=1 if mode == wd.SHARED else 0)
    consistent(simulate(setup, 100_000, changes=changes, end_s=changes[-1][0] - 0.5))
    consistent(simulate(setup, 100_000, changes=changes, end_s=changes[-1][0] + 0.5))
    world = simulate(setup, 8_000, changes=changes)
    consistent(world)
    breaks = any(what in (wd.SERVERS, wd.INSTANCES) for _, what, _, _ in changes)
    assert world.total[wd.LOST] > 0 if breaks else world.total[wd.LOST] == 0
    assert world.now[wd.IN_SYSTEM] < 60
    assert (world.servers["up"] == 1).all() and (world.instances["alive"] == 1).all()


def test_what_is_lost_begins_anew() -> None:
    """A server that dies half way: its request starts again elsewhere, and a line that is down makes all wait."""
    setup = Setup(rate=0.02, service_s=[1.0], servers=2)
    world = simulate(setup, 400, changes=[(t * 1.0, wd.SERVERS, 0, 2 - t % 2) for t in range(1, 15_000)])
    consistent(world)
    lost = world.total[wd.LOST]
    assert 50 < lost < 150  # every other second the second server goes, which has half of the requests
    assert mean_of(world, wd.E2E, skip=0) == pytest.approx(1.0 + 0.5 * lost / 400, rel=0.05)


def test_a_line_that_was_down() -> None:
    """Those that came while it was down go when it is back."""
    setup = Setup(rate=2.0, sizes=[1.0], ceilings=[10.0], capacity=100.0)
    world = simulate(setup, 2_000, changes=[(100.0, wd.LINE_SHARE, 0, 0.0), (200.0, wd.LINE_SHARE, 0, 100.0)])
    consistent(world)
    assert quantile_of(world.histogram[0, wd.TTFT].sum(axis=0), 0.85) == pytest.approx(0.1, rel=0.006)
    assert mean_of(world, wd.TTFT, skip=0) == pytest.approx(0.1 + 0.1 * 50.0, rel=0.15)


@pytest.mark.parametrize("sessions", [None, (0.2, 5.0, 0.5)])
def test_twice_the_rate(sessions: tuple[float, float, float] | None) -> None:
    """A factor on the rate for a third of the time is as many more requests, with sessions or without."""
    setup = Setup(rate=20.0, tokens=[1.0], sessions=sessions)
    changes = [(1000.0, wd.RATE, 0, 2.0), (2000.0, wd.RATE, 0, 1.0)]
    world = simulate(setup, 1_000_000, changes=changes, end_s=3000.0)
    consistent(world)
    assert world.total[wd.COUNT] == pytest.approx(80_000, rel=0.04)


# ---------------------------------------------------------------- the relay


def test_one_request_by_the_relay() -> None:
    """1 s of prefill, 4 s more of transfer, in which the relay makes 40 tokens after the first; main decode the other
    60 after a round trip, a pass over 41 tokens and what is left of a step of its own."""
    setup = Setup(
        rate=0.0005, service_s=[1.0], sizes=[10.0], ceilings=[2.0], tokens=[100.0], step_s=(0.1, 0.0), relay_slots=10,
        rtt_s=0.2, extend_rate=41.0,
    )  # fmt: skip
    world = simulate(setup, 300)
    consistent(world)
    assert mean(world, wd.BATCH_RELAYED) == 1.0
    assert mean(world, wd.BATCH_RELAY_TOKENS) == pytest.approx(41.0, rel=1e-6)
    assert mean(world, wd.BATCH_TTFT) == pytest.approx(1.0, rel=1e-9)
    assert mean_of(world, wd.E2E) == pytest.approx(1.0 + 4.0 + 0.2 + 1.0 + 6.0, rel=0.004)
    assert mean_of(world, wd.PAUSE) == pytest.approx(1.2, rel=0.004)


def test_few_slots_on_the_relay() -> None:
    """Answers that stay on the relay: M/G/inf with many slots, all tokens there and nothing on the line."""
    setup = Setup(
        rate=20.0, sizes=[1.0], tokens=[20.0, 60.0], step_s=(0.05, 0.0), relay_slots=500, filtered=1.0,
    )  # fmt: skip
    world = simulate(setup, 100_000)
    consistent(world)
    assert mean(world, wd.BATCH_FILTERED) == 1.0
    assert mean(world, wd.BATCH_RELAY_TOKENS, wd.BATCH_TOKENS) == 1.0
    assert world.busy[1] / world.now[wd.SEEN_AT] == pytest.approx(20.0 * 40.0 * 0.05, rel=0.02)
    assert world.total[wd.FLOW_BYTES] == 0.0 == world.decodes[1].held


@pytest.mark.parametrize("sessions", [None, (0.2, 5.0, 0.5)])
def test_a_relay_that_breaks(sessions: tuple[float, float, float] | None) -> None:
    """Relay, main decode, prefill and line go and come back, with a filter: all are answered or still here."""
    setup = Setup(
        rate=4.0, service_s=[0.5, 1.0], servers=6, sizes=[8.0], ceilings=[2.0], capacity=60.0, tokens=[100.0, 200.0],
        step_s=(0.02, 0.0001), slots=40, instances=3, relay_slots=12, filtered=0.3, rtt_s=0.05, extend_rate=500.0,
        sessions=sessions, memory=600.0, kv_bytes=5.0,
    )  # fmt: skip
    changes = [
        (100.0, wd.INSTANCES, 0, 0), (160.0, wd.INSTANCES, 0, 3), (200.0, wd.INSTANCES, 1, 1),
        (260.0, wd.INSTANCES, 1, 3), (300.0, wd.SERVERS, 0, 1), (340.0, wd.SERVERS, 0, 6),
        (400.0, wd.LINE_SHARE, 0, 9.0), (460.0, wd.LINE_SHARE, 0, 60.0),
    ]  # fmt: skip
    for end_s in (130.0, 161.0, 230.0, 261.0, 320.0, 341.0, 430.0, 461.0):
        consistent(simulate(setup, 100_000, changes=changes, end_s=end_s))
    world = simulate(setup, 10_000, changes=changes)
    consistent(world)
    assert world.total[wd.LOST] > 0
    assert world.now[wd.IN_SYSTEM] < 120
    assert 0.0 < mean(world, wd.BATCH_FILTERED) < 1.0 and mean(world, wd.BATCH_RELAYED) > 0.3


# ---------------------------------------------------------------- what once went wrong


def test_an_instance_that_stays_down() -> None:
    """Those whose home is down wait at the next one: nobody waits where nobody serves."""
    setup = Setup(rate=10.0, tokens=[20.0], step_s=(0.05, 0.0), slots=8, instances=3, pooled=0)
    world = simulate(setup, 20_000, changes=[(10.0, wd.INSTANCES, 0, 2)])
    consistent(world)
    assert world.now[wd.IN_SYSTEM] < 50


def test_memory_of_one_is_of_all() -> None:
    """What one instance frees is for those that wait at others too: own queues wait hardly longer than one queue."""
    setup = Setup(rate=5.0, tokens=[20.0], step_s=(0.05, 0.0), slots=50, instances=4, memory=8.0)
    own, pooled = (simulate(replace(setup, pooled=p), 20_000) for p in (0, 1))
    consistent(own)
    assert mean_of(own, wd.AT_MAIN) == pytest.approx(mean_of(pooled, wd.AT_MAIN), rel=0.2)


def test_all_lost_and_back() -> None:
    """The last instance comes back with its memory."""
    setup = Setup(rate=5.0, tokens=[20.0], step_s=(0.05, 0.0), slots=50, memory=40.0)
    world = simulate(setup, 5_000, changes=[(100.0, wd.INSTANCES, 0, 0), (160.0, wd.INSTANCES, 0, 1)], end_s=3_000.0)
    consistent(world)
    assert world.decodes[0].memory == 40.0
    assert world.now[wd.IN_SYSTEM] < 30


def test_nobody_comes_for_a_while() -> None:
    """A rate of 0 ends."""
    setup = Setup(rate=5.0)
    world = simulate(setup, 50_000, changes=[(100.0, wd.RATE, 0, 0.0), (160.0, wd.RATE, 0, 1.0)], end_s=2_000.0)
    assert world.total[wd.COUNT] == pytest.approx(5.0 * 1_940.0, rel=0.03)


def test_a_loss_is_a_pause() -> None:
    """Tokens stop while what was lost is computed anew."""
    setup = Setup(rate=0.01, service_s=[10.0], tokens=[900.0], step_s=(0.1, 0.0), instances=1)
    changes = [(t + 0.5 * n, wd.INSTANCES, 0, n) for t in np.arange(1.0, 60_000.0, 300.0) for n in (0, 1)]
    world = simulate(setup, 400, changes=changes)
    consistent(world)
    broken = world.total[wd.LOST] / 400
    assert broken == pytest.approx(0.3, abs=0.06)
    above = world.histogram[0, wd.PAUSE].sum(axis=0)[bin_of(9.9) :].sum() / 400
    assert above == pytest.approx(broken, abs=0.03)
