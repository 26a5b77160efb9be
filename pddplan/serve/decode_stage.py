"""Main decode under load: the batch it settles at, who waits for a slot, how much memory is left for idle sessions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.serve.conversion import stretch_of
from pddplan.serve.demand import Demand
from pddplan.serve.deployment import Pool
from pddplan.serve.line_stage import LineState
from pddplan.serve.main_decode import AdmissionWait, Occupancy, admission_wait, size_biased_occupancy
from pddplan.serve.relay_stage import RelayState, Routed
from pddplan.serve.steps import Slots, StepSurface, StepTable, settle, slots

Array = NDArray[np.float64]

ADMISSION_EPSILON = 0.01  # design default: share of requests that may wait for a decode slot
MOST_DISPERSION = 1e3
MIN_BURSTS = 0.1
WIDEST = 50.0  # dispersion of the batch that a request sees
LEAST_KV = 0.1  # of the mean context a request


@dataclass(frozen=True)
class MainLoad:
    """What a request of the mix brings to main decode."""

    tokens: float  # E[n - e]
    context: float  # length-biased mean
    share: float  # of requests that have tokens left
    under_way_bytes: float  # E[(line time + the wait for the relay's hand-over) x KV(L)]


def main_load(demand: Demand, line: LineState, ways: Routed | None, relay: RelayState | None) -> MainLoad:
    """Sums over the requests that reach main decode: direct ones with all n tokens, relayed ones with n - e."""
    atoms = demand.atoms
    under_way = float(((line.weight * line.line_time) @ demand.kv_prompt).sum())
    if ways is None or relay is None:
        return MainLoad(demand.mean_output, demand.token_context, 1.0, under_way)
    direct = np.where(ways.on_relay, 0.0, line.weight).sum(axis=0)
    n, prompt = atoms.output[ways.atom][:, None], atoms.prompt[ways.atom][:, None]
    left = n - relay.eager
    mass = ways.mass
    work = mass * left
    tokens = float(direct @ atoms.output + work.sum())
    moment = float(direct @ demand.output_context + (work * (prompt + 0.5 * (n + relay.eager))).sum())
    share = float(direct.sum() + mass[left > 0].sum())
    # what the transfer brought waits here until the relay hands over
    under_way += float(
        (ways.mass * np.maximum(relay.hold_s - ways.exposed, 0.0)).sum(axis=1) @ demand.kv_prompt[ways.atom]
    )
    return MainLoad(tokens, moment / tokens if tokens > 0 else atoms.mean(atoms.prompt), share, under_way)


def mixed_load(loads: Sequence[MainLoad], shares: Sequence[float]) -> MainLoad:
    """What a request of several routes brings, ``shares`` of the requests taking each: contexts weigh by tokens."""
    parts = list(zip(loads, shares, strict=True))
    tokens = sum(share * load.tokens for load, share in parts)
    moment = sum(share * load.tokens * load.context for load, share in parts)
    return MainLoad(
        tokens=tokens,
        context=moment / tokens if tokens > 0 else loads[0].context,
        share=sum(share * load.share for load, share in parts),
        under_way_bytes=sum(share * load.under_way_bytes for load, share in parts),
    )


@dataclass(frozen=True)
class MainState:
    """Main decode at a rate. What no other stage depends on is computed when it is asked for."""

    occupancy: Occupancy
    slots: Slots
    life_s: float
    context: float
    context_cv2: float  # squared CV of the contexts of those that run
    kv_running: float
    running_bytes: float
    under_way_bytes: float
    idle_bytes: float
    residence_s: float
    stretch: float
    table: StepTable
    extend_s: float  # one request's extend passes, what they add to the running step
    handover_rate: float
    surface: StepSurface | None = None  # None: a measured rate
    bursts: float = 1.0  # variance over mean of the number that run at constant steps
    busy_share: float = 0.0  # of it

    @cached_property
    def admission(self) -> AdmissionWait:
        """Wait for a slot, of the pool or of one's own instance."""
        settled, allowed = self.occupancy, self.slots
        if not math.isfinite(settled.tpot_s):
            return admission_wait(0.0, 1.0, 1.0)
        k, queues = (allowed.total, 1) if allowed.pooled else (allowed.per_instance, allowed.instances)
        return admission_wait(self.running / queues, max(k, 1.0), max(self.life_s, 1e-9), 1.0, self.crowding)

    @property
    def dispersion(self) -> float:
        """Variance over mean of the number that run, by bursts and by steps that lengthen with the batch; finite."""
        return min(self.bursts * self.occupancy.dispersion, MOST_DISPERSION)

    @property
    def widening(self) -> float:
        """``dispersion`` by steps that lengthen with the batch alone, phi."""
        return min(self.occupancy.dispersion, MOST_DISPERSION)

    @property
    def crowding(self) -> float:
        """``dispersion`` as the slots are sized for: a prefill that lets requests go evenly is no reason for fewer."""
        return max(self.dispersion, self.widening)

    @property
    def running(self) -> float:
        """Mean number of requests in the pool. The occupancy's is that at the mean step; with steps that lengthen with
        the batch the law's (``occupancy_law``) is longer by phi - 1, times what bursts add, where requests share one
        queue, in each instance where they don't."""
        queues = 1 if self.slots.pooled else self.slots.instances
        return self.occupancy.requests + queues * max(self.bursts, 1.0) * (self.widening - 1.0)

    def seen_steps(self, points: int) -> tuple[Array, Array]:
        """Step times that a running request sees, averaged over its life [s]: (points,) and their probabilities.

        The batch is ``size_biased_occupancy``; where requests go to the least loaded instance all have an equal part
        of the pool's. The contexts in a batch vary as well: of N requests of mean context c and squared CV v the sum
        has the variance c^2 Var N + N v c^2, so the KV that a step reads lies further from its mean than the batch, by
        sqrt(1 + v/phi), in an equal part of I instances by sqrt(1 + I v/phi).

        TPOT against the simulation (docs/agreement.md): median error 0.4/0.7/1.2 % at p50/p90/p99, nine in ten within
        1.6/1.9/2.8 %; beyond 3 % behind one or two prefill servers with very unequal prompts (up to 15 % low) and with
        much relaying (up to 6 % high).
        """
        allowed, phi = self.slots, min(self.dispersion, WIDEST)
        share = allowed.instances if allowed.pooled else 1
        seen, probability = size_biased_occupancy(self.occupancy.batch * share, 1.0, points, phi)
        batch = np.minimum(np.maximum(np.asarray(seen).ravel() / share, 1.0), max(allowed.per_instance, 1.0))
        if self.surface is None:
            return self.table(batch), probability
        mean = float(batch @ probability)
        wider = math.sqrt(1.0 + share * self.context_cv2 / phi)
        contexts = self.context * np.maximum(mean + wider * (batch - mean), LEAST_KV * batch) / batch
        return self.stretch * self.surface.at(batch, contexts), probability

    @cached_property
    def p_overflow(self) -> float:
        """P(more requests than slots)."""
        if self.slots.per_instance < 1:
            return 1.0
        return self.slots.overflow(self.running, self.crowding)

    @property
    def slot_room(self) -> float | None:
        """See ``Slots.room``; None where slots aren't known."""
        if not math.isfinite(self.occupancy.tpot_s):
            return None
        return self.slots.room(self.running, self.crowding, ADMISSION_EPSILON)


def main_state(
    demand: Demand,
    pool: Pool,
    surface: StepSurface,
    load: MainLoad,
    rate: float,
    passes_s: float,
    handover_rate: float,
    tier_bytes: float,
    tpot_limit_s: float,
    pooled: bool,
    gap_residence: Callable[[float], float],
    converts_s: float = 0.0,
    burstiness: Callable[[float], float] = lambda life_s: 1.0,
) -> MainState | Excuse:
    """Main decode at the rate: fixed point of the batch, and KV memory: running + under way + idle = pool.

    ``passes_s`` of each of ``handover_rate`` hand-overs lengthen the steps, and ``converts_s`` of each request, for
    turning its KV into the pool's own format. ``burstiness``: of the arrivals over the life of a request; of each
    of I instances by itself 1 + (b - 1)/I. Excuse where no batch keeps up.
    """
    tokens = rate * load.tokens
    if not math.isfinite(surface.seconds[0, 0]):
        return _rate_only(pool, tokens, load.context, handover_rate)
    kv_running = float(demand.kv_at(np.asarray(load.context)))
    stretch = stretch_of((handover_rate * passes_s + rate * converts_s) / pool.instances)
    table = surface.table(load.context, stretch)
    settled = settle(table, tokens, pool.instances)
    if isinstance(settled, Excuse):
        return Excuse("main_decode_throughput", settled.value, settled.limit, settled.unit, "main_decode")
    under_way = rate * load.under_way_bytes
    room = pool.decode.kv_pool_bytes * pool.instances - under_way
    running = settled.requests * kv_running
    idle = max(room - running, 0.0) + tier_bytes
    life_s = load.tokens * settled.tpot_s / max(load.share, 1e-12)
    bursts = (burstiness(life_s) - 1.0) * demand.bursts_that_last / (1 if pooled else pool.instances)
    return MainState(
        occupancy=settled,
        slots=slots(pool, table, kv_running, room, tpot_limit_s, pooled),
        life_s=life_s,
        context=load.context,
        context_cv2=demand.token_context_cv2,
        kv_running=kv_running,
        running_bytes=running,
        under_way_bytes=under_way,
        idle_bytes=idle,
        residence_s=gap_residence(idle),
        stretch=stretch,
        table=table,
        extend_s=passes_s,
        handover_rate=handover_rate,
        surface=surface,
        bursts=max(1.0 + bursts, MIN_BURSTS),
    )


def _rate_only(pool: Pool, tokens_per_s: float, context: float, handover_rate: float) -> MainState | Excuse:
    """Main decode from a measured rate alone: the rate is its one row; batch, TPOT and memory stay unknown (nan)."""
    limit = float(getattr(pool.decode, "max_tokens_per_s", math.nan)) * pool.instances
    if not tokens_per_s <= limit * (1 + 1e-9):
        return Excuse("main_decode_throughput", tokens_per_s, limit, "tokens/s", "main_decode")
    idle = math.inf
    return MainState(
        occupancy=Occupancy(0.0, 0.0, math.nan, 1.0),
        slots=Slots(math.inf, True, pool.instances, "engine"),
        life_s=0.0,
        context=context,
        context_cv2=0.0,
        kv_running=0.0,
        running_bytes=0.0,
        under_way_bytes=0.0,
        idle_bytes=idle,
        residence_s=idle,
        stretch=1.0,
        table=StepTable(np.array([1e-6, 1.0]), np.zeros(2)),
        extend_s=0.0,
        handover_rate=handover_rate,
        busy_share=tokens_per_s / limit,
    )
