"""Reading a scenario for a command: from a file or standard input, with the command line's changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pddplan
from pddplan.errors import InputError, Problem
from pddplan.spec.types import Scenario

START = "pddplan init writes a scenario to start from."


def required_path(path: str | None, command: str) -> str:
    """The path, or one message that says how to get a scenario."""
    if path is None:
        raise InputError(Problem("no scenario given.", file=f"pddplan {command}", fix=START))
    return path


def read_scenario(path: str, overrides: Sequence[str] = (), objective: str | None = None) -> tuple[Scenario, float]:
    """The scenario and the seconds that reading took; raises InputError with all its problems.

    ``objective`` replaces the scenario's own unless it is the same: its budget then stays.
    """
    from pddplan.spec.yaml_source import read_text

    began = time.perf_counter()
    text, file = read_text(path)  # once: standard input can't be read again
    folder = "." if path == "-" else str(Path(path).parent)
    scenario = pddplan.load_scenario_text(text, file, folder, overrides)
    if objective is not None and scenario.objective.name != objective:
        scenario = pddplan.load_scenario_text(text, file, folder, [*overrides, f"objective={objective}"])
    return scenario, time.perf_counter() - began
