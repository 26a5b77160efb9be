"""Why this plan: what binds, what it rests on, what else was close, and one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.plan.kv_formats import format_notes
from pddplan.plan.network_words import network_words
from pddplan.plan.options import line_options
from pddplan.plan.records import Alternative, Architecture, Binding, CostSplit
from pddplan.plan.result import architecture_of
from pddplan.plan.state import Found, Search
from pddplan.serve.context import Context
from pddplan.serve.deployment import LineChoice, Network, Plan, Pool, with_line, with_pool
from pddplan.serve.evaluate import evaluate
from pddplan.serve.records import Evaluation, SloValue
from pddplan.serve.slo import constraint_name
from pddplan.spec.catalogue import chip_assumptions
from pddplan.spec.types import Assumption, Role, SloLimit, Source

Array = NDArray[np.float64]

MAX_ALTERNATIVES = 4
ROLE_WORDS = {
    "prefill": "prefill",
    "relay_decode": "relay decode",
    "main_decode": "main decode",
    "aggregated": "the aggregated pool",
}


def bindings(context: Context, deployment: Plan, evaluation: Evaluation) -> tuple[Binding, ...]:
    """For each pool and line: take one unit away; the row that then breaks is what binds it.

    Slack is the room that row has in this plan, relative to its limit; of a row of slots the room in load.
    """
    found: list[Binding] = []
    for pool in deployment.pools:
        found.append(_pool_binding(context, deployment, pool, evaluation))
    for line in deployment.lines:
        found.append(_line_binding(context, deployment, line, evaluation))
    return tuple(found)


def _pool_binding(context: Context, deployment: Plan, pool: Pool, evaluation: Evaluation) -> Binding:
    words = ROLE_WORDS[pool.role]
    if sum(other.role == pool.role for other in deployment.pools) > 1:
        words += f" on {pool.offer.chip.id} in {pool.site.name}"
    if pool.instances <= 1:
        if pool.role == "relay_decode":
            less = evaluate(context, with_pool(deployment, pool, None), detail=False)
            if not less.feasible:
                row = _worst(less.excuses)
                return Binding(f"{words}: without it {_phrase(row)}", _slack(evaluation, row), _fix(row, pool))
        alone = f"{words}: one instance, of {pool.chips} chip{'' if pool.chips == 1 else 's'}"
        return Binding(alone, 0.0, "A layout of fewer chips would cost less, if it holds.")
    fewer = replace(pool, instances=pool.instances - 1)
    less = evaluate(context, with_pool(deployment, pool, fewer), detail=False)
    if less.feasible:
        return Binding(f"{words}: pinned or in whole nodes", 0.0, "")
    row = _worst(less.excuses)
    return Binding(f"{words}: with one instance less {_phrase(row)}", _slack(evaluation, row), _fix(row, pool))


def _line_binding(context: Context, deployment: Plan, line: LineChoice, evaluation: Evaluation) -> Binding:
    smaller = [
        o
        for o in line_options(context.scenario)
        if o.link is line.link and o.from_site == line.from_site and o.gbit_per_s < line.gbit_per_s
    ]
    words = "line" if len(deployment.lines) == 1 else f"line {line.from_site} > {line.to_site}"
    if not smaller:
        return Binding(f"{words}: the smallest on offer", _line_slack(evaluation), "")
    next_down = max(smaller, key=lambda o: o.gbit_per_s)
    less = evaluate(context, with_line(deployment, line, next_down), detail=False)
    if less.feasible:
        return Binding(f"{words}: a smaller one holds but costs no less", _line_slack(evaluation), "")
    row = _worst(less.excuses)
    fix = "More streams a transfer, or a higher hit rate at main decode, would let a smaller line do."
    return Binding(f"{words}: at {next_down.gbit_per_s:g} Gbit/s {_phrase(row)}", _slack(evaluation, row), fix)


def _worst(excuses: Iterable[Excuse]) -> Excuse:
    return max(excuses, key=lambda e: e.ratio)


def _phrase(excuse: Excuse) -> str:
    """``ttft_p90 would be 9.1 s (limit 8 s)``; probabilities and loads in their own words."""
    if excuse.unit == "s":
        return f"{excuse.name} would be {excuse.value:.3g} s (limit {excuse.limit:.3g} s)"
    if excuse.constraint.endswith("_slots") and excuse.limit < 1:  # a share of requests, not a batch
        where = ROLE_WORDS[excuse.subject]
        held = f"{excuse.unit} sets them; limit {excuse.limit:.0%}"
        return f"{excuse.value:.0%} of requests would wait for a slot of {where} ({held})"
    if excuse.unit:
        return f"{excuse.constraint} would be {excuse.value:.3g} {excuse.unit} (limit {excuse.limit:.3g})"
    return f"{excuse.name} would be {excuse.value:.0%} (limit {excuse.limit:.0%})"


def _slack(evaluation: Evaluation, excuse: Excuse) -> float:
    value = _slo_of(evaluation.slo, excuse)
    if value is not None and value.limit_s:
        return max((value.limit_s - value.value_s) / value.limit_s, 0.0)
    if excuse.constraint.startswith("line"):
        return _line_slack(evaluation)
    role = next((r for r in evaluation.pools if excuse.constraint.startswith(r.split("_")[0])), None)
    if role is None:
        return 0.0
    load = evaluation.pools[role]
    room = load.slot_room if excuse.constraint.endswith("_slots") else 1.0 - load.busy_share
    return max(room or 0.0, 0.0)


def _line_slack(evaluation: Evaluation) -> float:
    return max(1.0 - evaluation.line.utilization, 0.0) if evaluation.line is not None else 0.0


def _slo_of(values: tuple[SloValue, ...], excuse: Excuse) -> SloValue | None:
    for value in values:
        if value.limit_s is None or value.workload != excuse.workload:
            continue
        if constraint_name(SloLimit(value.metric, value.quantile, value.limit_s)) == excuse.constraint:
            return value
    return None


def _fix(excuse: Excuse, pool: Pool) -> str:
    if excuse.unit == "s":
        return f"A looser {excuse.name}, or a quicker chip than {pool.offer.chip.id}."
    if "utilization" in excuse.constraint:
        return f"Faster {pool.offer.chip.id} instances, a higher hit rate or fewer requests."
    if excuse.unit == "tpot":
        return "A looser TPOT limit lets an instance run a larger batch."
    if excuse.unit == "kv_memory":
        return "More memory per chip or a smaller KV format."
    return ""


def alternatives(search: Search, best: Found) -> tuple[Alternative, ...]:
    """Feasible plans of another kind that the search met: the cheapest per architecture, chips and line."""
    found: dict[tuple[object, ...], Found] = {}
    for plan in search.feasible:
        key = _kind(plan)
        if key != _kind(best) and (key not in found or plan.usd_per_hour < found[key].usd_per_hour):
            found[key] = plan
    # a plan that buys more of the same for no more money (whole nodes) is no alternative
    found = {key: plan for key, plan in found.items() if not _only_larger(plan, best)}
    ranked = sorted(found.values(), key=lambda f: (f.usd_per_hour, str(_kind(f))))[:MAX_ALTERNATIVES]
    return tuple(
        Alternative(
            plan.usd_per_hour,
            architecture_of(plan.deployment, plan.evaluation),
            differs_in_chips(plan.deployment, best.deployment),
        )
        for plan in ranked
    )


def _only_larger(plan: Found, best: Found) -> bool:
    mine = {(p.role, p.offer.key): p.chips for p in plan.deployment.pools}
    theirs = {(p.role, p.offer.key): p.chips for p in best.deployment.pools}
    if mine.keys() != theirs.keys() or plan.deployment.lines != best.deployment.lines:
        return False
    return all(chips >= theirs[key] for key, chips in mine.items())


def _kind(plan: Found) -> tuple[object, ...]:
    pools = tuple((p.role, p.site.name, p.offer.chip.id, p.chips) for p in plan.deployment.pools)
    return (pools, tuple(line.gbit_per_s for line in plan.deployment.lines))


def differs_in_chips(plan: Plan, best: Plan) -> str:
    """``prefill 32 a + 16 b, line 10 Gbit/s``: the roles and lines in which a plan isn't the best one."""
    mine, theirs = _chips_by_role(plan), _chips_by_role(best)
    words = [f"{ROLE_WORDS[role]} {chips}" for role, chips in mine.items() if chips != theirs.get(role)]
    words += [f"no {ROLE_WORDS[role]}" for role in theirs if role not in mine]
    a, b = ([line.gbit_per_s for line in p.lines] for p in (plan, best))
    if a != b:
        words.append(f"line {' + '.join(f'{rate:g}' for rate in a)} Gbit/s" if a else "no line")
    return ", ".join(words) or "layout"


def _chips_by_role(plan: Plan) -> dict[Role, str]:
    found: dict[Role, list[str]] = {}
    for pool in plan.pools:
        found.setdefault(pool.role, []).append(f"{pool.chips} {pool.offer.chip.id}")
    return {role: " + ".join(parts) for role, parts in found.items()}


def assumptions(context: Context, deployment: Plan) -> tuple[Assumption, ...]:
    """The scenario's defaults, the chips' estimates and what the model itself assumes."""
    found = list(context.scenario.assumptions)
    for pool in deployment.pools:
        found += [a for a in chip_assumptions(pool.offer.chip) if a not in found]
        curves = getattr(getattr(pool.service, "instance", None), "curves", None)
        if curves is not None:
            source: Source = "fitted" if curves.confidence == "fitted" else "estimate"
            entry = Assumption(
                f"efficiency.{pool.offer.chip.id}", curves.id, source, f"typical error of an op {curves.band:.0%}"
            )
            found += [entry] if entry not in found else []
    found += format_notes(context, deployment)
    atoms = context.demand.atoms
    uncached = _quantiles(atoms.uncached, atoms.weight)
    found.append(
        Assumption(
            "uncached_tokens.p50_p90_p99",
            " / ".join(f"{v:,.0f}" for v in uncached),
            "estimate",
            "follow from prompt_tokens and prefix_hit_rate; length and hit are taken as independent",
        )
    )
    found.append(Assumption("kv_transfer.nic_goodput", context.nic_goodput, "catalogue", "share of the NIC rate"))
    return tuple(found)


def _quantiles(values: Array, weights: Array) -> list[float]:
    order = np.argsort(values)
    at = np.cumsum(weights[order])
    return [float(values[order][min(int(np.searchsorted(at, q)), values.size - 1)]) for q in (0.5, 0.9, 0.99)]


def recommendation(
    context: Context, deployment: Plan, evaluation: Evaluation, cost: CostSplit, architecture: Architecture
) -> str:
    """One sentence: what to do, what the line is of it, which first-token quantile is closest to its limit."""
    closest = _closest(evaluation.slo)
    tail = ""
    if closest is not None and closest.limit_s is not None:
        name = f"{closest.metric.upper()} p{closest.quantile * 100:g}"
        name += f" of {closest.workload}" if closest.workload is not None else ""
        unit = (1000.0, "ms") if closest.limit_s < 1 else (1.0, "s")
        tail = (
            f"; {name} {closest.value_s * unit[0]:.3g} {unit[1]}, limit {closest.limit_s * unit[0]:.3g}"
            f" ({closest.stage.replace('_', ' ')})"
        )
    if isinstance(deployment, Network):
        return f"{network_words(context, deployment, evaluation)}{tail}."
    if architecture == "aggregated":
        return f"Don't split: one pool serves prefill and decode together at the least cost{tail}."
    if architecture == "pd_one_site":
        return f"Stay in one site, with prefill and decode in separate pools{tail}."
    share = f"the line is {cost.link_share:.1%} of the cost"
    routing = evaluation.routing
    if architecture in ("pdd", "pdd_filter"):
        moved = f"relay {routing.relay_share:.0%} of the requests ({routing.relay_token_share:.1%} of the tokens)"
        return f"Split over two sites and {moved}; {share}{tail}."
    return f"Split over two sites, without a relay; {share}{tail}."


def _closest(values: tuple[SloValue, ...]) -> SloValue | None:
    limited = [v for v in values if v.limit_s]
    return max(limited, key=lambda v: v.value_s / (v.limit_s or 1.0), default=None)
