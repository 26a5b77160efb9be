"""Claude Code sessions on two sites: a relay that keeps what it gets, and one that hands over.

The sites are those of examples/agent_64k.yaml; pools and line are sized for the sessions with both routes allowed:
those that send more than 20,000 tokens go by the relay, and main decode gets everybody in the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pddplan.plan.options import PoolOption, build_shop
from pddplan.plan.solve import prepare
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, LineChoice
from pddplan.serve.evaluate import flows_of
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.records import Routing
from pddplan.serve.traffic import Atoms
from pddplan.simulate import world as wd
from pddplan.simulate.growing import grows
from pddplan.simulate.records import Asked, RelayRule, Script
from pddplan.simulate.run import simulate_lanes
from pddplan.spec.load import load_scenario
from pddplan.spec.types import Role
from tests.stability.sessions import main_agents

Array = NDArray[np.float64]

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent_64k.yaml"
ABOVE_TOKENS, RATE, LOAD, MAINS = 20_000.0, 20.0, 0.5, 16  # requests/s; load of prefill and line
ONE, MANY = 1, 12  # relay instances: what both routes need, and more than the trap can fill
RELAYING_S = 0.0  # threshold of the formulas, at which the relay is in use: they size its slots
SETTINGS = (
    f"workload.request_rate_per_s={RATE:g}",
    "workload.sessions={turns: 68, seconds_between_turns: {p50: 17, p90: 129}}",
    "slo={tpot_ms: {p90: 60}}",
    "links[0].streams=8",
)
LAYOUTS: dict[Role, str] = {"prefill": "tp4-dp4-ep16", "relay_decode": "dp16-ep16", "main_decode": "dp32-ep32"}


@dataclass(frozen=True)
class Study:
    """Sessions, and two sites that serve them with both routes allowed."""

    context: Context
    deployment: Deployment
    script: Script
    above_bytes: float


@lru_cache(2)
def study(folder: Path, relays: int) -> Study:
    """The main agents of the trace on pools of their size."""
    return study_of(*main_agents(folder), relays)


def study_of(atoms: Atoms, script: Script, relays: int) -> Study:
    """Pools by load: prefill's servers and the line half busy, main decode with room for all idle sessions."""
    context = prepare(load_scenario(EXAMPLE, overrides=SETTINGS)).with_atoms(atoms)
    shop = build_shop(context)
    chosen = {role: _option(shop.pools[role], layout) for role, layout in LAYOUTS.items()}
    prefill, main = chosen["prefill"].pool(1), chosen["main_decode"].pool(MAINS)
    stage = context.prefill_stage(prefill, 1e-6, main)
    assert isinstance(stage, PrefillStage)
    count = math.ceil(RATE * stage.saturated_s / LOAD / prefill.prefill.servers_per_instance)
    link = context.scenario.links[0]
    sent = RATE * float(atoms.weight @ context.demand.delta_held) * 8e-9
    lines = math.ceil(sent / LOAD / (link.tiers[0].gbit_per_s * link.goodput))
    deployment = Deployment(
        prefill=replace(prefill, instances=count),
        relay=chosen["relay_decode"].pool(relays),
        main=main,
        line=LineChoice(link, 0, lines, "north", "west"),
    )
    per_token = float(context.demand.kv_at(np.asarray(1e5)) / 1e5)
    return Study(context, deployment, script, ABOVE_TOKENS * per_token)


def _option(options: tuple[PoolOption, ...], layout: str) -> PoolOption:
    return next(option for option in options if str(option.pool(1).decode.parallelism) == layout)


@dataclass(frozen=True)
class Followed:
    """A run over time, and what the second half of its requests did."""

    hours: Array  # (points,)
    in_system: Array  # requests
    waiting: Array  # of them for a slot of the relay
    kept_hours: Array  # (batches,) when each ended
    kept_share: Array  # of its requests: answered by the relay alone
    kept: float
    relayed: float  # answered by the relay first, then by main decode
    held: float  # of the prefixes that prefill hit, main decode had so many
    grows: bool


def followed(study: Study, only: bool, requests: int, seed: int = 1, end_s: float = math.inf) -> Followed:
    """The sessions on the study's pools: above the limit by the relay, which keeps them (``only``) or hands over.

    Raises ValueError where the formulas have no answer for the plan.
    """
    lanes = flows_of(study.context, study.deployment, RATE, Routing(0.5, 0.5, 0.0, 0.0, RELAYING_S))
    if not isinstance(lanes, tuple):
        raise ValueError(str(lanes))
    rule = RelayRule(study.above_bytes, only)
    run = simulate_lanes(study.context, lanes, Asked(requests, seed), end_s=end_s, script=study.script, rule=rule)
    rows, sums = run.world.series, run.world.batch_sums
    rows, sums = rows[rows[:, wd.AT] > 0], sums[sums[:, wd.BATCH_COUNT] > 0]
    counts, late = sums[:, wd.BATCH_COUNT], sums[len(sums) // 2 :].sum(axis=0)
    return Followed(
        hours=rows[:, wd.AT] / 3600,
        in_system=rows[:, wd.NUMBER],
        waiting=rows[:, wd.RELAY_WAITING],
        kept_hours=np.interp(np.cumsum(counts), rows[:, wd.DONE_SO_FAR], rows[:, wd.AT]) / 3600,
        kept_share=sums[:, wd.BATCH_FILTERED] / counts,
        kept=float(late[wd.BATCH_FILTERED] / late[wd.BATCH_COUNT]),
        relayed=float(late[wd.BATCH_RELAYED] / late[wd.BATCH_COUNT]),
        held=float(late[wd.BATCH_HELD] / late[wd.BATCH_HIT]),
        grows=grows(run.world.series, RATE),
    )
