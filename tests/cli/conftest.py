"""A solver that answers at once, so that the command line is tested by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pddplan.spec.catalogue import examples_dir
from tests.report import plans


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text((examples_dir() / "agent_64k.yaml").read_text())
    return path


@pytest.fixture
def solver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """``solver(answer)`` puts a solver in place that returns (or raises) ``answer`` and keeps how it was called."""

    def install(answer: Any = None) -> SimpleNamespace:
        seen = SimpleNamespace(calls=[])

        def solve(scenario: Any, **options: Any) -> Any:
            seen.calls.append((scenario, options))
            if isinstance(answer, BaseException):
                raise answer
            return plans.feasible() if answer is None else answer

        monkeypatch.setitem(sys.modules, "pddplan.plan.solve", SimpleNamespace(solve=solve))
        return seen

    return install
