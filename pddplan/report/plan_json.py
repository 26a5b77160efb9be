"""A plan as ``pddplan.plan/1``: keys are a contract; more may be added, none renamed.

Shares are fractions, times are seconds, and what isn't known or isn't finite is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pddplan
from pddplan.errors import Excuse
from pddplan.perf.utilization import Utilization
from pddplan.plan.records import (
    Alternative,
    Binding,
    CostSplit,
    Fix,
    LinkPlan,
    PlanResult,
    Revenue,
    RolePlan,
    RunnerUps,
    Solved,
)
from pddplan.serve.deployment import Network
from pddplan.serve.records import Evaluation, SloValue

RATIO_OF = ("prefill", "relay_decode", "main_decode")


def finite(value: float | None) -> float | None:
    """``value``, or null where it is missing, NaN or infinite; integers stay integers."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(value)


def plan_payload(result: PlanResult) -> dict[str, Any]:
    evaluation = result.evaluation
    return {
        "schema": "pddplan.plan/1",
        "version": pddplan.__version__,
        "scenario": result.scenario_name,
        "scenario_sha256": result.scenario_sha256,
        "catalogue_date": result.catalogue_date,
        "seed": result.seed,
        "timing_s": {name: finite(result.timing_s.get(name, 0.0)) for name in ("load", "solve", "evaluate")},
        "status": result.status,
        "architecture": result.architecture,
        "objective": {
            "name": result.objective,
            "value": finite(result.value),
            "unit": result.unit,
            "bound": finite(result.bound),
            "gap": finite(result.gap),
        },
        "recommendation": result.recommendation,
        "roles": [role_payload(role) for role in result.roles],
        "links": [link_payload(link) for link in result.links],
        **routes_payload(result.solved),
        "ratio": chip_ratio(result.roles),
        "ratio_instances": instance_counts(result.roles),
        "routing": routing_payload(evaluation),
        "prefill_hit_rate": finite(evaluation.prefill_hit_rate) if evaluation else None,
        "decode_hit_rate": finite(evaluation.decode_hit_rate) if evaluation else None,
        "loop_gain": finite(evaluation.loop_gain) if evaluation else None,
        "slo": [slo_payload(value) for value in evaluation.slo] if evaluation else [],
        "goodput_rps": finite(result.goodput_rps),
        "within_slo_rps": finite(result.within_slo_rps),
        "headroom_rps": finite(result.headroom_rps),
        "bcr": finite(result.bcr),
        "cost": cost_payload(result.cost),
        "revenue": revenue_payload(result.revenue),
        "binding": binding_payload(result),
        "alternatives": [alternative_payload(a) for a in result.alternatives],
        **({} if result.demand_rps is None else {"demand_rps": finite(result.demand_rps)}),
        **runner_ups_payload(result.runner_ups),
        "reasons": [excuse_payload(excuse) for excuse in result.excuses],
        "fixes": [fix_payload(fix) for fix in result.fixes],
        "assumptions": [
            {"name": a.name, "value": plain(a.value), "source": a.source, "note": a.note} for a in result.assumptions
        ],
        "warnings": list(result.warnings),
    }


def alternative_payload(other: Alternative) -> dict[str, Any]:
    """A plan beside the best; what it is made of only where it was asked for (``--top``)."""
    payload: dict[str, Any] = {
        "usd_per_hour": finite(other.usd_per_hour),
        "architecture": other.architecture,
        "differs": other.differs,
    }
    if other.proven is not None:
        payload["proven"] = other.proven
        payload["roles"] = [role_payload(role) for role in other.roles]
        payload["links"] = [link_payload(link) for link in other.links]
    return payload


def runner_ups_payload(asked: RunnerUps | None) -> dict[str, Any]:
    """How the alternatives were searched for; nothing without ``--top``."""
    if asked is None:
        return {}
    return {"runner_ups": {"asked": asked.asked, "within": asked.within, "complete": asked.complete}}


def plain(value: float | str) -> float | str | None:
    return value if isinstance(value, str) else finite(value)


def role_payload(role: RolePlan) -> dict[str, Any]:
    return {
        "role": role.role,
        "site": role.site,
        "chip": role.chip,
        "instances": role.instances,
        "chips_per_instance": role.chips_per_instance,
        "chips": role.chips,
        "parallelism": {"tp": role.tp, "pp": role.pp, "dp": role.dp, "ep": role.ep},
        "batch": role.batch or None,
        "usd_per_hour": finite(role.usd_per_hour),
        "utilization": utilization_payload(role.utilization),
        **_part_of_the_load(role),
        **format_payload(role.kv_format),
        **({"offer": role.offer} if role.offer else {}),
    }


def _part_of_the_load(role: RolePlan) -> dict[str, Any]:
    """Which requests a pool gets, where several pools share a role."""
    if role.request_share >= 1.0:
        return {}
    payload: dict[str, Any] = {"request_share": finite(role.request_share)}
    if role.uncached_tokens != (0.0, math.inf):
        low, high = role.uncached_tokens
        payload["uncached_tokens"] = {"from": finite(low), "to": finite(high)}
    return payload


def format_payload(kv_format: str) -> dict[str, str]:
    """A KV format that isn't the scenario's; nothing where it is."""
    return {"kv_format": kv_format} if kv_format else {}


def utilization_payload(utilization: Utilization) -> dict[str, float | None]:
    return {
        "compute": finite(utilization.compute),
        "memory_capacity": finite(utilization.memory_capacity),
        "memory_bandwidth": finite(utilization.memory_bandwidth),
        "interconnect": finite(utilization.interconnect),
    }


def link_payload(link: LinkPlan) -> dict[str, Any]:
    return {
        "from": link.from_site,
        "to": link.to_site,
        "lines": link.lines,
        "gbit_per_s": finite(link.gbit_per_s),
        "needed_gbit_per_s": finite(link.needed_gbit_per_s),
        "utilization": finite(link.utilization),
        "usd_per_hour": finite(link.usd_per_hour),
        "usd_per_hour_traffic": finite(link.usd_per_hour_traffic),
        **format_payload(link.kv_format),
        **({} if link.tier is None else {"tier": link.tier}),
    }


def routes_payload(solved: Solved | None) -> dict[str, Any]:
    """Of a plan with several ways: which pools and line (by their places in ``roles`` and ``links``) take which share
    of the requests from one quantile of their uncached tokens to another. Nothing where there is one way."""
    if solved is None or not isinstance(solved.deployment, Network):
        return {}
    network = solved.deployment
    places = {id(part): n for parts in (network.pools, network.lines) for n, part in enumerate(parts)}
    rows = []
    for route in network.routes:
        row: dict[str, Any] = {pool.role: places[id(pool)] for pool in route.way.pools}
        if route.way.line is not None:
            row["link"] = places[id(route.way.line)]
        low, high = route.band
        rows.append({**row, "from": finite(low), "to": finite(high), "share": finite(route.share)})
    return {"routes": rows}


def instance_counts(roles: tuple[RolePlan, ...]) -> dict[str, int]:
    """Instances per role, summed over sites and chips; ``aggregated`` only where the plan has it."""
    counts = {name: sum(r.instances for r in roles if r.role == name) for name in RATIO_OF}
    aggregated = sum(r.instances for r in roles if r.role == "aggregated")
    return {**counts, "aggregated": aggregated} if aggregated else counts


def chip_ratio(roles: tuple[RolePlan, ...]) -> dict[str, float | None]:
    """Chips per role over the chips of main decode (of aggregated serving, where there is no main decode)."""
    chips = {name: sum(r.chips for r in roles if r.role == name) for name in (*RATIO_OF, "aggregated")}
    base = chips["main_decode"] or chips["aggregated"]
    ratio: dict[str, float | None] = {name: chips[name] / base if base else None for name in RATIO_OF}
    if chips["aggregated"]:
        ratio["aggregated"] = chips["aggregated"] / base
    return ratio


def routing_payload(evaluation: Evaluation | None) -> dict[str, float | None] | None:
    if evaluation is None:
        return None
    routing = evaluation.routing
    return {
        "direct_share": finite(routing.direct_share),
        "relay_share": finite(routing.relay_share),
        "filtered_share": finite(routing.filtered_share),
        "relay_token_share": finite(routing.relay_token_share),
        "threshold_s": finite(routing.threshold_s),
        "stay_s": finite(routing.stay_s),
    }


def slo_payload(value: SloValue) -> dict[str, Any]:
    return {
        "metric": value.metric,
        "quantile": value.quantile,
        "value": finite(value.value_s),
        "limit": finite(value.limit_s),
        "unit": "s",
        "met": value.met if math.isfinite(value.value_s) else value.limit_s is None,
        "stage": value.stage,
        **_workload(value.workload),
    }


def _workload(name: str | None) -> dict[str, str]:
    """Whose requests a row is about; left out where there is one workload."""
    return {} if name is None else {"workload": name}


def cost_payload(cost: CostSplit | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    return {
        "usd_per_hour": finite(cost.usd_per_hour),
        "roles_usd_per_hour": finite(cost.roles_usd_per_hour),
        "links_usd_per_hour": finite(cost.links_usd_per_hour),
        "other_usd_per_hour": finite(cost.other_usd_per_hour),
        "other_items": finite_map(cost.other_items),
        "link_share": finite(cost.link_share),
        "usd_per_million_tokens": {
            "input": finite(cost.input_usd_per_mtok),
            "cached_input": finite(cost.cached_input_usd_per_mtok),
            "output": finite(cost.output_usd_per_mtok),
            "blended": finite(cost.blended_usd_per_mtok),
        },
        "tokens_per_hour": finite_map(cost.tokens_per_hour),
    }


def finite_map(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite(value) for name, value in values.items()}


def revenue_payload(revenue: Revenue | None) -> dict[str, float | None] | None:
    if revenue is None:
        return None
    return {
        "usd_per_hour": finite(revenue.usd_per_hour),
        "input_usd_per_hour": finite(revenue.input_usd_per_hour),
        "cached_input_usd_per_hour": finite(revenue.cached_input_usd_per_hour),
        "output_usd_per_hour": finite(revenue.output_usd_per_hour),
        "margin_usd_per_hour": finite(revenue.margin_usd_per_hour),
    }


def binding_payload(result: PlanResult) -> list[dict[str, Any]]:
    """What binds; of an infeasible scenario the limits that had to give, with the nearest fix."""
    rows = result.binding or tuple(
        Binding(excuse.name, relative_slack(excuse), result.fixes[0].what if result.fixes else "")
        for excuse in result.excuses
    )
    return [{"constraint": b.constraint, "slack": finite(b.slack), "fix": b.fix} for b in rows]


def relative_slack(excuse: Excuse) -> float:
    """How far beyond its limit a value is, as a negative fraction of the limit."""
    return -abs(excuse.value - excuse.limit) / abs(excuse.limit) if excuse.limit else -math.inf


def excuse_payload(excuse: Excuse) -> dict[str, Any]:
    return {
        "constraint": excuse.constraint,
        "subject": excuse.subject,
        "value": finite(excuse.value),
        "limit": finite(excuse.limit),
        "unit": excuse.unit,
        **_workload(excuse.workload),
    }


def fix_payload(fix: Fix) -> dict[str, Any]:
    return {"what": fix.what, "overrides": list(fix.overrides), "usd_per_hour": finite(fix.usd_per_hour)}
