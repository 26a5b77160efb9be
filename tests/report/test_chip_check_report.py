"""``hardware add`` as text: the verdict first, every finding under its heading, within the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddplan.report.chip_check_report import render_chip_check
from pddplan.spec.chip_check import check_chip_file

AS_PRINTED = """name: Acme One
class: gpu
aliases: [h100]
bf16_tflops: 1979
memory_gb: 80
memory_gb_per_s: 3350
interconnect_gb_per_s: 900
"""


@pytest.mark.parametrize("width", [60, 80, 100])
def test_an_implausible_chip(tmp_path: Path, width: int) -> None:
    path = tmp_path / "acme-one.yaml"
    path.write_text(AS_PRINTED)
    text = render_chip_check(check_chip_file(path), width)
    flat = " ".join(text.split())
    assert text.startswith("IMPLAUSIBLE  acme-one  2 figures look wrong")
    assert "interconnect_gb_per_s (line 7): 900 is 0.269 x memory_gb_per_s" in flat and "both directions" in flat
    assert "bf16_tflops (line 4)" in flat and "sparsity" in flat
    assert "aliases (line 3): 'h100' is nvidia-h100-sxm already." in flat
    assert "no source for bf16_tflops, memory_gb" in flat and "a scenario must give usd_per_hour" in flat
    assert "Next: check those figures; then" in flat
    assert all(len(line) <= width for line in text.splitlines() if str(path) not in line)


def test_an_incomplete_chip_names_what_is_missing_first(tmp_path: Path) -> None:
    path = tmp_path / "acme-one.yaml"
    path.write_text(AS_PRINTED.replace("memory_gb_per_s: 3350", "memory_gb_per_s: null"))
    text = render_chip_check(check_chip_file(path), 80)
    assert text.splitlines()[0] == "INCOMPLETE  acme-one  no memory_gb_per_s"
    assert "memory_gb_per_s (line 6): isn't given, and a plan needs it." in text
    assert "Next: add what is missing" in text
