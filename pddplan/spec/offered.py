"""The chips that a scenario names: from the catalogue, from a file beside it, or written inline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pddplan.errors import InputError, Problem
from pddplan.spec import catalogue
from pddplan.spec.chips import FIGURE_KEYS
from pddplan.spec.issues import KeyPath, format_key, shown
from pddplan.spec.types import MAX_EFFICIENCY, Chip
from pddplan.spec.yaml_source import Document, parse_document, read_text

FILE_ENDINGS = (".yaml", ".yml", ".json")
LARGEST = 1e9  # of any number of a chip, in the unit of its key


@dataclass
class OfferedChips:
    """Chips by (site, chip) position, what is wrong with the others, and the files that were read."""

    chips: dict[tuple[int, int], Chip] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)  # name as written -> content, part of the scenario's hash


def offered_chips(document: Document, base_dir: str) -> OfferedChips:
    """Resolve ``sites[].chips[].chip`` wherever the data are well-formed enough to have one."""
    result = OfferedChips()
    sites = document.data.get("sites")
    for i, site in enumerate(sites if isinstance(sites, list) else []):
        offers = site.get("chips") if isinstance(site, dict) else None
        for j, offer in enumerate(offers if isinstance(offers, list) else []):
            if isinstance(offer, dict) and isinstance(offer.get("chip"), (str, dict)):
                path: KeyPath = ("sites", i, "chips", j, "chip")
                chip = _chip(document, path, offer["chip"], base_dir, result)
                if chip is not None:
                    result.chips[i, j] = chip
                    result.problems += _unplannable(document, path, chip)
    return result


def _chip(
    document: Document, path: KeyPath, value: str | dict[str, Any], base_dir: str, result: OfferedChips
) -> Chip | None:
    if isinstance(value, dict):
        return checked_chip(value, document, path, (), result)
    if value.lower().endswith(FILE_ENDINGS):
        return _from_file(document, path, value, base_dir, result)
    try:
        return catalogue.load_chip(value)
    except InputError as error:
        result.problems += [document.problem(path, p.message, p.fix) for p in error.problems]
        return None


def _from_file(document: Document, path: KeyPath, name: str, base_dir: str, result: OfferedChips) -> Chip | None:
    try:
        text, file = read_text(Path(base_dir) / name)
        inner = parse_document(text, file)
    except InputError as error:
        for p in error.problems:
            if p.line is None:  # the file as a whole: say where it was named
                fix = "Chip files are looked for beside the scenario." if "no such file" in p.message else p.fix
                result.problems.append(document.problem(path, f"{shown(name)}: {p.message}", fix))
            else:
                result.problems.append(p)
        return None
    result.files[name] = inner.data
    result.problems += inner.problems
    return checked_chip(inner.data, inner, (), path, result)


def checked_chip(
    data: Mapping[str, Any],
    source: Document,
    inside: KeyPath,
    used_at: KeyPath,
    result: OfferedChips,
    reader: Callable[[Mapping[str, Any], str], Chip | list[Problem]] = catalogue.chip_from_mapping,
) -> Chip | None:
    """A chip from a mapping that stands at ``inside`` of ``source``; problems get its lines."""
    key = format_key(inside) or "chip"
    wrong = _efficiency(data, source, inside)
    if wrong is not None:
        result.problems.append(wrong)
        data = {k: v for k, v in data.items() if k != "efficiency"}
    absurd = _absurd(data, source, inside)
    if absurd:
        result.problems += absurd
        # a stand-in, so that the rest is looked at as well
        named = {p.key.rpartition(".")[2] for p in absurd} & set(FIGURE_KEYS)
        data = {k: 1.0 if k in named else v for k, v in data.items()}
    chip = reader(data, key)
    if isinstance(chip, Chip):
        return None if wrong is not None or absurd else chip
    for p in chip:
        below = p.key.removeprefix(key).lstrip(".")
        where = (*inside, *below.split(".")) if below else inside
        # the key stands before the message already
        message = p.message.removeprefix(f"{where[-1]} ") if where else p.message
        result.problems.append(source.problem(where, message if message.endswith(".") else f"{message}.", p.fix))
    if not chip:
        result.problems.append(source.problem(inside or used_at, "is not a chip.", "See: pddplan hardware show h800"))
    return None


def _absurd(data: Mapping[str, Any], source: Document, inside: KeyPath) -> list[Problem]:
    """Numbers so large that scaling them to SI would overflow."""
    problems = []
    for name, raw in data.items():
        number = raw.get("value") if isinstance(raw, Mapping) else raw
        if isinstance(number, (int, float)) and LARGEST < abs(number) < float("inf"):
            fix = "The unit stands in the key: is the number in it?"
            problems.append(source.problem((*inside, name), f"{shown(number)} is too large.", fix))
    return problems


def _efficiency(data: Mapping[str, Any], source: Document, inside: KeyPath) -> Problem | None:
    number = data.get("efficiency")
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    if number > MAX_EFFICIENCY:
        message = f"an efficiency of {shown(number)} is above what the chip can do."
        fix = f"At most {MAX_EFFICIENCY:g} is believed; here stands the name of a fitted family, like nvidia-hopper."
    else:
        message = f"{shown(number)} is not the name of an efficiency family."
        fix = "Write a family, like nvidia-hopper, or leave it out; measured rates go under measured:."
    return source.problem((*inside, "efficiency"), message, fix)


def _unplannable(document: Document, path: KeyPath, chip: Chip) -> list[Problem]:
    missing = catalogue.missing_problem(chip, format_key(path))
    return [] if missing is None else [document.problem(path, missing.message, missing.fix)]
