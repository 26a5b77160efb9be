"""Names as other people write them."""

from __future__ import annotations

import csv

import pytest

from pddplan.accuracy.names import (
    chip_named,
    engine_label,
    engine_named,
    family_of,
    kv_named,
    mode_named,
    model_named,
    weights_named,
)
from pddplan.accuracy.records import NoPoint
from pddplan.llm.weights import NATIVE
from tests.reference import reference_dir

ABSENT_MODELS, ABSENT_CHIPS = {"bloom-176b"}, {"H200-NVL-141GB"}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Meta-Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b"),
        ("nvidia/Qwen3-32B-NVFP4", "qwen3-32b"),
        ("Llama-2-70B", "llama-2-70b"),
        ("llama2-70b-99", "llama-2-70b"),
        ("DeepSeek-V3/R1", "deepseek-r1"),
        ("DeepSeek-R1/some new one", "deepseek-r1"),
        ("QWEN/qwen3-235b-a22b-fp8", "qwen3-235b-a22b"),
    ],
)
def test_models(name: str, model: str) -> None:
    assert model_named(name).id == model


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("h100_sxm", "nvidia-h100-sxm"),
        ("H200-SXM-141GB", "nvidia-h200-sxm"),
        ("gb200", "nvidia-gb200-nvl72"),
        ("GB200 NVL72", "nvidia-gb200-nvl72"),
        ("H800-80G", "nvidia-h800-sxm"),
        ("MI300X 192GB HBM3", "amd-mi300x"),
        ("RTX PRO 6000", "nvidia-rtx-pro-6000-server"),
    ],
)
def test_chips(name: str, chip: str) -> None:
    assert chip_named(name).id == chip


def test_unknown_names_say_what_is_near() -> None:
    with pytest.raises(NoPoint, match=r"unknown model 'llama-3.1-9b' \(closest: llama-3.1-"):
        model_named("llama-3.1-9b")
    with pytest.raises(NoPoint, match=r"unknown chip 'h210' \(closest: nvidia-h2"):
        chip_named("h210")
    with pytest.raises(NoPoint, match="no model is named"):
        model_named("  ")
    endless = "x" * 100_000
    for find in (model_named, chip_named):
        with pytest.raises(NoPoint) as caught:
            find(endless)
        assert len(str(caught.value)) < 100


def test_a_chip_that_is_not_known_well_enough() -> None:
    with pytest.raises(NoPoint, match="lacks"):
        chip_named("enflame-l600")


def test_families_join_releases_of_one_architecture() -> None:
    assert family_of("deepseek-r1") == family_of("deepseek-v3") == "deepseek-v3"
    assert family_of("deepseek-v3.2") == "deepseek-v3.2"
    assert family_of("llama-3.1-8b") == family_of("llama-3.1-405b") == "llama-3.1"
    assert family_of("qwen3-235b-a22b") == family_of("qwen3-30b-a3b") == "qwen3-moe"
    assert family_of("qwen3-32b") == "qwen3"
    assert family_of("qwen3.5-397b-a17b") == "qwen3.5-moe"


def test_engines() -> None:
    names = ["TensorRT-LLM 1.x (trtllm-bench)", "TensorRT 10.11, CUDA 12.9", "trtllm 1.0.0rc3", "SGLang", "vLLM 0.19.0"]
    assert [engine_named(n) for n in names] == ["trtllm", "trtllm", "trtllm", "sglang", "vllm"]
    assert engine_named("DeepSeek in-house") == engine_named("") == "generic"


def test_an_engine_of_a_past_year_is_a_group_of_its_own() -> None:
    assert engine_label("vLLM 2023") == engine_label("vllm-2023") == "vllm-2023"
    assert engine_label("vLLM nightly 2026-02") == engine_label("vllm 0.12.0") == "vllm"


def test_modes() -> None:
    assert [mode_named(m) for m in ("agg", "Aggregated", "disagg", "prefill-only", "decode")] == [
        *("aggregated", "aggregated", "disaggregated", "prefill", "decode")
    ]
    with pytest.raises(NoPoint, match="none of aggregated"):
        mode_named("both")


def test_weights_as_stated_by_the_name_or_as_released() -> None:
    h100, mi300x = chip_named("h100"), chip_named("mi300x")
    assert weights_named("fp8/fp8_block", "x", h100) == "fp8"
    assert weights_named("fp16", "x", h100) == "bf16"
    assert weights_named("fp4", "x", h100) == "nvfp4"
    assert weights_named("fp4", "x", mi300x) == "mxfp4"
    assert weights_named("nvfp4 MoE+o_proj", "x", h100) == "nvfp4_experts_fp8_rest"
    assert weights_named("", "Qwen/Qwen3-235B-A22B-FP8", h100) == "fp8"
    assert weights_named("", "Qwen/Qwen3-32B", h100) == NATIVE
    with pytest.raises(NoPoint, match="weights format 'fp3'"):
        weights_named("fp3", "x", h100)


def test_kv_formats() -> None:
    assert kv_named("bf16 (MLA core)") == kv_named("fp16") == "bf16"
    assert kv_named("fp8_e4m3") == "fp8"
    assert kv_named("auto") is None
    with pytest.raises(NoPoint):
        kv_named("int3")


def test_every_name_of_the_collection() -> None:
    """Only these models and chips are not in the catalogue."""
    with (reference_dir() / "measurements" / "serving_points.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for name in {r["model"] for r in rows} - ABSENT_MODELS:
        model_named(name)
    for name in {r["chip"] for r in rows} - ABSENT_CHIPS:
        chip_named(name)
