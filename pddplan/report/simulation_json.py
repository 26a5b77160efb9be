"""``simulate --json``: quantiles of formula and simulation, shares, pools, the run over time; drills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pddplan
from pddplan.plan.drills import Drill
from pddplan.plan.records import PlanResult
from pddplan.plan.stability import Stability
from pddplan.report.json_schema import (
    COUNT,
    FLAG,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    Schema,
    document,
    one_of,
    record,
    rows,
)
from pddplan.report.plan_json import finite
from pddplan.simulate.records import Growth, Series, Share, Simulated, Simulation

SERIES = (
    "times_s",
    "prefill_waiting",
    "prefill_busy",
    "line_flows",
    "line_load",
    "relay_requests",
    "main_requests",
    "main_waiting",
    "idle_bytes",
    "ttft_s",
    "late_share",
)


def simulation_payload(
    found: Simulation,
    scenario: str,
    sha256: str,
    plan: Sequence[dict[str, Any]],
    drills: Sequence[Drill] = (),
    result: PlanResult | None = None,
    warnings: Sequence[str] = (),
    stability: Stability | None = None,
) -> dict[str, Any]:
    """The object of the contract in 4-experience.md; ``plan``: role, site, chip and instances of each pool;
    ``result``: of ``solve``, None where the plan was given."""
    cost = result.cost if result is not None else None
    known = math.isfinite(found.throughput_rps)  # else a service or step time isn't, and no other time
    return {
        "schema": "pddplan.simulation/1",
        "version": pddplan.__version__,
        "scenario": scenario,
        "scenario_sha256": sha256,
        "plan": list(plan),
        "architecture": result.architecture if result is not None else None,
        "usd_per_hour": finite(cost.usd_per_hour) if cost is not None else None,
        "requests": found.requests,
        "seed": found.seed,
        "simulated_s": finite(found.simulated_s),
        "warmup_s": finite(found.warmup_s),
        "warmup_requests": found.warmup_requests,
        "throughput_rps": finite(found.throughput_rps),
        "littles_law_error": finite(found.littles_law_error),
        "line_bytes_error": finite(found.line_bytes_error),
        "holds": known and found.growth is None and all(row.met for row in found.quantiles),
        "quantiles": [quantile_payload(row) for row in found.quantiles if known],
        "growth": _growth(found.growth),
        "shares": [_share(share, found.growth is not None) for share in found.shares],
        "pools": [
            {
                "role": pool.role,
                "instances": pool.instances,
                "busy_share": finite(pool.busy_share),
                "mean_batch": finite(pool.mean_batch),
                "waiting_share": finite(pool.waiting_share),
            }
            for pool in found.pools
        ],
        "series": _series(found.series),
        "drills": [_drill(drill) for drill in drills],
        "stability": None if stability is None else _stability(stability),
        "notes": list(found.notes),
        "warnings": list(warnings),
    }


def quantile_payload(row: Simulated) -> dict[str, Any]:
    return {
        "metric": row.metric,
        "quantile": row.quantile,
        "stage": row.stage,
        "analytic": finite(row.analytic_s),
        "simulated": finite(row.simulated.value),
        "low": finite(row.simulated.low),
        "high": finite(row.simulated.high),
        "workload": row.workload,
        "limit": finite(row.limit_s),
        "met": row.met,
    }


def _share(share: Share, overloaded: bool) -> dict[str, Any]:
    """A time has no value where there is no steady state."""
    known = not (overloaded and share.name.endswith("_s"))
    return {
        "name": share.name,
        "analytic": finite(share.analytic) if known else None,
        "simulated": finite(share.simulated) if known else None,
    }


def _growth(growth: Growth | None) -> dict[str, Any] | None:
    if growth is None:
        return None
    return {
        "requests_per_s": finite(growth.requests_per_s),
        "stage": growth.stage,
        "missing_capacity": finite(growth.missing),
    }


def _series(series: Series) -> dict[str, list[float | None]]:
    return {name: _column(getattr(series, name)) for name in SERIES}


def _column(values: NDArray[np.float64]) -> list[float | None]:
    return [float(v) if math.isfinite(v) else None for v in values]


def _drill(drill: Drill) -> dict[str, Any]:
    addition = drill.addition
    return {
        "name": drill.name,
        "lasts_s": finite(drill.lasts_s),
        "breaks": list(drill.breaks),
        "late_s": drill.late_s,
        "worst_late_share": drill.worst_late_share,
        "recovers": drill.recovers,
        "addition": None
        if addition is None
        else {
            "spares": dict(addition.spares),
            "lines": addition.lines,
            "usd_per_hour": finite(addition.usd_per_hour),
        },
        "note": drill.note,
    }


def _stability(found: Stability) -> dict[str, Any]:
    return {
        "loop_gain": finite(found.loop_gain),
        "limits": [
            {
                "what": limit.what,
                "name": limit.name,
                "formula": limit.formula,
                "gives_out": limit.gives_out,
                "survives": limit.survives,
                "breaks": limit.breaks,
            }
            for limit in found.limits
        ],
    }


SIMULATED_ROW = record(
    {
        "metric": one_of("ttft", "tpot", "pause", "e2e"),
        "quantile": NUMBER,
        "stage": one_of("all", "prefill", "wan", "relay", "main"),
        "analytic": MAYBE_NUMBER,
        "simulated": MAYBE_NUMBER,
        "low": MAYBE_NUMBER,
        "high": MAYBE_NUMBER,
        "workload": MAYBE_TEXT,
        "limit": MAYBE_NUMBER,
        "met": FLAG,
    }
)
_NUMBERS = rows(MAYBE_NUMBER)
SIMULATION: Schema = document(
    "pddplan.simulation/1",
    "Answer of pddplan simulate",
    {
        "version": TEXT,
        "scenario": TEXT,
        "scenario_sha256": TEXT,
        "plan": rows(record({"role": TEXT, "site": TEXT, "chip": TEXT, "instances": COUNT})),
        "architecture": MAYBE_TEXT,
        "usd_per_hour": MAYBE_NUMBER,
        "requests": COUNT,
        "seed": {"type": "integer"},
        "simulated_s": MAYBE_NUMBER,
        "warmup_s": MAYBE_NUMBER,
        "warmup_requests": COUNT,
        "throughput_rps": MAYBE_NUMBER,
        "littles_law_error": MAYBE_NUMBER,
        "line_bytes_error": MAYBE_NUMBER,
        "holds": FLAG,
        "quantiles": rows(SIMULATED_ROW),
        "growth": record(
            {"requests_per_s": MAYBE_NUMBER, "stage": TEXT, "missing_capacity": MAYBE_NUMBER}, nullable=True
        ),
        "shares": rows(record({"name": TEXT, "analytic": MAYBE_NUMBER, "simulated": MAYBE_NUMBER})),
        "pools": rows(
            record(
                {
                    "role": TEXT,
                    "instances": COUNT,
                    "busy_share": MAYBE_NUMBER,
                    "mean_batch": MAYBE_NUMBER,
                    "waiting_share": MAYBE_NUMBER,
                }
            )
        ),
        "series": record({name: _NUMBERS for name in SERIES}),
        "drills": rows(
            record(
                {
                    "name": TEXT,
                    "lasts_s": MAYBE_NUMBER,
                    "breaks": rows(TEXT),
                    "late_s": NUMBER,
                    "worst_late_share": NUMBER,
                    "recovers": FLAG,
                    "addition": record(
                        {"spares": {"type": "object"}, "lines": COUNT, "usd_per_hour": MAYBE_NUMBER}, nullable=True
                    ),
                    "note": TEXT,
                }
            )
        ),
        "stability": record(
            {
                "loop_gain": MAYBE_NUMBER,
                "limits": rows(
                    record(
                        {
                            "what": TEXT,
                            "name": TEXT,
                            "formula": NUMBER,
                            "gives_out": TEXT,
                            "survives": NUMBER,
                            "breaks": NUMBER,
                        }
                    )
                ),
            },
            nullable=True,
        ),
        "notes": rows(TEXT),
        "warnings": rows(TEXT),
    },
)
VERIFICATION: Schema = record(
    {
        "holds": FLAG,
        "why_not_simulated": MAYBE_TEXT,
        "requests": COUNT,
        "quantiles": rows(SIMULATED_ROW),
        "tightened": rows(
            record({"row": TEXT, "limit_s": MAYBE_NUMBER, "simulated_s": MAYBE_NUMBER, "tightened_s": MAYBE_NUMBER})
        ),
    }
)
