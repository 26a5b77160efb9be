"""Small tables that a scenario holds: SLO quantiles, gaps between turns, measured TTFT, traffic prices."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import exp

from pddplan.spec.issues import Issue, shown
from pddplan.spec.values import (
    check_number,
    lognormal_through,
    normal_quantile,
    not_a_number,
    quantile_of,
    token_count,
)

MAX_SECONDS = 1e9


def _duration(value: object) -> float | Issue:
    return check_number(value, 0.0, MAX_SECONDS, low_open=True)


def quantile_limits(value: object) -> tuple[tuple[float, float], ...] | list[Issue]:
    """SLO limits {p50: 3, p99: 20} as (quantile, limit) pairs, ascending, in the key's unit."""
    if not isinstance(value, Mapping):
        fix = f"Say which quantile: {{p99: {shown(value)}}}." if isinstance(value, (int, float)) else "Write {p99: 20}."
        return [Issue(f"{shown(value)} has no quantile.", fix)]
    issues: list[Issue] = []
    limits: dict[float, float] = {}
    for key, raw in value.items():
        if raw is None:  # --set slo.ttft_s.p99=null takes a limit away
            continue
        q, limit = quantile_of(str(key)), _duration(raw)
        if q is None:
            issues.append(Issue(f"unknown quantile '{key}'.", "Write p1 to p99, or p99.9.", (key,)))
        if isinstance(limit, Issue):
            issues.append(Issue(limit.message, limit.fix, (key,)))
        elif q is not None and q in limits:
            issues.append(Issue(f"quantile {q:g} is given twice.", "Keep one of them.", (key,)))
        elif q is not None:
            limits[q] = limit
    if not value:
        return [Issue("no quantile is given.", "Write {p99: 20}, or remove the key.")]
    return issues or tuple(sorted(limits.items()))


def gap_quantiles(value: object) -> tuple[float, float] | list[Issue]:
    """(p50, p90) of the gap between turns [s], from a number or from two quantiles of a log-normal."""
    if not isinstance(value, Mapping):
        number = _duration(value)
        return [number] if isinstance(number, Issue) else (number, number)
    fitted = lognormal_through(value, _duration, "{p50: 17, p90: 129}")
    if isinstance(fitted, list):
        return fitted
    mu, sigma = fitted
    return exp(mu), exp(mu + sigma * normal_quantile(0.9))


def ttft_table(value: object) -> tuple[tuple[float, float], ...] | list[Issue]:
    """Measured TTFT {1K: 0.44, 8K: 0.72} as (uncached tokens, seconds), ascending in both."""
    if not isinstance(value, Mapping) or not value:
        return [Issue(f"{shown(value)} is not a table.", "Write uncached tokens: seconds, like {1K: 0.44, 8K: 0.72}.")]
    issues: list[Issue] = []
    rows: list[tuple[float, float, str]] = []
    for key, raw in value.items():
        length, seconds = token_count(str(key)), _duration(raw)
        for part in (length, seconds):
            if isinstance(part, Issue):
                issues.append(Issue(part.message, part.fix, (key,)))
        if not isinstance(length, Issue) and not isinstance(seconds, Issue):
            rows.append((length, seconds, str(key)))
    rows.sort()
    for (n1, t1, _), (n2, t2, key) in pairwise(rows):
        if n1 == n2 or t2 < t1:
            what = "is given twice" if n1 == n2 else f"is faster than {n1:g} tokens"
            issues.append(Issue(f"{key} {what}.", "Times must rise with the number of tokens.", (key,)))
    return issues or tuple((n, t) for n, t, _ in rows)


def usd_per_gb(value: object) -> dict[str, float] | list[Issue]:
    """Price per GB by direction: {"from_north": 0.02}; a number holds both ways and gets the key ""."""
    pairs = value if isinstance(value, Mapping) else {"": value}
    issues: list[Issue] = []
    prices: dict[str, float] = {}
    for key, raw in pairs.items():
        where = (str(key),) if key else ()
        price = check_number(raw, 0.0, 1e6)
        if isinstance(price, Issue):
            issues.append(Issue(price.message, price.fix, where))
        elif key and not str(key).startswith("from_"):
            issues.append(Issue(f"unknown key '{key}'.", "Write from_SITE, the site that the traffic leaves.", where))
        else:
            prices[str(key)] = price
    return issues or prices


def counts(value: object) -> tuple[int, ...] | list[Issue]:
    """Allowed values of a parallelism, ascending: ``8`` or ``[8, 16]``."""
    items = value if isinstance(value, list) else [value]
    issues: list[Issue] = []
    numbers: set[int] = set()
    for index, raw in enumerate(items):
        where = (index,) if isinstance(value, list) else ()
        number = check_number(raw, 1.0, 1e6)
        if isinstance(number, Issue):
            issues.append(Issue(number.message, number.fix, where))
        elif not number.is_integer():
            wrong = not_a_number(raw, whole=True)
            issues.append(Issue(wrong.message, wrong.fix, where))
        else:
            numbers.add(int(number))
    if not items:
        return [Issue("the list is empty.", "Write one value or several, like [8, 16].")]
    return issues or tuple(sorted(numbers))
