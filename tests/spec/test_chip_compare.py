"""One chip over another, dimension by dimension: ratios by hand, formats that one of them lacks."""

from __future__ import annotations

import pytest

from pddplan.spec.catalogue import chip_ids, load_chip
from pddplan.spec.chip_compare import REFERENCE, compare_chips, extremes


def ratios(name: str, against: str = REFERENCE) -> dict[str, float | None]:
    return {d.key: d.ratio for d in compare_chips(load_chip(name), load_chip(against))}


def test_ratios_by_hand() -> None:
    assert ratios("h20") == pytest.approx(
        {
            "bf16_tflops": 148 / 989,
            "fp8_tflops": 296 / 1979,
            "memory_gb": 96 / 80,
            "memory_gb_per_s": 4000 / 3350,
            "interconnect_gb_per_s": 1.0,
        }
    )


def test_a_format_that_the_reference_lacks_is_what_it_computes_in_instead() -> None:
    assert ratios("b200")["fp4_tflops"] == pytest.approx(9000 / 1979)  # fp8
    assert ratios("b200", "a100")["fp4_tflops"] == pytest.approx(9000 / 312)  # bf16: no fp8 either
    assert ratios("h100", "a100")["fp8_tflops"] == pytest.approx(1979 / 624)  # int8
    assert "int8_tflops" in ratios("a100") and "fp8_tflops" not in ratios("a100")


@pytest.mark.parametrize("chip_id", chip_ids())
def test_a_chip_is_one_of_itself(chip_id: str) -> None:
    chip = load_chip(chip_id)
    dimensions = compare_chips(chip, chip)
    assert {d.ratio for d in dimensions} <= {1.0, None}
    assert (extremes(dimensions) is None) == bool(chip.missing)


def test_the_ends() -> None:
    ends = extremes(compare_chips(load_chip("h20"), load_chip("h100")))
    assert ends is not None and [d.key for d in ends] == ["fp8_tflops", "memory_gb"]
