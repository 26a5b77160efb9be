"""TTFT, TPOT, pause and E2E of a solved plan as mixtures over requests, with the parts that own them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.equilibrium import Flow, fetch_share
from pddplan.serve.latency import Mixture
from pddplan.serve.line_stage import Transfer
from pddplan.serve.main_decode import size_biased_occupancy
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.spec.types import Metric

Array = NDArray[np.float64]

MAX_MIXTURE_SIZE = 4000
OCCUPANCY_POINTS = 8
# Quantile bins of an exponential wait for a decode slot: probability and mean in units of the mean wait
# (mean of an exponential within its lower 50 %, next 40 %, top 10 %).
WAIT_BINS = ((0.5, 0.3069), (0.4, 1.2908), (0.1, 3.3026))


@dataclass(frozen=True)
class Rows:
    """Requests by kind, flattened: ``direct`` rows, then relayed ones, ``points`` for each pair. Shape (rows,)."""

    direct: int
    points: int
    weight: Array
    prompt_time: Array  # T_P
    exposed: Array  # line; 0 for relayed
    rdma: Array  # 0 for direct
    output: Array
    eager: Array
    pause: Array  # hand-over pause, relayed
    worst_pause: Array
    workload: NDArray[np.intp] | None = None  # of each row, None for a single one

    def of(self, workload: int) -> Rows:
        """The rows of one workload, their weights summing to 1."""
        assert self.workload is not None
        mine = self.workload == workload
        weight = self.weight[mine]
        return Rows(
            int(mine[: self.direct].sum()),
            self.points,
            weight / weight.sum(),
            self.prompt_time[mine],
            self.exposed[mine],
            self.rdma[mine],
            self.output[mine],
            self.eager[mine],
            self.pause[mine],
            self.worst_pause[mine],
        )

    @cached_property
    def later(self) -> Array:
        """Tokens after the first."""
        return np.maximum(self.output - 1.0, 0.0)

    @cached_property
    def on_relay(self) -> Array:
        """Of ``later``, those that the relay emits."""
        return np.minimum(self.eager, self.later)


def rows(context: Context, deployment: Deployment, stage: PrefillStage, move: Transfer, flow: Flow) -> Rows:
    """Flatten a flow. Pairs (kind, atom) of weight 0 are dropped."""
    output, line = context.demand.atoms.output, flow.line
    direct = flow.direct
    kind, atom = np.nonzero(direct > 0)
    exposed = _after_fetch(context, deployment, stage, flow)[kind, atom]
    points = line.probability.size
    head = kind.size * points

    def spread(values: Array, tail: Array | None = None) -> Array:
        return np.repeat(values if tail is None else np.concatenate([values, tail]), points)

    def behind(values: Array) -> Array:
        """Columns that only relayed rows have: 0 for direct ones."""
        return np.concatenate([np.zeros(head), values.ravel()])

    weight = (direct[kind, atom][:, None] * line.probability).ravel()
    of_atom = context.demand.atoms.workload if context.names else None
    if flow.ways is None or flow.relay is None or flow.handover is None:
        zero, times = np.zeros(head), spread(stage.time_s[atom])
        outputs = spread(output[atom])
        of_row = None if of_atom is None else np.repeat(of_atom[atom], points)
        return Rows(head, points, weight, times, exposed.ravel(), zero, outputs, zero, zero, zero, of_row)
    ways, pause, worst = flow.ways, flow.handover.pause_s, flow.handover.worst_pause_s
    goes, stays = np.flatnonzero(ways.relayed > 0), np.flatnonzero(ways.filtered > 0)
    both = ways.atom[np.concatenate([goes, stays])]
    ends = np.broadcast_to(output[ways.atom[stays]][:, None], (stays.size, points))  # the relay emits all of these
    none = np.zeros_like(ends)
    mass = np.concatenate([ways.relayed[goes], ways.filtered[stays]])[:, None] * line.probability
    return Rows(
        head,
        points,
        np.concatenate([weight, mass.ravel()]),
        spread(stage.time_s[atom], stage.time_s[both]),
        np.concatenate([exposed.ravel(), np.zeros(mass.size)]),
        spread(np.zeros(kind.size), move.rdma_s[both]),
        spread(output[atom], output[both]),
        behind(np.concatenate([flow.relay.eager[goes], ends])),
        behind(np.concatenate([pause[goes], none])),
        behind(np.concatenate([worst[goes], none])),
        None if of_atom is None else np.repeat(of_atom[np.concatenate([atom, both])], points),
    )


def _after_fetch(context: Context, deployment: Deployment, stage: PrefillStage, flow: Flow) -> Array:
    """Exposed time (2, atoms, points) where a share of the held prefixes comes from main decode's cache tier."""
    exposed, pool = flow.line.exposed, deployment.main
    if pool is None or pool.site.cache is None:
        return exposed
    shares, tier = fetch_share(context, pool, flow), pool.site.cache
    if not shares.any():
        return exposed
    share = shares[context.demand.atoms.workload][:, None]
    pace = max(tier.host_bytes_per_s * pool.decode.parallelism.tp, tier.remote_bytes_per_s, 1.0)
    late = np.maximum(context.demand.kv_prefix / pace - stage.time_s, 0.0)[:, None]
    return np.stack([np.maximum(exposed[0], share * late + (1 - share) * exposed[0]), exposed[1]])


@dataclass(frozen=True)
class Latencies:
    """Mixtures of the metrics that this plan has, each made when it is asked for.

    TPOT and pause come without waiting, TTFT and E2E with prefill's.
    """

    makers: Mapping[Metric, Callable[[], Mixture]]
    share_within: Callable[[], float]  # P(TTFT and TPOT within their limits)
    made: dict[Metric, Mixture] = field(default_factory=dict)
    workloads: Mapping[str, Latencies] = field(default_factory=dict)  # of each workload's requests, where several

    def of_workload(self, name: str | None) -> Latencies:
        return self if name is None else self.workloads[name]

    def of(self, metric: Metric) -> Mixture:
        if metric not in self.made:
            self.made[metric] = self.makers[metric]()
        return self.made[metric]

    @cached_property
    def within(self) -> float:
        return self.share_within()


def by_workload(context: Context, whole: Latencies, part: Callable[[int, str], Latencies]) -> Latencies:
    """``whole`` with the latencies of each workload by itself, ``part`` (index, name), where there are several."""
    if not context.names:
        return whole
    parts = {name: part(k, name) for k, name in enumerate(context.names)}
    shares = context.demand.atoms.parts

    def within() -> float:
        return sum(share * one.within for share, one in zip(shares, parts.values(), strict=True))

    return Latencies(whole.makers, within, whole.made, parts)


def latencies(context: Context, stage: PrefillStage, flow: Flow, table: Rows, router_s: float) -> Latencies:
    """All four metrics.

    TTFT = W_P + T_P + router + (relay: RDMA exposed | direct: line exposed + admission wait); with first token
    ``on_prefill`` it ends after T_P and the rest of the way is a pause. TPOT = (E2E - TTFT)/(n - 1), hand-over
    pause included, requests of one token excluded. Pause is the longest gap between two tokens.
    """

    def of(rows: Rows, workload: str | None) -> Latencies:
        return _latencies(_Way(context, stage, flow, rows, router_s, workload))

    return by_workload(context, of(table, None), lambda k, name: of(table.of(k), name))


def _latencies(way: _Way) -> Latencies:
    makers: dict[Metric, Callable[[], Mixture]] = {
        "ttft": way.ttft,
        "tpot": lambda: _tpot(way),
        "pause": lambda: _pause(way),
        "e2e": way.e2e,
    }
    return Latencies(makers, lambda: _within(way))


@dataclass(frozen=True)
class _Way:
    """A solved plan's rows, and what several metrics need of them."""

    context: Context
    stage: PrefillStage
    flow: Flow
    table: Rows
    router_s: float
    workload: str | None = None  # whose rows these are, None: all

    @cached_property
    def on_prefill(self) -> bool:
        return self.context.scenario.traffic.first_token == "on_prefill"

    @cached_property
    def first(self) -> Array:
        """Latency of the first token without any waiting [s]."""
        done = self.table.prompt_time + self.router_s
        return done if self.on_prefill else done + self.table.rdma + self.table.exposed

    @cached_property
    def gap(self) -> Array | float:
        """What of the way to decode is a pause [s]."""
        return self.table.rdma + self.table.exposed if self.on_prefill else 0.0

    @cached_property
    def steps(self) -> tuple[Array, Array]:
        """Step times of main decode that running requests see [s], and their probabilities.

        The batch a running request sees, averaged over its life.
        """
        settled = self.flow.main.occupancy
        spread = min(settled.dispersion, 50.0)
        points, probability = size_biased_occupancy(settled.batch, 1.0, OCCUPANCY_POINTS, spread)
        batch = np.minimum(np.asarray(points).ravel(), max(self.flow.main.slots.per_instance, 1.0))
        return self.flow.main.table(batch), probability

    @cached_property
    def step_s(self) -> float:
        """Mean of ``steps`` [s]."""
        return float(self.steps[0] @ self.steps[1])

    @cached_property
    def relay_s(self) -> Array:
        """Time in which the relay emits its tokens [s]."""
        tau = self.flow.relay.tau_s if self.flow.relay is not None else 0.0
        return self.table.on_relay * tau

    @cached_property
    def main_s(self) -> Array:
        """The same of main decode, at the mean step [s]."""
        return (self.table.later - self.table.on_relay) * self.step_s

    @cached_property
    def hand_over_s(self) -> Array:
        """Hand-over pause where anything is handed over [s]."""
        return self.table.pause * (self.table.later > self.table.on_relay)

    @cached_property
    def paces(self) -> _Paces:
        return _tpot_kinds(self)

    def ttft(self) -> Mixture:
        """Relayed rows differ by pair only, so their points are one row."""
        table, split = self.table, self.table.direct

        def merged(values: Array) -> Array:
            return np.concatenate([values[:split], values[split :: table.points]])

        weight = table.weight[split:].reshape(-1, table.points).sum(axis=1)
        prompt = merged(table.prompt_time)
        parts = {"prefill": prompt, "router": np.full_like(prompt, self.router_s)}
        if not self.on_prefill:
            parts |= {"line": merged(table.exposed), "relay": merged(table.rdma)}
        weights = np.concatenate([table.weight[:split], weight])
        return self._mixture(weights, merged(self.first), parts, None if self.on_prefill else "main_decode")

    def e2e(self) -> Mixture:
        table = self.table
        parts = {"prefill": table.prompt_time, "router": np.full_like(table.prompt_time, self.router_s)}
        parts |= {"line": table.exposed, "relay": table.rdma + self.relay_s}
        parts |= {"main_decode": self.main_s, "hand_over": self.hand_over_s}
        way = table.rdma + table.exposed
        first = table.prompt_time + self.router_s
        constant = first + way + (self.relay_s + self.main_s + self.hand_over_s)
        return self._mixture(table.weight, constant, parts, "main_decode")

    def _mixture(self, weight: Array, constant: Array, parts: Mapping[str, Array], stage: str | None) -> Mixture:
        """Mixture with prefill's waiting and, unless ``stage`` is None, main decode's admission of direct rows."""
        if stage is not None:
            weight, constant, parts = self._with_admission(weight, constant, parts, stage)
        return _compress(weight, constant, parts, self.stage)

    def _with_admission(
        self, weight: Array, constant: Array, parts: Mapping[str, Array], stage: str
    ) -> tuple[Array, Array, Mapping[str, Array]]:
        """Split direct rows by whether they wait for a decode slot: exponential, in three quantile bins."""
        admission, split = self.flow.main.admission, self.table.direct
        decay, share = float(admission.decay_per_s), min(float(admission.p_wait), 1.0)
        if decay <= 0 or share * float(weight[:split].sum()) < 1e-6:
            return weight, constant, parts
        waits = [(share * part, mean / decay) for part, mean in WAIT_BINS]
        weights = [(1.0 - share) * weight[:split], weight[split:], *(w * weight[:split] for w, _ in waits)]
        constants = [constant, *(constant[:split] + wait for _, wait in waits)]
        columns = {name: np.concatenate([part, *([part[:split]] * len(waits))]) for name, part in parts.items()}
        added = np.concatenate([np.zeros(constant.size), *(np.full(split, wait) for _, wait in waits)])
        columns[stage] = columns[stage] + added if stage in columns else added
        return np.concatenate(weights), np.concatenate(constants), columns


@dataclass(frozen=True)
class _Paces:
    """TPOT of requests with a second token: ``base_s`` at the mean step plus ``share`` of what a step deviates.

    Shape (kinds,). Direct requests are one kind, unless their way to main decode is a pause.
    """

    weight: Array
    base_s: Array
    share: Array

    def at(self, steps: Array) -> Array:
        """TPOT at each deviation of the step from its mean, (kinds, steps) [s]."""
        return self.base_s[:, None] + np.multiply.outer(self.share, steps)


def _paces(way: _Way, first: int) -> _Paces:
    """Rows from ``first`` on as kinds; rows of one token have weight 0."""
    table = way.table
    tokens = np.maximum(table.later[first:], 1e-300)
    gap = way.gap[first:] if isinstance(way.gap, np.ndarray) else 0.0
    base = (way.relay_s[first:] + way.main_s[first:] + way.hand_over_s[first:] + gap) / tokens
    weight = np.where(table.later[first:] > 0, table.weight[first:], 0.0)
    return _Paces(weight, base, 1.0 - table.on_relay[first:] / tokens)


def _tpot_kinds(way: _Way) -> _Paces:
    if way.on_prefill or way.table.direct == 0:
        return _paces(way, 0)
    split = way.table.direct
    rest, head = _paces(way, split), float(way.table.weight[:split][way.table.later[:split] > 0].sum())
    return _Paces(
        np.concatenate([[head], rest.weight]),
        np.concatenate([[way.step_s], rest.base_s]),
        np.concatenate([[1.0], rest.share]),
    )


def _within(way: _Way) -> float:
    """P(TTFT and TPOT within their limits), admission apart."""
    limit = max((s.limit_s for s in way.context.limits("ttft", way.workload)), default=math.inf)
    weight = way.table.weight
    on_time = weight if math.isinf(limit) else weight * (1.0 - way.stage.law.survival(limit - way.first))
    kinds, (tau, probability) = way.paces, way.steps
    ok = (kinds.at(tau - way.step_s) <= way.context.tpot_limit_s(way.workload) * (1 + 1e-9)) @ probability
    split = 0 if kinds.weight.size == weight.size else way.table.direct
    alone = way.table.later == 0
    rest = np.where(alone[split:], 1.0, ok[ok.size - (weight.size - split) :])
    direct = np.where(alone[:split], 1.0, ok[0])
    return float((on_time[:split] @ direct + on_time[split:] @ rest) / weight.sum())


def _tpot(way: _Way) -> Mixture:
    """TPOT of requests with two tokens or more; (kinds x steps) points."""
    kinds, (tau, probability) = way.paces, way.steps
    total = float(kinds.weight.sum())
    if total <= 0:
        return Mixture(np.ones(1), np.zeros(1), None, {"main_decode": np.zeros(1)})
    values = kinds.at(tau - way.step_s).ravel()
    weight = np.multiply.outer(kinds.weight / total, probability).ravel()
    return Mixture(weight, values, None, {"main_decode": values})


def _pause(way: _Way) -> Mixture:
    """Longest gap: a step at a high batch, an extend pass of somebody else's hand-over, one's own hand-over."""
    table, main = way.table, way.flow.main
    tau, probability = way.steps
    step = float(np.interp(0.95, np.cumsum(probability), tau))
    own_life = float((table.weight * table.output).sum()) * way.step_s
    hit = 1.0 - math.exp(-main.handover_rate * own_life / main.slots.instances) if main.handover_rate > 0 else 0.0
    own = np.maximum(table.worst_pause, way.gap)
    weight = np.concatenate([table.weight * (1 - hit), table.weight * hit])
    value = np.concatenate([np.maximum(own, step), np.maximum(own, step + main.extend_s)])
    hand = np.concatenate([table.worst_pause, table.worst_pause])
    keep = weight > 0
    rest = np.maximum(value - hand, 0.0)
    parts = {"main_decode": rest[keep], "hand_over": hand[keep]}
    return Mixture(weight[keep] / weight[keep].sum(), value[keep], None, parts)


def _compress(weight: Array, constant: Array, parts: Mapping[str, Array], stage: PrefillStage) -> Mixture:
    """Mixture with prefill's waiting; more than MAX_MIXTURE_SIZE rows are merged with their neighbours in value."""
    total = weight.sum()
    if weight.size > MAX_MIXTURE_SIZE:
        order = np.argsort(constant, kind="stable")
        starts = np.unique(np.linspace(0, weight.size, MAX_MIXTURE_SIZE, endpoint=False).astype(int))
        mass = np.add.reduceat(weight[order], starts)
        constant = np.add.reduceat((weight * constant)[order], starts) / mass
        parts = {name: np.add.reduceat((weight * part)[order], starts) / mass for name, part in parts.items()}
        weight = mass
    return Mixture(weight / total, constant, stage.law.survival, parts)
