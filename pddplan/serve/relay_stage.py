"""Relay decode and the hand-over under load: what the relay emits, who waits, what the hand-over costs main decode.

Most (kind, atom) pairs of ``line_stage`` never see the relay, so those that do are picked out once (``Routed``), and
everything here has one row for each of them; axis 1 are the spread points of the line's sharing factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.conversion import stretch_of
from pddplan.serve.demand import Demand
from pddplan.serve.deployment import Pool
from pddplan.serve.discretize import as_floats
from pddplan.serve.handover import (
    ExtendCost,
    extend_limit_tokens,
    one_shot_pause_s,
    one_shot_share,
    rounds_until,
)
from pddplan.serve.line_stage import LineState
from pddplan.serve.occupancy_law import max_offered
from pddplan.serve.relay import eager_tokens
from pddplan.serve.steps import Slots, StepSurface, StepTable, slots

Array = NDArray[np.float64]

RELAY_ROUNDS = 4
STAY_ROUNDS, STAY_HALVINGS, STAY_MARGIN = 4, 30, 2e-3


@dataclass(frozen=True)
class Routed:
    """The (kind, atom) pairs that start on the relay; shapes (rows,) and (rows, points). Empty without a relay."""

    on_relay: NDArray[np.bool_]  # (2, atoms)
    kind: NDArray[np.intp]
    atom: NDArray[np.intp]
    relayed: Array  # weight of P -> RLD -> MD
    filtered: Array  # weight of P -> RLD only
    exposed: Array  # (rows, points)
    mass: Array  # (rows, points) ``relayed`` by the points of the line's spread
    converts_s: float = 0.0  # the relay's time per request of the mix for converting what it gets

    @property
    def weight(self) -> Array:
        return self.relayed + self.filtered


def routed(
    line: LineState, on_relay: NDArray[np.bool_], filtered: Array | None, converts_s: Array | None = None
) -> Routed:
    """Pick out the pairs that the router sends to the relay; ``filtered`` (2, atoms) of their weight stay there.
    ``converts_s`` (atoms,): the relay's conversion of each, None where it gets what it holds."""
    kind, atom = np.nonzero(on_relay)
    weight = line.weight[kind, atom]
    stays = np.zeros_like(weight) if filtered is None else filtered[kind, atom]
    mass = (weight - stays)[:, None] * line.probability
    converts = 0.0 if converts_s is None else float(weight @ converts_s[atom])
    return Routed(on_relay, kind, atom, weight - stays, stays, line.exposed[kind, atom], mass, converts)


@dataclass(frozen=True)
class HandOver:
    """Hand-over of the relayed requests, arrays (rows, points): a mixture of one-shot and extend-decode by the share
    of time in one-shot mode."""

    eager: Array
    rounds: Array  # of extend-decode, before the last hand-over
    left: Array  # tokens of that
    rounds_s: Array  # time they take
    rtt_s: float
    tau_relay_s: float
    cost: ExtendCost  # of the pass that the hand-over waits for
    added: ExtendCost  # what a pass adds to the steps of the others
    step_main_s: float
    one_shot: float

    @cached_property
    def _pauses(self) -> tuple[Array, Array]:
        """Pause with one shot, and after the rounds [s]."""
        single = one_shot_pause_s(self.eager, self.rtt_s, self.cost, self.step_main_s)
        return single, one_shot_pause_s(self.left, self.rtt_s, self.cost, self.step_main_s)

    @property
    def pause_s(self) -> Array:
        """Mean pause [s]."""
        single, rest = self._pauses
        return np.asarray(self.one_shot * single + (1.0 - self.one_shot) * rest)

    @property
    def worst_pause_s(self) -> Array:
        """The pause of the more frequent mode, with a whole running step instead of half of one [s]."""
        return self._pauses[0 if self.one_shot > 0.5 else 1] + 0.5 * self.step_main_s

    @property
    def extra_relay_s(self) -> Array:
        """Time the relay works longer than with one shot [s]."""
        return (1.0 - self.one_shot) * self.rounds_s

    @property
    def passes_s(self) -> Array:
        """Time that the extend passes of one hand-over add to running steps [s].

        One shot: t0 + e/v of ``added``. Rounds: their whole time less the steps that run anyway.
        """
        saved = float(as_floats(self.cost.t0_s)) - float(as_floats(self.added.t0_s))
        passes = self.rounds_s - self.rounds * self.rtt_s + self.cost.time_s(self.left)
        several = np.maximum(passes - (self.rounds + 1.0) * saved, 0.0)
        return np.asarray(self.one_shot * self.added.time_s(self.eager) + (1.0 - self.one_shot) * several)

    @property
    def limit_tokens(self) -> float:
        """Where the rounds converge; inf if they don't."""
        return float(extend_limit_tokens(self.rtt_s, self.cost, self.tau_relay_s))


@dataclass(frozen=True)
class RelayState:
    """Relay decode at a rate; ``eager`` and ``hold_s`` (rows, points)."""

    tau_s: float
    requests: float
    slots: Slots
    context: float
    load: float
    eager: Array
    hold_s: Array

    @cached_property
    def p_wait(self) -> float:
        """P(a request finds no slot)."""
        return self.slots.overflow(self.requests, 1.0)


def relay_state(
    demand: Demand,
    pool: Pool,
    table: StepTable,
    allowed: Slots,
    ways: Routed,
    context: float,
    rate: float,
    extra_s: Array | float,
    stay_s: float,
) -> RelayState:
    """Relay at the rate: eager tokens, holding times, slots. A request is handed over when its transfer is through, but
    not before ``stay_s``; ``extra_s``: what the hand-over adds to that.

    tau depends on the batch, the batch on tau only where outputs end before their stay: a few rounds settle it.
    """
    n = demand.atoms.output[ways.atom][:, None]
    reach = np.maximum(ways.exposed, stay_s) + extra_s
    kept = float(ways.filtered @ n[:, 0])  # tokens that the filter keeps here
    tau, requests = float(table.seconds[0]), 0.0
    hold = reach
    outlasts = bool((n * tau >= reach).all())  # at the least tau, so at any
    for _ in range(RELAY_ROUNDS):
        hold = reach if outlasts else np.minimum(n * tau, reach)
        requests = rate * (float(np.einsum("rp,rp->", ways.mass, hold)) + kept * tau)  # einsum: no threads
        before, tau = tau, table.at(max(requests / pool.instances, 1.0))
        if (outlasts and kept == 0.0) or tau == before:
            break
    return RelayState(
        tau_s=tau,
        requests=requests,
        slots=allowed,
        context=context,
        load=requests / max(allowed.total, 1e-9),
        eager=eager_tokens(n, reach, 0.0, tau),
        hold_s=hold,
    )


def relay_and_hand_over(
    demand: Demand,
    pool: Pool,
    surface: StepSurface,
    ways: Routed,
    rate: float,
    tpot_limit_s: float,
    rtt_s: float,
    costs: tuple[ExtendCost, ExtendCost],
    step_main_s: float,
    stay_s: float = 0.0,
) -> tuple[RelayState, HandOver]:
    """Relay and hand-over together, in two rounds: the hand-over's own rounds keep the relay a little longer, which
    changes what it hands over. ``costs``: the pass that is waited for, and what it adds to the others' steps."""
    context, table, allowed = _slots(demand, pool, surface, ways, rate, tpot_limit_s)
    extra: Array | float = 0.0
    for last in (False, True):
        relay = relay_state(demand, pool, table, allowed, ways, context, rate, extra, stay_s)
        single = float(one_shot_share(min(relay.load, 5.0), max(int(allowed.total), 1)))
        rounds = rounds_until(relay.eager, as_floats(rtt_s), costs[0], as_floats(relay.tau_s))
        handed = HandOver(relay.eager, *rounds, rtt_s, relay.tau_s, *costs, step_main_s, single)
        if last or not rounds[0].any():
            break
        extra = handed.extra_relay_s
    return relay, handed


def _slots(
    demand: Demand, pool: Pool, surface: StepSurface, ways: Routed, rate: float, tpot_limit_s: float
) -> tuple[float, StepTable, Slots]:
    """Mean context of the relayed requests, the relay's steps there (conversions lengthen them), and its slots."""
    total = float(ways.weight.sum())
    context = float(ways.weight @ demand.middle_context[ways.atom]) / total
    kv = float(ways.weight @ demand.kv_session[ways.atom]) / total
    table = surface.table(context, stretch_of(rate * ways.converts_s / pool.instances))
    allowed = slots(pool, table, kv, pool.decode.kv_pool_bytes * pool.instances, tpot_limit_s, pooled=True)
    return context, table, allowed


def longest_stay_s(
    demand: Demand,
    pool: Pool,
    surface: StepSurface,
    ways: Routed,
    rate: float,
    tpot_limit_s: float,
    requests_at: Callable[[float], float],
    cap: float,
    epsilon: float,
) -> float:
    """Longest stay s with which the relay's slots still do; 0 where they are full as it is, inf where every output may
    end there [s].

    The s that solves ``rate Σ w min(n tau, max(T_exp, s)) = a`` with a the most requests that ``P(N > K) <= epsilon``
    and the utilisation ``cap`` allow and tau the step at a: the sum rises in s, so by bisection. ``requests_at``, the
    whole relay's requests at a stay, adds the hand-over's rounds: a is lowered until they fit too.
    """
    _, table, allowed = _slots(demand, pool, surface, ways, rate, tpot_limit_s)
    most = min(float(max_offered(math.floor(allowed.total), epsilon)), cap * allowed.total)
    whole = demand.atoms.output[ways.atom][:, None] * table.at(max(most / pool.instances, 1.0))
    asked = most
    for _ in range(STAY_ROUNDS):
        stay = _stay_s(ways, whole, asked / rate)
        if stay <= 0.0 or math.isinf(stay):
            break
        requests = requests_at(stay)
        if requests <= most:
            break
        asked *= most / requests * (1.0 - STAY_MARGIN)
    return stay


def _stay_s(ways: Routed, whole_s: Array, held_s: float) -> float:
    """The stay s at which ``Σ w min(whole, max(T_exp, s)) = held``, ``whole`` (rows, 1) what the outputs take [s]."""
    room = held_s - float(ways.filtered @ whole_s[:, 0])

    def taken(stay: float) -> float:
        return float((ways.mass * np.minimum(whole_s, np.maximum(ways.exposed, stay))).sum())

    low, high = 0.0, float(whole_s.max())
    if taken(high) <= room:
        return math.inf
    if taken(low) >= room:
        return 0.0
    for _ in range(STAY_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if taken(middle) <= room else (low, middle)
    return low
