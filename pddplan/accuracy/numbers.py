"""Numbers of a CSV cell: what isn't a usable one is a reason, never a crash."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from pddplan.accuracy.names import shown
from pddplan.accuracy.records import METRICS, Figures, Metric, NoPoint

Row = Mapping[str, str]
MOST_TOKENS = 1e7
MOST_REQUESTS = 1e7  # users, requests per second
MOST_RANKS = 8192
MOST_MEASURED = 1e12
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ABOUT = re.compile(r"~\s*(\d+(?:\.\d+)?)")


def cell(row: Row, column: str) -> str:
    """Text of a cell without blanks around it; "" where the column isn't there."""
    return row.get(column, "").strip()


def parse(text: str) -> float | None:
    """A finite number; None for anything else, ``nan`` and ``inf`` included."""
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def number(row: Row, column: str, most: float = MOST_TOKENS, default: float | None = None) -> float:
    """A number above 0 and at most ``most``; NoPoint where it is missing (without a default) or isn't one."""
    text = cell(row, column)
    if not text and default is not None:
        return default
    return checked(text, column, most)


def checked(text: str, column: str, most: float) -> float:
    """``text`` as a number above 0 and at most ``most``; NoPoint otherwise."""
    if not text:
        raise NoPoint(f"{column} is not stated")
    value = parse(text)
    if value is None:
        raise NoPoint(f"{column} {shown(text)} is not a number")
    if value <= 0:
        raise NoPoint(f"{column} {shown(text)} is not above 0")
    if value > most:
        raise NoPoint(f"{column} {shown(text)} is above {most:,.0f}")
    return value


def count(row: Row, column: str, default: int | None = None) -> int:
    """A whole number of ranks or workers, at least 1; 0 and a dash mean not stated."""
    text = cell(row, column)
    if text in ("-", "") or parse(text) == 0:
        text = ""
        if default is not None:
            return default
    value = checked(text, column, MOST_RANKS)
    if value != int(value):
        raise NoPoint(f"{column} {shown(text)} is not a whole number")
    return int(value)


def share(row: Row, column: str) -> float:
    """A fraction from 0 up to, not including, 1; 0 where it isn't stated. ``0 (random)`` and ``~0`` are 0."""
    text = cell(row, column)
    if not text:
        return 0.0
    found = re.match(r"~?\s*([\d.]+)(?:\s*\(.*\))?$", text)
    value = parse(found[1]) if found else None
    if value is None or not 0 <= value < 1:
        raise NoPoint(f"{column} {shown(text)} is not a fraction from 0 to below 1")
    return value


def about(text: str) -> str:
    """``~294`` as ``294``; anything else as it is."""
    found = _ABOUT.fullmatch(text)
    return found[1] if found else text


def figures(row: Row, columns: Mapping[Metric, str]) -> tuple[Figures, tuple[str, ...]]:
    """Measured values by metric, and notes on those that aren't positive finite numbers: they are left out."""
    found: dict[Metric, float] = {}
    notes = []
    for metric in METRICS:
        text = cell(row, columns[metric]) if metric in columns else ""
        if not text:
            continue
        value = parse(text)
        if value is not None and 0 < value <= MOST_MEASURED:
            found[metric] = value
        else:
            notes.append(f"{columns[metric]} {shown(text)} is no measurement")
    return found, tuple(notes)
