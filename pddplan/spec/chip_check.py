"""``hardware add FILE``: what a new chip lacks, and what is implausible or unusual against its class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pddplan.errors import InputError, Problem
from pddplan.spec.catalogue import chip_ids, find_chip, hardware_dir, load_chip
from pddplan.spec.chips import DTYPES, FOUR_NUMBERS, absent_numbers, chip_from_draft, figure_of
from pddplan.spec.offered import OfferedChips, checked_chip
from pddplan.spec.types import Chip
from pddplan.spec.yaml_source import Document, parse_document, read_text

Kind = Literal["missing", "implausible", "unusual", "left out", "name"]
RANGES = (*(f"{d}_tflops" for d in DTYPES), *FOUR_NUMBERS[1:])
_SHAPE = "A chip file has the keys name, bf16_tflops, memory_gb, memory_gb_per_s, interconnect_gb_per_s."
_WITHOUT = {
    "chips_per_node": "the node",
    "scale_out_gbit_per_s": "the network of a chip",
    "domain_chips": "what the interconnect reaches",
    "bf16_tflops": "the peak of bf16",
}


@dataclass(frozen=True)
class Finding:
    """One remark about a chip file. ``missing``: a plan needs it; ``implausible``: probably a slip."""

    kind: Kind
    key: str
    message: str
    line: int | None = None


_NO_NAME = Finding("missing", "name", "isn't given, and a chip needs one.")


@dataclass(frozen=True)
class ClassRange:
    """A figure beside the smallest and the largest of the catalogue's chips of the class."""

    key: str
    value: float | None
    low: float
    low_chip: str
    high: float
    high_chip: str

    @property
    def outside(self) -> bool:
        return self.value is not None and not self.low <= self.value <= self.high


@dataclass(frozen=True)
class ChipCheck:
    """A chip file looked over; ``status``: complete | implausible | incomplete."""

    file: str
    chip_id: str
    chip: Chip
    peers: int  # chips of the catalogue in its class
    findings: tuple[Finding, ...]
    ranges: tuple[ClassRange, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Keys without which a scenario can't use it: the name, and any of the four numbers."""
        return tuple(f.key for f in self.of_kind("missing"))

    @property
    def status(self) -> str:
        kinds = {f.kind for f in self.findings}
        return "incomplete" if "missing" in kinds else "implausible" if "implausible" in kinds else "complete"

    def of_kind(self, kind: Kind) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind == kind)


def check_chip_file(path: str | Path) -> ChipCheck:
    """The findings on a chip's file (``-`` is standard input); nothing is written.

    A name or a number that isn't there is a finding. InputError with every problem of what can't be read as a chip, in
    the order of the file: unknown keys, text or a negative number where a figure belongs, YAML that isn't; then, as
    they are nowhere in it, what is missing.
    """
    document = _read(path)
    offered = OfferedChips(problems=list(document.problems))
    nameless = document.data.get("name") in (None, "")
    stem = Path(document.file).stem if document.file != "<stdin>" else "chip"
    data = {**document.data, "name": stem} if nameless else document.data
    chip = checked_chip(data, document, (), (), offered, chip_from_draft)
    lacking = [_NO_NAME] if nameless else []
    if chip is None or offered.problems:
        lacking += [_no_number(key) for key in absent_numbers(data)]
        problems = [*offered.problems, *(_as_problem(f, document) for f in lacking)]
        raise InputError(sorted(problems, key=lambda p: math.inf if p.line is None else p.line))
    stem = stem if document.file != "<stdin>" else chip.name
    chip_id = str(document.data.get("id") or stem).lower().replace(" ", "-").replace("_", "-")
    peers = _peers(chip, chip_id)
    ranges = tuple(r for key in RANGES if (r := _range(chip, key, peers)) is not None)
    findings = [
        *lacking,
        *(_no_number(key) for key in chip.missing),
        *_implausible(chip),
        *_unusual(chip, ranges),
        *_left_out(chip, document.data),
        *_names(chip, chip_id, document.file),
    ]
    placed = tuple(replace(f, line=document.place((f.key,))[1] if f.key in document.data else None) for f in findings)
    return ChipCheck(document.file, chip_id, chip, len(peers), placed, ranges)


def _as_problem(finding: Finding, document: Document) -> Problem:
    """With the line only where the key stands, without a value."""
    stands = finding.key in document.data
    return Problem(finding.message, finding.key, document.file, document.place((finding.key,))[1] if stands else None)


def _read(path: str | Path) -> Document:
    try:
        text, file = read_text(path)
        return parse_document(text, file)
    except InputError as error:  # the reader's hints are about scenarios
        told = [replace(p, fix=_SHAPE if "cenario" in p.fix else p.fix) for p in error.problems]
        raise InputError(told) from None


def _peers(chip: Chip, chip_id: str) -> list[Chip]:
    """The plannable chips of its class; all of them for a class that the catalogue doesn't have."""
    others = [c for c in map(load_chip, chip_ids()) if not c.missing and c.id != chip_id]
    return [c for c in others if c.chip_class == chip.chip_class] or others


def _range(chip: Chip, key: str, peers: list[Chip]) -> ClassRange | None:
    known = [(v, c.id) for c in peers if key not in c.defaulted and (v := figure_of(c, key)) is not None]
    value = None if key in chip.defaulted else figure_of(chip, key)
    if not known or (value is None and key not in FOUR_NUMBERS):
        return None
    (low, low_chip), (high, high_chip) = min(known), max(known)
    return ClassRange(key, value, low, low_chip, high, high_chip)


def _no_number(key: str) -> Finding:
    return Finding("missing", key, "isn't given, and a plan needs it.")


def _implausible(chip: Chip) -> list[Finding]:
    told = [warning.partition(": ") for warning in chip.warnings]
    return [Finding("implausible", key.removeprefix("chip."), message) for key, _, message in told]


def _unusual(chip: Chip, ranges: tuple[ClassRange, ...]) -> list[Finding]:
    findings = []
    for r in ranges:
        if r.value is None or not r.outside:
            continue
        side, end, other = ("above", r.high, r.high_chip) if r.value > r.high else ("below", r.low, r.low_chip)
        message = f"{r.value:g} is {side} every {chip.chip_class} chip of the catalogue ({end:g}, {other})."
        findings.append(Finding("unusual", r.key, message.replace("custom chip", "chip")))
    return findings


def _left_out(chip: Chip, data: Mapping[str, object]) -> list[Finding]:
    """What has a default, or is needed for some answers only."""
    findings = []
    for key in chip.defaulted:
        value = figure_of(chip, key)
        message = f"{value:g} is taken for {_WITHOUT[key]}: {chip.provenance[key].source}."
        findings.append(Finding("left out", key, message))
    if not {"fp8", "int8"} & set(chip.peak_flops):
        message = "neither it nor int8_tflops is given: models in 8 bits run at the rate of bf16."
        findings.append(Finding("left out", "fp8_tflops", message))
    if chip.usd_per_hour is None:
        findings.append(Finding("left out", "price", "a scenario must give usd_per_hour."))
    if chip.all_in_watts is None:
        findings.append(Finding("left out", "all_in_kw", "power can't be billed or capped."))
    if not data.get("class"):
        message = "custom is taken: the efficiencies of chips in general. One of gpu, npu, tpu has its own."
        findings.append(Finding("left out", "class", message))
    bare = [key for key, p in chip.provenance.items() if p.source == "input"]
    if bare:
        message = f"no source for {', '.join(bare)}: {{value: …, source: …, confidence: …}}."
        findings.append(Finding("left out", "sources", message))
    return findings


def _names(chip: Chip, chip_id: str, file: str) -> list[Finding]:
    """Ids and aliases that the catalogue gives to another chip."""
    own = hardware_dir() / "chips" / f"{chip_id}.yaml"
    if own.is_file() and file != "<stdin>" and own.resolve() == Path(file).resolve():
        return []
    findings = []
    for key, name in (("id", chip_id), *(("aliases", alias) for alias in chip.aliases)):
        taken = find_chip(name)
        if taken is not None:
            findings.append(Finding("name", key, f"{name!r} is {taken} already."))
    return findings
