"""``evaluate``: a plan under the full model: every SLO row, every load, and why it fails where it does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pddplan.errors import Excuse
from pddplan.serve.aggregated import evaluate_aggregated
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import ADMISSION_EPSILON
from pddplan.serve.deployment import Deployment
from pddplan.serve.equilibrium import Case, Flow, equilibrium, longest_stay, loop_gain, pinned_share
from pddplan.serve.line_stage import LineState, Transfer, line_state, transfer
from pddplan.serve.metrics import latencies, rows
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.records import Evaluation, LineLoad, PoolLoad, Routing
from pddplan.serve.relay_rule import Answer, best_threshold, default_threshold_s, thresholds
from pddplan.serve.slo import excuses_of_slo, slo_values
from pddplan.spec.types import Role

START_MARGIN = 2e-3  # above the hit share of the first threshold, where the search for those of the others starts


def evaluate(
    context: Context,
    deployment: Deployment,
    rate: float | None = None,
    *,
    detail: bool = True,
    routing: Routing | None = None,
) -> Evaluation:
    """Evaluate a deployment at ``rate`` (default: the scenario's) under the full model.

    The relay threshold is the default one if that holds every row, else one of ``thresholds`` that does, else the
    one that breaks the rows least. Requests stay on the relay as long as their transfer takes; where main decode has
    too much to do, as long as the relay's slots allow (so a quicker transfer never leaves main decode more to do).
    ``detail`` False skips what no row needs: quantiles, loads, the share within the SLO (nan). ``routing``: keep
    the rule for the relay that this evaluation found, instead of looking for one.
    """
    at = context.rate if rate is None else rate
    if deployment.aggregated is not None:
        return evaluate_aggregated(context, deployment.aggregated, at, detail=detail)
    assert deployment.prefill is not None and deployment.main is not None
    stage = context.prefill_stage(deployment.prefill, at)
    if isinstance(stage, Excuse):
        return _failed((stage,))
    move = transfer(context.demand, deployment, stage, context.nic_goodput)
    case = Case(context, deployment, stage, move, at)
    if routing is not None:
        threshold = math.inf if routing.threshold_s is None else routing.threshold_s
        kept = _at_threshold(case, threshold, stay_s=routing.stay_s)
        return _completed(case, kept) if detail else kept.evaluation
    best = _at_threshold(case, default_threshold_s(context) if deployment.relay is not None else math.inf)
    if not best.evaluation.feasible and deployment.relay is not None:
        near = 1.0 if best.flow is None else min(best.flow.held_share + START_MARGIN, 1.0)
        line = best.flow.line if best.flow is not None else _first_line(case)
        ladder = thresholds(context, line)
        best = best_threshold(
            ladder,
            lambda theta: _at_threshold(case, theta, near),
            lambda theta, plain: _longer(case, theta, near, plain),
            context.staying_pays(deployment.main),
            best,
            default_threshold_s(context),
        )
    return _completed(case, best) if detail else best.evaluation


def _first_line(case: Case) -> LineState:
    """The line where ``equilibrium`` starts: classes of the transfers where no stage came to an answer."""
    pinned = pinned_share(case.context, case.deployment)
    return line_state(case.context.demand, case.move, case.stage, case.rate, 1.0 if pinned is None else pinned)


def _longer(case: Case, threshold_s: float, near: float, plain: Answer) -> Answer:
    """The case at a threshold with the longest stay that the relay's slots allow, half of it where that breaks another
    row than main decode's. ``plain``: the answer without a stay."""
    held = near if plain.flow is None else plain.flow.held_share
    longest = longest_stay(case, held, threshold_s)
    if longest <= 0.0:
        return replace(plain, full=True)
    answer = _at_threshold(case, threshold_s, near, longest)
    if not answer.evaluation.feasible and not answer.overloaded:
        answer = min(answer, _at_threshold(case, threshold_s, near, 0.5 * longest), key=lambda a: a.badness)
    return replace(answer, full=math.isfinite(longest))


def _failed(excuses: tuple[Excuse, ...]) -> Evaluation:
    routing = Routing(0.0, 0.0, 0.0, 0.0, None)
    return Evaluation((), {}, None, routing, math.nan, math.nan, math.nan, excuses, 0.0)


def _at_threshold(case: Case, threshold_s: float, start: float = 1.0, stay_s: float = 0.0) -> Answer:
    """Every row of the case at one relay threshold and stay; the loop gain is looked at where all others hold."""
    context = case.context
    flow = equilibrium(case, threshold_s, start, stay_s)
    if isinstance(flow, Excuse):
        return Answer(_failed((flow,)))
    excuses = _loads(context, case.deployment, case.stage, flow, case.rate)
    table = rows(context, case.deployment, case.stage, case.move, flow)
    mixtures = latencies(context, case.stage, flow, table, context.scenario.engine.router_delay_s)
    excuses += excuses_of_slo(context, mixtures, math.isfinite(flow.main.occupancy.tpot_s))
    within = context.scenario.slo_within
    if within is not None and mixtures.within < within:
        excuses.append(Excuse("within", mixtures.within, within, "", "slo"))
    gain = math.nan
    if not excuses:
        gain = loop_gain(case, flow)
        excuses += _unstable(gain)
    evaluation = Evaluation(
        slo=(),
        pools={},
        line=_line_load(flow, case.move, case.rate),
        routing=_routing(context, flow),
        prefill_hit_rate=context.demand.atoms.hit_rate,
        decode_hit_rate=context.demand.atoms.hit_rate * flow.held_share,
        loop_gain=gain,
        excuses=tuple(excuses),
        within_slo_share=mixtures.within if within is not None else math.nan,
    )
    return Answer(evaluation, flow, mixtures)


def _unstable(gain: float) -> list[Excuse]:
    return [Excuse("loop_gain", gain, 1.0, "", "main_decode")] if gain >= 1.0 else []


def _completed(case: Case, answer: Answer) -> Evaluation:
    """The answer's evaluation with all quantiles and loads."""
    flow, mixtures, base = answer.flow, answer.mixtures, answer.evaluation
    if flow is None or mixtures is None:
        return base
    excuses, gain = base.excuses, base.loop_gain
    if math.isnan(gain):
        gain = loop_gain(case, flow)
        excuses = (*excuses, *_unstable(gain))
    limit = flow.handover.limit_tokens if flow.handover is not None else math.inf
    return replace(
        base,
        slo=slo_values(case.context, mixtures, math.isfinite(flow.main.occupancy.tpot_s)),
        pools=_pools(case.context, case.deployment, case.stage, flow),
        loop_gain=gain,
        excuses=excuses,
        within_slo_share=mixtures.within,
        hand_over_limit_tokens=limit if math.isfinite(limit) else None,
    )


def _loads(context: Context, deployment: Deployment, stage: PrefillStage, flow: Flow, rate: float) -> list[Excuse]:
    """Rows that aren't latencies: memory, slots, line, caps."""
    found: list[Excuse] = []
    demand = context.demand
    if flow.line.rho > context.cap_line * (1 + 1e-9):
        found.append(Excuse("line_utilization", flow.line.rho, context.cap_line, "", "line"))
    pool = deployment.prefill
    assert pool is not None
    held = rate * float(demand.atoms.weight @ (stage.time_s * demand.kv_prompt))
    held += rate * float(((flow.line.weight * np.maximum(flow.line.predicted, 0.0)) @ demand.kv_prompt).sum())
    room = pool.prefill.kv_pool_bytes * pool.instances
    if held > room:
        found.append(Excuse("prefill_kv_memory", held, room, "bytes", "prefill"))
    found += _main_loads(context, deployment, flow)
    relay, cap = flow.relay, context.cap("relay_decode")
    if relay is not None:
        if relay.p_wait > ADMISSION_EPSILON:
            found.append(Excuse("relay_slots", relay.p_wait, ADMISSION_EPSILON, relay.slots.bound, "relay_decode"))
        if relay.load > cap:
            found.append(Excuse("relay_utilization", relay.load, cap, "", "relay_decode"))
    return found


def _main_loads(context: Context, deployment: Deployment, flow: Flow) -> list[Excuse]:
    """Rows of main decode: memory, slots, cap."""
    found: list[Excuse] = []
    main, pool, cap = flow.main, deployment.main, context.cap("main_decode")
    assert pool is not None
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


def _line_load(flow: Flow, move: Transfer, rate: float) -> LineLoad | None:
    if math.isinf(move.capacity):
        return None
    mean = rate * flow.line.bytes_per_request
    return LineLoad(mean, move.capacity, flow.line.rho, flow.line.bytes_per_request)


def _routing(context: Context, flow: Flow) -> Routing:
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


def _pools(context: Context, deployment: Deployment, stage: PrefillStage, flow: Flow) -> dict[Role, PoolLoad]:
    atoms, main = context.demand.atoms, flow.main
    assert deployment.prefill is not None and deployment.main is not None
    loads: dict[Role, PoolLoad] = {
        "prefill": PoolLoad(
            "prefill",
            stage.rho,
            stage.busy_servers / deployment.prefill.instances,
            atoms.mean(stage.time_s),
            deployment.prefill.prefill.utilization(atoms.uncached, atoms.cached, min(stage.rho, 1.0)),
        ),
        "main_decode": PoolLoad(
            "main_decode",
            main.busy_share or main.occupancy.requests / max(main.slots.total, 1e-9),
            main.occupancy.batch if math.isfinite(main.occupancy.tpot_s) else math.nan,
            main.occupancy.tpot_s,
            deployment.main.decode.utilization(max(main.occupancy.batch, 1e-6), main.context),
            main.slot_room,
        ),
    }
    if deployment.relay is not None and flow.relay is not None:
        batch = flow.relay.requests / deployment.relay.instances
        loads["relay_decode"] = PoolLoad(
            "relay_decode",
            flow.relay.load,
            batch,
            flow.relay.tau_s,
            deployment.relay.decode.utilization(max(batch, 1e-6), flow.relay.context, min(batch, 1.0)),
            flow.relay.slots.room(flow.relay.requests, 1.0, ADMISSION_EPSILON),
        )
    return loads
