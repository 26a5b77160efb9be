"""Several workloads in one scenario: the sum of their hours, what is one for all, limits of each, keys of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import pddplan
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Scenario
from tests.spec.bad_scenarios import mixed
from tests.spec.scenarios import SMALL

HOURS = [0.5] * 12 + [1.0] * 12
NIGHT = [2.0] * 12 + [1.0] * 12


def two(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None, **top: Any) -> Scenario:
    """Agents at 4/s and chat at 10/s with more keys."""
    data = yaml.safe_load(mixed())
    data["workloads"][0].update(first or {})
    data["workloads"][1].update(second or {})
    data.update(top)
    return load_scenario_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def notes_of(scenario: Scenario) -> dict[str, tuple[object, str]]:
    return {a.name: (a.value, a.source) for a in scenario.assumptions}


def test_the_rate_is_the_sum_and_the_dispersion_the_mean() -> None:
    traffic = two({"burstiness": 3.0}).traffic
    assert traffic.request_rate_per_s == 14 and traffic.rates == (4, 10)
    assert traffic.burstiness == pytest.approx((4 * 3 + 10 * 1) / 14)
    assert traffic.mean_load == 1.0
    slower = traffic.at_rate(7.0)
    assert slower.rates == pytest.approx((2, 5)) and slower.burstiness == pytest.approx(traffic.burstiness)


def test_sized_for_the_hour_in_which_the_sum_peaks() -> None:
    """Agents: 2/s then 4/s; chat 10/s then 5/s. The sum is 12/s in the first half of the day, 9/s in the second."""
    s = two({"hourly_load": HOURS}, {"hourly_load": NIGHT})
    assert s.traffic.rates == (2, 10) and s.traffic.request_rate_per_s == 12
    assert s.traffic.mean_load == pytest.approx(10.5 / 12)
    assert notes_of(s)["workloads.hourly_load"] == (12, "input")
    only = two({"hourly_load": HOURS})
    assert only.traffic.rates == (4, 10) and only.traffic.mean_load == pytest.approx(13 / 14)
    assert only.traffic.at_rate(7.0).rates == pytest.approx((2, 5))


def test_one_workload_is_sized_for_its_own_peak() -> None:
    data = yaml.safe_load(SMALL)
    data["workload"]["hourly_load"] = HOURS
    alone = load_scenario_text(json.dumps(data)).traffic
    data["workloads"] = [data.pop("workload")]
    listed = load_scenario_text(json.dumps(data)).traffic
    assert alone == listed and alone.rates == (10,) and alone.mean_load == 0.75


def test_what_one_says_of_the_deployment_holds_for_all() -> None:
    s = two({"first_token": "on_prefill"}, {"prefix_cache": "shared"})
    assert {w.prefix_cache for w in s.traffic.workloads} == {"shared"} == {s.traffic.prefix_cache}
    assert {w.first_token for w in s.traffic.workloads} == {"on_prefill"} == {s.traffic.first_token}
    told = notes_of(s)
    assert told["workloads[0].prefix_cache"] == ("shared", "input")
    assert told["workloads[1].first_token"] == ("on_prefill", "input")
    assert "workloads[1].prefix_cache" not in told


def test_a_forecast_written_two_ways_is_one() -> None:
    s = two({"output_forecast": {"precision": 1.0, "recall": 0.8}}, {"output_forecast": {"recall": 0.8}})
    assert s.traffic.output_forecast == (1.0, 0.8)
    assert s.traffic.with_forecast(None).output_forecast is None


def test_the_slo_at_top_level_counts_for_each() -> None:
    s = two(slo={"ttft_s": {"p99": 20}, "within": 0.9})
    assert [(x.workload, x.metric, x.limit_s, x.key) for x in s.slo] == [
        ("agents", "ttft", 20, "slo"),
        ("chat", "ttft", 20, "slo"),
    ]
    assert [(x.workload, x.share) for x in s.slo_within] == [("agents", 0.9), ("chat", 0.9)]


def test_an_slo_of_ones_own_or_none() -> None:
    s = two(second={"slo": {"ttft_s": {"p50": 1, "p99": 0.5}}}, slo=None)
    assert [(x.workload, x.quantile, x.key) for x in s.slo] == [
        ("chat", 0.5, "workloads[1].slo"),
        ("chat", 0.99, "workloads[1].slo"),
    ]
    assert notes_of(s)["workloads[0].slo"] == ("none", "default") and "slo" not in notes_of(s)
    assert any(w.startswith("workloads[1].slo.ttft_s: the limit at 0.99 is below") for w in s.warnings)


def test_keys_of_notes_and_of_overrides() -> None:
    s = load_scenario_text(
        mixed(), overrides=["workloads[0].request_rate_per_s=5", "workloads.chat.prompt_tokens={p50: 2K, p95: 8K}"]
    )
    assert s.traffic.rates == (5, 10)
    assert s.traffic.workloads[1].prompt_tokens.lognormal is not None
    assert {"workloads[0].burstiness", "workloads[1].burstiness", "workloads[1].prompt_tokens"} <= set(notes_of(s))
    assert [w.key for w in s.traffic.workloads] == ["workloads[0]", "workloads[1]"]


def test_there_is_no_such_thing_as_the_workload_of_several() -> None:
    with pytest.raises(ValueError, match="2 workloads"):
        _ = two().workload


def test_nothing_above_the_scenario_reads_the_only_workload() -> None:
    """Where there are several there is none: ``scenario.traffic`` has what is common."""
    package = Path(pddplan.__file__).parent
    read = [path.name for path in package.rglob("*.py") if "scenario.workload." in path.read_text(encoding="utf-8")]
    assert read == []
