"""What is no table of measurements is one clear problem."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pddplan.accuracy.csvfile import MAX_BYTES
from pddplan.accuracy.rows import read_measurements
from pddplan.errors import InputError

HEADER = "model,chip,mode,isl,osl,concurrency,tpot_ms\n"
ROW = "llama-3.1-8b,h100,aggregated,100,10,1,12\n"


def problem(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_measurements(str(path))
    assert len(caught.value.problems) == 1
    return str(caught.value).removeprefix(str(path))


def written(tmp_path: Path, data: str | bytes) -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ": is empty."),
        ("# a comment alone\n\n", ": is empty."),
        (HEADER, ": has a header but no rows."),
        (b"\x7fELF\0\1\2", ": is not a text file."),
        (b"model,chip\n\xff\xfe\n", ": is not text (UTF-8)."),
        (HEADER + '"open quote, never closed\n', ":"),
        (HEADER.replace("isl", "model") + ROW, ":1: names the column 'model' twice."),
        (HEADER.replace("isl", "isll") + ROW, ": isll: has no column 'isl'. Rename 'isll'."),
        (HEADER.replace("osl", "ols") + ROW, ""),
        (HEADER.replace("concurrency", "concurency") + ROW, ": concurency: no column of a table"),
        ("a,b\n1,2\n", ": has no column 'model'. A table of measurements has at least model, chip, mode, isl."),
        ("system,backend,model_path,tp_sizes\n1,2,3,4\n", ": tp_sizes: has no column 'tp_size'. Rename 'tp_sizes'."),
    ],
)
def test_no_table(tmp_path: Path, data: str | bytes, words: str) -> None:
    if words:
        assert problem(written(tmp_path, data)).startswith(words)
    else:
        assert read_measurements(str(written(tmp_path, data))).notes == ("columns not read: ols",)


def test_a_directory_a_missing_file_and_a_huge_one(tmp_path: Path) -> None:
    assert problem(tmp_path).startswith(": is a directory.")
    assert problem(tmp_path / "none.csv").startswith(": no such file.")
    huge = tmp_path / "huge.csv"
    with huge.open("wb") as stream:
        stream.truncate(MAX_BYTES + 10)
    assert problem(huge).startswith(": is larger than 16 MiB.")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + ROW)
    path.chmod(0)
    assert problem(path).startswith(": can't be read: Permission denied.")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_marks_and_line_ends(tmp_path: Path, separator: str) -> None:
    text = "\ufeff# from a spreadsheet\r\n" + (HEADER + ROW).replace(",", separator).replace("\n", "\r\n")
    found = read_measurements(str(written(tmp_path, text)))
    assert len(found.rows) == 1 and found.rows[0].measured == {"tpot_ms": 12}


def test_a_field_without_end(tmp_path: Path) -> None:
    assert "is no CSV: field larger than field limit" in problem(written(tmp_path, HEADER + "x" * 200_000 + "\n"))
