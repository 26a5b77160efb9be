"""Worlds of the event loop put together by hand: one prefill pool, maybe a line, one decode pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.simulate import world as wd
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


def world_of(setup: Setup, requests: int, at_once: int = 20_000, sessions: int = 60_000) -> wd.World:
    """Everything idle."""
    count = max(len(setup.service_s), len(setup.sizes or (0,)), len(setup.tokens))

    def column(values: Sequence[float]) -> Array:
        return np.resize(np.asarray(values, dtype=float), count)

    kinds, ways = table(wd.KIND, count), table(wd.WAY, 2, count)
    kinds["cumulative"] = np.arange(1, count + 1) / count
    kinds["relay"], kinds["line"] = -1, -1 if setup.sizes is None else 0
    kinds["alone"] = kinds["shared"] = kinds["miss"] = column(setup.service_s)
    kinds["output"], kinds["prompt"], kinds["uncached"] = column(setup.tokens) + 1.0, 2.0, 1.0
    kinds["kv_session"] = kinds["kv_running"] = kinds["kv_prompt"] = setup.kv_bytes
    kinds["extend_rate"] = 1.0
    ways["sends"], ways["ceiling"] = column(setup.sizes or (0.0,)), column(setup.ceilings)
    workloads, prefills, servers = table(wd.WORKLOAD, 1), table(wd.PREFILL, 1), table(wd.SERVER, setup.servers)
    workloads["last"], workloads["session_share"], workloads["request_share"] = count, 1.0, 1.0
    workloads["ttft_limit"] = workloads["tpot_limit"] = PLENTY
    ends = 1.0
    if setup.sessions is not None:
        ends, gap, sigma = setup.sessions
        workloads["ends"], workloads["gap_mu"], workloads["gap_sigma"] = ends, np.log(gap), sigma
    prefills["last"] = prefills["on"] = setup.servers
    prefills["leave"] = setup.leave_s
    servers["serving"], servers["up"] = -1, 1
    decodes, instances = table(wd.DECODE, 1), table(wd.INSTANCE, setup.instances)
    decodes["last"], decodes["slots"], decodes["pooled"] = setup.instances, setup.slots, setup.pooled
    decodes["cached"], decodes["memory"] = 1 if setup.sessions else 0, setup.memory
    decodes["oldest"] = decodes["newest"] = -1
    instances["alive"], instances["tau"] = 1, 1.0
    lines = table(wd.LINES, 0 if setup.sizes is None else 1)
    lines["capacity"] = setup.capacity
    step = setup.step_s[0] + setup.step_s[1] * np.arange(setup.slots + 1.0)
    asked, kept, now = table(wd.REQUEST, at_once), table(wd.SESSION, sessions), np.zeros(wd.NOWS)
    asked["slot"] = asked["position"] = kept["turn"] = -1
    now[wd.FACTOR], now[wd.BATCH_SIZE] = 1.0, max(requests / BATCHES, 1.0)
    law = wd.Law(
        setup.sessions is not None, setup.mode, setup.rate, setup.rate * ends, setup.burstiness, 0.0, 0.0, False
    )
    return wd.World(
        law=law, kinds=kinds, ways=ways, workloads=workloads, prefills=prefills, servers=servers, decodes=decodes,
        instances=instances, lines=lines, requests=asked, sessions=kept, contexts=np.array([[0.0, 1e12]]),
        step=np.broadcast_to(step, (1, 2, step.size)).copy(),
        heap=np.zeros((setup.instances, setup.slots + 1), dtype=np.int64),
        flows=np.zeros((lines.size, at_once), dtype=np.int64), now=now,
        histogram=np.zeros((1, wd.METRICS, BATCHES, BINS), dtype=np.int64), total=np.zeros(wd.SUMS),
        batch_sums=np.zeros((BATCHES, wd.BATCH_SUMS)), series=np.zeros((SERIES_POINTS, wd.SERIES)),
        busy=np.zeros(2 + lines.size),
    )  # fmt: skip


def simulate(
    setup: Setup, requests: int, seed: int = 1, changes: Sequence[tuple[float, ...]] = (), **room: Any
) -> wd.World:
    """Runs a world until so many requests are answered."""
    world = world_of(setup, requests, **room)
    rows = np.array(changes, dtype=float).reshape(-1, 4)
    sample_s = requests / setup.rate / SERIES_POINTS
    run(world, np.random.default_rng(seed), rows, np.zeros((0, 5)), sample_s, float(requests), np.inf)
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
