"""``evaluate``: a plan under the full model: every SLO row, every load, and why it fails where it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pddplan.errors import Excuse
from pddplan.serve.aggregated import evaluate_aggregated
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import ADMISSION_EPSILON
from pddplan.serve.deployment import Deployment
from pddplan.serve.equilibrium import Flow, equilibrium, loop_gain
from pddplan.serve.line_stage import Transfer, transfer
from pddplan.serve.metrics import Latencies, latencies, rows
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.records import Evaluation, LineLoad, PoolLoad, Routing, SloValue
from pddplan.serve.slo import excuses_of_slo, slo_values
from pddplan.spec.types import Role

RELAY_THRESHOLD_STEPS = 8.0  # default relay rule: exposed transfer above 8 x the TPOT limit (2-model, relay rule)
DEFAULT_THRESHOLD_S = 0.4  # the same at 50 ms, where no TPOT limit is given
THRESHOLD_CLASSES = 12  # class boundaries tried beside the default


def default_threshold_s(context: Context) -> float:
    """Relay threshold theta = 8 x the TPOT limit [s]."""
    limit = context.tpot_limit_s()
    return RELAY_THRESHOLD_STEPS * limit if math.isfinite(limit) else DEFAULT_THRESHOLD_S


def thresholds(context: Context, flow: Flow | None) -> tuple[float, ...]:
    """Relay thresholds a plan may use beside the default, ascending from 0 (relay all) to inf (none).

    Between them class boundaries of the predicted exposed transfer: classes hold equal shares of the relay work, so
    that heavy requests have boundaries of their own.
    """
    values = [0.0, default_threshold_s(context), math.inf]
    if flow is not None:
        order = np.argsort(flow.line.predicted, axis=None)
        predicted = flow.line.predicted.ravel()[order]
        work = np.cumsum((flow.weight.ravel()[order]) * np.maximum(predicted, 1e-6))
        if work[-1] > 0:
            at = np.searchsorted(work / work[-1], np.arange(1, THRESHOLD_CLASSES) / THRESHOLD_CLASSES)
            values += [float(v) for v in predicted[np.minimum(at, predicted.size - 1)]]
    return tuple(sorted(set(values)))


def evaluate(context: Context, deployment: Deployment, rate: float | None = None, *, detail: bool = True) -> Evaluation:
    """Evaluate a deployment at ``rate`` (default: the scenario's) under the full model.

    The relay threshold is the default one if that holds every row, else one of ``thresholds`` that does, else the
    one that breaks the rows least. ``detail`` False skips quantiles and loads that no row needs.
    """
    at = context.rate if rate is None else rate
    if deployment.aggregated is not None:
        return evaluate_aggregated(context, deployment.aggregated, at, detail=detail)
    assert deployment.prefill is not None and deployment.main is not None
    stage = context.prefill_stage(deployment.prefill, at)
    if isinstance(stage, Excuse):
        return _failed((stage,))
    move = transfer(context.demand, deployment, stage, context.nic_goodput)

    def at_threshold(threshold: float) -> tuple[Evaluation, Flow | None]:
        flow = equilibrium(context, deployment, stage, move, at, threshold)
        if isinstance(flow, Excuse):
            return _failed((flow,)), None
        return _with_flow(context, deployment, stage, move, flow, at, detail), flow

    first, flow = at_threshold(default_threshold_s(context) if deployment.relay is not None else math.inf)
    if first.feasible or deployment.relay is None:
        return first
    return _best_threshold(thresholds(context, flow), at_threshold, first)


def _best_threshold(
    ladder: tuple[float, ...], at_threshold: Callable[[float], tuple[Evaluation, Flow | None]], first: Evaluation
) -> Evaluation:
    """A threshold of the ladder (ascending) that holds, or the least bad one, from the default's evaluation.

    A lower threshold relays more, so the first token only improves: the highest threshold that isn't late is found by
    bisection. Below it the loads decide. They have one valley: relaying a long transfer takes more tokens off
    main decode than its extend passes cost, relaying a short one doesn't; so the walk down ends where they rise.
    """
    best, limited = first, _relay_limited(first)
    seen: dict[int, Evaluation] = {}

    def at(index: int) -> Evaluation:
        nonlocal best, limited
        if index not in seen:
            seen[index] = at_threshold(ladder[index])[0]
            limited = limited or _relay_limited(seen[index])
            best = min(best, seen[index], key=_badness)
        return seen[index]

    low, high = 0, len(ladder) - 1  # ladder[low] is taken as in time
    while low < high:
        middle = (low + high + 1) // 2
        if at(middle).feasible:
            return seen[middle]
        low, high = (low, middle - 1) if _late(seen[middle]) else (middle, high)
    before = math.inf
    for index in range(low, -1, -1):
        if at(index).feasible:
            return seen[index]
        load = _badness(seen[index])[1]
        if load > before * (1 + 1e-6):
            break
        before = load
    return replace(best, relay_limited=limited)


def _late(evaluation: Evaluation) -> bool:
    """Whether a first-token row fails, or nothing is known because a stage gave out."""
    return any(e.constraint.startswith("ttft") for e in evaluation.excuses)


def _relay_limited(evaluation: Evaluation) -> bool:
    """Whether more relay could have mattered: its own rows fail, or nothing is known past an earlier stage."""
    return any(e.subject in ("relay_decode", "relay") for e in evaluation.excuses)


def _badness(evaluation: Evaluation) -> tuple[int, float]:
    """Order of failed evaluations: those without SLO values last, then by the worst relative violation."""
    worst = max(
        (e.value / e.limit if e.limit > 0 and math.isfinite(e.value) else 1e9 for e in evaluation.excuses), default=0.0
    )
    return (0 if evaluation.slo else 1, worst)


def _failed(excuses: tuple[Excuse, ...]) -> Evaluation:
    routing = Routing(0.0, 0.0, 0.0, 0.0, None)
    return Evaluation((), {}, None, routing, math.nan, math.nan, math.nan, excuses, 0.0)


def _with_flow(
    context: Context,
    deployment: Deployment,
    stage: PrefillStage,
    move: Transfer,
    flow: Flow,
    rate: float,
    detail: bool,
) -> Evaluation:
    known = math.isfinite(flow.main.occupancy.tpot_s)
    excuses = [*_loads(context, deployment, stage, flow, rate)]
    table = rows(context, deployment, stage, move, flow)
    mixtures = latencies(context, stage, flow, table, context.scenario.engine.router_delay_s)
    excuses += excuses_of_slo(context, mixtures, known)
    within = context.scenario.slo_within
    if within is not None and mixtures.within < within:
        excuses.append(Excuse("within", mixtures.within, within, "", "slo"))
    base = Evaluation(
        slo=(),
        pools={},
        line=_line_load(flow, move, rate),
        routing=_routing(flow),
        prefill_hit_rate=context.demand.atoms.hit_rate,
        decode_hit_rate=context.demand.atoms.hit_rate * flow.held_share,
        loop_gain=math.nan,
        excuses=tuple(excuses),
        within_slo_share=mixtures.within,
    )
    if not detail:
        return base if base.excuses == () else replace(base, slo=_marker(mixtures))
    gain = loop_gain(context, deployment, stage, move, rate, flow)
    if gain >= 1.0:
        excuses.append(Excuse("loop_gain", gain, 1.0, "", "main_decode"))
    limit = flow.handover.limit_tokens if flow.handover is not None else None
    return replace(
        base,
        slo=slo_values(context, mixtures, known),
        pools=_pools(context, deployment, stage, flow),
        loop_gain=gain,
        excuses=tuple(excuses),
        hand_over_limit_tokens=limit if limit is not None and math.isfinite(limit) else None,
    )


def _marker(mixtures: Latencies) -> tuple[SloValue, ...]:
    """One value, to tell an evaluation that has latencies from one that fails before."""
    return (SloValue("ttft", 0.5, float(mixtures.ttft.constant.min()), None, "prefill"),)


def _loads(context: Context, deployment: Deployment, stage: PrefillStage, flow: Flow, rate: float) -> list[Excuse]:
    """Rows that aren't latencies: memory, slots, line, caps."""
    found: list[Excuse] = []
    main, demand = flow.main, context.demand
    if flow.line.rho > context.cap_line * (1 + 1e-9):
        found.append(Excuse("line_utilization", flow.line.rho, context.cap_line, "", "line"))
    pool = deployment.prefill
    assert pool is not None and deployment.main is not None
    held = rate * float(demand.atoms.weight @ (stage.time_s * demand.kv_prompt))
    held += rate * float((flow.weight * np.maximum(flow.line.predicted, 0.0) * demand.kv_prompt).sum())
    room = pool.prefill.kv_pool_bytes * pool.instances
    if held > room:
        found.append(Excuse("prefill_kv_memory", held, room, "bytes", "prefill"))
    if main.running_bytes + main.under_way_bytes > deployment.main.decode.kv_pool_bytes * deployment.main.instances:
        total = deployment.main.decode.kv_pool_bytes * deployment.main.instances
        found.append(Excuse("main_decode_kv_memory", main.running_bytes + main.under_way_bytes, total, "bytes", "main_decode"))
    if main.busy_share > context.cap("main_decode"):
        found.append(Excuse("main_decode_utilization", main.busy_share, context.cap("main_decode"), "", "main_decode"))
    if math.isfinite(main.occupancy.tpot_s):
        if main.p_overflow > ADMISSION_EPSILON:
            found.append(Excuse("main_decode_slots", main.p_overflow, ADMISSION_EPSILON, main.slots.bound, "main_decode"))
        load = main.occupancy.requests / max(main.slots.total, 1e-9)
        if load > context.cap("main_decode"):
            found.append(Excuse("main_decode_utilization", load, context.cap("main_decode"), "", "main_decode"))
    if flow.relay is not None:
        if flow.relay.p_wait > ADMISSION_EPSILON:
            found.append(Excuse("relay_slots", flow.relay.p_wait, ADMISSION_EPSILON, flow.relay.slots.bound, "relay_decode"))
        if flow.relay.load > context.cap("relay_decode"):
            found.append(Excuse("relay_utilization", flow.relay.load, context.cap("relay_decode"), "", "relay_decode"))
    return found


def _line_load(flow: Flow, move: Transfer, rate: float) -> LineLoad | None:
    if math.isinf(move.capacity):
        return None
    mean = rate * flow.line.bytes_per_request
    return LineLoad(mean, move.capacity, flow.line.rho, flow.line.bytes_per_request)


def _routing(flow: Flow) -> Routing:
    relay, filtered = float(flow.relayed.sum()), float(flow.filtered.sum())
    tokens = 0.0
    share = 0.0
    if flow.relay is not None:
        mass = flow.relayed[..., None] * flow.line.probability
        tokens = float((mass * flow.relay.eager).sum())
        tokens += float((flow.filtered * flow.relay_output).sum())
        share = tokens / float((flow.weight * flow.relay_output).sum())
    sent = max(flow.line.bytes_per_request + flow.saved_bytes, 1e-9)
    threshold = flow.threshold_s if math.isfinite(flow.threshold_s) else None
    return Routing(
        direct_share=max(1.0 - relay - filtered, 0.0),
        relay_share=relay,
        filtered_share=filtered,
        relay_token_share=share,
        threshold_s=threshold,
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
        )
    return loads
