"""A request log as arrays, and the plain CSV that holds one."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import InputError, Problem
from pddplan.spec.user_file import decoded, read_bytes, refusal

Array = NDArray[np.float64]

MAX_BYTES = 64 * 2**20
MOST_BAD = 0.001  # share of the lines
COLUMNS = ("timestamp", "input_tokens", "output_tokens", "cached_tokens")
SESSION = "session"
SHOWN = 3  # bad lines that are told
MOST_TOKENS = 1e8
AS_CSV = f"A CSV with a header: {','.join(COLUMNS)}, and {SESSION} if requests belong to some."


@dataclass(frozen=True)
class RequestLog:
    """Requests in the order of time, arrays of shape (requests,)."""

    time_s: Array  # from the first one
    prompt: Array  # tokens
    output: Array
    cached: Array  # of the prompt, at prefill
    session: NDArray[np.int64]  # -1: by itself
    skipped: int  # lines that couldn't be read

    @property
    def sessions(self) -> bool:
        return bool((self.session >= 0).any())

    @property
    def rate_rps(self) -> float:
        """Requests per second over the log's time; nan of one moment."""
        span_s = float(self.time_s[-1])
        return self.time_s.size / span_s if span_s > 0 else math.nan


def read_requests(path: str) -> RequestLog:
    """The log in a CSV file, ``-`` for standard input. Timestamps are seconds from any moment.

    Raises InputError: no table, a column that is missing, no request, more bad lines than one in a thousand.
    """
    raw, file = read_bytes(
        path, MAX_BYTES, missing=AS_CSV, folder="Name a log in it.", size="Give a part of it: an hour, for instance."
    )
    if b"\0" in raw:
        raise refusal(file, "is not a text file.", AS_CSV)
    reader = csv.reader(io.StringIO(decoded(raw, file, AS_CSV)))
    try:
        header = [name.strip().lower() for name in next(reader, [])]
    except csv.Error:
        header = []
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InputError(Problem(f"no column {', '.join(missing)}.", file=file, line=1, fix=AS_CSV))
    try:
        rows, names, bad = _rows(reader, header)
    except csv.Error as error:
        raise InputError(Problem(f"{error}.", file=file, line=reader.line_num, fix=AS_CSV)) from None
    _refuse(bad, len(rows), file)
    made = np.array(rows, dtype=float)
    order = np.argsort(made[:, 0], kind="stable")
    made, session = made[order], np.array(names, dtype=np.int64)[order]
    return RequestLog(
        time_s=made[:, 0] - made[0, 0],
        prompt=made[:, 1],
        output=made[:, 2],
        cached=made[:, 3],
        session=session,
        skipped=len(bad),
    )


def _rows(reader: Any, header: list[str]) -> tuple[list[tuple[float, ...]], list[int], dict[int, str]]:
    """(time, prompt, output, cached) of each line, the number of its session, and what is wrong with bad lines."""
    places = [header.index(name) for name in COLUMNS]
    at = header.index(SESSION) if SESSION in header else -1
    rows: list[tuple[float, ...]] = []
    names: list[int] = []
    bad: dict[int, str] = {}
    known: dict[str, int] = {}
    for cells in reader:
        if not cells:
            continue
        wrong = _wrong(cells, len(header), places)
        if wrong:
            bad[reader.line_num] = wrong
            continue
        rows.append(tuple(float(cells[place]) for place in places))
        name = cells[at].strip() if at >= 0 else ""
        names.append(known.setdefault(name, len(known)) if name else -1)
    return rows, names, bad


def _wrong(cells: list[str], columns: int, places: list[int]) -> str:
    """What keeps a line from being a request; "" for nothing."""
    if len(cells) != columns:
        return f"{len(cells)} cells, not {columns}"
    values = []
    for name, place in zip(COLUMNS, places, strict=True):
        try:
            values.append(float(cells[place]))
        except ValueError:
            return f"{name} {cells[place].strip()[:20]!r} is no number"
    _, prompt, output, cached = values
    if not all(math.isfinite(value) for value in values):
        return "a number is not finite"
    if not (1 <= prompt <= MOST_TOKENS and 1 <= output <= MOST_TOKENS):
        return "input_tokens and output_tokens are at least 1"
    if not 0 <= cached <= prompt:
        return "cached_tokens are between 0 and input_tokens"
    return ""


def _refuse(bad: dict[int, str], good: int, file: str) -> None:
    """Raises InputError where there are too many bad lines, or no good one."""
    if not good and not bad:
        raise InputError(Problem("has no requests.", file=file, fix=AS_CSV))
    if len(bad) <= MOST_BAD * (good + len(bad)):
        return
    told = "; ".join(f"line {line}: {what}" for line, what in list(bad.items())[:SHOWN])
    more = "" if len(bad) <= SHOWN else f"; and {len(bad) - SHOWN} more"
    message = f"{len(bad)} of {good + len(bad)} lines can't be read: {told}{more}."
    raise InputError(Problem(message, file=file, line=next(iter(bad)), fix=AS_CSV))
