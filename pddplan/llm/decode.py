"""Memory traffic of one decode step of the whole model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pddplan.llm.experts import distinct_experts
from pddplan.llm.kv import kv_read_bytes, kv_write_bytes, state_bytes
from pddplan.llm.parameters import layer_parameters, parameters
from pddplan.llm.types import LanguageModel
from pddplan.llm.weights import bytes_per_weight, weight_bytes, weight_recipe

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DecodeBytes:
    """Bytes of one step, arrays over (batch, context) broadcast: weights read, tokens read, state read + written."""

    weights: Array
    kv_read: Array
    state: Array
    kv_write: Array

    @property
    def total(self) -> Array:
        return self.weights + self.kv_read + self.state + self.kv_write


def decode_weight_bytes(model: LanguageModel, tokens: npt.ArrayLike, weights_format: str, skew: float = 0.0) -> Array:
    """Weights that a step over ``tokens`` tokens reads: all but experts and embedding, plus the distinct experts [B].

    W_other + sum over MoE layers of D(T) x bytes per expert. A tied embedding is read as the head.
    """
    count, recipe = parameters(model), weight_recipe(model, weights_format)
    size = weight_bytes(model, weights_format)
    embed = 0 if model.tied_embeddings else count.embed
    t = np.asarray(tokens, dtype=float)
    total = np.full_like(t, size.other_linear + size.rest - embed * bytes_per_weight(recipe.rest))
    for g in model.groups:
        ff = g.feed_forward
        if ff.kind == "moe":
            one = layer_parameters(g, model.hidden).feed_forward.per_expert * bytes_per_weight(recipe.experts)
            total = total + g.count * one * distinct_experts(ff.experts, ff.top_k, t, skew)
    return total


def decode_bytes(
    model: LanguageModel,
    batch: npt.ArrayLike,
    context: npt.ArrayLike,
    kv_format: str,
    weights_format: str,
    skew: float = 0.0,
) -> DecodeBytes:
    """Bytes one step of ``batch`` sequences at ``context`` tokens moves; whole model, one copy of the weights [B].

    W_other + D(B) x expert bytes + B KVread(L) + 2B state + B KVwrite. ``batch`` and ``context`` broadcast. D(B) is an
    upper bound for ``skew`` 0.
    """
    b, length = np.broadcast_arrays(np.asarray(batch, dtype=float), np.asarray(context, dtype=float))
    return DecodeBytes(
        weights=decode_weight_bytes(model, b, weights_format, skew),
        kv_read=b * kv_read_bytes(model, length, kv_format),
        state=2.0 * b * state_bytes(model),
        kv_write=b * kv_write_bytes(model, kv_format),
    )
