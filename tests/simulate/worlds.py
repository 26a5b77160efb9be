"""Worlds of the event loop put together by hand: a prefill pool, maybe a line and a relay, a pool of main decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pddplan.simulate import world as wd
from pddplan.simulate.arriving import LEAST_S, PER_FOLD
from pddplan.simulate.build import BATCHES, BINS, SERIES_POINTS, table
from pddplan.simulate.engine import run

Array = NDArray[np.float64]
PLENTY = 1e18


@dataclass
class Setup:
    """Kinds of equal weight; what isn't given takes no time."""

    rate: float
    service_s: Sequence[float] = (0.0,)
    servers: int = 64
    mode: int = wd.SHARED
    leave_s: float = 0.0
    sizes: Sequence[float] | None = None  # bytes of each kind over the line; None: no line
    ceilings: Sequence[float] = (PLENTY,)
    capacity: float = PLENTY
    tokens: Sequence[float] = (1.0,)
    step_s: Sequence[float] = (1e-9, 1e-9)  # seconds a token: at batch 0, and what a request adds
    slots: int = 4000
    instances: int = 1
    pooled: int = 1
    burstiness: float = 1.0
    sessions: tuple[float, float, float] | None = None  # chance of a last turn, median gap [s], sigma of ln gap
    kv_bytes: float = 1.0
    memory: float = PLENTY
    apart: bool = False  # each kind is a workload
    relay_slots: int = 0  # of each of the relay's instances, as many as main decode's; 0: no relay
    filtered: float = 0.0  # share of the requests that stay on the relay
    rtt_s: float = 0.0
    extend_rate: float = 1e9  # tokens/s of a hand-over


def world_of(setup: Setup, requests: int, at_once: int = 20_000, sessions: int = 60_000) -> wd.World:
    """Everything idle."""
    count = max(len(setup.service_s), len(setup.sizes or (0,)), len(setup.tokens))

    def column(values: Sequence[float]) -> Array:
        return np.resize(np.asarray(values, dtype=float), count)

    kinds, ways = table(wd.KIND, count), table(wd.WAY, 2, count)
    kinds["cumulative"] = np.arange(1, count + 1) / count
    kinds["relay"], kinds["line"] = -1, -1 if setup.sizes is None else 0
    if setup.relay_slots:
        kinds["relay"], kinds["main"], kinds["rtt"], ways["relays"] = 0, 1, setup.rtt_s, 1.0
        ways["filtered"] = setup.filtered
    kinds["alone"] = kinds["shared"] = kinds["miss"] = column(setup.service_s)
    kinds["output"], kinds["prompt"], kinds["uncached"] = column(setup.tokens) + 1.0, 2.0, 1.0
    kinds["kv_session"] = kinds["kv_running"] = kinds["kv_prompt"] = setup.kv_bytes
    kinds["extend_rate"] = setup.extend_rate
    ways["sends"], ways["ceiling"] = column(setup.sizes or (0.0,)), column(setup.ceilings)
    own = count if setup.apart else 1
    workloads, prefills, servers = table(wd.WORKLOAD, own), table(wd.PREFILL, 1), table(wd.SERVER, setup.servers)
    workloads["last"] = np.arange(1, own + 1) * (count // own)
    workloads["first"] = workloads["last"] - count // own
    workloads["session_share"] = workloads["request_share"] = np.arange(1, own + 1) / own
    if setup.apart:
        kinds["cumulative"] = 1.0
    workloads["ttft_limit"] = workloads["tpot_limit"] = PLENTY
    ends = 1.0
    if setup.sessions is not None:
        ends, gap, sigma = setup.sessions
        workloads["ends"], workloads["gap_mu"], workloads["gap_sigma"] = ends, np.log(gap), sigma
    prefills["last"] = prefills["on"] = setup.servers
    prefills["leave"] = setup.leave_s
    servers["serving"], servers["up"] = -1, 1
    pools = 2 if setup.relay_slots else 1
    decodes, instances = table(wd.DECODE, pools), table(wd.INSTANCE, pools * setup.instances)
    decodes["last"] = np.arange(1, pools + 1) * setup.instances
    decodes["first"] = decodes["last"] - setup.instances
    decodes["slots"], decodes["pooled"] = setup.slots, setup.pooled
    decodes["memory"] = decodes["whole"] = setup.memory
    decodes["oldest"] = decodes["newest"] = -1
    decodes[pools - 1].cached = 1 if setup.sessions else 0
    if setup.relay_slots:
        decodes[0].relay, decodes[0].pooled, decodes[0].slots = 1, 1, setup.relay_slots
        decodes[0].memory = decodes[0].whole = np.inf
    instances["alive"], instances["tau"] = 1, 1.0
    lines = table(wd.LINES, 0 if setup.sizes is None else 1)
    lines["capacity"] = setup.capacity
    widest = max(setup.slots, setup.relay_slots)
    step = setup.step_s[0] + setup.step_s[1] * np.arange(widest + 1.0)
    asked, kept, now = table(wd.REQUEST, at_once), table(wd.SESSION, sessions), np.zeros(wd.NOWS)
    asked["slot"] = asked["position"] = kept["turn"] = -1
    now[wd.FACTOR], now[wd.BATCH_SIZE] = 1.0, max(requests / BATCHES, 1.0)
    law = wd.Law(
        sessions=setup.sessions is not None, mode=setup.mode, rate=setup.rate, session_rate=setup.rate * ends,
        burstiness=setup.burstiness, stay=0.0, router=0.0, on_prefill=False, relay_above=np.nan, relay_only=False,
    )  # fmt: skip
    return wd.World(
        law=law, kinds=kinds, ways=ways, workloads=workloads, prefills=prefills, servers=servers, decodes=decodes,
        instances=instances, lines=lines, requests=asked, sessions=kept,
        scripts=np.zeros(1, dtype=np.int64), turns=table(wd.SCRIPT_TURN, 1),
        starts=np.zeros(0), contexts=np.tile([0.0, 1e12], (pools, 1)),
        step=np.broadcast_to(step, (pools, 2, step.size)).copy(),
        heap=np.zeros((pools * setup.instances, widest + 1), dtype=np.int64),
        flows=np.zeros((lines.size, at_once), dtype=np.int64), now=now,
        histogram=np.zeros((own, wd.METRICS, BATCHES, BINS), dtype=np.int64), total=np.zeros(wd.SUMS),
        batch_sums=np.zeros((BATCHES, wd.BATCH_SUMS)), series=np.zeros((SERIES_POINTS, wd.SERIES)),
        busy=np.zeros(1 + pools + lines.size),
    )  # fmt: skip


def simulate(
    setup: Setup,
    requests: int,
    seed: int = 1,
    changes: Sequence[tuple[float, ...]] = (),
    end_s: float = np.inf,
    **room: Any,
) -> wd.World:
    """Runs a world until so many requests are answered or the time is over."""
    world = world_of(setup, requests, **room)
    rows = np.array(changes, dtype=float).reshape(-1, 4)
    sample_s = requests / setup.rate / SERIES_POINTS
    run(world, np.random.default_rng(seed), rows, np.zeros((0, 5)), sample_s, float(requests), end_s)
    assert world.now[wd.ERROR] == 0.0
    return world


def mean(world: wd.World, column: int, of: int = wd.BATCH_COUNT, skip: int = 3) -> float:
    """A sum over a count, the first batches left out."""
    sums = world.batch_sums[skip:].sum(axis=0)
    return float(sums[column] / sums[of])


def exponential(mean_s: float, points: int = 2000) -> Array:
    """An exponential law as kinds of equal weight: means of its quantile bins."""
    edges = np.linspace(0.0, 1.0, points + 1)
    left = 1.0 - edges
    inside = left * np.log(np.maximum(left, 1e-300)) - left  # integral of -ln(1 - u), up to sign
    values = np.diff(inside) * points
    return np.asarray(mean_s * values / values.mean())


def mean_of(world: wd.World, metric: int, workload: int | None = None, skip: int = 3) -> float:
    """Mean of a metric's counts [s], within half a bin: 0.25 %; what lies below a microsecond is 0."""
    every = world.histogram[:, metric, skip:] if workload is None else world.histogram[workload, metric, skip:][None]
    counts = every.sum(axis=(0, 1))
    centres = LEAST_S * np.exp((np.arange(counts.size) - 0.5) / PER_FOLD)
    centres[0] = 0.0
    return float(counts @ centres / counts.sum())


def consistent(world: wd.World) -> None:
    """Little's law, the line's bytes, counts of answers, and each counter against the rows it counts."""
    assert world.total[wd.AREA] == pytest.approx(world.total[wd.SPENT], rel=1e-9)
    waiting = sum(
        world.requests["bytes"][world.flows[n, : world.lines[n].flow_count]].sum() for n in range(world.lines.size)
    )
    assert world.total[wd.LINE_BYTES] == pytest.approx(world.total[wd.FLOW_BYTES] - waiting, rel=1e-9, abs=1e-3)
    answers = world.batch_sums[:, wd.BATCH_COUNT]
    assert answers.sum() == world.total[wd.COUNT]
    for metric in (wd.TTFT, wd.E2E, wd.AT_PREFILL):
        assert (world.histogram[:, metric].sum(axis=(0, 2)) == answers).all()
    place, kind = world.requests["place"], world.requests["kind"]
    here = (place != wd.FREE) & (place != wd.ANSWERED)
    assert here.sum() == world.now[wd.IN_SYSTEM]
    assert world.prefills[0].busy == (world.servers["serving"] >= 0).sum()
    for pool in world.decodes:
        of = world.instances[pool.first : pool.last]
        assert pool.held == of["batch"].sum() and of["batch"].max() <= pool.slots
        idle = (world.sessions["idle"] == 1) & (world.sessions["turn"] >= 0)
        assert pool.relay == 1 or pool.idle == pytest.approx(world.sessions["bytes"][idle].sum(), rel=1e-9)
    main = world.decodes[-1]
    assert main.running == pytest.approx(world.kinds["kv_running"][kind[place == wd.ON_MAIN]].sum(), rel=1e-9)
    assert main.under_way == pytest.approx(world.requests["reserved"][place != wd.FREE].sum(), rel=1e-9)
    for line in world.lines:
        flying = world.requests["slot"] >= 0
        assert line.flow_count == flying.sum()
        assert line.flow_cap == pytest.approx(world.requests["cap"][flying].sum(), rel=1e-6, abs=1e-6)
