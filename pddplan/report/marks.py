"""Which printed numbers rest on a default or an estimate, and the list of what was assumed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pddplan.report.figures import exact
from pddplan.report.layout import item, paragraph
from pddplan.spec.types import Assumption, Scenario

MARK = "~"
LEGEND = f"{MARK} rests on a default or an estimate; --explain lists all assumptions with their source."
WEAK = ("default", "estimate")
TOLD = 10  # assumptions in the short list: what fits in four lines of 80 columns
# What moves an answer most, by experience with the examples: --explain has the rest.
MATTERS = (
    r"efficiency",
    r"^uncached_tokens",
    r"^workloads?(\[\d+\])?\.prefix_hit_rate",
    r"^workloads?(\[\d+\])?\.prefix_cache$",
    r"^workloads?(\[\d+\])?\.burstiness$",
    r"^workloads?(\[\d+\])?\.sessions\.seconds",
    r"^workloads?(\[\d+\])?\.first_token$",
    r"^links\[\d+\]\.(streams|stream_gbit_per_s|goodput)$",
    r"measured.*cached_counted$",
    r"^precision",
    r"^engine$",
    r"\.buy_in$",
    r"^(workloads\[\d+\]\.)?slo$",
    r"^links\[\d+\]\.max_lines$",
    r"^workloads?(\[\d+\])?\.sessions\.turns$",
)
GROUPS = (
    ("estimate", "Estimates"),
    ("default", "Defaults"),
    ("fitted", "Fitted to measurements"),
    ("catalogue", "From the catalogue"),
    ("input", "Given"),
)


def weak_names(assumptions: Iterable[Assumption]) -> frozenset[str]:
    """Names of the numbers that nobody gave and nobody measured."""
    return frozenset(a.name for a in assumptions if a.source in WEAK)


def mark(text: str, weak: bool) -> str:
    return f"{text}{MARK}" if weak else text


def offer_key(scenario: Scenario, site: str, chip: str) -> str:
    """Key path of the chips that a role runs on, "" where the scenario has none such."""
    for place in scenario.sites:
        for offer in place.offers:
            if place.name == site and offer.chip.id == chip:
                return offer.key
    return ""


def is_weak(names: frozenset[str], *prefixes: str) -> bool:
    """True where an assumed name is one of the prefixes or lies below one."""
    return any(
        prefix and (name == prefix or name.startswith((f"{prefix}.", f"{prefix}[")))
        for name in names
        for prefix in prefixes
    )


def times_are_weak(assumptions: Iterable[Assumption]) -> bool:
    """True where the engine's overheads or a chip's efficiency, and with them every time, weren't measured."""
    names = frozenset(a.name for a in assumptions if a.source == "estimate")
    return is_weak(names, "engine") or any("efficiency" in name for name in names)


def value_text(assumption: Assumption) -> str:
    value = assumption.value
    return value if isinstance(value, str) else exact(value)


def weight_of(name: str) -> int:
    """Rank of an assumption by how far it moves an answer, the furthest first (``MATTERS``)."""
    return next((i for i, pattern in enumerate(MATTERS) if re.search(pattern, name)), len(MATTERS))


def summary_lines(assumptions: Sequence[Assumption], width: int) -> list[str]:
    """The defaults and estimates that move the answer most, by name and value, and how many more there are."""
    weak = sorted((a for a in assumptions if a.source in WEAK), key=lambda a: weight_of(a.name))
    told = [a for a in weak if weight_of(a.name) < len(MATTERS)][:TOLD]
    text = "; ".join(f"{a.name} {value_text(a)}" for a in told)
    more = len(weak) - len(told)
    if more:
        text += f"; and {more} more" if text else f"{more} numbers"
    return paragraph(f"{text}.", width, indent=2, hanging=4)


def explain_lines(assumptions: Sequence[Assumption], width: int) -> list[str]:
    """Every assumption with its source, by kind of source."""
    lines: list[str] = []
    for source, title in GROUPS:
        chosen = [a for a in assumptions if a.source == source]
        if not chosen:
            continue
        lines.append(f"  {title}")
        for a in chosen:
            lines += item(f"{a.name} = {value_text(a)}" + (f" ({a.note})" if a.note else ""), width)
    return lines
