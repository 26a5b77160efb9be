"""The integer program of a whole network: who prefills and decodes what, over which lines, at what least cost.

Requests are classes by uncached tokens. Variables: instances of every option of every role, lines, whole nodes; the
share of each class that takes each way (prefill option, decode site), or an aggregated pool; tokens/s that relays
spare main decode. Rows: every class is served, prefill time, tokens/s at each decode site, relay tokens, line bytes,
first-token quantiles without any waiting, inventory, power. Capacity counts at its best, nobody waits: at the full
capacities (``derate`` 1, 1) its optimum is a lower bound of any network's cost, with requests alike in their class and
contexts alike in all decode pools. At lower capacities it proposes networks that may hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.economics.cost import mean_load, remote_cache_usd_per_hour
from pddplan.plan.highs import minimise
from pddplan.plan.network_figures import NetworkFigures, Way
from pddplan.plan.options import PoolOption
from pddplan.plan.program import Rows
from pddplan.plan.prune import running_usd
from pddplan.serve.deployment import LineChoice
from pddplan.spec.types import Role
from pddplan.units import SECONDS_PER_HOUR

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Use = tuple[Role, str]  # a role on an offer, by its key

LEAST_PART = 0.02  # of the requests, for an offer that must be used
LEAST_FLOW = 1e-4  # of the requests: less is the solver's tolerance


@dataclass(frozen=True)
class Mix:
    """A solution: the bound [USD/h], instances by option, lines, and the share of all requests by way and class."""

    bound_usd_per_hour: float
    counts: tuple[tuple[PoolOption, int], ...]  # options with instances
    lines: tuple[LineChoice, ...]
    flows: tuple[tuple[Way, Array], ...]  # ways that are taken, shares (classes,)
    whole: tuple[tuple[PoolOption, Array], ...]  # aggregated options that serve, shares (classes,)

    def of(self, role: Role) -> tuple[tuple[PoolOption, int], ...]:
        return tuple((option, count) for option, count in self.counts if option.role == role)


class NetworkProgram(NetworkFigures):
    """The program of a search's scenario."""

    def solve(
        self,
        prefill: float = 1.0,
        decode: float = 1.0,
        limit_usd_per_hour: float = math.inf,
        *,
        proposal: bool = False,
        apart: bool = False,
        use: tuple[Use, ...] = (),
        stock: float = 1.0,
    ) -> Mix | None:
        """The cheapest network whose prefill and decode pools use no more than these shares of their capacity; None
        where there is none below the limit. A ``proposal`` has one layout per role and offer, and no relay that isn't
        pinned, as what a relay spares is a bound only. ``apart``: no aggregated pool. ``use``: roles and offers that
        must have an instance, and a part of the load; ``stock``: share of the chips on offer that may be used."""
        columns = _Columns(self)
        rows = Rows(columns.total)
        self._flow_rows(rows, columns, prefill, decode)
        self._use_rows(rows, columns, use)
        _layouts(rows, columns, proposal)
        costs, constant = self._cost_rows(rows, columns, stock)
        if math.isfinite(limit_usd_per_hour):
            used = np.flatnonzero(costs)
            rows.add((used.astype(float), costs[used]), -math.inf, limit_usd_per_hour - constant)
        upper = np.full(columns.total, math.inf)
        upper[columns.lines] = 1.0
        upper[: len(columns.every)] = [
            0 if proposal and not o.pinned and o.role == "relay_decode" else o.max_instances for o in columns.every
        ]
        upper[columns.chosen] = 1.0
        if apart:
            upper[[columns.count(option) for option in self.whole]] = 0.0
        integral = np.zeros(columns.total)
        integral[: columns.integers] = 1.0
        solved = minimise(costs, integral, upper, np.array(rows.matrix), np.array(rows.low), np.array(rows.high))
        if solved is None:
            return None
        values, bound = solved
        return self._mix(columns, values, bound + constant)

    def _flow_rows(self, rows: Rows, columns: _Columns, prefill: float, decode: float) -> None:
        """Everybody is served; prefill, decode, relays and lines keep up; first tokens come in time."""
        context, rate, k = self.context, self.context.rate, len(self.classes)
        for c in range(k):
            served = [columns.flow(i, c) for i in range(len(self.ways))]
            served += [columns.in_whole(a, c) for a in range(len(self.whole))]
            rows.add([(column, 1.0) for column in served], self.weight[c], self.weight[c])
        for option in self.prefills:
            mine = [i for i, way in enumerate(self.ways) if way.option is option]
            work = rate * self.prompt_times[option]
            entries = [(columns.flow(i, c), float(work[c])) for i in mine for c in range(k)]
            cap = min(context.cap("prefill"), 1.0) * prefill
            rows.add([*entries, (columns.count(option), -cap)], -math.inf, 0)
        output = rate * self.per_class(context.demand.atoms.output)
        for target in dict.fromkeys(way.target for way in self.ways):
            entries = [(columns.flow(i, c), float(output[c])) for i in columns.to(target) for c in range(k)]
            entries += [(columns.spared(r, target), -1.0) for r in self.relays if columns.spares(r, target)]
            mains = [(m, tokens) for m, tokens in self.mains.items() if m.site.name == target]
            rows.add([*entries, *((columns.count(m), -t * decode) for m, t in mains)], -math.inf, 0)
            some = [(columns.flow(i, c), 1.0) for i in columns.to(target) for c in range(k)]
            rows.add([*some, *((columns.count(m), -1.0) for m, _ in mains)], -math.inf, 0)
        for option, tokens in self.relays.items():
            entries = [(columns.spared(option, t), 1.0) for t in columns.targets if columns.spares(option, t)]
            rows.add([*entries, (columns.count(option), -tokens)], -math.inf, 0)
        for a, (option, (times, tokens)) in enumerate(self.whole.items()):
            cap = min(context.cap("aggregated"), 1.0) * prefill
            prompts = [(columns.in_whole(a, c), rate * float(times[c])) for c in range(k)]
            rows.add([*prompts, (columns.count(option), -cap)], -math.inf, 0)
            made = [(columns.in_whole(a, c), float(output[c])) for c in range(k)]
            rows.add([*made, (columns.count(option), -tokens * decode)], -math.inf, 0)
        for pair in columns.pairs:
            mine = [i for i, way in enumerate(self.ways) if way.pair == pair]
            entries = [(columns.flow(i, c), rate * float(self.sent_bytes[c])) for i in mine for c in range(k)]
            offered = [(n, line) for n, line in columns.tiers if line.ends == pair]
            entries += [(n, -line.capacity_bytes_per_s * context.cap_line) for n, line in offered]
            rows.add(entries, -math.inf, 0)
            rows.add([(n, 1.0) for n, _ in offered], -math.inf, 1)
        for i, limit in enumerate(context.limits("ttft")):
            own = self.per_class(context.weight_of(limit) / context.demand.atoms.weight)  # 0 for other workloads
            entries = [
                (columns.flow(w, c), float(own[c] * self.in_time[way.option][i, c]))
                for w, way in enumerate(self.ways)
                for c in range(k)
            ]
            entries += [(columns.in_whole(a, c), float(own[c])) for a in range(len(self.whole)) for c in range(k)]
            rows.add(entries, limit.quantile - 1e-9, math.inf)

    def _use_rows(self, rows: Rows, columns: _Columns, use: tuple[Use, ...]) -> None:
        k = range(len(self.classes))
        for role, key in use:
            mine = [o for o in columns.every if (o.role, o.offer.key) == (role, key)]
            rows.add([(columns.count(option), 1.0) for option in mine], 1, math.inf)
            taken = [columns.flow(i, c) for i, way in enumerate(self.ways) if way.option in mine for c in k]
            taken += [columns.in_whole(a, c) for a, option in enumerate(self.whole) if option in mine for c in k]
            if taken:
                rows.add([(column, 1.0) for column in taken], LEAST_PART, math.inf)

    def _cost_rows(self, rows: Rows, columns: _Columns, stock: float) -> tuple[Array, float]:
        """Inventory, nodes, power; what each column costs and what is paid anyway [USD/h]."""
        scenario = self.context.scenario
        costs = np.zeros(columns.total)
        constant = 0.0
        for option in columns.every:
            costs[columns.count(option)] = running_usd(option)
        for site in scenario.sites:
            constant += remote_cache_usd_per_hour(site)
            watts: list[tuple[int, float]] = []
            for offer in site.offers:
                constant += offer.owned_chips * offer.usd_per_hour
                entries = [(columns.count(o), float(o.chips)) for o in columns.every if o.offer.key == offer.key]
                if not entries:
                    continue
                node = columns.node(offer.key)
                rows.add(entries, -math.inf, stock * offer.max_chips)
                rows.add([*entries, (node, -float(offer.buy_in))], -math.inf, offer.owned_chips)
                costs[node] = offer.buy_in * offer.usd_per_hour
                if site.power is not None and offer.chip.all_in_watts is not None:
                    watts += [(c, chips * offer.chip.all_in_watts * site.power.pue) for c, chips in entries]
            if site.power is not None and site.power.max_watts is not None and watts:
                rows.add(watts, -math.inf, site.power.max_watts)
        for column, line in columns.tiers:
            costs[column] = line.port_usd_per_hour
        hourly = self.context.rate * self.sent_bytes * SECONDS_PER_HOUR * mean_load(scenario)
        for i, way in enumerate(self.ways):
            if way.crosses:
                tiers = [line for _, line in columns.tiers if line.ends == way.pair]
                least = min(line.link.tiers[line.tier].usd_per_byte.get(way.pair[0], 0.0) for line in tiers)
                for c in range(len(self.classes)):
                    costs[columns.flow(i, c)] = least * float(hourly[c])
        return costs, constant

    def _mix(self, columns: _Columns, values: Array, bound: float) -> Mix:
        k = len(self.classes)
        counts = [(option, round(values[columns.count(option)])) for option in columns.every]
        flows = [(way, values[columns.flow(i, 0) : columns.flow(i, 0) + k]) for i, way in enumerate(self.ways)]
        whole = [(o, values[columns.in_whole(a, 0) : columns.in_whole(a, 0) + k]) for a, o in enumerate(self.whole)]
        bought = {id(option) for option, count in counts if count > 0}
        return Mix(
            bound,
            tuple((option, count) for option, count in counts if count > 0),
            tuple(line for column, line in columns.tiers if values[column] > 0.5),
            tuple((w, part) for w, part in flows if part.sum() > LEAST_FLOW and id(w.option) in bought),
            tuple((option, part) for option, part in whole if part.sum() > LEAST_FLOW and id(option) in bought),
        )


def _layouts(rows: Rows, columns: _Columns, one: bool) -> None:
    """Instances only of chosen options: ``one`` of each role and offer, and just one with its count where it is
    pinned."""
    alike: dict[Use, list[tuple[PoolOption, int]]] = {}
    for option, chosen in zip(columns.every, columns.chosen.tolist(), strict=True):
        alike.setdefault((option.role, option.offer.key), []).append((option, chosen))
    for mine in alike.values():
        pinned = mine[0][0].pinned
        if not (one or pinned):
            continue
        for option, chosen in mine:
            count = columns.count(option)
            rows.add([(count, 1.0), (chosen, -float(option.max_instances))], -math.inf, 0)
            rows.add([(count, 1.0), (chosen, -float(option.min_instances))], 0, math.inf)
        rows.add([(chosen, 1.0) for _, chosen in mine], 1.0 if pinned else -math.inf, 1)


class _Columns:
    """Where each variable of the program stands: counts, lines, nodes and choices (whole), then shares and tokens."""

    def __init__(self, program: NetworkProgram) -> None:
        self.every: Sequence[PoolOption] = (*program.prefills, *program.mains, *program.relays, *program.whole)
        self._count = {id(option): i for i, option in enumerate(self.every)}
        self.pairs = list(dict.fromkeys(way.pair for way in program.ways if way.crosses))
        offered = [line for line in program.search.shop.lines if line.ends in self.pairs]
        first_line = len(self.every)
        self.tiers = [(first_line + i, line) for i, line in enumerate(offered)]
        self.lines = np.arange(first_line, first_line + len(offered))
        keys = list(dict.fromkeys(option.offer.key for option in self.every))
        self._node = {key: first_line + len(offered) + i for i, key in enumerate(keys)}
        first_chosen = first_line + len(offered) + len(keys)
        self.chosen = np.arange(first_chosen, first_chosen + len(self.every))
        self.integers = first_chosen + len(self.every)
        self._classes = len(program.classes)
        self._ways = program.ways
        self._whole = self.integers + len(program.ways) * self._classes
        first_spared = self._whole + len(program.whole) * self._classes
        self.targets = list(dict.fromkeys(way.target for way in program.ways))
        spared = [(id(r), t) for r in program.relays for t in self.targets if (r.site.name, t) in self.pairs]
        self._spared = {key: first_spared + i for i, key in enumerate(spared)}
        self.total = first_spared + len(spared)

    def count(self, option: PoolOption) -> int:
        return self._count[id(option)]

    def node(self, key: str) -> int:
        return self._node[key]

    def flow(self, way: int, cls: int) -> int:
        return self.integers + way * self._classes + cls

    def in_whole(self, option: int, cls: int) -> int:
        return self._whole + option * self._classes + cls

    def spares(self, option: PoolOption, target: str) -> bool:
        return (id(option), target) in self._spared

    def spared(self, option: PoolOption, target: str) -> int:
        return self._spared[id(option), target]

    def to(self, target: str) -> Iterator[int]:
        return (i for i, way in enumerate(self._ways) if way.target == target)
