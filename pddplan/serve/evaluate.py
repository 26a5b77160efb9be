"""``evaluate``: a plan under the full model: every SLO row, every load, and why it fails where it does."""

from __future__ import annotations

import math
from dataclasses import replace

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.deployment import Network, Plan
from pddplan.serve.equilibrium import Case, Flow, equilibrium, longest_stay, loop_gain, pinned_share
from pddplan.serve.line_stage import LineState, line_state, transfer
from pddplan.serve.loads import (
    gain_excuses,
    line_excuses,
    line_load,
    main_decode_load,
    main_excuses,
    prefill_excuses,
    prefill_load,
    relay_excuses,
    relay_load,
    routing_of,
)
from pddplan.serve.metrics import latencies
from pddplan.serve.records import Evaluation, PoolLoad, Routing
from pddplan.serve.relay_rule import Answer, best_threshold, default_threshold_s, thresholds
from pddplan.serve.request_rows import rows
from pddplan.serve.slo import excuses_of_slo, excuses_of_within, slo_values

START_MARGIN = 2e-3  # above the hit share of the first threshold, where the search for those of the others starts


def evaluate(
    context: Context,
    deployment: Plan,
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
    if isinstance(deployment, Network):
        from pddplan.serve.network import evaluate_network  # late: most plans are a single way

        return evaluate_network(context, deployment, at, detail=detail, routing=routing)
    if deployment.aggregated is not None:
        from pddplan.serve.aggregated import evaluate_aggregated

        return evaluate_aggregated(context, deployment.aggregated, at, detail=detail)
    assert deployment.prefill is not None and deployment.main is not None
    stage = context.prefill_stage(deployment.prefill, at, deployment.main, deployment.relay)
    if isinstance(stage, Excuse):
        return Evaluation.failed(stage)
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


def flows_of(
    context: Context, deployment: Plan, rate: float, routing: Routing
) -> tuple[tuple[Case, Flow], ...] | Excuse:
    """Every split way of a plan with its stages in equilibrium, under the rule for the relay that an evaluation found;
    none of aggregated pools. Excuse where a stage has no answer."""
    if isinstance(deployment, Network):
        from pddplan.serve.network import network_flows

        return network_flows(context, deployment, rate, routing)
    if deployment.prefill is None or deployment.main is None:
        return ()
    stage = context.prefill_stage(deployment.prefill, rate, deployment.main, deployment.relay)
    if isinstance(stage, Excuse):
        return stage
    case = Case(context, deployment, stage, transfer(context.demand, deployment, stage, context.nic_goodput), rate)
    flow = equilibrium(case, math.inf if routing.threshold_s is None else routing.threshold_s, stay_s=routing.stay_s)
    return flow if isinstance(flow, Excuse) else ((case, flow),)


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


def _at_threshold(case: Case, threshold_s: float, start: float = 1.0, stay_s: float = 0.0) -> Answer:
    """Every row of the case at one relay threshold and stay; the loop gain is looked at where all others hold."""
    context = case.context
    flow = equilibrium(case, threshold_s, start, stay_s)
    if isinstance(flow, Excuse):
        return Answer(Evaluation.failed(flow))
    excuses = _load_rows(case, flow)
    table = rows(context, case.deployment, case.stage, case.move, flow)
    mixtures = latencies(context, case.stage, flow, table, context.router_s(split=True))
    excuses += excuses_of_slo(context, mixtures, math.isfinite(flow.main.occupancy.tpot_s))
    excuses += excuses_of_within(context, mixtures)
    gain = math.nan
    if not excuses:
        gain = loop_gain(case, flow)
        excuses += gain_excuses(gain)
    evaluation = Evaluation(
        slo=(),
        loads=(),
        lines=() if math.isinf(case.move.capacity) else (line_load([(case, flow)]),),
        routing=routing_of(context, flow),
        prefill_hit_rate=context.demand.atoms.hit_rate,
        decode_hit_rate=context.demand.atoms.hit_rate * flow.held_share,
        loop_gain=gain,
        excuses=tuple(excuses),
        within_slo_share=mixtures.within if context.scenario.slo_within else math.nan,
    )
    return Answer(evaluation, flow, mixtures)


def _completed(case: Case, answer: Answer) -> Evaluation:
    """The answer's evaluation with all quantiles and loads."""
    flow, mixtures, base = answer.flow, answer.mixtures, answer.evaluation
    if flow is None or mixtures is None:
        return base
    excuses, gain = base.excuses, base.loop_gain
    if math.isnan(gain):
        gain = loop_gain(case, flow)
        excuses = (*excuses, *gain_excuses(gain))
    limit = flow.handover.limit_tokens if flow.handover is not None else math.inf
    return replace(
        base,
        slo=slo_values(case.context, mixtures, math.isfinite(flow.main.occupancy.tpot_s)),
        loads=_pool_loads(case, flow),
        loop_gain=gain,
        excuses=excuses,
        within_slo_share=mixtures.within,
        hand_over_limit_tokens=limit if math.isfinite(limit) else None,
    )


def _load_rows(case: Case, flow: Flow) -> list[Excuse]:
    """Rows that aren't latencies."""
    prefill, main = case.deployment.prefill, case.deployment.main
    assert prefill is not None and main is not None
    found = line_excuses(case, flow) + prefill_excuses(prefill, [(case, flow)])
    return found + main_excuses(case.context, main, flow.main) + relay_excuses(case, flow)


def _pool_loads(case: Case, flow: Flow) -> tuple[PoolLoad, ...]:
    """Load of each pool, in the plan's order."""
    prefill, relay, main = case.deployment.prefill, case.deployment.relay, case.deployment.main
    assert prefill is not None and main is not None
    relays = () if relay is None else (relay_load(relay, flow),)
    return (prefill_load(prefill, [case]), *relays, main_decode_load(main, flow.main))
