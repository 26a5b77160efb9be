"""What happens when something breaks: instances, the line, a site, a burst, the cache; and what would hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pddplan.economics.cost import bill
from pddplan.plan.simulated import lanes_of
from pddplan.serve.context import Context, build_context
from pddplan.serve.deployment import LineChoice, Plan, Pool, with_line, with_pool
from pddplan.serve.evaluate import evaluate
from pddplan.serve.records import Routing
from pddplan.simulate.build import Lane, places_of
from pddplan.simulate.records import Asked, Change, Series
from pddplan.spec.types import Role
from pddplan.spec.workload import HitRate, Traffic

Progress = Callable[[float, str], None]
Kind = Callable[[Plan, int], Plan]  # the plan with so many more of something

WARM_S, LASTS_S, AFTER_S = 900.0, 300.0, 1800.0  # before, of what lasts, afterwards
BURST, HALF, FEWER_HITS = 2.0, 0.5, 0.10
MOST_ADDED, MOST_OF_ONE = 48, 6  # of each pool and line together, of one alone
MARGIN = 1.5  # times what the SLO lets be late: noise of a window
AT_ONCE = 2  # windows in a row that have to be late


@dataclass(frozen=True)
class Addition:
    """What would hold it: instances more by role, and lines."""

    spares: Mapping[Role, int]
    lines: int
    usd_per_hour: float


@dataclass(frozen=True)
class Drill:
    """One thing that breaks, for ``lasts_s``, and what the simulation shows of it."""

    name: str
    lasts_s: float  # inf: it stays so
    breaks: tuple[str, ...]  # SLO rows that the formulas say it breaks while it lasts
    late_s: float  # time in which more requests are late than the SLO allows, the aftermath included
    worst_late_share: float  # of a window's requests
    recovers: bool  # within the time that was simulated
    addition: Addition | None  # the cheapest found; None: none is needed, or ``note`` says why there is none
    note: str = ""


@dataclass(frozen=True)
class _Case:
    """A drill to run: changes to the simulation, or another demand; what the formulas see while it lasts."""

    name: str
    lasts_s: float
    changes: tuple[Change, ...]
    context: Context
    degraded: Callable[[Plan], Plan | None]  # the plan as it is meanwhile; None: nothing is left of a role
    note: str = ""


def run_drills(
    context: Context, deployment: Plan, routing: Routing, seed: int = 1, progress: Progress | None = None
) -> tuple[Drill, ...]:
    """All drills of a split plan, one after the other."""
    lanes = lanes_of(context, deployment, routing)
    cases = _cases(context, deployment, lanes)
    found = []
    for n, case in enumerate(cases):
        if progress is not None:
            progress(n / len(cases), case.name)
        found.append(_drill(case, deployment, routing, seed))
    return tuple(found)


# ---------------------------------------------------------------- what breaks


def _cases(context: Context, deployment: Plan, lanes: Sequence[Lane]) -> list[_Case]:
    places = places_of(lanes)
    back = WARM_S + LASTS_S
    cases: list[_Case] = []
    for pools in (places.prefills, places.relays, places.mains):
        for n, pool in enumerate(pools):
            less = pool.instances - 1
            changes = _there_and_back(pool, n, less)
            name = f"one {pool.role} lost" + (f" in {pool.site.name}" if len(pools) > 1 else "")
            cases.append(_Case(name, LASTS_S, changes, context, _with_instances(pool, less)))
    for n, line in enumerate(places.lines):
        where = f" {line.from_site} to {line.to_site}" if len(places.lines) > 1 else ""
        for name, share in ((f"line at half{where}", HALF), (f"line down{where}", 0.0)):
            changes = (Change(WARM_S, "line", share, n), Change(back, "line", 1.0, n))
            cases.append(_Case(name, LASTS_S, changes, context, with_share(line, share)))
    sites = dict.fromkeys(pool.site.name for pool in (*places.prefills, *places.decodes))
    for site in sites if len(sites) > 1 else ():
        changes = tuple(
            change
            for pools in (places.prefills, places.relays, places.mains)
            for n, pool in enumerate(pools)
            if pool.site.name == site
            for change in _there_and_back(pool, n, 0)
        )
        note = "No more instances of this plan hold it: the role has to stand at another site as well."
        cases.append(_Case(f"site {site} down", LASTS_S, changes, context, lambda _: None, note))
    burst = (Change(WARM_S, "rate", BURST), Change(back, "rate", 1.0))
    fast = context.at_rate(context.rate * BURST)
    cases.append(_Case(f"{BURST:g} x the requests", LASTS_S, burst, fast, lambda plan: plan))
    if (worse := _fewer_hits(context)) is not None:
        cases.append(_Case(f"hit rate {100 * FEWER_HITS:.0f} points down", math.inf, (), worse, lambda plan: plan))
    if any(case.deployment.decode_cache for case, _ in lanes) and context.given_hit_share is None:
        cold = (Change(WARM_S, "cold_cache"),)
        note = "Passing: the cache fills again as sessions come back."
        cases.append(_Case("main decode's cache cold", 0.0, cold, context, lambda plan: plan, note))
    return cases


def _there_and_back(pool: Pool, place: int, left: int) -> tuple[Change, ...]:
    what = pool.role
    assert what in ("prefill", "relay_decode", "main_decode")
    return (
        Change(WARM_S, what, float(left), place),
        Change(WARM_S + LASTS_S, what, float(pool.instances), place),
    )


def _with_instances(pool: Pool, left: int) -> Callable[[Plan], Plan | None]:
    """The plan with so many instances fewer of a pool as it then has."""
    lost = pool.instances - left

    def degraded(plan: Plan) -> Plan | None:
        own = _same(plan, pool)
        if own.instances - lost < 1:
            return None
        return with_pool(plan, own, replace(own, instances=own.instances - lost))

    return degraded


def _same(plan: Plan, pool: Pool) -> Pool:
    """The pool that stands in ``plan`` where ``pool`` did."""
    return next(p for p in plan.pools if p.service is pool.service and p.role == pool.role and p.site is pool.site)


def _same_line(plan: Plan, line: LineChoice) -> LineChoice:
    """The line that stands in ``plan`` where ``line`` did."""
    return next(other for other in plan.lines if other.ends == line.ends)


def with_share(line: LineChoice, share: float) -> Callable[[Plan], Plan | None]:
    """The plan with a share of a line's capacity, by its goodput."""

    def degraded(plan: Plan) -> Plan | None:
        if share <= 0.0:
            return None
        own = _same_line(plan, line)
        return with_line(plan, own, replace(own, link=replace(own.link, goodput=own.link.goodput * share)))

    return degraded


def _fewer_hits(context: Context) -> Context | None:
    """The same scenario with fewer hits at prefill; None where its law doesn't allow that."""
    workloads = []
    for work in context.scenario.traffic.workloads:
        law = work.prefix_hit_rate
        if law.mean <= FEWER_HITS:
            return None
        top = max(law.share_above_95 - FEWER_HITS / 0.95, 0.0)
        fewer = HitRate(law.mean - FEWER_HITS, law.fixed, top, law.zero_share)
        if law.histogram is not None:
            fewer = replace(law, histogram=tuple((max(hit - FEWER_HITS, 0.0), w) for hit, w in law.histogram))
        workloads.append(replace(work, prefix_hit_rate=fewer))
    traffic = Traffic(tuple(workloads))
    return build_context(replace(context.scenario, traffic=traffic), context.model, context.nic_goodput)


# ---------------------------------------------------------------- what it does


def _drill(case: _Case, deployment: Plan, routing: Routing, seed: int) -> Drill:
    from pddplan.simulate.outcome import series_of
    from pddplan.simulate.run import simulate_lanes

    end_s = WARM_S + (LASTS_S if math.isfinite(case.lasts_s) else 0.0) + AFTER_S
    context = _planned(case)
    lanes = lanes_of(context, deployment, routing)
    run = simulate_lanes(context, lanes, Asked(10**9, seed, case.changes), end_s=end_s)
    late_s, worst, recovers = _late(series_of(run), WARM_S, _allowed(context))
    left = case.degraded(deployment)
    seen = None if left is None else evaluate(case.context, left, detail=False)
    breaks = ("all",) if seen is None else tuple(dict.fromkeys(excuse.name for excuse in seen.excuses))
    if case.lasts_s == 0.0:
        breaks = ("ttft",) if late_s > 0 else ()
    addition, note = None, case.note
    if breaks and case.lasts_s > 0 and not note:
        addition = _addition(case, deployment)
        note = "" if addition else f"No {MOST_ADDED} instances more of each pool, and as many lines, hold all rows."
    elif not recovers and case.lasts_s == 0.0:
        note = "It doesn't come back by itself: what has to be sent again keeps the line full."
    return Drill(case.name, case.lasts_s, breaks, late_s, worst, recovers, addition, note if breaks else "")


def _planned(case: _Case) -> Context:
    """The demand before anything happens: a burst is a change of the simulation."""
    factor = next((change.value for change in case.changes if change.what == "rate" and change.value > 1.0), 1.0)
    return case.context.at_rate(case.context.rate / factor)


def _allowed(context: Context) -> float:
    """Share of requests that may be late: outside the highest TTFT limit or the TPOT limit."""
    rows = context.scenario.slo
    ttft = max((row.quantile for row in rows if row.metric == "ttft"), default=1.0)
    tpot = min((row.quantile for row in rows if row.metric == "tpot"), default=1.0)
    return max((1.0 - ttft) + (1.0 - tpot), 0.005)


def _late(series: Series, from_s: float, allowed: float) -> tuple[float, float, bool]:
    """(time with too many late requests, worst share of a window, whether it was over at the end) after a moment."""
    after = series.times_s >= from_s
    share = np.nan_to_num(series.late_share[after], nan=1.0)
    if not share.size:
        return 0.0, 0.0, True
    window = float(series.times_s[1] - series.times_s[0]) if series.times_s.size > 1 else 0.0
    late = share > MARGIN * allowed
    runs = np.convolve(late, np.ones(AT_ONCE), mode="same") >= AT_ONCE
    counted = late & (runs | np.roll(runs, 1) | np.roll(runs, -1))
    return window * float(counted.sum()), float(share.max()), not bool(counted[-AT_ONCE:].any())


# ---------------------------------------------------------------- what would hold it


def _addition(case: _Case, deployment: Plan) -> Addition | None:
    """The cheapest found of: more of one pool or of one line alone; more of everything until all rows hold while it
    lasts, less what then turns out not to be needed."""
    found = [plan for kind in _kinds(deployment) if (plan := _of_one(case, deployment, kind)) is not None]
    plan = deployment
    for _ in range(MOST_ADDED):
        if _holds(case, plan):
            found.append(_trimmed(case, deployment, plan))
            break
        for kind in _kinds(plan):
            plan = kind(plan, 1)
    told = [_told(case, deployment, plan) for plan in found]
    return min(told, key=lambda addition: addition.usd_per_hour, default=None)


def _kinds(plan: Plan) -> list[Kind]:
    """Ways to have more or fewer of one pool or line of the plan."""
    return [*(partial(_more_of, pool) for pool in plan.pools), *(partial(_more_lines, line) for line in plan.lines)]


def _more_of(pool: Pool, plan: Plan, count: int) -> Plan:
    own = _same(plan, pool)
    return with_pool(plan, own, replace(own, instances=own.instances + count))


def _more_lines(line: LineChoice, plan: Plan, count: int) -> Plan:
    own = _same_line(plan, line)
    return with_line(plan, own, replace(own, lines=own.lines + count))


def _of_one(case: _Case, plan: Plan, kind: Kind) -> Plan | None:
    """The plan with as few more of one kind as hold all rows; None where ``MOST_OF_ONE`` don't."""
    return next((more for n in range(1, MOST_OF_ONE + 1) if _holds(case, more := kind(plan, n))), None)


def _holds(case: _Case, plan: Plan) -> bool:
    left = case.degraded(plan)
    return left is not None and evaluate(case.context, left, detail=False).feasible


def _trimmed(case: _Case, before: Plan, plan: Plan) -> Plan:
    """Without additions that aren't needed: fewer of the dearest kind as long as all rows hold, then of the next, until
    none can go."""
    kinds = sorted(_kinds(plan), key=lambda kind: -_usd_per_hour(case, kind(plan, 1), plan))
    smaller: Plan | None = plan
    while smaller is not None:
        plan, smaller = smaller, None
        for kind in kinds:
            less = kind(plan, -1)
            if _at_least(less, before) and _holds(case, less):
                smaller = less
                break
    return plan


def _at_least(plan: Plan, before: Plan) -> bool:
    """Whether there are no fewer of any pool or line than before."""
    pools = all(pool.instances >= _same(before, pool).instances for pool in plan.pools)
    return pools and all(one.lines >= other.lines for one, other in zip(plan.lines, before.lines, strict=True))


def _usd_per_hour(case: _Case, plan: Plan, less: Plan) -> float:
    """What the plan costs more than another."""
    scenario, none = case.context.scenario, tuple(0.0 for _ in plan.lines)
    return bill(scenario, plan, none).usd_per_hour - bill(scenario, less, none).usd_per_hour


def _told(case: _Case, before: Plan, plan: Plan) -> Addition:
    spares: dict[Role, int] = {}
    for pool in plan.pools:
        more = pool.instances - _same(before, pool).instances
        if more > 0:
            spares[pool.role] = spares.get(pool.role, 0) + more
    lines = sum(line.lines for line in plan.lines) - sum(line.lines for line in before.lines)
    return Addition(spares, lines, _usd_per_hour(case, plan, before))
