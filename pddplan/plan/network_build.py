"""From a mix of the network program to a network that can be evaluated, and back into balance after a change.

A network's structure is its ``Parts``: pools with counts, who sends to whom. From counts, the bands of the prefill
pools and the shares of the routes follow: prefill pools are equally busy, main-decode pools of a site as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pddplan.plan.network_program import Mix, NetworkProgram
from pddplan.plan.options import PoolOption
from pddplan.serve.deployment import Deployment, LineChoice, Network, Route

Array = NDArray[np.float64]
Pair = tuple[str, str]

HALVINGS = 60
LEAST_BAND = 1e-4  # of the requests


@dataclass(frozen=True)
class Parts:
    """What is bought and who sends to whom; immutable, changed by ``replace``.

    ``prefills`` stand in the order of their bands, from the requests with the fewest uncached tokens to the most.
    ``reach``: sites that a prefill option's requests go to, by weight. ``whole``: weight of each aggregated option.
    ``tilt``: how much busier than the others each prefill pool may be, in the order of ``prefills``.
    """

    counts: Mapping[PoolOption, int]
    prefills: tuple[PoolOption, ...]
    reach: Mapping[PoolOption, tuple[tuple[str, float], ...]]
    mains: tuple[PoolOption, ...]
    whole: tuple[tuple[PoolOption, float], ...]
    lines: Mapping[Pair, LineChoice]
    relays: Mapping[Pair, PoolOption] = field(default_factory=dict)
    tilt: tuple[float, ...] = ()

    def with_count(self, option: PoolOption, count: int) -> Parts:
        return replace(self, counts={**self.counts, option: count})


def parts_of(program: NetworkProgram, mix: Mix) -> Parts:
    """The structure of a solution: prefill pools ordered by the classes they serve."""
    rank = np.arange(len(program.classes))
    served: dict[PoolOption, Array] = {}
    reach: dict[PoolOption, list[tuple[str, float]]] = {}
    for way, shares in mix.flows:
        served[way.option] = served.get(way.option, np.zeros(rank.size)) + shares
        reach.setdefault(way.option, []).append((way.target, float(shares.sum())))
    order = sorted(served, key=lambda o: float(served[o] @ rank) / float(served[o].sum()))
    reached = {target for targets in reach.values() for target, _ in targets}
    counts = {option: count for option, count in mix.counts if option.role != "prefill" or option in served}
    sources = {way.pair for way, _ in mix.flows if way.crosses}
    relays: dict[Pair, PoolOption] = {}
    for option, _ in mix.of("relay_decode"):
        pair = next((p for p in sorted(sources) if p[0] == option.site.name and p not in relays), None)
        if pair is not None:
            relays[pair] = option
    return Parts(
        counts=counts,
        prefills=tuple(order),
        reach={option: tuple(targets) for option, targets in reach.items()},
        mains=tuple(o for o, _ in mix.of("main_decode") if o.site.name in reached),
        whole=tuple((option, float(shares.sum())) for option, shares in mix.whole),
        lines={line.ends: line for line in mix.lines if line.ends in sources},
        relays=relays,
        tilt=(1.0,) * len(order),
    )


def network_of(program: NetworkProgram, parts: Parts) -> Network | None:
    """The network of the parts in balance; None where a prefill pool would be left with nothing to do."""
    pools = {option: option.pool(parts.counts[option]) for option in (*parts.prefills, *parts.mains)}
    whole = sum(weight for _, weight in parts.whole)
    routes: list[Route] = []
    bands = _bands(program, parts)
    if any(high - low < LEAST_BAND for low, high in bands):
        return None
    sharing = program.context.scenario.engine.decode_prefix_sharing
    for option, band in zip(parts.prefills, bands, strict=True):
        for target, main, share in _ends(program, parts, option):
            pair = (option.site.name, target)
            line = parts.lines.get(pair) if pair[0] != pair[1] else None
            way = Deployment(prefill=pools[option], main=pools[main], line=line, decode_cache=sharing)
            routes.append(Route(way, band, share * (1.0 - whole)))
    for pair, option in parts.relays.items():
        # a relay serves one route: of those of its pair the one with the longest requests, whose transfers take longest
        at = max(i for i, route in enumerate(routes) if _pair(route) == pair)
        relayed = replace(routes[at].way, relay=option.pool(parts.counts[option]))
        routes[at] = replace(routes[at], way=relayed)
    for option, weight in _whole(program, parts):
        routes.append(Route(Deployment(aggregated=option.pool(parts.counts[option])), (0.0, 1.0), weight))
    return Network(tuple(routes))


def _whole(program: NetworkProgram, parts: Parts) -> list[tuple[PoolOption, float]]:
    """Aggregated pools with their weights: together as before, each by what its instances can do."""
    total = sum(weight for _, weight in parts.whole)
    output = program.context.demand.mean_output
    able = []
    for option, _ in parts.whole:
        times, tokens = program.whole[option]
        able.append(parts.counts[option] / (float(program.weight @ times) + output / tokens))
    return [(option, total * a / sum(able)) for (option, _), a in zip(parts.whole, able, strict=True)]


def _pair(route: Route) -> Pair | None:
    """Sites between which a route crosses a line."""
    return None if route.way.line is None else route.way.line.ends


def _ends(program: NetworkProgram, parts: Parts, option: PoolOption) -> list[tuple[str, PoolOption, float]]:
    """Where a prefill option's requests go: decode site, main-decode option, share of its requests."""
    total = sum(weight for _, weight in parts.reach[option])
    found = []
    for target, weight in parts.reach[option]:
        mains = [m for m in parts.mains if m.site.name == target]
        able = [program.mains[m] * parts.counts[m] for m in mains]
        found += [(target, m, weight / total * a / sum(able)) for m, a in zip(mains, able, strict=True)]
    return found


def _bands(program: NetworkProgram, parts: Parts) -> list[tuple[float, float]]:
    """Bands that make the prefill pools equally busy, times their tilt: rho by bisection, each pool in turn takes the
    next requests until it is that busy."""
    if len(parts.prefills) < 2:
        return [(0.0, 1.0)] * len(parts.prefills)
    works = [program.prompt_work[option] for option in parts.prefills]
    room = [parts.counts[o] * t for o, t in zip(parts.prefills, parts.tilt, strict=True)]

    def edges(busy: float) -> list[float]:
        at, found = 0.0, [0.0]
        for (share, work), capacity in zip(works, room, strict=True):
            done = float(np.interp(at, share, work)) + busy * capacity
            at = float(np.interp(done, work, share)) if done < work[-1] else 1.0
            found.append(at)
        return found

    low, high = 0.0, 1.0
    while edges(high)[-1] < 1.0:
        high *= 2.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if edges(middle)[-1] >= 1.0 else (middle, high)
    found = edges(low)
    found[-1] = 1.0
    return list(itertools.pairwise(found))
