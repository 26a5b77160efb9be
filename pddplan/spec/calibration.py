"""A file of factors fitted to a user's own measurements, as a scenario names it: ``calibration: file.yaml``.

Factors of chips multiply the shares of their efficiency curves, numbers of engines replace those of a profile:
``{schema: pddplan.overlay/1, chips: {nvidia-h200-sxm: {compute: 0.9}}, engines: {vllm: {step_overhead_ms: 3}}}``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pddplan.errors import InputError, Problem
from pddplan.spec.catalogue import engine_ids, find_chip, unknown_chip
from pddplan.spec.issues import Issue, KeyPath, closest, shown
from pddplan.spec.notes import Notes
from pddplan.spec.profiles import engine_number
from pddplan.spec.types import Assumption, Calibration, Chip, Engine
from pddplan.spec.values import check_number
from pddplan.spec.yaml_source import Document, Wording, parse_document, read_text

SCHEMA = "pddplan.overlay/1"
CHIP_FACTORS = ("compute", "memory", "communication")
LEAST_FACTOR, MOST_FACTOR = 0.05, 20.0
_KEYS = ("schema", "chips", "engines", "fit")
_WORDS = Wording(
    noun="calibration",
    start="Write one with: pddplan calibrate measurements.csv -o calibration.yaml",
    folder="Name the calibration file in it.",
    size="A calibration is a few KB: is this the right file?",
    keys="A calibration has keys: chips, engines.",
    depth="Calibrations are 3 deep.",
)


# Numbers of an engine profile that can be fitted: what is possible, in the unit of the key.
FITTED_NUMBERS: Mapping[str, tuple[float, float]] = {
    "step_overhead_ms": (0.0, 1e3),
    "request_overhead_us": (0.0, 1e5),
    "first_output_ms": (0.0, 1e5),
    "prompt_factor": (0.5, 10.0),
    "handoff_ms": (0.0, 1e5),
}


def with_numbers(engine: Engine, values: Mapping[str, float]) -> Engine:
    """The engine with these numbers, by key and in its unit."""
    changes: dict[str, Any] = dict(engine_number(key, value) for key, value in values.items())
    return replace(engine, **changes) if changes else engine


@dataclass(frozen=True)
class Overlay:
    """Fitted factors by chip id, numbers by engine name in the units of their keys; ``data``: the content."""

    file: str
    chips: Mapping[str, Calibration]
    engines: Mapping[str, Mapping[str, float]]
    data: Mapping[str, Any]

    def chip(self, chip: Chip) -> Chip:
        """The chip with its factors, where the file has some."""
        found = self.chips.get(chip.id)
        return chip if found is None else replace(chip, calibration=found)

    def engine(self, engine: Engine, stated: Collection[str] = ()) -> Engine:
        """The engine with its fitted numbers, but for the keys ``stated``: what a person wrote goes first."""
        fitted = self.engines.get(engine.name, {})
        return with_numbers(engine, {key: value for key, value in fitted.items() if key not in stated})

    def note_chip(self, chip: Chip, notes: Notes) -> None:
        """Each factor of a chip other than 1 as an assumption."""
        found = self.chips.get(chip.id)
        for name in CHIP_FACTORS if found is not None else ():
            value = getattr(found, name)
            if value != 1.0:
                note = f"{self.file}: times the shares of its efficiency curves"
                notes.add(Assumption(f"{chip.id}.calibration.{name}", value, "fitted", note))

    def note_engine(self, engine: Engine, stated: Collection[str], notes: Notes) -> None:
        """Each fitted number of an engine that the scenario doesn't state as an assumption."""
        for key, value in self.engines.get(engine.name, {}).items():
            if key not in stated:
                notes.add(Assumption(f"engine.{key}", value, "fitted", self.file))


def load_overlay(path: str | Path) -> Overlay:
    """The factors of a file; InputError with all that is wrong with it, each with its line."""
    text, file = read_text(path, _WORDS)
    return parse_overlay(text, file)


def parse_overlay(text: str, file: str) -> Overlay:
    """The same from text."""
    document = parse_document(text, file, _WORDS)
    problems = [*document.problems, *_schema(document), *_unknown(document, (), document.data, _KEYS)]
    chips, engines = _Section(document, "chips"), _Section(document, "engines")
    found_chips = {name: c for key in chips.names() if (name := chips.chip_id(key)) and (c := chips.factors(key))}
    found_engines = {key.lower(): n for key in engines.names() if engines.known(key) and (n := engines.numbers(key))}
    problems += chips.problems + engines.problems
    if not problems and not found_chips and not found_engines:
        problems = [Problem("holds no factor.", file=file, fix=_WORDS.keys)]
    if problems:
        raise InputError(problems)
    return Overlay(file, found_chips, found_engines, document.data)


def named_overlay(document: Document, base_dir: str) -> tuple[Overlay | None, list[Problem]]:
    """The overlay that a scenario names, or what is wrong with it: in the file, or where it is named."""
    name = document.data.get("calibration")
    if not isinstance(name, str) or not name:
        return None, []
    try:
        return load_overlay(Path(base_dir) / name), []
    except InputError as error:
        where: KeyPath = ("calibration",)
        fix = "A calibration is looked for beside the scenario."
        return None, [
            p
            if p.line is not None
            else document.problem(where, f"{shown(name)}: {p.message}", fix if "no such file" in p.message else p.fix)
            for p in error.problems
        ]


def _schema(document: Document) -> list[Problem]:
    kind = document.data.get("schema", SCHEMA)
    if kind == SCHEMA:
        return []
    fix = f"It begins with schema: {SCHEMA}, as pddplan calibrate writes it."
    return [document.problem(("schema",), f"{shown(kind)} is not a calibration.", fix)]


def _unknown(document: Document, path: KeyPath, data: Mapping[str, Any], known: Collection[str]) -> list[Problem]:
    problems = []
    for key in data:
        if key not in known:
            near = closest(key, known)
            fix = f"Did you mean '{near}'?" if near else f"Known here: {', '.join(known)}."
            problems.append(document.problem((*path, key), f"unknown key {shown(key)}.", fix))
    return problems


class _Section:
    """``chips`` or ``engines`` of a file: mappings of numbers by name, with what is wrong on the way."""

    def __init__(self, document: Document, key: str) -> None:
        self.document, self.key = document, key
        self.problems: list[Problem] = []
        raw = document.data.get(key)
        self.data: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
        if raw is not None and not isinstance(raw, dict):
            self._wrong((key,), Issue(f"{shown(raw)} is not a mapping.", f"Write {key}: with names below."))

    def _wrong(self, path: KeyPath, issue: Issue) -> None:
        self.problems.append(self.document.problem(path, issue.message, issue.fix))

    def names(self) -> tuple[str, ...]:
        """Names whose value is a mapping."""
        for name, raw in self.data.items():
            if not isinstance(raw, dict):
                self._wrong((self.key, name), Issue(f"{shown(raw)} is not a mapping.", "Write factors below it."))
        return tuple(name for name, raw in self.data.items() if isinstance(raw, dict))

    def chip_id(self, name: str) -> str | None:
        found = find_chip(name)
        if found is None:
            problem = unknown_chip(name)
            self._wrong((self.key, name), Issue(problem.message, problem.fix))
        return found

    def known(self, name: str) -> bool:
        if name.lower() in engine_ids():
            return True
        near = closest(name, engine_ids())
        fix = f"Did you mean {near}?" if near else f"One of {', '.join(engine_ids())}."
        self._wrong((self.key, name), Issue(f"no engine {shown(name)}.", fix))
        return False

    def factors(self, name: str) -> Calibration | None:
        """Factors of a chip; None where there is none, or one is wrong."""
        found = self._checked(name, {k: (LEAST_FACTOR, MOST_FACTOR) for k in CHIP_FACTORS})
        file, line = self.document.place((self.key, name))
        return Calibration(**found, file=file, line=line) if found else None

    def numbers(self, name: str) -> Mapping[str, float] | None:
        """Numbers of an engine; None where there is none, or one is wrong."""
        return self._checked(name, FITTED_NUMBERS) or None

    def _checked(self, name: str, ranges: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        before = len(self.problems)
        raw, path = self.data[name], (self.key, name)
        self.problems += _unknown(self.document, path, raw, tuple(ranges))
        found: dict[str, float] = {}
        for key, value in raw.items():
            if key in ranges:
                number = check_number(value, *ranges[key])
                if isinstance(number, Issue):
                    self._wrong((*path, key), number)
                else:
                    found[key] = number
        return found if len(self.problems) == before else {}
