"""Simulations as JSON: what isn't finite is null, an overloaded one has no time, the plan is named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from jsonschema import Draft202012Validator

from pddplan.report.schemas import SCHEMAS
from pddplan.report.simulation_json import simulation_payload
from pddplan.simulate.records import Growth, Interval, Share, Simulated, Simulation
from tests.report.plans import feasible
from tests.simulated import overloaded, simulation


def checked(found: Simulation) -> dict[str, object]:
    payload = simulation_payload(found, "agent", "0" * 64, [], (), feasible(), ("old price",))
    Draft202012Validator(SCHEMAS["simulation"]).validate(json.loads(json.dumps(payload, allow_nan=False)))
    return payload


def test_what_isnt_finite_is_null() -> None:
    nan, inf = float("nan"), float("inf")
    row = Simulated("ttft", 0.99, "all", nan, Interval(nan, 0.0, inf), None, 20.0)
    series = replace(simulation().series, line_load=np.array([nan, inf, 0.5]))
    payload = checked(replace(simulation(), quantiles=(row,), series=series, shares=(Share("relay_share", inf, nan),)))
    (told,) = payload["quantiles"]  # type: ignore[misc]
    assert (told["analytic"], told["simulated"], told["low"], told["high"]) == (None, None, 0.0, None)
    assert payload["series"]["line_load"] == [None, None, 0.5]  # type: ignore[index]
    assert payload["shares"] == [{"name": "relay_share", "analytic": None, "simulated": None}]


def test_overload_has_no_time_among_the_shares() -> None:
    shares = (Share("prefill_wait_mean_s", 0.4, 123.0), Share("relay_share", 0.1, 0.2))
    payload = checked(replace(overloaded(), shares=shares, growth=Growth(1.7, "line", float("inf"))))
    assert payload["growth"] == {"requests_per_s": 1.7, "stage": "line", "missing_capacity": None}
    assert payload["shares"] == [
        {"name": "prefill_wait_mean_s", "analytic": None, "simulated": None},
        {"name": "relay_share", "analytic": 0.1, "simulated": 0.2},
    ]


def test_the_plan_is_named_where_it_was_solved() -> None:
    payload, result = checked(simulation()), feasible()
    assert result.cost is not None
    assert (payload["architecture"], payload["usd_per_hour"]) == (result.architecture, result.cost.usd_per_hour)
    assert payload["warnings"] == ["old price"]
    given = simulation_payload(simulation(), "agent", "0" * 64, [])
    assert given["architecture"] is None and given["usd_per_hour"] is None


def test_a_run_without_times_holds_nothing() -> None:
    payload = checked(replace(simulation(), throughput_rps=float("nan")))
    assert payload["holds"] is False and payload["quantiles"] == []
