"""Reading a file of measurements: which of the known layouts its header has, and every data row of it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pddplan.accuracy import contract_rows, e2e_rows, serving_rows
from pddplan.accuracy.assemble import without_point
from pddplan.accuracy.csvfile import Table, read_table
from pddplan.accuracy.numbers import Row
from pddplan.accuracy.records import MeasuredRow, Measurements
from pddplan.spec.user_file import refusal

_ALIKE = 0.8  # of 1: how near a header must be to a known column to be a slip of the pen


@dataclass(frozen=True)
class Layout:
    name: str
    needs: tuple[str, ...]
    read: Callable[[int, Row], MeasuredRow]


LAYOUTS = (  # the first whose columns are all there
    Layout("serving_points", serving_rows.COLUMNS, serving_rows.serving_row),
    Layout("e2e_disaggregated", e2e_rows.DISAGGREGATED_COLUMNS, e2e_rows.disaggregated_row),
    Layout("e2e_aggregated", e2e_rows.AGGREGATED_COLUMNS, e2e_rows.aggregated_row),
    Layout("measurements", contract_rows.REQUIRED_COLUMNS, contract_rows.contract_row),
)


def read_measurements(path: str) -> Measurements:
    """All rows of a CSV file (``-``: standard input); InputError where it isn't one, or its columns aren't known."""
    return measurements_of(read_table(path))


def measurements_of(table: Table) -> Measurements:
    """Rows of a table by the layout of its header, each with its point or the reason why it has none."""
    layout = _layout_of(table)
    notes = _check_names(table) if layout.name == "measurements" else ()
    rows = tuple(_row(layout, table, i, row) for i, row in enumerate(table.rows, 1))
    return Measurements(table.file, layout.name, rows, notes)


def _row(layout: Layout, table: Table, row_number: int, row: Row) -> MeasuredRow:
    if row_number in table.misfits:
        cells, columns = table.misfits[row_number], len(table.columns)
        return without_point(row_number, f"the row has {cells} cells, the header {columns} columns")
    return layout.read(row_number, row)


def _layout_of(table: Table) -> Layout:
    for layout in LAYOUTS:
        if set(layout.needs) <= set(table.columns):
            return layout
    # the layout that fits best says what is missing
    best = max(LAYOUTS, key=lambda x: (sum(c in table.columns for c in x.needs) / len(x.needs), x is LAYOUTS[-1]))
    missing = [c for c in best.needs if c not in table.columns]
    if len(missing) == len(best.needs):
        best, missing = LAYOUTS[-1], list(LAYOUTS[-1].needs)
    near = _nearest(missing[0], [c for c in table.columns if c not in best.needs])
    fix = f"Rename {near!r}." if near else f"A table of measurements has at least {', '.join(best.needs)}."
    raise refusal(table.file, f"has no column {missing[0]!r}.", fix, key=near or "")


def _check_names(table: Table) -> tuple[str, ...]:
    """Columns that nothing reads: one that resembles a known one that isn't there is a mistake, others are left."""
    known = contract_rows.COLUMNS
    others = [c for c in table.columns if c and c not in known]
    for column in others:
        if near := _nearest(column, [c for c in known if c not in table.columns]):
            fix = f"Did you mean {near!r}?"
            raise refusal(table.file, f"no column of a table of measurements is called {column!r}.", fix, key=column)
    return (f"columns not read: {', '.join(others)}",) if others else ()


def _nearest(name: str, among: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(name.lower(), among, n=1, cutoff=_ALIKE)
    return near[0] if near else None
