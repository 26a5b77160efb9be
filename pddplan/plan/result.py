"""From a found deployment to the typed answer: roles, links, cost, revenue, quantiles, headroom."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pddplan.economics.cost import Bill, bill
from pddplan.economics.revenue import revenue_usd_per_hour
from pddplan.economics.split import Split, split_cost
from pddplan.perf.utilization import Utilization
from pddplan.plan.kv_formats import line_format, other_format
from pddplan.plan.network_words import edge_tokens
from pddplan.plan.records import Architecture, CostSplit, LinkPlan, Revenue, RolePlan
from pddplan.serve.context import Context
from pddplan.serve.conversion import held_format
from pddplan.serve.deployment import LineChoice, Network, Plan, Pool, band_of, share_of
from pddplan.serve.evaluate import evaluate
from pddplan.serve.records import Evaluation, Routing
from pddplan.units import GBIT_PER_S_IN_BYTES_PER_S

MOST_PARTS_FIRST: tuple[Architecture, ...] = (
    "pdd_filter",
    "pdd",
    "pd_cross_site_drc",
    "pd_cross_site",
    "pd_one_site",
    "aggregated",
)
UNKNOWN = Utilization(math.nan, math.nan, math.nan, math.nan)
HEADROOM_STEPS = 9  # bisection of the rate, at most
HEADROOM_TOLERANCE = 0.005
MOST_HEADROOM = 16.0  # times the planned rate


def architecture_of(deployment: Plan, evaluation: Evaluation) -> Architecture:
    """Name of what stands there; of several ways beside each other, the one with most parts."""
    if isinstance(deployment, Network):
        names = {architecture_of(route.way, evaluation) for route in deployment.routes}
        return min(names, key=MOST_PARTS_FIRST.index)
    if deployment.aggregated is not None:
        return "aggregated"
    if deployment.line is None:
        return "pd_one_site"
    if deployment.relay is not None:
        return "pdd_filter" if evaluation.routing.filtered_share > 0 else "pdd"
    return "pd_cross_site_drc" if deployment.decode_cache else "pd_cross_site"


def role_plans(context: Context, deployment: Plan, evaluation: Evaluation, costs: Bill) -> tuple[RolePlan, ...]:
    """One entry per pool."""
    found = []
    for pool, load, usd in zip(deployment.pools, evaluation.loads, costs.pools, strict=True):
        parallelism, batch = pool.service.parallelism, load.mean_batch
        found.append(
            RolePlan(
                role=pool.role,
                site=pool.site.name,
                chip=pool.offer.chip.id,
                instances=pool.instances,
                chips_per_instance=pool.service.chips_per_instance,
                tp=parallelism.tp,
                pp=parallelism.pp,
                dp=parallelism.dp,
                ep=parallelism.ep,
                batch=max(round(batch), 1) if math.isfinite(batch) else 0,
                usd_per_hour=usd,
                utilization=load.utilization or UNKNOWN,
                busy_share=load.busy_share,
                request_share=share_of(deployment, pool),
                uncached_tokens=_uncached(context, deployment, pool),
                kv_format=other_format(context, held_format(context.demand, pool)),
                offer=_offer(pool),
            )
        )
    return tuple(found)


def _offer(pool: Pool) -> int:
    """Which of the site's offers of its chip a pool is on."""
    keys = [offer.key for offer in pool.site.offers if offer.chip.id == pool.offer.chip.id]
    return keys.index(pool.offer.key) if pool.offer.key in keys else 0


def _tier(line: LineChoice) -> int | None:
    """A line's tier where its rate alone doesn't tell."""
    each = line.link.tiers[line.tier].gbit_per_s
    return line.tier if sum(tier.gbit_per_s == each for tier in line.link.tiers) > 1 else None


def _uncached(context: Context, plan: Plan, pool: Pool) -> tuple[float, float]:
    """Uncached tokens between which the requests of a prefill pool lie, 0 to inf for all."""
    low, high = band_of(plan, pool) if pool.role == "prefill" else (0.0, 1.0)
    return (
        edge_tokens(context, low) if low > 0.0 else 0.0,
        edge_tokens(context, high) if high < 1.0 else math.inf,
    )


def link_plans(context: Context, deployment: Plan, evaluation: Evaluation, costs: Bill) -> tuple[LinkPlan, ...]:
    """The lines that are bought."""
    return tuple(
        LinkPlan(
            from_site=line.from_site,
            to_site=line.to_site,
            lines=line.lines,
            gbit_per_s=line.gbit_per_s,
            needed_gbit_per_s=load.needed_bytes_per_s / GBIT_PER_S_IN_BYTES_PER_S,
            utilization=load.utilization,
            usd_per_hour=ports + traffic,
            usd_per_hour_traffic=traffic,
            kv_format=other_format(context, line_format(context, deployment, line)),
            tier=_tier(line),
        )
        for line, load, (ports, traffic) in zip(deployment.lines, evaluation.lines, costs.lines, strict=True)
    )


def cost_of(context: Context, deployment: Plan, evaluation: Evaluation) -> tuple[Bill, CostSplit, Split]:
    """Bill and split of a plan."""
    costs = bill(context.scenario, deployment, evaluation.line_bytes_per_s)
    split = split_cost(context, deployment, evaluation, costs)
    links = costs.line_ports + costs.line_traffic
    total = costs.usd_per_hour
    tokens = sum(split.tokens_per_hour.values())
    return (
        costs,
        CostSplit(
            usd_per_hour=total,
            roles_usd_per_hour=sum(costs.pools),
            links_usd_per_hour=links,
            other_usd_per_hour=sum(costs.other.values()),
            link_share=links / total if total > 0 else 0.0,
            input_usd_per_mtok=split.usd_per_mtok("input"),
            cached_input_usd_per_mtok=split.usd_per_mtok("cached_input"),
            output_usd_per_mtok=split.usd_per_mtok("output"),
            blended_usd_per_mtok=total / tokens * 1e6 if tokens > 0 else 0.0,
            tokens_per_hour=split.tokens_per_hour,
            other_items={name: value for name, value in costs.other.items() if value > 0},
        ),
        split,
    )


def revenue_of(context: Context, tokens_per_hour: Mapping[str, float], usd_per_hour: float) -> Revenue | None:
    """Revenue at the scenario's prices, None without them."""
    prices = context.scenario.prices
    if prices is None:
        return None
    earned = revenue_usd_per_hour(prices, tokens_per_hour)
    total = sum(earned.values())
    return Revenue(total, earned["input"], earned["cached_input"], earned["output"], total - usd_per_hour)


def headroom_rps(context: Context, deployment: Plan, routing: Routing | None = None) -> float:
    """Rate at which this very plan breaks one of its rows, by bisection; at most 16 times the planned one [1/s].

    ``routing``: with the rule for the relay as it is; without, with the best rule for each rate.
    """

    def holds(rate: float) -> bool:
        return evaluate(context, deployment, rate, detail=False, routing=routing).feasible

    low, high = context.rate, context.rate * 1.25
    while holds(high):
        low, high = high, high * 1.5
        if high > context.rate * MOST_HEADROOM:
            return low
    for _ in range(HEADROOM_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
        if high - low < HEADROOM_TOLERANCE * low:
            break
    return low
