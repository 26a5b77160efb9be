"""What a level tuple can leave out before its program is built: choices no plan below the limit can use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pddplan.economics.cost import line_usd_per_hour, remote_cache_usd_per_hour
from pddplan.plan.choices import Choices, DecodeChoice, Mask, nic_of
from pddplan.plan.options import PoolOption
from pddplan.plan.relaxation import Bounds
from pddplan.serve.context import Context
from pddplan.serve.deployment import LineChoice

Array = NDArray[np.float64]

Pairs = tuple[tuple[frozenset[int], frozenset[int] | None], ...]  # identities of options: main decode, relay or none

SLACK = 1e-9  # of a row


@dataclass(frozen=True)
class Point:
    """A whole plan: prefill count and chosen decode choices (relay None: no relay)."""

    prefill: int
    main: DecodeChoice
    relay: DecodeChoice | None


@dataclass(frozen=True)
class Cuts:
    """Plans the full model refused.

    ``below``: no plan with the same options and no larger counts; ``any_relay``: nor one with more relay that is no
    quicker per token (the relay was not what failed); ``exact``: itself. ``pairs``: not asked for, at any count.
    """

    below: tuple[Point, ...] = ()
    any_relay: tuple[Point, ...] = ()
    exact: tuple[Point, ...] = ()
    pairs: Pairs = ()


@dataclass(frozen=True)
class Tuple:
    """What stands outside the program."""

    prefill: PoolOption
    instances: int
    line: LineChoice | None
    mains: Choices
    relays: Choices
    cuts: Cuts = field(default_factory=Cuts)
    use_filter: bool = False


def possible(
    context: Context, level: Tuple, bounds: Bounds, limit_usd_per_hour: float = math.inf, q_high: float = 1.0
) -> Tuple | None:
    """The tuple without the decode choices that no plan below the limit can use; None where nothing is left.

    Each pair of main decode and relay (or none) is held against every row of the program by itself, at the routing that
    suits that row best, and against the cuts. A choice stays if one of its pairs does.
    """
    pairs = _rows_hold(context, level, bounds)
    if pairs is None:
        return None
    room = limit_usd_per_hour - _beside_usd_per_hour(context, level, bounds)
    usd = np.concatenate([[0.0], level.relays.least_usd])
    pairs &= level.mains.least_usd[:, None] + usd[None, :] <= room * (1 + SLACK)
    pairs &= _belongs(context, level, bounds, q_high)[:, None]
    for at_main, at_relay in refused(level):
        pairs &= ~(at_main[:, None] & at_relay[None, :])
    if any(c.option.pinned for c in level.relays):
        pairs[:, 0] = False
    if not pairs.any():
        return None
    mains, relays = np.asarray(pairs.any(axis=1)), np.asarray(pairs[:, 1:].any(axis=0))
    return replace(level, mains=level.mains.those(mains), relays=level.relays.those(relays))


def _rows_hold(context: Context, level: Tuple, bounds: Bounds) -> Mask | None:
    """Pairs (main decode, no relay or a relay) that every row of the program alone allows; None if none can.

    What the first-token rows ask of the relay at least, by time, requests and tokens, is a fractional knapsack each.
    """
    classes, mains, relays = bounds.classes, level.mains, level.relays
    share = context.rate * classes.weight * classes.may_relay
    slots = requests = tokens = 0.0
    for i, limit in enumerate(context.limits("ttft")):
        own = classes.own[i]
        gain = own * classes.may_relay * (classes.relay_ok[i] - classes.direct_ok[i])
        need = limit.quantile - float(own @ classes.direct_ok[i]) - SLACK
        slots = max(slots, _least(share * classes.hold_s, gain, need))
        requests = max(requests, _least(share, gain, need))
        tokens = max(tokens, _least(share * classes.least, gain, need))
    if not math.isfinite(slots):
        return None
    # a stay of t makes at most t / tau + 1 tokens, all of them no more than the relay's tokens/s
    full = np.minimum(relays.slots / max(relays.shortest_step_s, 1e-12), relays.tokens)
    most = np.minimum(float(share @ classes.most), full + share.sum())
    makes = np.concatenate([[0.0], most])
    fits = np.concatenate([[requests <= 0.0], relays.slots * (1 + SLACK) >= slots])
    least = np.concatenate([[0.0], np.full(len(relays), tokens)])
    count = np.concatenate([[0.0], np.full(len(relays), 0.0 if level.use_filter else requests)])
    enough = _most_made(
        mains, count, np.minimum(least, makes), makes, float(share @ classes.keep) + bounds.shift_keep_per_s
    )
    # its memory beside what runs, by the tangent
    base, slope = mains.resting_at(bounds.tokens_per_s)
    idle = mains.room_bytes[:, None] - bounds.kv_running * (base[:, None] - slope * makes)
    memory = idle >= (bounds.idle_needed_bytes + bounds.under_way_bytes) * (1 - SLACK)
    memory |= np.isinf(mains.room_bytes)[:, None]
    return np.asarray((enough >= bounds.tokens_per_s * (1 - SLACK)) & memory & fits)


def _most_made(mains: Choices, requests: Array, least: Array, most: Array, kept: float) -> Array:
    """Most tokens/s that main decode makes and the relay spares it, (mains, columns), over the tokens/s Y of the relay
    from ``least`` to ``most`` (columns,): T r(u) + k Y, see ``_drag``, with u = (t0 ``requests`` + (Y - ``kept``)/v)/I
    up to where r ends. r is linear between its points, so the most lies at an end or at a point. 0 where ``least`` is
    too much.
    """
    tokens, relief = mains.tokens[:, None, None], mains.relief[:, None, None]
    pace = (mains.extend_s_per_token / mains.counts)[:, None, None]
    start = (mains.extend_s[:, None] * requests / mains.counts[:, None])[:, :, None] - pace * kept
    u, r = mains.drag
    known = (pace > 0) & (r[:, -1:, None] <= 0.0)
    points = np.where(known, (u[:, None, :] - start) / np.maximum(pace, 1e-300), math.inf)  # Y at the points
    low, high = least[None, :, None], np.minimum(most[None, :, None], points[:, :, -1:])
    y = np.concatenate([np.broadcast_to(low, high.shape), high, np.clip(points, low, np.maximum(high, low))], axis=2)
    made = tokens * np.where(known, mains.left_at(np.maximum(start + pace * y, 0.0)), 1.0) + relief * y
    return np.asarray(np.where(high[:, :, 0] >= low[:, :, 0] * (1 - SLACK), made.max(axis=2), 0.0))


def _least(cost: Array, gain: Array, need: float) -> float:
    """Least ``cost x`` with ``gain x >= need``, 0 <= x <= 1: the cheapest gains first. inf if all aren't enough."""
    if need <= 0:
        return 0.0
    useful = np.flatnonzero(gain > 0)
    order = useful[np.argsort(cost[useful] / gain[useful], kind="stable")]
    reached = np.cumsum(gain[order])
    if reached.size == 0 or reached[-1] < need - SLACK:
        return math.inf
    last = min(int(np.searchsorted(reached, need)), order.size - 1)
    before = float(reached[last - 1]) if last else 0.0
    part = min(max((need - before) / gain[order[last]], 0.0), 1.0)
    return float(cost[order[:last]].sum() + part * cost[order[last]])


def _belongs(context: Context, level: Tuple, bounds: Bounds, q_high: float) -> Mask:
    """Mains that don't have so much memory that even full, with the most under way, they hold more than q_high of the
    prefixes: those belong to another interval."""
    mains = level.mains
    sharing = context.scenario.engine.decode_prefix_sharing and context.demand.atoms.hit_rate > 0
    # hits of turns that end on the relay before their transfer may lag, which lowers q
    least = max(1.0 - bounds.lag_share, 1e-9)
    if not sharing or context.scenario.traffic.pinned or q_high >= least:
        return np.ones(len(mains), dtype=bool)
    memory = (context.idle_for_share(q_high / least, bounds.kv_format) + bounds.under_way_worst) * (1 + 1e-4)
    with np.errstate(invalid="ignore"):  # both are infinite where only the rate is known
        return np.asarray(np.isinf(mains.running_bytes) | (mains.room_bytes - mains.running_bytes <= memory))


def refused(level: Tuple) -> list[tuple[Mask, Mask]]:
    """Mains and relays (first: none) whose pairs a cut refuses."""
    found = []
    mains, relays = level.mains, level.relays
    points = [*((p, False) for p in level.cuts.below), *((p, True) for p in level.cuts.any_relay)]
    for point, any_count in points:
        if level.instances <= point.prefill:
            at_main = (mains.options == id(point.main.option)) & (mains.counts <= point.main.instances)
            found.append((at_main, np.concatenate([[True], ~_relays_beyond(relays, point, any_count=any_count)])))
    for point in level.cuts.exact:
        if level.instances == point.prefill:
            at_main = np.array([c == point.main for c in mains], dtype=bool)
            found.append((at_main, np.array([point.relay is None, *(c == point.relay for c in relays)], dtype=bool)))
    for own, beside in level.cuts.pairs:
        found.append((_among(mains, own), np.concatenate([[beside is None], _among(relays, beside or frozenset())])))
    return found


def _among(choices: Choices, options: frozenset[int]) -> Mask:
    """Choices of these options."""
    return np.isin(choices.options, list(options))


def _relays_beyond(relays: Choices, point: Point, *, any_count: bool) -> Mask:
    """Relay choices that a cut at ``point`` leaves open."""
    relay = point.relay
    if relay is None:
        return np.ones(len(relays), dtype=bool)
    if any_count:
        return np.asarray((relays.tau_floor_s < relay.tau_floor_s * (1 - 1e-9)) | (relays.nics > nic_of(relay.option)))
    return np.asarray((relays.options != id(relay.option)) | (relays.counts > relay.instances))


def cheapest_pair(context: Context, level: Tuple, relay_tokens_per_s: float) -> float:
    """Least cost of a main-decode choice and a relay (or none) that make all tokens together [USD/h]: a bound that
    needs no program, inf if none do. ``relay_tokens_per_s``: the most that the transfers leave to a relay."""
    mains, relays = level.mains, level.relays
    if not mains:
        return math.inf
    makes = np.concatenate([[0.0], np.minimum(relays.tokens + context.rate, relay_tokens_per_s)])
    price = np.concatenate([[0.0], relays.least_usd])
    enough = mains.tokens[:, None] + mains.relief[:, None] * makes >= context.output_tokens_per_s * (1 - SLACK)
    return float(np.where(enough, mains.least_usd[:, None] + price, math.inf).min())


def least_beside(level: Tuple) -> float:
    """Least bill of prefill (unless its nodes may be shared) and the line's port [USD/h]."""
    port = level.line.port_usd_per_hour if level.line is not None else 0.0
    return level.prefill.rent_usd_per_hour(level.instances) + port


def _beside_usd_per_hour(context: Context, level: Tuple, bounds: Bounds) -> float:
    """Least bill of everything but decode: prefill, the line with its traffic, what is fixed [USD/h]."""
    prefill = level.prefill.rent_usd_per_hour(level.instances) + fixed_usd_per_hour(context, level.prefill)
    return prefill + line_usd_per_hour(context.scenario, level.line, bounds.bytes_per_s)


def fixed_usd_per_hour(context: Context, prefill: PoolOption) -> float:
    """Bill that no choice changes: owned chips, remote caches, running cost of prefill's spares [USD/h]."""
    total = sum(remote_cache_usd_per_hour(s) for s in context.scenario.sites)
    total += sum(o.owned_chips * o.usd_per_hour for s in context.scenario.sites for o in s.offers)
    return total + context.scenario.spares.get("prefill", 0) * running_usd(prefill)


def running_usd(option: PoolOption) -> float:
    """What an instance costs beside its chips' rent, which the node variables carry [USD/h]."""
    return option.usd_per_hour - option.chips * option.offer.usd_per_hour
