"""What a scenario says across its workloads: names, what one deployment can have only one of, limits, hours."""

from __future__ import annotations

from typing import Any, TypeGuard

from pddplan.errors import Problem
from pddplan.spec.issues import KeyPath, format_key, shown
from pddplan.spec.workload import HOURS, hourly_rates
from pddplan.spec.yaml_source import Document

MOST = 1e12  # what the models take of a rate or an hour, at most
LEAST_RATE_PER_S = 1e-6  # of a workload: below it its share of the mix is lost in rounding

Given = list[tuple[KeyPath, dict[str, Any]]]


def workload_paths(data: dict[str, Any]) -> list[KeyPath]:
    """Where the workloads stand: ``workload``, or the entries of ``workloads``."""
    if data.get("workload") is not None:
        return [("workload",)]
    many = data.get("workloads")
    return [("workloads", i) for i in range(len(many))] if isinstance(many, list) else []


def workload_problems(document: Document) -> list[Problem]:
    """All that is wrong with the workloads beside single values, which the models look at."""
    data = document.data
    one, many = data.get("workload"), data.get("workloads")
    if one is None and many is None:
        return [document.problem(("workload",), "is missing.", "Write workload: {request_rate_per_s: 10, …}.")]
    problems: list[Problem] = []
    if one is not None and many is not None:
        problems.append(document.problem(("workloads",), "stands beside workload.", "Keep one of them."))
    if isinstance(many, list) and not many:
        problems.append(document.problem(("workloads",), "holds no entries.", "Write one workload."))
    entries = [one] if one is not None else many
    pairs = zip(workload_paths(data), entries if isinstance(entries, list) else [], strict=False)
    given = [(path, entry) for path, entry in pairs if isinstance(entry, dict)]
    for path, workload in given:
        problems += _alone(document, path, workload)
    if one is None and isinstance(many, list) and len(many) > 1:
        problems += [*_names(document, given), *_common(document, given), *_pinned(document, given)]
        problems += _peak(document, given) if len(given) == len(many) else []
    return problems


def _alone(document: Document, path: KeyPath, workload: dict[str, Any]) -> list[Problem]:
    """What is wrong with one workload, whatever stands beside it."""
    problems: list[Problem] = []
    for key, example in (("prompt_tokens", "64K"), ("output_tokens", "1K")):
        if workload.get(key) is None and workload.get("trace") is None:
            file, line = document.place(path)
            problems.append(Problem("is missing.", format_key((*path, key)), file, line, f"Write {key}: {example}."))
    if workload.get("trace") is not None:
        fix = "Write prompt_tokens, output_tokens and prefix_hit_rate."
        problems.append(document.problem((*path, "trace"), "a trace as workload is not supported yet.", fix))
    load = workload.get("hourly_load")
    if isinstance(load, list) and load and all(_is_number(h) and h == 0 for h in load):
        problems.append(document.problem((*path, "hourly_load"), "all hours are 0.", "Write at least one above 0."))
    if workload.get("slo") is not None and document.data.get("slo") is not None:
        problems.append(document.problem((*path, "slo"), "an SLO stands here and at top level.", "Keep one of them."))
    return problems


def _names(document: Document, given: Given) -> list[Problem]:
    problems: list[Problem] = []
    seen: dict[str, KeyPath] = {}
    for path, workload in given:
        name = workload.get("name")
        if name is None:
            file, line = document.place(path)
            fix = "Write name: chat. Answers tell several workloads apart by it."
            problems.append(Problem("is missing.", format_key((*path, "name")), file, line, fix))
        elif isinstance(name, str) and name in seen:
            where = _where(document, (*seen[name], "name"))
            message = f"two workloads are named {shown(name)}, see {where}."
            problems.append(document.problem((*path, "name"), message, "Give each its own name."))
        elif isinstance(name, str):
            seen[name] = path
    return problems


def _common(document: Document, given: Given) -> list[Problem]:
    """One router and one filter serve all workloads: what they are told must agree, a forecast is of all or none."""
    problems: list[Problem] = []
    for key in ("prefix_cache", "first_token"):
        told = [(path, workload[key]) for path, workload in given if isinstance(workload.get(key), str)]
        for path, value in told[1:]:
            first, before = told[0]
            if value != before:
                message = f"is {value}, but {_where(document, (*first, key))} says {before}: one deployment has one."
                problems.append(document.problem((*path, key), message, "Write the same in both."))
    forecasts = [(path, _forecast(workload.get("output_forecast"))) for path, workload in given]
    first, before = forecasts[0] if forecasts else ((), None)
    for path, value in forecasts[1:]:
        if value == before or "malformed" in (value, before):
            continue
        here, there = (path, first) if value is not None else (first, path)
        if value is None or before is None:
            other = f"{format_key(there)}{_line(document, there)} has none"
        else:
            other = f"{_where(document, (*there, 'output_forecast'))} says another"
        message = f"{other}: one filter serves all workloads."
        problems.append(document.problem((*here, "output_forecast"), message, "Write the same in each, or none."))
    return problems


def _forecast(value: Any) -> tuple[Any, Any] | str | None:
    """Precision and recall, with their defaults; None without a forecast."""
    if value is None:
        return None
    if not isinstance(value, dict):
        return "malformed"
    precision, recall = (1.0 if value.get(key) is None else value[key] for key in ("precision", "recall"))
    return precision, recall


def _pinned(document: Document, given: Given) -> list[Problem]:
    """Main decode's cache is one: its hit rate follows for all workloads, or is given for all."""
    key = "decode_prefix_hit_rate"
    pinned = [path for path, workload in given if workload.get(key) is not None]
    problems: list[Problem] = []
    for path, workload in given:
        if pinned and workload.get(key) is None:
            file, line = document.place(path)
            message = f"is missing, but {_where(document, (*pinned[0], key))} pins it: the cache is one."
            problems.append(Problem(message, format_key((*path, key)), file, line, "Pin it in each, or in none."))
    return problems


def _peak(document: Document, given: Given) -> list[Problem]:
    """In the hour for which all are sized, when their sum peaks, each must send something."""
    hours: list[tuple[float, ...]] = []
    for _, workload in given:
        rate, load = workload.get("request_rate_per_s"), workload.get("hourly_load")
        if not (_is_number(rate) and 0 < rate <= MOST) or not (load is None or _is_profile(load)):
            return []  # the models say what is wrong with it
        hours.append(hourly_rates(float(rate), tuple(map(float, load)) if load is not None else None))
    total = [sum(rates) for rates in zip(*hours, strict=True)]
    peak = total.index(max(total))
    fix = "Write a little above 0 there, or plan for this workload by itself."
    why = f"in hour {peak} (the first is 0), for which all are sized: the sum of the workloads peaks there."
    return [
        document.problem((*path, "hourly_load"), f"leaves {rates[peak]:g} requests/s {why}", fix)
        for (path, _), rates in zip(given, hours, strict=True)
        if rates[peak] < LEAST_RATE_PER_S
    ]


def _is_profile(load: Any) -> TypeGuard[list[float]]:
    numbers = isinstance(load, list) and len(load) == HOURS and all(_is_number(h) and 0 <= h <= MOST for h in load)
    return numbers and max(load) > 0


def _where(document: Document, path: KeyPath) -> str:
    """``workloads[0].prefix_cache (line 9)``."""
    return f"{format_key(path)}{_line(document, path)}"


def _line(document: Document, path: KeyPath) -> str:
    file, line = document.place(path)
    return f" (line {line})" if line is not None else f" ({file})"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
