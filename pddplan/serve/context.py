"""What all plans of a scenario share: its demand and the service times per candidate, computed once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.llm.types import LanguageModel
from pddplan.perf.host import first_output_s, handoff_s
from pddplan.perf.precision import format_assumptions, kv_on
from pddplan.serve.conversion import Sending, sender_s, sending
from pddplan.serve.demand import Demand, build_demand, demand_of
from pddplan.serve.deployment import Pool
from pddplan.serve.handover import ExtendCost
from pddplan.serve.prefill_stage import PrefillStage, PrefillTimes, converting, prefill_stage, prefill_times
from pddplan.serve.steps import StepSurface, step_surface
from pddplan.serve.traffic import Atoms
from pddplan.spec.types import ChipOffer, Metric, Role, Scenario, SloLimit

Array = NDArray[np.float64]

DEFAULT_TOKEN_TIME_S = 0.05
_PREFILLING: frozenset[Role] = frozenset({"prefill", "aggregated"})
LINE_CAP = 0.97  # a mean load beyond it has no usable tail: s(m, rho) > 30 at m = 1


@dataclass(frozen=True)
class Context:
    """A scenario ready to evaluate plans. The caches only store pure results."""

    scenario: Scenario
    model: LanguageModel
    demand: Demand
    nic_goodput: float  # share of the NIC rate that KV transfers reach inside a site and at a line's ends
    times: dict[int, PrefillTimes] = field(default_factory=dict)
    stages: dict[tuple[int, int, float, Sending], PrefillStage | Excuse] = field(default_factory=dict)
    surfaces: dict[int, StepSurface] = field(default_factory=dict)
    extends: dict[int, tuple[ExtendCost, ExtendCost]] = field(default_factory=dict)
    typical: dict[int, tuple[float, float]] = field(default_factory=dict)  # batch of a decode pool and its step [s]
    keep: list[object] = field(default_factory=list)  # services whose id() keys the caches stay alive
    bands: dict[tuple[float, float], Context] = field(default_factory=dict)  # by ``band``

    def at_rate(self, request_rate_per_s: float) -> Context:
        """The same mix at another rate of all; the caches stay, none of them depends on the planned rate."""
        traffic = self.scenario.traffic.at_rate(request_rate_per_s)
        return replace(self, scenario=replace(self.scenario, traffic=traffic))

    def with_atoms(self, atoms: Atoms) -> Context:
        """The scenario with other requests, those of a trace for instance: nothing else of it changes."""
        own = self.demand
        demand = demand_of(own.traffic, self.model, own.kv_format, atoms, own.equal_pages)
        return Context(self.scenario, self.model, demand, self.nic_goodput)

    def band(self, low: float, high: float) -> Context:
        """The requests between two quantiles of their uncached tokens alone; the rate is still that of all.

        What depends on decode services only is shared: steps and extend passes at the contexts of the whole traffic.
        """
        if (low, high) == (0.0, 1.0):
            return self
        if (low, high) not in self.bands:
            demand = self.demand.band(low, high)
            self.bands[low, high] = replace(self, demand=demand, times={}, stages={}, bands={})
        # the bands are kept for contexts of other rates and prices as well
        return replace(self.bands[low, high], scenario=self.scenario)

    def demand_on(self, offer: ChipOffer) -> Demand:
        """The demand with its caches in the format that pools on an offer hold."""
        return self.demand.in_format(kv_on(offer, self.demand.kv_format))

    @cached_property
    def kv_formats(self) -> tuple[str, ...]:
        """KV formats that chips of the scenario hold, each once."""
        offers = (offer for site in self.scenario.sites for offer in site.offers)
        return tuple(dict.fromkeys(kv_on(offer, self.demand.kv_format) for offer in offers))

    def session_bytes(self, kv_format: str) -> float:
        """Mean KV of an idle session in a format [bytes]."""
        return self.demand.in_format(kv_format).sessions.kv_mean

    def residence_s(self, idle_bytes: float, rate: float, kv_format: str) -> float:
        """Residence that idle room buys at a rate: rate E[KV] E[min(gap, T)] = M, see ``IdleSessions`` [s]."""
        return self.demand.in_format(kv_format).sessions.residence_s(idle_bytes, rate)

    def share_for_idle(self, idle_bytes: float, kv_format: str) -> float:
        """Share of prefixes still held with so much idle room, nothing lagging."""
        return self.demand.sessions.share_at(self.residence_s(idle_bytes, self.rate, kv_format))

    def idle_for_share(self, share: float, kv_format: str) -> float:
        """Least idle room with which ``share`` of the prefixes is held, 0 where the share isn't an outcome [bytes]."""
        if share <= 0 or self.scenario.traffic.pinned:
            return 0.0
        if share >= 1:
            return math.inf
        return self.demand.in_format(kv_format).sessions.idle_bytes(share, self.rate)

    @property
    def rate(self) -> float:
        return self.scenario.traffic.request_rate_per_s

    @property
    def output_tokens_per_s(self) -> float:
        """All output tokens at the planned rate [tokens/s]."""
        return self.rate * self.demand.mean_output

    @property
    def given_hit_share(self) -> float | None:
        """Share of the prefixes held at main decode where the user pins it, None where it is an outcome."""
        return self.demand.sessions.pinned_share

    @property
    def pooled_slots(self) -> bool:
        """Requests go to the least loaded decode instance; with session affinity they stay on theirs."""
        return self.scenario.traffic.prefix_cache == "shared"

    def tpot_limit_s(self, workload: str | None = None) -> float:
        """Tightest TPOT limit [s], inf without one: of all, the batch that engines are set to; or of one workload."""
        return min((s.limit_s for s in self.limits("tpot", workload)), default=float("inf"))

    @property
    def token_time_s(self) -> float:
        """What a user takes for the time of one token: the TPOT limit, 50 ms without one [s]."""
        limit = self.tpot_limit_s()
        return limit if math.isfinite(limit) else DEFAULT_TOKEN_TIME_S

    def router_s(self, split: bool) -> float:
        """What is added to prefill until the client sees a token, beside steps, KV and waits [s]: router, sampler and
        detokeniser, and the hand-over to other workers where prefill is ``split`` from decode.

        Where every prefill is measured only the router: the measured time to the first token holds the rest.
        """
        engine = self.scenario.engine
        offers = [o for site in self.scenario.sites for o in site.offers if _PREFILLING.intersection(site.roles)]
        if offers and all("prefill" in o.measured for o in offers):
            return engine.router_delay_s
        step = min(self.token_time_s, DEFAULT_TOKEN_TIME_S)
        handed = handoff_s(engine, step) if split else 0.0
        return engine.router_delay_s + first_output_s(engine, self.model, step) + handed

    def limits(self, metric: Metric, workload: str | None = None) -> tuple[SloLimit, ...]:
        """Limits of a metric, of all workloads or of one."""
        return tuple(s for s in self.scenario.slo if s.metric == metric and workload in (None, s.workload))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of several workloads, empty for a single one: their rows are told apart."""
        traffic = self.scenario.traffic
        return tuple(w.name for w in traffic.workloads) if traffic.several else ()

    def weight_of(self, limit: SloLimit) -> Array:
        """Weights of the requests that a limit is about, (atoms,), summing to 1."""
        atoms = self.demand.atoms
        return atoms.weight if limit.workload is None else atoms.weights[self.names.index(limit.workload)]

    @property
    def last_turn(self) -> Array:
        """Probability that an atom's turn is its session's last, (atoms,)."""
        ends = np.array([gap.end_probability for gap in self.demand.sessions.gaps])
        return ends[self.demand.atoms.workload]

    def cap(self, role: Role) -> float:
        return self.scenario.max_utilization.get(role, 1.0)

    @property
    def cap_line(self) -> float:
        """Cap on the mean load of the line; below 1 by stability alone."""
        return LINE_CAP

    def prefill_times(self, pool: Pool) -> PrefillTimes:
        key = id(pool.service)
        if key not in self.times:
            chip = pool.offer.chip
            ranks = pool.prefill.parallelism.tp * pool.prefill.parallelism.pp
            fetch = chip.scale_out_bytes_per_s * ranks * self.nic_goodput
            self.keep.append(pool.service)
            chunk = self.scenario.engine.chunk_tokens
            self.times[key] = prefill_times(self.demand_on(pool.offer), pool.prefill, chunk, fetch)
        return self.times[key]

    def step_surface(self, pool: Pool) -> StepSurface:
        """Step times of a decode pool's service over the contexts that this traffic can hold."""
        key = id(pool.service)
        if key not in self.surfaces:
            atoms = self.demand.atoms
            low, high = float(atoms.prompt.min()), float((atoms.prompt + atoms.output).max())
            grid = np.unique(np.geomspace(max(low, 1.0), max(high, low * 1.01 + 1.0), 8))
            self.keep.append(pool.service)
            self.surfaces[key] = step_surface(pool.decode, grid)
        return self.surfaces[key]

    def extend_cost(self, pool: Pool) -> tuple[ExtendCost, ExtendCost]:
        """Pass over known tokens on main decode beside a typical batch: what the hand-over waits for (the running
        step inside), and what the pass adds to the others' steps."""
        key = id(pool.service)
        if key not in self.extends:
            batch, step = self._typical(pool)
            t0, speed = pool.decode.extend_cost(self.demand.mean_context, batch)
            added = max(float(t0) - step, 0.0) if np.isfinite(step) else 0.0
            self.keep.append(pool.service)
            self.extends[key] = ExtendCost(float(t0), float(speed)), ExtendCost(added, float(speed))
        return self.extends[key]

    def typical_batch(self, pool: Pool) -> float:
        """Half of the batch that the TPOT limit allows on an instance."""
        return self._typical(pool)[0]

    def typical_step_s(self, pool: Pool) -> float:
        """Step time at ``typical_batch`` and the mean context [s]."""
        return self._typical(pool)[1]

    def staying_pays(self, main: Pool) -> bool:
        """Whether a token that the relay makes can cost main decode less than making it: ``v > g``, an extend pass
        against an instance's tokens/s at the TPOT limit (half of g, for contexts that are longer than the mean)."""
        batch, step = self._typical(main)
        if not math.isfinite(step):
            return True
        speed = float(np.max(self.extend_cost(main)[1].tokens_per_s))
        whole = 2.0 * batch / self.step_surface(main).table(self.demand.mean_context).at(2.0 * batch)
        return speed > 0.5 * whole

    def _typical(self, pool: Pool) -> tuple[float, float]:
        key = id(pool.service)
        if key not in self.typical:
            table = self.step_surface(pool).table(self.demand.mean_context)
            batch = max(table.largest_batch(self.tpot_limit_s()) / 2, 1.0)
            self.keep.append(pool.service)
            self.typical[key] = batch, table.at(batch)
        return self.typical[key]

    def prefill_stage(
        self, pool: Pool, rate: float, main: Pool | None = None, relay: Pool | None = None
    ) -> PrefillStage | Excuse:
        """Prefill at a rate; ``main`` and ``relay`` are where its caches go, which may have it convert them."""
        sent = sending(self.demand, pool, main, relay)
        key = (id(pool.service), pool.instances, rate, sent)
        if key not in self.stages:
            times, servers = self.sent_times(pool, sent), pool.instances * pool.prefill.servers_per_instance
            self.stages[key] = prefill_stage(self.demand, times, servers, rate, self.cap("prefill"))
        return self.stages[key]

    def sent_times(self, pool: Pool, sent: Sending) -> PrefillTimes:
        """Service times of prefill with what it converts for those that it sends its caches to."""
        times = self.prefill_times(pool)
        return times if sent == Sending() else converting(times, sender_s(self.demand, pool, sent, self._known_share))

    @property
    def _known_share(self) -> float:
        """Share of the prefixes that main decode holds for sure, as far as it is known before a plan is solved."""
        return (self.given_hit_share or 0.0) if self.scenario.engine.decode_prefix_sharing else 0.0


def build_context(scenario: Scenario, model: LanguageModel, nic_goodput: float) -> Context:
    """Context of a scenario; ``nic_goodput`` from the catalogue's link defaults."""
    scenario = _with_formats(scenario, model)
    return Context(
        scenario=scenario,
        model=model,
        demand=build_demand(scenario.traffic, model, scenario.precision.kv_cache, scenario.engine.equal_pages),
        nic_goodput=nic_goodput,
    )


def _with_formats(scenario: Scenario, model: LanguageModel) -> Scenario:
    """The scenario with what its chips run in other formats than it asks for among its assumptions and warnings."""
    known = {a.name for a in scenario.assumptions}
    found = tuple(a for a in format_assumptions(scenario, model) if a.name not in known)
    if not found:
        return scenario
    told = tuple(f"{a.note}. State {a.name} to change that." for a in found)
    return replace(
        scenario,
        assumptions=(*scenario.assumptions, *found),
        warnings=tuple(dict.fromkeys((*scenario.warnings, *told))),
    )
