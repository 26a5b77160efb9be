"""Weight formats: bytes by hand, compute dtypes, errors."""

from __future__ import annotations

import pytest

from pddplan.llm.catalogue import load_model, model_ids
from pddplan.llm.parameters import feed_forward_parameters, layer_parameters, parameters
from pddplan.llm.weights import (
    bytes_per_weight,
    experts_dtype,
    linear_dtype,
    weight_bytes,
    weight_formats,
)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bf16", 2.0),
        ("fp8_b128", 1 + 4 / 16384),
        ("fp8_b128_ue8m0", 1 + 1 / 16384),
        ("int4_g128", 0.515625),
        ("int4_g32", 0.5625),
        ("mxfp4", 0.53125),
        ("nvfp4", 0.5625),
        ("int8", 1.0),
    ],
)
def test_bytes_per_weight(name: str, size: float) -> None:
    assert bytes_per_weight(name) == size


def test_llama_by_hand() -> None:
    """8.03e9 weights; 32 x (4096*(4096+2048) + 4096^2 + 3*4096*14336) of them linear."""
    model = load_model("llama-3.1-8b")
    linear = 32 * (4096 * (4096 + 2048) + 4096**2 + 3 * 4096 * 14336)
    got = weight_bytes(model, "fp8")
    assert got.other_linear == linear * (1 + 4 / 16384)
    assert got.rest == 2 * (8_030_261_248 - linear)
    assert got.routed_experts == 0
    assert got.total == got.other_linear + got.rest


def test_experts_of_deepseek_by_hand() -> None:
    got = weight_bytes(load_model("deepseek-v3"), "nvfp4")
    assert got.routed_experts == 58 * 256 * 3 * 7168 * 2048 * 0.5625


def test_nvfp4_reaches_the_linears_of_a_dense_model() -> None:
    """nvidia/Qwen3-32B-NVFP4 quantises all linears; a mixture of experts keeps attention in fp8."""
    dense, moe = load_model("qwen3-32b"), load_model("qwen3-235b-a22b")
    assert weight_bytes(dense, "nvfp4").other_linear == parameters(dense).other_linear * 0.5625
    assert (linear_dtype(dense, "nvfp4"), linear_dtype(moe, "nvfp4")) == ("fp4", "fp8")
    assert experts_dtype(moe, "nvfp4") == "fp4"


@pytest.mark.parametrize(
    ("name", "weights", "experts", "linear"),
    [
        ("deepseek-v3", "native", "fp8", "fp8"),
        ("deepseek-v4-pro", "native", "fp8", "fp8"),  # fp4 experts times fp8 activations
        ("gpt-oss-120b", "native", "bf16", "bf16"),  # weight-only
        ("kimi-k2.5", "native", "bf16", "bf16"),
        ("deepseek-v3", "int8", "int8", "int8"),
        ("deepseek-v3", "int4", "bf16", "bf16"),
        ("llama-3.1-8b", "fp8", "fp8", "fp8"),
    ],
)
def test_compute_dtypes(name: str, weights: str, experts: str, linear: str) -> None:
    model = load_model(name)
    assert (experts_dtype(model, weights), linear_dtype(model, weights)) == (experts, linear)


def test_smaller_formats_are_smaller() -> None:
    for name in model_ids():
        model = load_model(name)
        sizes = [weight_bytes(model, f).total for f in ("bf16", "fp8", "int8", "nvfp4", "int4")]
        assert sizes == sorted(sizes, reverse=True), name


def test_layers_add_up_to_the_model() -> None:
    for name in model_ids():
        model = load_model(name)
        count = parameters(model)
        layers = sum(g.count * layer_parameters(g, model.hidden).total for g in model.groups)
        assert layers + count.embed + count.head + model.hidden + model.extra_parameters == count.total
        for g in model.groups:
            ff = feed_forward_parameters(g.feed_forward, model.hidden)
            assert ff.active <= ff.total


def test_unknown_formats_say_which_exist() -> None:
    model = load_model("llama-3.1-8b")
    assert weight_formats()[0] == "native"
    with pytest.raises(ValueError, match="unknown weights format 'fp7'; one of native, bf16, fp8"):
        weight_bytes(model, "fp7")
    with pytest.raises(ValueError, match="unknown weight format 'fp7'"):
        bytes_per_weight("fp7")
