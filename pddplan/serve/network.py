"""Several ways beside each other: pools of several chips or sites in one role, under the same model as a single way.

Prefill pools see the requests of their band, main-decode pools whatever their routes bring, routes over one line share
it. The hit shares q of all main-decode pools are one fixed point; the SLO rows count over all requests together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.serve.aggregated import aggregated_answer
from pddplan.serve.blend import blended
from pddplan.serve.context import Context
from pddplan.serve.deployment import Network, Pool, Route
from pddplan.serve.equilibrium import HELD_TOLERANCE, MAX_ROUNDS, Case, Flow, joined, lane_at, pinned_share
from pddplan.serve.latency import BLEND_TOLERANCE
from pddplan.serve.line_stage import transfer
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
from pddplan.serve.metrics import Latencies, latencies
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.records import Evaluation, PoolLoad, Routing
from pddplan.serve.relay_rule import Answer, best_threshold, default_threshold_s, thresholds
from pddplan.serve.request_rows import rows
from pddplan.serve.slo import excuses_of_slo, excuses_of_within, slo_values

Array = NDArray[np.float64]
T = TypeVar("T")

COARSE = 3e-4  # of the quantiles of a network that is only tried
LADDER = 3  # every so manieth relay threshold is tried
GAIN_STEP = 0.01  # of the hit share, for the slope of the loop


@dataclass(frozen=True)
class Ways:
    """The routes of a network as cases, by the main-decode pool that each ends at."""

    context: Context
    network: Network
    rate: float
    cases: tuple[Case, ...]
    routes: tuple[Route, ...]  # of the cases, in their order
    mains: tuple[Pool, ...]
    ends: tuple[int, ...]  # index into ``mains`` of each case
    whole: tuple[tuple[Route, Evaluation, Latencies], ...]  # aggregated pools

    def by_main(self, each: Sequence[T]) -> list[T]:
        """Of what is known of each case, that of the first one which ends at each main-decode pool."""
        return [each[self.ends.index(m)] for m in range(len(self.mains))]

    def others_bytes_per_s(self, held: Sequence[float]) -> list[float]:
        """What the other routes over the same line send beside each [B/s]."""
        sent: dict[int, float] = {}
        own = []
        for case, end in zip(self.cases, self.ends, strict=True):
            mean = case.context.demand.sessions.mean(held[end], *case.move.kind_bytes)
            own.append(case.rate * mean if case.deployment.line is not None else 0.0)
            key = id(case.deployment.line)
            sent[key] = sent.get(key, 0.0) + own[-1]
        return [
            sent[id(c.deployment.line)] - mine if c.deployment.line else 0.0
            for c, mine in zip(self.cases, own, strict=True)
        ]


def evaluate_network(
    context: Context, network: Network, rate: float, *, detail: bool, routing: Routing | None = None
) -> Evaluation:
    """A network at ``rate``, as ``evaluate`` does for a single way. One relay threshold holds for all routes, and
    requests stay on a relay as long as their transfer takes."""
    ways = _ways(context, network, rate, detail)
    if isinstance(ways, Excuse):
        return Evaluation.failed(ways)
    if routing is not None:
        threshold = math.inf if routing.threshold_s is None else routing.threshold_s
        kept = _at_threshold(ways, threshold)
        return _completed(ways, kept) if detail else kept.answer.evaluation
    relays = any(route.way.relay is not None for route in network.routes)
    default = default_threshold_s(context)
    best = _at_threshold(ways, default if relays else math.inf)
    if not best.answer.evaluation.feasible and relays and best.flows:
        seen: dict[float, _Solved] = {default: best}

        def at(theta: float) -> Answer:
            seen[theta] = _at_threshold(ways, theta)
            return seen[theta].answer

        relayed = next(i for i, route in enumerate(ways.routes) if route.way.relay is not None)
        every = thresholds(ways.cases[relayed].context, best.flows[relayed].line)
        ladder = tuple(t for i, t in enumerate(every) if i % LADDER == 0 or t in (default, every[-1]))
        found = best_threshold(ladder, at, lambda _, plain: plain, False, best.answer, default)
        best = next((s for s in seen.values() if s.answer.flow is found.flow and found.flow is not None), best)
    return _completed(ways, best) if detail else best.answer.evaluation


def network_flows(
    context: Context, network: Network, rate: float, routing: Routing
) -> tuple[tuple[Case, Flow], ...] | Excuse:
    """The split routes of a network with their stages in equilibrium, see ``evaluate.flows_of``."""
    ways = _ways(context, network, rate, False)
    if isinstance(ways, Excuse) or not ways.cases:
        return ways if isinstance(ways, Excuse) else ()
    flows = _equilibrium(ways, math.inf if routing.threshold_s is None else routing.threshold_s)
    return flows if isinstance(flows, Excuse) else tuple(zip(ways.cases, flows, strict=True))


@dataclass(frozen=True)
class _Solved:
    """A network at one relay threshold; ``flows`` by case and ``parts``, latencies by share of the requests, are empty
    where a stage gave out."""

    answer: Answer
    flows: tuple[Flow, ...] = ()
    parts: tuple[tuple[float, Latencies], ...] = ()


def _ways(context: Context, network: Network, rate: float, detail: bool) -> Ways | Excuse:
    """Prefill and transfers of every route; Excuse where a prefill pool doesn't keep up."""
    stages: dict[int, PrefillStage] = {}
    cases: list[Case] = []
    routes: list[Route] = []
    mains: list[Pool] = []
    ends: list[int] = []
    whole: list[tuple[Route, Evaluation, Latencies]] = []
    for route in network.routes:
        way, band = route.way, context.band(*route.band)
        if way.aggregated is not None:
            evaluation, own = aggregated_answer(band, way.aggregated, rate * route.weight, detail=detail)
            if own is None:
                return evaluation.excuses[0]
            whole.append((route, evaluation, own))
            continue
        assert way.prefill is not None and way.main is not None
        for pool in (way.main, *((way.relay,) if way.relay is not None else ())):
            context.step_surface(pool)  # over the contexts of all requests, not of the first band alone
            context.extend_cost(pool)
        if id(way.prefill) not in stages:
            stage = _prefill(band, [r for r in network.routes if r.way.prefill is way.prefill], rate)
            if isinstance(stage, Excuse):
                return stage
            stages[id(way.prefill)] = stage
        stage = stages[id(way.prefill)]
        move = transfer(band.demand, way, stage, context.nic_goodput)
        cases.append(Case(band, way, stage, move, rate * route.weight))
        routes.append(route)
        if all(pool is not way.main for pool in mains):
            mains.append(way.main)
        ends.append(next(i for i, pool in enumerate(mains) if pool is way.main))
    return Ways(context, network, rate, tuple(cases), tuple(routes), tuple(mains), tuple(ends), tuple(whole))


def _prefill(band: Context, routes: Sequence[Route], rate: float) -> PrefillStage | Excuse:
    """A prefill pool with all its routes; where they ask for caches in different formats, as the worst of them does."""
    total = rate * sum(route.weight for route in routes)
    found = []
    for way in (route.way for route in routes):
        assert way.prefill is not None
        stage = band.prefill_stage(way.prefill, total, way.main, way.relay)
        if isinstance(stage, Excuse):
            return stage
        found.append(stage)
    return max(found, key=lambda stage: stage.saturated_s)


def _flows(ways: Ways, held: Sequence[float], threshold_s: float) -> tuple[Flow, ...] | Excuse:
    """All routes at the hit shares ``held`` of the main-decode pools."""
    others = ways.others_bytes_per_s(held)
    found: list[Flow | None] = [None] * len(ways.cases)
    for m, share in enumerate(held):
        mine = [i for i, end in enumerate(ways.ends) if end == m]
        lanes = []
        for i in mine:
            lane = lane_at(ways.cases[i], share, threshold_s, 0.0, others[i])
            if isinstance(lane, Excuse):
                return lane
            lanes.append(lane)
        flows = joined(lanes, share, threshold_s, 0.0)
        if isinstance(flows, Excuse):
            return flows
        for i, flow in zip(mine, flows, strict=True):
            found[i] = flow
    return tuple(flow for flow in found if flow is not None)


def _equilibrium(ways: Ways, threshold_s: float) -> tuple[Flow, ...] | Excuse:
    """Largest fixed point of all hit shares, from 1 downwards: see ``equilibrium.equilibrium``."""
    pinned = [pinned_share(ways.context, case.deployment) for case in ways.by_main(ways.cases)]
    held = [1.0 if share is None else share for share in pinned]
    flows = _flows(ways, held, threshold_s)
    for _ in range(MAX_ROUNDS):
        if isinstance(flows, Excuse):
            return flows
        following = [flow.next_held_share for flow in ways.by_main(flows)]
        if max((abs(a - b) for a, b in zip(following, held, strict=True)), default=0.0) <= HELD_TOLERANCE:
            return flows
        held = following
        flows = _flows(ways, held, threshold_s)
    return flows


def _loop_gain(ways: Ways, flows: Sequence[Flow]) -> float:
    """Spectral radius of the Jacobian of all hit shares -> the next ones, by central differences of 0.01; 0 where they
    are pinned."""
    held = [flow.held_share for flow in ways.by_main(flows)]
    if not held or pinned_share(ways.context, ways.cases[0].deployment) is not None:
        return 0.0
    slopes = np.zeros((len(held), len(held)))
    for m, share in enumerate(held):
        high, low = min(share + GAIN_STEP, 1.0), max(share - GAIN_STEP, 0.0)
        ends = []
        for at in (high, low):
            moved = _flows(ways, [at if i == m else h for i, h in enumerate(held)], flows[0].threshold_s)
            if isinstance(moved, Excuse):
                return 1.0
            ends.append(np.array([flow.next_held_share for flow in ways.by_main(moved)]))
        slopes[:, m] = (ends[0] - ends[1]) / (high - low)
    return float(np.abs(np.linalg.eigvals(slopes)).max())


def _at_threshold(ways: Ways, threshold_s: float) -> _Solved:
    """Every row of the network at one relay threshold."""
    flows = _equilibrium(ways, threshold_s) if ways.cases else ()
    if isinstance(flows, Excuse):
        return _Solved(Answer(Evaluation.failed(flows)))
    context = ways.context
    excuses = [e for _, evaluation, _ in ways.whole for e in evaluation.excuses if _is_load(e)]
    excuses += _load_rows(ways, flows)
    parts = _latencies(ways, flows)
    mixtures = blended(parts, COARSE)
    known = all(math.isfinite(f.main.occupancy.tpot_s) for f in flows)
    excuses += excuses_of_slo(context, mixtures, known)
    excuses += excuses_of_within(context, mixtures)
    gain = math.nan
    if not excuses:
        gain = _loop_gain(ways, flows)
        excuses += gain_excuses(gain)
    evaluation = Evaluation(
        slo=(),
        loads=(),
        lines=tuple(line_load(pairs) for pairs in _by_line(ways, flows)),
        routing=_routing(ways, flows, threshold_s),
        prefill_hit_rate=context.demand.atoms.hit_rate,
        decode_hit_rate=_decode_hit_rate(ways, flows),
        loop_gain=gain,
        excuses=tuple(excuses),
        within_slo_share=mixtures.within if context.scenario.slo_within else math.nan,
    )
    return _Solved(Answer(evaluation, flows[0] if flows else None, mixtures), flows, parts)


def _is_load(excuse: Excuse) -> bool:
    """Rows of an aggregated pool by itself; its latencies count with everybody's."""
    return excuse.constraint.startswith("aggregated") or excuse.constraint in ("prefill_utilization", "decode_slots")


def _load_rows(ways: Ways, flows: Sequence[Flow]) -> list[Excuse]:
    found: list[Excuse] = []
    pairs = list(zip(ways.cases, flows, strict=True))
    for mine in _by_line(ways, flows):
        found += line_excuses(*mine[0])
    for pool in (pool for pool in ways.network.pools if pool.role == "prefill"):
        found += prefill_excuses(pool, [(c, f) for c, f in pairs if c.deployment.prefill is pool])
    for main, flow in zip(ways.mains, ways.by_main(flows), strict=True):
        found += main_excuses(ways.context, main, flow.main)
    for case, flow in pairs:
        found += relay_excuses(case, flow)
    return found


def _by_line(ways: Ways, flows: Sequence[Flow]) -> list[list[tuple[Case, Flow]]]:
    """The routes over each line, in the order of ``Network.lines``."""
    pairs = list(zip(ways.cases, flows, strict=True))
    return [[(c, f) for c, f in pairs if c.deployment.line is line] for line in ways.network.lines]


def _latencies(ways: Ways, flows: Sequence[Flow]) -> tuple[tuple[float, Latencies], ...]:
    """Latencies of each route by its share of the requests."""
    parts = [(route.weight, own) for route, _, own in ways.whole]
    router = ways.context.router_s(split=True)
    for case, route, flow in zip(ways.cases, ways.routes, flows, strict=True):
        table = rows(case.context, case.deployment, case.stage, case.move, flow)
        parts.append((route.weight, latencies(case.context, case.stage, flow, table, router)))
    return tuple(parts)


def _decode_hit_rate(ways: Ways, flows: Sequence[Flow]) -> float:
    """Share of all prompt tokens that decode holds already when they come: token-weighted over the routes."""
    held = whole = 0.0
    for case, flow in zip(ways.cases, flows, strict=True):
        atoms = case.context.demand.atoms
        held += case.rate * atoms.mean(atoms.cached) * flow.held_share
        whole += case.rate * atoms.mean(atoms.prompt)
    for route, _, _ in ways.whole:
        atoms = ways.context.band(*route.band).demand.atoms
        held += ways.rate * route.weight * atoms.mean(atoms.cached)
        whole += ways.rate * route.weight * atoms.mean(atoms.prompt)
    return held / whole


def _routing(ways: Ways, flows: Sequence[Flow], threshold_s: float) -> Routing:
    """Shares of all requests and tokens, over the routes."""
    total = [0.0] * 6
    tokens = ways.context.demand.mean_output
    for case, route, flow in zip(ways.cases, ways.routes, flows, strict=True):
        own = routing_of(case.context, flow)
        emitted = own.relay_token_share * case.context.demand.mean_output / tokens
        parts = (
            own.direct_share,
            own.relay_share,
            own.filtered_share,
            emitted,
            own.saved_bytes_share,
            own.owed_bytes_share,
        )
        total = [t + route.weight * part for t, part in zip(total, parts, strict=True)]
    whole = sum(route.weight for route, _, _ in ways.whole)
    threshold = threshold_s if math.isfinite(threshold_s) else None
    return Routing(total[0] + whole, total[1], total[2], total[3], threshold, 0.0, total[4], total[5])


def _completed(ways: Ways, solved: _Solved) -> Evaluation:
    """The evaluation with all quantiles and loads."""
    answer, flows = solved.answer, solved.flows
    base = answer.evaluation
    if answer.mixtures is None:
        return base
    mixtures = blended(solved.parts, BLEND_TOLERANCE)
    excuses, gain = base.excuses, base.loop_gain
    if math.isnan(gain):
        gain = _loop_gain(ways, flows)
        excuses = (*excuses, *gain_excuses(gain))
    limits = [
        f.handover.limit_tokens for f in flows if f.handover is not None and math.isfinite(f.handover.limit_tokens)
    ]
    known = all(math.isfinite(f.main.occupancy.tpot_s) for f in flows)
    return replace(
        base,
        slo=slo_values(ways.context, mixtures, known),
        loads=_pool_loads(ways, flows),
        loop_gain=gain,
        excuses=excuses,
        within_slo_share=mixtures.within,
        hand_over_limit_tokens=max(limits, default=None),
    )


def _pool_loads(ways: Ways, flows: Sequence[Flow]) -> tuple[PoolLoad, ...]:
    """Load of each pool, in the order of ``Network.pools``."""
    pairs = list(zip(ways.cases, flows, strict=True))
    found: list[PoolLoad] = []
    for pool in ways.network.pools:
        if pool.role == "prefill":
            found.append(prefill_load(pool, [c for c in ways.cases if c.deployment.prefill is pool]))
        elif pool.role == "relay_decode":
            found.append(next(relay_load(pool, f) for c, f in pairs if c.deployment.relay is pool))
        elif pool.role == "main_decode":
            found.append(next(main_decode_load(pool, f.main) for c, f in pairs if c.deployment.main is pool))
        else:
            found.append(next(e.loads[0] for r, e, _ in ways.whole if r.way.aggregated is pool))
    return tuple(found)
