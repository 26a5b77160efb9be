"""``compare``: the same demand under each architecture, each solved on its own, and when the choice would turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pddplan.economics.cost import chips_by_offer, paid_by_chip
from pddplan.plan.infeasible import nearest_excuses, refusal, try_largest
from pddplan.plan.network_search import search_networks
from pddplan.plan.options import mixable
from pddplan.plan.records import Architecture, PlanResult
from pddplan.plan.result import architecture_of
from pddplan.plan.solve import cheapest, chips_run_short, feasible_result, prepare
from pddplan.plan.state import GAP, Found, Search
from pddplan.plan.turning import Plans, Priced, Side, TurnsAt, turning_point
from pddplan.plan.variants import (
    ARCHITECTURES,
    ONE_SITE,
    Variant,
    chunk_budgets,
    unlimited,
    variants,
    with_chunk,
    without_roles,
)
from pddplan.plan.workbench import Workbench
from pddplan.serve.deployment import Network
from pddplan.spec.types import Scenario

Progress = Callable[[str], None]

# what each adds to: its plans are plans of this one as well, so it never costs more
LESS: dict[Architecture, Architecture] = {"pdd": "pd_cross_site_drc", "pdd_filter": "pdd"}


@dataclass(frozen=True)
class Need:
    """Chips that a baseline needs beyond those on offer."""

    chip: str
    chips: int
    offered: int


@dataclass(frozen=True)
class Compared:
    """The cheapest plan of one architecture, over its places and chunk budgets."""

    architecture: Architecture
    where: str
    hypothetical: bool  # chips of several sites in one place, or a filter with a forecast that isn't given
    chunk_tokens: int
    result: PlanResult
    priced: Priced | None = None  # None without a plan
    needs: tuple[Need, ...] = ()  # not empty: solved without the limit on chips

    @property
    def holds(self) -> bool:
        """Whether it can be built from what is on offer."""
        return self.result.cost is not None and not self.needs and not self.hypothetical

    @property
    def usd_per_hour(self) -> float:
        return self.result.cost.usd_per_hour if self.result.cost is not None else math.inf


@dataclass(frozen=True)
class Comparison:
    """All architectures beside each other."""

    rows: tuple[Compared, ...]
    recommended: Compared | None
    turns_at: TurnsAt | None
    scenario: Scenario

    @property
    def split(self) -> Compared | None:
        """Cheapest way over a line."""
        return _cheapest([r for r in self.rows if r.architecture not in ONE_SITE])

    @property
    def whole(self) -> Compared | None:
        """Cheapest way in one site."""
        return _cheapest([r for r in self.rows if r.architecture in ONE_SITE])


def compare(
    scenario: Scenario, *, seed: int = 0, time_limit_s: float | None = None, progress: Progress | None = None
) -> Comparison:
    """Solve the scenario under every architecture: one site with one pool, one site with prefill and decode apart, two
    sites with the whole KV sent, with a cache at the decode side, with a relay, with a filter as well.

    ``roles:`` and pinned counts are lifted; each is solved over its own chunk budgets, parallelism, sites and
    direction, ``time_limit_s`` for each. What needs more chips than there are is solved without the limit and says what
    it needs. Where several pools in a role, over all sites, cost less than any of these, they are one row more.
    ``recommended`` is the cheapest that holds; with equal cost the simpler one.
    """
    limit_s = math.inf if time_limit_s is None else time_limit_s
    scenario = replace(scenario, objective=replace(scenario.objective, name="cost", max_usd_per_hour=None))
    rows: list[Compared] = []
    bench = Workbench(prepare)
    found = variants(scenario)
    for architecture in ARCHITECTURES:
        for hypothetical in (False, True):
            group = [v for v in found if (v.architecture, v.hypothetical) == (architecture, hypothetical)]
            deadline = time.monotonic() + limit_s
            real = next((r for r in rows if r.architecture == architecture), None)
            if group and real is not None:
                more = _says_more(bench, group, real, seed, deadline, progress)
                rows += [more] if more is not None else []
            elif group:
                less = next((r for r in rows if r.architecture == LESS.get(architecture) and r.holds), None)
                rows.append(_best(bench, group, less, seed, deadline, progress))
    mixed = _several(bench, scenario, rows, seed, time.monotonic() + limit_s, progress)
    rows += [mixed] if mixed is not None else []
    made = Comparison(tuple(rows), _cheapest(rows), None, scenario)
    if made.split is None or made.whole is None:
        return made
    return replace(made, turns_at=_turning(bench, made, time.monotonic() + limit_s, progress))


def _cheapest(rows: Sequence[Compared]) -> Compared | None:
    """The cheapest that holds; the first of those within the gap, as the simpler ones come first."""
    holding = [row for row in rows if row.holds]
    if not holding:
        return None
    least = min(row.usd_per_hour for row in holding)
    return next(row for row in holding if row.usd_per_hour <= least * (1 + GAP))


def _several(
    bench: Workbench,
    scenario: Scenario,
    rows: Sequence[Compared],
    seed: int,
    deadline: float,
    progress: Progress | None,
) -> Compared | None:
    """Several pools in a role over all sites, where chips run out and that costs less than every row."""
    context, shop = bench.set_up(without_roles(scenario))
    if len(scenario.sites) < 2 or not mixable(shop):
        return None
    if progress is not None:
        progress("several pools in a role")
    search = cheapest(context, math.inf, deadline, shop=shop)
    least = min((row.usd_per_hour for row in rows if row.holds), default=math.inf)
    if search.best is None or not isinstance(search.best.deployment, Network):
        return None
    if search.best.usd_per_hour >= least * (1 - GAP):
        return None
    architecture = architecture_of(search.best.deployment, search.best.evaluation)
    where = " + ".join(dict.fromkeys(pool.site.name for pool in search.best.deployment.pools))
    chunk = scenario.engine.chunk_tokens
    row = _compared(search, Variant(architecture, context.scenario, where), chunk)
    return replace(row, result=replace(row.result, seed=seed))


def _says_more(
    bench: Workbench,
    group: Sequence[Variant],
    real: Compared,
    seed: int,
    deadline: float,
    progress: Progress | None,
) -> Compared | None:
    """All chips in one place where that does better than any single site, ``real``; else it isn't worth a row."""

    def solved(budget_usd_per_hour: float) -> Compared | None:
        return _solved(bench, group, None, budget_usd_per_hour, deadline, progress, lambda scenario: scenario)[0]

    # within the budget first, as most don't; a row then has its runner-ups beyond it as well
    found = solved(real.usd_per_hour) if real.holds else solved(math.inf)
    if found is not None and real.holds:
        found = solved(math.inf)
    if found is None or (real.holds and found.usd_per_hour >= real.usd_per_hour * (1 - GAP)):
        return None
    return replace(found, result=replace(found.result, seed=seed))


def _best(
    bench: Workbench,
    group: Sequence[Variant],
    less: Compared | None,
    seed: int,
    deadline: float,
    progress: Progress | None,
) -> Compared:
    """Cheapest plan of a group, that of ``less`` where nothing is cheaper; without one, the cheapest with many times
    the chips; else what stands in its way."""
    found, first = _solved(bench, group, less, math.inf, deadline, progress, lambda scenario: scenario)
    if found is None:
        found, _ = _solved(bench, group, None, math.inf, deadline, progress, unlimited)
    if found is not None:
        return replace(found, architecture=group[0].architecture, result=replace(found.result, seed=seed))
    if first.complete:
        try_largest(first)
    result = refusal(first.context, first, nearest_excuses(first), ())
    variant, chunk = group[0], first.context.scenario.engine.chunk_tokens
    return Compared(variant.architecture, variant.where, variant.hypothetical, chunk, replace(result, seed=seed))


def _solved(
    bench: Workbench,
    group: Sequence[Variant],
    less: Compared | None,
    budget_usd_per_hour: float,
    deadline: float,
    progress: Progress | None,
    change: Callable[[Scenario], Scenario],
) -> tuple[Compared | None, Search]:
    """Cheapest plan over the places and chunk budgets of a group, None where none holds below the budget; and the first
    search, in the first place with the scenario's own chunk budget."""
    best, proven = less, True
    first: Search | None = None
    winner: tuple[Search, Variant, int] | None = None
    for variant in group:
        for chunk in chunk_budgets(variant):
            if progress is not None:
                progress(f"{variant.architecture} in {variant.where}, chunks of {chunk} tokens")
            context, shop = bench.set_up(with_chunk(change(variant.scenario), chunk))
            limit = (budget_usd_per_hour if best is None else best.usd_per_hour) * (1 - GAP)
            search = cheapest(context, limit, deadline, shop=shop, networks="if_none" if best is None else "never")
            first = first or search
            proven = proven and search.complete
            if search.best is not None:
                winner = search, variant, chunk
                best = _compared(*winner)
    assert first is not None
    if winner is not None and mixable(winner[0].shop) and chips_run_short(winner[0]):
        # several pools in a role, for the best place and chunks alone
        known = winner[0].best
        search_networks(winner[0])
        best = best if winner[0].best is known else _compared(*winner)
    if best is not None and not proven:
        best = replace(best, result=replace(best.result, status="unknown", bound=None, gap=None))
    return best, first


def _compared(search: Search, variant: Variant, chunk_tokens: int) -> Compared:
    """The best plan of a search as a row."""
    assert search.best is not None
    context = search.context
    used = chips_by_offer(context.scenario, search.best.deployment)
    limits = {o.key: o.max_chips for site in variant.scenario.sites for o in site.offers}
    needs = tuple(
        Need(offer.chip.id, chips, limits[key]) for key, (offer, _, chips) in used.items() if chips > limits[key]
    )
    result = feasible_result(context, search, search.best)
    priced = _priced(context.scenario, search.best)
    place = (variant.architecture, variant.where, variant.hypothetical)
    return Compared(*place, chunk_tokens, result, priced, needs)


def _priced(scenario: Scenario, found: Found) -> Priced:
    links = found.bill.line_ports + found.bill.line_traffic
    return Priced(found.usd_per_hour, paid_by_chip(scenario, found.deployment), links)


def _turning(bench: Workbench, made: Comparison, deadline: float, progress: Progress | None) -> TurnsAt | None:
    """At which price the recommendation would change sides, the plans found anew at each price on the way."""
    sides: dict[Side, list[Compared]] = {
        "split": [row for row in made.rows if row.holds and row.architecture not in ONE_SITE],
        "whole": [row for row in made.rows if row.holds and row.architecture in ONE_SITE],
    }
    split = made.split
    assert split is not None
    # a relay's plans are a superset of those without, so one architecture stands for all that are split
    chunks: dict[Side, dict[Architecture, int]] = {
        "split": {"pdd": split.chunk_tokens},
        "whole": {row.architecture: row.chunk_tokens for row in made.rows if row.architecture in ONE_SITE},
    }

    def cheapest_at(changed: Scenario) -> Plans:
        """Both sides anew, in every place and direction."""
        found: Plans = {"split": [], "whole": []}
        for side, budgets in chunks.items():
            least = math.inf
            for way in variants(changed):
                if way.hypothetical or way.architecture not in budgets:
                    continue
                context, shop = bench.set_up(with_chunk(way.scenario, budgets[way.architecture]))
                search = cheapest(context, least, deadline, progress, shop, networks="never")
                if search.best is not None:
                    least = search.best.usd_per_hour
                    found[side].append(_priced(context.scenario, search.best))
        return found

    plans: Plans = {side: [row.priced for row in rows if row.priced] for side, rows in sides.items()}
    line = sum(link.usd_per_hour for link in split.result.links)
    return turning_point(made.scenario, plans, cheapest_at, line)
