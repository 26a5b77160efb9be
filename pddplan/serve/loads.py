"""Rows of a plan that aren't latencies, and its loads: memory, slots, line, caps, who goes by the relay."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import ADMISSION_EPSILON, MainState
from pddplan.serve.deployment import Pool
from pddplan.serve.equilibrium import Case, Flow
from pddplan.serve.records import LineLoad, PoolLoad, Routing


def line_excuses(case: Case, flow: Flow) -> list[Excuse]:
    """The line's mean load against its cap."""
    rho, cap = flow.line.rho, case.context.cap_line
    return [Excuse("line_utilization", rho, cap, "", "line")] if rho > cap * (1 + 1e-9) else []


def relay_excuses(case: Case, flow: Flow) -> list[Excuse]:
    """The relay's slots and load, nothing without a relay."""
    relay, cap = flow.relay, case.context.cap("relay_decode")
    if relay is None:
        return []
    found: list[Excuse] = []
    if relay.p_wait > ADMISSION_EPSILON:
        found.append(Excuse("relay_slots", relay.p_wait, ADMISSION_EPSILON, relay.slots.bound, "relay_decode"))
    if relay.load > cap:
        found.append(Excuse("relay_utilization", relay.load, cap, "", "relay_decode"))
    return found


def prefill_excuses(pool: Pool, ways: Sequence[tuple[Case, Flow]]) -> list[Excuse]:
    """KV memory of a prefill pool: what its passes work on and what waits for the line, of all its ways."""
    held = 0.0
    for case, flow in ways:
        demand = case.context.demand_on(pool.offer)
        held += case.rate * float(demand.atoms.weight @ (case.stage.time_s * demand.kv_prompt))
        held += case.rate * float(((flow.line.weight * np.maximum(flow.line.predicted, 0.0)) @ demand.kv_prompt).sum())
    room = pool.prefill.kv_pool_bytes * pool.instances
    return [Excuse("prefill_kv_memory", held, room, "bytes", "prefill")] if held > room else []


def main_excuses(context: Context, pool: Pool, main: MainState) -> list[Excuse]:
    """Rows of main decode: memory, slots, cap."""
    found: list[Excuse] = []
    cap = context.cap("main_decode")
    held, room = main.running_bytes + main.under_way_bytes, pool.decode.kv_pool_bytes * pool.instances
    if held > room:
        found.append(Excuse("main_decode_kv_memory", held, room, "bytes", "main_decode"))
    if main.busy_share > cap:
        found.append(Excuse("main_decode_utilization", main.busy_share, cap, "", "main_decode"))
    if math.isfinite(main.occupancy.tpot_s):
        if main.p_overflow > ADMISSION_EPSILON:
            over = main.p_overflow
            found.append(Excuse("main_decode_slots", over, ADMISSION_EPSILON, main.slots.bound, "main_decode"))
        load = main.occupancy.requests / max(main.slots.total, 1e-9)
        if load > cap:
            found.append(Excuse("main_decode_utilization", load, cap, "", "main_decode"))
    return found


def gain_excuses(gain: float) -> list[Excuse]:
    """The loop from hit share to hit share must not feed on itself."""
    return [Excuse("loop_gain", gain, 1.0, "", "main_decode")] if gain >= 1.0 else []


def line_load(ways: Sequence[tuple[Case, Flow]]) -> LineLoad:
    """Load of a line by all the ways that use it."""
    mean = sum(case.rate * flow.line.bytes_per_request for case, flow in ways)
    case, flow = ways[0]
    return LineLoad(mean, case.move.capacity, flow.line.rho, mean / sum(case.rate for case, _ in ways))


def routing_of(context: Context, flow: Flow) -> Routing:
    """Who goes by the relay on one way, in shares of its requests."""
    ways, relay = flow.ways, flow.relay
    relayed = filtered = tokens = 0.0
    if ways is not None and relay is not None:
        relayed, filtered = float(ways.relayed.sum()), float(ways.filtered.sum())
        tokens = float(np.einsum("r,rp,p->", ways.relayed, relay.eager, flow.line.probability))
        tokens += float(ways.filtered @ context.demand.atoms.output[ways.atom])
    sent = max(flow.line.bytes_per_request + flow.saved_bytes, 1e-9)
    threshold = flow.threshold_s if math.isfinite(flow.threshold_s) else None
    return Routing(
        direct_share=max(1.0 - relayed - filtered, 0.0),
        relay_share=relayed,
        filtered_share=filtered,
        relay_token_share=tokens / context.demand.mean_output,
        threshold_s=threshold,
        stay_s=flow.stay_s if relay is not None else 0.0,
        saved_bytes_share=flow.saved_bytes / sent,
        owed_bytes_share=flow.owed_bytes / sent,
    )


def prefill_load(pool: Pool, ways: Sequence[Case]) -> PoolLoad:
    """Load of a prefill pool."""
    stage, atoms = ways[0].stage, ways[0].context.demand.atoms
    return PoolLoad(
        "prefill",
        stage.rho,
        stage.busy_servers / pool.instances,
        atoms.mean(stage.time_s),
        pool.prefill.utilization(atoms.uncached, atoms.cached, min(stage.rho, 1.0)),
    )


def relay_load(pool: Pool, flow: Flow) -> PoolLoad:
    """Load of a relay pool, idle where nobody is relayed."""
    relay = flow.relay
    if relay is None:
        return PoolLoad("relay_decode", 0.0, 0.0, math.nan, None)
    batch = relay.requests / pool.instances
    used = pool.decode.utilization(max(batch, 1e-6), relay.context, min(batch, 1.0))
    room = relay.slots.room(relay.requests, 1.0, ADMISSION_EPSILON)
    return PoolLoad("relay_decode", relay.load, batch, relay.tau_s, used, room)


def main_decode_load(pool: Pool, main: MainState) -> PoolLoad:
    """Load of a main-decode pool."""
    return PoolLoad(
        "main_decode",
        main.busy_share or main.occupancy.requests / max(main.slots.total, 1e-9),
        main.occupancy.batch if math.isfinite(main.occupancy.tpot_s) else math.nan,
        main.occupancy.tpot_s,
        pool.decode.utilization(max(main.occupancy.batch, 1e-6), main.context),
        main.slot_room,
    )
