"""Architecture of a language model as layer groups; symbols as in the docstrings of ``kv`` and ``flops``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AttentionKind = Literal["gqa", "mla", "gdn", "kda", "lightning", "mamba2", "csa", "hca", "swa", "none"]


@dataclass(frozen=True)
class Indexer:
    """Sparse-attention indexer (DSA, CSA, block-sparse GQA): heads x head_dim keys, ``top_k`` entries attended."""

    heads: int
    head_dim: int
    top_k: int
    own_cache: bool = True  # False: shares another layer's index keys (GLM-5.2)


@dataclass(frozen=True)
class Attention:
    """One layer's token mixer. Fields that a kind doesn't use are 0 / None."""

    kind: AttentionKind
    q_heads: int = 0
    kv_heads: int = 0
    head_dim_k: int = 0
    head_dim_v: int = 0
    window: int | None = None  # sliding window; also V4's dense branch
    chunk: int | None = None  # chunked attention (Llama 4)
    bias: bool = False  # q/k/v (and o) biases counted in the parameters
    qk_norm: bool = False
    output_gate: bool = False
    head_gate: bool = False  # one gate a query head (Step 3.5)
    q_lora_rank: int | None = None  # MLA and V4; of GQA where the queries share a low rank (MFA of Step 3)
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    indexer: Indexer | None = None
    # linear attention and state-space layers
    k_heads: int = 0
    v_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    conv_kernel: int = 0
    full_rank_gate: bool = False  # KDA: decay and gate by full matrices, not by a low rank
    groups: int = 0
    state: int = 0
    # DeepSeek V4 compressed attention
    compress_ratio: int = 0
    o_groups: int = 0
    o_lora_rank: int = 0
    hc_mult: int = 0
    sinks: bool = False  # one learned attention sink per head, counted in the parameters
    output_bias: bool = False  # bias of the output projection
    full_qk_norm: bool = False  # q/k norms over all heads at once
    sandwich_norms: bool = False  # norms before and after each block


@dataclass(frozen=True)
class FeedForward:
    """Dense or mixture-of-experts feed-forward; ``matrices`` 3 for SwiGLU, 2 for ReLU^2."""

    kind: Literal["dense", "moe", "none"]
    intermediate: int = 0  # dense
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    latent: int = 0  # latent MoE: routed experts work in this width, 0 = hidden
    matrices: int = 3
    router_bias: bool = False
    bias: bool = False
    shared_gate: bool = False  # a scalar gate h -> 1 on the shared expert


@dataclass(frozen=True)
class LayerGroup:
    count: int
    attention: Attention
    feed_forward: FeedForward


@dataclass(frozen=True)
class WeightRecipe:
    """Native checkpoint formats per class of weights."""

    experts: str
    other_linear: str
    rest: str


@dataclass(frozen=True)
class LanguageModel:
    id: str
    name: str
    aliases: tuple[str, ...]
    hidden: int
    vocab: int
    tied_embeddings: bool
    max_context: int | None
    groups: tuple[LayerGroup, ...]
    native: WeightRecipe
    extra_parameters: int = 0  # model-level parameters outside layers, embedding, head and final norm
    mtp_parameters: int = 0
    sources: tuple[tuple[str, str], ...] = ()  # (URL or reference, confidence)

    @property
    def layers(self) -> int:
        return sum(g.count for g in self.groups)
