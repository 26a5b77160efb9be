"""Plans on which formulas and simulation are compared: queues of every shape, lines, relays, sessions, slots.

Prefill times are dictated (``measured``: proportional to the uncached tokens), so that prompts and hits alone set the
spread of the service times, and a new fit of the efficiency curves doesn't move the queues. Decode steps are the
roofline's. Each cell has its own rate: of prefill's load, of the line's, or of main decode's slots.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, Literal

import numpy as np
import yaml

from pddplan.plan.options import build_shop
from pddplan.plan.solve import prepare
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, LineChoice, Pool
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.queueing import queue_moments
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Role
from tests.host import HOST

Routing = Literal["shared", "sticky", "affine"]
CHIP = {"bf16_tflops": 400, "memory_gb": 640, "memory_gb_per_s": 4000, "interconnect_gb_per_s": 200}
ENGINE = {"name": "generic", "chunk_tokens": 4096, **HOST}
GOODPUT, OUTPUT, BATCH = 0.9, 128, 12.0  # of the line; tokens; requests of a decode instance that isn't the subject
NO_LIMIT = {"p50": 1e5, "p90": 2e5, "p99": 4e5}
SLOW_TOKENS = {"p50": 1e4, "p90": 1.1e4, "p99": 1.2e4}
RELAYED_TOKENS = {"p50": 50, "p90": 60, "p99": 80}  # the relay takes what would be exposed for 8 x 50 ms
MOST_SLOTS = 256
# prompts and prefix hits: squared CV of the prefill times from 0 to about 25
LAWS: dict[str, dict[str, Any]] = {
    "equal": {"prompt_tokens": "16K", "prefix_hit_rate": 0.9, "decode_prefix_hit_rate": 0.9},
    "lengths": {"prompt_tokens": {"mean": 2048, "cv": 1.0}, "prefix_hit_rate": 0, "decode_prefix_hit_rate": 0},
    "half": {
        "prompt_tokens": {"mean": 4096, "cv": 1.0},
        "prefix_hit_rate": 0.5,
        "decode_prefix_hit_rate": 0.5,
    },
    "agent": {
        "prompt_tokens": "16K",
        "prefix_hit_rate": {"mean": 0.9, "share_above_95": 0.75},
        "decode_prefix_hit_rate": 0.9,
    },
    "skewed": {
        "prompt_tokens": "32K",
        "prefix_hit_rate": {"mean": 0.9389, "share_above_95": 0.95},
        "decode_prefix_hit_rate": 0.9389,
    },
    "heavy": {
        "prompt_tokens": {"p50": "16K", "p95": "64K"},
        "prefix_hit_rate": {"mean": 0.9389, "share_above_95": 0.95},
        "decode_prefix_hit_rate": 0.9389,
    },
    "extreme": {
        "prompt_tokens": {"p50": "8K", "p95": "48K"},
        "prefix_hit_rate": {"mean": 0.9389, "share_above_95": 0.95},
        "decode_prefix_hit_rate": 0.9389,
    },
}


@dataclass(frozen=True)
class Cell:
    """One plan at one rate. The first that is given sets the rate: ``slot_load``, ``prefill_load``, ``line_load``."""

    group: str
    law: str
    servers: int = 0  # of prefill; 0: as many as keep a load of 0.4
    prefill_load: float = 0.0
    routing: Routing = "shared"
    burstiness: float = 1.0
    flows: float = 0.0  # m = C/r; 0: one site
    line_load: float = 0.0  # if main decode holds every prefix that the workload pins, all of them with sessions
    relay: int = 0  # instances
    slots: int = MOST_SLOTS  # of a decode instance
    slot_load: float = 0.0  # mean occupancy / slots
    mains: int = 0  # 0: as many as keep the batch at about ``BATCH``
    memory_gb: int = 640  # of a main decode chip
    sessions: bool = False  # main decode's cache holds what its memory has room for
    passes: bool = False  # prefill by the roofline: prompts share passes where somebody waits

    @property
    def name(self) -> str:
        """Group and every setting that isn't the default: unique in the grid."""
        parts = [self.group, self.law, f"c {self.servers}" if self.servers else ""]
        parts += [f"rho {self.prefill_load:g}" if self.prefill_load else ""]
        parts += [self.routing, f"burst {self.burstiness:g}" if self.burstiness != 1 else ""]
        parts += [f"m {self.flows:g}" if self.flows else "", f"line {self.line_load:g}" if self.line_load else ""]
        parts += [f"relay {self.relay}" if self.relay else "", f"memory {self.memory_gb}" if self.sessions else ""]
        parts += [f"slots {self.slots} at {self.slot_load:g}" if self.slot_load else ""]
        return ", ".join(part for part in parts if part)


# ---------------------------------------------------------------- the grid


def cells() -> list[Cell]:
    """All, in a fixed order."""
    return [*_queues(), *_lines(), *_decodes()]


def _queues() -> Iterator[Cell]:
    """Prefill inside one site, by routing, spread, servers, load and bursts."""
    loads = {1: (0.3, 0.6, 0.8, 0.9), 4: (0.5, 0.7, 0.8, 0.9), 16: (0.7, 0.8, 0.9), 40: (0.8, 0.9)}
    for law, (servers, rhos) in product((law for law in LAWS if law != "half"), loads.items()):
        for rho in rhos:
            yield Cell("one queue", law, servers, rho)
    for law, servers, rho in product(("equal", "agent", "skewed"), (2, 8), (0.3, 0.5, 0.7, 0.85)):
        yield Cell("queues of their own", law, servers, rho, "sticky")
    for law, servers, rho in product(("lengths", "half", "agent"), (2, 8), (0.3, 0.5, 0.7, 0.85)):
        yield Cell("home and elsewhere", law, servers, rho, "affine")
    for law, burst, servers, rho in product(("equal", "agent", "skewed"), (2.0, 4.0), (2, 8), (0.5, 0.8)):
        yield Cell("bursts", law, servers, rho, burstiness=burst)
    for law, rho in product(("equal", "lengths", "agent"), (0.5, 0.7, 0.85)):
        yield Cell("shared passes", law, 4, rho, passes=True)


def _lines() -> Iterator[Cell]:
    """Two sites: the line alone, beside a loaded prefill, with a relay."""
    for law, flows, load in product(
        ("equal", "lengths", "agent", "skewed"), (1.0, 2.5, 4.0, 8.0, 20.0), (0.3, 0.5, 0.7, 0.8, 0.9)
    ):
        if load > 0.3 or flows in (2.5, 8.0):
            yield Cell("line", law, flows=flows, line_load=load)
    for law, flows, load in product(("lengths", "agent", "skewed"), (4.0, 8.0), (0.7, 0.85)):
        yield Cell("line and prefill", law, 4, 0.8, flows=flows, line_load=load)
    for law, flows, load in product(("lengths", "agent", "skewed"), (4.0, 20.0), (0.5, 0.7, 0.85)):
        yield Cell("relay", law, flows=flows, line_load=load, relay=8)


def _decodes() -> Iterator[Cell]:
    """Main decode: few slots, of one pool or of each instance; and its cache of idle sessions."""
    routings: tuple[Routing, ...] = ("shared", "sticky")
    for routing, slots, load in product(routings, (8, 32), (0.5, 0.7, 0.85)):
        yield Cell("slots", "equal", routing=routing, slots=slots, slot_load=load, mains=4)
    for memory, rho in product((80, 160, 320), (0.5, 0.7)):
        yield Cell("sessions", "agent", 4, rho, mains=4, memory_gb=memory, sessions=True)
    for memory, relay in product((320, 480), (0, 16)):
        yield Cell("sessions", "agent", 4, 0.5, flows=8, line_load=0.15, relay=relay, mains=4, memory_gb=memory,
                   sessions=True)  # fmt: skip


# ---------------------------------------------------------------- building


def scenario_data(cell: Cell, rate: float, gbit: float, stream_gbit: float) -> dict[str, Any]:
    """The cell's scenario as a person would write it; sites and line as wide as asked."""
    work = copy.deepcopy(LAWS[cell.law]) | {"request_rate_per_s": rate, "prefix_cache": cell.routing}
    work |= {"output_tokens": {"mean": OUTPUT, "cv": 0.7}, "burstiness": cell.burstiness}
    if cell.sessions:
        del work["decode_prefix_hit_rate"]
        work["sessions"] = {"turns": 20, "seconds_between_turns": {"p50": 10, "p90": 60}}
    tp = {"tp": [1], "pp": [1]}
    fast = {"chip": CHIP | {"name": "counter"}, "max": 100_000, "usd_per_hour": 2.0, "parallelism": tp}
    if not cell.passes:
        fast["measured"] = {"prefill": {"chips_per_instance": 1, "ttft_s": {1024: 0.1}}}
    keeper = CHIP | {"name": "keeper", "memory_gb": cell.memory_gb}
    slow = {"chip": keeper, "max": 100_000, "usd_per_hour": 1.0, "parallelism": tp}
    sites = [
        {"name": "north", "roles": ["prefill", "relay_decode"], "chips": [fast]},
        {"name": "west", "roles": ["main_decode"], "chips": [slow]},
    ]
    data: dict[str, Any] = {
        "name": "agreement",
        "model": "llama-3.1-8b",
        "precision": {"weights": "bf16", "kv_cache": "bf16"},
        "engine": ENGINE | {"max_batch": cell.slots, "tail_merge": "whole_fit" if cell.passes else "never"},
        "workload": work,
        "sites": sites,
        "slo": {"ttft_s": NO_LIMIT, "tpot_ms": RELAYED_TOKENS if cell.relay else SLOW_TOKENS},
        "max_utilization": 1,
    }
    if not cell.flows:
        data["sites"] = [
            {"name": "north", "roles": ["prefill", "relay_decode", "main_decode"], "chips": [fast, slow]},
        ]
        return data
    tier = {"gbit_per_s": gbit, "usd_per_hour": 1}
    link = {"between": ["north", "west"], "rtt_ms": 8, "goodput": GOODPUT, "max_lines": 1, "tiers": [tier]}
    return data | {"links": [link | {"streams": 1, "stream_gbit_per_s": stream_gbit}]}


@lru_cache(8)
def _context(cell: Cell, gbit: float, stream_gbit: float) -> Context:
    return prepare(load_scenario_text(yaml.safe_dump(scenario_data(cell, 1.0, gbit, stream_gbit)), "cell.yaml"))


@dataclass(frozen=True)
class Built:
    """A cell's plan at its rate."""

    context: Context
    plan: Deployment
    skew: float  # squared CV of the prefill times
    prefill_load: float
    flows: float  # m
    line_load: float


def build(cell: Cell) -> Built:
    """The cell's plan: pools by hand, the rate and the line's width from the loads that are asked."""
    context = _context(cell, 1.0, 1.0)
    served = _pools(context, cell)
    stage = context.prefill_stage(served["prefill"], 1e-6, served["main_decode"])
    assert isinstance(stage, PrefillStage)
    bytes_each = _line_bytes(context, cell)
    stream, gbit, rate = 1.0, cell.flows / GOODPUT, 0.0
    if cell.slot_load:
        table = context.step_surface(served["main_decode"]).table(context.demand.mean_context)
        batch = cell.slot_load * cell.slots
        rate = cell.mains * batch / table.at(batch) / max(context.demand.mean_output - 1.0, 1.0)
    elif cell.prefill_load:
        rate = cell.prefill_load * cell.servers / stage.saturated_s
        if cell.flows:
            gbit = rate * bytes_each * 8e-9 / (GOODPUT * cell.line_load)
            stream = gbit * GOODPUT / cell.flows
    else:
        rate = cell.line_load * cell.flows * 1e9 / 8 / bytes_each
    servers = cell.servers or max(math.ceil(rate * stage.saturated_s / 0.4), 2)
    context = _context(cell, gbit, stream).at_rate(rate)
    plan = _plan(context, cell, rate, servers)
    first, second, _ = queue_moments(stage.time_s - _fetch(context, plan), context.demand.atoms.weight)
    load = rate * stage.saturated_s / servers
    return Built(context, plan, second / first**2 - 1.0, load, cell.flows, cell.line_load)


def _fetch(context: Context, plan: Deployment) -> np.ndarray[Any, np.dtype[np.float64]]:
    assert plan.prefill is not None
    return context.prefill_times(plan.prefill).fetch


def _line_bytes(context: Context, cell: Cell) -> float:
    """Mean bytes of a request over the line; with sessions, if every prefix is held."""
    atoms, demand = context.demand.atoms, context.demand
    held = 1.0 if context.given_hit_share is None else context.given_hit_share
    return float(held * atoms.mean(demand.delta_held) + (1.0 - held) * atoms.mean(demand.delta_cold))


def _pools(context: Context, cell: Cell) -> dict[Role, Pool]:
    """One instance of each role: prefill and relay on the fast chip, main decode on the other."""
    shop = build_shop(context)
    roles: tuple[tuple[Role, str], ...] = (
        ("prefill", "counter"), ("relay_decode", "counter"), ("main_decode", "keeper"),
    )  # fmt: skip
    return {role: next(o for o in shop.pools[role] if chip in o.offer.chip.id).pool(1) for role, chip in roles}


def _plan(context: Context, cell: Cell, rate: float, servers: int) -> Deployment:
    served = _pools(context, cell)
    prefill, relay, main = (served[role] for role in ("prefill", "relay_decode", "main_decode"))
    step = context.step_surface(main).table(context.demand.mean_context).at(BATCH)
    mains = cell.mains or max(round(rate * OUTPUT * step / BATCH), 1)
    line = LineChoice(context.scenario.links[0], 0, 1, "north", "west") if cell.flows else None
    return Deployment(
        prefill=Pool("prefill", prefill.site, prefill.offer, prefill.service, servers),
        relay=Pool("relay_decode", relay.site, relay.offer, relay.service, cell.relay) if cell.relay else None,
        main=Pool("main_decode", main.site, main.offer, main.service, mains),
        line=line,
    )


# ---------------------------------------------------------------- figures and bars


LEAST_WAIT, SKEWED, MOST_SKEW, BUSY_LINE, FEW_FLOWS = 0.1, 5.0, 30.0, 0.7, 8.0
PART = 3.0  # a figure counts where its half-width is at most this part of its bar
WAIT, RELAY_TOKENS = "mean wait", "relay tokens"
STEADY = {"ttft p50": (3.0, 10.0), "ttft p90": (5.0, 10.0), "ttft p99": (5.0, 10.0)}  # bars of median and worst [%]
BROAD = {"ttft p50": (5.0, 35.0), "ttft p90": (8.0, 35.0), "ttft p99": (5.0, 35.0)}
WITHIN = {  # every counted cell [%], relay tokens in points
    WAIT: 15.0,
    **{f"line p{q}": 8.0 for q in (50, 90, 99)},
    **{f"tpot p{q}": 3.0 for q in (50, 90, 99)},
    RELAY_TOKENS: 0.3,
}
BESIDE = (  # without a bar: they say which stage is off
    *(f"prefill p{q}" for q in (50, 90, 99)),
    *(f"exposed p{q}" for q in (50, 90, 99)),
    "wait share",
    "slot wait share",
    "held share",
)
FIGURES = (*STEADY, *WITHIN, *BESIDE)


@dataclass(frozen=True)
class Figure:
    """A figure of a cell by the formulas and simulated; ``half`` its 95 % interval either way, in percent of it; in
    points for shares."""

    formula: float
    simulated: float
    half: float
    points: bool = False

    @property
    def error(self) -> float:
        if self.points:
            return 100.0 * (self.formula - self.simulated)
        return 100.0 * (self.formula / self.simulated - 1.0)


@dataclass(frozen=True)
class Answer:
    """A cell's figures, empty where the simulation has no steady state."""

    cell: Cell
    built: tuple[float, float, float, float]  # c_s^2, prefill load, m, line load
    p_wait: float
    requests: int
    figures: dict[str, Figure] = field(default_factory=dict)

    @property
    def skewed(self) -> bool:
        return self.built[0] > SKEWED

    def bar(self, name: str) -> tuple[float, float] | None:
        """Bars of the median and of the worst cell, None where the figure has none in this cell."""
        if name in STEADY or name == WAIT:
            if self.p_wait < LEAST_WAIT or self.built[0] > MOST_SKEW:
                return None
            if name != WAIT:
                return (BROAD if self.skewed else STEADY)[name]
        return (WITHIN[name], WITHIN[name]) if name in WITHIN else None

    def counts(self, name: str) -> bool:
        bar = self.bar(name)
        return bar is not None and name in self.figures and self.figures[name].half <= bar[0] / PART
