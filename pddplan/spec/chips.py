"""A chip from a mapping: the catalogue's files, a user's file and the inline form are one format.

Every number may stand bare or as ``{value, source, confidence}``; four of them suffice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pddplan.errors import Problem
from pddplan.spec.datafile import Figure, class_data, hardware_dir, read_figure, read_number
from pddplan.spec.types import Assumption, Chip, Provenance
from pddplan.units import GB, GBIT_PER_S_IN_BYTES_PER_S, TFLOPS

DTYPES = ("bf16", "fp16", "fp8", "int8", "fp4")
FOUR_NUMBERS = ("bf16_tflops", "memory_gb", "memory_gb_per_s", "interconnect_gb_per_s")
FIGURE_KEYS = (
    *(f"{d}_tflops" for d in DTYPES),
    "memory_gb",
    "memory_mib",
    "usable_mib",
    "memory_gb_per_s",
    "interconnect_gb_per_s",
    "pair_gb_per_s",
    "domain_chips",
    "scale_out_gbit_per_s",
    "chips_per_node",
    "tdp_watts",
    "all_in_kw",
    "usd_per_hour",
)
PRICE_KEYS = ("usd_per_hour", "kind", "date", "source", "confidence")
TEXT_KEYS = ("name", "vendor", "class", "efficiency", "status", "form", "topology", "checked", "id")
OTHER_KEYS = ("aliases", "released", "price", "sources", "notes")
CLASSES = ("gpu", "npu", "tpu", "custom")
_WHOLE = ("domain_chips", "chips_per_node")
_MIB = 2.0**20
_MONTH = re.compile(r"^[0-9]{4}-(0[1-9]|1[0-2])(-[0-9]{2})?$")


def chip_from_mapping(data: Mapping[str, Any], key: str) -> Chip | list[Problem]:
    """The chip that a user wrote inline or in a file of their own, or all that is wrong with it.

    ``key`` is the key path for messages. Needs the four numbers; the rest has defaults from
    ``hardware/classes.yaml``, marked ``estimate`` in ``Chip.provenance``; so has bf16 where another format is given.
    What is possible but implausible (both directions of a link added, sparse peaks, TB for GB) is told in
    ``Chip.warnings``.
    """
    return _chip(data, key, allow_missing=False, ask=True)


def chip_from_draft(data: Mapping[str, Any], key: str) -> Chip | list[Problem]:
    """The same, but a dimension that isn't given (or ``null``) ends in ``missing``: for looking a new chip over."""
    return _chip(data, key, allow_missing=True, ask=True)


def chip_from_catalogue(data: Mapping[str, Any], chip_id: str) -> Chip | list[Problem]:
    """The same for a catalogue file, where a dimension nobody published is ``null`` and ends in ``missing``."""
    # The catalogue's own figures are held against the ranges by a test, not at every load.
    return _chip({**data, "id": chip_id}, chip_id, allow_missing=True, ask=False)


def chip_assumptions(chip: Chip) -> tuple[Assumption, ...]:
    """The chip's numbers that are estimates or class defaults, for the list of assumptions."""
    return tuple(
        Assumption(f"{chip.id}.{field}", figure_of(chip, field) or "", "estimate", source.source)
        for field, source in chip.provenance.items()
        if source.confidence == "estimate"
    )


def missing_problem(chip: Chip, key: str) -> Problem | None:
    """Why a chip with unknown dimensions can't be planned with; None where all are known."""
    if not chip.missing:
        return None
    return Problem(
        f"chip {chip.id!r} can't be planned with: no published {', '.join(chip.missing)}.",
        key,
        fix="Write the chip inline with these numbers, or in a file of your own.",
    )


def _chip(data: Mapping[str, Any], key: str, *, allow_missing: bool, ask: bool) -> Chip | list[Problem]:
    problems = [*_unknown_keys(data, key), *_texts(data, key)]
    figures, found = _figures(data, key)
    problems += found
    given = tuple(figures)
    _fill_compute(figures)
    absent = [k for k in FOUR_NUMBERS if k not in figures and not any(p.key == f"{key}.{k}" for p in problems)]
    if absent and not allow_missing:
        problems += [
            Problem(f"{k} is missing", f"{key}.{k}", fix=f"A chip needs {', '.join(FOUR_NUMBERS)}.") for k in absent
        ]
    if problems:
        return problems
    _fill_defaults(figures)
    warnings = _implausible(figures, str(data.get("class", "custom")), key) if ask else ()
    chip = _record(data, figures, tuple(absent), warnings)
    return replace(chip, defaulted=tuple(k for k in figures if k not in given))


def absent_numbers(data: Mapping[str, Any]) -> list[str]:
    """Those of the four numbers that a mapping doesn't give, rightly or wrongly; any format's peak is one."""
    peak = any(data.get(f"{d}_tflops") is not None for d in DTYPES)
    return [k for k in FOUR_NUMBERS if data.get(k) is None and not (peak and k == "bf16_tflops")]


def _unknown_keys(data: Mapping[str, Any], key: str) -> list[Problem]:
    known = (*FIGURE_KEYS, *TEXT_KEYS, *OTHER_KEYS)
    problems = []
    for name in data:
        if name in known:
            continue
        import difflib  # only where something is wrong

        near = difflib.get_close_matches(str(name), known, n=1)
        fix = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
        problems.append(Problem(f"unknown key {str(name)!r} of a chip", f"{key}.{name}", fix=fix))
    return problems


def _texts(data: Mapping[str, Any], key: str) -> list[Problem]:
    problems = [
        Problem(f"{data[k]!r} is not text", f"{key}.{k}")
        for k in TEXT_KEYS
        if data.get(k) is not None and not isinstance(data[k], str)
    ]
    if not data.get("name"):
        problems.append(Problem("a chip needs a name", f"{key}.name"))
    chip_class = data.get("class", "custom")
    if isinstance(chip_class, str) and chip_class not in CLASSES:
        fix = f"One of {', '.join(CLASSES)}."
        problems.append(Problem(f"class {chip_class!r} is unknown", f"{key}.class", fix=fix))
    for k in ("aliases", "notes"):
        value = data.get(k, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            problems.append(Problem("must be a list of texts", f"{key}.{k}"))
    for k in ("sources", "price"):
        if not isinstance(data.get(k) or {}, Mapping):
            problems.append(Problem("must be a mapping", f"{key}.{k}"))
    if data.get("released") is not None and isinstance(year := read_number(data["released"]), str):
        problems.append(Problem(year, f"{key}.released", fix="A year, like 2024."))
    return [*problems, *_efficiency(data.get("efficiency"), key)]


def _efficiency(family: object, key: str) -> list[Problem]:
    if not isinstance(family, str):
        return []
    known = sorted(p.stem for p in (hardware_dir() / "efficiency").glob("*.yaml"))
    if family in known:
        return []
    return [Problem(f"no efficiency family {family!r}", f"{key}.efficiency", fix=f"One of {', '.join(known)}.")]


def _figures(data: Mapping[str, Any], key: str) -> tuple[dict[str, Figure], list[Problem]]:
    sources = data.get("sources")
    sources = sources if isinstance(sources, Mapping) else {}
    figures: dict[str, Figure] = {}
    problems: list[Problem] = []
    for name in FIGURE_KEYS:
        if data.get(name) is None:
            continue
        figure = read_figure(data[name], sources)
        if isinstance(figure, str):
            problems.append(Problem(figure, f"{key}.{name}", fix=f"{name} is a plain number, like {_example(name)}."))
        elif name in _WHOLE and figure.value != math.floor(figure.value):
            problems.append(Problem(f"{figure.value:g} is not a whole number", f"{key}.{name}"))
        else:
            figures[name] = figure
    price = _price(data.get("price"), sources, key)
    if isinstance(price, Problem):
        problems.append(price)
    elif price is not None:
        figures["usd_per_hour"] = price
    return figures, problems


def _price(raw: object, sources: Mapping[str, str], key: str) -> Figure | Problem | None:
    if not isinstance(raw, Mapping):
        return None  # a price that is no mapping is reported with the texts
    unknown = sorted(str(k) for k in raw if k not in PRICE_KEYS)
    if unknown:
        return Problem(f"unknown key {unknown[0]!r}", f"{key}.price", fix=f"Known: {', '.join(PRICE_KEYS)}.")
    date = raw.get("date")
    if date is not None and not _MONTH.match(str(date)):
        return Problem(f"{date!r} is not a month", f"{key}.price.date", fix="Write it as 2026-07.")
    body = {"value": raw.get("usd_per_hour"), **{k: raw[k] for k in ("source", "confidence") if k in raw}}
    figure = read_figure(body, sources)
    return Problem(figure, f"{key}.price.usd_per_hour") if isinstance(figure, str) else figure


def _example(name: str) -> str:
    return f"{class_data()['plausible']['figures'].get(name, {}).get('example', 1):g}"


def _fill_compute(figures: dict[str, Figure]) -> None:
    """The peak of bf16 from another format's, where only that is published (``hardware/classes.yaml``)."""
    if "bf16_tflops" in figures:
        return
    for rule in class_data()["compute_from"]:
        known = figures.get(f"{rule['dtype']}_tflops")
        if known is not None:
            figures["bf16_tflops"] = Figure(known.value * rule["share"], rule["source"], "estimate")
            return


def _fill_defaults(figures: dict[str, Figure]) -> None:
    """Node form and NIC where the chip states none; a domain is one node."""
    for name in ("chips_per_node", "scale_out_gbit_per_s"):
        if name not in figures:
            raw = class_data()["defaults"][name]
            figures[name] = Figure(float(raw["value"]), raw["source"], raw["confidence"])
    figures.setdefault(
        "domain_chips",
        Figure(figures["chips_per_node"].value, "one node, where nothing else is stated", "estimate"),
    )


def _record(
    data: Mapping[str, Any], figures: Mapping[str, Figure], missing: tuple[str, ...], warnings: tuple[str, ...]
) -> Chip:
    def value(name: str, scale: float = 1.0) -> float:
        return figures[name].value * scale if name in figures else math.nan

    def optional(name: str, scale: float = 1.0) -> float | None:
        return figures[name].value * scale if name in figures else None

    price = data.get("price") or {}
    released = read_number(data.get("released"))
    return Chip(
        id=str(data.get("id") or data["name"]),
        name=str(data["name"]),
        vendor=str(data.get("vendor") or ""),
        chip_class=str(data.get("class", "custom")),
        aliases=tuple(data.get("aliases") or ()),
        peak_flops={d: value(f"{d}_tflops", TFLOPS) for d in DTYPES if f"{d}_tflops" in figures},
        memory_bytes=value("memory_mib", _MIB) if "memory_mib" in figures else value("memory_gb", GB),
        usable_bytes=optional("usable_mib", _MIB),
        memory_bytes_per_s=value("memory_gb_per_s", GB),
        scale_up_bytes_per_s=value("interconnect_gb_per_s", GB),
        scale_up_domain=int(value("domain_chips")),
        scale_out_bytes_per_s=value("scale_out_gbit_per_s", GBIT_PER_S_IN_BYTES_PER_S),
        chips_per_node=int(value("chips_per_node")),
        all_in_watts=optional("all_in_kw", 1e3),
        usd_per_hour=optional("usd_per_hour"),
        price_kind=str(price.get("kind", "input" if "usd_per_hour" in figures else "")),
        price_date=str(price.get("date", "")),
        efficiency=data.get("efficiency"),
        provenance={name: Provenance(f.source, f.confidence) for name, f in figures.items()},
        missing=missing,
        scale_up_pair_bytes_per_s=optional("pair_gb_per_s", GB),
        memory_gb_nominal=optional("memory_gb"),
        released=None if isinstance(released, str) else int(released),
        notes=tuple(data.get("notes") or ()),
        warnings=warnings,
        tdp_watts=optional("tdp_watts"),
        status=str(data.get("status") or ""),
    )


def _implausible(figures: Mapping[str, Figure], chip_class: str, key: str) -> tuple[str, ...]:
    """What is outside the ranges of ``hardware/classes.yaml``: single figures, then ratios of two.

    Two figures in the same ratio as their units (FLOP per byte, link bytes per memory byte) tell a slip
    that each alone doesn't: every chip of a class lies within a factor of about four.
    """
    plausible = class_data()["plausible"]
    told = []
    for name, rule in plausible["figures"].items():
        if name in figures and not rule["low"] <= figures[name].value <= rule["high"]:
            told.append(
                f"{key}.{name}: {figures[name].value:g} is outside {rule['low']:g}-{rule['high']:g}. {rule['hint']}"
            )
    for rule in plausible["ratios"]:
        over, under = rule["over"], rule["under"]
        if over not in figures or under not in figures or chip_class not in rule["classes"]:
            continue
        ratio = figures[over].value / figures[under].value
        if ratio > rule["high"]:
            told.append(
                f"{key}.{over}: {figures[over].value:g} is {ratio:.3g} x {under} ({figures[under].value:g}), "
                f"chips of class {chip_class} stay below {rule['high']:g}. {rule['hint']}"
            )
    return tuple(told)


def figure_of(chip: Chip, field: str) -> float | None:
    """A field's value in the unit of its key; None where it isn't known."""
    values: dict[str, float | None] = {
        **{f"{d}_tflops": chip.peak_flops[d] / TFLOPS for d in chip.peak_flops},
        "memory_gb": chip.memory_gb_nominal,
        "memory_mib": chip.memory_bytes / _MIB,
        "usable_mib": None if chip.usable_bytes is None else chip.usable_bytes / _MIB,
        "memory_gb_per_s": chip.memory_bytes_per_s / GB,
        "interconnect_gb_per_s": chip.scale_up_bytes_per_s / GB,
        "pair_gb_per_s": None if chip.scale_up_pair_bytes_per_s is None else chip.scale_up_pair_bytes_per_s / GB,
        "domain_chips": chip.scale_up_domain,
        "scale_out_gbit_per_s": chip.scale_out_bytes_per_s / GBIT_PER_S_IN_BYTES_PER_S,
        "chips_per_node": chip.chips_per_node,
        "tdp_watts": chip.tdp_watts,
        "all_in_kw": None if chip.all_in_watts is None else chip.all_in_watts / 1e3,
        "usd_per_hour": chip.usd_per_hour,
    }
    value = values.get(field)
    return None if value is None or math.isnan(value) else value
