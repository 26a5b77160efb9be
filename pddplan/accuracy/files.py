"""One way to measured rows, whatever wrote the file: the columns of ``validate``, or the JSON of a benchmark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pddplan.accuracy import bench_rows, infera_rows, inferencex_rows
from pddplan.accuracy.contract_rows import COLUMNS, REQUIRED_COLUMNS, contract_row
from pddplan.accuracy.csvfile import parse_table, read_text
from pddplan.accuracy.numbers import Row
from pddplan.accuracy.records import MeasuredRow, Measurements
from pddplan.accuracy.rows import LAYOUTS, measurements_of
from pddplan.spec.user_file import refusal

_NO_FILE = "Give measurements: a CSV as pddplan validate reads it, or the JSON of a benchmark."
KINDS = "vLLM or SGLang benchmark results, InferenceX rows, a profile.json of AMD Infera's planner"
_MOST_RECORDS = 20_000


@dataclass(frozen=True)
class Kind:
    """A sort of JSON: how a record of it is known, and its rows in the columns of ``validate``."""

    name: str
    knows: Callable[[Mapping[str, Any]], bool]
    rows: Callable[[Mapping[str, Any], Row], list[Row]]
    read: Callable[[int, Row], MeasuredRow] = contract_row


_KINDS = (  # the first that knows a record
    Kind("infera", infera_rows.is_profile, infera_rows.profile_rows),
    Kind("inferencex", inferencex_rows.is_result, inferencex_rows.result_rows, inferencex_rows.inferencex_row),
    Kind("sglang", bench_rows.is_sglang, bench_rows.sglang_rows),
    Kind("vllm", bench_rows.is_vllm, bench_rows.vllm_rows),
)


def read_file(path: str, stated: Row) -> Measurements:
    """All rows of a file (``-``: standard input). ``stated``: cells, by column of ``validate``, that a file doesn't
    have: a benchmark's result knows neither chip nor layout. What the file says itself goes first.

    InputError where it is neither a table nor JSON that is known, or doesn't say enough.
    """
    text, file = read_text(path, _NO_FILE)
    if not text.strip():
        raise refusal(file, "is empty.", _NO_FILE)
    if text.lstrip()[0] in "{[":
        return _json_rows(text, file, stated)
    table = parse_table(text, file)
    others = (set(layout.needs) <= set(table.columns) for layout in LAYOUTS[:-1])
    if stated and not any(others):
        columns = (*table.columns, *(c for c in stated if c not in table.columns))
        rows = tuple({**row, **{c: v for c, v in stated.items() if not row.get(c, "").strip()}} for row in table.rows)
        table = replace(table, columns=columns, rows=rows)
    return measurements_of(table)


def _json_rows(text: str, file: str, stated: Row) -> Measurements:
    records = _records(text, file)
    kinds = [next((k for k in _KINDS if k.knows(record)), None) for record in records]
    if None in kinds:
        number = kinds.index(None) + 1
        place = f"record {number} " if len(records) > 1 else ""
        raise refusal(file, f"{place}is none of the JSON that is known here.", f"Give {KINDS}.")
    found: list[tuple[Kind, Row]] = []
    for kind, record in zip(kinds, records, strict=True):
        assert kind is not None
        found += [(kind, row) for row in _rows_of(kind, record, stated, file)]
    _complete([row for _, row in found], file)
    rows = tuple(kind.read(number, row) for number, (kind, row) in enumerate(found, 1))
    return Measurements(file, "+".join(dict.fromkeys(k.name for k, _ in found)), rows)


def _rows_of(kind: Kind, record: Mapping[str, Any], stated: Row, file: str) -> list[Row]:
    try:
        return kind.rows(record, stated)
    except ValueError as why:
        raise refusal(file, f"{why}.", f"Is it a whole {kind.name} result?") from None


def _complete(rows: list[Row], file: str) -> None:
    """Names that no row can do without: all that are missing in one message, with their options."""
    missing = [c for c in (*REQUIRED_COLUMNS, "tp") if any(_lacks(row, c) for row in rows)]
    if missing:
        options = {"isl": "--with isl=TOKENS", "tp": "--tp N", "mode": "--with mode=MODE"}
        fix = "Add " + " ".join(options.get(c, f"--{c} NAME") for c in missing) + "."
        raise refusal(file, f"doesn't say {', '.join(missing)}.", fix)


def _lacks(row: Row, column: str) -> bool:
    if column == "tp" and any(row.get(c) for c in ("p_tp", "d_tp", "dp")):
        return False
    return not row.get(column, "").strip()


def _records(text: str, file: str) -> list[Mapping[str, Any]]:
    """The objects of a JSON document, of a list of them, or of JSON lines."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise refusal(file, "is nested too deep.", f"Give {KINDS}.") from None
    except json.JSONDecodeError as error:
        return _json_lines(text, file, error)
    found = data if isinstance(data, list) else [data]
    if isinstance(data, dict) and isinstance(data.get("results"), list):
        found = data["results"]
    return _objects(found, file)


def _json_lines(text: str, file: str, whole: json.JSONDecodeError) -> list[Mapping[str, Any]]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except (json.JSONDecodeError, RecursionError) as error:
            first = whole if not found else error
            at = whole.lineno if not found else number
            reason = re.sub(r":? line \d+.*", "", str(getattr(first, "msg", first)))
            raise refusal(file, f"is no JSON: {reason}.", "Is the file whole?", line=at) from None
    return _objects(found, file)


def _objects(found: list[Any], file: str) -> list[Mapping[str, Any]]:
    if not found:
        raise refusal(file, "holds no result.", f"Give {KINDS}.")
    if len(found) > _MOST_RECORDS or not all(isinstance(record, dict) for record in found):
        raise refusal(file, "is no list of results.", f"Give {KINDS}.")
    return found


def stated_columns(pairs: list[str], named: Mapping[str, str | None]) -> dict[str, str]:
    """Cells from ``COLUMN=VALUE`` texts and from options; InputError for a column that isn't there."""
    found = {column: value for column, value in named.items() if value is not None}
    for pair in pairs:
        column, equals, value = pair.partition("=")
        column = column.strip()
        if not equals or column not in COLUMNS:
            from pddplan.spec.issues import closest

            near = closest(column, COLUMNS)
            fix = f"Did you mean {near}=…?" if near else "Write COLUMN=VALUE: pddplan validate --help"
            raise refusal("", f"--with {pair}: no column of a table of measurements.", fix)
        found[column] = value.strip()
    return found
