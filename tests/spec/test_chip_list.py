"""Choosing and ordering the chips of ``hardware list``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddplan.errors import InputError
from pddplan.spec.chip_list import (
    CHEAPEST_FIRST,
    NUMBERS,
    SORT_KEYS,
    TEXTS,
    ChipSummary,
    chip_summaries,
    read_condition,
    select_chips,
    sort_chips,
)
from pddplan.spec.chips import DTYPES

ROWS = chip_summaries()


def ids(rows: tuple[ChipSummary, ...]) -> set[str]:
    return {r.id for r in rows}


@pytest.mark.parametrize("key", SORT_KEYS)
@pytest.mark.parametrize("reverse", [False, True])
def test_any_column_orders_the_list_and_what_is_unknown_comes_last(key: str, reverse: bool) -> None:
    rows = sort_chips(ROWS, key, reverse=reverse)
    assert ids(rows) == ids(ROWS) and len(rows) == len(ROWS)
    values = [getattr(r, key) for r in rows]
    known = [v for v in values if v not in (None, "")]
    assert values[: len(known)] == known
    if key in TEXTS:
        known = [v.lower() for v in known]
    falling = (key not in TEXTS and key not in CHEAPEST_FIRST) is not reverse
    assert known == sorted(known, reverse=falling)


def test_best_first() -> None:
    assert sort_chips(ROWS, "memory_gb")[0].id == "amd-mi455x"
    assert sort_chips(ROWS, "usd_per_hour")[0].id == "nvidia-rtx-4090"
    assert sort_chips(ROWS, "USD_per_hour")[0].id == "nvidia-rtx-4090"
    assert sort_chips(ROWS, "vendor")[0].vendor == "Alibaba T-Head"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["intel"], {"intel-gaudi2", "intel-gaudi3"}),
        (["T-HEAD"], {"thead-zhenwu-810e"}),
        (["moore_threads"], {"mthreads-s4000", "mthreads-s5000"}),
        (["intel", "Biren"], {"intel-gaudi2", "intel-gaudi3", "biren-br100", "biren-br106"}),
    ],
)
def test_vendors(asked: list[str], found: set[str]) -> None:
    assert ids(select_chips(ROWS, vendors=asked)) == found


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    found = select_chips(ROWS, dtypes=[dtype.upper()])
    assert found and ids(found) == {r.id for r in ROWS if getattr(r, f"{dtype}_tflops")}


def test_several_dtypes_are_all_needed() -> None:
    assert ids(select_chips(ROWS, dtypes=["fp4", "int8"], vendors=["amd"])) == {
        "amd-mi350x",
        "amd-mi355x",
        "amd-mi455x",
    }


@given(st.sampled_from(NUMBERS), st.sampled_from([">=", "<=", ">", "<", "="]), st.floats(0, 1e5))
def test_any_dimension_filters(key: str, sign: str, limit: float) -> None:
    condition = read_condition(f" {key.upper()} {sign} {limit!r} ")
    found = ids(select_chips(ROWS, conditions=[condition]))
    for row in ROWS:
        value = getattr(row, key)
        holds = (
            value is not None
            and {
                ">=": value >= limit,
                "<=": value <= limit,
                ">": value > limit,
                "<": value < limit,
                "=": value == limit,
            }[sign]
        )
        assert (row.id in found) == holds


def test_conditions_add_up() -> None:
    both = [read_condition("memory_gb>=141"), read_condition("usd_per_hour<4")]
    assert ids(select_chips(ROWS, conditions=both, plannable=True)) == {
        "amd-mi300x",
        "amd-mi325x",
        "amd-mi355x",
        "nvidia-gb300-nvl72",
        "nvidia-h200-sxm",
    }


def test_only_those_to_plan_with() -> None:
    assert len(select_chips(ROWS, plannable=True)) == 47


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory_gb", "in quotes"),
        ("memory_gb>=", "in quotes"),
        ("", "in quotes"),
        ("memory>=96", "Did you mean memory_gb?"),
        ("memory_gb>=lots", "'lots' is not a number"),
        ("memory_gb>=nan", "'nan' is not a number"),
        ("name>=3", "unknown 'name'"),
    ],
)
def test_bad_conditions(text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        read_condition(text)
    assert words in str(error.value)


def test_unknown_vendor_dtype_and_column() -> None:
    with pytest.raises(InputError, match="Did you mean NVIDIA"):
        select_chips(ROWS, vendors=["nvidai"])
    with pytest.raises(InputError, match="Known: bf16, fp16, fp8, int8, fp4"):
        select_chips(ROWS, dtypes=["fp6x"])
    with pytest.raises(InputError, match="Did you mean memory_gb"):
        sort_chips(ROWS, "memory")
