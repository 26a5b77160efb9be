"""Our own data files: where they lie, how they are read, and a number together with where it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

CONFIDENCES = ("datasheet", "measured", "documented", "secondary", "estimate", "input")
"""datasheet: the vendor's page; measured: on real hardware; documented: the program's own default;
secondary: press, distributor, third party; estimate: derived or disputed; input: the user's."""

_PACKAGE = Path(__file__).resolve().parents[1]


def hardware_dir() -> Path:
    """Folder of the hardware data: inside the package where installed from a wheel, else beside it."""
    return _data_dir("hardware")


def examples_dir() -> Path:
    """Folder of the example scenarios: inside the package where installed from a wheel, else beside it."""
    return _data_dir("examples")


def _data_dir(name: str) -> Path:
    packed = _PACKAGE / f"_{name}"
    return packed if packed.is_dir() else _PACKAGE.parent / name


def read_data_file(path: Path) -> dict[str, Any]:
    """A mapping from one of our own YAML files (not for the user's: those go through the careful loader)."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times as fast
    with path.open(encoding="utf-8") as stream:
        data = yaml.load(stream, Loader=loader)
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no mapping")
    return data


@lru_cache(maxsize=1)
def class_data() -> dict[str, Any]:
    """What holds for chips in general: defaults for what a chip doesn't state, plausible ranges."""
    return read_data_file(hardware_dir() / "classes.yaml")


@dataclass(frozen=True)
class Figure:
    """One number as written in a data file, in the unit of its key."""

    value: float
    source: str
    confidence: str


def read_figure(raw: object, sources: Mapping[str, str]) -> Figure | str:
    """A positive finite number, bare (``input``) or as ``{value, source, confidence}``; else what is wrong.

    ``source`` is a name in ``sources`` or stands for itself.
    """
    if isinstance(raw, Mapping):
        unknown = sorted(str(k) for k in raw if k not in ("value", "source", "confidence"))
        if unknown:
            return f"unknown key {unknown[0]!r} beside value, source, confidence"
        number = read_number(raw.get("value"))
        if isinstance(number, str):
            return number
        confidence = raw.get("confidence", "input")
        if confidence not in CONFIDENCES:
            return f"confidence {confidence!r} is none of {', '.join(CONFIDENCES)}"
        source = str(raw.get("source", "input"))
        return Figure(number, str(sources.get(source, source)), str(confidence))
    number = read_number(raw)
    return number if isinstance(number, str) else Figure(number, "input", "input")


def read_number(raw: object) -> float | str:
    """A positive finite number, or what is wrong with it."""
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        return f"{raw!r} is not a number"
    try:
        value = float(raw)
    except OverflowError:
        return "is too large"
    if not math.isfinite(value):
        return f"{raw!r} is not finite"
    if value <= 0:
        return f"{raw!r} must be above 0"
    return value
