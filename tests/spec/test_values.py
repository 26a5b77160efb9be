"""Distributions as a person writes them have the quantiles, means and shares that were written."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import yaml

from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Scenario
from pddplan.spec.values import default_share_above_95, quantile_of
from tests.spec.scenarios import SMALL, names


def with_workload(**changes: Any) -> Scenario:
    data = yaml.safe_load(SMALL)
    data["workload"].update(changes)
    return load_scenario_text(json.dumps(data))


def test_lognormal_through_quantiles_by_sampling() -> None:
    mu, sigma = with_workload(prompt_tokens={"p50": "8K", "p95": "64K"}).workload.prompt_tokens.lognormal or (0, 0)
    sample = np.exp(np.random.default_rng(1).normal(mu, sigma, 400_000))
    assert np.quantile(sample, [0.5, 0.95]) == pytest.approx([8192, 65536], rel=0.02)


def test_lognormal_of_mean_and_cv_by_sampling() -> None:
    mu, sigma = with_workload(output_tokens={"mean": 1000, "cv": 0.8}).workload.output_tokens.lognormal or (0, 0)
    sample = np.exp(np.random.default_rng(1).normal(mu, sigma, 400_000))
    assert sample.mean() == pytest.approx(1000, rel=0.01)
    assert sample.std() / sample.mean() == pytest.approx(0.8, rel=0.02)


def test_degenerate_distributions_are_fixed() -> None:
    assert with_workload(output_tokens={"mean": 1000, "cv": 0}).workload.output_tokens.fixed == 1000
    assert with_workload(output_tokens={"p50": 1000, "p90": 1000}).workload.output_tokens.fixed == pytest.approx(1000)


def test_histogram_is_normalised_with_a_note() -> None:
    s = with_workload(prompt_tokens={"histogram": {"64K": 1, "8K": 3}})
    assert s.workload.prompt_tokens.histogram == ((8192, 0.75), (65536, 0.25))
    assert any("add up to 4" in w for w in s.warnings)
    assert not any("add up" in w for w in with_workload(prompt_tokens={"histogram": {"8K": 0.3, "9K": 0.7}}).warnings)


def test_default_share_above_95_is_that_of_the_example() -> None:
    assert default_share_above_95(0.9) == pytest.approx(0.75)
    assert default_share_above_95(0.5) == 0.0
    assert default_share_above_95(0.9725) == pytest.approx(1.0)


@pytest.mark.parametrize("zero", [None, 0.05])
@pytest.mark.parametrize("mean", [0.05, 0.3, 0.68, 0.69, 0.8, 0.9, 0.92])
def test_mixture_has_the_mean_it_is_given(mean: float, zero: float | None) -> None:
    given = {"mean": mean} if zero is None else {"mean": mean, "zero_share": zero}
    rate = with_workload(prefix_hit_rate=given).workload.prefix_hit_rate
    rest = 1 - rate.share_above_95 - rate.zero_share
    x_rest = (mean - 0.9725 * rate.share_above_95) / rest
    alpha = x_rest / (0.95 - x_rest)  # the equation of the model: the rest is 0.95 Beta(alpha, 1)
    rng = np.random.default_rng(3)
    n = 300_000
    which = rng.random(n)
    x = np.where(which < rate.share_above_95, 1 - rng.uniform(0.005, 0.05, n), 0.95 * rng.beta(alpha, 1, n))
    x = np.where(which > 1 - rate.zero_share, 0.0, x)
    assert alpha > 0
    assert x.mean() == pytest.approx(mean, abs=0.002)


def test_fixed_and_zero_hit_rates() -> None:
    s = with_workload(prefix_hit_rate=0.9)
    assert s.workload.prefix_hit_rate.fixed and names(s)["workload.prefix_hit_rate"] == "input"
    assert with_workload(prefix_hit_rate={"mean": 0}).workload.prefix_hit_rate.fixed
    assert with_workload(prefix_hit_rate=1).workload.prefix_hit_rate.mean == 1.0
    absent = with_workload(prefix_hit_rate=None)
    assert absent.workload.prefix_hit_rate.mean == 0.0 and names(absent)["workload.prefix_hit_rate"] == "default"


def test_hit_rate_histogram() -> None:
    rate = with_workload(prefix_hit_rate={"histogram": {"0.97": 0.7, "0.3": 0.3}}).workload.prefix_hit_rate
    assert rate.histogram == ((0.3, pytest.approx(0.3)), (0.97, pytest.approx(0.7)))
    assert rate.mean == pytest.approx(0.97 * 0.7 + 0.3 * 0.3)


@pytest.mark.parametrize(
    ("key", "q"),
    [("p50", 0.5), ("p1", 0.01), ("p5", 0.05), ("p99", 0.99), ("p999", 0.999), ("p99.9", 0.999), ("p9999", 0.9999),
     ("p0", None), ("p100", None), ("p500", None), ("50", None), ("P50", None), ("p", None), ("p5x", None)],
)  # fmt: skip
def test_quantile_keys(key: str, q: float | None) -> None:
    assert quantile_of(key) == q
