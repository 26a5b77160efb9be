"""Finding and loading chips; chips of users' own: what is accepted, refused and asked about."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddplan.errors import InputError, Problem
from pddplan.spec import catalogue, chip_check, chips
from pddplan.spec.catalogue import (
    catalogue_date,
    chip_assumptions,
    chip_from_mapping,
    chip_ids,
    closest_chips,
    examples_dir,
    find_chip,
    hardware_dir,
    load_chip,
    load_engine,
    missing_problem,
    price_age_months,
    unknown_chip,
)
from pddplan.spec.chip_check import check_chip_file
from pddplan.spec.chip_list import chip_summaries, read_condition, select_chips
from pddplan.spec.load import load_scenario
from pddplan.spec.types import Chip

FOUR: dict[str, Any] = {
    "name": "x",
    "bf16_tflops": 400,
    "memory_gb": 96,
    "memory_gb_per_s": 2000,
    "interconnect_gb_per_s": 200,
}


def made(**changes: Any) -> Chip:
    chip = chip_from_mapping({**FOUR, **changes}, "sites[0].chips[0].chip")
    assert isinstance(chip, Chip), [str(p) for p in chip]
    return chip


def refused(**changes: Any) -> list[Problem]:
    problems = chip_from_mapping({**FOUR, **changes}, "sites[0].chips[0].chip")
    assert isinstance(problems, list) and problems
    return problems


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("chip_id", chip_ids())
def test_a_chip_is_found_by_id_and_by_each_alias(chip_id: str) -> None:
    chip = load_chip(chip_id)
    for name in (chip_id, chip_id.upper(), chip_id.replace("-", "_"), *chip.aliases):
        assert find_chip(name) == chip_id


def test_aliases_are_unique() -> None:
    keys: Counter[str] = Counter()
    for chip_id in chip_ids():
        spellings = {k for n in (chip_id, *load_chip(chip_id).aliases) for k in catalogue._keys(catalogue._words(n))}
        keys.update(spellings)
    assert [k for k, n in keys.items() if n > 1] == []


@pytest.mark.parametrize(
    ("name", "chip_id"),
    [
        ("h20", "nvidia-h20-96g"),
        ("h800", "nvidia-h800-sxm"),
        ("910c", "huawei-ascend-910c"),
        ("h100_sxm", "nvidia-h100-sxm"),
        ("h200_sxm", "nvidia-h200-sxm"),
        ("H200-SXM-141GB", "nvidia-h200-sxm"),
        ("H100-SXM-80GB", "nvidia-h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-sxm"),
        ("A100-SXM4-80GB", "nvidia-a100-80g-sxm"),
        ("A100-80G", "nvidia-a100-80g-sxm"),
        ("B200-SXM-180GB", "nvidia-b200-sxm"),
        ("B200 192GB", "nvidia-b200-sxm"),
        ("gb200", "nvidia-gb200-nvl72"),
        ("GB300_NVL72", "nvidia-gb300-nvl72"),
        ("H20-96G", "nvidia-h20-96g"),
        ("H20 141GB", "nvidia-h20-141g"),
        ("MI300X 192GB HBM3", "amd-mi300x"),
        ("RTX PRO 6000 Blackwell Server Edition", "nvidia-rtx-pro-6000-server"),
        ("RTXPRO6000", "nvidia-rtx-pro-6000-server"),
        ("RTX 4090", "nvidia-rtx-4090"),
        ("Gaudi-3", "intel-gaudi3"),
        ("TPU v6e", "google-tpu-v6e"),
        ("h100sxm", "nvidia-h100-sxm"),
        ("H100SXM5-80GB", "nvidia-h100-sxm"),
        ("nvidia_h100_sxm", "nvidia-h100-sxm"),
        ("a100_sxm", "nvidia-a100-80g-sxm"),
        ("b200_sxm", "nvidia-b200-sxm"),
        ("b300_sxm", "nvidia-b300-sxm"),
        ("gb300_sxm", "nvidia-gb300-nvl72"),
        ("rtx_pro_6000_server", "nvidia-rtx-pro-6000-server"),
        ("NVIDIA GeForce RTX 5090", "nvidia-rtx-5090"),
        ("AMD Instinct MI350X OAM", "amd-mi350x"),
        ("MI350X-288GB", "amd-mi350x"),
        ("Ascend910B4", "huawei-ascend-910b4"),
        ("Atlas_350", "huawei-atlas-350-950pr"),
        ("trn3", "aws-trainium3"),
        ("Trainium-2", "aws-trainium2"),
        ("Moore Threads MTT S4000", "mthreads-s4000"),
        ("Hygon_K100_AI", "hygon-k100-ai"),
        ("C500-64GB", "metax-c500"),
        ("Zhenwu-810E", "thead-zhenwu-810e"),
        ("rubin", None),  # two chips
        ("trainium", None),
        ("nvidia", None),
        ("A100-40GB", None),  # another chip, not a spelling
        ("H200-NVL-141GB", None),
        ("H100 NVL", "nvidia-h100-nvl"),
        ("h9000", None),
        ("sxm", None),
        ("", None),
        ("../../secrets", None),
    ],
)
def test_other_tools_spellings(name: str, chip_id: str | None) -> None:
    assert find_chip(name) == chip_id


@pytest.mark.parametrize(
    "name", ["A100-80GB", "B200", "GB200", "H100", "H100-SXM", "H20", "H200", "H800", "L40S", "RTX PRO 6000", "gb300"]
)
def test_names_of_published_measurements_are_known(name: str) -> None:
    assert find_chip(name) is not None


def test_an_unknown_name_gets_the_closest() -> None:
    message = "no chip 'nvidia-h20-96' in the catalogue. Closest: nvidia-h20-96g (alias h20)."
    with pytest.raises(InputError, match="nvidia-h20-96g") as error:
        load_chip("nvidia-h20-96")
    assert str(error.value).endswith(message)
    problem = unknown_chip("nvidia-h20-96", "sites[0].chips[0].chip")
    assert f"{problem.message} {problem.fix}" == message and problem.key == "sites[0].chips[0].chip"
    assert closest_chips("mi30x")[0] == "amd-mi300x" and len(closest_chips("h10", 3)) == 3
    assert closest_chips("zzzz") == () and "hardware list" in unknown_chip("zzzz").fix


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("Rubin", "could be any of 2. Name one: nvidia-rubin-cpx, nvidia-rubin-vr200-nvl72."),
        ("trainium", "could be any of 2. Name one: aws-trainium2, aws-trainium3."),
        ("GAUDI", "could be any of 2. Name one: intel-gaudi2, intel-gaudi3."),
        ("atlas", "could be any of 2. Name one: huawei-atlas-300i-duo, huawei-atlas-350-950pr."),
        ("nvidia", "could be any of 20. Name one: nvidia-a100-80g-sxm, "),
    ],
)
def test_a_name_of_several_chips_names_them(name: str, listed: str) -> None:
    with pytest.raises(InputError) as error:
        load_chip(name)
    assert listed in str(error.value)


def test_another_memory_size_is_another_chip_and_its_siblings_are_named() -> None:
    assert find_chip("H20-80GB") is None
    assert "nvidia-h20-141g (alias h20-3e), nvidia-h20-96g (alias h20)" in unknown_chip("H20-80GB").fix


def test_an_alias_of_two_chips_is_nobodys(own_data: Path) -> None:
    body = "\n".join(f"{k}: {v}" for k, v in FOUR.items())
    for name in ("acme-one", "acme-two"):
        (own_data / "chips" / f"{name}.yaml").write_text(f"aliases: [acme-x1]\n{body}\n")
    assert find_chip("x1") is None and find_chip("one") == "acme-one"
    assert "Name one: acme-one, acme-two." in unknown_chip("x1").fix


def test_an_unknown_engine_gets_the_closest() -> None:
    with pytest.raises(InputError, match="Did you mean sglang"):
        load_engine("sg-lang")


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(hardware_dir(), tmp_path / "hardware")
    for module in (catalogue, chips, chip_check):
        monkeypatch.setattr(module, "hardware_dir", lambda: tmp_path / "hardware")
    caches = (catalogue._heads, catalogue._noise, catalogue._names, catalogue.load_chip)
    for cached in caches:
        cached.cache_clear()
    yield tmp_path / "hardware"
    for cached in caches:
        cached.cache_clear()


def test_adding_a_chip_is_adding_one_file(own_data: Path) -> None:
    body = "\n".join(f"{k}: {v}" for k, v in FOUR.items())
    (own_data / "chips" / "acme-one.yaml").write_text(f'aliases:\n  - a1\n  - one\nchecked: "2027-01-31"\n{body}\n')
    assert find_chip("A1") == "acme-one" and "acme-one" in chip_ids()
    assert load_chip("one").peak_flops == {"bf16": 400e12}
    assert catalogue_date() == "2027-01-31"
    (row,) = select_chips(
        chip_summaries(), conditions=[read_condition("memory_gb=96"), read_condition("bf16_tflops=400")]
    )
    assert row.id == "acme-one" and row.plannable
    offered = load_scenario(examples_dir() / "agent_64k.yaml", overrides=["sites[0].chips[0].chip=A1"])
    assert offered.sites[0].offers[0].chip == load_chip("acme-one")
    assert check_chip_file(own_data / "chips" / "acme-one.yaml").status == "complete"


def test_a_broken_file_is_named(own_data: Path) -> None:
    path = own_data / "chips" / "nvidia-l20.yaml"
    path.write_text(path.read_text().replace("value: 864", "value: -864"))
    with pytest.raises(InputError, match=r"nvidia-l20\.yaml.*memory_gb_per_s.*above 0"):
        load_chip("l20")


# ---------------------------------------------------------------- loading


def test_si_units() -> None:
    chip = load_chip("h800")
    assert chip.peak_flops == {"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12, "int8": 1979e12}
    assert chip.memory_bytes == 81559 * 2**20 and chip.memory_gb_nominal == 80
    assert chip.memory_bytes_per_s == 3.35e12 and chip.scale_up_bytes_per_s == 200e9
    assert chip.scale_out_bytes_per_s == 400e9 / 8 and chip.all_in_watts == 1730
    assert (chip.chips_per_node, chip.scale_up_domain, chip.efficiency) == (8, 8, "nvidia-hopper")
    assert (chip.usd_per_hour, chip.price_date) == (2.0, "2025-02")
    assert chip.provenance["interconnect_gb_per_s"].source == "https://arxiv.org/abs/2505.09343"


def test_a_rack_is_one_domain_of_small_nodes() -> None:
    chip = load_chip("gb200")
    assert (chip.chips_per_node, chip.scale_up_domain) == (4, 72)


def test_unpublished_dimensions_are_named_and_not_numbers() -> None:
    chip = load_chip("p800")
    assert chip.missing == ("memory_gb_per_s", "interconnect_gb_per_s")
    assert math.isnan(chip.memory_bytes_per_s) and math.isnan(chip.scale_up_bytes_per_s)
    problem = missing_problem(chip, "sites[0].chips[0].chip")
    assert problem is not None and "memory_gb_per_s" in problem.message and "inline" in problem.fix
    assert missing_problem(load_chip("h20"), "chip") is None


def test_any_published_format_gives_the_peak_of_bf16_as_an_estimate() -> None:
    """``compute_from`` of hardware/classes.yaml: fp16 as it is, half of fp8 or int8, a quarter of fp4."""
    numbers = {k: v for k, v in FOUR.items() if k != "bf16_tflops"}
    for given_key, peak in (
        ("fp16_tflops", 400e12),
        ("fp8_tflops", 200e12),
        ("int8_tflops", 200e12),
        ("fp4_tflops", 100e12),
    ):
        chip = chip_from_mapping({**numbers, given_key: 400}, "chip")
        assert isinstance(chip, Chip) and chip.peak_flops["bf16"] == peak
        assert "bf16_tflops" in chip.defaulted and chip.provenance["bf16_tflops"].confidence == "estimate"
    assert load_chip("300i-duo").peak_flops["bf16"] == 140e12 and load_chip("s5000").peak_flops["bf16"] == 500e12
    assert "bf16_tflops" not in made().defaulted


def test_a_missing_nic_is_an_estimate() -> None:
    chip = load_chip("l20")
    assert chip.scale_out_bytes_per_s == 25e9
    assert chip.provenance["scale_out_gbit_per_s"].confidence == "estimate"
    named = {a.name: a for a in chip_assumptions(chip)}
    assert named["nvidia-l20.scale_out_gbit_per_s"].value == 200
    assert "nvidia-l20.memory_gb" not in named


def test_price_age() -> None:
    chip = load_chip("h20")  # priced 2026-07
    assert price_age_months(chip, date(2026, 12, 1)) == 5
    assert price_age_months(chip, date(2026, 7, 31)) == 0
    assert price_age_months(load_chip("a800"), date(2026, 12, 1)) is None


def test_summaries_keep_the_printed_numbers() -> None:
    rows = {r.id: r for r in chip_summaries()}
    h20 = rows["nvidia-h20-96g"]
    assert (h20.bf16_tflops, h20.fp8_tflops, h20.fp4_tflops) == (148, 296, None)
    assert (h20.memory_gb, h20.memory_gb_per_s, h20.interconnect_gb_per_s) == (96, 4000, 450)
    assert h20.plannable and h20.confidence == "secondary"
    assert not rows["kunlunxin-p800"].plannable and rows["kunlunxin-p800"].memory_gb_per_s is None
    assert [r.id for r in chip_summaries()] == sorted(rows)


def test_data_folders_exist() -> None:
    assert (hardware_dir() / "chips").is_dir() and examples_dir().is_dir()


# ---------------------------------------------------------------- a user's chip


def test_four_numbers_suffice() -> None:
    chip = made()
    assert chip.id == chip.name == "x" and chip.chip_class == "custom" and not chip.missing and not chip.warnings
    assert chip.memory_bytes == 96e9 and chip.peak_flops == {"bf16": 400e12}
    assert (chip.chips_per_node, chip.scale_up_domain) == (8, 8)
    assert chip.scale_out_bytes_per_s == 25e9
    assert chip.usd_per_hour is None and chip.all_in_watts is None and chip.efficiency is None
    assert {a.name for a in chip_assumptions(chip)} == {"x.chips_per_node", "x.scale_out_gbit_per_s", "x.domain_chips"}
    assert chip.provenance["memory_gb"].confidence == "input"


def test_every_optional_number() -> None:
    chip = made(
        fp8_tflops=800,
        int8_tflops=800,
        fp4_tflops=1600,
        scale_out_gbit_per_s=400,
        chips_per_node=16,
        all_in_kw=1.4,
        usd_per_hour=1.5,
    )
    assert chip.peak_flops == {"bf16": 400e12, "fp8": 800e12, "int8": 800e12, "fp4": 1600e12}
    assert (chip.scale_out_bytes_per_s, chip.all_in_watts, chip.usd_per_hour) == (50e9, 1400, 1.5)
    assert (chip.chips_per_node, chip.scale_up_domain) == (16, 16)  # a domain is a node where nothing else is said
    assert chip.price_kind == "input"


def test_the_file_form_with_sources() -> None:
    chip = made(
        memory_gb={"value": 96, "source": "sheet", "confidence": "datasheet"},
        sources={"sheet": "https://example.org/x.pdf"},
        price={"usd_per_hour": 2, "kind": "list", "date": "2026-05", "source": "sheet", "confidence": "secondary"},
        domain_chips=64,
        **{"class": "npu"},
    )
    assert chip.provenance["memory_gb"].source == "https://example.org/x.pdf"
    assert chip.provenance["memory_gb"].confidence == "datasheet"
    assert (chip.usd_per_hour, chip.price_date, chip.scale_up_domain) == (2.0, "2026-05", 64)


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"memory_gb": None}, "memory_gb", "memory_gb is missing"),
        ({"memory_gb": 0}, "memory_gb", "must be above 0"),
        ({"memory_gb": -96}, "memory_gb", "must be above 0"),
        ({"memory_gb": math.nan}, "memory_gb", "not finite"),
        ({"memory_gb": math.inf}, "memory_gb", "not finite"),
        ({"memory_gb": 10**400}, "memory_gb", "too large"),
        ({"memory_gb": "96"}, "memory_gb", "not a number"),
        ({"memory_gb": True}, "memory_gb", "not a number"),
        ({"memory_gb": [96]}, "memory_gb", "not a number"),
        ({"memory_gb": {"value": 96, "unit": "GB"}}, "memory_gb", "unknown key 'unit'"),
        ({"memory_gb": {"value": 96, "confidence": "sure"}}, "memory_gb", "'sure' is none of"),
        ({"memory_gbs": 96}, "memory_gbs", "Did you mean memory_gb?"),
        ({"bf16_flops": 1}, "bf16_flops", "Did you mean bf16_tflops?"),
        ({"qqq": 1}, "qqq", "Known: bf16_tflops"),
        ({"chips_per_node": 7.5}, "chips_per_node", "not a whole number"),
        ({"name": None}, "name", "needs a name"),
        ({"name": 7}, "name", "not text"),
        ({"class": "cpu"}, "class", "One of gpu, npu, tpu, custom"),
        ({"efficiency": "nvidia-hoper"}, "efficiency", "no efficiency family"),
        ({"efficiency": "../classes"}, "efficiency", "no efficiency family"),
        ({"price": 3}, "price", "must be a mapping"),
        ({"price": {"usd": 3}}, "price", "unknown key 'usd'"),
        ({"price": {"usd_per_hour": 0}}, "price.usd_per_hour", "above 0"),
        ({"price": {"usd_per_hour": 1, "date": "July"}}, "price.date", "Write it as 2026-07"),
        ({"aliases": "x"}, "aliases", "list of texts"),
        ({"released": "soon"}, "released", "not a number"),
    ],
)
def test_bad_chips_are_refused_with_key_and_reason(changes: dict[str, Any], key: str, words: str) -> None:
    problems = refused(**changes)
    assert [p.key for p in problems] == [f"sites[0].chips[0].chip.{key}"]
    assert words in str(problems[0])


def test_all_problems_at_once() -> None:
    problems = refused(memory_gb=-1, memory_gb_per_s="fast", wat=1, bf16_tflops=None)
    assert {p.key.rsplit(".", 1)[1] for p in problems} == {"memory_gb", "memory_gb_per_s", "wat", "bf16_tflops"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # an H100 as printed: both directions, then with sparsity
        ({"bf16_tflops": 989, "memory_gb_per_s": 3350, "interconnect_gb_per_s": 900}, "both directions"),
        ({"bf16_tflops": 1979, "memory_gb_per_s": 3350}, "sparsity"),
        ({"bf16_tflops": 312, "memory_gb_per_s": 2039, "interconnect_gb_per_s": 600}, "both directions"),
        ({"bf16_tflops": 2250, "memory_gb_per_s": 7700, "interconnect_gb_per_s": 1800}, "both directions"),
        ({"fp8_tflops": 1600}, "fp8 is usually twice bf16"),
        ({"bf16_tflops": 0.4}, "not PFLOP/s"),
        ({"memory_gb_per_s": 3.35, "bf16_tflops": 12}, "print TB/s"),
        ({"memory_gb": 0.096}, "not TB"),
        ({"scale_out_gbit_per_s": 25600}, "not of the node"),
        ({"chips_per_node": 72}, "belongs to domain_chips"),
        ({"all_in_kw": 1400}, "not W"),
        ({"usd_per_hour": 1500}, "not of a month"),
    ],
)
def test_implausible_numbers_are_asked_about_not_refused(changes: dict[str, Any], words: str) -> None:
    chip = made(**changes)
    assert any(words in w and w.startswith("sites[0].chips[0].chip.") for w in chip.warnings), chip.warnings


def test_a_torus_may_have_more_links() -> None:
    numbers = {"bf16_tflops": 197, "memory_gb": 16, "memory_gb_per_s": 819, "interconnect_gb_per_s": 200}
    assert made(**numbers).warnings != ()
    assert made(**numbers, **{"class": "tpu"}).warnings == ()


_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(
        st.sampled_from(["value", "source", "confidence", "usd_per_hour", "date"]), st.floats(), max_size=3
    ),
)
_keys = st.one_of(st.sampled_from([*chips.FIGURE_KEYS, *chips.TEXT_KEYS, *chips.OTHER_KEYS]), st.text(max_size=6))


@given(st.dictionaries(_keys, _values, max_size=6))
def test_whatever_is_written_gives_a_chip_or_problems(changes: dict[str, Any]) -> None:
    made_of = chip_from_mapping({**FOUR, **changes}, "chip")
    if isinstance(made_of, list):
        assert made_of and all(str(p) for p in made_of)
    else:
        assert all(math.isfinite(v) and v > 0 for v in made_of.peak_flops.values())
        assert made_of.chips_per_node >= 1 and made_of.memory_bytes > 0


@pytest.mark.parametrize("length", [200, 256, 5000])
def test_a_name_longer_than_any_files_is_just_unknown(length: int) -> None:
    assert find_chip("a" * length) is None
