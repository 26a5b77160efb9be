"""JSON Schemas of what the commands print with ``--json``; ``pddplan schema --of NAME`` prints them."""

from __future__ import annotations

from pddplan.report.json_schema import (
    COUNT,
    FLAG,
    MAYBE_COUNT,
    MAYBE_NUMBER,
    MAYBE_SHARE,
    MAYBE_TEXT,
    NUMBER,
    SHARE,
    TEXT,
    Schema,
    document,
    numbers_by_name,
    one_of,
    record,
    rows,
)
from pddplan.report.simulation_json import VERIFICATION

ARCHITECTURES = ("pdd", "pdd_filter", "pd_cross_site", "pd_cross_site_drc", "pd_one_site", "aggregated")

_SLO = rows(
    record(
        {
            "metric": one_of("ttft", "tpot", "pause", "e2e"),
            "quantile": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "value": MAYBE_NUMBER,
            "limit": MAYBE_NUMBER,
            "unit": {"const": "s"},
            "met": FLAG,
            "stage": TEXT,
        },
        optional={"workload": TEXT},  # with several workloads: whose requests
    )
)
_BINDING = record({"constraint": TEXT, "slack": MAYBE_NUMBER, "fix": TEXT})
_REASONS = rows(
    record(
        {"constraint": TEXT, "subject": TEXT, "value": MAYBE_NUMBER, "limit": MAYBE_NUMBER, "unit": TEXT},
        optional={"workload": TEXT},
    )
)
_FIXES = rows(record({"what": TEXT, "overrides": rows(TEXT), "usd_per_hour": MAYBE_NUMBER}))
_PROBLEM = record({"file": MAYBE_TEXT, "line": MAYBE_COUNT, "key": MAYBE_TEXT, "message": TEXT, "fix": MAYBE_TEXT})

# of the cache that a pool holds and a line carries, where it isn't the scenario's precision.kv_cache
_KV_FORMAT: dict[str, Schema] = {"kv_format": one_of("bf16", "fp8")}
_ROLE = record(
    {
        "role": one_of("prefill", "relay_decode", "main_decode", "aggregated"),
        "site": TEXT,
        "chip": TEXT,
        "instances": COUNT,
        "chips_per_instance": COUNT,
        "chips": COUNT,
        "parallelism": record({"tp": COUNT, "pp": COUNT, "dp": COUNT, "ep": COUNT}),
        "batch": MAYBE_COUNT,
        "usd_per_hour": NUMBER,
        "utilization": record(
            {
                "compute": MAYBE_SHARE,
                "memory_capacity": MAYBE_SHARE,
                "memory_bandwidth": MAYBE_SHARE,
                "interconnect": MAYBE_SHARE,
            }
        ),
    },
    # where several pools share a role: which of the requests each gets; to null: no upper end. offer: beyond the first
    # of the chip at the site
    optional={
        **_KV_FORMAT,
        "offer": COUNT,
        "request_share": MAYBE_SHARE,
        "uncached_tokens": record({"from": NUMBER, "to": MAYBE_NUMBER}),
    },
)
_LINK = record(
    {
        "from": TEXT,
        "to": TEXT,
        "lines": COUNT,
        "gbit_per_s": NUMBER,
        "needed_gbit_per_s": NUMBER,
        "utilization": MAYBE_SHARE,
        "usd_per_hour": NUMBER,
        "usd_per_hour_traffic": NUMBER,
    },
    optional={**_KV_FORMAT, "tier": COUNT},  # of the link's, where several are as fast
)
# with several ways: places in roles and links, and the share of the requests between two quantiles of uncached tokens
_ROUTES = rows(
    record(
        {"from": SHARE, "to": SHARE, "share": SHARE},
        optional={
            "prefill": COUNT,
            "relay_decode": COUNT,
            "main_decode": COUNT,
            "aggregated": COUNT,
            "link": COUNT,
        },
    )
)
_ROUTING = record(
    {
        "direct_share": MAYBE_SHARE,
        "relay_share": MAYBE_SHARE,
        "filtered_share": MAYBE_SHARE,
        "relay_token_share": MAYBE_SHARE,
        "threshold_s": MAYBE_NUMBER,  # relay iff the predicted exposed transfer is longer; null: never
        "stay_s": MAYBE_NUMBER,  # least stay on the relay, 0 none; null: to the last token
    },
    nullable=True,
)
_COST = record(
    {
        "usd_per_hour": NUMBER,
        "other_usd_per_hour": NUMBER,
        "link_share": MAYBE_SHARE,
        "usd_per_million_tokens": record(
            {"input": MAYBE_NUMBER, "cached_input": MAYBE_NUMBER, "output": MAYBE_NUMBER, "blended": MAYBE_NUMBER}
        ),
        "tokens_per_hour": numbers_by_name(nullable=True),
    },
    nullable=True,
)
_REVENUE = record(
    {
        "usd_per_hour": NUMBER,
        "input_usd_per_hour": NUMBER,
        "cached_input_usd_per_hour": NUMBER,
        "output_usd_per_hour": NUMBER,
        "margin_usd_per_hour": NUMBER,
    },
    nullable=True,
)
_OBJECTIVE = record(
    {
        "name": one_of("cost", "goodput", "profit"),
        "value": MAYBE_NUMBER,
        "unit": TEXT,
        "bound": MAYBE_NUMBER,
        "gap": MAYBE_NUMBER,
    }
)
_ASSUMPTION = record(
    {
        "name": TEXT,
        "value": {"type": ["number", "string", "null"]},
        "source": one_of("input", "catalogue", "fitted", "default", "estimate"),
    }
)
_ALTERNATIVE = record(
    {"usd_per_hour": NUMBER, "architecture": one_of(*ARCHITECTURES), "differs": TEXT},
    # with --top; proven: none of its kind costs 0.1 % less
    optional={"proven": FLAG, "roles": rows(_ROLE, at_least=1), "links": rows(_LINK)},
)
# with --top: complete, if no other kind has a plan below the dearest alternative (below 1 + within, if they are fewer)
_RUNNER_UPS = record({"asked": COUNT, "within": SHARE, "complete": FLAG})

PLAN: Schema = document(
    "pddplan.plan/1",
    "Answer of pddplan solve --json",
    {
        "version": TEXT,
        "scenario_sha256": TEXT,
        "catalogue_date": TEXT,
        "seed": {"type": "integer"},
        "timing_s": record({"load": NUMBER, "solve": NUMBER, "evaluate": NUMBER}),
        "status": one_of("feasible", "infeasible", "unknown"),
        "architecture": one_of(*ARCHITECTURES, None),
        "objective": _OBJECTIVE,
        "roles": rows(_ROLE),
        "links": rows(_LINK),
        "ratio": record({"prefill": MAYBE_NUMBER, "relay_decode": MAYBE_NUMBER, "main_decode": MAYBE_NUMBER}),
        "ratio_instances": record({"prefill": COUNT, "relay_decode": COUNT, "main_decode": COUNT}),
        "routing": _ROUTING,
        "decode_hit_rate": MAYBE_SHARE,
        "loop_gain": MAYBE_NUMBER,
        "slo": _SLO,
        "goodput_rps": MAYBE_NUMBER,
        "within_slo_rps": MAYBE_NUMBER,
        "headroom_rps": MAYBE_NUMBER,
        "cost": _COST,
        "revenue": _REVENUE,
        "binding": rows(_BINDING),
        "alternatives": rows(_ALTERNATIVE),
        "reasons": _REASONS,
        "fixes": _FIXES,
        "assumptions": rows(_ASSUMPTION),
    },
    # demand_rps: of which goodput_rps is served, for the profit
    optional={"runner_ups": _RUNNER_UPS, "demand_rps": NUMBER, "routes": _ROUTES, "verification": VERIFICATION},
)
# A feasible plan is whole: it has roles, a cost, and something that binds.
PLAN["if"] = {"properties": {"status": {"const": "feasible"}}}
PLAN["then"] = {
    "properties": {
        "architecture": one_of(*ARCHITECTURES),
        "roles": {"minItems": 1},
        "binding": {"minItems": 1},
        "cost": {"type": "object"},
        "routing": {"type": "object"},
    }
}

CHECK: Schema = document(
    "pddplan.check/1",
    "Answer of pddplan check --json",
    {
        "scenarios": rows(
            record(
                {
                    "path": TEXT,
                    "status": one_of("feasible", "infeasible", "unknown", "error"),
                    "usd_per_hour": MAYBE_NUMBER,
                    "slo": _SLO,
                    "binding": rows(_BINDING),
                    "reasons": _REASONS,
                    "fixes": _FIXES,
                    "problems": rows(_PROBLEM),
                }
            )
        )
    },
)

ERROR: Schema = document("pddplan.error/1", "Bad input, on stderr with --json", {"errors": rows(_PROBLEM, at_least=1)})

INIT: Schema = document("pddplan.init/1", "Answer of pddplan init --json", {"file": TEXT})
