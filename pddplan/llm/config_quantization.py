"""Formats of a checkpoint's weights by class, from ``quantization_config`` and the dtype of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pddplan.llm.config_reader import ConfigReader
from pddplan.spec.issues import shown

_METHODS = "fp8, fbgemm_fp8, mxfp4, awq, gptq, compressed-tensors, modelopt"
_DTYPES = ("bfloat16", "float16", "half", "float32", "float", "auto")  # engines load all of them in 16 bit
_FINE_GROUP = 32


def native_formats(view: ConfigReader) -> dict[str, str]:
    """Formats of routed experts, other linears and the rest, as a card names them; the rest is always 16 bit.

    Linears that the recipe leaves out (``self_attn`` among its ignored modules) stay in 16 bit too.
    """
    dtype = view.text("torch_dtype") or view.text("dtype") or "bfloat16"
    if dtype.removeprefix("torch.") not in _DTYPES:
        _, where = view.find(("torch_dtype", "dtype"))
        view.wrong(where, f"no dtype {shown(dtype)} is known.", f"Known: {', '.join(_DTYPES[:4])}.")
    key = next((k for k in ("quantization_config", "compression_config") if view.has(k)), "")
    if not key:
        return {"experts": "bf16", "other_linear": "bf16", "rest": "bf16"}
    recipe = view.inside(key)
    experts = _weight_format(recipe)
    linear = "bf16" if experts == "mxfp4" or _attention_ignored(recipe) else experts
    if view.text("expert_dtype") == "fp4":  # V4: experts apart from the recipe, scales stored as exponents
        linear = "fp8_b128_ue8m0" if recipe.text("scale_fmt") == "ue8m0" else experts
        experts = "mxfp4"
    return {"experts": experts, "other_linear": linear, "rest": "bf16"}


def _attention_ignored(recipe: ConfigReader) -> bool:
    names = recipe.find(("modules_to_not_convert", "ignore", "exclude_modules"))[0]
    return isinstance(names, list) and any("self_attn" in str(name) for name in names)


def _weight_format(recipe: ConfigReader) -> str:
    """Elementary format of what the recipe quantises; a method or width that isn't known is noted."""
    method = recipe.text("quant_method").lower()
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8_b128" if recipe.has("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("awq", "gptq"):
        return _integer(recipe, recipe.count(("bits",)), recipe.find(("group_size",))[0])
    if method == "compressed-tensors":
        return _compressed(recipe)
    if method.startswith("modelopt"):
        algorithm = (recipe.text("quant_algo") or ("NVFP4" if "fp4" in method else "FP8")).upper()
        if algorithm in ("FP8", "NVFP4"):
            return algorithm.lower()
        recipe.wrong(recipe.find(("quant_algo",))[1], f"no recipe {shown(algorithm)} is known.", "Known: FP8, NVFP4.")
        return "bf16"
    where = recipe.find(("quant_method",))[1]
    recipe.wrong(where, f"no quantization {shown(method) if method else 'without a name'} is known.", _known())
    return "bf16"


def _known() -> str:
    return f"Known: {_METHODS}. Or remove the mapping: weights then count as 16 bit."


def _integer(recipe: ConfigReader, bits: Any, group: Any) -> str:
    if bits == 8:
        return "int8"
    if bits == 4:
        return "int4_g32" if group == _FINE_GROUP else "int4_g128"
    recipe.wrong(recipe.find(("bits", "config_groups"))[1], f"weights of {shown(bits)} bits are not known.", "4 or 8.")
    return "bf16"


def _compressed(recipe: ConfigReader) -> str:
    """compressed-tensors: the first group's weights say bits, type and group."""
    groups, where = recipe.find(("config_groups",))
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        recipe.wrong(where, "must name the weights of a group: config_groups.group_0.weights.", _known())
        return "bf16"
    bits, group = weights.get("num_bits"), weights.get("group_size")
    if weights.get("type") != "float":
        return _integer(recipe, bits, group)
    if bits == 4:
        return "mxfp4" if group == _FINE_GROUP else "nvfp4"
    return "fp8_b128" if weights.get("strategy") == "block" else "fp8"
