"""Aggregated serving, the "don't split" answer: prefill chunks share steps with decodes on the same instances."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import ADMISSION_EPSILON
from pddplan.serve.deployment import Pool
from pddplan.serve.latency import Blend, Mixture
from pddplan.serve.main_decode import length_biased_context, max_offered, occupancy_tail
from pddplan.serve.metrics import Latencies, by_workload
from pddplan.serve.prefill_queue import prefill_waiting
from pddplan.serve.queueing import WaitingLaw, queue_moments
from pddplan.serve.records import Evaluation, PoolLoad, Routing
from pddplan.serve.slo import excuses_of_slo, excuses_of_within, slo_values
from pddplan.spec.types import Metric

Array = NDArray[np.float64]

ROUNDS = 60


@dataclass(frozen=True)
class MixedSteps:
    """Steady state of one aggregated instance."""

    batch: float  # running decodes per instance
    tpot_s: float
    mixed_s: float  # a step with a full chunk
    plain_s: float  # a step without
    mixed_share: float  # share of time in steps with a chunk
    context: float


def mixed_steps(context: Context, pool: Pool, rate: float) -> MixedSteps | Excuse:
    """Fixed point of the batch B of an instance.

    Requests bring E[m]/C full chunks to one of I x dp scheduling units, so the share of time in mixed steps is
    u = rate E[m]/C T_mix(B) / (I dp); steps per second are u/T_mix + (1 - u)/T_plain, each yields one token per
    running request: TPOT = 1/that, B = rate E[n] TPOT / I. Excuse where u reaches 1 or no batch keeps up.
    """
    atoms, service = context.demand.atoms, pool.aggregated
    held = float(length_biased_context(atoms.weight, atoms.prompt, atoms.output, np.zeros_like(atoms.output)))
    units = pool.instances * service.parallelism.dp
    new = atoms.mean(atoms.uncached)
    before = float((atoms.weight * atoms.uncached * (atoms.cached + atoms.uncached / 2)).sum() / new)
    chunk = float(service.chunk_tokens)
    accepted = context.scenario.engine.mtp_accepted_tokens
    tokens = atoms.mean(atoms.output)
    batch, tpot, share, mixed, plain = 1.0, 0.0, 0.0, 0.0, 0.0
    for _ in range(ROUNDS):
        mixed = float(service.step_time_s(batch, held, chunk, before))
        plain = float(service.step_time_s(batch, held, 0.0))
        share = rate * new / chunk * mixed / units
        if share >= 1.0:
            return Excuse("prefill_utilization", share, 1.0, "", "aggregated")
        tpot = 1.0 / ((share / mixed + (1.0 - share) / plain) * accepted)
        following = rate * tokens * tpot / pool.instances
        if following > 4 * service.max_batch:
            return Excuse("decode_slots", following, service.max_batch, "running per instance", "aggregated")
        if abs(following - batch) <= 1e-6 * max(batch, 1.0):
            break
        batch = following
    return MixedSteps(batch, tpot, mixed, plain, share, held)


def evaluate_aggregated(context: Context, pool: Pool, rate: float, *, detail: bool) -> Evaluation:
    """An aggregated pool at ``rate``: TTFT = W + prefill in mixed steps + router, TPOT inflated by the chunks."""
    return aggregated_answer(context, pool, rate, detail=detail)[0]


def aggregated_answer(
    context: Context, pool: Pool, rate: float, *, detail: bool
) -> tuple[Evaluation, Latencies | None]:
    """The evaluation and its latencies, None where the pool has no steady state."""
    steady = mixed_steps(context, pool, rate)
    if isinstance(steady, Excuse):
        return _failed((steady,)), None
    demand, atoms, service = context.demand_on(pool.offer), context.demand.atoms, pool.aggregated
    chunk = float(service.chunk_tokens)
    full = np.floor(atoms.uncached / chunk)
    tail = atoms.uncached - full * chunk
    before = atoms.cached + atoms.uncached / 2
    step = np.asarray(service.step_time_s(steady.batch, steady.context, chunk, before), dtype=float)
    last = np.asarray(service.step_time_s(steady.batch, steady.context, tail, atoms.prompt - tail), dtype=float)
    prefill = full * step + np.where(tail > 0, last, 0.0)
    shared = step * atoms.uncached / chunk
    law = _waiting(context, shared, rate, pool.instances * service.parallelism.dp)
    if isinstance(law, Excuse):
        return _failed((law,)), None
    mixtures = _latencies(context, law, prefill, steady)
    excuses = excuses_of_slo(context, mixtures, True)
    kv_running = float(demand.kv_at(np.asarray(steady.context)))
    excuses += _loads(context, pool, steady, kv_running)
    excuses += excuses_of_within(context, mixtures)
    load = PoolLoad(
        "aggregated",
        steady.mixed_share,
        steady.batch,
        steady.tpot_s,
        service.utilization(max(steady.batch, 1e-6), steady.context, steady.mixed_share * chunk),
        _slot_room(context, pool, steady, kv_running) if detail else None,
    )
    evaluation = Evaluation(
        slo=slo_values(context, mixtures, True) if detail else (),
        loads=(load,),
        lines=(),
        routing=Routing(1.0, 0.0, 0.0, 0.0, None),
        prefill_hit_rate=atoms.hit_rate,
        decode_hit_rate=atoms.hit_rate,
        loop_gain=0.0,
        excuses=tuple(excuses),
        within_slo_share=mixtures.within,
    )
    return evaluation, mixtures


def _waiting(context: Context, time: Array, rate: float, servers: int) -> WaitingLaw | Excuse:
    moments = queue_moments(time, context.demand.atoms.weight)
    traffic = context.scenario.traffic
    return prefill_waiting(traffic.prefix_cache, rate, servers, moments, burstiness=traffic.burstiness)


def _loads(context: Context, pool: Pool, steady: MixedSteps, kv_running: float) -> list[Excuse]:
    found = []
    running, total, bound = _slots(context, pool, steady, kv_running)
    over = float(occupancy_tail(running, total, 1.0)) if total >= 1 else 1.0
    if over > ADMISSION_EPSILON:
        found.append(Excuse("aggregated_slots", over, ADMISSION_EPSILON, bound, "aggregated"))
    cap = context.cap("aggregated")
    if steady.mixed_share > cap:
        found.append(Excuse("aggregated_utilization", steady.mixed_share, cap, "", "aggregated"))
    return found


def _slots(context: Context, pool: Pool, steady: MixedSteps, kv_running: float) -> tuple[float, float, str]:
    """(requests running, slots, what sets them) as the admission row counts them: of the pool, or of one instance."""
    service = pool.aggregated
    limits = {"engine": service.max_batch, "kv_memory": service.kv_pool_bytes / max(kv_running, 1.0)}
    bound = min(limits, key=lambda name: limits[name])
    share = pool.instances if context.pooled_slots else 1
    return steady.batch * share, max(math.floor(limits[bound]), 0) * share, bound


def _slot_room(context: Context, pool: Pool, steady: MixedSteps, kv_running: float) -> float:
    """``1 - a/a_max`` to where the admission row breaks, as ``Slots.room``."""
    running, total, _ = _slots(context, pool, steady, kv_running)
    return 1.0 - running / float(max_offered(total, ADMISSION_EPSILON)) if total >= 1 else 0.0


def _latencies(context: Context, law: WaitingLaw, prefill: Array, steady: MixedSteps) -> Latencies:
    atoms = context.demand.atoms
    router = context.router_s(split=False)
    later = np.maximum(atoms.output - 1, 0.0)
    parts = {"prefill": prefill, "router": np.full_like(prefill, router)}
    stream = {**parts, "main_decode": later * steady.tpot_s}
    one = np.ones(1)
    tpot = Mixture(one, one * steady.tpot_s, None, {"main_decode": one * steady.tpot_s})
    pause = Mixture(one, one * steady.mixed_s, None, {"main_decode": one * steady.mixed_s})

    def of(weight: Array, workload: str | None) -> Latencies:
        ttft = Mixture(weight, prefill + router, law.survival, parts)
        e2e = Mixture(weight, prefill + router + later * steady.tpot_s, law.survival, stream)
        limit = max((s.limit_s for s in context.limits("ttft", workload)), default=float("inf"))
        in_time = steady.tpot_s <= context.tpot_limit_s(workload)
        paced = float(weight[later > 0].sum())
        made: dict[Metric, Mixture | Blend] = {"ttft": ttft, "tpot": tpot, "pause": pause, "e2e": e2e}
        return Latencies({}, lambda: (1.0 - ttft.share_above(limit)) * in_time, made, paced_share=lambda: paced)

    return by_workload(context, of(atoms.weight, None), lambda k, name: of(atoms.weights[k], name))


def _failed(excuses: tuple[Excuse, ...]) -> Evaluation:
    nan = math.nan
    return Evaluation((), (), (), Routing(1.0, 0.0, 0.0, 0.0, None), nan, nan, 0.0, excuses, 0.0)
