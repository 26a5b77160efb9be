"""Best-first search over level tuples: the integer program inside bounds, the full model decides.

A node is (prefill option and count, line, interval of the hit share q, cuts). Its bound is the program's optimum; its
plan is re-evaluated by the full model. Holds: incumbent. Fails: the interval is split at the plan's own q, or plans
with no larger counts are cut. The search ends when no node's bound lies below the incumbent: the gap is proven.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from pddplan.economics.cost import Bill, bill, line_traffic_usd_per_hour, mean_load
from pddplan.errors import Excuse
from pddplan.plan.options import PoolOption, Shop, site_pairs
from pddplan.plan.program import Cuts, Point, Tuple, fixed_usd_per_hour, solve_program
from pddplan.plan.relaxation import DecodeChoice, Pace, decode_choices, in_time, least_share, pace_of, tuple_bounds
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, LineChoice
from pddplan.serve.equilibrium import HELD_TOLERANCE
from pddplan.serve.evaluate import evaluate
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.records import Evaluation
from pddplan.spec.types import ChipOffer

GAP = 1e-3  # "proven" means the gap between bound and re-evaluated plan is at most this
LEVELS = (0.5, 0.8, 0.9, 0.96, 0.99)  # first intervals of the hit share; split further where needed
IDLE_FACTOR, IDLE_EXTRA = 4, 16  # prefill of so many times the least count waits for nobody: more changes nothing
SPLIT_MARGIN = 0.004  # a hit share this close to the interval's top isn't split again


@dataclass(frozen=True)
class Found:
    """A plan with its evaluation (without detail) and bill."""

    deployment: Deployment
    evaluation: Evaluation
    bill: Bill

    @property
    def usd_per_hour(self) -> float:
        return self.bill.usd_per_hour


@dataclass
class Search:
    """State of one search: incumbent, bound, all feasible plans seen, the nearest refused ones."""

    context: Context
    shop: Shop
    budget_usd_per_hour: float = math.inf
    deadline: float = math.inf
    progress: Callable[[str], None] | None = None
    first_only: bool = False  # stop at the first plan that holds: is there one at all?
    best: Found | None = None
    bound: float = math.inf
    closed: float = math.inf  # least bound of a node given up because its plan came within the gap
    complete: bool = True
    feasible: list[Found] = field(default_factory=list)
    refused: list[Found] = field(default_factory=list)
    stage_excuses: list[Excuse] = field(default_factory=list)
    seen: dict[tuple[object, ...], Found] = field(default_factory=dict)
    prompt: dict[tuple[int, int], bool] = field(default_factory=dict)
    programs: int = 0
    evaluations: int = 0
    choices: dict[str, tuple[tuple[DecodeChoice, ...], tuple[DecodeChoice, ...]]] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Plans at or above this cost can't improve the incumbent."""
        return min(self.best.usd_per_hour if self.best else math.inf, self.budget_usd_per_hour * (1 + 1e-9))

    def settled(self, bound: float) -> bool:
        """Whether nothing with this bound is worth a look; the gap counts against a plan, not against the budget."""
        return bound >= self.limit or (self.best is not None and bound >= self.best.usd_per_hour * (1 - GAP / 2))

    def try_plan(self, deployment: Deployment) -> Found:
        """Evaluate a deployment, once, and keep it where it belongs."""
        key = _key(deployment)
        if key in self.seen:
            return self.seen[key]
        self.evaluations += 1
        evaluation = evaluate(self.context, deployment, detail=False)
        mean = evaluation.line.needed_bytes_per_s if evaluation.line is not None else 0.0
        found = Found(deployment, evaluation, bill(self.context.scenario, deployment, mean))
        if not evaluation.feasible:
            self.refused.append(found)
        elif found.usd_per_hour <= self.budget_usd_per_hour * (1 + 1e-9):
            self.feasible.append(found)
            if self.best is None or found.usd_per_hour < self.best.usd_per_hour * (1 - 1e-12):
                self.best = found
        self.seen[key] = found
        return found


def _key(deployment: Deployment) -> tuple[object, ...]:
    line = deployment.line
    where = None if line is None else (id(line.link), line.tier, line.lines, line.from_site)
    return (*((p.role, id(p.service), p.instances) for p in deployment.pools), where, deployment.use_filter)


@dataclass(frozen=True)
class Node:
    """One tuple in the queue; ``mains`` and ``relays`` are lists shared by all nodes of a site pair."""

    prefill: PoolOption
    instances: int
    line: LineChoice | None
    mains: tuple[DecodeChoice, ...]
    relays: tuple[DecodeChoice, ...]
    q: tuple[float, float]
    cuts: Cuts
    use_filter: bool
    least: int  # least stable prefill count
    rest_usd_per_hour: float  # least cost of everything but prefill and line, see _rest_bounds
    pace: Pace
    whole: bool = True  # a starting interval of q: the node that opens the next count

    @property
    def tuple(self) -> Tuple:
        return Tuple(self.prefill, self.instances, self.line, self.mains, self.relays, self.cuts, self.use_filter)


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


def roots(search: Search) -> list[tuple[Node, float]]:
    """One node per site pair, prefill option, line and level of the hit share, at the least stable prefill count."""
    found: list[tuple[Node, float]] = []
    context, shop = search.context, search.shop
    forecast = context.scenario.workload.output_forecast is not None
    for source, target in site_pairs(context.scenario):
        same = source.name == target.name
        mains, relays = _choices(search, source.name, target.name, same)
        if not mains:
            continue
        pace = pace_of(context, mains, relays)
        lines: list[LineChoice | None] = [None] if same else [
            line for line in shop.lines if (line.from_site, line.to_site) == (source.name, target.name)
        ]
        for prefill in (o for o in shop.pools["prefill"] if o.site.name == source.name):
            least = least_count(context, prefill)
            if least > prefill.max_instances:
                need, have = least * prefill.chips, prefill.max_instances * prefill.chips
                search.stage_excuses.append(Excuse("prefill_chips", need, have, "chips", "prefill"))
                continue
            rests = _rest_bounds(search, prefill, lines, mains, relays, pace)
            for line in lines:
                levels = hit_levels(search, line, mains)
                for use_filter in (False, True) if forecast and relays else (False,):
                    for q in levels:
                        rest = next((usd for (low, high), usd in rests.items() if low <= q[0] and q[1] <= high), -math.inf)
                        node = Node(prefill, least, line, mains, relays, q, Cuts(), use_filter, least, rest, pace)
                        found.append((node, _simple_bound(context, node, least)))
    return found


def hit_levels(search: Search, line: LineChoice | None, mains: tuple[DecodeChoice, ...]) -> list[tuple[float, float]]:
    """Intervals of the hit share q to start from: what the line needs at least up to what the largest memory holds."""
    context = search.context
    workload = context.scenario.workload
    if workload.decode_prefix_hit_rate is not None:
        own = context.demand.atoms.hit_rate
        low = high = min(workload.decode_prefix_hit_rate / own, 1.0) if own > 0 else 0.0
    elif not context.scenario.engine.decode_prefix_sharing or context.demand.atoms.hit_rate <= 0:
        low = high = 0.0
    else:
        low, high = 0.0, min(context.share_for_idle(max(c.room_bytes for c in mains)) + HELD_TOLERANCE, 1.0)
    least = least_share(context, line, high)
    if least is None:
        search.stage_excuses.append(_line_excuse(context, line, high))
        return []
    low = min(max(low, least), high)
    edges = [low, *(e for e in LEVELS if low < e < high), high]
    return [(low, high)] if low == high else list(itertools.pairwise(edges))


def _rest_bounds(
    search: Search,
    prefill: PoolOption,
    lines: list[LineChoice | None],
    mains: tuple[DecodeChoice, ...],
    relays: tuple[DecodeChoice, ...],
    pace: Pace,
) -> dict[tuple[float, float], float]:
    """Least cost of decode beside this prefill option by level of the hit share, whatever its count and the line
    [USD/h]; empty where nothing is known.

    The program at the largest count and the widest line, less what these two cost. A slower line leaves the relay more
    tokens, fewer instances merge more tails: neither is held against it here.
    """
    context = search.context
    widest = max(lines, key=lambda line: math.inf if line is None else line.capacity_bytes_per_s, default=None)
    filters = context.scenario.workload.output_forecast is not None  # whose rows differ
    if filters or not lines or any(_flow(line) > _flow(widest) or _rtt(line) < _rtt(widest) for line in lines):
        return {}
    count = prefill.max_instances
    stage = context.prefill_stage(prefill.pool(count), context.rate)
    if isinstance(stage, Excuse):
        return {}
    times = context.prefill_times(prefill.pool(count))
    stage = replace(stage, time_s=np.minimum(times.alone, times.shared) + times.fetch)
    found: dict[tuple[float, float], float] = {}
    levels = hit_levels(search, widest, mains)
    for index, q in enumerate(levels):
        node = Node(prefill, count, widest, mains, relays, q, Cuts(), False, count, 0.0, pace)
        bounds = tuple_bounds(context, prefill, stage, count, widest, *pace.fastest, q, pace)
        if isinstance(bounds, Excuse):
            continue
        most = np.full(bounds.classes.weight.size, float(context.demand.atoms.output.max()))
        # on a slower line more is under way, so that large memories may belong to a lower level than here
        bounds = replace(bounds, classes=replace(bounds.classes, most=most), under_way_worst=math.inf)
        # with all of an offer's chips in prefill nothing would be left for the rest: its own share is not counted here
        relaxed = solve_program(
            context, replace(node.tuple, instances=0), bounds, math.inf, q[1], whole_numbers=False
        )
        search.programs += 1
        traffic = 0.0
        if widest is not None:
            traffic = widest.port_usd_per_hour
            traffic += line_traffic_usd_per_hour(widest, bounds.bytes_per_s, mean_load(context.scenario))
        # a slower line begins within a level: its interval there lies inside this one
        low = 0.0 if index == 0 else q[0]
        found[(low, q[1])] = relaxed.bound_usd_per_hour - traffic if relaxed is not None else math.inf
    return found


def _flow(line: LineChoice | None) -> float:
    """Ceiling of a flow as far as the link sets it [B/s]."""
    return math.inf if line is None else line.link.streams * line.link.stream_bytes_per_s


def _rtt(line: LineChoice | None) -> float:
    return 0.0 if line is None else line.link.rtt_s


def _simple_bound(context: Context, node: Node, instances: int) -> float:
    """Bound without a program: prefill, line, and every output token at the cheapest rate any decode choice offers."""
    total = context.rate * context.demand.atoms.mean(context.demand.atoms.output)
    pace, relay = node.pace, math.inf
    if node.relays:
        # a stay of t makes up to t / tau + 1 tokens, each of which may spare main decode more than one
        total -= min(context.rate * pace.relief, total)
        relay = 0.0 if node.use_filter else pace.relay_usd_per_token_s / pace.relief
    offers = {o.key: o for o in (node.prefill.offer, *(c.option.offer for c in (*node.mains, *node.relays)))}
    owned = sum(o.owned_chips * o.usd_per_hour for o in offers.values())
    own = instances * node.prefill.usd_per_hour
    rent = max(total * min(pace.main_usd_per_token_s, relay), pace.main_usd_per_hour) + own - owned
    bill = max(rent, 0.0) + fixed_usd_per_hour(context, node.prefill)
    bill = max(bill, node.rest_usd_per_hour + (own if owned == 0 and _whole_nodes(offers, node) else 0.0))
    if node.line is None:
        return bill
    demand = context.demand
    mean = node.q[1] * demand.atoms.mean(demand.delta_held) + (1 - node.q[1]) * demand.atoms.mean(demand.delta_cold)
    saved = 1.0 / context.scenario.workload.sessions.turns if node.use_filter else 0.0
    traffic = line_traffic_usd_per_hour(node.line, context.rate * mean * (1 - saved), mean_load(context.scenario))
    return bill + node.line.port_usd_per_hour + traffic


def _choices(
    search: Search, source: str, target: str, same: bool
) -> tuple[tuple[DecodeChoice, ...], tuple[DecodeChoice, ...]]:
    key = f"{source}>{target}"
    if key not in search.choices:
        context, shop = search.context, search.shop
        mains = tuple(o for o in shop.pools["main_decode"] if o.site.name == target)
        relays = () if same else tuple(o for o in shop.pools["relay_decode"] if o.site.name == source)
        search.choices[key] = (
            tuple(decode_choices(context, mains, context.pooled_slots, tangent=True, relayed=bool(relays))),
            tuple(decode_choices(context, relays, True, tangent=False)),
        )
    return search.choices[key]


def expand(search: Search, node: Node, bound: float) -> list[tuple[Node, float]]:
    """Solve a node's program, try its plan, return its children with their bounds."""
    context = search.context
    stage = context.prefill_stage(node.prefill.pool(node.instances), context.rate)
    sibling = _sibling(context, node)
    more = [] if sibling is None else [sibling]
    if isinstance(stage, Excuse) or not _prompt_enough(search, node, stage):
        return more
    return more + _children(search, node, bound, stage)


def _prompt_enough(search: Search, node: Node, stage: PrefillStage) -> bool:
    """Whether prefill alone, with nothing after it, meets the first-token quantiles: the same for all lines and levels."""
    key = (id(node.prefill), node.instances)
    if key not in search.prompt:
        context = search.context
        weight = context.demand.atoms.weight
        first = stage.time_s + context.scenario.engine.router_delay_s
        search.prompt[key] = all(
            float(weight @ in_time(stage, limit.limit_s * (1 + 1e-9) - first)) >= limit.quantile - 1e-9
            for limit in context.limits("ttft")
        )
    return search.prompt[key]


def _children(search: Search, node: Node, bound: float, stage: PrefillStage) -> list[tuple[Node, float]]:
    context = search.context
    bounds = tuple_bounds(context, node.prefill, stage, node.instances, node.line, *node.pace.fastest, node.q, node.pace, node.use_filter)
    if isinstance(bounds, Excuse):
        search.stage_excuses.append(bounds)
        return []
    relaxed = solve_program(context, node.tuple, bounds, search.limit, node.q[1])
    search.programs += 1
    if relaxed is None or relaxed.bound_usd_per_hour >= search.limit:
        return []
    new_bound = max(bound, relaxed.bound_usd_per_hour)
    found = search.try_plan(_deployment(context, node, relaxed.point))
    if found.evaluation.feasible:
        if found.usd_per_hour <= new_bound * (1 + GAP / 2):
            search.closed = min(search.closed, new_bound)
            return []
        cuts = replace(node.cuts, exact=(*node.cuts.exact, relaxed.point))
        return [(replace(node, cuts=cuts), new_bound)]
    if search.best is None:
        _repair(search, node, relaxed.point, found)
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
        if not _fits(search.context, node, replace(point, main=counts[count])):
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


def _split(
    search: Search, node: Node, point: Point, found: Found, bound: float
) -> list[tuple[Node, float]]:
    """Split the interval at the plan's own hit share; where it already is the top, cut the plan and all below it."""
    own = search.context.demand.atoms.hit_rate
    q = found.evaluation.decode_hit_rate / own if own > 0 else math.nan
    low, high = node.q
    if math.isfinite(q) and low < q < high - SPLIT_MARGIN:
        return [
            (replace(node, q=(low, q), whole=False), bound),
            (replace(node, q=(q, high), whole=False), bound),
        ]
    point, found = _largest_refused(search, node, point, found)
    cuts = replace(node.cuts, below=(*node.cuts.below, point))
    if point.relay is not None and not found.evaluation.relay_limited:
        cuts = replace(node.cuts, any_relay=(*node.cuts.any_relay, point))
    middle = (low + high) / 2
    if not math.isfinite(q) and high - low > 2 * SPLIT_MARGIN:
        # no equilibrium to split at: halve, so that either half's figures come closer to its plans
        return [
            (replace(node, cuts=cuts, q=(low, middle), whole=False), bound),
            (replace(node, cuts=cuts, q=(middle, high), whole=False), bound),
        ]
    return [(replace(node, cuts=cuts), bound)]


def _line_excuse(context: Context, line: LineChoice | None, share: float) -> Excuse:
    """The line doesn't carry the least bytes this traffic can send."""
    assert line is not None
    demand = context.demand
    mean = share * demand.atoms.mean(demand.delta_held) + (1 - share) * demand.atoms.mean(demand.delta_cold)
    return Excuse("line_utilization", context.rate * mean / line.capacity_bytes_per_s, context.cap_line, "", "line")


def least_count(context: Context, option: PoolOption) -> int:
    """Fewest prefill instances whose utilisation, passes shared, is within its cap and below 1."""
    pool = option.pool(1)
    work = context.rate * context.demand.atoms.mean(context.prefill_times(pool).shared)
    need = work / (pool.prefill.servers_per_instance * min(context.cap("prefill"), 1.0))
    count = max(math.ceil(need * (1 - 1e-9)), option.min_instances, 1)
    stable = work / (pool.prefill.servers_per_instance * count) < 1.0
    return count if stable else count + 1


def _whole_nodes(offers: dict[str, ChipOffer], node: Node) -> bool:
    """Whether prefill's instances fill whole buy-ins, so that their chips add to the bill whatever stands beside them."""
    return node.prefill.chips % offers[node.prefill.offer.key].buy_in == 0


def _sibling(context: Context, node: Node) -> tuple[Node, float] | None:
    """The same level with one more prefill instance, opened by the node that has neither been cut nor split."""
    if node.instances >= min(node.prefill.max_instances, IDLE_FACTOR * node.least + IDLE_EXTRA) or node.cuts != Cuts() or not node.whole:
        return None
    option = node.prefill
    free = option.offer.owned_chips > 0 or option.chips % option.offer.buy_in != 0
    bound = _simple_bound(context, node, node.least if free else node.instances + 1)
    return replace(node, instances=node.instances + 1), bound


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


def _repair(search: Search, node: Node, point: Point, found: Found) -> None:
    """First incumbent: raise the count of whatever stage fails until the plan holds or nothing is left to raise."""
    context = search.context
    for _ in range(12):
        grown = _grow(search, node, point, found)
        if grown is None:
            return
        point = grown
        if isinstance(context.prefill_stage(node.prefill.pool(point.prefill), context.rate), Excuse):
            return
        found = search.try_plan(_deployment(context, node, point))
        if found.evaluation.feasible:
            return


def _grow(search: Search, node: Node, point: Point, found: Found) -> Point | None:
    if not found.evaluation.excuses:
        return None
    owner = found.evaluation.excuses[0].subject
    main, relay = point.main, point.relay
    if owner in ("prefill", "prefill_queue") and point.prefill < node.prefill.max_instances:
        return replace(point, prefill=point.prefill + 1)
    if owner in ("relay", "relay_decode", "line", "hand_over") and node.relays:
        option = relay.option if relay is not None else node.relays[0].option
        count = relay.instances + 1 if relay is not None else option.min_instances
        grown = _choice(node.relays, option, count)
        if grown is not None and _fits(search.context, node, replace(point, relay=grown)):
            return replace(point, relay=grown)
    excuse = found.evaluation.excuses[0]
    ratio = excuse.value / excuse.limit if excuse.constraint == "main_decode_throughput" and excuse.limit > 0 else 1.0
    wanted = max(main.instances + 1, math.ceil(main.instances * min(ratio, 1e3)))
    grown = _choice(node.mains, main.option, min(wanted, main.option.max_instances))
    if grown is not None and grown.instances <= main.instances:
        return None
    if grown is None or not _fits(search.context, node, replace(point, main=grown)):
        return None
    return replace(point, main=grown)


def _choice(choices: tuple[DecodeChoice, ...], option: PoolOption, count: int) -> DecodeChoice | None:
    return next((c for c in choices if c.option is option and c.instances == count), None)


def _fits(context: Context, node: Node, point: Point) -> bool:
    """Whether the plan's chips are within every offer."""
    used: dict[str, int] = {}
    chosen = [(node.prefill, point.prefill), (point.main.option, point.main.instances)]
    if point.relay is not None:
        chosen.append((point.relay.option, point.relay.instances))
    for option, count in chosen:
        spare = context.scenario.spares.get(option.role, 0)
        used[option.offer.key] = used.get(option.offer.key, 0) + (count + spare) * option.chips
    offers = {o.key: o for s in context.scenario.sites for o in s.offers}
    return all(chips <= offers[key].max_chips for key, chips in used.items())
