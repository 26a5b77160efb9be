"""TTFT, TPOT, pause and E2E of a solved plan as mixtures over requests, with the parts that own them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.context import Context
from pddplan.serve.discretize import tail_edges
from pddplan.serve.equilibrium import Flow
from pddplan.serve.latency import Blend, Mixture
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.request_rows import Rows
from pddplan.spec.types import Metric

Array = NDArray[np.float64]

MAX_MIXTURE_SIZE = 4000
OCCUPANCY_POINTS = 12
# Quantile bins of an exponential wait for a decode slot: probability and mean in units of the mean wait
# (mean of an exponential within its lower 50 %, next 40 %, top 10 %).
WAIT_BINS = ((0.5, 0.3069), (0.4, 1.2908), (0.1, 3.3026))


@dataclass(frozen=True)
class Latencies:
    """Mixtures of the metrics that this plan has, each made when it is asked for.

    TPOT and pause come without waiting, TTFT and E2E with prefill's.
    """

    makers: Mapping[Metric, Callable[[], Mixture | Blend]]
    share_within: Callable[[], float]  # P(TTFT and TPOT within their limits)
    made: dict[Metric, Mixture | Blend] = field(default_factory=dict)
    workloads: Mapping[str, Latencies] = field(default_factory=dict)  # of each workload's requests, where several
    parts: Mapping[str, float] = field(default_factory=dict)  # share of each of them in the requests
    paced_share: Callable[[], float] = lambda: 1.0  # of the requests: those of two tokens or more, which have a TPOT

    def of_workload(self, name: str | None) -> Latencies:
        return self if name is None else self.workloads[name]

    def of(self, metric: Metric) -> Mixture | Blend:
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
    shares = dict(zip(context.names, context.demand.atoms.parts, strict=True))

    def within() -> float:
        return sum(share * parts[name].within for name, share in shares.items() if share > 0)

    return Latencies(whole.makers, within, whole.made, parts, shares, whole.paced_share)


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
    makers: dict[Metric, Callable[[], Mixture | Blend]] = {
        "ttft": way.ttft,
        "tpot": lambda: _tpot(way),
        "pause": lambda: _pause(way),
        "e2e": way.e2e,
    }
    return Latencies(makers, lambda: _within(way), paced_share=way.paced_share)


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
        """Step times of main decode that running requests see [s], and their probabilities."""
        return self.flow.main.seen_steps(OCCUPANCY_POINTS)

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

    def paced_share(self) -> float:
        """Share of the requests that have two tokens or more."""
        return float(self.table.weight[self.table.later > 0].sum() / self.table.weight.sum())

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
    return Mixture(weight, values, None, {"main_decode": values}, smooth=True)


def _pause(way: _Way) -> Mixture:
    """Longest gap: a step at a high batch, the longest extend passes of others' hand-overs, one's own hand-over."""
    table = way.table
    tau, probability = way.steps
    step = float(np.interp(0.95, np.cumsum(probability), tau))
    passes, mass = _longest_passes(way)
    own = np.maximum(table.worst_pause, way.gap)
    weight = np.multiply.outer(table.weight, mass).ravel()
    value = np.maximum(own[:, None], step + passes).ravel()
    hand = np.repeat(table.worst_pause, mass.size)
    keep = weight > 0
    rest = np.maximum(value - hand, 0.0)
    parts = {"main_decode": rest[keep], "hand_over": hand[keep]}
    return Mixture(weight[keep] / weight[keep].sum(), value[keep], None, parts)


def _longest_passes(way: _Way) -> tuple[Array, Array]:
    """Longest extend pass that a request meets on main decode [s]: points and probabilities.

    Hand-overs come to an instance at rate h for the mean life l of a request; the first pass of each is its longest,
    t0 + e/v of what it adds to the running step, of law F: P(longest <= x) = exp(-h l (1 - F(x))), 0 for those who
    meet none.
    """
    flow = way.flow
    main, ways, handed = flow.main, flow.ways, flow.handover
    if main.handover_rate <= 0 or ways is None or handed is None:
        return np.zeros(1), np.ones(1)
    met = main.handover_rate * float((way.table.weight * way.table.output).sum()) * way.step_s / main.slots.instances
    mass = np.multiply.outer(ways.relayed, flow.line.probability).ravel()
    values = np.broadcast_to(handed.added.time_s(handed.eager), (ways.relayed.size, flow.line.probability.size)).ravel()
    order = np.argsort(values, kind="stable")
    values, mass = values[order], mass[order]
    edges = tail_edges(OCCUPANCY_POINTS)
    share = 1.0 + np.log(0.5 * (edges[1:] + edges[:-1])) / met
    at = np.minimum(np.searchsorted(np.cumsum(mass), share * (1.0 - 1e-12) * mass.sum()), values.size - 1)
    return np.where(share > 0, values[at], 0.0), np.diff(edges)


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
