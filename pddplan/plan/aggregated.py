"""The one-pool answer: least count of aggregated instances, by doubling and bisection over the full model."""

from __future__ import annotations

import bisect
import math
from dataclasses import replace

from pddplan.plan.options import PoolOption
from pddplan.plan.state import Found, Search
from pddplan.serve.deployment import Deployment

MENTIONED = 1.25  # times the cheapest plan's cost


def search_aggregated(search: Search) -> float:
    """Try every aggregated option; returns the lower bound of what wasn't bought [USD/h], inf if all is decided.

    More instances never hurt an aggregated pool, so the least feasible count of an option is its cheapest plan.
    """
    for option in search.shop.pools["aggregated"]:
        least_feasible(search, option)
    return math.inf


def least_feasible(search: Search, option: PoolOption) -> Found | None:
    """Smallest count of an option that holds every row, None if even all its chips don't, or the least that may is too
    dear to be the answer or worth a mention beside it."""
    if not _worth_a_look(search, option):
        return None
    low, high = option.min_instances - 1, option.min_instances
    found = _attempt(search, option, high)
    while not found.evaluation.feasible:
        if high >= option.max_instances or option.rent_usd_per_hour(high + 1) > MENTIONED * search.limit:
            return None
        low, high = high, min(high * 2, option.max_instances)
        found = _attempt(search, option, high)
    while high - low > 1:
        middle = (low + high) // 2
        tried = _attempt(search, option, middle)
        if tried.evaluation.feasible:
            high, found = middle, tried
        else:
            low = middle
    return found


def _worth_a_look(search: Search, option: PoolOption) -> bool:
    """Where only a budget is to be met: whether the most instances within it hold; if not, no fewer do."""
    budget = search.budget_usd_per_hour
    if search.best is not None or math.isinf(budget):
        return True
    # the rent rises with the count: the last one at or below the budget
    counts = range(option.min_instances, option.max_instances + 1)
    within = bisect.bisect_right(counts, search.limit, key=option.rent_usd_per_hour)
    return within > 0 and _attempt(search, option, counts[within - 1]).evaluation.feasible


def _attempt(search: Search, option: PoolOption, count: int) -> Found:
    return search.try_plan(replace(Deployment(), aggregated=option.pool(count)))
