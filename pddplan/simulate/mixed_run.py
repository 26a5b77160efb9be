"""A run of an aggregated pool: its tables, the steps until enough requests are answered."""

from __future__ import annotations

import math

import numpy as np

from pddplan.serve.aggregated import mixed_steps
from pddplan.serve.context import Context
from pddplan.serve.deployment import Pool
from pddplan.serve.paces import MixedSteps
from pddplan.serve.prefill_queue import default_threshold
from pddplan.serve.queueing import queue_moments
from pddplan.simulate import mixed_world as mx
from pddplan.simulate import world as wd
from pddplan.simulate.build import BATCHES, BINS, MODES, MOST_SLOTS, SERIES_POINTS, Array, Table, table
from pddplan.simulate.growing import grows, sample_s
from pddplan.simulate.mixed_world import Mix
from pddplan.simulate.mixing import run_mixed
from pddplan.simulate.records import Asked
from pddplan.simulate.run import Progress, watched

MERGES = {"never": mx.NEVER, "whole_fit": mx.WHOLE_FIT, "cut": mx.CUT}
BATCH_POINTS, CHUNK_POINTS, BEFORE_POINTS = 28, 10, 7
LEAST_REQUESTS, SPARE, MOST_AT_ONCE = 4096, 8.0, 200_000
FALL = 0.97


def simulate_mixed(context: Context, pool: Pool, asked: Asked, progress: Progress | None = None) -> tuple[Mix, bool]:
    """(what was counted, whether more came than could ever be answered)."""
    steady = _steady(context, pool)
    rate, target = context.rate, float(asked.requests)
    at_once = LEAST_REQUESTS + int(SPARE * steady.batch * pool.instances)
    while True:
        mix = _mix(context, pool, steady, at_once, target)
        arguments = (mix, np.random.default_rng(asked.seed), sample_s(target / rate), target)
        watched(run_mixed, arguments, (mix.total, mix.now), target, progress)
        if not mix.now[wd.ERROR] or at_once >= MOST_AT_ONCE or grows(mix.series, rate):
            return mix, bool(mix.now[wd.ERROR])
        at_once *= 4


def _steady(context: Context, pool: Pool) -> MixedSteps:
    """The steady state at the rate, or at the largest below it that has one: only its mean context is taken."""
    rate = context.rate
    while not isinstance(steady := mixed_steps(context, pool, rate), MixedSteps):
        rate *= FALL
    return steady


def _mix(context: Context, pool: Pool, steady: MixedSteps, at_once: int, target: float) -> Mix:
    service, traffic, engine = pool.aggregated, context.demand.traffic, context.scenario.engine
    demand = context.demand_on(pool.offer)
    kv_running = float(demand.kv_at(np.asarray(steady.context)))
    slots = int(min(service.max_batch, service.kv_pool_bytes / max(kv_running, 1.0), MOST_SLOTS))
    kinds, workloads = _kinds(context)
    batches, chunks, befores, step = _steps(context, pool, steady, slots)
    units = table(mx.UNIT, pool.instances * service.parallelism.dp)
    asked, now = table(mx.MIX_REQUEST, at_once), np.zeros(wd.NOWS)
    asked["kind"] = -1
    now[wd.BATCH_SIZE] = max(target / BATCHES, 1.0)
    return Mix(
        kinds=kinds,
        units=units,
        instances=table(mx.MIX_INSTANCE, pool.instances),
        requests=asked,
        heap=np.zeros((pool.instances, max(slots, 1) + 1), dtype=np.int64),
        batches=batches,
        chunks=chunks,
        befores=befores,
        step=step,
        slots=max(slots, 1),
        chunk=float(service.chunk_tokens),
        accepted=float(engine.mtp_accepted_tokens),
        merge=MERGES[engine.tail_merge],
        mode=MODES[traffic.prefix_cache],
        leave=_leave(context),
        rate=float(context.rate),
        burstiness=float(traffic.burstiness),
        router=float(context.router_s(split=False)),
        now=now,
        histogram=np.zeros((workloads, wd.METRICS, BATCHES, BINS), dtype=np.int64),
        total=np.zeros(wd.SUMS),
        batch_sums=np.zeros((BATCHES, wd.BATCH_SUMS)),
        series=np.zeros((SERIES_POINTS, wd.SERIES)),
    )


def _leave(context: Context) -> float:
    """Tokens that wait at home above which a request goes elsewhere, by the rule of ``default_threshold``: what a miss
    adds to itself and to those behind it, times being as the tokens."""
    atoms = context.demand.atoms
    hit, miss = (queue_moments(tokens, atoms.weight) for tokens in (atoms.uncached, atoms.prompt))
    return default_threshold(hit, miss)


def _kinds(context: Context) -> tuple[Table, int]:
    """One kind per atom, and the number of workloads."""
    atoms = context.demand.atoms
    names = [None] if not context.names else list(context.names)
    kinds = table(mx.MIX_KIND, atoms.weight.size)
    kinds["workload"], kinds["cumulative"] = atoms.workload, np.cumsum(atoms.weight) / atoms.weight.sum()
    kinds["prompt"], kinds["uncached"], kinds["output"] = atoms.prompt, atoms.uncached, atoms.output
    ttft = np.array([max((s.limit_s for s in context.limits("ttft", name)), default=math.inf) for name in names])
    tpot = np.array([context.tpot_limit_s(name) * (1 + 1e-9) for name in names])
    kinds["ttft_limit"], kinds["tpot_limit"] = ttft[atoms.workload], tpot[atoms.workload]
    return kinds, len(names)


def _steps(context: Context, pool: Pool, steady: MixedSteps, slots: int) -> tuple[Array, Array, Array, Array]:
    """Grids of batch, chunk and tokens before it, and the step's time on them [s]."""
    service, atoms = pool.aggregated, context.demand.atoms
    chunk = float(service.chunk_tokens)
    top = max(float(slots), 2.0)
    batches = np.unique(np.concatenate([[0.0], np.geomspace(1.0, top, BATCH_POINTS)]))
    chunks = np.concatenate([[0.0], np.geomspace(max(chunk / 256.0, 1.0), chunk, CHUNK_POINTS)])
    befores = np.concatenate([[0.0], np.geomspace(256.0, max(float(atoms.prompt.max()), 512.0), BEFORE_POINTS)])
    step = np.asarray(
        service.step_time_s(batches[:, None, None], steady.context, chunks[None, :, None], befores[None, None, :]),
        dtype=float,
    )
    return (
        batches,
        chunks,
        befores,
        np.ascontiguousarray(np.broadcast_to(step, (batches.size, chunks.size, befores.size))),
    )
