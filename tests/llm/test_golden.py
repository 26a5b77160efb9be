"""Published figures typed by hand: they bite without reference data."""

from __future__ import annotations

import pytest

from pddplan.llm.catalogue import load_model
from pddplan.llm.decode import decode_weight_bytes
from pddplan.llm.flops import decode_flops, group_decode_attention_flops, head_flops, prefill_flops
from pddplan.llm.kv import group_kv_read_bytes, kv_bytes, kv_bytes_per_token, kv_read_bytes, state_bytes
from pddplan.llm.parameters import attention_parameters, parameters
from pddplan.llm.weights import bytes_per_weight, weight_bytes
from pddplan.units import GIB

# Checkpoint sizes in bytes as published with the weights (safetensors headers add up to 0.01 %).
CHECKPOINTS = [
    ("llama-3.1-8b", 16_060_556_376, "https://huggingface.co/meta-llama/Llama-3.1-8B"),
    ("llama-3.1-70b", 141_107_497_872, "https://huggingface.co/meta-llama/Llama-3.1-70B"),
    ("llama-3.1-405b", 811_706_916_800, "https://huggingface.co/meta-llama/Llama-3.1-405B"),
    ("qwen3-30b-a3b", 61_066_575_648, "https://huggingface.co/Qwen/Qwen3-30B-A3B"),
    ("qwen3-235b-a22b", 470_191_875_096, "https://huggingface.co/Qwen/Qwen3-235B-A22B"),
    ("mixtral-8x7b", 93_405_713_504, "https://huggingface.co/mistralai/Mixtral-8x7B-v0.1"),
    ("kimi-k2", 1_029_190_981_272, "https://huggingface.co/moonshotai/Kimi-K2-Instruct"),
]


@pytest.mark.parametrize(("name", "published", "source"), CHECKPOINTS)
def test_checkpoint_sizes(name: str, published: int, source: str) -> None:
    assert weight_bytes(load_model(name), "native").total == pytest.approx(published, rel=1e-4), source


def test_deepseek_v3_checkpoint_with_its_mtp_module() -> None:
    """688,586,727,753 B on Hugging Face: fp8 weights, the MTP module, and embedding and head a second time."""
    model = load_model("deepseek-v3")
    count = parameters(model)
    total = weight_bytes(model, "native").total
    total += model.mtp_parameters * bytes_per_weight("fp8_b128")
    total += 2 * model.hidden**2  # the module's input projection stays in 16 bit: one byte more a weight
    total += (count.embed + count.head) * bytes_per_weight("bf16")
    assert total == pytest.approx(688_586_727_753, rel=5e-5)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("deepseek-v3", 671e9, 36.6e9),  # https://arxiv.org/abs/2412.19437: 37B with the head, embedding not counted
        ("kimi-k2", 1.03e12, 31.7e9),  # https://arxiv.org/abs/2507.20534: 1.04T, 32.6B
        ("qwen3-235b-a22b", 235e9, 21.6e9),  # https://arxiv.org/abs/2505.09388: 235B, 22B
        ("gpt-oss-120b", 116.83e9, 5.13e9),  # https://arxiv.org/abs/2508.10925: 116.83B, 5.13B
        ("deepseek-v4-pro", 1.573e12, 48.9e9),  # https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro: 1.6T, 49B
        ("step-3", 316e9, 38e9),  # https://arxiv.org/abs/2507.19427: 316B without the vision tower, 38B
        ("llama-2-70b", 68.98e9, 68.7e9),  # https://huggingface.co/meta-llama/Llama-2-70b: 69B
        ("qwen3-8b", 8.19e9, 7.57e9),  # https://huggingface.co/Qwen/Qwen3-8B: 8.2B
    ],
)
def test_published_parameter_counts(name: str, total: float, active: float) -> None:
    count = parameters(load_model(name))
    assert count.total == pytest.approx(total, rel=0.005)
    assert count.active_no_embed_no_head + count.head == pytest.approx(active, rel=0.005)


@pytest.mark.parametrize(
    ("name", "kv_format", "tokens", "published", "tolerance", "source"),
    [
        ("deepseek-v3", "bf16", 1, 70_272, 0, "https://arxiv.org/abs/2505.09343 table 1"),
        ("qwen2.5-72b", "bf16", 1, 327_680, 0, "https://arxiv.org/abs/2505.09343 table 1"),
        ("llama-3.1-405b", "bf16", 1, 516_096, 0, "https://arxiv.org/abs/2505.09343 table 1"),
        ("deepseek-v4-pro", "bf16", 2**20, 9.62 * GIB, 2e-3, "https://vllm-project.github.io 2026-04-24-deepseek-v4"),
        ("deepseek-v3.2", "fp8", 2**20, 50.4e9, 1e-2, "https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro report"),
        ("kimi-k2.5", "bf16", 2_454_421, 160.63 * GIB, 1e-4, "SGLang log"),
        ("llama-3.1-8b", "bf16", 1024, 0.125 * GIB, 0, "https://huggingface.co/blog/llama31"),
    ],
)
def test_published_kv_sizes(
    name: str, kv_format: str, tokens: int, published: float, tolerance: float, source: str
) -> None:
    model = load_model(name)
    growing = kv_bytes_per_token(model, kv_format) * tokens
    assert growing == pytest.approx(published, rel=max(tolerance, 1e-12)), source
    assert float(kv_bytes(model, tokens, kv_format)) == pytest.approx(published, rel=max(tolerance, 1e-12)), source


def test_training_flops_of_deepseek_v3() -> None:
    """250 GFLOPs per training token at 4,096 = 3 forward passes with all logits: https://arxiv.org/abs/2505.09343."""
    model = load_model("deepseek-v3")
    forward = float(prefill_flops(model, 4096, 0)) + 4095 * head_flops(model)
    assert 3 * forward / 4096 == pytest.approx(250e9, rel=0.005)


def test_deepseek_v4_pro_against_v3_2_at_a_million_tokens() -> None:
    """Report: 27 % of the decode FLOPs and about 10 % of the KV cache of V3.2."""
    old, new = load_model("deepseek-v3.2"), load_model("deepseek-v4-pro")
    assert float(decode_flops(new, 2**20) / decode_flops(old, 2**20)) == pytest.approx(0.27, abs=0.01)
    assert kv_bytes_per_token(new, "fp8") / kv_bytes_per_token(old, "fp8") == pytest.approx(0.10, abs=0.006)


def test_state_of_hybrids_by_hand() -> None:
    """Qwen3-Next: 36 GDN layers of 32*128*128 fp32 and (2*16*128 + 32*128)*3 bf16."""
    assert state_bytes(load_model("qwen3-next-80b-a3b")) == 36 * (
        32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2
    )
    assert state_bytes(load_model("kimi-linear-48b-a3b")) == 20 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2)
    assert state_bytes(load_model("nemotron-3-nano-30b-a3b")) == 23 * (
        64 * 64 * 128 * 4 + (64 * 64 + 2 * 8 * 128) * 3 * 2
    )


def test_one_sequence_reads_its_active_weights() -> None:
    """A batch of one touches k experts a layer: Qwen3-30B-A3B reads 2 B x (3.353e9 - embedding)."""
    model = load_model("qwen3-30b-a3b")
    count = parameters(model)
    assert float(decode_weight_bytes(model, 1, "bf16")) == pytest.approx(2 * (count.active - count.embed), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "total", "attention"),
    [
        ("qwen3-next-80b-a3b", 79_674_391_296, 1_541_026_560),
        ("kimi-linear-48b-a3b", 49_122_675_072, 994_089_600),
        ("nemotron-3-nano-30b-a3b", 31_577_937_344, 1_031_448_896),
        ("deepseek-v3.2", 671_877_929_216, 12_265_071_872),
        ("deepseek-v4-pro", 1_572_997_179_491, 19_549_058_142),
        ("gpt-oss-120b", 116_829_156_672, 955_805_184),
        ("glm-5.2", 743_377_000_704, 13_068_542_208),
        ("nemotron-h-56b", 56_324_350_464, 25_184_862_720),
        ("nemotron-3-ultra-550b-a55b", 549_308_968_960, 21_899_513_856),
        ("gemma-3-27b", 27_009_346_304, None),
        ("llama-4-maverick", 400_711_848_960, 3_019_898_880),
    ],
)
def test_counts_of_the_model_classes_are_exact(name: str, total: int, attention: int | None) -> None:
    """Parameters of the transformers 5.24.0 model classes: https://github.com/huggingface/transformers."""
    count = parameters(load_model(name))
    assert count.total == total
    assert attention is None or count.attention == attention


@pytest.mark.parametrize(
    ("name", "total", "tolerance", "source"),
    [
        ("minimax-m1", 456e9, 0.001, "https://arxiv.org/abs/2506.13585"),
        ("step-3.5-flash", 196.81e9, 0.001, "https://huggingface.co/stepfun-ai/Step-3.5-Flash"),
        ("ring-2.5-1t", 1.01e12, 0.003, "https://github.com/inclusionAI/Ring-V2.5"),
        ("kimi-k3", 2.8e12, 0.006, "https://huggingface.co/moonshotai/Kimi-K3"),
        ("nemotron-3-ultra-550b-a55b", 550e9, 0.002, "the model's name"),
    ],
)
def test_published_totals(name: str, total: float, tolerance: float, source: str) -> None:
    assert parameters(load_model(name)).total == pytest.approx(total, rel=tolerance), source


def test_minimax_m1_active_parameters() -> None:
    """45.9B, with neither embedding nor head: https://arxiv.org/abs/2506.13585."""
    assert parameters(load_model("minimax-m1")).active_no_embed_no_head == pytest.approx(45.9e9, rel=0.001)


def test_block_sparse_attention_of_minimax_m3_by_hand() -> None:
    """57 of 60 layers read index keys of the whole context (128 B fp8) and 16 blocks of 128 keys, 1,024 B each."""
    model = load_model("minimax-m3")
    read = 3 * 1024 * 32_768 + 57 * (1024 * 2048 + 128 * 32_768)
    assert float(kv_read_bytes(model, 32_768, "fp8")) == read
    assert kv_bytes_per_token(model, "fp8") == 60 * 1024 + 57 * 128
    sparse = model.groups[1]
    assert float(group_kv_read_bytes(sparse, 32_768, "fp8", tp=4)) == 1024 * 2048 / 4 + 128 * 32_768  # keys are copied
    scores, attended = 2 * 4 * 128 * 32_768, 2 * 64 * 256 * 2048
    flops = group_decode_attention_flops(sparse, 32_768)
    assert (float(flops.indexer), float(flops.dense)) == (scores, attended)


def test_low_rank_queries_of_step_3_by_hand() -> None:
    """MFA: h*2048 + 2048 + 2048*64*256 queries, one K and one V head of 256, 64*256*h out."""
    layer = attention_parameters(load_model("step-3").groups[0].attention, 7168)
    assert layer.total == 7168 * 2048 + 2048 + 2048 * 64 * 256 + 7168 * 2 * 256 + 64 * 256 * 7168
