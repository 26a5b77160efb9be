"""``hardware show`` as text: fits the terminal, bars on one scale, every source named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddplan.report.chip_sheet import render_chip
from pddplan.spec.catalogue import chip_ids, load_chip


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("against", ["h100", "l20"])
def test_sheets_fit_the_terminal(width: int, against: str) -> None:
    for chip_id in chip_ids():
        shown = render_chip(load_chip(chip_id), load_chip(against), width)
        assert max(map(len, shown.splitlines())) <= width
        assert "nan" not in shown


def bars_of(text: str) -> dict[str, str]:
    return {line[2:18].strip(): line for line in text.splitlines() if "|" in line and "=" not in line}


def test_show_draws_on_one_scale_and_names_every_source() -> None:
    h20, h800 = load_chip("h20"), load_chip("h800")
    text = render_chip(h20, h800, 80)
    bars = bars_of(text)
    lengths = {name: line.count("█") + (line.rfind("█") > line.find("|")) for name, line in bars.items()}
    ratios = {
        "compute, bf16": 148 / 989,
        "compute, fp8": 296 / 1979,
        "memory": 96 / 80,
        "memory bandwidth": 4000 / 3350,
        "interconnect": 2.25,
    }
    assert list(bars) == list(ratios)
    longest = lengths["interconnect"]
    for name, ratio in ratios.items():
        assert lengths[name] / longest == pytest.approx(ratio / 2.25, abs=1.5 / longest)
        assert f"{100 * ratio:.0f} %" in bars[name]
    flat = text.replace("\n", "").replace(" ", "")
    for source in h20.provenance.values():
        assert source.source.replace(" ", "") in flat and source.confidence in text


def test_a_lopsided_chip_is_called_so_and_a_balanced_one_not() -> None:
    h100, h200, h20 = load_chip("h100"), load_chip("h200"), load_chip("h20")
    assert "Lopsided: memory 120 %, compute in fp8 15 %, a factor of 8.02 between them." in render_chip(h20, h100, 100)
    assert "Balanced as the reference: 100 % to 176 % of it." in render_chip(h200, h100, 100)
    alone = replace(h20, missing=h20.missing, peak_flops={})
    assert "Lopsided" not in render_chip(alone, h100, 100)


def test_show_a_chip_against_itself_is_one_hundred_percent() -> None:
    chip = load_chip("h100")
    assert render_chip(chip, chip, 80).count("100 %") == 1 + 5 + 2  # the heading, the bars, both ends of its shape


def test_a_format_that_the_reference_lacks_is_held_against_what_it_runs_instead() -> None:
    text = render_chip(load_chip("b200"), load_chip("h100"), 100)
    assert "455 %" in bars_of(text)["compute, fp4"]  # 9,000 over the fp8 peak of 1,979
    assert "nvidia-h100-sxm has no fp4: its fp8 is taken." in text
    assert "has no fp8: its int8 is taken." in render_chip(load_chip("h100"), load_chip("a100"), 100)


def test_an_incomplete_chip_shows_what_is_known_and_names_the_rest() -> None:
    text = render_chip(load_chip("p800"), load_chip("h100"), 80)
    bars = bars_of(text)
    assert "34.9 %" in bars["compute, bf16"] and "120 %" in bars["memory"]
    for unknown in ("memory bandwidth", "interconnect"):
        assert bars[unknown].endswith("–") and "█" not in bars[unknown]
    assert "Can't be planned with: no published memory_gb_per_s, interconnect_gb_per_s." in " ".join(text.split())
    assert "Too little is published" in render_chip(load_chip("r480"), load_chip("h100"), 80)
