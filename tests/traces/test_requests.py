"""A plain CSV as a request log: what is read, what is skipped, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pddplan.errors import InputError
from pddplan.traces.requests import RequestLog, read_requests

HEADER = "timestamp,input_tokens,output_tokens,cached_tokens"


def read(folder: Path, *lines: str) -> RequestLog:
    path = folder / "log.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_requests(str(path))


def refused(folder: Path, *lines: str) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, *lines)
    (problem,) = caught.value.problems
    return f"line {problem.line}: {problem.message}"


def test_in_the_order_of_time(tmp_path: Path) -> None:
    log = read(tmp_path, HEADER + ",session", "12.5,300,20,100,b", "10,200,10,0,a", "15,400,30,299,b", "14,50,5,0,")
    assert log.time_s.tolist() == [0.0, 2.5, 4.0, 5.0]
    assert (log.prompt.tolist(), log.output.tolist()) == ([200, 300, 50, 400], [10, 20, 5, 30])
    assert log.cached.tolist() == [0, 100, 0, 299]
    assert log.session[1] == log.session[3] != log.session[0] and log.session[2] == -1
    assert log.sessions and log.rate_rps == pytest.approx(4 / 5)


def test_columns_in_any_order_and_others_too(tmp_path: Path) -> None:
    log = read(tmp_path, "model, Cached_Tokens,output_tokens,timestamp,input_tokens", "x,1,2,3,4", "", "y,5,6,7,8")
    assert (log.cached.tolist(), log.output.tolist(), log.prompt.tolist()) == ([1, 5], [2, 6], [4, 8])
    assert not log.sessions and log.skipped == 0


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("1,2,3", "3 cells, not 4"),
        ("x,200,10,0", "timestamp 'x' is no number"),
        ("nan,200,10,0", "a number is not finite"),
        ("1,0,10,0", "input_tokens and output_tokens are at least 1"),
        ("1,10,1e9,0", "input_tokens and output_tokens are at least 1"),
        ("1,200,10,201", "cached_tokens are between 0 and input_tokens"),
        ("1,200,10,-1", "cached_tokens are between 0 and input_tokens"),
    ],
)
def test_bad_lines(tmp_path: Path, cells: str, said: str) -> None:
    """One in a thousand is skipped and counted, more are refused with their numbers."""
    good = [f"{n},200,10,0" for n in range(999)]
    log = read(tmp_path, HEADER, cells, *good)
    assert (log.skipped, log.time_s.size) == (1, 999)
    message = refused(tmp_path, HEADER, *good[:3], cells, *good[3:10])
    assert message.startswith("line 5: 1 of 11 lines can't be read: line 5: ") and said in message


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    assert refused(tmp_path, HEADER, *["a,b,c,d"] * 7).endswith("; and 4 more.")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("",), "no column timestamp, input_tokens, output_tokens, cached_tokens"),
        (("timestamp,input_tokens",), "no column output_tokens, cached_tokens"),
        ((HEADER,), "has no requests"),
        (('"' + "x" * 200_000 + '"',), "no column"),
        ((HEADER, '"' + "x" * 200_000 + '",1,1,1'), "field larger than field limit"),
    ],
)
def test_no_log(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    assert said in refused(tmp_path, *lines)


def test_no_text(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for content in (b"a\0b", b"\xff\xfe\xfa"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="text"):
            read_requests(str(path))
    with pytest.raises(InputError, match="no such file"):
        read_requests(str(tmp_path / "none.csv"))


def test_one_moment_has_no_rate(tmp_path: Path) -> None:
    assert np.isnan(read(tmp_path, HEADER, "5,10,1,0", "5,10,1,0").rate_rps)
