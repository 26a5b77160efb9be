"""Runner-up plans: the cheapest of other kinds near the best plan, each searched for with the known kinds excluded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pddplan.plan.explain import ROLE_WORDS, differs_in_chips
from pddplan.plan.kinds import Kind, kind_of
from pddplan.plan.options import line_options
from pddplan.plan.records import Alternative, PlanResult, RunnerUps
from pddplan.plan.result import architecture_of, cost_of, link_plans, role_plans
from pddplan.plan.search import run
from pddplan.plan.state import GAP, Found, Search
from pddplan.serve.context import Context
from pddplan.serve.deployment import LineChoice, Network, Plan, Pool
from pddplan.serve.evaluate import evaluate

NEAR = 0.05  # of the best plan's cost: dearer ones are no runner-ups


@dataclass(frozen=True)
class RunnerUp:
    """A plan of another kind; ``proven``: none of its kind costs less, to the gap."""

    plan: Found
    proven: bool


def with_runner_ups(result: PlanResult, search: Search, count: int) -> PlanResult:
    """The answer with up to ``count`` runner-ups as its alternatives."""
    if search.best is None:
        return result
    found, complete = runner_ups(search, count)
    others = tuple(_alternative(search.context, r, search.best.deployment) for r in found)
    return replace(result, alternatives=others, runner_ups=RunnerUps(count, NEAR, complete))


def runner_ups(search: Search, count: int, near: float = NEAR) -> tuple[list[RunnerUp], bool]:
    """Up to ``count`` plans within ``near`` of the best one's cost, cheapest first, each of another kind than the best
    and than each other; and whether none is missing below the dearest of them (below the limit, where they are fewer).

    After each the search goes on with its kind excluded too, over everything that is left: what it finds is the
    cheapest of all other kinds, to the gap. Refused plans and their cuts are kept from search to search. Instances are
    those of the planner's own list: what another layout on the same chips beats in every figure is no runner-up. Lines
    are all there are: two for one of twice the rate are another kind.
    """
    best = search.best
    assert best is not None
    known = search.shop.lines
    more = tuple(line for line in line_options(search.context.scenario, every=True) if line not in known)
    shop = replace(search.shop, lines=known + more)
    budget = min(search.budget_usd_per_hour, best.usd_per_hour * (1 + near))
    excluded = {kind_of(best.deployment)}
    found: list[RunnerUp] = []
    complete = True
    while len(found) < count and complete:
        told = None if search.progress is None else _numbered(search.progress, len(found) + 1, count)
        again = replace(
            search,
            shop=shop,
            budget_usd_per_hour=budget,
            progress=told,
            first_only=False,
            best=_cheapest_seen(search, budget, excluded),
            bound=float("inf"),
            closed=float("inf"),
            complete=True,
            excluded=frozenset(excluded),
            excluded_pairs={},
        )
        run(again)
        complete = again.complete
        if again.best is None:
            break
        excluded.add(kind_of(again.best.deployment))
        if not _idle_filter(again.best):
            # a network's kind may have a cheaper one: only plans of one pool per role are proven
            single = not isinstance(again.best.deployment, Network)
            near_bound = again.best.usd_per_hour - again.bound <= GAP * again.best.usd_per_hour
            found.append(RunnerUp(again.best, proven=single and near_bound))
    while len(found) < count and not complete:  # the time is over: what has been met
        met = _cheapest_seen(search, budget, excluded)
        if met is None:
            break
        excluded.add(kind_of(met.deployment))
        if not _idle_filter(met):
            found.append(RunnerUp(met, proven=False))
    return sorted(found, key=lambda r: r.plan.usd_per_hour), complete


def _numbered(progress: Callable[[str], None], number: int, count: int) -> Callable[[str], None]:
    return lambda message: progress(f"runner-up {number} of {count}: {message}")


def _cheapest_seen(search: Search, budget: float, excluded: set[Kind]) -> Found | None:
    """The cheapest plan met so far of another kind, within the budget; with equal cost that of fewest chips."""
    open_to = [f for f in search.feasible if f.usd_per_hour <= budget and kind_of(f.deployment) not in excluded]
    return min(open_to, key=lambda f: (f.usd_per_hour, sum(p.chips for p in f.deployment.pools)), default=None)


def _idle_filter(found: Found) -> bool:
    """A filter that keeps nothing on the relay is no architecture of its own."""
    return found.deployment.use_filter and found.evaluation.routing.filtered_share <= 0


def _alternative(context: Context, runner_up: RunnerUp, best: Plan) -> Alternative:
    deployment = runner_up.plan.deployment
    evaluation = evaluate(context, deployment, routing=runner_up.plan.evaluation.routing)
    costs, cost, _ = cost_of(context, deployment, evaluation)
    return Alternative(
        usd_per_hour=cost.usd_per_hour,
        architecture=architecture_of(deployment, evaluation),
        differs=differs(deployment, best),
        proven=runner_up.proven,
        roles=role_plans(context, deployment, evaluation, costs),
        links=link_plans(context, deployment, evaluation, costs),
    )


# ---------------------------------------------------------------- in words


def differs(plan: Plan, best: Plan) -> str:
    """What another kind of plan does differently: ``main decode tp8 instead of tp4, no line``."""
    if isinstance(plan, Network) or isinstance(best, Network):
        return differs_in_chips(plan, best)
    mine, theirs = {p.role: p for p in plan.pools}, {p.role: p for p in best.pools}
    words = [said for role, pool in mine.items() if (said := _pool_words(pool, theirs.get(role)))]
    words += [f"no {ROLE_WORDS[role].removeprefix('the ')}" for role in theirs if role not in mine]
    line = _line_words(plan.line, best.line)
    words += [line] if line else []
    if plan.use_filter != best.use_filter:
        words.append("short outputs stay on the relay" if plan.use_filter else "no filter")
    return ", ".join(words)


def _pool_words(pool: Pool, other: Pool | None) -> str:
    name = ROLE_WORDS[pool.role].removeprefix("the ")
    layout, chip = pool.service.parallelism, pool.offer.chip.id
    if other is None:
        return f"{name} on {chip} in {pool.site.name}"
    here = f"{name} in {pool.site.name}" if pool.site.name != other.site.name else name
    if chip != other.offer.chip.id:
        return f"{here} on {chip} instead of {other.offer.chip.id}"
    if layout != other.service.parallelism:
        return f"{here} {layout} instead of {other.service.parallelism}"
    return here if here != name else ""


def _line_words(line: LineChoice | None, other: LineChoice | None) -> str:
    if line is None or other is None:
        return "" if line is other else "no line" if line is None else f"a line of {_rate_words(line)} Gbit/s"
    if line.lines == other.lines and line.link == other.link and line.tier == other.tier:
        return ""
    mine, theirs = _rate_words(line), _rate_words(other)
    return f"line {mine} instead of {theirs} Gbit/s" if mine != theirs else f"another offer of {mine} Gbit/s"


def _rate_words(line: LineChoice) -> str:
    return f"{line.lines} × {line.link.tiers[line.tier].gbit_per_s:g}"
