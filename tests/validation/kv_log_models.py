"""Models of the engine logs that the catalogue lacks, or whose checkpoint holds more than their language model."""

from __future__ import annotations

from dataclasses import replace

from pddplan.llm.catalogue import load_model
from pddplan.llm.parameters import parameters
from pddplan.llm.types import Attention, FeedForward, LanguageModel, LayerGroup, WeightRecipe
from pddplan.llm.weights import weight_bytes

BF16 = WeightRecipe("bf16", "bf16", "bf16")
FP8 = WeightRecipe("fp8_b128", "fp8_b128", "bf16")


def qwen25_7b() -> LanguageModel:
    """https://huggingface.co/Qwen/Qwen2.5-7B-Instruct/blob/main/config.json: 7.62 B parameters."""
    attention = Attention("gqa", q_heads=28, kv_heads=4, head_dim_k=128, head_dim_v=128, bias=True)
    groups = (LayerGroup(28, attention, FeedForward("dense", intermediate=18944)),)
    return LanguageModel("qwen2.5-7b", "Qwen2.5-7B", (), 3584, 152064, False, 32768, groups, BF16)


def llama4_scout(tp: int) -> LanguageModel:
    """https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E-Instruct: 108,641,793,536 parameters, the vision tower
    among them, of which a rank has its part; rotary tables for 10,485,760 positions."""
    experts = FeedForward("moe", experts=16, top_k=1, expert_intermediate=8192, shared_intermediate=8192)
    full = Attention("gqa", q_heads=40, kv_heads=8, head_dim_k=128, head_dim_v=128)
    groups = (LayerGroup(12, full, experts), LayerGroup(36, replace(full, chunk=8192), experts))
    text = LanguageModel("scout", "Llama-4-Scout", (), 5120, 202048, False, 10_485_760, groups, BF16)
    return replace(text, extra_parameters=(108_641_793_536 - parameters(text).total) // tp)


def gemma3_27b() -> LanguageModel:
    """The checkpoint's 54,864,980,440 B (published) with its vision tower; rotary tables of the full-attention layers
    are for 8 x 131,072 positions (linear scaling by 8), those of the windows for 131,072."""
    text = load_model("gemma-3-27b")
    tower = (54_864_980_440 - weight_bytes(text, "bf16").total) / 2
    return replace(text, extra_parameters=text.extra_parameters + round(tower), max_context=9 * 131_072)


def qwen36_27b() -> LanguageModel:
    """Qwen3.6-27B and Qwen3.8-27B, text: 16 layers of full attention (4 KV heads of 256), 48 Gated DeltaNet layers."""
    dense = FeedForward("dense", intermediate=17408)
    full = Attention("gqa", q_heads=24, kv_heads=4, head_dim_k=256, head_dim_v=256, qk_norm=True, output_gate=True)
    linear = Attention("gdn", k_heads=16, v_heads=48, k_dim=128, v_dim=128, conv_kernel=4)
    groups = (LayerGroup(16, full, dense), LayerGroup(48, linear, dense))
    return LanguageModel("qwen3.6-27b", "Qwen3.6-27B", (), 5120, 248320, False, 262144, groups, FP8)


def qwen35_9b() -> LanguageModel:
    """Qwen3.5-9B, text: 8 layers of full attention (4 KV heads of 256), 24 Gated DeltaNet layers of 32 value heads."""
    dense = FeedForward("dense", intermediate=12288)
    full = Attention("gqa", q_heads=16, kv_heads=4, head_dim_k=256, head_dim_v=256, qk_norm=True, output_gate=True)
    linear = Attention("gdn", k_heads=16, v_heads=32, k_dim=128, v_dim=128, conv_kernel=4)
    groups = (LayerGroup(8, full, dense), LayerGroup(24, linear, dense))
    return LanguageModel("qwen3.5-9b", "Qwen3.5-9B", (), 4096, 248320, False, 262144, groups, BF16)


def deepseek_v2_lite() -> LanguageModel:
    """https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite-Chat/blob/main/config.json: 15.7 B parameters."""
    mla = Attention(
        "mla", q_heads=16, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, head_dim_k=192, head_dim_v=128
    )
    experts = FeedForward("moe", experts=64, top_k=6, expert_intermediate=1408, shared_intermediate=2816)
    groups = (LayerGroup(1, mla, FeedForward("dense", intermediate=10944)), LayerGroup(26, mla, experts))
    return LanguageModel("deepseek-v2-lite", "DeepSeek-V2-Lite", (), 2048, 102400, False, 163840, groups, BF16)
