"""Which groups of measurements the engine profiles were fitted to: those are shown apart from the rest."""

from __future__ import annotations

from functools import lru_cache

from pddplan.accuracy.records import MeasuredRow
from pddplan.spec.datafile import hardware_dir, read_data_file

Group = tuple[str, str, str]


@lru_cache(maxsize=1)
def fitted_groups() -> frozenset[Group]:
    """Groups (model family, chip, engine) that a fit has seen; empty where nothing was fitted.

    ``hardware/fitted_groups.yaml`` lists them: ``groups: [{family, chip, engine}]``.
    """
    path = hardware_dir() / "fitted_groups.yaml"
    if not path.is_file():
        return frozenset()
    return frozenset((str(g["family"]), str(g["chip"]), str(g["engine"])) for g in read_data_file(path)["groups"])


def is_fitted(row: MeasuredRow) -> bool:
    """Whether the row is of a group that a fit has seen."""
    return (row.labels.family, row.labels.chip, row.labels.engine) in fitted_groups()
