"""``hardware list`` as text: fits the terminal, numbers of all chips, the incomplete apart with what they lack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddplan.report.chip_list_table import render_chip_list
from pddplan.report.lines_table import render_lines
from pddplan.spec.catalogue import chip_ids, link_defaults
from pddplan.spec.chip_list import SORT_KEYS, chip_summaries, select_chips, sort_chips


@pytest.mark.parametrize("width", [80, 100])
def test_the_list_fits_the_terminal_and_has_every_chip(width: int) -> None:
    text = render_chip_list(chip_summaries(), width)
    assert max(map(len, text.splitlines())) <= width
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert set(chip_ids()) <= set(lines)
    assert "148/296" in lines["nvidia-h20-96g"] and "450x8" in lines["nvidia-h20-96g"].replace(" ", "")
    assert " h20 " in lines["nvidia-h20-96g"]  # the alias has room
    assert lines["amd-mi455x"].split("–")[1].strip() == "e*" if width == 80 else True
    assert text.splitlines()[-1] == "64 chips: 47 to plan with, 17 incomplete."


def test_incomplete_chips_stand_apart_with_the_missing_numbers_named() -> None:
    text = render_chip_list(chip_summaries(), 100)
    whole, lacking = text.split("Incomplete: ")
    rows = {r.id: r for r in chip_summaries()}
    for chip_id, row in rows.items():
        assert (f"\n{chip_id} " in whole) == row.plannable
    for line in lacking.splitlines()[2:-2]:
        chip_id, _, missing = line.split(None, 2)
        assert missing == ", ".join(rows[chip_id].missing)


@pytest.mark.parametrize("key", SORT_KEYS)
def test_what_is_asked_for_is_shown(key: str) -> None:
    for width in (80, 100):
        text = render_chip_list(sort_chips(chip_summaries(), key), width, asked=[key])
        assert max(map(len, text.splitlines())) <= width
    head = {"fp4_tflops": " fp4 ", "tdp_watts": " W ", "all_in_kw": " kW ", "released": " year "}.get(key, "")
    assert head in text.splitlines()[0]


def test_a_filtered_list_says_of_how_many() -> None:
    some = select_chips(chip_summaries(), vendors=["intel"])
    assert render_chip_list(some, 80, total=64).splitlines()[-1] == "2 of 64 chips: 2 to plan with, 0 incomplete."
    assert render_chip_list((), 80, total=64) == "None of 64 chips fits."
    assert "Incomplete" not in render_chip_list(some, 80)


def test_long_names_cost_the_aliases_not_the_width() -> None:
    long = [replace(r, id=f"{r.id}-long-name") for r in chip_summaries()]
    lines = render_chip_list(long, 80).splitlines()
    assert "alias" not in lines[0] and max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [80, 100])
def test_lines_have_prices_per_hour_month_and_gb_by_direction(width: int) -> None:
    text = render_lines(link_defaults(), width)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert max(map(len, text.splitlines())) <= width
    assert rows["aws-100g"] == ["aws-100g", "100", "22.50", "16,425", "0.02", "0", "2026-09"]
    assert rows["coreweave-10g"] == ["coreweave-10g", "10", "1.71", "1,250", "0", "0", "2026-09"]
    assert rows["gcp-10g"][4:6] == ["–", "–"]
    assert "1,000 km            13.0" in text and "dedicated wave rdma   90 %" in text
    for tier in link_defaults().tiers:
        assert tier.id in rows
