"""The stages of a plan solved together: hit rate at main decode -> line -> relay -> main decode -> hit rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import HandOver, MainState, RelayState, hand_over, main_state, relay_state
from pddplan.serve.deployment import Deployment, Pool
from pddplan.serve.handover import one_shot_share
from pddplan.serve.line_stage import LineState, Transfer, kinds, line_state
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.relay import filtered_weights, finishes_on_relay, last_turn_probability, saved_bytes
from pddplan.serve.residency import decode_hit_share, gap_cdf

Array = NDArray[np.float64]

HELD_TOLERANCE = 1e-4
MAX_ROUNDS = 25


@dataclass(frozen=True)
class Flow:
    """All stages at one hit share q and one relay threshold. Weights are (2, atoms), shares of all requests."""

    held_share: float
    next_held_share: float
    weight: Array
    relayed: Array  # weight of P -> RLD -> MD
    filtered: Array  # weight of P -> RLD only
    line: LineState
    relay: RelayState | None
    handover: HandOver | None
    main: MainState
    threshold_s: float
    saved_bytes: float  # per request, by the filter
    owed_bytes: float
    relay_output: Array  # output tokens of each atom, (atoms,)


def pinned_share(context: Context, deployment: Deployment) -> float | None:
    """Hit share q where it isn't an outcome: pinned by the user, or 0 without a decode-side cache."""
    if not deployment.decode_cache:
        return 0.0
    pinned = context.scenario.workload.decode_prefix_hit_rate
    if pinned is None:
        return None
    own = context.demand.atoms.hit_rate
    return min(pinned / own, 1.0) if own > 0 else 0.0


def tier_bytes(pool: Pool) -> float:
    """Cache room beside the KV pool: host memory of the pool's chips and the site's remote store [bytes]."""
    cache = pool.site.cache
    return 0.0 if cache is None else cache.host_bytes_per_chip * pool.chips + cache.remote_bytes


def flow_at(
    context: Context,
    deployment: Deployment,
    stage: PrefillStage,
    move: Transfer,
    rate: float,
    held_share: float,
    threshold_s: float,
) -> Flow | Excuse:
    """All stages when main decode holds a share ``held_share`` of the prefixes; Excuse where a stage has no answer."""
    demand = context.demand
    assert deployment.main is not None
    weight = kinds(demand, held_share)
    sent = np.ones_like(weight)
    line = line_state(demand, move, stage, rate, held_share)
    if line.rho >= 1.0:
        return Excuse("line_utilization", line.rho, 1.0, "", "line")
    relayed = weight * (line.predicted > threshold_s) if deployment.relay is not None else np.zeros_like(weight)
    filtered, saved, owed = np.zeros_like(weight), 0.0, 0.0
    if deployment.use_filter and deployment.relay is not None:
        filtered, saved, owed = _filter(context, deployment.relay, move, line, relayed)
        relayed = relayed - filtered
        # what is owed comes back with a later turn, so the line carries all but the saved bytes
        total = float((weight * move.size).sum())
        sent = np.full_like(weight, 1.0 - saved / max(total, 1e-9))
        line = line_state(demand, move, stage, rate, held_share, sent)
    return _decode(context, deployment, stage, move, rate, held_share, threshold_s, line, (relayed, filtered), (saved, owed))


def _filter(
    context: Context, relay: Pool, move: Transfer, line: LineState, relayed: Array
) -> tuple[Array, float, float]:
    """Weights that finish on the relay by forecast, and saved and owed bytes per request."""
    forecast = context.scenario.workload.output_forecast or (1.0, 1.0)
    demand = context.demand
    n = demand.atoms.output
    tau = float(context.step_surface(relay).table(demand.atoms.mean(demand.atoms.prompt)).seconds[0])
    last = float(last_turn_probability(context.scenario.workload.sessions.turns))
    debt = np.minimum(move.size + (demand.kv_session - demand.kv_prompt), demand.kv_session)
    gain = saved_bytes(move.size, debt, last)
    finishes = finishes_on_relay(n[None, :], line.predicted, 0.0, tau) & (gain > 0)
    taken = filtered_weights(relayed.ravel(), finishes.ravel(), forecast[0], forecast[1]).reshape(relayed.shape)
    unsent = float((taken * move.size).sum())
    saved = float((taken * gain).sum())
    return taken, max(saved, 0.0), unsent - max(saved, 0.0)


def _decode(
    context: Context,
    deployment: Deployment,
    stage: PrefillStage,
    move: Transfer,
    rate: float,
    held_share: float,
    threshold_s: float,
    line: LineState,
    routed: tuple[Array, Array],
    books: tuple[float, float],
) -> Flow | Excuse:
    demand, main = context.demand, deployment.main
    assert main is not None
    relayed, filtered = routed
    limit = context.tpot_limit_s()
    weight = kinds(demand, held_share)
    n = demand.atoms.output[None, :, None]
    eager: Array = np.zeros_like(line.exposed)
    relay: RelayState | None = None
    handed: HandOver | None = None
    passes, handovers = 0.0, 0.0
    middle = demand.atoms.mean(demand.atoms.prompt + demand.atoms.output / 2)
    if deployment.relay is not None and float((relayed + filtered).sum()) > 0:
        cost, added = context.extend_cost(main)
        step = float(context.step_surface(main).table(middle)(np.asarray(context.typical_batch(main))))
        extra: Array = np.zeros_like(line.exposed)
        surface = context.step_surface(deployment.relay)
        for _ in range(2):  # the hand-over's rounds keep the relay a little longer, which changes what it hands over
            relay = relay_state(demand, deployment.relay, surface, line, relayed + filtered, rate, extra, limit)
            single = float(one_shot_share(min(relay.load, 5.0), max(int(relay.slots.total), 1)))
            handed = hand_over(relay.eager, move, cost, added, relay.tau_s, step, single)
            extra = handed.extra_relay_s
        assert relay is not None and handed is not None
        share = (relayed / np.maximum(weight, 1e-300))[..., None]
        gone = (filtered / np.maximum(weight, 1e-300))[..., None]
        eager = share * relay.eager + gone * n
        mass = relayed[..., None] * line.probability
        count = float(mass.sum())
        handovers = rate * count
        passes = float((mass * handed.passes_s).sum() / count) if count > 0 else 0.0
    state = main_state(
        demand,
        main,
        context.step_surface(main),
        line,
        weight[..., None] * line.probability,
        eager,
        rate,
        passes,
        handovers,
        tier_bytes(main) if deployment.decode_cache else 0.0,
        limit,
        context.pooled_slots,
        lambda idle: context.residence_s(idle, rate),
    )
    if isinstance(state, Excuse):
        return state
    fixed = pinned_share(context, deployment)
    following = fixed if fixed is not None else _hit_share(context, state.residence_s, line, relayed, relay)
    return Flow(
        held_share,
        following,
        weight,
        relayed,
        filtered,
        line,
        relay,
        handed,
        state,
        threshold_s,
        books[0],
        books[1],
        demand.atoms.output,
    )


def _hit_share(
    context: Context, residence_s: float, line: LineState, relayed: Array, relay: RelayState | None
) -> float:
    """``q' = P(gap <= T)(1 - lag)``: held if it wasn't evicted and had arrived.

    A turn whose last token comes from main decode has its KV there by then, so only a relayed turn that ends before
    its transfer lags, by T_exp - n tau: lag = sum w P(gap < max(T_exp - n tau, 0)).
    """
    share = float(decode_hit_share(residence_s, 0.0, context.gap))
    if relay is None:
        return share
    after = np.maximum(line.exposed - context.demand.atoms.output[None, :, None] * relay.tau_s, 0.0)
    late = float((relayed[..., None] * line.probability * gap_cdf(after, context.gap)).sum())
    return share * (1.0 - late)


def equilibrium(
    context: Context, deployment: Deployment, stage: PrefillStage, move: Transfer, rate: float, threshold_s: float
) -> Flow | Excuse:
    """Largest fixed point of q -> q', from q = 1 downwards.

    More hits at main decode mean fewer bytes, shorter transfers, less KV under way and more idle room, so the map
    rises and the iteration falls monotonically onto its largest fixed point. Excuse where a stage gives out on the way.
    """
    fixed = pinned_share(context, deployment)
    held = 1.0 if fixed is None else fixed
    flow = flow_at(context, deployment, stage, move, rate, held, threshold_s)
    for _ in range(MAX_ROUNDS):
        if isinstance(flow, Excuse) or abs(flow.next_held_share - held) <= HELD_TOLERANCE:
            return flow
        held = flow.next_held_share
        flow = flow_at(context, deployment, stage, move, rate, held, threshold_s)
    return flow


def loop_gain(
    context: Context, deployment: Deployment, stage: PrefillStage, move: Transfer, rate: float, flow: Flow
) -> float:
    """Slope of q -> q' at the fixed point, by a central difference of 0.01; 0 where q is pinned.

    The loop x_M -> bytes -> rho -> transfer -> KV under way -> idle room -> x_M is one-dimensional in q, so its
    spectral radius is this slope; at 1 a small loss of hits grows until the line or main decode saturates.
    """
    if pinned_share(context, deployment) is not None:
        return 0.0
    step = 0.01
    high, low = min(flow.held_share + step, 1.0), max(flow.held_share - step, 0.0)
    at_high = flow_at(context, deployment, stage, move, rate, high, flow.threshold_s)
    at_low = flow_at(context, deployment, stage, move, rate, low, flow.threshold_s)
    if isinstance(at_high, Excuse) or isinstance(at_low, Excuse):
        return 1.0
    return abs(at_high.next_held_share - at_low.next_held_share) / (high - low)


def fetch_share(context: Context, pool: Pool, flow: Flow) -> float:
    """P(a held prefix lies in the cache tier, not in the KV pool): it was asked for after the pool's residence."""
    tier = tier_bytes(pool)
    if tier <= 0:
        return 0.0
    inside = context.residence_s(flow.main.idle_bytes - tier, context.rate)
    whole = float(gap_cdf(flow.main.residence_s, context.gap))
    return max(1.0 - float(gap_cdf(inside, context.gap)) / whole, 0.0) if whole > 0 else 0.0
