"""Failures as data: problems of an input, and excuses of a candidate that can't run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

ENDLESS = 1e9  # relative violation of a row that has no finite one


@dataclass(frozen=True)
class Problem:
    """One thing wrong with an input: where it is, what it is, what would be right."""

    message: str
    key: str = ""
    file: str = ""
    line: int | None = None
    fix: str = ""

    def __str__(self) -> str:
        place = self.file or "<input>"
        if self.line is not None:
            place += f":{self.line}"
        key = f" {self.key}:" if self.key else ""
        fix = f" {self.fix}" if self.fix else ""
        return f"{place}:{key} {self.message}{fix}"


class InputError(Exception):
    """Bad input or usage: all its problems at once; exit code 2."""

    def __init__(self, problems: list[Problem] | Problem) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


@dataclass(frozen=True)
class Excuse:
    """Why a candidate can't run, or which limit a plan breaks: ``value`` against ``limit`` in ``unit``."""

    constraint: str
    value: float
    limit: float
    unit: str = ""
    subject: str = ""
    workload: str | None = None  # whose requests a latency row is about, where a scenario has several workloads

    @property
    def name(self) -> str:
        """``ttft_p99``, with several workloads ``ttft_p99 of chat``."""
        return self.constraint if self.workload is None else f"{self.constraint} of {self.workload}"

    @property
    def ratio(self) -> float:
        """Value over limit: how badly a row breaks; inf where the limit is 0."""
        return self.value / self.limit if self.limit > 0 else math.inf


def worst_ratio(excuses: Iterable[Excuse]) -> float:
    """Largest violation relative to its limit, an endless one counted as ``ENDLESS``; 0 without any."""
    return max((e.ratio if math.isfinite(e.ratio) else ENDLESS for e in excuses), default=0.0)
