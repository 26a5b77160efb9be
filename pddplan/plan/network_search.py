"""Plans of several pools in one role, where the chips on offer force them: proposed by the network program at several
degrees of load, then repaired and trimmed under the full model."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import replace

from pddplan.economics.cost import within_offers
from pddplan.errors import worst_ratio
from pddplan.plan.network_build import Parts, network_of, parts_of
from pddplan.plan.network_program import NetworkProgram, Use
from pddplan.plan.options import MIXED_ROLES, PoolOption, Shop
from pddplan.plan.state import GAP, Found, Search
from pddplan.serve.context import Context
from pddplan.serve.slo import is_late
from pddplan.spec.types import Role

# Shares of their capacity that prefill and decode pools are first taken to use.
LOADS = ((0.5, 0.7), (0.65, 0.8), (0.75, 0.85), (0.85, 0.9), (0.92, 0.95), (1.0, 1.0), (0.35, 0.6))
MOST_EVALUATIONS = 150  # of networks in one search, with and without aggregated pools
TILTS = (0.85, 1.18)  # factors by which one prefill pool is made less or more busy than the others
STOCKS = (1.0, 0.5)  # of the chips on offer: with fewer the program proposes another way to share
MOVED = 1.25  # factor on what goes to one of several decode sites
MOST_REPAIRS = 40  # evaluations of one proposal's repair
LARGE = 16  # instances from which on a pool grows and shrinks by a share of itself
STEP_SHARE = 1 / 16
RATE_STEP, MOST_RATE = 1.25, 1e3
MOST_PAIRS = 6


def search_networks(search: Search) -> None:
    """Look for networks below the incumbent.

    ``search.bound`` stays that of the plans of one pool per role where one of them wins; it is the program's where a
    network does. ``search.open`` is set where the program has a network: it may be there although none was found.
    """
    program = NetworkProgram(search)
    least = program.solve()
    search.programs += 1
    if least is None:
        return
    search.open = True
    proven, single = search.bound, search.best
    for apart, options in ((True, program.ways), (False, program.whole)):
        if options:
            _proposals(search, program, apart)
    search.bound = proven if search.best is single else min(proven, least.bound_usd_per_hour)


def _proposals(search: Search, program: NetworkProgram, apart: bool) -> None:
    """Proposals at all loads, improved while they are worth it; ``apart``: prefill and decode in pools of their own."""
    seen: set[tuple[object, ...]] = set()
    last = search.evaluations + MOST_EVALUATIONS
    ways = itertools.product(LOADS, offers_to_use(search.shop, apart), STOCKS)
    for (prefill, decode), use, stock in ways:
        if search.evaluations > last:
            break
        if time.monotonic() > search.deadline or (search.first_only and search.best is not None):
            break
        mix = program.solve(prefill, decode, search.limit, proposal=True, apart=apart, use=use, stock=stock)
        search.programs += 1
        if search.progress is not None:
            search.progress(f"several pools per role, {search.evaluations} plans evaluated")
        if mix is None:
            continue
        parts = parts_of(program, mix)
        shape = (*parts.prefills, *parts.mains, *(option for option, _ in parts.whole), *parts.counts.items())
        if shape in seen:
            continue
        seen.add(shape)
        _improve(search, program, parts)


def offers_to_use(shop: Shop, apart: bool) -> list[tuple[Use, ...]]:
    """What a proposal must use at least: nothing in particular; two or all of the offers of a role; all of prefill's
    and of main decode's. The program would else put all on the offer that is cheapest at full load."""
    found: list[tuple[Use, ...]] = [()]
    whole: list[Use] = []
    for role in MIXED_ROLES[:2] if apart else MIXED_ROLES:
        keys = list(dict.fromkeys(option.offer.key for option in shop.pools[role]))
        if len(keys) < 2:
            continue
        every = tuple((role, key) for key in keys)
        pairs = list(itertools.combinations(every, 2))[:MOST_PAIRS]
        found += [*pairs, *([every] if len(keys) > 2 else [])]
        whole += every if role != "aggregated" else ()
    if len({role for role, _ in whole}) > 1:
        found.append(tuple(whole))
    return found


def most_by_program(context: Context, shop: Shop, budget_usd_per_hour: float, from_rps: float) -> float:
    """A rate, from ``from_rps`` up, at which not even the network program has a plan, to 0.1 %; inf if there is none
    [1/s]."""

    def held(rate: float) -> bool:
        search = Search(context.at_rate(rate), shop, budget_usd_per_hour)
        return NetworkProgram(search).solve(limit_usd_per_hour=budget_usd_per_hour) is not None

    low = high = from_rps
    while held(high):
        low, high = high, high * RATE_STEP
        if high > from_rps * MOST_RATE:
            return math.inf
    while high - low > GAP * low:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if held(middle) else (low, middle)
    return high


def _improve(search: Search, program: NetworkProgram, parts: Parts) -> None:
    """Repair a proposal until it holds, then take away what isn't needed."""
    made = _repaired(search, program, parts)
    while made is not None and not search.first_only and time.monotonic() < search.deadline:
        lighter = _trimmed(search, program, *made)
        if lighter is None:
            break
        made = lighter


def _try(search: Search, program: NetworkProgram, parts: Parts) -> Found | None:
    """The evaluated network of the parts; None where it can't be built from the offers."""
    network = network_of(program, parts)
    if network is None or not within_offers(search.context.scenario, network):
        return None
    return search.try_plan(network)


def _badness(found: Found) -> tuple[int, float]:
    """Order of plans that don't hold: those without any state last, then by the worst row."""
    stateless = math.isnan(found.evaluation.decode_hit_rate)
    return (1 if stateless else 0, worst_ratio(found.evaluation.excuses))


def _repaired(search: Search, program: NetworkProgram, parts: Parts) -> tuple[Parts, Found] | None:
    """Take the step that mends most, again and again; None where no step is left or the plan gets too dear."""
    found = _try(search, program, parts)
    last = search.evaluations + MOST_REPAIRS
    while search.evaluations < last:
        if found is not None and found.evaluation.feasible:
            return parts, found
        if time.monotonic() > search.deadline:
            return None
        tried = []
        for step in _steps(program, parts, found):
            attempt = _try(search, program, step)
            if attempt is None or attempt.usd_per_hour >= search.limit * (1 + GAP):
                continue
            tried.append((step, attempt))
        holding = [t for t in tried if t[1].evaluation.feasible]
        if holding:
            return min(holding, key=lambda t: t[1].usd_per_hour)
        better = [t for t in tried if found is None or _badness(t[1]) < _badness(found)]
        if not better:
            return None
        parts, found = min(better, key=lambda t: (_badness(t[1]), t[1].usd_per_hour))
    return None


def _steps(program: NetworkProgram, parts: Parts, found: Found | None) -> Iterator[Parts]:
    """Changes that may mend the worst row: an instance more, requests moved, a faster line, a relay."""
    excuses = found.evaluation.excuses if found is not None else ()
    subject = max(excuses, key=lambda e: e.ratio).subject if excuses else ""
    roles = _roles_of(subject)
    for option, count in parts.counts.items():
        if option.role in roles and count < option.max_instances:
            grown = parts.with_count(option, min(count + _step(count), option.max_instances))
            yield grown
            yield from _at_the_cost_of_others(grown, option)
    if excuses:
        yield from _elsewhere(parts)
    if "prefill" in roles and len(parts.prefills) > 1:
        for i in range(len(parts.prefills)):
            for factor in TILTS:
                tilt = tuple(t * factor if j == i else t for j, t in enumerate(parts.tilt))
                yield replace(parts, tilt=tilt)
    if "line" in (subject, *(e.subject for e in excuses)):
        yield from _faster_lines(program, parts)
    if subject == "line" or any(is_late(e) for e in excuses):
        yield from _with_relays(program, parts)


def _at_the_cost_of_others(parts: Parts, option: PoolOption) -> Iterator[Parts]:
    """An instance less of each other pool on the option's offer, whose chips it may have taken."""
    for other, count in parts.counts.items():
        if other is not option and other.offer.key == option.offer.key and count > other.min_instances:
            yield parts.with_count(other, count - 1)


def _elsewhere(parts: Parts) -> Iterator[Parts]:
    """More of a prefill pool's requests to each of the sites that it sends to."""
    for option, ends in parts.reach.items():
        for target, _ in ends if len(ends) > 1 else ():
            moved = tuple((t, w * MOVED if t == target else w) for t, w in ends)
            yield replace(parts, reach={**parts.reach, option: moved})


def _roles_of(subject: str) -> tuple[Role, ...]:
    """Roles whose pools a row of this subject may ask for more of."""
    if subject.startswith("prefill"):
        return ("prefill", "aggregated")
    if subject in ("relay", "relay_decode", "rdma"):
        return ("relay_decode",)
    if subject == "line":
        return ("relay_decode", "main_decode")
    if subject == "aggregated":
        return ("aggregated",)
    if subject in ("main_decode", "hand_over"):
        return ("main_decode", "aggregated")
    return ("prefill", "relay_decode", "main_decode", "aggregated")


def _step(count: int) -> int:
    return max(1, round(count * STEP_SHARE)) if count >= LARGE else 1


def _faster_lines(program: NetworkProgram, parts: Parts) -> Iterator[Parts]:
    """The next faster line of each pair."""
    for pair, line in parts.lines.items():
        faster = [k for k in program.search.shop.between(*pair) if k.gbit_per_s > line.gbit_per_s]
        if faster:
            yield replace(parts, lines={**parts.lines, pair: min(faster, key=lambda k: k.gbit_per_s)})


def _with_relays(program: NetworkProgram, parts: Parts) -> Iterator[Parts]:
    """A relay of one instance, the smallest layout of each offer, on a pair that has none."""
    for pair in parts.lines:
        if pair in parts.relays:
            continue
        used = set(parts.relays.values())
        options = [o for o in program.relays if o.site.name == pair[0] and o not in used]
        for key in dict.fromkeys(o.offer.key for o in options):
            least = min((o for o in options if o.offer.key == key), key=lambda o: o.chips)
            yield replace(parts.with_count(least, least.min_instances), relays={**parts.relays, pair: least})


def _trimmed(search: Search, program: NetworkProgram, parts: Parts, found: Found) -> tuple[Parts, Found] | None:
    """The cheapest plan that holds one step down: fewer instances, a slower line, no relay; None where none does."""
    tried = []
    for step in _lighter(program, parts):
        attempt = _try(search, program, step)
        if attempt is None or attempt.usd_per_hour >= found.usd_per_hour:
            continue
        if attempt.evaluation.feasible:
            tried.append((step, attempt))
    return min(tried, key=lambda t: t[1].usd_per_hour, default=None)


def _lighter(program: NetworkProgram, parts: Parts) -> Iterator[Parts]:
    for option, count in parts.counts.items():
        for fewer in dict.fromkeys((count - _step(count), count - 1)):
            if fewer >= option.min_instances:
                yield parts.with_count(option, fewer)
        yield from _on_other_layouts(program, parts, option, count)
    for pair, line in parts.lines.items():
        for other in program.search.shop.between(*pair):
            if other.port_usd_per_hour < line.port_usd_per_hour:
                yield replace(parts, lines={**parts.lines, pair: other})
    for pair in parts.relays:
        yield replace(parts, relays={p: o for p, o in parts.relays.items() if p != pair})


def _on_other_layouts(program: NetworkProgram, parts: Parts, option: PoolOption, count: int) -> Iterator[Parts]:
    """The pool in another layout of the same offer, with fewer chips by the size of one instance at most."""
    known = {
        "prefill": program.prefills,
        "relay_decode": tuple(program.relays),
        "main_decode": tuple(program.mains),
        "aggregated": tuple(program.whole),
    }
    others = [o for o in known[option.role] if o.offer.key == option.offer.key and o is not option]
    for other in others:
        fewer = (count * option.chips - 1) // other.chips
        if fewer < other.min_instances or other in parts.counts:
            continue
        if count * option.chips - fewer * other.chips > max(option.chips, other.chips):
            continue
        yield _swapped(parts, option, other, fewer)


def _swapped(parts: Parts, option: PoolOption, other: PoolOption, count: int) -> Parts:
    """The parts with ``count`` instances of another option in an option's place."""

    def new(known: PoolOption) -> PoolOption:
        return other if known is option else known

    return replace(
        parts,
        counts={new(o): count if o is option else n for o, n in parts.counts.items()},
        prefills=tuple(new(o) for o in parts.prefills),
        reach={new(o): ends for o, ends in parts.reach.items()},
        mains=tuple(new(o) for o in parts.mains),
        whole=tuple((new(o), weight) for o, weight in parts.whole),
        relays={pair: new(o) for pair, o in parts.relays.items()},
    )
