"""No plan holds: which rows had to give, by how much, and the cheapest single change that makes one hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pddplan.errors import Excuse
from pddplan.plan.choices import decode_choices
from pddplan.plan.levels import least_count
from pddplan.plan.options import PoolOption, site_pairs
from pddplan.plan.records import Fix, PlanResult
from pddplan.plan.state import Found, Search
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, LineChoice
from pddplan.serve.evaluate import evaluate
from pddplan.serve.slo import constraint_name
from pddplan.spec.catalogue import catalogue_date
from pddplan.spec.types import Link, Scenario, Site, SloLimit

CHIP_FACTORS = (1.25, 1.5, 2, 3, 4, 8, 16)
LINE_FACTORS = (2, 4, 10, 20, 40, 100)
SECONDS_PER_TRIAL = 4.0
SECONDS_FOR_FIXES = 12.0
RATE_STEPS = 7  # halvings of the bracket for the rate that the offered chips do hold
MAX_FIXES = 4

Solve = Callable[..., Search]


@dataclass(frozen=True)
class Change:
    """One change of the scenario, as a person would type it and as it is."""

    what: str
    overrides: tuple[str, ...]
    scenario: Scenario


def explain_infeasible(context: Context, search: Search, cheapest: Solve, deadline: float = math.inf) -> PlanResult:
    """The infeasible answer; ``unknown`` when the time limit ended the search first."""
    excuses, fixes = _over_budget(context, search, cheapest, deadline)
    if not excuses:
        if search.complete:
            try_largest(search)
        excuses = nearest_excuses(search)
        fixes = find_fixes(context, search, cheapest, deadline) if search.complete else ()
    return refusal(context, search, excuses, fixes)


def refusal(context: Context, search: Search, excuses: tuple[Excuse, ...], fixes: tuple[Fix, ...]) -> PlanResult:
    """The answer without a plan."""
    scenario = context.scenario
    worst = excuses[0] if excuses else Excuse("none", 0.0, 0.0)
    first = f" Nearest fix: {fixes[0].what}." if fixes else ""
    return PlanResult(
        status="infeasible" if search.complete else "unknown",
        architecture=None,
        objective=scenario.objective.name,
        value=None,
        unit="USD/h",
        bound=None if math.isinf(search.bound) else search.bound,
        gap=None,
        roles=(),
        links=(),
        evaluation=None,
        goodput_rps=None,
        within_slo_rps=None,
        headroom_rps=None,
        cost=None,
        revenue=None,
        binding=(),
        alternatives=(),
        assumptions=scenario.assumptions,
        recommendation=f"{_sentence(worst)}{first}",
        excuses=excuses,
        fixes=fixes,
        warnings=scenario.warnings,
        scenario_name=scenario.name,
        scenario_sha256=scenario.sha256,
        catalogue_date=catalogue_date(),
        cny_per_usd=scenario.cny_per_usd,
    )


def _over_budget(
    context: Context, search: Search, cheapest: Solve, deadline: float
) -> tuple[tuple[Excuse, ...], tuple[Fix, ...]]:
    """Where plans hold but none within the budget: the cheapest one's cost is what is missing."""
    budget = search.budget_usd_per_hour
    if math.isinf(budget):
        return (), ()
    best = cheapest(context, math.inf, deadline, None, search.shop).best
    if best is None:
        return (), ()
    enough = math.ceil(best.usd_per_hour * 100) / 100
    budgeted = f"objective={{{context.scenario.objective.name}: {{max_usd_per_hour: {enough:g}}}}}"
    fix = Fix(f"a budget of ${enough:g}/h", (budgeted,), best.usd_per_hour)
    return (Excuse("budget", best.usd_per_hour, budget, "USD/h"),), (fix,)


def try_largest(search: Search) -> None:
    """Evaluate the largest plans there are, one per prefill option and main-decode option: how near does it come?"""
    shop = search.shop
    for option in shop.pools["aggregated"]:
        search.try_plan(Deployment(aggregated=option.pool(option.max_instances)))
    for source, target in site_pairs(search.context.scenario):
        lines = shop.between(source.name, target.name)
        line = max(lines, key=lambda k: k.capacity_bytes_per_s, default=None)
        if line is None and source.name != target.name:
            continue
        mains = [o for o in shop.pools["main_decode"] if o.site.name == target.name]
        relays = [o for o in shop.pools["relay_decode"] if o.site.name == source.name] if line else []
        for prefill in (o for o in shop.pools["prefill"] if o.site.name == source.name):
            for main in mains:
                deployment = _largest(search, prefill, main, relays, line)
                if deployment is not None:
                    search.try_plan(deployment)


def _largest(
    search: Search, prefill: PoolOption, main: PoolOption, relays: list[PoolOption], line: LineChoice | None
) -> Deployment | None:
    """All chips in use: prefill gets what is left beside one relay instance and, on its own offer, half for decode."""
    relay = min(relays, key=lambda o: o.chips, default=None)
    shared = main.offer.key == prefill.offer.key
    mains = max(main.max_instances // 2, 1) if shared else main.max_instances
    spare = relay.chips if relay is not None and relay.offer.key == prefill.offer.key else 0
    room = prefill.offer.max_chips - spare - (mains * main.chips if shared else 0)
    count = min(room // prefill.chips, prefill.max_instances)
    if count < 1:
        return None
    return Deployment(
        prefill=prefill.pool(count),
        relay=relay.pool(1) if relay is not None else None,
        main=main.pool(mains),
        line=line,
        decode_cache=search.context.scenario.engine.decode_prefix_sharing,
    )


def nearest_excuses(search: Search) -> tuple[Excuse, ...]:
    """Rows broken by the plan that came closest; without one, what kept plans from being tried at all."""
    closest = nearest_plan(search)
    if closest is not None:
        return tuple(sorted(closest.evaluation.excuses, key=lambda e: -e.ratio))
    early = [excuse for refused in search.refused for excuse in refused.evaluation.excuses]
    for group in (search.stage_excuses, early, _short_of(search), search.shop.excuses):
        found: dict[str, Excuse] = {}
        for excuse in group:
            held = found.get(excuse.name)
            if held is None or excuse.ratio < held.ratio:
                found[excuse.name] = excuse
        if found:
            return tuple(found.values())
    return (Excuse("budget", math.inf, search.budget_usd_per_hour, "USD/h"),)


def _short_of(search: Search) -> list[Excuse]:
    """What the chips lack for prefill and main decode at their best, each alone and, on one offer, together."""
    context, shop = search.context, search.shop
    tokens = context.output_tokens_per_s
    choices = decode_choices(context, shop.pools["main_decode"], context.pooled_slots, tangent=True)
    enough = [c for c in choices if c.tokens_per_s >= tokens]
    if not enough:
        best = max((c.tokens_per_s for c in choices), default=0.0)
        return (
            [Excuse("main_decode_throughput", tokens, best, "tokens/s", "main_decode")]
            if shop.pools["main_decode"]
            else []
        )
    found: list[Excuse] = []
    for prefill in shop.pools["prefill"]:
        need = least_count(context, prefill) * prefill.chips
        for choice in enough:
            both = need + choice.instances * choice.option.chips
            if choice.option.offer.key == prefill.offer.key and both > prefill.offer.max_chips:
                found.append(Excuse("chips", both, prefill.offer.max_chips, "chips", prefill.offer.chip.id))
    return found


def nearest_plan(search: Search) -> Found | None:
    """Refused plan with the smallest worst violation, the cheapest among equals."""
    known = [f for f in search.refused if math.isfinite(f.evaluation.decode_hit_rate)]
    return min(known, key=lambda f: (round(_worst(f), 6), f.usd_per_hour), default=None)


def _worst(found: Found) -> float:
    return max((e.ratio for e in found.evaluation.excuses), default=0.0)


def _sentence(excuse: Excuse) -> str:
    where = f" ({excuse.subject.replace('_', ' ')})" if excuse.subject else ""
    if excuse.unit == "s":
        return f"{excuse.name} is at best {excuse.value:.3g} s, limit {excuse.limit:.3g} s{where}."
    unit = f" {excuse.unit}" if excuse.unit and not excuse.constraint.endswith("_slots") else ""
    return f"{excuse.name} is {excuse.value:.3g}{unit}, limit {excuse.limit:.3g}{where}."


def find_fixes(context: Context, search: Search, cheapest: Solve, deadline: float) -> tuple[Fix, ...]:
    """Single changes that were applied and solved again, cheapest first: SLO values, chips, line tiers, streams."""
    found = [*_slo_fixes(context, search)]
    until = min(time.monotonic() + SECONDS_FOR_FIXES, deadline)
    for limit in _broken_limits(context, search):
        if not any(override.startswith(f"{limit_key(limit)}=") for fix in found for override in fix.overrides):
            fix = _looser(context, limit, cheapest, until)
            found += [fix] if fix is not None else []
    for family in (*_chip_families(context.scenario), *_line_families(context.scenario)):
        fix = _least_change(context, family, cheapest, until)
        if fix is not None:
            found.append(fix)
    if not found:
        fix = _lower_rate(context, search, cheapest, min(time.monotonic() + SECONDS_PER_TRIAL, deadline))
        found += [fix] if fix is not None else []
    found.sort(key=lambda f: (f.usd_per_hour if f.usd_per_hour is not None else math.inf, f.what))
    return tuple(found[:MAX_FIXES])


def _least_change(context: Context, family: list[Change], cheapest: Solve, until: float) -> Fix | None:
    """Smallest change of a family (ascending) that lets a plan hold: the largest first, to see whether any does, then
    by halving."""
    fix: Fix | None = None
    low, high = 0, len(family) - 1
    index = high
    while low <= high and time.monotonic() < until:
        solved = _solved(context, family[index], cheapest, until)
        if solved is not None:
            fix = Fix(family[index].what, family[index].overrides, solved.usd_per_hour)
            high = index - 1
        elif fix is None:
            return None
        else:
            low = index + 1
        index = (low + high) // 2
    return fix


def _solved(context: Context, change: Change, cheapest: Solve, until: float) -> Found | None:
    from pddplan.plan.solve import prepare

    deadline = min(time.monotonic() + SECONDS_PER_TRIAL, until)
    budget = search_budget(context.scenario)
    return cheapest(prepare(change.scenario), budget, deadline, first_only=True, networks="never").best


def search_budget(scenario: Scenario) -> float:
    """Budget of the objective [USD/h], inf without one."""
    return scenario.objective.max_usd_per_hour or math.inf


def _slo_fixes(context: Context, search: Search) -> Iterator[Fix]:
    """Refused plans with the rows of one SLO key broken: loosening it to what the plan reaches makes that plan hold."""
    limits = {(constraint_name(s), s.workload): s for s in context.scenario.slo}
    best: dict[str, tuple[float, Found, SloLimit]] = {}
    for found in search.refused:
        rows = found.evaluation.excuses
        broken = [limits[e.constraint, e.workload] for e in rows if (e.constraint, e.workload) in limits]
        keys = {limit_key(limit) for limit in broken}
        if len(keys) != 1 or len(broken) < len(rows) or found.usd_per_hour > search.budget_usd_per_hour:
            continue
        key, value = keys.pop(), max(e.value for e in rows)
        if key not in best or value < best[key][0]:
            best[key] = (value, found, broken[0])
    for value, found, limit in best.values():
        key, shown = _slo_key(limit, value)
        yield Fix(f"{_name(limit)} limit of {value * 1.005:.3g} s", (f"{key}={shown}",), found.usd_per_hour)


def _broken_limits(context: Context, search: Search) -> list[SloLimit]:
    """Limits that the nearest plan breaks."""
    closest = nearest_plan(search)
    broken = {(e.constraint, e.workload) for e in closest.evaluation.excuses} if closest is not None else set()
    return [limit for limit in context.scenario.slo if (constraint_name(limit), limit.workload) in broken]


def _name(limit: SloLimit) -> str:
    """``ttft_p99``, ``ttft_p99 of chat`` where that workload has an SLO of its own."""
    own = limit.workload is not None and limit.key != "slo"
    return f"{constraint_name(limit)} of {limit.workload}" if own else constraint_name(limit)


def _unit(limit: SloLimit) -> tuple[str, float]:
    """Unit of a limit's key, and how many of it make a second."""
    return ("ms", 1000.0) if limit.metric in ("tpot", "pause") else ("s", 1.0)


def limit_key(limit: SloLimit) -> str:
    """Key path of a limit, as ``--set`` takes it."""
    return f"{limit.key}.{limit.metric}_{_unit(limit)[0]}.p{limit.quantile * 100:g}"


def _looser(context: Context, limit: SloLimit, cheapest: Solve, until: float) -> Fix | None:
    """Drop one limit, for all workloads that its key counts for, find a plan, and ask for what it reaches."""
    from pddplan.plan.solve import prepare

    if time.monotonic() >= until:
        return None
    dropped = [s for s in context.scenario.slo if limit_key(s) == limit_key(limit)]
    scenario = replace(context.scenario, slo=tuple(s for s in context.scenario.slo if s not in dropped))
    trial = prepare(scenario)
    deadline = min(time.monotonic() + SECONDS_PER_TRIAL, until)
    best = cheapest(trial, search_budget(scenario), deadline, first_only=True, networks="never").best
    if best is None:
        return None
    loose = [replace(s, limit_s=1e6) for s in dropped]
    open_ended = replace(trial, scenario=replace(scenario, slo=(*scenario.slo, *loose)))
    reached = evaluate(open_ended, best.deployment, detail=True).slo
    asked = {(s.metric, s.quantile, s.workload) for s in dropped}
    value = max(v.value_s for v in reached if (v.metric, v.quantile, v.workload) in asked)
    key, shown = _slo_key(limit, value)
    return Fix(f"{_name(limit)} limit of {value * 1.005:.3g} s", (f"{key}={shown}",), best.usd_per_hour)


def _lower_rate(context: Context, search: Search, cheapest: Solve, until: float) -> Fix | None:
    """Largest rate, of a short bisection, that the offered chips and lines do hold."""
    low, high, best = 0.0, context.rate, None
    for _ in range(RATE_STEPS):
        if time.monotonic() >= until:
            break
        rate = float(f"{(low + high) / 2:.3g}")
        at, budget = context.at_rate(rate), search.budget_usd_per_hour
        found = cheapest(at, budget, until, None, search.shop, first_only=True, networks="never").best
        if found is None:
            high = rate
        else:
            low, best = rate, found
    if best is None:
        return None
    return Fix(f"{low:g} requests/s (now {context.rate:g})", _rates(context, low), best.usd_per_hour)


def _rates(context: Context, rate: float) -> tuple[str, ...]:
    """Overrides that bring the sum of all workloads down to ``rate``, in the same mix."""
    traffic = context.scenario.traffic
    if not traffic.several:
        return (f"{traffic.workloads[0].key}.request_rate_per_s={rate:g}",)
    # four digits, rounded down: the sum stays inside
    slower = ((w.key, w.request_rate_per_s * rate / context.rate) for w in traffic.workloads)
    shown = ((key, 10 ** (3 - math.floor(math.log10(value))), value) for key, value in slower)
    return tuple(f"{key}.request_rate_per_s={math.floor(value * scale) / scale:g}" for key, scale, value in shown)


def _slo_key(limit: SloLimit, value_s: float) -> tuple[str, str]:
    scale = _unit(limit)[1]
    # three digits, rounded up, so that the value itself is inside
    digits = 2 - math.floor(math.log10(value_s * scale))
    shown = math.ceil(value_s * scale * 1.002 * 10**digits) / 10**digits
    return limit_key(limit), f"{shown:g}"


def _chip_families(scenario: Scenario) -> Iterator[list[Change]]:
    for i, site in enumerate(scenario.sites):
        for j, _ in enumerate(site.offers):
            yield [_more_chips(scenario, i, j, factor) for factor in CHIP_FACTORS]


def _more_chips(scenario: Scenario, i: int, j: int, factor: float) -> Change:
    site = scenario.sites[i]
    offer = site.offers[j]
    most = math.ceil(offer.max_chips * factor / offer.buy_in) * offer.buy_in
    offers = (*site.offers[:j], replace(offer, max_chips=most), *site.offers[j + 1 :])
    sites: tuple[Site, ...] = (*scenario.sites[:i], replace(site, offers=offers), *scenario.sites[i + 1 :])
    what = f"up to {most} {offer.chip.id} in {site.name} (now {offer.max_chips})"
    return Change(what, (f"sites[{i}].chips[{j}].max={most}",), replace(scenario, sites=sites))


def _line_families(scenario: Scenario) -> Iterator[list[Change]]:
    for i, link in enumerate(scenario.links):
        yield [_faster_line(scenario, i, link, factor) for factor in LINE_FACTORS]
        yield [_more_streams(scenario, i, link, factor) for factor in LINE_FACTORS[:4]]


def _faster_line(scenario: Scenario, i: int, link: Link, factor: int) -> Change:
    """The largest tier at ``factor`` times its rate and price: what the next tier would be."""
    k = max(range(len(link.tiers)), key=lambda t: link.tiers[t].gbit_per_s)
    tier = link.tiers[k]
    rate, price = tier.gbit_per_s * factor, round(tier.usd_per_hour * factor, 6)
    tiers = (*link.tiers[:k], replace(tier, gbit_per_s=rate, usd_per_hour=price), *link.tiers[k + 1 :])
    links = (*scenario.links[:i], replace(link, tiers=tiers), *scenario.links[i + 1 :])
    what = f"a line of {rate:g} Gbit/s between {link.between[0]} and {link.between[1]} (now {tier.gbit_per_s:g})"
    keys = (f"links[{i}].tiers[{k}].gbit_per_s={rate:g}", f"links[{i}].tiers[{k}].usd_per_hour={price}")
    return Change(what, keys, replace(scenario, links=links))


def _more_streams(scenario: Scenario, i: int, link: Link, factor: int) -> Change:
    streams = link.streams * factor
    links = (*scenario.links[:i], replace(link, streams=streams), *scenario.links[i + 1 :])
    what = f"{streams} streams a transfer between {link.between[0]} and {link.between[1]} (now {link.streams})"
    return Change(what, (f"links[{i}].streams={streams}",), replace(scenario, links=links))
