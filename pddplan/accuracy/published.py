"""The points that ship with the package, and the errors that were recorded on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pddplan.accuracy.records import Measurements
from pddplan.accuracy.rows import read_measurements
from pddplan.accuracy.score import GroupErrors
from pddplan.spec.datafile import read_data_file

SLACK = 0.10  # of the recorded error: what is worse is a step back
ROUNDING = 0.05  # percent, of the recorded figures
_NAME = "published points"
Recorded = Mapping[str, float]
"""MAPE [percent] by ``key_of`` a group."""


def published_file() -> Path:
    return Path(__file__).with_name("published.csv")


def recorded_file() -> Path:
    return Path(__file__).with_name("recorded.yaml")


def published() -> Measurements:
    """The shipped points as measurements; the head of the file says where they come from and how they were chosen."""
    return replace(read_measurements(str(published_file())), file=_NAME)


def key_of(group: GroupErrors) -> str:
    """``mode=decode tpot_ms A``."""
    return f"{group.group} {group.metric} {group.confidence or '-'}"


def recorded() -> Recorded:
    """Errors that the committed model reached on the shipped points."""
    return {str(k): float(v) for k, v in read_data_file(recorded_file())["mape"].items()}


def simple_groups(groups: Sequence[GroupErrors]) -> tuple[GroupErrors, ...]:
    """Groups by one label: the crossed ones have too few of the shipped points."""
    return tuple(g for g in groups if "," not in g.group and not g.group.startswith("fitted="))


def worse_than_recorded(groups: Sequence[GroupErrors], before: Recorded) -> tuple[str, ...]:
    """Groups whose MAPE is above the recorded one by more than a tenth of it, and recorded groups that are gone."""
    now = {key_of(g): g.errors.mape for g in simple_groups(groups)}
    found = [f"{k}: no longer predicted" for k in before if k not in now]
    found += [
        f"{k}: MAPE {now[k]:.1f} %, recorded {was:.1f} %"
        for k, was in before.items()
        if k in now and now[k] > (was + ROUNDING) * (1.0 + SLACK)
    ]
    return tuple(found)
