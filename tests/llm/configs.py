"""Small config.json files by hand, one an architecture; figures are made up but for their names."""

from __future__ import annotations

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}

_MLA: dict[str, Any] = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}

DEEPSEEK: dict[str, Any] = {
    **LLAMA,
    **_MLA,
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}

QWEN_NEXT: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}

GPT_OSS: dict[str, Any] = {
    **LLAMA,
    "model_type": "gpt_oss",
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 128,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}

NEMOTRON: dict[str, Any] = {
    **LLAMA,
    "model_type": "nemotron_h",
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M-*E",
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}

KIMI_LINEAR: dict[str, Any] = {
    **LLAMA,
    **_MLA,
    "model_type": "kimi_linear",
    "q_lora_rank": None,
    "linear_attn_config": {
        "full_attn_layers": [2],
        "kda_layers": [1],
        "num_heads": 4,
        "head_dim": 8,
        "short_conv_kernel_size": 4,
    },
    "num_experts": 8,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 32,
}

STEP: dict[str, Any] = {
    "model_type": "step3_vl",
    "vision_config": {"hidden_size": 5},
    "text_config": {
        "model_type": "step3_text",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_attention_groups": 1,
        "head_dim": 16,
        "share_q_dim": 32,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embedding": 4096,
        "moe_layers_enum": "1,2",
        "moe_num_experts": 8,
        "moe_top_k": 2,
        "moe_intermediate_size": 32,
        "share_expert_dim": 16,
    },
}

COMPRESSED: dict[str, Any] = {
    **LLAMA,
    "model_type": "deepseek_v4",
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "compress_ratios": [128, 4, 0, 0],
    "sliding_window": 128,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "o_groups": 2,
    "o_lora_rank": 8,
    "hc_mult": 4,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_nextn_predict_layers": 1,
    "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
}

BLOCK_SPARSE: dict[str, Any] = {
    **LLAMA,
    "model_type": "minimax_m3",
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 1],
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 8,
        "sparse_topk_blocks": 4,
        "sparse_block_size": 16,
    },
    "dense_intermediate_size": 96,
    "moe_layer_freq": [0, 1],
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}

ALL: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "deepseek": DEEPSEEK,
    "qwen-next": QWEN_NEXT,
    "gpt-oss": GPT_OSS,
    "nemotron": NEMOTRON,
    "kimi-linear": KIMI_LINEAR,
    "step": STEP,
    "compressed": COMPRESSED,
    "block-sparse": BLOCK_SPARSE,
}
