"""Where a search starts: a node per site pair, prefill option, line and level of the hit share, with a first bound."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from pddplan.economics.cost import line_usd_per_hour
from pddplan.errors import Excuse
from pddplan.perf.precision import kv_between
from pddplan.plan.choices import Choices, decode_choices, pace_of
from pddplan.plan.kv_formats import by_format
from pddplan.plan.options import PoolOption, site_pairs
from pddplan.plan.prune import fixed_usd_per_hour
from pddplan.plan.relaxation import least_sent, least_share
from pddplan.plan.state import Node, Search
from pddplan.serve.context import Context
from pddplan.serve.deployment import LineChoice
from pddplan.serve.equilibrium import HELD_TOLERANCE

LEVELS = (0.5, 0.8, 0.9, 0.96, 0.99)  # where the hit share's range is split first; further where needed
IDLE_FACTOR, IDLE_EXTRA = 4, 16  # prefill of so many times the least count waits for nobody: more changes nothing


def roots(search: Search) -> list[tuple[Node, float]]:
    """One node per site pair, prefill option and line, at the least stable prefill count and any hit share."""
    found: list[tuple[Node, float]] = []
    context, shop = search.context, search.shop
    forecast = context.scenario.traffic.output_forecast is not None
    for source, target in site_pairs(context.scenario):
        same = source.name == target.name
        lines: list[LineChoice | None] = [None] if same else [*shop.between(source.name, target.name)]
        prefills = [o for o in shop.pools["prefill"] if o.site.name == source.name]
        groups = [(*group, pace_of(context, *group)) for group in choices_of(search, source.name, target.name, same)]
        for (mains, relays, pace), prefill in itertools.product(groups, prefills):
            least = least_count(context, prefill)
            if least > prefill.max_instances:
                need, have = least * prefill.chips, prefill.max_instances * prefill.chips
                search.stage_excuses.append(Excuse("prefill_chips", need, have, "chips", "prefill"))
                continue
            for line in lines:
                q = hit_range(search, prefill, line, mains)
                if q is None:
                    continue
                for use_filter in (False, True) if forecast and relays else (False,):
                    node = Node(prefill, least, line, mains, relays, q, use_filter, least, pace)
                    found.append((node, _simple_bound(context, node, least)))
    return found


def levels_of(node: Node) -> list[Node]:
    """The node's range of the hit share in its first intervals."""
    low, high = node.q
    if low == high:
        return [replace(node, whole=False)]
    edges = [low, *(e for e in LEVELS if low < e < high), high]
    return [replace(node, q=q, whole=False) for q in itertools.pairwise(edges)]


def hit_range(
    search: Search, prefill: PoolOption, line: LineChoice | None, mains: Choices
) -> tuple[float, float] | None:
    """Range of the hit share q: from what the line needs to what the largest memory holds; None if it's empty."""
    context = search.context
    main, crossing = mains[0].option.offer, _crossing(context, prefill, mains)
    given = context.given_hit_share
    if not context.scenario.engine.decode_prefix_sharing or context.demand.atoms.hit_rate <= 0:
        low = high = 0.0
    elif given is not None:
        low = high = given
    else:
        room = max(c.room_bytes for c in mains)
        low, high = 0.0, min(context.share_for_idle(room, context.demand_on(main).kv_format) + HELD_TOLERANCE, 1.0)
    least = least_share(context, line, high, crossing)
    if least is None:
        search.stage_excuses.append(_line_excuse(context, line, high, crossing))
        return None
    return min(max(low, least), high), high


def _simple_bound(context: Context, node: Node, instances: int) -> float:
    """Bound without a program: prefill, line, and every output token at the cheapest rate any decode choice offers."""
    total = context.output_tokens_per_s
    pace, relay = node.pace, math.inf
    if node.relays:
        # a stay of t makes up to t / tau + 1 tokens, each of which may spare main decode more than one
        total -= min(context.rate * pace.relief, total)
        relay = pace.relay_usd_per_token_s / pace.relief
    offers = {o.key: o for o in (node.prefill.offer, *node.mains.offers, *node.relays.offers)}
    owned = sum(o.owned_chips * o.usd_per_hour for o in offers.values())
    own = instances * node.prefill.usd_per_hour
    rent = max(total * min(pace.main_usd_per_token_s, relay), pace.main_usd_per_hour) + own - owned
    bill = max(rent, 0.0) + fixed_usd_per_hour(context, node.prefill)
    sent = least_sent(context) if node.use_filter else 1.0
    crossing = context.demand.in_format(_crossing(context, node.prefill, node.mains))
    bytes_per_s = context.rate * crossing.mean_delta(node.q[1]) * sent
    return bill + line_usd_per_hour(context.scenario, node.line, bytes_per_s)


def _crossing(context: Context, prefill: PoolOption, mains: Choices) -> str:
    """KV format that crosses to main decode, whose options all hold the same."""
    return kv_between(prefill.offer, mains[0].option.offer, context.demand.kv_format)


def choices_of(search: Search, source: str, target: str, same: bool) -> tuple[tuple[Choices, Choices], ...]:
    """Main decodes and relays of a site pair in groups that hold one KV format each; without main decode, none.

    Where formats differ, plans without a relay are a group of their own: with one, prefill may have more to convert.
    """
    key = f"{source}>{target}"
    if key not in search.choices:
        context, shop = search.context, search.shop
        mains = tuple(o for o in shop.pools["main_decode"] if o.site.name == target)
        relays = () if same else tuple(o for o in shop.pools["relay_decode"] if o.site.name == source)
        beside = list(by_format(context, relays))
        if not beside or (len(context.kv_formats) > 1 and not any(o.pinned for o in relays)):
            beside.append(())
        made = (
            (
                decode_choices(context, own, context.pooled_slots, tangent=True, relayed=bool(others)),
                decode_choices(context, others, True, tangent=False),
            )
            for own in by_format(context, mains)
            for others in beside
        )
        search.choices[key] = tuple(group for group in made if group[0])
    return search.choices[key]


def _line_excuse(context: Context, line: LineChoice | None, share: float, kv_format: str) -> Excuse:
    """The line doesn't carry the least bytes this traffic can send."""
    assert line is not None
    load = context.rate * context.demand.in_format(kv_format).mean_delta(share) / line.capacity_bytes_per_s
    return Excuse("line_utilization", load, context.cap_line, "", "line")


def least_count(context: Context, option: PoolOption) -> int:
    """Fewest prefill instances whose utilisation, passes shared, is within its cap and below 1."""
    pool = option.pool(1)
    work = context.rate * context.demand.atoms.mean(context.prefill_times(pool).shared)
    need = work / (pool.prefill.servers_per_instance * min(context.cap("prefill"), 1.0))
    count = max(math.ceil(need * (1 - 1e-9)), option.min_instances, 1)
    stable = work / (pool.prefill.servers_per_instance * count) < 1.0
    return count if stable else count + 1


def sibling_of(context: Context, node: Node) -> tuple[Node, float] | None:
    """The same range with one more prefill instance, opened by the node that has neither been cut nor split."""
    if node.instances >= min(node.prefill.max_instances, IDLE_FACTOR * node.least + IDLE_EXTRA) or not node.whole:
        return None
    option = node.prefill
    free = option.offer.owned_chips > 0 or option.chips % option.offer.buy_in != 0
    bound = _simple_bound(context, node, node.least if free else node.instances + 1)
    return replace(node, instances=node.instances + 1), bound
