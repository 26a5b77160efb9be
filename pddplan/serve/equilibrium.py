"""The stages of a plan solved together: hit rate at main decode -> line -> relay -> main decode -> hit rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import ADMISSION_EPSILON, MainState, main_load, main_state, mixed_load
from pddplan.serve.deployment import Deployment, Pool
from pddplan.serve.line_stage import LineState, Transfer, line_state, main_conversion_s
from pddplan.serve.prefill_stage import PrefillStage, departing_burstiness
from pddplan.serve.queueing import queue_moments
from pddplan.serve.relay import filtered_weights, finishes_on_relay, saved_bytes
from pddplan.serve.relay_stage import (
    HandOver,
    RelayState,
    Routed,
    longest_stay_s,
    relay_and_hand_over,
    routed,
)

Array = NDArray[np.float64]

HELD_TOLERANCE = 1e-4
MAX_ROUNDS = 25


@dataclass(frozen=True)
class Case:
    """A plan at a rate, before anything is known of who goes by the relay."""

    context: Context
    deployment: Deployment
    stage: PrefillStage
    move: Transfer
    rate: float


@dataclass(frozen=True)
class Flow:
    """All stages at one hit share q, relay threshold and least stay there. Weights are shares of all requests."""

    held_share: float
    next_held_share: float
    line: LineState  # with the weights (2, atoms)
    ways: Routed | None  # what starts on the relay; None if nothing does
    relay: RelayState | None
    handover: HandOver | None
    main: MainState
    threshold_s: float
    stay_s: float = 0.0
    saved_bytes: float = 0.0  # per request, by the filter
    owed_bytes: float = 0.0

    @property
    def direct(self) -> Array:
        """Weights (2, atoms) of the requests that go straight to main decode."""
        weight = self.line.weight
        return weight if self.ways is None else np.where(self.ways.on_relay, 0.0, weight)


def pinned_share(context: Context, deployment: Deployment) -> float | None:
    """Hit share q where it isn't an outcome: pinned by the user, or 0 without a decode-side cache."""
    return context.given_hit_share if deployment.decode_cache else 0.0


def tier_bytes(pool: Pool) -> float:
    """Cache room beside the KV pool: host memory of the pool's chips and the site's remote store [bytes]."""
    cache = pool.site.cache
    return 0.0 if cache is None else cache.host_bytes_per_chip * pool.chips + cache.remote_bytes


@dataclass(frozen=True)
class Lane:
    """A case up to main decode's door: the line, who starts on the relay, the relay, the hand-over."""

    case: Case
    line: LineState
    ways: Routed | None
    relay: RelayState | None
    handover: HandOver | None
    saved_bytes: float
    owed_bytes: float


def lane_at(
    case: Case, held_share: float, threshold_s: float, stay_s: float = 0.0, others_bytes_per_s: float = 0.0
) -> Lane | Excuse:
    """What comes before main decode when it holds a share ``held_share`` of the prefixes; ``others_bytes_per_s`` is
    what other routes send over the same line."""
    routes = _routes(case, held_share, threshold_s, others_bytes_per_s)
    if isinstance(routes, Excuse):
        return routes
    line, ways, saved, owed = routes
    relay: RelayState | None = None
    handed: HandOver | None = None
    if ways is not None:
        relay, handed = _relay(case, ways, stay_s)
    return Lane(case, line, ways, relay, handed, saved, owed)


def flow_at(case: Case, held_share: float, threshold_s: float, stay_s: float = 0.0) -> Flow | Excuse:
    """All stages when main decode holds a share ``held_share`` of the prefixes; Excuse where a stage has no answer."""
    lane = lane_at(case, held_share, threshold_s, stay_s)
    if isinstance(lane, Excuse):
        return lane
    flows = joined((lane,), held_share, threshold_s, stay_s)
    return flows if isinstance(flows, Excuse) else flows[0]


def joined(lanes: Sequence[Lane], held_share: float, threshold_s: float, stay_s: float) -> tuple[Flow, ...] | Excuse:
    """The flows of all lanes that end at one main decode pool, which serves them together."""
    state = _main(lanes)
    if isinstance(state, Excuse):
        return state
    context, deployment = lanes[0].case.context, lanes[0].case.deployment
    fixed = pinned_share(context, deployment)
    following = fixed if fixed is not None else _hit_share(state.residence_s, lanes)
    return tuple(
        Flow(
            held_share,
            following,
            lane.line,
            lane.ways,
            lane.relay,
            lane.handover,
            state,
            threshold_s,
            stay_s,
            lane.saved_bytes,
            lane.owed_bytes,
        )
        for lane in lanes
    )


def _routes(
    case: Case, held_share: float, threshold_s: float, others_bytes_per_s: float = 0.0
) -> tuple[LineState, Routed | None, float, float] | Excuse:
    """The line, who starts on the relay, and the filter's saved and owed bytes per request."""
    context, deployment, stage, move, rate = case.context, case.deployment, case.stage, case.move, case.rate
    demand = context.demand
    line = line_state(demand, move, stage, rate, held_share, others_bytes_per_s=others_bytes_per_s)
    if line.rho >= 1.0:
        return Excuse("line_utilization", line.rho, 1.0, "", "line")
    saved, owed = 0.0, 0.0
    ways: Routed | None = None
    if deployment.relay is not None:
        on_relay = (line.predicted > threshold_s) & (line.weight > 0)
        filtered: Array | None = None
        if deployment.use_filter and on_relay.any():
            filtered, saved, owed = _filter(context, deployment.relay, move, line, np.where(on_relay, line.weight, 0.0))
            # what is owed comes back with a later turn, so the line carries all but the saved bytes
            sent = 1.0 - saved / max(line.bytes_per_request, 1e-9)
            line = line_state(demand, move, stage, rate, held_share, sent, others_bytes_per_s)
        ways = routed(line, on_relay, filtered, move.relay_converts_s) if on_relay.any() else None
    return line, ways, saved, owed


def longest_stay(case: Case, held_share: float, threshold_s: float) -> float:
    """Longest stay on the relay that its slots allow, see ``longest_stay_s``; 0 where nobody is relayed [s]."""
    context, pool = case.context, case.deployment.relay
    routes = _routes(case, held_share, threshold_s)
    if isinstance(routes, Excuse) or routes[1] is None or pool is None:
        return 0.0
    ways = routes[1]
    return longest_stay_s(
        context.demand_on(pool.offer),
        pool,
        context.step_surface(pool),
        ways,
        case.rate,
        context.tpot_limit_s(),
        lambda stay: _relay(case, ways, stay)[0].requests,
        context.cap("relay_decode"),
        ADMISSION_EPSILON,
    )


def _filter(
    context: Context, relay: Pool, move: Transfer, line: LineState, relayed: Array
) -> tuple[Array, float, float]:
    """Weights that finish on the relay by forecast, and saved and owed bytes per request."""
    forecast = context.scenario.traffic.output_forecast or (1.0, 1.0)
    demand = context.demand.in_format(move.kv_format)
    n = demand.atoms.output
    tau = float(context.step_surface(relay).table(demand.atoms.mean(demand.atoms.prompt)).seconds[0])
    debt = np.minimum(move.size + (demand.kv_session - demand.kv_prompt), demand.kv_session)
    gain = saved_bytes(move.size, debt, context.last_turn)
    finishes = finishes_on_relay(n[None, :], line.predicted, 0.0, tau) & (gain > 0)
    taken = filtered_weights(relayed.ravel(), finishes.ravel(), forecast[0], forecast[1]).reshape(relayed.shape)
    unsent = float((taken * move.size).sum())
    saved = float((taken * gain).sum())
    return taken, max(saved, 0.0), unsent - max(saved, 0.0)


def _relay(case: Case, ways: Routed, stay_s: float) -> tuple[RelayState, HandOver]:
    """Relay and hand-over; main decode's running step, which the hand-over waits for, is taken at a typical batch."""
    context, main, pool = case.context, case.deployment.main, case.deployment.relay
    assert main is not None and pool is not None
    return relay_and_hand_over(
        context.demand_on(pool.offer),
        pool,
        context.step_surface(pool),
        ways,
        case.rate,
        context.tpot_limit_s(),
        case.move.rtt_s,
        context.extend_cost(main),
        context.typical_step_s(main),
        stay_s,
    )


def _main(lanes: Sequence[Lane]) -> MainState | Excuse:
    """Main decode with what the relays leave it, and the extend passes of the hand-overs."""
    first = lanes[0].case
    context, main = first.context, first.deployment.main
    assert main is not None
    demand = context.demand_on(main.offer)
    passes_s, handovers, converts_s = 0.0, 0.0, 0.0  # per second
    for lane in lanes:
        rate, ways = lane.case.rate, lane.ways
        if ways is not None and lane.handover is not None:
            handovers += rate * float(ways.relayed.sum())
            passes_s += rate * float(np.einsum("r,rp,p->", ways.relayed, lane.handover.passes_s, lane.line.probability))
        kept = None if ways is None else (ways.kind, ways.atom, ways.filtered)
        converts_s += rate * main_conversion_s(lane.case.move, lane.line.weight, kept)
    rate = sum(lane.case.rate for lane in lanes)
    size = context.session_bytes(demand.kv_format)
    turns = sum(lane.case.rate * lane.case.context.session_bytes(demand.kv_format) for lane in lanes) / size
    loads = [main_load(lane.case.context.demand_on(main.offer), lane.line, lane.ways, lane.relay) for lane in lanes]
    return main_state(
        demand,
        main,
        context.step_surface(main),
        loads[0] if len(loads) == 1 else mixed_load(loads, [lane.case.rate / rate for lane in lanes]),
        rate,
        passes_s / handovers if handovers > 0 else 0.0,
        handovers,
        tier_bytes(main) if first.deployment.decode_cache else 0.0,
        context.tpot_limit_s(),
        context.pooled_slots,
        lambda idle: context.residence_s(idle, turns, demand.kv_format),
        converts_s / rate,
        lambda life_s: _bursts(lanes, life_s),
    )


def _bursts(lanes: Sequence[Lane], life_s: float) -> float:
    """Burstiness of what reaches main decode from prefill, over the life of a request there."""
    total, rate = 0.0, sum(lane.case.rate for lane in lanes)
    for lane in lanes:
        stage, traffic = lane.case.stage, lane.case.context.scenario.traffic
        pool = lane.case.deployment.prefill
        assert pool is not None
        servers = pool.instances * pool.prefill.servers_per_instance
        queues = 1 if traffic.prefix_cache == "shared" else servers
        mean, second, _ = queue_moments(stage.time_s, lane.case.context.demand.atoms.weight)
        own = 1.0 + (traffic.burstiness - 1.0) / queues
        total += lane.case.rate * departing_burstiness(
            own, stage.law.utilization, servers // queues, second / mean**2 - 1.0, mean, life_s
        )
    return total / rate


def _hit_share(residence_s: float, lanes: Sequence[Lane]) -> float:
    """``q' = P(gap <= T)(1 - lag)``: held if it wasn't evicted and had arrived.

    A turn whose last token comes from main decode has its KV there by then, so only a relayed turn that ends before
    its transfer lags, by T_exp - n tau: lag = sum w P(gap < max(T_exp - n tau, 0)). Of several workloads the share of
    each, ``q' = sum c_k P(gap_k <= T)(1 - lag_k)``.
    """
    sessions = lanes[0].case.context.demand.sessions
    total = sum(lane.case.rate for lane in lanes)
    lost, parts = np.zeros(len(sessions.gaps)), np.zeros(len(sessions.gaps))
    for lane in lanes:
        atoms, share = lane.case.context.demand.atoms, lane.case.rate / total
        parts += share * np.asarray(atoms.parts)
        if lane.ways is None or lane.relay is None:
            continue
        after = lane.ways.exposed - atoms.output[lane.ways.atom][:, None] * lane.relay.tau_s
        if (after > 0).any():
            workload = atoms.workload[lane.ways.atom]
            late = (lane.ways.mass * sessions.late(np.maximum(after, 0.0), workload)).sum(axis=1)
            lost += share * np.bincount(workload, late, parts.size)
    return sessions.share_at(residence_s, 1.0 - lost / np.maximum(parts, 1e-300))


def equilibrium(case: Case, threshold_s: float, start: float = 1.0, stay_s: float = 0.0) -> Flow | Excuse:
    """Largest fixed point of q -> q', from q = 1 downwards.

    More hits at main decode mean fewer bytes, shorter transfers, less KV under way and more idle room, so the map
    rises and the iteration falls monotonically onto its largest fixed point. Excuse where a stage gives out on the way.
    ``start`` just above the fixed point of another threshold, which moves q little, saves rounds.
    """
    fixed = pinned_share(case.context, case.deployment)
    held = start if fixed is None else fixed
    flow = flow_at(case, held, threshold_s, stay_s)
    for _ in range(MAX_ROUNDS):
        if isinstance(flow, Excuse) or abs(flow.next_held_share - held) <= HELD_TOLERANCE:
            return flow
        held = flow.next_held_share
        flow = flow_at(case, held, threshold_s, stay_s)
    return flow


def loop_gain(case: Case, flow: Flow) -> float:
    """Slope of q -> q' at the fixed point, by a central difference of 0.01; 0 where q is pinned.

    The loop x_M -> bytes -> rho -> transfer -> KV under way -> idle room -> x_M is one-dimensional in q, so its
    spectral radius is this slope; at 1 a small loss of hits grows until the line or main decode saturates.
    """
    if pinned_share(case.context, case.deployment) is not None:
        return 0.0
    step = 0.01
    high, low = min(flow.held_share + step, 1.0), max(flow.held_share - step, 0.0)
    at_high = flow_at(case, high, flow.threshold_s, flow.stay_s)
    at_low = flow_at(case, low, flow.threshold_s, flow.stay_s)
    if isinstance(at_high, Excuse) or isinstance(at_low, Excuse):
        return 1.0
    return abs(at_high.next_held_share - at_low.next_held_share) / (high - low)


def fetch_share(context: Context, pool: Pool, flow: Flow) -> Array:
    """P(a held prefix lies in the cache tier, not in the KV pool): it was asked for after the pool's residence.

    Shape (workloads,).
    """
    tier, sessions = tier_bytes(pool), context.demand.sessions
    if tier <= 0:
        return np.zeros(len(sessions.gaps))
    inside = context.residence_s(flow.main.idle_bytes - tier, context.rate, context.demand_on(pool.offer).kv_format)
    return sessions.fetched(inside, flow.main.residence_s)
