"""Which rows are held out together: a configuration is predicted by factors that have not seen it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.accuracy.records import MeasuredRow

FOLDS = 5
FEWEST = 2  # rows: below, nothing can be held out


@dataclass(frozen=True)
class Folds:
    """Fold of each row, 0 … ``count`` - 1; ``lone``: rows that were held out one by one, because theirs is the only
    configuration of its chips and engine."""

    of_row: NDArray[Any]
    count: int
    configurations: int
    lone: int


def configuration_of(row: MeasuredRow) -> str:
    """What rows of one sweep over load share: chips, model, engine, layouts, formats and lengths."""
    point = row.parts[0].point
    pools = ";".join(f"{w.count}x{w.chip.id}/{w.parallelism}/{w.weights}/{w.kv_cache}" for w in point.pools)
    lengths = f"{point.lengths.input_tokens:g}/{point.lengths.output_tokens:g}/{point.lengths.prefix_hit:g}"
    return f"{point.mode}|{point.model.id}|{pools}|{lengths}"


def folds_of(rows: Sequence[MeasuredRow]) -> Folds | None:
    """Folds of whole configurations, the largest first to the fold with the fewest rows. Rows of a chip and engine with
    one configuration go by every fifth, else nothing would be known of them. None below ``FEWEST`` rows."""
    if len(rows) < FEWEST:
        return None
    families: dict[str, dict[str, list[int]]] = {}
    for i, row in enumerate(rows):
        point = row.parts[0].point
        family = "+".join([point.engine.name, *sorted({w.chip.id for w in point.pools})])
        families.setdefault(family, {}).setdefault(configuration_of(row), []).append(i)
    count = min(FOLDS, len(rows))
    of_row = np.zeros(len(rows), dtype=int)
    sizes = np.zeros(count, dtype=int)
    lone = 0
    for _, members in sorted(families.items()):
        if len(members) == 1:
            (own,) = members.values()
            lone += len(own)
            units = [[i] for i in own]
        else:
            units = [own for _, own in sorted(members.items(), key=lambda x: (-len(x[1]), x[0]))]
        for unit in units:
            fold = int(np.argmin(sizes))
            of_row[unit] = fold
            sizes[fold] += len(unit)
    used = np.unique(of_row)
    return Folds(np.searchsorted(used, of_row), len(used), sum(len(m) for m in families.values()), lone)
