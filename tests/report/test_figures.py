"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddplan.report.figures import (
    constraint_name,
    exact,
    figure,
    limit_seconds,
    money,
    percent,
    quantile_name,
    seconds,
    signed_percent,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (163.8, "164"),
        (12.04, "12.0"),
        (9.996, "10.0"),
        (99.96, "100"),
        (0.0684, "0.0684"),
        (0.9996, "1.00"),
        (1234.5, "1,234"),
        (999.6, "1,000"),
        (-12.04, "-12.0"),
        (0.00001234, "1.23e-05"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_figure(value: float | None, text: str) -> None:
    assert figure(value) == text


@given(st.floats(1e-4, 999.4))
def test_figure_has_three_digits_and_is_right_to_half_a_unit_of_the_third(value: float) -> None:
    text = figure(value)
    assert len(text.replace(".", "").lstrip("0")) == 3
    unit = 10 ** (math.floor(math.log10(value)) - 2)
    # A value that rounds up to the next power of ten loses one digit and no accuracy.
    assert abs(float(text) - value) <= 0.5001 * unit


@pytest.mark.parametrize(
    ("value", "text"), [(163.84, "163.8"), (99.96, "100.0"), (23, "23.0"), (1179.4, "1,179"), (999.96, "1,000")]
)
def test_money(value: float, text: str) -> None:
    assert money(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.113, "11.3 %"),
        (0.71, "71 %"),
        (0.004, "0.4 %"),
        (0.0001, "< 0.1 %"),
        (0, "0 %"),
        (2.64, "264 %"),
        (None, "–"),
    ],
)
def test_percent(value: float | None, text: str) -> None:
    assert percent(value) == text


def test_signed_percent() -> None:
    assert [signed_percent(x) for x in (0.1, -0.1, None)] == ["+10 %", "-10 %", "–"]


def test_times_take_the_unit_of_their_limit() -> None:
    assert seconds(0.812, 3.0) == "0.812 s"
    assert seconds(0.0496, 0.05) == "49.6 ms"
    assert seconds(1.5, 0.5) == "1,500 ms"
    assert seconds(0.031, 2.0) == "31.0 ms"  # 0.0310 s is hard to read
    assert seconds(math.inf, 3.0) == "–"
    assert limit_seconds(20.0) == "20 s"
    assert limit_seconds(0.05) == "50 ms"
    assert limit_seconds(None) == "–"


def test_names() -> None:
    assert [quantile_name(q) for q in (0.5, 0.9, 0.99, 0.999, 0.05)] == ["p50", "p90", "p99", "p999", "p05"]
    assert constraint_name("ttft_p99") == "TTFT p99"
    assert [exact(x) for x in (0.9, 30.0, 65536.0, 1e-9)] == ["0.9", "30", "65,536", "1e-09"]
