"""Collects what a scenario leaves open: every default becomes an assumption, every doubt a warning."""

from __future__ import annotations

from typing import TypeVar

from pddplan.spec.types import Assumption, Source

T = TypeVar("T", bound=float | str)


class Notes:
    """Assumptions and warnings in the order in which they are met; each assumption name once."""

    def __init__(self) -> None:
        self._assumptions: dict[str, Assumption] = {}
        self._warnings: dict[str, None] = {}

    def assume(self, name: str, value: float | str, source: Source, note: str) -> None:
        self._assumptions.setdefault(name, Assumption(name, value, source, note))

    def add(self, assumption: Assumption) -> None:
        self._assumptions.setdefault(assumption.name, assumption)

    def default(self, given: T | None, name: str, value: T, note: str, source: Source = "default") -> T:
        """The given value, else the default, which is then recorded."""
        if given is not None:
            return given
        self.assume(name, value, source, note)
        return value

    def warn(self, text: str) -> None:
        self._warnings.setdefault(text, None)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return tuple(self._assumptions.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)
