"""A run: the tables of a plan, the event loop until enough requests are answered, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.context import Context
from pddplan.serve.equilibrium import pinned_share
from pddplan.simulate import build
from pddplan.simulate import world as wd
from pddplan.simulate.build import Lane, Places, places_of
from pddplan.simulate.engine import run
from pddplan.simulate.growing import grows, sample_s
from pddplan.simulate.records import Asked, Change, RelayRule, Script

Array = NDArray[np.float64]
Progress = Callable[[float, str], None]

SPARE = 3.0  # requests at once over what there are on average
LEAST_REQUESTS, LEAST_SESSIONS = 4096, 4096
MOST_AT_ONCE = 400_000  # more requests in the system: it is overloaded
LOOK_S = 0.2  # between looks at a running loop
MORE = 4  # times the room, where there was too little
KINDS_OF_CHANGE = {
    "prefill": wd.SERVERS,
    "relay_decode": wd.INSTANCES,
    "main_decode": wd.INSTANCES,
    "line": wd.LINE_SHARE,
    "rate": wd.RATE,
    "cold_cache": wd.COLD,
}


@dataclass(frozen=True)
class Run:
    """A finished run: the world as it was left, and where its pools stand."""

    world: wd.World
    places: Places
    lanes: tuple[Lane, ...]
    context: Context
    crowded: bool  # more requests came than could ever be answered


def simulate_lanes(
    context: Context,
    lanes: Sequence[Lane],
    asked: Asked,
    *,
    end_s: float = np.inf,
    progress: Progress | None = None,
    script: Script | None = None,
    rule: RelayRule | None = None,
    patient: bool = True,
) -> Run:
    """Runs the ways of a plan together. ``end_s`` of simulated time, or the requests answered, whichever is first.

    ``script``: sessions with given turns, none at the start. ``rule``: how the router chooses, instead of the plan's.
    ``patient``: where changes pile more requests up than there was room for, it runs again with more room; else there
    is more from the start, and the run ends where that is full.
    Raises ValueError where the rate shall change of a script with a clock.
    """
    places = places_of(lanes)
    target = float(asked.requests)
    if script is not None and script.at_s is not None:
        if any(change.what == "rate" for change in asked.changes):
            raise ValueError("a script with a clock has its own rate")
        target = min(target, float(script.atom.size))
    rate = sum(case.rate for case, _ in lanes)
    at_once = (int(SPARE * _in_system(lanes)) + LEAST_REQUESTS) * (1 if patient else MORE)
    sessions = LEAST_SESSIONS
    while True:
        rng = np.random.default_rng(asked.seed)
        starting = np.zeros((0, 5))
        if script is None and pinned_share(context, lanes[0][0].deployment) is None:
            starting = build.starting_sessions(context, lanes, places, rng)
        sessions = max(sessions, int(1.5 * len(starting)) + LEAST_SESSIONS)
        world = build.world_of(context, lanes, places, at_once, sessions, target, script, rule)
        spacing = sample_s(target / rate if not np.isfinite(end_s) else end_s)
        arguments = (world, rng, _changes(asked.changes, places), starting, spacing, target, float(end_s))
        watched(run, arguments, (world.total, world.now), min(target, rate * end_s), progress)
        error = world.now[wd.ERROR]
        if error == wd.NO_SESSION:
            sessions *= MORE
        elif error and patient and at_once < MOST_AT_ONCE and (len(asked.changes) or not grows(world.series, rate)):
            at_once *= MORE
        else:
            return Run(world, places, tuple(lanes), context, bool(error))


def watched(
    loop: Callable[..., None],
    arguments: tuple[Any, ...],
    counts: tuple[Array, Array],
    target: float,
    progress: Progress | None,
) -> None:
    """Runs a loop in a thread and looks at its ``counts`` (total, now); what interrupts this thread ends it."""
    total, now = counts
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop, *arguments)
        try:
            while not running.done():
                wait([running], timeout=LOOK_S)
                if progress is not None:
                    answered = float(total[wd.COUNT])
                    progress(min(answered / target, 1.0), f"{answered:,.0f} requests")
            running.result()
        finally:
            if not running.done():
                now[wd.ERROR] = wd.STOPPED


def _in_system(lanes: Sequence[Lane]) -> float:
    """Requests in the system by the formulas, roughly."""
    total = 0.0
    for case, flow in lanes:
        moving = float((flow.line.weight * np.minimum(flow.line.line_time, 1e4)).sum())
        total += case.rate * (moving + case.stage.law.mean_s)
        total += flow.main.occupancy.requests + (flow.relay.requests if flow.relay is not None else 0.0)
    return total


def _changes(changes: Sequence[Change], places: Places) -> Array:
    """Rows (time, what, place, value) of ``engine.run``: instances as servers, shares as bytes/s."""
    rows = []
    for change in changes:
        place, value = change.place, change.value
        if change.what == "prefill":
            value *= places.prefills[place].prefill.servers_per_instance
        elif change.what == "main_decode":
            place += len(places.relays)
        elif change.what == "line":
            value *= places.lines[place].capacity_bytes_per_s
        if change.what == "cold_cache":
            rows += [(change.at_s, wd.COLD, len(places.relays) + m, 0.0) for m in range(len(places.mains))]
        else:
            rows.append((change.at_s, KINDS_OF_CHANGE[change.what], place, value))
    return np.array(rows, dtype=float).reshape(-1, 4)
