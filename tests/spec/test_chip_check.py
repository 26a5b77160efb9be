"""A new chip's file looked over: what is missing, implausible, unusual, left out; what can't be read."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pddplan.errors import InputError
from pddplan.spec.catalogue import chip_ids, hardware_dir, load_chip
from pddplan.spec.chip_check import ChipCheck, check_chip_file

GOOD = {
    "name": "Acme One",
    "class": "npu",
    "bf16_tflops": "400",
    "fp8_tflops": "800",
    "memory_gb": "96",
    "memory_gb_per_s": "2000",
    "interconnect_gb_per_s": "200",
}


def checked(folder: Path, **changes: str | None) -> ChipCheck:
    path = folder / "acme-one.yaml"
    path.write_text("".join(f"{k}: {v}\n" for k, v in {**GOOD, **changes}.items() if v is not None))
    return check_chip_file(path)


@pytest.mark.parametrize("chip_id", chip_ids())
def test_a_file_of_the_catalogue_is_as_complete_as_its_chip(chip_id: str) -> None:
    check = check_chip_file(hardware_dir() / "chips" / f"{chip_id}.yaml")
    assert check.chip.missing == load_chip(chip_id).missing
    assert (check.status == "incomplete") == bool(check.chip.missing)
    assert not check.of_kind("name")


def test_four_numbers_are_complete(tmp_path: Path) -> None:
    check = checked(tmp_path)
    assert (check.status, check.chip_id, check.chip.missing) == ("complete", "acme-one", ())
    left = {f.key for f in check.of_kind("left out")}
    assert left == {"chips_per_node", "scale_out_gbit_per_s", "domain_chips", "price", "all_in_kw", "sources"}
    assert not check.of_kind("implausible") and not check.of_kind("name")


@pytest.mark.parametrize("key", ["memory_gb", "memory_gb_per_s", "interconnect_gb_per_s"])
@pytest.mark.parametrize("value", [None, "null", ""])
def test_each_missing_dimension_is_named(tmp_path: Path, key: str, value: str | None) -> None:
    check = checked(tmp_path, **{key: value})
    assert check.status == "incomplete"
    assert [f.key for f in check.of_kind("missing")] == [key]


def test_compute_is_missing_only_without_any_format(tmp_path: Path) -> None:
    assert checked(tmp_path, bf16_tflops=None).status == "complete"
    none = checked(tmp_path, bf16_tflops=None, fp8_tflops=None)
    assert [f.key for f in none.of_kind("missing")] == ["bf16_tflops"]


def test_implausible_figures_have_key_line_and_a_hint(tmp_path: Path) -> None:
    check = checked(tmp_path, interconnect_gb_per_s="900", memory_gb="0.096")
    assert check.status == "implausible"
    found = {f.key: f for f in check.of_kind("implausible")}
    assert "not TB" in found["memory_gb"].message and found["memory_gb"].line == 5
    assert "both directions" in found["interconnect_gb_per_s"].message and found["interconnect_gb_per_s"].line == 7


def test_what_is_plausible_depends_on_the_class(tmp_path: Path) -> None:
    torus = {"bf16_tflops": "197", "fp8_tflops": None, "memory_gb_per_s": "819", "interconnect_gb_per_s": "200"}
    assert checked(tmp_path, **torus, **{"class": "npu"}).status == "implausible"
    assert checked(tmp_path, **torus, **{"class": "tpu"}).status == "complete"


def test_figures_beyond_the_class_in_the_catalogue_are_unusual(tmp_path: Path) -> None:
    check = checked(tmp_path, memory_gb="20")
    assert [f.key for f in check.of_kind("unusual")] == ["memory_gb"]
    (memory,) = [r for r in check.ranges if r.key == "memory_gb"]
    peers = [c for c in map(load_chip, chip_ids()) if c.chip_class == "npu" and not c.missing]
    assert check.peers == len(peers)
    assert memory.low == min(c.memory_gb_nominal or 0 for c in peers) and memory.outside
    assert load_chip(memory.low_chip).memory_gb_nominal == memory.low
    assert checked(tmp_path, **{"class": None}).peers == 47  # no class: against all


def test_taken_names(tmp_path: Path) -> None:
    check = checked(tmp_path, id="H100_SXM", aliases="[mi300x, acme]")
    assert {(f.key, f.message) for f in check.of_kind("name")} == {
        ("id", "'h100-sxm' is nvidia-h100-sxm already."),
        ("aliases", "'mi300x' is amd-mi300x already."),
    }


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("name: x\nbf16_tflops: -3\n", 2, "bf16_tflops: -3 must be above 0"),
        ("name: x\nmemory_gb: fast\n", 2, "'fast' is not a number"),
        ("name: x\nmemory_gb: .nan\n", 2, "not finite"),
        ("name: x\nmemory_gb: 1e30\n", 2, "too large"),
        ("name: x\nmemory_gbs: 3\n", 2, "Did you mean memory_gb?"),
        ("name: x\nclass: cpu\n", 2, "One of gpu, npu, tpu, custom"),
        ("name: x\nefficiency: 1.2\n", 2, "above what the chip can do"),
        ("name: x\nname: y\n", 2, "given twice"),
        ("name: !!python/object:os.system x\n", 1, "tags are not read"),
        ("memory_gbs: 3\n", None, "name: isn't given"),
        ("[1, 2]\n", 1, "not keys with values"),
        ("name: [\n", 1, "is not valid YAML"),
        ("", None, "is empty"),
        ("\x00", None, "not text"),
        ("a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"c{i}: &c{i} [*b, *b]\n" for i in range(9)), 1, "unknown key"),
        ("name: " + "[" * 200, 1, ""),
        ("# " + "x" * (1 << 20), None, "larger than 1 MiB"),
    ],
)
def test_what_is_no_chip_is_refused_with_its_line(tmp_path: Path, text: str, line: int | None, words: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        check_chip_file(path)
    problems = error.value.problems
    assert all(p.file == str(path) and "cenario" not in str(p) for p in problems), [str(p) for p in problems]
    assert any(words in str(p) and (line is None or p.line == line) for p in problems), [str(p) for p in problems]


@pytest.mark.parametrize("name", ["nothing.yaml", "."])
def test_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as error:
        check_chip_file(tmp_path / name)
    assert "A chip file has the keys" in str(error.value)


def test_json_and_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"fp8_tflops": 800, "memory_gb": 96, "memory_gb_per_s": 2e3, "interconnect_gb_per_s": 2e2}
    text = json.dumps({"name": "Acme Two", **numbers}).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    check = check_chip_file("-")
    assert (check.status, check.chip_id) == ("complete", "acme-two")
    assert check.chip.peak_flops["bf16"] == 400e12
