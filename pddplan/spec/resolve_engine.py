"""The engine profile with what the scenario changes of it, and the formats of weights and KV cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pddplan.spec import catalogue
from pddplan.spec.calibration import Overlay
from pddplan.spec.input import EngineInput, PrecisionInput
from pddplan.spec.notes import Notes
from pddplan.spec.profiles import DEFAULT_ENGINE
from pddplan.spec.types import Engine, Precision
from pddplan.units import GB, MS, US

# key of `engine:` -> (field of Engine, factor to SI)
_NUMBERS: dict[str, tuple[str, float]] = {
    "step_overhead_ms": ("step_overhead_s", MS),
    "layer_overhead_us": ("layer_overhead_s", US),
    "router_delay_ms": ("router_delay_s", MS),
    "memory_fraction": ("memory_fraction", 1.0),
    "reserve_gb": ("reserve_bytes", GB),
    "exchange_gb": ("exchange_bytes", GB),
    "sampler_bytes_per_logit": ("sampler_bytes_per_logit", 1.0),
    "workspace_gb": ("workspace_bytes", GB),
    "mtp_accepted_tokens": ("mtp_accepted_tokens", 1.0),
    "expert_imbalance": ("expert_imbalance", 1.0),
    "context_sigma": ("context_sigma", 1.0),
    "launch_share": ("launch_share", 1.0),
    "expert_layer_overhead_us": ("expert_layer_overhead_s", US),
    "request_overhead_us": ("request_overhead_s", US),
    "poll_steps": ("poll_steps", 1.0),
    "first_output_ms": ("first_output_s", MS),
    "first_output_steps": ("first_output_steps", 1.0),
    "expert_first_output_us": ("expert_first_output_s", US),
    "prompt_factor": ("prompt_factor", 1.0),
    "handoff_ms": ("handoff_s", MS),
}
_AS_THEY_ARE = (
    "tail_merge",
    "max_batch",
    "memory_covers",
    "decode_prefix_sharing",
    "overlap_expert_communication",
    "equal_pages",
)


def resolve_engine(given: EngineInput | None, notes: Notes, overlay: Overlay | None = None) -> Engine:
    """The named profile (default generic); each of its numbers that the scenario leaves is an assumption.

    What the scenario states goes before what ``overlay`` has fitted, and that before the profile.
    """
    name = given.name.lower() if given is not None and given.name else None
    engine, assumptions = catalogue.load_engine(
        notes.default(name, "engine", DEFAULT_ENGINE, "no engine is named: the middle of the known ones")
    )
    changes: dict[str, Any] = {}
    overridden: set[str] = set()
    for key, value in (given.model_dump(exclude_none=True) if given is not None else {}).items():
        overridden.add(f"engine.{key}")
        if key in _NUMBERS:
            field, factor = _NUMBERS[key]
            changes[field] = value * factor
        elif key in _AS_THEY_ARE:
            changes[key] = value
        elif key == "chunk_tokens":
            changes[key] = round(value)
    if "reserve_bytes" in changes and "exchange_bytes" not in changes:  # a reserve that is stated is the whole reserve
        changes["exchange_bytes"] = 0.0
        overridden.add("engine.exchange_gb")
    if overlay is not None:
        stated = {key.removeprefix("engine.") for key in overridden}
        overlay.note_engine(engine, stated, notes)
        engine = overlay.engine(engine, stated)
    for assumption in assumptions:
        unused = "memory_fraction" in changes and assumption.name.startswith("engine.outside_")
        if assumption.name not in overridden and not unused:
            notes.add(assumption)
    return replace(engine, **changes)


def resolve_precision(given: PrecisionInput | None, notes: Notes) -> Precision:
    weights = given.weights if given is not None else None
    kv_cache = given.kv_cache if given is not None else None
    return Precision(
        notes.default(weights, "precision.weights", "native", "as the checkpoint is published"),
        notes.default(kv_cache, "precision.kv_cache", "bf16", "the engines' default"),
    )
