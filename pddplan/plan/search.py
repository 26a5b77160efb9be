"""Best-first search over level tuples: the integer program inside bounds, the full model decides.

A node is (prefill option and count, line, interval of the hit share q). Its bound is the program's optimum; its
plan is re-evaluated by the full model. Holds: incumbent. Fails: the interval is split at the plan's own q, or plans
with no larger counts are cut. The search ends when no node's bound lies below the incumbent: the gap is proven.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from dataclasses import replace

from pddplan.economics.cost import within_offers
from pddplan.errors import Excuse
from pddplan.plan.levels import levels_of, roots, sibling_of
from pddplan.plan.program import solve_program
from pddplan.plan.prune import Cuts, Point, cheapest_pair, least_beside, possible
from pddplan.plan.relaxation import in_time, tuple_bounds
from pddplan.plan.state import GAP, Found, Node, Search
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.prefill_stage import PrefillStage

SPLIT_MARGIN = 0.004  # a hit share this close to the interval's top isn't split again


def run(search: Search) -> None:
    """Search until the incumbent is proven, nothing is left or the deadline passes."""
    queue: list[tuple[float, int, Node]] = []
    order = itertools.count()
    for node, bound in roots(search):
        heapq.heappush(queue, (bound, next(order), node))
    while queue:
        if search.first_only and search.best is not None:
            break
        bound, _, node = heapq.heappop(queue)
        if search.settled(bound):
            heapq.heappush(queue, (bound, next(order), node))
            break
        if time.monotonic() > search.deadline:
            search.complete = False
            heapq.heappush(queue, (bound, next(order), node))
            break
        if search.progress is not None:
            search.progress(f"bound {bound:.2f} USD/h, {search.evaluations} plans evaluated")
        for child, child_bound in expand(search, node, bound):
            if child_bound < search.limit:
                heapq.heappush(queue, (child_bound, next(order), child))
    left = queue[0][0] if queue else math.inf
    search.bound = min(left, search.closed, search.best.usd_per_hour if search.best else left)


def expand(search: Search, node: Node, bound: float) -> list[tuple[Node, float]]:
    """Solve a node's program, try its plan, return its children with their bounds."""
    context = search.context
    stage = context.prefill_stage(node.prefill.pool(node.instances), context.rate, *node.receivers)
    sibling = sibling_of(context, node)
    more = [] if sibling is None else [sibling]
    if isinstance(stage, Excuse) or not _prompt_enough(search, stage):
        return more
    return more + _children(search, node, bound, stage)


def _prompt_enough(search: Search, stage: PrefillStage) -> bool:
    """Whether prefill alone, with nothing after it, meets the first-token quantiles: for all lines and levels."""
    key = id(stage)  # kept by the context
    if key not in search.prompt:
        context = search.context
        first = stage.time_s + context.router_s(split=True)
        search.prompt[key] = all(
            float(context.weight_of(limit) @ in_time(stage, limit.limit_s * (1 + 1e-9) - first))
            >= limit.quantile - 1e-9
            for limit in context.limits("ttft")
        )
    return search.prompt[key]


def _children(search: Search, node: Node, bound: float, stage: PrefillStage) -> list[tuple[Node, float]]:
    context = search.context
    beside = least_beside(node.level)
    bounds = tuple_bounds(
        context,
        node.prefill,
        stage,
        node.instances,
        node.line,
        *node.pace.fastest,
        node.q,
        node.pace,
        node.use_filter,
        lambda tokens_per_s: cheapest_pair(context, node.level, tokens_per_s) + beside < search.limit,
    )
    if bounds is None or isinstance(bounds, Excuse):
        search.stage_excuses += [] if bounds is None else [bounds]
        return []
    level = replace(node.level, cuts=search.cuts_at(node))
    if node.whole:
        # what no hit share allows needs no look at its intervals
        left = possible(context, level, bounds, search.limit, node.q[1])
        return [] if left is None else [(child, bound) for child in levels_of(node)]
    relaxed = solve_program(context, level, bounds, search.limit, node.q[1])
    search.programs += 1
    if relaxed is None or relaxed.bound_usd_per_hour >= search.limit:
        return []
    new_bound = max(bound, relaxed.bound_usd_per_hour)
    found = search.try_plan(_deployment(context, node, relaxed.point))
    if found.evaluation.feasible:
        if found.usd_per_hour <= new_bound * (1 + GAP / 2):
            search.closed = min(search.closed, new_bound)
            return []
        cuts = search.cuts.get(node.place, Cuts())
        search.cuts[node.place] = replace(cuts, exact=(*cuts.exact, relaxed.point))
        return [(node, new_bound)]
    return _split(search, node, relaxed.point, found, new_bound)


def _largest_refused(search: Search, node: Node, point: Point, found: Found) -> tuple[Point, Found]:
    """The refused plan with the most main-decode instances, all else equal, below the least that holds: by doubling
    steps and bisection, so that one cut does for a whole range of counts. What holds becomes the incumbent on the way.
    """
    option = point.main.option
    counts = {c.instances: c for c in node.mains if c.option is option}
    price = option.chips * option.offer.usd_per_hour

    def tried(count: int) -> tuple[Point, Found]:
        grown = replace(point, main=counts[count])
        return grown, search.try_plan(_deployment(search.context, node, grown))

    refused, step, holds = (point, found), 1, 0
    while True:
        count = min(refused[0].main.instances + step, max(counts))
        dearer = found.usd_per_hour + (count - point.main.instances) * price
        if count not in counts or count <= refused[0].main.instances or dearer >= search.limit:
            return refused
        if not within_offers(
            search.context.scenario, _deployment(search.context, node, replace(point, main=counts[count]))
        ):
            return refused
        attempt = tried(count)
        if attempt[1].evaluation.feasible:
            holds = count
            break
        refused, step = attempt, step * 2
    while holds - refused[0].main.instances > 1:
        middle = (holds + refused[0].main.instances) // 2
        attempt = tried(middle)
        if attempt[1].evaluation.feasible:
            holds = middle
        else:
            refused = attempt
    return refused


def _split(search: Search, node: Node, point: Point, found: Found, bound: float) -> list[tuple[Node, float]]:
    """Split the interval at the plan's own hit share; where it already is the top, cut the plan and all below it."""
    own = search.context.demand.atoms.hit_rate
    q = found.evaluation.decode_hit_rate / own if own > 0 else math.nan
    low, high = node.q
    if math.isfinite(q) and low < q < high - SPLIT_MARGIN:
        return [(replace(node, q=part), bound) for part in ((low, q), (q, high))]
    point, found = _largest_refused(search, node, point, found)
    cuts = search.cuts.get(node.place, Cuts())
    if point.relay is not None and not found.evaluation.relay_limited:
        search.cuts[node.place] = replace(cuts, any_relay=(*cuts.any_relay, point))
    else:
        search.cuts[node.place] = replace(cuts, below=(*cuts.below, point))
    middle = (low + high) / 2
    if not math.isfinite(q) and high - low > 2 * SPLIT_MARGIN:
        # no equilibrium to split at: halve, so that either half's figures come closer to its plans
        return [(replace(node, q=part), bound) for part in ((low, middle), (middle, high))]
    return [(node, bound)]


def _deployment(context: Context, node: Node, point: Point) -> Deployment:
    main, relay = point.main, point.relay
    return Deployment(
        prefill=node.prefill.pool(point.prefill),
        relay=relay.option.pool(relay.instances) if relay is not None else None,
        main=main.option.pool(main.instances),
        line=node.line,
        decode_cache=context.scenario.engine.decode_prefix_sharing,
        use_filter=node.use_filter and relay is not None,
    )
