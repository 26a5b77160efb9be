"""A CSV file as a header and rows of text, or one clear problem."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from pddplan.spec.user_file import decoded, read_bytes, refusal

MAX_BYTES = 16 * 2**20
COMMENT = "#"
_SEPARATORS = ",;\t"
_AS_TEXT = "Save the table as CSV in UTF-8."


@dataclass(frozen=True)
class Table:
    """Cells by column, one mapping a row; ``misfits``: row numbers, 1-based, whose cells aren't as many as columns."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    misfits: dict[int, int]


def read_table(path: str) -> Table:
    """Header and rows of a file, ``-`` for standard input; InputError for what is no table."""
    return parse_table(*read_text(path))


def read_text(path: str, fix: str = "Give a CSV of measurements, or none for the shipped points.") -> tuple[str, str]:
    """(text, name for messages) of a file of measurements; ``fix``: what to do where there is no such file."""
    raw, file = read_bytes(
        path,
        MAX_BYTES,
        missing=fix,
        folder="Name a file of measurements in it.",
        size="Split it, or keep the rows you need.",
    )
    if b"\0" in raw:
        raise refusal(file, "is not a text file.", _AS_TEXT)
    return decoded(raw, file, _AS_TEXT), file


def parse_table(text: str, file: str) -> Table:
    """Rows by the header's columns; blank lines and lines that begin with ``#`` before the header aren't rows."""
    lines = text.splitlines(keepends=True)
    start = 0
    while start < len(lines) and (not lines[start].strip() or lines[start].lstrip().startswith(COMMENT)):
        start += 1
    if start == len(lines):
        raise refusal(file, "is empty.", "The first line names the columns: pddplan validate --help")
    separator = max(_SEPARATORS, key=lines[start].count)
    reader = csv.reader(io.StringIO("".join(lines[start:])), delimiter=separator, strict=True)
    try:
        records = [(reader.line_num, record) for record in reader if record]
    except csv.Error as error:
        fix = "Close each quote on its line; double the quotes inside one."
        raise refusal(file, f"is no CSV: {error}.", fix, line=start + reader.line_num) from None
    columns = tuple(name.strip() for name in records[0][1])
    _check_columns(columns, file, start + 1)
    if len(records) == 1:
        raise refusal(file, "has a header but no rows.", "Add a row for each operating point.")
    return _table(file, columns, [record for _, record in records[1:]])


def _check_columns(columns: Sequence[str], file: str, line: int) -> None:
    twice = sorted({c for c in columns if c and columns.count(c) > 1})
    if twice:
        raise refusal(file, f"names the column {twice[0]!r} twice.", "Remove or rename one.", line=line)


def _table(file: str, columns: tuple[str, ...], records: Sequence[Sequence[str]]) -> Table:
    rows = tuple(dict(zip(columns, record, strict=False)) for record in records)
    misfits = {i: len(record) for i, record in enumerate(records, 1) if len(record) != len(columns)}
    return Table(file, columns, rows, misfits)
