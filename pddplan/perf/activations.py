"""What a pass of an engine needs beside weights and KV cache: intermediates, expert workspaces, sampling."""

from __future__ import annotations

from pddplan.llm.weights import weight_recipe
from pddplan.perf.instance import Instance

ACTIVATION_BYTES = 2.0  # bf16 activations
STREAM_COPIES = 3.0  # of the residual stream inside a layer: itself, its norm, a block's output
FUSED_EXPERTS = ("mxfp4", "nvfp4")  # their kernels do both products of an expert and keep no rows between them


def activation_bytes_per_chip(instance: Instance, tokens: float, logit_rows: float) -> float:
    """Peak of a pass of ``tokens`` per DP rank that samples ``logit_rows`` of them, on one chip [B].

    ``max(layer, sampler) + tokens h 2 + expert workspaces + engine's constant``: sampling starts when the layers are
    done, so the larger of the two counts; the last hidden states live through both, and so do expert workspaces, which
    vLLM keeps once made. Within 0.03 GiB of vLLM 0.19's "torch peak memory increase" (1.2 to 2.9 GiB, 15 runs of text
    models, from which the engine's constants were read); a multimodal model's encoder adds 0.12-0.25 GiB, not counted.
    """
    model, engine = instance.model, instance.engine
    kept = tokens * model.hidden * ACTIVATION_BYTES + expert_workspace_bytes(instance, tokens)
    sampler = logit_rows * model.vocab * engine.sampler_bytes_per_logit
    return max(_layer_bytes(instance, tokens), sampler) + kept + engine.workspace_bytes


def _layer_bytes(instance: Instance, tokens: float) -> float:
    """``tokens (3 h + widest) 2``: widest is gate, up and their product of a feed-forward, or q, k, v and the output
    of an attention, split over tp. [B]"""
    model, par = instance.model, instance.parallelism
    widest = 0.0
    for group in model.groups:
        att, ffn = group.attention, group.feed_forward
        heads = att.q_heads * (att.head_dim_k + 2 * att.head_dim_v) + att.kv_heads * (att.head_dim_k + att.head_dim_v)
        if att.kind == "mla":
            heads = att.q_heads * (2 * att.qk_nope_head_dim + 2 * att.qk_rope_head_dim + 2 * att.head_dim_v)
        inner = ffn.intermediate if ffn.kind == "dense" else ffn.shared_intermediate
        widest = max(widest, heads / par.tp, ffn.matrices * inner / par.tp)
    return tokens * (STREAM_COPIES * model.hidden + widest) * ACTIVATION_BYTES


def expert_workspace_bytes(instance: Instance, tokens: float) -> float:
    """Rows of both products of the routed experts on one chip: ``rows (max(2e, w) + max(e, w)) 2`` [B].

    rows = tokens k on each rank of one DP rank; with several, what arrives on the mean, tokens k / tp. e is an
    expert's width on the rank, w the hidden (or latent) width.
    """
    model, par = instance.model, instance.parallelism
    if weight_recipe(model, instance.weights).experts in FUSED_EXPERTS:
        return 0.0
    most = 0.0
    for ffn in {g.feed_forward for g in model.groups if g.feed_forward.kind == "moe"}:
        rows = tokens * ffn.top_k / (par.tp if par.dp > 1 else 1)
        width, expert = ffn.latent or model.hidden, ffn.expert_intermediate / par.expert_tp
        most = max(most, rows * (max((ffn.matrices - 1) * expert, width) + max(expert, width)))
    return most * ACTIVATION_BYTES
