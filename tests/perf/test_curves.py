"""Efficiency files: all load, all are possible, every catalogue chip finds its curves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pddplan.errors import InputError
from pddplan.perf.curves import EfficiencyCurves, load_curves, read_curves, validate_curves
from pddplan.spec.chips import chip_from_catalogue
from pddplan.spec.datafile import hardware_dir, read_data_file
from pddplan.spec.types import Chip

FAMILIES = sorted(p.stem for p in (hardware_dir() / "efficiency").glob("*-*.yaml"))
CHIPS = sorted((hardware_dir() / "chips").glob("*.yaml"))


def catalogue_chip(path: Path) -> Chip:
    chip = chip_from_catalogue(read_data_file(path), path.stem)
    assert isinstance(chip, Chip), chip
    return chip


def test_the_promised_families_and_classes_exist() -> None:
    families = {f"nvidia-{name}" for name in ("ampere", "hopper", "h20", "blackwell", "ada")}
    assert families | {f"class-{name}" for name in ("gpu", "npu", "tpu", "custom")} <= set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_possible_and_says_where_it_is_from(name: str) -> None:
    curves = read_curves(name)
    assert validate_curves(curves) == []
    assert curves.id == name
    assert curves.confidence == ("estimate" if name.startswith("class-") else "fitted")
    assert 0 < curves.band < 1
    assert curves.evidence
    for row in curves.evidence:
        if row.confidence == "fitted":
            assert row.rows > 0
            assert row.source.startswith("https://")
        assert row.source


@pytest.mark.parametrize("path", CHIPS, ids=lambda p: p.stem)
def test_every_catalogue_chip_has_curves(path: Path) -> None:
    chip = catalogue_chip(path)
    curves = load_curves(chip)
    assert curves.id == (chip.efficiency or f"class-{chip.chip_class}")
    assert load_curves(chip) is curves  # read once


def test_estimates_have_a_wider_band_than_fits() -> None:
    fitted = max(read_curves(n).band for n in FAMILIES if not n.startswith("class-"))
    assert fitted < read_curves("class-gpu").band < read_curves("class-custom").band


def test_unknown_family_names_the_known_ones() -> None:
    chip = replace(catalogue_chip(CHIPS[0]), efficiency="nvidia-volta")
    with pytest.raises(InputError, match=r"no efficiency family 'nvidia-volta'.*nvidia-hopper"):
        load_curves(chip)


def broken(curves: EfficiencyCurves, op: str, **change: float) -> EfficiencyCurves:
    table = dict(getattr(curves, op))
    name = next(iter(table))
    return replace(curves, **{op: {**table, name: replace(table[name], **change)}})


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("gemm", {"eta_max": 1.01}),
        ("gemm", {"eta_memory": 0.0}),
        ("gemm", {"m_half": -1.0}),
        ("grouped_gemm", {"roof_exponent": 0.9}),
        ("decode_attention", {"overhead_s": float("nan")}),
        ("prefill_attention", {"half_bytes": float("inf")}),
    ],
)
def test_impossible_numbers_are_found(op: str, change: dict[str, float]) -> None:
    problems = validate_curves(broken(read_curves("nvidia-hopper"), op, **change))
    assert len(problems) == 1
    assert next(iter(change)) in problems[0]


def test_impossible_collectives_are_found() -> None:
    curves = read_curves("nvidia-hopper")
    shared = replace(curves.collectives, send_eta=1.2, all_reduce=replace(curves.collectives.all_reduce, eta=0.0))
    problems = validate_curves(replace(curves, collectives=shared))
    assert [p.split(" = ")[0] for p in problems] == ["collectives.send_eta", "collectives.all_reduce.eta"]
