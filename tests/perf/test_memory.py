"""Memory maps by hand. Parameter counts: config.json of each model; chip memory as in the catalogue."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from pddplan.errors import Excuse
from pddplan.llm.catalogue import load_model
from pddplan.perf.curves import load_curves
from pddplan.perf.instance import Instance, Parallelism
from pddplan.perf.memory import MemoryMap, activation_bytes_per_chip, memory_map, weight_bytes_per_chip
from pddplan.spec.catalogue import load_chip, load_engine
from tests.perf.instances import ENGINE, four_number_chip, instance
from tests.reference import reference_dir

GB = 1e9
GIB = 2.0**30
# row of models/kv_log_facts.csv, chip, model, tp, weights
ENGINE_LOGS = (
    ("2", "h100", "qwen3-235b-a22b", 4, "fp8"),
    ("8", "h100", "llama-3.1-8b", 1, "native"),
    ("12", "h100", "gemma-3-27b", 1, "native"),
    ("38", "h100", "gpt-oss-120b", 1, "native"),
    ("39", "h100", "gpt-oss-20b", 1, "native"),
    ("41", "h100", "qwen3-32b", 1, "native"),
    ("42", "h100", "qwen3-32b", 2, "native"),
)


def fits(result: MemoryMap | Excuse) -> MemoryMap:
    assert isinstance(result, MemoryMap), result
    return result


def test_llama_70b_tp4_by_hand() -> None:
    """80 layers of h 8192, 64/8 heads of 128, 28672: 855,638,016 weights each, all in 16 bit, a quarter per chip."""
    one = instance("h100", "llama-3.1-70b", tp=4)
    layer = 8192 * 64 * 128 * 2 + 8192 * 8 * 128 * 2 + 3 * 8192 * 28672
    assert layer == 855_638_016
    by_hand = 2.0 * (80 * layer + 2 * 128256 * 8192) / 4 + 2.0 * (2 * 80 + 1) * 8192
    assert weight_bytes_per_chip(one) == pytest.approx(by_hand, rel=1e-9)
    memory = fits(memory_map(one, 8192))
    usable = one.chip.memory_bytes * 0.9 - 2e9
    # residual twice, the widest block (3 x 28672 / 4 values), 256 rows of fp32 logits
    activations = 8192 * (2 * 8192 + 3 * 28672 / 4) * 2 + 256 * 128256 / 4 * 4
    assert memory.activation_bytes == pytest.approx(activations, rel=1e-9)
    assert memory.kv_bytes_per_chip == pytest.approx(usable - by_hand - activations, rel=1e-9)
    # 8 KV heads over 4 chips: no copies, so the four pools add up: 327,680 B a token
    assert memory.kv_pool_bytes == pytest.approx(4 * memory.kv_bytes_per_chip, rel=1e-9)
    assert memory.kv_pool_bytes / 327_680 == pytest.approx(4 * (usable - by_hand - activations) / 327_680)


def test_deepseek_v3_ep16_by_hand() -> None:
    """671 B weights in fp8 blocks of 128 x 128 with an fp32 scale each; dp 16: attention whole on every chip."""
    one = instance("h800", "deepseek-v3", dp=16, ep=16)
    fp8 = 1 + 4 / 128**2
    routed = 58 * 256 * 3 * 7168 * 2048
    mla = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    linear = 61 * mla + 58 * 3 * 7168 * 2048 + 3 * 3 * 7168 * 18432
    ends = 2 * 129280 * 7168 * 2
    router = 58 * 256 * 7168 * 2
    by_hand = routed * fp8 / 16 + linear * fp8 + ends + router
    assert weight_bytes_per_chip(one) == pytest.approx(by_hand, rel=2e-4)  # norms and biases are left out here
    assert by_hand / GB == pytest.approx(60.0, abs=0.1)


@pytest.mark.parametrize("chip", ["h800", "h20"])
def test_mla_cache_is_copied_over_tp(chip: str) -> None:
    """TP16 keeps 16 copies of one cache: the instance holds what one chip's pool holds; DP16 holds 16 pools."""
    tp = fits(memory_map(instance(chip, "deepseek-v3", tp=16, ep=16), 512))
    dp = fits(memory_map(instance(chip, "deepseek-v3", dp=16, ep=16), 512))
    assert tp.kv_pool_bytes == pytest.approx(tp.kv_bytes_per_chip, rel=1e-9)
    assert dp.kv_pool_bytes == pytest.approx(16 * dp.kv_bytes_per_chip, rel=1e-9)
    assert tp.weight_bytes < dp.weight_bytes  # attention is split over TP, copied over DP


def test_kv_heads_are_copied_beyond_tp() -> None:
    """8 KV heads over 16 chips: each head twice, so half of the physical pool counts."""
    wide = replace(four_number_chip(), scale_up_domain=16, chips_per_node=16)
    memory = fits(memory_map(instance(wide, "llama-3.1-70b", tp=16), 512))
    assert memory.kv_pool_bytes == pytest.approx(16 * memory.kv_bytes_per_chip / 2, rel=1e-9)


def test_pipeline_splits_layers_and_their_cache() -> None:
    """61 layers over 2 stages: the fuller has 31, and its pool decides for both."""
    one = instance("h20", "deepseek-v3", tp=8, pp=2, ep=8)
    memory = fits(memory_map(one, 512))
    assert memory.kv_pool_bytes == pytest.approx(memory.kv_bytes_per_chip * 2 * 61 / 62, rel=1e-9)
    flat = fits(memory_map(instance("h20", "deepseek-v3", tp=16, ep=16), 512))
    assert memory.weight_bytes > flat.weight_bytes


def test_excuse_says_what_does_not_fit() -> None:
    excuse = memory_map(instance("h800", "llama-3.1-70b", tp=1), 8192)
    assert isinstance(excuse, Excuse)
    assert excuse.constraint == "memory"
    assert excuse.value > 141.0 > excuse.limit
    assert excuse.unit == "GB per chip"
    assert "llama-3.1-70b" in excuse.subject


def test_activations_grow_with_tokens_and_shrink_with_tp() -> None:
    one, two = instance("h100", "llama-3.1-70b", tp=4), instance("h100", "llama-3.1-70b", tp=8)
    assert activation_bytes_per_chip(one, 8192, 1) > activation_bytes_per_chip(one, 4096, 1)
    assert activation_bytes_per_chip(two, 8192, 1) < activation_bytes_per_chip(one, 8192, 1)


def test_fp8_cache_does_not_change_the_pool() -> None:
    """The pool is bytes; the format changes how many tokens it holds."""
    a = fits(memory_map(instance("h100", "llama-3.1-70b", tp=4, kv_cache="bf16"), 512))
    b = fits(memory_map(instance("h100", "llama-3.1-70b", tp=4, kv_cache="fp8"), 512))
    assert a.kv_pool_bytes == pytest.approx(b.kv_pool_bytes)


def test_more_reserve_less_pool() -> None:
    tight = replace(ENGINE, reserve_bytes=10e9)
    a = fits(memory_map(instance("h100", "llama-3.1-8b"), 512))
    b = fits(memory_map(instance("h100", "llama-3.1-8b", engine=tight), 512))
    assert a.kv_bytes_per_chip - b.kv_bytes_per_chip == pytest.approx(8e9)


def test_pools_that_engines_log() -> None:
    """Weights and free KV memory per chip as vLLM 0.11/0.19 and SGLang print them, engine profile from the catalogue.

    Bars: weights within 6 % (gpt-oss is padded to 2,880 by the engine), the pool within 7 % of the chip's memory.
    """
    with (reference_dir() / "models" / "kv_log_facts.csv").open(newline="", encoding="utf-8") as file:
        logs = {row["id"]: row for row in csv.DictReader(file)}
    print("\nmodel             weights GiB (log)      KV pool GiB (log)")
    for row, chip_name, model, tp, weights in ENGINE_LOGS:
        log, chip = logs[row], load_chip(chip_name)
        engine = replace(load_engine(log["engine"])[0], memory_fraction=float(log["mem_util"]))
        one = Instance(chip, load_model(model), Parallelism(tp=tp), engine, weights, "bf16", load_curves(chip))
        memory = fits(memory_map(one, engine.chunk_tokens))
        pool, logged = memory.kv_bytes_per_chip / GIB, float(log["avail_kv_gib_per_gpu"])
        loaded = log["weights_gib_per_gpu"]
        print(f"{model:17s} {memory.weight_bytes / GIB:6.2f} ({loaded or '-':>6s})    {pool:6.2f} ({logged:6.2f})")
        if loaded:
            assert memory.weight_bytes / GIB == pytest.approx(float(loaded), rel=0.06)
        assert abs(pool - logged) <= 0.07 * chip.memory_bytes / GIB
