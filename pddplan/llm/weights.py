"""Bytes of the weights by class and format, and the dtype their products run in."""

from __future__ import annotations

from dataclasses import dataclass

from pddplan.llm.formats import Recipe, formats
from pddplan.llm.parameters import parameters
from pddplan.llm.types import LanguageModel

NATIVE = "native"


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of one whole copy of the weights, scales included, multi-token-prediction module not."""

    routed_experts: float
    other_linear: float
    rest: float

    @property
    def total(self) -> float:
        return self.routed_experts + self.other_linear + self.rest


def weight_formats() -> tuple[str, ...]:
    """Format names a scenario may use: the checkpoint's own, then the recipes."""
    return (NATIVE, *formats().recipes)


def bytes_per_weight(weight_format: str) -> float:
    """Bytes of one weight in an elementary format (bf16, fp8_b128, int4_g32, mxfp4, …), scales included [B].

    bits/8 + scale bytes/group. ValueError for an unknown format. Source: formats.yaml.
    """
    known = formats().weights
    if weight_format not in known:
        raise ValueError(f"unknown weight format {weight_format!r}; one of {', '.join(known)}")
    return known[weight_format].bytes_per_weight


def weight_recipe(model: LanguageModel, weights_format: str) -> Recipe:
    """Elementary formats per class that ``weights_format`` means for this model.

    ``native`` is the checkpoint's own recipe; ``nvfp4`` quantises routed experts (other linears fp8), or all linears
    of a model without experts. ValueError for an unknown format.
    """
    if weights_format == NATIVE:
        n = model.native
        return Recipe(n.experts, n.other_linear, n.rest, n.other_linear)
    recipes = formats().recipes
    if weights_format not in recipes:
        raise ValueError(f"unknown weights format {weights_format!r}; one of {', '.join(weight_formats())}")
    recipe = recipes[weights_format]
    if parameters(model).routed_experts == 0:
        return Recipe(recipe.experts, recipe.dense_linear, recipe.rest, recipe.dense_linear)
    return recipe


def weight_bytes(model: LanguageModel, weights_format: str) -> WeightBytes:
    """Sum over classes of parameters x bytes per weight [B].

    Checked on released checkpoints to 0.002 %; engines may pad more (gpt-oss loads 5.9 % above its checkpoint).
    """
    count, recipe = parameters(model), weight_recipe(model, weights_format)
    return WeightBytes(
        routed_experts=count.routed_experts * bytes_per_weight(recipe.experts),
        other_linear=count.other_linear * bytes_per_weight(recipe.linear),
        rest=count.rest * bytes_per_weight(recipe.rest),
    )


def linear_dtype(model: LanguageModel, weights_format: str) -> str:
    """Dtype (bf16, fp8, int8, fp4) in which products with the linears other than routed experts run."""
    compute = formats().weights[weight_recipe(model, weights_format).linear].compute
    return "bf16" if compute == "activation" else compute


def experts_dtype(model: LanguageModel, weights_format: str) -> str:
    """Dtype in which products with the routed experts run.

    Weight-only formats compute in 16 bit; mxfp4 in the dtype of the activations, that is of the other linears
    (bf16 in gpt-oss, fp8 in DeepSeek V4).
    """
    compute = formats().weights[weight_recipe(model, weights_format).experts].compute
    return linear_dtype(model, weights_format) if compute == "activation" else compute
