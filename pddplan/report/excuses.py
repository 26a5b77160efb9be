"""Limits that a plan breaks, in words: one place for the first line, the table and ``check``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from pddplan.errors import Excuse
from pddplan.report.figures import UNKNOWN, constraint_name, figure, limit_seconds, percent, seconds, words

SLOT_SETTERS = ("tpot", "kv_memory", "engine")  # as the unit of a share of requests that wait for a slot


def is_share(excuse: Excuse) -> bool:
    """True where value and limit are fractions: loads, and shares of requests."""
    waiting = excuse.constraint.endswith("_slots") and excuse.unit in SLOT_SETTERS
    return waiting or (not excuse.unit and (excuse.constraint.endswith("utilization") or excuse.constraint == "within"))


def amounts(excuse: Excuse) -> tuple[str, str, str]:
    """Value and limit of an excuse, and the unit where they don't carry it themselves."""
    value, limit = excuse.value, excuse.limit
    if is_share(excuse):
        return percent(value), percent(limit), ""
    if excuse.unit == "s":
        return seconds(value, limit), limit_seconds(limit), ""
    if excuse.unit == "bytes":
        return figure(value / 1e9), figure(limit / 1e9), "GB"
    return figure(value), figure(max(limit, 0.0)), excuse.unit


def off_by(excuse: Excuse) -> str:
    """How far a value is beyond its limit: in percent, from ten times the limit on as a multiple of it."""
    if excuse.limit <= 0 or not math.isfinite(excuse.value):
        return UNKNOWN
    share = abs(excuse.value - excuse.limit) / excuse.limit
    return percent(share) if share < 9 else f"{figure(excuse.value / excuse.limit)} times"


def excuse_subject(excuse: Excuse) -> str:
    """Where it breaks, "" where the constraint's own name says so (``line`` of ``line_utilization``)."""
    subject = words(excuse.subject)
    return "" if subject == "slo" or words(excuse.constraint).startswith(subject) else subject


def excuse_text(excuse: Excuse) -> str:
    """``line capacity (north to west) 12.3, limit 10.0 Gbit/s``."""
    subject = excuse_subject(excuse)
    where = f" ({subject})" if subject else ""
    value, limit, unit = amounts(excuse)
    return f"{excuse_name(excuse)}{where} {value}, limit {limit} {unit}".rstrip()


def excuse_name(excuse: Excuse) -> str:
    """``TTFT p99``, with several workloads ``TTFT p99 of chat``."""
    name = constraint_name(excuse.constraint)
    return name if excuse.workload is None else f"{name} of {excuse.workload}"


def worded(text: str, excuses: Iterable[Excuse] = ()) -> str:
    """A sentence of the planner with the names of constraints as people write them."""
    for excuse in excuses:
        text = text.replace(excuse.constraint, constraint_name(excuse.constraint))
    return constraint_names_in(text)


def constraint_names_in(text: str) -> str:
    """``ttft_p90`` -> "TTFT p90" wherever it stands in a sentence."""
    return re.sub(r"\b(ttft|tpot|pause|e2e)_p([0-9.]+)\b", lambda match: constraint_name(match[0]), text)
