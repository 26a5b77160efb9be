"""What a chip runs where it lacks a format: of the weights and of the KV cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddplan.llm.catalogue import load_model
from pddplan.llm.weights import weight_bytes
from pddplan.perf.candidates import candidate_instances
from pddplan.perf.precision import kv_between, kv_on, reads_kv, weights_on
from pddplan.spec.types import ChipOffer, ChipPrecision, Precision
from tests.perf.instances import ENGINE, four_number_chip, offer


def stating(chip: str, weights: str | None = None, kv_cache: str | None = None) -> ChipOffer:
    return replace(offer(chip), precision=ChipPrecision(weights, kv_cache))


@pytest.mark.parametrize(
    ("chip", "model", "wanted", "runs", "said"),
    [
        ("h800", "deepseek-v3.2", "native", "native", ""),
        ("a100", "deepseek-v3.2", "native", "int8", "no fp8: it computes in int8"),  # the checkpoint is fp8
        ("a100", "deepseek-v3.2", "fp8", "int8", "no fp8: it computes in int8"),
        ("gaudi3", "llama-3.1-70b", "int8", "fp8", "no int8: it computes in fp8"),
        ("a100", "llama-3.1-70b", "native", "native", ""),  # bf16
        ("a100", "gpt-oss-120b", "native", "native", ""),  # 4 bits, widened to bf16 on any chip
        ("a100", "llama-3.1-70b", "int4", "int4", ""),
        ("a100", "deepseek-v4-flash", "native", "native", "widened to bf16"),  # int8 would double its 4-bit experts
        ("h100", "llama-3.1-70b", "nvfp4", "nvfp4", "no fp4: the weights stay so in memory and are widened to fp8"),
        ("a100", "deepseek-v3.2", "nvfp4", "nvfp4", "no fp4 and no fp8"),
        ("b200", "deepseek-v3.2", "nvfp4", "nvfp4", ""),
    ],
)
def test_weights_on_a_chip(chip: str, model: str, wanted: str, runs: str, said: str) -> None:
    found = weights_on(offer(chip), load_model(model), wanted)
    assert found.weights == runs
    assert said in found.note and bool(found.note) == bool(said)


@pytest.mark.parametrize("model", ["deepseek-v3.2", "llama-3.1-70b"])
def test_the_other_eight_bits_are_as_many_bytes(model: str) -> None:
    found = weights_on(offer("a100"), load_model(model), "fp8")
    asked, runs = (weight_bytes(load_model(model), name).total for name in ("fp8", found.weights))
    assert runs == pytest.approx(asked, rel=1e-3) and found.weights != "fp8"


def test_a_chip_of_bf16_alone_widens() -> None:
    found = weights_on(offer(four_number_chip()), load_model("llama-3.1-70b"), "fp8")
    assert found.weights == "fp8" and "widened to bf16" in found.note


def test_what_is_stated_is_not_changed() -> None:
    model = load_model("deepseek-v3.2")
    assert weights_on(stating("a100", weights="fp8"), model, "int8").weights == "fp8"
    assert weights_on(stating("a100", kv_cache="fp8"), model, "fp8").weights == "int8"  # nothing is stated of these
    assert kv_on(stating("a100", kv_cache="fp8"), "bf16") == "fp8"
    assert kv_on(stating("h20", kv_cache="bf16"), "fp8") == "bf16"


@pytest.mark.parametrize(("chip", "fp8"), [("h20", True), ("a100", False), ("910c", False), ("gaudi3", True)])
def test_every_chip_reads_bf16_and_fp8_if_it_computes_in_it(chip: str, fp8: bool) -> None:
    assert reads_kv(offer(chip), "bf16") and reads_kv(offer(chip), "fp8") == fp8
    assert kv_on(offer(chip), "bf16") == "bf16" and kv_on(offer(chip), "fp8") == ("fp8" if fp8 else "bf16")


@pytest.mark.parametrize(
    ("sender", "receiver", "wanted", "crosses"),
    [
        (offer("h800"), offer("h20"), "fp8", "fp8"),
        (offer("h800"), offer("h20"), "bf16", "bf16"),
        (offer("a100"), offer("h20"), "fp8", "bf16"),
        (offer("h20"), offer("a100"), "fp8", "bf16"),
        (offer("a100"), offer("910c"), "fp8", "bf16"),
        (offer("h800"), stating("h20", kv_cache="bf16"), "fp8", "fp8"),  # it reads fp8 and turns it into bf16
        (stating("a100", kv_cache="fp8"), offer("h20"), "fp8", "fp8"),
        (stating("a100", kv_cache="fp8"), stating("h20", kv_cache="fp8"), "bf16", "fp8"),  # both hold it
        (stating("h800", kv_cache="fp8"), offer("h20"), "bf16", "bf16"),
    ],
)
def test_what_crosses_is_read_by_both(sender: ChipOffer, receiver: ChipOffer, wanted: str, crosses: str) -> None:
    found = kv_between(sender, receiver, wanted)
    assert found == crosses
    assert reads_kv(sender, found) and reads_kv(receiver, found)


def test_candidates_follow() -> None:
    model, asked = load_model("deepseek-v3.2"), Precision("fp8", "fp8")
    for where, formats in ((offer("910c"), ("int8", "bf16")), (offer("h20"), ("fp8", "fp8"))):
        fits, _ = candidate_instances(where, model, ENGINE, asked, "main_decode")
        assert fits and {(i.weights, i.kv_cache) for i in fits} == {formats}
