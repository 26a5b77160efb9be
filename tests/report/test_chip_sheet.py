"""Chips as text: fits the terminal, bars on one scale, every source named."""

from __future__ import annotations

import pytest

from pddplan.report.hardware_table import render_chip, render_chip_list
from pddplan.spec.catalogue import chip_ids, chip_summaries, load_chip


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_the_terminal(width: int) -> None:
    text = render_chip_list(chip_summaries(), width)
    assert max(map(len, text.splitlines())) <= width
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert set(chip_ids()) <= set(lines)
    assert "148/296" in lines["nvidia-h20-96g"] and "450 x 8" in lines["nvidia-h20-96g"]
    for chip_id in chip_ids():
        shown = render_chip(load_chip(chip_id), load_chip("h800"), width)
        assert max(map(len, shown.splitlines())) <= width
        assert "nan" not in shown


def test_show_draws_on_one_scale_and_names_every_source() -> None:
    h20, h800 = load_chip("h20"), load_chip("h800")
    text = render_chip(h20, h800, 80)
    bars = {line[2:18].strip(): line for line in text.splitlines() if "|" in line and "=" not in line}
    lengths = {name: line.count("█") + (line.rfind("█") > line.find("|")) for name, line in bars.items()}
    ratios = {
        "compute, bf16": 148 / 989,
        "memory": 97871 / 81559,
        "memory bandwidth": 4000 / 3350,
        "interconnect": 2.25,
    }
    longest = lengths["interconnect"]
    for name, ratio in ratios.items():
        assert lengths[name] / longest == pytest.approx(ratio / 2.25, abs=1.5 / longest)
        assert f"{100 * ratio:.0f} %" in bars[name]
    flat = text.replace("\n", "").replace(" ", "")
    for source in h20.provenance.values():
        assert source.source.replace(" ", "") in flat and source.confidence in text


def test_show_a_chip_against_itself_is_one_hundred_percent() -> None:
    chip = load_chip("h100")
    assert render_chip(chip, chip, 80).count("100 %") == 5
