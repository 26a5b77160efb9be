"""Names as other people write them: models, chips, engines, formats, modes."""

from __future__ import annotations

import re
from functools import lru_cache

from pddplan.accuracy.records import NoPoint
from pddplan.estimate.records import Mode
from pddplan.llm.catalogue import closest_models, find_model, load_model
from pddplan.llm.types import LanguageModel
from pddplan.llm.weights import NATIVE, weight_formats
from pddplan.spec.catalogue import find_chip, load_chip, unknown_chip
from pddplan.spec.types import Chip

LONGEST_SHOWN = 60  # characters of a name in a message
# Releases with one architecture: a fit to one has seen the other.
SAME_FAMILY = {"deepseek-r1": "deepseek-v3"}
_SIZE = re.compile(r"-\d+(?:\.\d+)?[bt](?=-|$).*")
_PAST = re.compile(r"(?<!\d)(20[12]\d)$")  # at the end of an engine's name
_ENGINES = (  # the first that a name holds
    ("trtllm", ("trtllm", "trt-llm", "tensorrt", "trt ")),
    ("sglang", ("sglang", "sgl")),
    ("vllm", ("vllm",)),
)
_MODES: tuple[tuple[Mode, tuple[str, ...]], ...] = (
    ("aggregated", ("aggregated", "agg")),
    ("disaggregated", ("disaggregated", "disagg")),
    ("prefill", ("prefill", "prefill-only", "prefill(production)", "ctx", "context")),
    ("decode", ("decode", "decode(production)", "gen", "generation")),
)
_WEIGHTS = {
    "fp16": "bf16",
    "bfloat16": "bf16",
    "float16": "bf16",
    "half": "bf16",
    "fp8_block": "fp8",
    "fp8_e4m3": "fp8",
    "fp4": "nvfp4",
    "w8a8": "int8",
    "w4a16": "int4",
    "nvfp4 moe+o_proj": "nvfp4_experts_fp8_rest",
}
_SUFFIXES = (("nvfp4", "nvfp4"), ("fp4", "nvfp4"), ("fp8", "fp8"), ("bf16", "bf16"), ("int8", "int8"))
_FOUR_BIT_ELSEWHERE = "mxfp4"  # what fp4 means on a chip that isn't NVIDIA's


def shown(name: str) -> str:
    """A name for a message, cut where it is endless."""
    return repr(name if len(name) <= LONGEST_SHOWN else name[: LONGEST_SHOWN - 1] + "…")


@lru_cache(maxsize=256)
def model_named(name: str) -> LanguageModel:
    """The catalogue's model for a Hugging Face id or another spelling; NoPoint where there is none.

    ``DeepSeek-V3/R1`` names two releases of one architecture: the part after the last ``/`` counts.
    """
    if not name.strip():
        raise NoPoint("no model is named")
    found = find_model(name) or find_model(name.split("/", 1)[0])
    if found is not None:
        return load_model(found)
    near = closest_models(name) if len(name) <= LONGEST_SHOWN else []
    raise NoPoint(f"unknown model {shown(name)}" + (f" (closest: {near[0]})" if near else ""))


@lru_cache(maxsize=256)
def chip_named(name: str) -> Chip:
    """The catalogue's chip for any spelling; NoPoint where there is none, or where a dimension isn't published."""
    if not name.strip():
        raise NoPoint("no chip is named")
    found = find_chip(name)
    if found is None:
        fix = unknown_chip(name).fix if len(name) <= LONGEST_SHOWN else ""
        near = re.match(r"(?:Closest|Name one): ([^ ,.]+(?:\.[^ ,.]+)*)", fix)
        raise NoPoint(f"unknown chip {shown(name)}" + (f" (closest: {near[1]})" if near else ""))
    chip = load_chip(found)
    if chip.missing:
        raise NoPoint(f"chip {chip.id} lacks {', '.join(chip.missing)} in the catalogue")
    return chip


def family_of(model_id: str) -> str:
    """What a fit to one model has seen of another: the name up to its size, experts told apart.

    llama-3.1-70b, llama-3.1-8b -> llama-3.1; qwen3-235b-a22b -> qwen3-moe; qwen3-32b -> qwen3; deepseek-r1 ->
    deepseek-v3.
    """
    name = SAME_FAMILY.get(model_id, model_id)
    series = _SIZE.sub("", name)
    return f"{series}-moe" if re.search(r"-a\d+(?:\.\d+)?b", name) else series


def engine_named(name: str) -> str:
    """Profile of an engine's name and version: ``TensorRT-LLM 1.x (trtllm-bench)`` -> trtllm; else generic."""
    text = f"{name.lower()} "
    return next((profile for profile, words in _ENGINES if any(w in text for w in words)), "generic")


def engine_label(name: str) -> str:
    """Whose group a row is in: the profile; an engine of a named past year is another one (``vLLM 2023``)."""
    year = _PAST.search(name)
    return f"{engine_named(name)}-{year[1]}" if year else engine_named(name)


def mode_named(name: str) -> Mode:
    """One of the four modes; NoPoint for anything else."""
    text = name.strip().lower()
    for mode, words in _MODES:
        if text in words:
            return mode
    raise NoPoint(f"mode {shown(name)} is none of aggregated, disaggregated, prefill, decode" if text else "no mode")


def weights_named(name: str, model_name: str, chip: Chip) -> str:
    """Format of the weights: as stated, else as the model's name ends (``-FP8``), else the checkpoint's own.

    ``fp8/fp8_block`` names linears and experts; the experts' format decides.
    """
    text = name.strip().lower()
    if not text:
        ending = model_name.lower().rsplit("/", 1)[-1]
        return next((fmt for suffix, fmt in _SUFFIXES if ending.endswith(f"-{suffix}")), NATIVE)
    part = text if text in _WEIGHTS else text.rsplit("/", 1)[-1].strip()
    if part == "fp4" and chip.vendor.lower() != "nvidia":
        return _FOUR_BIT_ELSEWHERE
    found = _WEIGHTS.get(part, part)
    if found not in weight_formats():
        raise NoPoint(f"weights format {shown(name)} is none of {', '.join(weight_formats())}")
    return found


def kv_named(name: str) -> str | None:
    """Format of the KV cache, None where it isn't stated; NoPoint for one that isn't known."""
    text = name.strip().lower()
    if text in ("", "auto"):
        return None
    if text.startswith(("fp8", "e4m3")):
        return "fp8"
    if text.startswith(("bf16", "fp16", "bfloat16", "float16")):
        return "bf16"
    raise NoPoint(f"KV cache format {shown(name)} is neither bf16 nor fp8")
