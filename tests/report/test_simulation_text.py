"""Simulations as text where numbers are large, missing, or must not be told."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from pddplan.report.simulation_text import render_simulation
from pddplan.simulate.records import Interval, Share, Simulated, Simulation
from tests.simulated import overloaded, simulation


def crowd(factor: float) -> Simulation:
    """One with ``factor`` times as many requests at once."""
    found = simulation()
    series = found.series
    return replace(found, series=replace(series, main_requests=series.main_requests * factor))


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("factor", [1.0, 30.0, 3e4])
def test_large_numbers_keep_to_the_width(width: int, factor: float) -> None:
    assert max(map(len, render_simulation(crowd(factor), width).splitlines())) <= width


def test_overload_has_no_time_among_the_shares() -> None:
    wait = Share("prefill_wait_mean_s", 0.4, 123.0)
    calm = replace(simulation(), shares=(wait,))
    assert re.search(r"mean wait for prefill +0\.400 s +123 s", render_simulation(calm, 80))
    text = render_simulation(replace(overloaded(), shares=(wait, Share("relay_share", 0.1, 0.2))), 80)
    assert "wait for prefill " not in text.split("Over time")[0] and "requests by the relay" in text


@pytest.mark.parametrize("analytic", [math.nan, math.inf])
def test_what_isnt_known_is_a_dash(analytic: float) -> None:
    row = Simulated("ttft", 0.99, "all", analytic, Interval(13.3, 13.0, 13.6), None, 20.0)
    text = render_simulation(replace(simulation(), quantiles=(row,)), 80)
    assert re.search(r"TTFT p99 +– +13\.3 s +13\.0–13\.6 s +– +20\.0 s", text)
    assert text.startswith("HOLDS  the limit: TTFT p99 13.3 s, limit 20.0 s")
    assert not re.search(r"\b(nan|inf)\b", text)


def test_no_limit_and_no_series() -> None:
    found = simulation()
    empty = replace(found.series, **{name: values[:0] for name, values in vars(found.series).items()})
    text = render_simulation(replace(found, quantiles=found.quantiles[3:], series=empty, shares=(), pools=()), 80)
    assert text.startswith("HOLDS  no limit is set") and "Over time" not in text


def test_a_run_without_times_holds_nothing() -> None:
    """A step time that isn't known stops the clock: figures in the records are no times then."""
    found = replace(simulation(), throughput_rps=math.nan, simulated_s=math.nan)
    text = render_simulation(found, 80)
    assert text.startswith("UNKNOWN  the run has no times") and not re.search(r"HOLDS|TTFT|TPOT|nan", text)


def test_no_signed_zero() -> None:
    row = Simulated("ttft", 0.5, "all", 2.0, Interval(2.0001, 1.9, 2.1))
    assert re.search(r" 0\.0 %$", render_simulation(replace(simulation(), quantiles=(row,)), 80), re.MULTILINE)
