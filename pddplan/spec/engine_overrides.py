"""An engine profile with numbers of it replaced by ``engine.key=value`` texts, outside a scenario."""

from __future__ import annotations

from collections.abc import Sequence

from pddplan.errors import InputError, Problem
from pddplan.spec.calibration import Overlay
from pddplan.spec.notes import Notes
from pddplan.spec.profiles import DEFAULT_ENGINE, load_engine
from pddplan.spec.types import Engine

_PREFIX = "engine."


def engine_with(name: str | None, overrides: Sequence[str], notes: Notes, overlay: Overlay | None = None) -> Engine:
    """The profile ``name`` (default generic), fitted numbers and overrides applied; what is left is noted as assumed.

    Raises InputError for an unknown name, key or an impossible value.
    """
    chosen = notes.default(name and name.lower(), "engine", DEFAULT_ENGINE, "the middle of the known engines")
    engine, assumptions = load_engine(chosen)
    if not overrides and overlay is None:
        for assumption in assumptions:
            notes.add(assumption)
        return engine
    return _overridden(chosen, overrides, notes, overlay)


def _overridden(name: str, overrides: Sequence[str], notes: Notes, overlay: Overlay | None) -> Engine:
    """The same checks and messages as for ``engine:`` of a scenario."""
    from pydantic import ValidationError, create_model  # only where something is overridden

    from pddplan.spec.input import EngineInput
    from pddplan.spec.money import normalise
    from pddplan.spec.overrides import FILE, apply_overrides
    from pddplan.spec.problems import problems_of
    from pddplan.spec.resolve_engine import resolve_engine
    from pddplan.spec.yaml_source import parse_document

    document = parse_document(f"engine: {{name: {name}}}", FILE)
    foreign = [text for text in overrides if not text.strip().startswith(_PREFIX)]
    fix = "Keys of the engine can be set, as engine.memory_fraction=0.9."
    problems = [Problem(f"{text!r} is no number of the engine.", file=FILE, fix=fix) for text in foreign]
    problems += apply_overrides(document, [text for text in overrides if text not in foreign])
    shape = create_model("EngineOverrides", engine=(EngineInput, ...))
    try:
        given = shape.model_validate(document.data)
    except ValidationError as error:
        raise InputError([*problems, *problems_of(error, document, normalise(document))]) from None
    if problems:
        raise InputError(problems)
    return resolve_engine(given.engine, notes, overlay)  # type: ignore[attr-defined]
