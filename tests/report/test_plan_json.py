"""``solve --json`` against its contract: keys, schema, sums, nothing that isn't JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pddplan.errors import Excuse
from pddplan.plan.records import Alternative, PlanResult, RunnerUps
from pddplan.report.plan_json import plan_payload
from pddplan.report.schemas import SCHEMAS
from tests.report import plans

PLANS = {"feasible": plans.feasible, "infeasible": plans.infeasible, "unknown": plans.unknown}

# 4-experience.md of the design: programs read these keys.
CONTRACT = {
    "schema",
    "version",
    "scenario_sha256",
    "catalogue_date",
    "seed",
    "timing_s",
    "status",
    "architecture",
    "objective",
    "roles",
    "links",
    "ratio",
    "ratio_instances",
    "routing",
    "decode_hit_rate",
    "loop_gain",
    "slo",
    "goodput_rps",
    "within_slo_rps",
    "headroom_rps",
    "cost",
    "revenue",
    "binding",
    "alternatives",
    "assumptions",
}


def validate(payload: dict[str, Any], schema: str) -> None:
    Draft202012Validator(SCHEMAS[schema]).validate(payload)


def test_rows_name_their_workload_only_where_there_are_several() -> None:
    base = plans.feasible()
    assert base.evaluation is not None
    assert all("workload" not in row for row in plan_payload(base)["slo"])
    slo = tuple(replace(v, workload="chat") for v in base.evaluation.slo)
    made = plan_payload(replace(base, evaluation=replace(base.evaluation, slo=slo)))
    assert [row["workload"] for row in made["slo"]] == ["chat"] * len(slo)
    validate(made, "plan")
    late = replace(plans.infeasible(), excuses=(Excuse("ttft_p99", 3.5, 3.0, "s", "prefill_queue", "chat"),))
    given = plan_payload(late)
    assert given["reasons"][0]["workload"] == "chat" and given["binding"][0]["constraint"] == "ttft_p99 of chat"
    validate(given, "plan")


@pytest.mark.parametrize("name", PLANS)
def test_payload_has_the_contract_and_validates(name: str) -> None:
    payload = plan_payload(PLANS[name]())
    assert set(payload) >= CONTRACT
    validate(payload, "plan")
    assert json.loads(json.dumps(payload, allow_nan=False)) == payload


def test_runner_ups_add_keys_and_rename_none() -> None:
    best = plans.feasible()
    plain = plan_payload(best)
    assert "runner_ups" not in plain and set(plain["alternatives"][0]) == {"usd_per_hour", "architecture", "differs"}
    other = Alternative(170.0, "pdd", "no line", False, best.roles, best.links)
    payload = plan_payload(replace(best, alternatives=(other,), runner_ups=RunnerUps(4, 0.05, complete=False)))
    validate(payload, "plan")
    assert payload["runner_ups"] == {"asked": 4, "within": 0.05, "complete": False}
    assert set(payload["alternatives"][0]) >= set(plain["alternatives"][0])
    assert payload["alternatives"][0]["proven"] is False
    assert payload["alternatives"][0]["roles"] == payload["roles"]
    payload["alternatives"][0]["proven"] = "yes"
    with pytest.raises(ValidationError):
        validate(payload, "plan")


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_schemas(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])


def test_figures_arrive_unchanged_and_add_up() -> None:
    payload = plan_payload(plans.feasible())
    assert payload["roles"][0] == {
        "role": "prefill",
        "site": "north",
        "chip": "nvidia-h800-sxm",
        "instances": 3,
        "chips_per_instance": 8,
        "chips": 24,
        "parallelism": {"tp": 8, "pp": 1, "dp": 1, "ep": 8},
        "batch": 1,
        "usd_per_hour": 48.0,
        "utilization": {"compute": 0.54, "memory_capacity": 0.81, "memory_bandwidth": 0.31, "interconnect": None},
    }
    assert all(r["chips"] == r["instances"] * r["chips_per_instance"] for r in payload["roles"])
    spent = sum(r["usd_per_hour"] for r in payload["roles"]) + sum(x["usd_per_hour"] for x in payload["links"])
    assert spent + payload["cost"]["other_usd_per_hour"] == pytest.approx(payload["cost"]["usd_per_hour"])
    assert payload["slo"][1] == {
        "metric": "ttft",
        "quantile": 0.99,
        "value": 12.04,
        "limit": 20.0,
        "unit": "s",
        "met": True,
        "stage": "line",
    }


def test_ratios() -> None:
    payload = plan_payload(plans.feasible())
    assert payload["ratio"] == {"prefill": 24 / 64, "relay_decode": 8 / 64, "main_decode": 1.0}
    assert payload["ratio_instances"] == {"prefill": 3, "relay_decode": 1, "main_decode": 4}
    only = replace(plans.feasible().roles[0], role="aggregated")
    single = plan_payload(replace(plans.feasible(), roles=(only,)))
    assert single["ratio"] == {"prefill": 0.0, "relay_decode": 0.0, "main_decode": 0.0, "aggregated": 1.0}
    assert plan_payload(plans.infeasible())["ratio"] == {"prefill": None, "relay_decode": None, "main_decode": None}


def with_value(value: float) -> PlanResult:
    base = plans.feasible()
    evaluation = plans.evaluation()
    assert base.cost is not None
    return replace(
        base,
        status="unknown",
        bound=value,
        headroom_rps=value,
        evaluation=replace(evaluation, loop_gain=value, slo=(replace(evaluation.slo[0], value_s=value),)),
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(value: float) -> None:
    payload = plan_payload(with_value(value))
    json.dumps(payload, allow_nan=False)
    assert payload["objective"]["bound"] is None
    assert payload["headroom_rps"] is None
    assert payload["slo"][0]["value"] is None
    assert payload["slo"][0]["met"] is False
    validate(payload, "plan")


def test_something_binds_an_infeasible_scenario() -> None:
    bound = plan_payload(plans.infeasible())["binding"]
    assert bound == [
        {"constraint": "line_capacity", "slack": pytest.approx(-23.8 / 9), "fix": "Offer the 100 Gbit/s tier."}
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("status", "fine"),
        ("binding", []),
        ("roles", []),
        ("decode_hit_rate", 1.2),
        ("architecture", None),
        ("cost", None),
    ],
)
def test_the_schema_refuses_a_wrong_plan(key: str, value: object) -> None:
    payload = {**plan_payload(plans.feasible()), key: value}
    with pytest.raises(ValidationError):
        validate(payload, "plan")
