"""Aggregated serving, the "don't split" answer: prefill chunks share steps with decodes on the same instances."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import ADMISSION_EPSILON
from pddplan.serve.deployment import Pool
from pddplan.serve.latency import Blend, Mixture
from pddplan.serve.main_decode import length_biased_context, max_offered, occupancy_tail
from pddplan.serve.metrics import Latencies, by_workload
from pddplan.serve.paces import MixedSteps, Paces, delays, e2e_mixture, paces, tpot_mixture
from pddplan.serve.prefill_queue import prefill_waiting
from pddplan.serve.queueing import WaitingLaw, queue_moments
from pddplan.serve.records import Evaluation, PoolLoad, Routing
from pddplan.serve.slo import excuses_of_slo, excuses_of_within, slo_values
from pddplan.spec.types import Metric

Array = NDArray[np.float64]

ROUNDS = 60
BEHIND_ROUNDS = 2
LEAST_BEHIND = 1e-3  # of a token


def mixed_steps(context: Context, pool: Pool, rate: float, behind_s: float = 0.0) -> MixedSteps | Excuse:
    """Fixed point of the batch B of an instance.

    Requests bring E[m]/C full chunks to one of I x dp scheduling units, so a unit has one for a share
    u = rate E[m]/C T_mix(B) / (I dp) of the time, and the instance, whose units step together, is in mixed steps for
    U = 1 - (1 - u)^dp; steps per second are U/T_mix + (1 - U)/T_plain, each yields one token per running request: its
    pace is 1/that, and B = rate (E[n] pace + ``behind_s``) / I. Excuse where u reaches 1 or no batch keeps up.
    """
    atoms, service = context.demand.atoms, pool.aggregated
    held = float(length_biased_context(atoms.weight, atoms.prompt, atoms.output, np.zeros_like(atoms.output)))
    units = pool.instances * service.parallelism.dp
    new = atoms.mean(atoms.uncached)
    before = float((atoms.weight * atoms.uncached * (atoms.cached + atoms.uncached / 2)).sum() / new)
    chunk = float(service.chunk_tokens)
    accepted = context.scenario.engine.mtp_accepted_tokens
    tokens = atoms.mean(atoms.output)
    batch, pace, share, whole, mixed, plain = 1.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for _ in range(ROUNDS):
        mixed = float(service.step_time_s(batch, held, chunk, before))
        plain = float(service.step_time_s(batch, held, 0.0))
        share = rate * new / chunk * mixed / units
        if share >= 1.0:
            return Excuse("prefill_utilization", share, 1.0, "", "aggregated")
        whole = 1.0 - (1.0 - share) ** service.parallelism.dp
        pace = 1.0 / ((whole / mixed + (1.0 - whole) / plain) * accepted)
        following = rate * (tokens * pace + behind_s) / pool.instances
        if following > 4 * service.max_batch:
            return Excuse("decode_slots", following, service.max_batch, "running per instance", "aggregated")
        if abs(following - batch) <= 1e-6 * max(batch, 1.0):
            break
        batch = following
    return MixedSteps(batch, pace, mixed, plain, share, whole, held, behind_s, tokens)


def evaluate_aggregated(context: Context, pool: Pool, rate: float, *, detail: bool) -> Evaluation:
    """An aggregated pool at ``rate``: TTFT = W + prefill in mixed steps + router, TPOT inflated by the chunks."""
    return aggregated_answer(context, pool, rate, detail=detail)[0]


def aggregated_answer(
    context: Context, pool: Pool, rate: float, *, detail: bool
) -> tuple[Evaluation, Latencies | None]:
    """The evaluation and its latencies, None where the pool has no steady state."""
    found = _steady(context, pool, rate)
    if isinstance(found, Excuse):
        return _failed((found,)), None
    steady, law, prefill, pace = found
    demand, atoms, service = context.demand_on(pool.offer), context.demand.atoms, pool.aggregated
    mixtures = _latencies(context, law, prefill + _running_step_s(steady), steady, pace)
    excuses = excuses_of_slo(context, mixtures, True)
    kv_running = float(demand.kv_at(np.asarray(steady.context)))
    excuses += _loads(context, pool, steady, kv_running)
    excuses += excuses_of_within(context, mixtures)
    load = PoolLoad(
        "aggregated",
        steady.unit_share,
        steady.batch,
        steady.tpot_s,
        service.utilization(max(steady.batch, 1e-6), steady.context, steady.unit_share * service.chunk_tokens),
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


def _steady(context: Context, pool: Pool, rate: float) -> tuple[MixedSteps, WaitingLaw, Array, Paces] | Excuse:
    """The steady state, the wait for a unit, each prompt's own time (atoms,) [s], and how fast answers come.

    What answers wait for the prompts before them lengthens them, and so the batch: two rounds settle it to 1 %.
    """
    behind_s, left = 0.0, BEHIND_ROUNDS
    while True:
        steady = mixed_steps(context, pool, rate, behind_s)
        if isinstance(steady, Excuse):
            return steady
        full_s = _full_step_s(context, pool, steady)
        law = _waiting(context, pool, full_s, rate)
        if isinstance(law, Excuse):
            return law
        prefill = _prefill_s(context, pool, steady, full_s)
        met = delays(context, pool, steady, prefill, rate, law)
        if left == 0 or met.stretch_s <= LEAST_BEHIND * steady.pace_s:
            return steady, law, prefill, paces(context, pool, steady, met)
        behind_s, left = met.stretch_s, left - 1


def _prefill_s(context: Context, pool: Pool, steady: MixedSteps, full_s: Array) -> Array:
    """Time of each prompt's own steps (atoms,) [s]: full chunks of ``full_s``, and what is left."""
    atoms, service = context.demand.atoms, pool.aggregated
    chunk = float(service.chunk_tokens)
    full = np.floor(atoms.uncached / chunk)
    tail = atoms.uncached - full * chunk
    last = np.asarray(service.step_time_s(steady.batch, steady.context, tail, atoms.prompt - tail), dtype=float)
    return full * full_s + np.where(tail > 0, last, 0.0)


def _full_step_s(context: Context, pool: Pool, steady: MixedSteps) -> Array:
    """A step with a full chunk from the middle of each prompt (atoms,) [s]."""
    atoms, service = context.demand.atoms, pool.aggregated
    before = atoms.cached + atoms.uncached / 2
    return np.asarray(
        service.step_time_s(steady.batch, steady.context, float(service.chunk_tokens), before), dtype=float
    )


def _waiting(context: Context, pool: Pool, full_s: Array, rate: float) -> WaitingLaw | Excuse:
    """Wait for a unit, prompts sharing chunks of ``full_s``; away from home without the prefix."""
    atoms, service, traffic = context.demand.atoms, pool.aggregated, context.scenario.traffic
    per_token = full_s / float(service.chunk_tokens)
    return prefill_waiting(
        traffic.prefix_cache,
        rate,
        pool.instances * service.parallelism.dp,
        queue_moments(per_token * atoms.uncached, atoms.weight),
        burstiness=traffic.burstiness,
        miss_moments=queue_moments(per_token * atoms.prompt, atoms.weight),
    )


def _running_step_s(steady: MixedSteps) -> float:
    """What a prompt whose unit is free waits for the step that runs, half of it on average [s]."""
    others = max(steady.mixed_share - steady.unit_share, 0.0)
    return 0.5 * ((1.0 - steady.mixed_share) * steady.plain_s + others * steady.mixed_s)


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


def _latencies(context: Context, law: WaitingLaw, prefill: Array, steady: MixedSteps, pace: Paces) -> Latencies:
    atoms = context.demand.atoms
    router = context.router_s(split=False)
    later = np.maximum(atoms.output - 1, 0.0)
    parts = {"prefill": prefill, "router": np.full_like(prefill, router)}
    one = np.ones(1)
    pause = Mixture(one, one * steady.mixed_s, None, {"main_decode": one * steady.mixed_s})
    row = np.searchsorted(pace.later, later)

    def of(weight: Array, workload: str | None) -> Latencies:
        ttft = Mixture(weight, prefill + router, law.survival, parts)
        paced = float(weight[later > 0].sum())
        lengths = np.bincount(row, np.where(later > 0, weight, 0.0), pace.later.size)
        tpot = tpot_mixture(np.asarray(lengths, dtype=float), pace)
        e2e = e2e_mixture(weight, prefill + router, later, row, pace, law)
        limit = max((s.limit_s for s in context.limits("ttft", workload)), default=float("inf"))
        in_time = 1.0 - tpot.share_above(context.tpot_limit_s(workload) * (1 + 1e-9)) if paced > 0 else 1.0
        made: dict[Metric, Mixture | Blend] = {"ttft": ttft, "tpot": tpot, "pause": pause, "e2e": e2e}
        return Latencies({}, lambda: (1.0 - ttft.share_above(limit)) * in_time, made, paced_share=lambda: paced)

    return by_workload(context, of(atoms.weight, None), lambda k, name: of(atoms.weights[k], name))


def _failed(excuses: tuple[Excuse, ...]) -> Evaluation:
    nan = math.nan
    return Evaluation((), (), (), Routing(1.0, 0.0, 0.0, 0.0, None), nan, nan, 0.0, excuses, 0.0)
