"""``simulate``: a plan, solved or given, event by event beside the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pddplan.errors import Excuse, InputError, Problem
from pddplan.plan.records import PlanResult, Solved
from pddplan.plan.solve import solve
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, Network, Plan
from pddplan.serve.evaluate import evaluate, flows_of
from pddplan.serve.records import Evaluation, Routing
from pddplan.simulate.build import Lane
from pddplan.simulate.records import Asked, Simulation
from pddplan.spec.types import Scenario
from pddplan.traces.requests import RequestLog

Progress = Callable[[float, str], None]

FALL = 0.97  # of the rate, step by step, until the formulas have an answer
STEPS = 150
MOST_REQUESTS = 20_000_000
DOUBLED = 2
LEAST_REPLAYED, MOST_REPLAYED = 1_000, 200_000  # requests of a log


@dataclass(frozen=True)
class SimulatedPlan:
    """A plan and its simulation, None where there is no plan; ``result`` is None where the plan was given."""

    result: PlanResult | None
    solved: Solved | None
    evaluation: Evaluation | None
    simulation: Simulation | None


def simulate_plan(
    scenario: Scenario,
    asked: Asked,
    plan_file: str | None = None,
    progress: Progress | None = None,
    trace_file: str | None = None,
) -> SimulatedPlan:
    """Solves the scenario, or takes the plan of ``plan_file`` (JSON that ``solve -o`` wrote), and simulates it: on the
    scenario's traffic, or on that of ``trace_file`` (a request log).

    Raises InputError where a file is none that fits the scenario.
    """
    log = None if trace_file is None else _log(scenario, trace_file)
    if plan_file is not None:
        from pddplan.plan.rebuild import read_plan

        given = read_plan(plan_file, scenario)
        if log is not None:
            return _replayed(None, given, log, asked, progress)
        known = evaluate(given.context, given.deployment)
        simulation = simulate_deployment(given.context, given.deployment, asked, progress, known)
        return SimulatedPlan(None, given, known, simulation)
    result = solve(scenario, seed=asked.seed)
    if result.solved is None or result.evaluation is None:
        return SimulatedPlan(result, None, None, None)
    if log is not None:
        return _replayed(result, result.solved, log, asked, progress)
    context, deployment = result.solved.context, result.solved.deployment
    simulation = simulate_deployment(context, deployment, asked, progress, result.evaluation)
    return SimulatedPlan(result, result.solved, result.evaluation, simulation)


def _log(scenario: Scenario, trace_file: str) -> RequestLog:
    """The requests of a log. Raises InputError where they can't stand for the scenario's traffic."""
    from pddplan.traces.requests import read_requests

    log = read_requests(trace_file)
    if scenario.traffic.several:
        fix = "Leave one of them in the scenario."
        raise InputError(Problem("a log can't stand for several workloads.", file=trace_file, fix=fix))
    if math.isnan(log.rate_rps) or log.time_s.size < LEAST_REPLAYED:
        message = f"has {log.time_s.size} requests in {log.time_s[-1]:g} s: too few to simulate."
        raise InputError(Problem(message, file=trace_file, fix=f"Give {LEAST_REPLAYED} or more, over some time."))
    return log


def _replayed(
    result: PlanResult | None, solved: Solved, log: RequestLog, asked: Asked, progress: Progress | None
) -> SimulatedPlan:
    """A plan on the requests of a log at their own times; the formulas beside have the same requests at random ones."""
    from pddplan.simulate.outcome import simulation_of
    from pddplan.simulate.replay import first_of, script_of
    from pddplan.simulate.run import simulate_lanes

    deployment = solved.deployment
    if any(pool.role == "aggregated" for pool in deployment.pools) or isinstance(deployment, Network):
        fix = "Leave --trace out, or give a --plan of one pool per role."
        raise InputError(Problem("only plans of one pool per role, split, can be simulated on a log.", fix=fix))
    part = first_of(log, min(asked.requests, MOST_REPLAYED))
    atoms, script = script_of(part)
    context = solved.context.with_atoms(atoms).at_rate(part.rate_rps)
    check_simulable(context, deployment)
    known = evaluate(context, deployment)
    lanes = lanes_of(context, deployment, known.routing)
    run = simulate_lanes(context, lanes, asked, progress=progress, script=script)
    found = simulation_of(run, known, asked, context.rate)
    return SimulatedPlan(result, replace(solved, context=context), known, replace(found, notes=_notes(log, part)))


def _notes(log: RequestLog, part: RequestLog) -> tuple[str, ...]:
    """What of a log was simulated, and what it doesn't say."""
    count = part.time_s.size
    told = [f"{count:,} requests of the log at their own times, {part.rate_rps:.3g}/s on average."]
    if count < log.time_s.size:
        told[0] = f"The first {count:,} of {log.time_s.size:,} requests of the log, {part.rate_rps:.3g}/s on average."
    if not part.sessions:
        told.append("The log has no sessions: main decode is taken to hold all that was cached.")
    if log.skipped:
        told.append(f"{log.skipped} lines of the log couldn't be read and are left out.")
    return tuple(told)


def simulate_deployment(
    context: Context,
    deployment: Plan,
    asked: Asked,
    progress: Progress | None = None,
    evaluation: Evaluation | None = None,
) -> Simulation:
    """A deployment at the context's rate; ``evaluation``: by the formulas, where it is known already.

    Raises InputError for one that can't be simulated: ``check_simulable``.
    """
    check_simulable(context, deployment)
    known = evaluate(context, deployment) if evaluation is None or not evaluation.slo else evaluation
    while True:
        found = _simulated(context, deployment, known, asked, progress)
        if asked.p99_within is None or found.growth is not None or _narrow(found, asked.p99_within):
            return found
        if asked.requests >= MOST_REQUESTS:
            note = f"The interval of the TTFT p99 is still wider than {asked.p99_within:.0%} either way."
            return replace(found, notes=(*found.notes, note))
        asked = replace(asked, requests=min(asked.requests * DOUBLED, MOST_REQUESTS))


def _simulated(
    context: Context, deployment: Plan, evaluation: Evaluation, asked: Asked, progress: Progress | None
) -> Simulation:
    """One run. What only it needs is loaded here."""
    from pddplan.simulate.outcome import mixed_simulation_of, simulation_of

    if isinstance(deployment, Deployment) and deployment.aggregated is not None:
        from pddplan.simulate.mixed_run import simulate_mixed

        pool = deployment.aggregated
        mix, crowded = simulate_mixed(context, pool, asked, progress)
        return mixed_simulation_of(mix, crowded, pool, context, evaluation, asked)
    from pddplan.simulate.run import simulate_lanes

    lanes = lanes_of(context, deployment, evaluation.routing)
    run = simulate_lanes(context, lanes, asked, progress=progress)
    return simulation_of(run, evaluation, asked, context.rate)


def check_simulable(context: Context, deployment: Plan) -> None:
    """Raises InputError for split pools beside aggregated ones, and for decode pools whose steps have no time."""
    ways = [route.way for route in deployment.routes] if isinstance(deployment, Network) else [deployment]
    mixed = [way.aggregated is not None for way in ways]
    if any(mixed) and isinstance(deployment, Network):
        raise InputError(Problem("a plan of several pools in a role, some of them aggregated, can't be simulated."))
    for way in ways:
        for pool in (way.relay, way.main):
            if pool is not None and not np.isfinite(context.step_surface(pool).seconds).all():
                message = (
                    f"the plan can't be simulated: how long a step of {pool.offer.chip.id} takes isn't known, only "
                )
                raise InputError(Problem(message + "tokens_per_s.", fix="Give its tpot_ms under measured."))


def _narrow(found: Simulation, within: float) -> bool:
    """Whether the interval of every workload's TTFT p99 is at most so wide either way."""
    rows = [q for q in found.quantiles if (q.metric, q.quantile, q.stage) == ("ttft", 0.99, "all")]
    return all(q.simulated.half_width <= within for q in rows)


def lanes_of(context: Context, deployment: Plan, routing: Routing) -> tuple[Lane, ...]:
    """The plan's ways with the router's rule. Of an overloaded plan the rule is that of the largest rate, within 3 %,
    at which the formulas have an answer."""
    rate = context.rate
    for _ in range(STEPS):
        found = flows_of(context, deployment, rate, _rule(context, deployment, routing, rate))
        if not isinstance(found, Excuse):
            return found
        rate *= FALL
    raise InputError(Problem("the plan can't serve any load: there is nothing to simulate."))


def _rule(context: Context, deployment: Plan, routing: Routing, rate: float) -> Routing:
    """The rule for the relay; where the formulas gave none at the asked rate, that of a lower one."""
    if not math.isnan(routing.direct_share) and (routing.threshold_s is not None or routing.direct_share > 0):
        return routing
    return evaluate(context, deployment, rate, detail=False).routing
