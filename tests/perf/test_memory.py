"""Memory maps by hand. Parameter counts: config.json of each model; chip memory as in the catalogue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddplan.errors import Excuse
from pddplan.perf.activations import activation_bytes_per_chip, expert_workspace_bytes
from pddplan.perf.memory import MemoryMap, memory_map, reserve_bytes, usable_bytes, weight_bytes_per_chip
from pddplan.spec.catalogue import load_chip, load_engine
from pddplan.spec.types import Engine
from tests.perf.instances import ENGINE, four_number_chip, instance

GB = 1e9
GIB = 2.0**30


def fits(result: MemoryMap | Excuse) -> MemoryMap:
    assert isinstance(result, MemoryMap), result
    return result


def test_llama_70b_tp4_by_hand() -> None:
    """80 layers of h 8192, 64/8 heads of 128, 28672: 855,638,016 weights each, all in 16 bit, a quarter per chip."""
    one = instance("h100", "llama-3.1-70b", tp=4)
    layer = 8192 * 64 * 128 * 2 + 8192 * 8 * 128 * 2 + 3 * 8192 * 28672
    assert layer == 855_638_016
    tables = 131_072 * 128 * 2  # rotary: sines and cosines of 128 dims in 16 bit
    by_hand = 2.0 * (80 * layer + 2 * 128256 * 8192) / 4 + 2.0 * (2 * 80 + 1) * 8192 + tables
    assert weight_bytes_per_chip(one) == pytest.approx(by_hand, rel=1e-9)
    memory = fits(memory_map(one, 8192))
    usable = 81_090 * 2**20 * 0.9 - 2e9  # 79.19 GiB of the 81,559 MiB that the chip reports
    # residual stream and two copies, the widest block (3 x 28672 / 4 values), the last hidden states: more than the
    # 14.5 B of 256 x 128,256 logits
    activations = 8192 * (3 * 8192 + 3 * 28672 / 4 + 8192) * 2
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
    absorbed = 61 * 128 * (128 + 128) * 512 * 2  # the up-projections once more, in 16 bit
    tables = 163_840 * 64 * 2
    by_hand = routed * fp8 / 16 + linear * fp8 + ends + router + absorbed + tables
    assert weight_bytes_per_chip(one) == pytest.approx(by_hand, rel=2e-4)  # norms and biases are left out here
    assert by_hand / GB == pytest.approx(62.0, abs=0.1)


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


# ---------------------------------------------------------------- activations


def test_sampling_is_the_peak_of_a_large_batch() -> None:
    """1,024 rows of 128,256 logits at 14.5 B, hidden states of 8,192 tokens, 0.05 GB: 1.88 GiB; vLLM prints 1.89."""
    engine = load_engine("vllm")[0]
    one = instance("h100", "llama-3.1-8b", engine=engine)
    by_hand = 1024 * 128_256 * 14.5 + 8192 * 4096 * 2 + 0.05e9
    assert activation_bytes_per_chip(one, 8192, 1024) == pytest.approx(by_hand, rel=1e-9)
    assert by_hand / GIB == pytest.approx(1.89, abs=0.02)
    four = instance("h100", "llama-3.1-8b", tp=4, engine=engine)  # logits are gathered: no less on more chips
    assert activation_bytes_per_chip(four, 8192, 1024) == pytest.approx(by_hand, rel=1e-9)


def test_expert_workspaces_stay() -> None:
    """Qwen3-30B-A3B: 8,192 x 8 rows of 2,048 values, twice: 0.5 GiB beside sampling, 2.68 GiB in all as vLLM prints."""
    one = instance("h100", "qwen3-30b-a3b", engine=load_engine("vllm")[0])
    assert expert_workspace_bytes(one, 8192) == 8192 * 8 * 2 * 2048 * 2
    assert activation_bytes_per_chip(one, 8192, 1024) / GIB == pytest.approx(2.68, abs=0.02)
    assert expert_workspace_bytes(instance("h100", "gpt-oss-20b"), 8192) == 0.0


def test_padded_experts() -> None:
    """gpt-oss in mxfp4: 2,880 is padded to 3,072. vLLM loads 13.47 GiB of the checkpoint's 12.82."""
    assert weight_bytes_per_chip(instance("h100", "gpt-oss-20b")) / GIB == pytest.approx(13.47, rel=2e-3)


# ---------------------------------------------------------------- three laws


def pool(engine: Engine, tp: int = 1) -> tuple[MemoryMap, float]:
    """Llama 3.1 8B on H100: its map, and the memory that the driver leaves [B]."""
    return fits(memory_map(instance("h100", "llama-3.1-8b", tp=tp, engine=engine), 8192)), 81_090 * 2.0**20


def test_a_fraction_of_all() -> None:
    """vLLM: 0.92 U - R - weights - activations."""
    m, usable = pool(load_engine("vllm")[0])
    by_hand = 0.92 * usable - 0.27e9 - m.weight_bytes - m.activation_bytes
    assert m.kv_bytes_per_chip == pytest.approx(by_hand, rel=1e-9)


def test_a_static_fraction_leaves_activations_outside() -> None:
    """SGLang: (U - R) f - weights; without f it sets aside 512 + 1.5 x 8192 + 2 x 512 + 128 MiB of the 81,559."""
    engine = load_engine("sglang")[0]
    m, usable = pool(engine)
    fraction = 1 - (512 + 1.5 * 8192 + 2 * 512 + 128) / 81_559
    assert fraction == pytest.approx(0.829, abs=5e-4)
    assert m.kv_bytes_per_chip == pytest.approx((usable - 0.27e9) * fraction - m.weight_bytes, rel=1e-9)
    stated, _ = pool(replace(engine, memory_fraction=0.9))
    assert stated.kv_bytes_per_chip == pytest.approx((usable - 0.27e9) * 0.9 - m.weight_bytes, rel=1e-9)
    greedy, _ = pool(replace(engine, memory_fraction=1.0))  # activations must fit what is left
    assert greedy.kv_bytes_per_chip == pytest.approx(usable - 0.27e9 - m.weight_bytes - m.activation_bytes, rel=1e-9)


def test_a_fraction_of_what_is_free() -> None:
    """TensorRT-LLM: 0.9 (U - R - weights - activations)."""
    m, usable = pool(load_engine("trtllm")[0])
    by_hand = 0.9 * (usable - 0.27e9 - m.weight_bytes - m.activation_bytes)
    assert m.kv_bytes_per_chip == pytest.approx(by_hand, rel=1e-9)


def test_chips_that_exchange_reserve_more() -> None:
    engine = load_engine("vllm")[0]
    alone, shared = (
        instance("h100", "llama-3.1-8b", engine=engine),
        instance("h100", "llama-3.1-8b", tp=2, engine=engine),
    )
    assert reserve_bytes(alone) == pytest.approx(0.27e9)
    assert reserve_bytes(shared) == pytest.approx(2.25e9)


def test_a_chip_that_the_driver_takes_nothing_from() -> None:
    chip = four_number_chip()
    assert usable_bytes(chip) == chip.memory_bytes
    assert usable_bytes(load_chip("h200")) / GIB == pytest.approx(139.81, abs=0.01)
