"""What the network program is made of: classes of requests, and what an instance of each option does at its best."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.plan.levels import choices_of
from pddplan.plan.options import PoolOption, site_pairs
from pddplan.plan.state import Search
from pddplan.serve.context import Context
from pddplan.spec.types import Role

Array = NDArray[np.float64]
Index = NDArray[np.intp]

MAX_CLASSES = 24
BATCHES = 200  # of an aggregated pool, tried for its best


@dataclass(frozen=True)
class Way:
    """A prefill option and a site that decodes what it makes."""

    option: PoolOption
    target: str

    @property
    def pair(self) -> tuple[str, str]:
        return self.option.site.name, self.target

    @property
    def crosses(self) -> bool:
        return self.pair[0] != self.pair[1]


@dataclass(frozen=True)
class NetworkFigures:
    """Of a search's scenario; capacities of one instance, nothing depends on the counts."""

    search: Search

    @property
    def context(self) -> Context:
        return self.search.context

    @cached_property
    def classes(self) -> tuple[Index, ...]:
        """Atoms of each class: of one workload, in the order of uncached tokens."""
        atoms = self.context.demand.atoms
        order = atoms.by_uncached
        most = max(MAX_CLASSES // atoms.workloads, 2)
        found: list[Index] = []
        for k in range(atoms.workloads):
            own = order[atoms.workload[order] == k]
            work, weight = (np.cumsum(v[own]) for v in (atoms.weight * atoms.uncached, atoms.weight))
            share = 0.5 * work / work[-1] + 0.5 * weight / weight[-1]
            edges = np.searchsorted(share, np.linspace(0, 1, most + 1)[1:-1])
            cut = np.split(own, edges) if own.size > most else [own[i : i + 1] for i in range(own.size)]
            found += [part for part in cut if part.size]
        mean = [float(atoms.uncached[c] @ atoms.weight[c]) / float(atoms.weight[c].sum()) for c in found]
        return tuple(found[i] for i in np.argsort(mean, kind="stable"))

    def per_class(self, values: Array) -> Array:
        """Mean of a figure of the atoms in each class."""
        weight = self.context.demand.atoms.weight
        return np.array([float(weight[c] @ values[c]) / float(weight[c].sum()) for c in self.classes])

    @cached_property
    def weight(self) -> Array:
        weight = self.context.demand.atoms.weight
        return np.array([float(weight[c].sum()) for c in self.classes])

    @cached_property
    def prefills(self) -> tuple[PoolOption, ...]:
        return tuple(dict.fromkeys(way.option for way in self.ways))

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """Every prefill option with every site that can decode for it."""
        found = []
        for source, target in site_pairs(self.context.scenario):
            if self._linked(source.name, target.name) and any(o.site.name == target.name for o in self.mains):
                options = self.search.shop.pools["prefill"]
                found += [Way(o, target.name) for o in options if o.site.name == source.name]
        return tuple(found)

    def _linked(self, source: str, target: str) -> bool:
        """Whether KV gets from a site to another (or needs no line)."""
        return source == target or bool(self.search.shop.between(source, target))

    @cached_property
    def mains(self) -> dict[PoolOption, float]:
        """Most tokens/s of an instance by main-decode option."""
        return self._decode("main_decode")

    @cached_property
    def relays(self) -> dict[PoolOption, float]:
        """Most tokens of main decode that an instance spares [tokens/s], by relay option."""
        groups = [group for groups in self.search.choices.values() for group in groups]
        relief = max((c.relief for mains, _ in groups for c in mains), default=1.0)
        return {option: tokens * relief for option, tokens in self._decode("relay_decode").items()}

    def _decode(self, role: Role) -> dict[PoolOption, float]:
        best: dict[PoolOption, float] = {}
        for source, target in site_pairs(self.context.scenario):
            if not self._linked(source.name, target.name):
                continue
            for mains, relays in choices_of(self.search, source.name, target.name, source.name == target.name):
                for choice in mains if role == "main_decode" else relays:
                    each = choice.tokens_per_s / choice.instances
                    best[choice.option] = max(best.get(choice.option, 0.0), each)
        return best

    @cached_property
    def whole(self) -> dict[PoolOption, tuple[Array, float]]:
        """Aggregated options: an instance's time for the prompts of each class, if nothing else ran, and its tokens/s,
        if no prompt did."""
        context, demand = self.context, self.context.demand
        found = {}
        for option in self.search.shop.pools["aggregated"]:
            service = option.pool(1).aggregated
            chunk, held = float(service.chunk_tokens), demand.token_context
            atoms = demand.atoms
            step = np.asarray(service.step_time_s(1e-6, held, chunk, atoms.cached + atoms.uncached / 2), dtype=float)
            times = self.per_class(step * atoms.uncached / chunk) / service.parallelism.dp
            most = min(service.max_batch, service.kv_pool_bytes / float(demand.kv_at(np.asarray(held))))
            if most < 1:
                continue
            batch = np.geomspace(1.0, most, BATCHES)
            seconds = np.asarray(service.step_time_s(batch, held, 0.0), dtype=float)
            fits = seconds <= context.tpot_limit_s() * (1 + 1e-9)
            if fits.any():
                tokens = float((batch[fits] / seconds[fits]).max()) * context.scenario.engine.mtp_accepted_tokens
                found[option] = (times, tokens)
        return found

    @cached_property
    def prompt_times(self) -> dict[PoolOption, Array]:
        """Server seconds of a prompt of each class by prefill option, passes shared, over its servers."""
        found = {}
        for option in self.prefills:
            pool = option.pool(1)
            times = self.context.prefill_times(pool)
            found[option] = self.per_class(times.shared) / pool.prefill.servers_per_instance
        return found

    @cached_property
    def prompt_work(self) -> dict[PoolOption, tuple[Array, Array]]:
        """Share of the requests up to each atom in the order of uncached tokens, and the busy instances of a prefill
        option that they ask for; strictly rising, both from 0."""
        atoms = self.context.demand.atoms
        order = atoms.by_uncached
        weight = atoms.weight[order] / atoms.weight.sum()
        share = np.concatenate([[0.0], np.cumsum(weight)])
        share[-1] = 1.0
        found = {}
        for option in self.prefills:
            pool = option.pool(1)
            times = self.context.prefill_times(pool).shared[order] / pool.prefill.servers_per_instance
            work = np.cumsum(self.context.rate * weight * np.maximum(times, 1e-12))
            found[option] = share, np.concatenate([[0.0], work])
        return found

    @cached_property
    def in_time(self) -> dict[PoolOption, Array]:
        """Share of each class whose prefill alone, without waiting, meets each first-token limit: (limits, classes)."""
        limits = self.context.limits("ttft")
        router = self.context.router_s(split=True)
        found = {}
        for option in self.prefills:
            times = self.context.prefill_times(option.pool(1)).alone + router
            found[option] = np.array([self.per_class((times <= k.limit_s).astype(float)) for k in limits])
        return found

    @cached_property
    def sent_bytes(self) -> Array:
        """Least mean bytes of each class over a line."""
        demand = self.context.demand
        given = self.context.given_hit_share
        sharing = self.context.scenario.engine.decode_prefix_sharing
        held = demand.held(1.0 if given is None else given) if sharing else 0.0
        return self.per_class(np.asarray(held * demand.delta_held + (1.0 - held) * demand.delta_cold))
