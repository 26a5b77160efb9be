"""Money keys in every currency and period they may be written in: ``cny_per_month`` -> ``usd_per_hour``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pddplan.errors import Problem
from pddplan.spec.issues import KeyPath
from pddplan.spec.yaml_source import Document
from pddplan.units import HOURS_PER_MONTH, HOURS_PER_YEAR

# keys as the models know them; those with a period may be written per hour, month or year
_WITH_PERIOD = ("usd_per_hour", "max_usd_per_hour", "usd_per_tb_hour", "usd_per_gbit_month")
_PLAIN = (
    "capex_usd",
    "usd_per_gb",
    "usd_per_kwh",
    "input_usd_per_mtok",
    "cached_input_usd_per_mtok",
    "output_usd_per_mtok",
)
_HOURS = {"hour": 1.0, "month": HOURS_PER_MONTH, "year": HOURS_PER_YEAR}


@dataclass(frozen=True)
class Variant:
    """A way to write a money key: value of ``canonical`` = written value * factor (/ cny_per_usd if cny)."""

    canonical: str
    factor: float
    cny: bool


def _variants() -> dict[str, Variant]:
    table: dict[str, Variant] = {}
    for key in _WITH_PERIOD:
        stem, period = key.rsplit("_", 1)
        for name, hours in _HOURS.items():
            table[f"{stem}_{name}"] = Variant(key, _HOURS[period] / hours, False)
    for key in _PLAIN:
        table[key] = Variant(key, 1.0, False)
    for key, variant in list(table.items()):
        table[key.replace("usd", "cny")] = Variant(variant.canonical, variant.factor, True)
    return table


VARIANTS = _variants()


def spellings(canonical: str) -> tuple[str, ...]:
    """All keys that mean ``canonical``, itself included."""
    return tuple(key for key, variant in VARIANTS.items() if variant.canonical == canonical)


@dataclass(frozen=True)
class Normalised:
    """Data with canonical money keys, what each was written as, and the problems found."""

    data: dict[str, Any]
    written: dict[KeyPath, str]  # canonical path -> key as it stands in the file
    problems: list[Problem]

    def path_as_written(self, path: KeyPath) -> KeyPath:
        return tuple(
            self.written.get(path[: i + 1], str(part)) if isinstance(part, str) else part for i, part in enumerate(path)
        )


def cny_per_usd(data: dict[str, Any]) -> float | None:
    """The exchange rate, if the file gives a usable one (a wrong one is the models' to report)."""
    exchange = data.get("exchange")
    rate = exchange.get("cny_per_usd") if isinstance(exchange, dict) else None
    good = isinstance(rate, (int, float)) and not isinstance(rate, bool) and math.isfinite(rate) and rate > 0
    return float(rate) if good and rate is not None else None


def normalise(document: Document) -> Normalised:
    """Rewrite all money keys of a document to USD and the models' period; CNY needs ``exchange``."""
    rate = cny_per_usd(document.data)
    result = Normalised({}, {}, [])
    if rate is None:
        result.problems.extend(_missing_exchange(document))
    result.data.update(_rewrite(document, document.data, (), rate or 1.0, result))
    return result


def _missing_exchange(document: Document) -> list[Problem]:
    exchange = document.data.get("exchange")
    if isinstance(exchange, dict) and "cny_per_usd" in exchange:
        return []  # it is there, and wrong: the models say so
    found: list[KeyPath] = []
    _find_cny(document.data, (), found)
    fix = "Add exchange: {cny_per_usd: 7.2}, or write USD."
    return [document.problem(path, "needs an exchange rate.", fix) for path in found[:1]]


def _find_cny(node: Any, path: KeyPath, found: list[KeyPath]) -> None:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in VARIANTS and VARIANTS[key].cny:
                found.append((*path, key))
            _find_cny(value, (*path, key), found)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            _find_cny(value, (*path, index), found)


def _rewrite(document: Document, node: Any, path: KeyPath, rate: float, out: Normalised) -> Any:
    if isinstance(node, list):
        return [_rewrite(document, value, (*path, i), rate, out) for i, value in enumerate(node)]
    if not isinstance(node, dict):
        return node
    if path and path[-1] == "chip":
        return node  # an inline chip has its own reader
    result: dict[str, Any] = {}
    for key, value in node.items():
        variant = VARIANTS.get(key)
        name = variant.canonical if variant else key
        if variant and name in result:
            first = out.written.get((*path, name), name)
            message = f"'{first}' and '{key}' are the same price."
            out.problems.append(document.problem((*path, key), message, "Keep one of them."))
            continue
        if name != key:
            out.written[(*path, name)] = key
        child = _rewrite(document, value, (*path, name), rate, out)
        result[name] = _scaled(child, variant.factor / (rate if variant.cny else 1.0)) if variant else child
    return result


def _scaled(value: Any, factor: float) -> Any:
    """Numbers, and the numbers of a mapping by direction, times the factor; all else is left for the models."""
    if factor == 1.0 or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        # multiply as floats: an integer of 400 digits must become inf, not an OverflowError
        return float(value) * factor if abs(value) < 1e300 else math.inf
    if isinstance(value, dict) and all(str(k).startswith("from_") for k in value):
        return {k: _scaled(v, factor) for k, v in value.items()}
    return value
