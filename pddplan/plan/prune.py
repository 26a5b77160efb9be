"""What a level tuple can leave out before its program is built: choices no plan below the limit can use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.plan.choices import DecodeChoice
from pddplan.plan.options import PoolOption
from pddplan.plan.relaxation import Bounds
from pddplan.serve.context import Context
from pddplan.serve.deployment import LineChoice

Array = NDArray[np.float64]
Index = NDArray[Any]  # columns of the program


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
    quicker per token (the relay was not what failed); ``exact``: itself.
    """

    below: tuple[Point, ...] = ()
    any_relay: tuple[Point, ...] = ()
    exact: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Tuple:
    """What stands outside the program."""

    prefill: PoolOption
    instances: int
    line: LineChoice | None
    mains: tuple[DecodeChoice, ...]
    relays: tuple[DecodeChoice, ...]
    cuts: Cuts = field(default_factory=Cuts)
    use_filter: bool = False


def without_hopeless(context: Context, level: Tuple, bounds: Bounds, limit_usd_per_hour: float, q_high: float) -> Tuple:
    """The tuple without decode choices that no plan below the limit can use: they only slow the program down.

    Main decode: too few tokens/s even with the most that a relay can take; dearer by itself than what the limit leaves;
    or so much memory that even full, with the most under way, it holds more than q_high of the prefixes (it belongs to
    another interval). Relays: dearer than what the limit leaves beside the cheapest main decode.
    """
    classes = bounds.classes
    share = context.rate * classes.weight
    needed = bounds.tokens_per_s * (1 - 1e-9)
    if level.relays:
        taken = float(share @ classes.most) + bounds.shift_tokens_per_s
        needed -= taken * max((c.relief for c in level.mains), default=1.0)
    memory = math.inf
    sharing = context.scenario.engine.decode_prefix_sharing and context.demand.atoms.hit_rate > 0
    # hits of turns that end on the relay before their transfer may lag, which lowers q
    least = max(1.0 - bounds.lag_share, 1e-9)
    if sharing and context.scenario.workload.decode_prefix_hit_rate is None and q_high < least:
        memory = (context.idle_for_share(q_high / least) + bounds.under_way_worst) * (1 + 1e-4)
    room = limit_usd_per_hour - least_beside(level)
    mains = tuple(
        c
        for c in level.mains
        if c.tokens_per_s >= needed
        and (math.isinf(c.running_bytes) or c.room_bytes - c.running_bytes <= memory)
        and c.least_usd_per_hour <= room
    )
    left = room - min((c.least_usd_per_hour for c in mains), default=math.inf)
    relays = tuple(c for c in level.relays if c.least_usd_per_hour <= left)
    return replace(level, mains=mains, relays=relays)


def cheapest_pair(context: Context, level: Tuple, relay_tokens_per_s: float) -> float:
    """Least cost of a main-decode choice and a relay (or none) that make all tokens together [USD/h]: a bound that
    needs no program, inf if none do. ``relay_tokens_per_s``: the most that the transfers leave to a relay."""
    if not level.mains:
        return math.inf
    total = context.output_tokens_per_s
    tokens = np.array([c.tokens_per_s for c in level.mains])
    relief = np.array([c.relief for c in level.mains])
    usd = np.array([c.least_usd_per_hour for c in level.mains])
    makes, price = np.zeros(1), np.zeros(1)
    if level.relays:
        full = np.array([math.inf if level.use_filter else c.tokens_per_s + context.rate for c in level.relays])
        makes = np.concatenate([makes, np.minimum(full, relay_tokens_per_s)])
        price = np.concatenate([price, [c.least_usd_per_hour for c in level.relays]])
    enough = tokens[:, None] + relief[:, None] * makes >= total * (1 - 1e-9)
    return float(np.where(enough, usd[:, None] + price, math.inf).min())


def least_beside(level: Tuple) -> float:
    """Least bill of prefill (unless its nodes may be shared) and the line's port [USD/h]."""
    port = level.line.port_usd_per_hour if level.line is not None else 0.0
    return level.prefill.rent_usd_per_hour(level.instances) + port
