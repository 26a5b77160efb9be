"""The engine profile with what the scenario changes of it, and the formats of weights and KV cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pddplan.spec import catalogue
from pddplan.spec.calibration import Overlay
from pddplan.spec.input import EngineInput, PrecisionInput
from pddplan.spec.notes import Notes
from pddplan.spec.profiles import DEFAULT_ENGINE, ENGINE_NUMBERS, engine_number
from pddplan.spec.types import Engine, Precision


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
        if key in ENGINE_NUMBERS:
            field, number = engine_number(key, value)
            changes[field] = number
        elif key != "name":
            changes[key] = value
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
