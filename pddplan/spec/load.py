"""A scenario file -> ``Scenario``, or all its problems at once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pddplan.errors import InputError, Problem
from pddplan.spec import catalogue
from pddplan.spec.calibration import Overlay, named_overlay
from pddplan.spec.checks import ModelCheck, structure_problems
from pddplan.spec.issues import KeyPath, format_key
from pddplan.spec.money import normalise
from pddplan.spec.money_checks import money_problems
from pddplan.spec.offered import OfferedChips, offered_chips
from pddplan.spec.overrides import apply_overrides
from pddplan.spec.types import Chip, Scenario
from pddplan.spec.workload_checks import workload_paths
from pddplan.spec.yaml_source import Document, parse_document, read_text
from pddplan.units import parse_tokens

if TYPE_CHECKING:
    from pddplan.spec.input import ScenarioInput
    from pddplan.spec.notes import Notes

_KILO_TOKENS = re.compile(r"^\s*[0-9]+(\.[0-9]+)?\s*[kKmM]\s*$")


def load_scenario(
    path: str | Path, *, overrides: Sequence[str] = (), check_model: ModelCheck | None = None
) -> Scenario:
    """The scenario of a YAML or JSON file (``-`` is standard input), with overrides ``key.path=value`` applied.

    Raises InputError with every problem of the file, each with file, line, key and fix. ``check_model`` gets
    the model's name and the folder of the file and returns what is wrong with it (the models live in a layer above).
    """
    text, file = read_text(path)
    base_dir = "." if file == "<stdin>" else str(Path(path).parent)
    return load_scenario_text(text, file, base_dir, overrides=overrides, check_model=check_model)


def load_scenario_text(
    text: str,
    file: str = "<text>",
    base_dir: str = ".",
    *,
    overrides: Sequence[str] = (),
    check_model: ModelCheck | None = None,
) -> Scenario:
    """The same from text; paths in it are relative to ``base_dir``."""
    document = parse_document(text, file)
    _refuse_other_documents(document)
    override_problems = apply_overrides(document, overrides)
    # pydantic is imported only when a scenario is read
    from pydantic import ValidationError

    from pddplan.spec.input import ScenarioInput

    money = normalise(document)
    offered = offered_chips(document, base_dir)
    overlay, overlay_problems = named_overlay(document, base_dir)
    problems = [
        *document.problems,
        *override_problems,
        *structure_problems(document, base_dir, check_model),
        *money.problems,
        *offered.problems,
        *overlay_problems,
        *money_problems(document, offered.chips),
        *_engine_name(document),
    ]
    given: ScenarioInput | None = None
    try:
        given = ScenarioInput.model_validate(money.data)
    except ValidationError as error:
        from pddplan.spec.problems import problems_of

        problems = problems_of(error, document, money) + problems
    if problems or given is None:
        raise InputError(_sorted_once(problems))
    return _build(given, document, base_dir, offered, overlay)


def _refuse_other_documents(document: Document) -> None:
    """A plan, a model card and other files of pddplan say what they are: one message, not one per key."""
    kind = document.data.get("schema")
    if isinstance(kind, str) and kind.startswith("pddplan."):
        fix = "Give the scenario that it was made from." if kind.startswith("pddplan.plan/") else "Give a scenario."
        raise InputError(document.problem(("schema",), f"this is a {kind}, not a scenario.", fix))


def _sorted_once(problems: list[Problem]) -> list[Problem]:
    """In the order of the file's lines, overrides first, one problem per key and message."""
    once: dict[tuple[str, str, int | None, str], Problem] = {}
    for problem in problems:
        once.setdefault((problem.file, problem.key, problem.line, problem.message), problem)
    return sorted(once.values(), key=lambda p: (p.file != "--set", p.file, p.line or 0, p.key))


def _engine_name(document: Document) -> list[Problem]:
    engine = document.data.get("engine")
    name = engine.get("name") if isinstance(engine, dict) else engine
    path: KeyPath = ("engine", "name") if isinstance(engine, dict) else ("engine",)
    if not isinstance(name, str) or not name:
        return []
    try:
        catalogue.load_engine(name.lower())
    except InputError as error:
        return [document.problem(path, p.message, p.fix) for p in error.problems]
    return []


def _build(
    given: ScenarioInput, document: Document, base_dir: str, offered: OfferedChips, overlay: Overlay | None
) -> Scenario:
    from pddplan.spec import resolve_engine, resolve_sites, resolve_workload
    from pddplan.spec.notes import Notes

    notes = Notes()
    paths = workload_paths(document.data)
    workloads = [given.workload] if given.workload is not None else list(given.workloads or ())
    raw = [document.data["workload"]] if given.workload is not None else document.data["workloads"]
    precision = resolve_engine.resolve_precision(given.precision, notes)
    engine = resolve_engine.resolve_engine(given.engine, notes, overlay)
    chips = _calibrated(offered, overlay, engine.name, notes)
    traffic = resolve_workload.resolve_traffic(workloads, paths, raw, notes)
    sites = tuple(resolve_sites.resolve_site(site, i, chips, notes) for i, site in enumerate(given.sites))
    links = tuple(resolve_sites.resolve_link(link, i, notes) for i, link in enumerate(given.links or ()))
    slo, within = resolve_workload.resolve_slo(given.slo, list(zip(workloads, paths, strict=True)), notes)
    _note_kilo(document.data, notes)
    return Scenario(
        name=given.name or Path(document.file).stem,
        model=given.model,
        precision=precision,
        engine=engine,
        traffic=traffic,
        sites=sites,
        links=links,
        slo=slo,
        slo_within=within,
        prices=resolve_workload.resolve_prices(given.prices, notes),
        objective=resolve_workload.resolve_objective(given, notes),
        spares=resolve_workload.resolve_role_numbers(given.spares),
        max_utilization=resolve_workload.resolve_role_numbers(given.max_utilization),
        cny_per_usd=given.exchange.cny_per_usd if given.exchange else None,
        assumptions=notes.assumptions,
        base_dir=base_dir,
        file=document.file,
        sha256=scenario_sha256(document.data, _imported(offered, overlay, given.calibration)),
        warnings=notes.warnings,
        lines={format_key(key): line for key, line in document.lines.items() if key},
    )


def _calibrated(
    offered: OfferedChips, overlay: Overlay | None, engine: str, notes: Notes
) -> dict[tuple[int, int], Chip]:
    """The offered chips with the factors of the scenario's calibration; one that changes nothing is said."""
    if overlay is None:
        return offered.chips
    for chip in offered.chips.values():
        overlay.note_chip(chip, notes)
    if engine not in overlay.engines and not any(chip.id in overlay.chips for chip in offered.chips.values()):
        named = ", ".join((*overlay.chips, *overlay.engines))
        notes.warn(f"calibration: {overlay.file} changes nothing here: it is about {named}.")
    return {place: overlay.chip(chip) for place, chip in offered.chips.items()}


def _imported(offered: OfferedChips, overlay: Overlay | None, name: str | None) -> dict[str, Any]:
    """Content of the files that the scenario names, by name, as far as it decides the plan."""
    if overlay is None or name is None:
        return offered.files
    decides = {key: overlay.data[key] for key in ("chips", "engines") if key in overlay.data}
    return {**offered.files, name: decides}


# ---------------------------------------------------------------- identity


def scenario_sha256(data: dict[str, Any], files: dict[str, Any]) -> str:
    """Hash of the data, of what they import, and of nothing else: not of key order, comments or notation."""
    content = {"scenario": data, "files": files} if files else {"scenario": data}
    text = json.dumps(_plain_numbers(content), sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _plain_numbers(value: Any) -> Any:
    # 2.00 in YAML is 2 after a round trip through other JSON writers
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {k: _plain_numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain_numbers(v) for v in value]
    return value


def _note_kilo(data: dict[str, Any], notes: Notes) -> None:
    """Says once, of the largest such value, that K is 1,024 tokens."""
    texts = _strings(data.get("workload") or data.get("workloads"), "")
    found = [text.strip() for key, text in texts if "tokens" in key and _KILO_TOKENS.match(text)]
    if found:
        largest = max(found, key=lambda text: (parse_tokens(text), text))
        notes.warn(f"{largest} is read as {parse_tokens(largest):,.0f} tokens: K is 1,024, M is 1,024 K.")


def _strings(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name in sorted(value):  # not in the file's order: reordered keys give the same note
            if key.endswith("histogram"):
                yield key, name
            yield from _strings(value[name], f"{key}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, key)
