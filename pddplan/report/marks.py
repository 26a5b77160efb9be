"""Which printed numbers rest on a default or an estimate, and the list of what was assumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pddplan.report.figures import exact
from pddplan.report.layout import item, paragraph
from pddplan.spec.types import Assumption, Scenario

MARK = "~"
LEGEND = f"{MARK} rests on a default or an estimate; --explain lists all assumptions with their source."
WEAK = ("default", "estimate")
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


def summary_lines(assumptions: Sequence[Assumption], width: int) -> list[str]:
    """Defaults and estimates by name and value, as one wrapped paragraph each."""
    lines: list[str] = []
    for source, title in GROUPS[:2]:
        named = [f"{a.name} {value_text(a)}" for a in assumptions if a.source == source]
        if named:
            text = f"{title} ({len(named)}): " + "; ".join(named) + "."
            lines += paragraph(text, width, indent=2, hanging=4)
    return lines


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
