"""Tables and an empty state of the event loop from a plan whose stages are in equilibrium.

Taken from the formulas: service times, sizes, ceilings, the router's rule (it goes by the exposed transfer that the
formulas predict), slots. Not taken: waiting, sharing, occupancy, hit rates at main decode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.context import Context
from pddplan.serve.conversion import sending
from pddplan.serve.deployment import LineChoice, Pool
from pddplan.serve.discretize import as_floats
from pddplan.serve.equilibrium import Case, Flow, pinned_share, tier_bytes
from pddplan.serve.prefill_queue import default_threshold
from pddplan.serve.queueing import queue_moments
from pddplan.simulate import world as wd
from pddplan.simulate.records import RelayRule, Script

Array = NDArray[np.float64]
Lane = tuple[Case, Flow]
Table = np.recarray[Any, np.dtype[np.void]]
T = TypeVar("T")

MODES = {"shared": wd.SHARED, "sticky": wd.STICKY, "affine": wd.AFFINE}
BATCHES = 32
BINS = 5600
SERIES_POINTS = 400
MOST_SLOTS = 4096  # of an instance


@dataclass(frozen=True)
class Places:
    """Pools and lines of a plan in the order of the tables."""

    prefills: tuple[Pool, ...]
    relays: tuple[Pool, ...]
    mains: tuple[Pool, ...]
    lines: tuple[LineChoice, ...]

    @property
    def decodes(self) -> tuple[Pool, ...]:
        return (*self.relays, *self.mains)


def places_of(lanes: Sequence[Lane]) -> Places:
    """Each pool and line once, in the order of the routes."""
    prefills: list[Pool] = []
    relays: list[Pool] = []
    mains: list[Pool] = []
    lines: list[LineChoice] = []
    for case, _ in lanes:
        way = case.deployment
        assert way.prefill is not None and way.main is not None
        _once(prefills, way.prefill)
        _once(mains, way.main)
        if way.relay is not None:
            _once(relays, way.relay)
        if way.line is not None:
            _once(lines, way.line)
    return Places(tuple(prefills), tuple(relays), tuple(mains), tuple(lines))


def table(row: np.dtype[np.void], *shape: int) -> Table:
    """Rows of zeros whose columns are attributes."""
    return np.zeros(shape, dtype=row).view(np.recarray)


def _once(known: list[T], thing: T) -> None:
    if all(other is not thing for other in known):
        known.append(thing)


def _index(of: Sequence[T], thing: T) -> int:
    return next(i for i, other in enumerate(of) if other is thing)


# ---------------------------------------------------------------- kinds of request


def kinds_of(lanes: Sequence[Lane], places: Places, workloads: int) -> tuple[Table, Table, Table]:
    """(kinds, ways (2, kinds), first and last kind of each workload): one kind per atom of every route, by workload."""
    total = sum(case.rate for case, _ in lanes)
    tables = [_columns(case, flow, places, case.rate / total) for case, flow in lanes]
    merged = {name: np.concatenate([table[name] for table in tables], axis=-1) for name in tables[0]}
    order = np.argsort(merged["workload"], kind="stable")
    merged = {name: values[..., order] for name, values in merged.items()}
    ends = np.searchsorted(merged.pop("workload"), np.arange(workloads + 1))
    weight = merged.pop("weight")
    merged["cumulative"] = np.empty_like(weight)
    bounds = table(wd.WORKLOAD, workloads)
    for k in range(workloads):
        bounds[k].first, bounds[k].last = ends[k], ends[k + 1]
        own = np.cumsum(weight[ends[k] : ends[k + 1]])
        merged["cumulative"][ends[k] : ends[k + 1]] = own / own[-1] if own.size else own
    kinds, ways = table(wd.KIND, order.size), table(wd.WAY, 2, order.size)
    for rows in (kinds, ways):
        for name in rows.dtype.names or ():
            rows[name] = merged[name]
    return kinds, ways, bounds


def _columns(case: Case, flow: Flow, places: Places, share: float) -> dict[str, Array]:
    """Columns of a route's atoms: (atoms,) or (2, atoms)."""
    context, way, move = case.context, case.deployment, case.move
    assert way.prefill is not None and way.main is not None
    atoms, demand = context.demand.atoms, context.demand_on(way.main.offer)
    times = context.sent_times(way.prefill, sending(context.demand, way.prefill, way.main, way.relay))
    size = atoms.weight.size
    both = (2, size)

    def one(value: float) -> Array:
        return np.full(size, float(value))

    filtered = np.zeros(both)
    if flow.ways is not None:
        ways = flow.ways
        filtered[ways.kind, ways.atom] = ways.filtered / np.maximum(ways.weight, 1e-300)
    wait, added = context.extend_cost(way.main)
    fresh = move.size - move.prefix
    line, relay, delay = way.line, way.relay, np.asarray(move.exposure.delay_s)
    return {
        "workload": atoms.workload.astype(float),
        "weight": share * atoms.weight,
        "prefill": one(_index(places.prefills, way.prefill)),
        "line": one(-1 if line is None else _index(places.lines, line)),
        "relay": one(-1 if relay is None else _index(places.relays, relay)),
        "main": one(len(places.relays) + _index(places.mains, way.main)),
        "alone": times.alone,
        "shared": times.shared,
        "miss": np.maximum(times.miss_shared, times.shared),
        "fetch": times.fetch,
        "output": atoms.output,
        "prompt": atoms.prompt,
        "uncached": atoms.uncached,
        "kv_prompt": demand.kv_prompt,
        "kv_running": demand.kv_at(demand.middle_context),
        "kv_session": demand.kv_session,
        "sends": move.size,
        "ceiling": np.minimum(move.ceiling, move.capacity),
        "ramp": np.broadcast_to(move.ramp_s, both),
        "last": fresh * case.stage.last_chunk_share / context.demand.layers,
        "delay": np.broadcast_to(delay[..., 0] if delay.ndim else delay, both),
        "exposed": np.broadcast_to(move.exposure.at(1.0)[..., 0], both),
        "relays": np.where(flow.line.predicted > flow.threshold_s, 1.0, 0.0) if relay is not None else np.zeros(both),
        "filtered": filtered,
        "rdma": move.rdma_s if relay is not None else np.zeros(size),
        "rtt": one(move.rtt_s),
        "extend_s": one(float(np.mean(as_floats(wait.t0_s)))),
        "extend_rate": one(float(np.mean(as_floats(wait.tokens_per_s)))),
        "added_s": one(float(np.mean(as_floats(added.t0_s)))),
        "main_stall": np.zeros(both) if move.main_converts_s is None else move.main_converts_s,
        "relay_stall": np.zeros(size) if move.relay_converts_s is None else move.relay_converts_s,
    }


# ---------------------------------------------------------------- arrivals


def law_of(context: Context, lanes: Sequence[Lane], workloads: Table) -> wd.Law:
    """Arrivals of all ``workloads``, whose columns are filled: sessions where main decode's cache is an outcome, else
    single requests."""
    traffic, sessions = context.scenario.traffic, context.demand.sessions
    rates = np.asarray(traffic.rates, dtype=float) if traffic.several else np.array([traffic.request_rate_per_s])
    pinned = pinned_share(context, lanes[0][0].deployment)
    ends = np.array([gap.end_probability for gap in sessions.gaps])
    new = rates * ends
    names = [None] if not context.names else list(context.names)
    workloads["session_share"] = np.cumsum(new) / max(float(new.sum()), 1e-300)
    workloads["request_share"] = np.cumsum(rates) / float(rates.sum())
    workloads["ends"] = ends
    workloads["gap_mu"] = [math.log(gap.p50_s) for gap in sessions.gaps]
    workloads["gap_sigma"] = [gap.sigma for gap in sessions.gaps]
    workloads["held"] = 0.0 if pinned is None else sessions.of_each(pinned)
    workloads["ttft_limit"] = [
        max((s.limit_s for s in context.limits("ttft", name)), default=math.inf) for name in names
    ]
    workloads["tpot_limit"] = [context.tpot_limit_s(name) * (1 + 1e-9) for name in names]
    return wd.Law(
        sessions=pinned is None and bool((ends > 0).all()),
        mode=MODES[traffic.prefix_cache],
        rate=float(rates.sum()),
        session_rate=float(new.sum()),
        burstiness=float(traffic.burstiness),
        stay=float(lanes[0][1].stay_s),
        router=float(context.router_s(split=True)),
        on_prefill=traffic.first_token == "on_prefill",
        relay_above=math.nan,
        relay_only=False,
    )


def scripted(law: wd.Law, script: Script | None, rule: RelayRule | None) -> wd.Law:
    """The law where sessions follow a script, and where the router goes by a rule of its own."""
    if script is not None:
        law = law._replace(sessions=True, session_rate=law.rate / script.mean_turns)
    return law if rule is None else law._replace(relay_above=rule.above_bytes, relay_only=rule.only)


def turns_of(script: Script | None) -> tuple[NDArray[np.int64], Table, Array]:
    """(first turn of each script and the end, turns, when each begins); without a script none."""
    if script is None:
        return np.zeros(1, dtype=np.int64), table(wd.SCRIPT_TURN, 1), np.zeros(0)
    turns = table(wd.SCRIPT_TURN, script.atom.size)
    turns["kind"], turns["gap"], first = script.atom, script.gap_s, script.first.astype(np.int64)
    if script.at_s is None:
        return first, turns, np.zeros(0)
    turns["at"] = script.at_s
    return first, turns, np.ascontiguousarray(script.at_s[first[:-1]])


def starting_sessions(context: Context, lanes: Sequence[Lane], places: Places, rng: np.random.Generator) -> Array:
    """Sessions that lie idle at the start, the longest idle first: (n, 5) of ``engine.run``.

    Of those to come back as many as there are on average, each somewhere in a gap that is length-biased; in place of
    those that are being answered as many more; of ended ones so many as the cache's residence lets pile up.
    """
    sessions = context.demand.sessions
    found = []
    for case, flow in lanes:
        atoms, demand = case.context.demand.atoms, case.context.demand_on(_main(case).offer)
        life_s = flow.main.life_s + float((flow.line.weight * np.minimum(flow.line.line_time, 1e4)).sum())
        horizon = min(flow.main.residence_s, 4.0 * max(gap.p90_s for gap in sessions.gaps))
        for k, gap in enumerate(sessions.gaps):
            own = np.where(atoms.workload == k, atoms.weight, 0.0)
            rate = case.rate * float(own.sum())
            if rate <= 0:
                continue
            back = rng.poisson(rate * (1.0 - gap.end_probability) * gap.mean_s)
            running = rng.poisson(rate * life_s)  # being answered: they ask within as long
            whole = np.exp(math.log(gap.p50_s) + gap.sigma**2 + gap.sigma * rng.standard_normal(back))
            age = rng.random(back) * whole
            over = rng.poisson(rate * gap.end_probability * horizon)
            ages = np.concatenate([age, np.zeros(running), rng.random(over) * horizon])
            due = np.concatenate([whole - age, rng.random(running) * life_s, np.full(over, np.inf)])
            size = rng.choice(demand.kv_session, ages.size, p=own / own.sum())
            pool = len(places.relays) + _index(places.mains, _main(case))
            found.append(np.stack([np.full(ages.size, k), due, size, np.full(ages.size, pool), ages], axis=1))
    rows = np.concatenate(found)
    return np.ascontiguousarray(rows[np.argsort(-rows[:, 4], kind="stable")])


def _main(case: Case) -> Pool:
    assert case.deployment.main is not None
    return case.deployment.main


# ---------------------------------------------------------------- pools


def prefills_of(lanes: Sequence[Lane], places: Places) -> tuple[Table, Table]:
    """(pools, servers), all up; affine: the work at home above which a request goes elsewhere."""
    pools = table(wd.PREFILL, len(places.prefills))
    for row, pool in zip(pools, places.prefills, strict=True):
        case = next(case for case, _ in lanes if case.deployment.prefill is pool)
        way, atoms = case.deployment, case.context.demand.atoms
        times = case.context.sent_times(pool, sending(case.context.demand, pool, way.main, way.relay))
        time = case.stage.time_s - times.fetch
        hit, miss = queue_moments(time, atoms.weight), queue_moments(np.maximum(times.miss_shared, time), atoms.weight)
        row.on = pool.instances * pool.prefill.servers_per_instance
        row.leave = default_threshold(hit, miss)
    pools["last"] = np.cumsum(pools["on"])
    pools["first"] = pools["last"] - pools["on"]
    servers = table(wd.SERVER, int(pools["on"].sum()))
    servers["serving"], servers["up"] = -1, 1
    return pools, servers


def decodes_of(context: Context, lanes: Sequence[Lane], places: Places) -> tuple[Table, Table]:
    """(pools, instances), all up, relays first."""
    pools = table(wd.DECODE, len(places.decodes))
    pools["oldest"] = pools["newest"] = -1
    for row, pool in zip(pools, places.relays, strict=False):
        state = next((f.relay for c, f in lanes if c.deployment.relay is pool and f.relay is not None), None)
        row.slots = 1 if state is None else _whole(state.slots.per_instance)
        row.relay, row.pooled, row.whole, row.memory = 1, 1, math.inf, math.inf
    for row, pool in zip(pools[len(places.relays) :], places.mains, strict=True):
        case, flow = next((c, f) for c, f in lanes if c.deployment.main is pool)
        row.slots = _whole(min(pool.decode.max_batch, flow.main.table.largest_batch(context.tpot_limit_s())))
        row.whole = row.memory = pool.decode.kv_pool_bytes * pool.instances
        row.pooled = 1 if context.pooled_slots else 0
        if case.deployment.decode_cache and pinned_share(context, case.deployment) is None:
            row.cached, row.tier = 1, tier_bytes(pool)
    counts = np.array([pool.instances for pool in places.decodes])
    pools["last"] = np.cumsum(counts)
    pools["first"] = pools["last"] - counts
    instances = table(wd.INSTANCE, int(counts.sum()))
    instances["alive"], instances["tau"] = 1, 1.0
    return pools, instances


def steps_of(context: Context, places: Places, widest: int) -> tuple[Array, Array]:
    """(contexts (pools, contexts), seconds a token (pools, contexts, batch)) at whole batches from 0 to ``widest``."""
    surfaces = [context.step_surface(pool) for pool in places.decodes]
    batch = np.arange(widest + 1, dtype=float)
    step = np.array([[np.interp(batch, s.batch, row) for row in s.seconds] for s in surfaces])
    return np.array([s.context for s in surfaces]), step


def lines_of(places: Places) -> Table:
    lines = table(wd.LINES, len(places.lines))
    lines["capacity"] = [line.capacity_bytes_per_s for line in places.lines]
    return lines


def _whole(slots: float) -> int:
    return max(int(min(slots + 1e-9, MOST_SLOTS)), 1)


def world_of(
    context: Context,
    lanes: Sequence[Lane],
    places: Places,
    requests: int,
    sessions: int,
    answers: float,
    script: Script | None = None,
    rule: RelayRule | None = None,
) -> wd.World:
    """Everything idle and up, with room for so many requests and sessions at once; ``answers`` are asked for.

    Raises ValueError for a script where several routes or workloads share the atoms.
    """
    if script is not None and (len(lanes) > 1 or len(context.demand.sessions.gaps) > 1):
        raise ValueError("a script is for one route and one workload")
    workloads = len(context.demand.sessions.gaps)
    kinds, ways, bounds = kinds_of(lanes, places, workloads)
    law = scripted(law_of(context, lanes, bounds), script, rule)
    scripts, turns, starts = turns_of(script)
    (prefills, servers), (decodes, instances) = prefills_of(lanes, places), decodes_of(context, lanes, places)
    widest = int(decodes["slots"].max())
    contexts, step = steps_of(context, places, widest)
    asked, kept, now = table(wd.REQUEST, requests), table(wd.SESSION, sessions), np.zeros(wd.NOWS)
    asked["slot"] = asked["position"] = kept["turn"] = -1
    now[wd.FACTOR], now[wd.BATCH_SIZE] = 1.0, max(answers / BATCHES, 1.0)
    return wd.World(
        law=law,
        kinds=kinds,
        ways=ways,
        workloads=bounds,
        prefills=prefills,
        servers=servers,
        decodes=decodes,
        instances=instances,
        lines=lines_of(places),
        requests=asked,
        sessions=kept,
        scripts=scripts,
        turns=turns,
        starts=starts,
        contexts=contexts,
        step=step,
        heap=np.zeros((instances.size, widest + 1), dtype=np.int64),
        flows=np.zeros((len(places.lines), requests), dtype=np.int64),
        now=now,
        histogram=np.zeros((workloads, wd.METRICS, BATCHES, BINS), dtype=np.int64),
        total=np.zeros(wd.SUMS),
        batch_sums=np.zeros((BATCHES, wd.BATCH_SUMS)),
        series=np.zeros((SERIES_POINTS, wd.SERIES)),
        busy=np.zeros(prefills.size + decodes.size + len(places.lines)),
    )
