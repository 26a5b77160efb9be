"""``pddplan validate``: files good and bad, the shipped points, exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.report.schemas import SCHEMAS
from tests.accuracy.standin import install
from tests.cli.test_solve import Captured

TABLE = """model,chip,mode,engine,weights,isl,osl,concurrency,tp,ttft_ms,tpot_ms
llama-3.1-8b,h100_sxm,aggregated,vllm,fp8,1024,256,8,1,120,18
meta-llama/Meta-Llama-3.1-8B-Instruct,H100-SXM-80GB,aggregated,vllm,bf16,1024,256,16,1,,
no-such-model,h100,aggregated,vllm,fp8,1024,256,8,1,120,18
llama-3.1-8b,h100,aggregated,vllm,fp8,nan,256,8,1,120,18
"""


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text(TABLE)
    return path


def test_text(table: Path, capsys: Captured) -> None:
    assert main(["validate", str(table), "--worst", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert " ".join(lines[:2]).endswith("measured.csv: 4 rows, 2 predicted, 2 without a prediction") or (
        "4 rows, 2 predicted, 2 without a prediction" in " ".join(lines[:3])
    )
    assert "1 × unknown model 'no-such-model'" in captured.out
    assert "Largest errors" in captured.out


def test_json_has_all_rows_and_fits_its_schema(table: Path, capsys: Captured) -> None:
    assert main(["validate", str(table), "--json"]) == 0
    captured = capsys.readouterr()
    payload = json.loads(captured.out)
    Draft202012Validator(SCHEMAS["validation"]).validate(payload)
    assert captured.err == ""
    assert [r["row"] for r in payload["rows"]] == [1, 2, 3, 4]
    assert [r["predicted"] is None for r in payload["rows"]] == [False, False, True, True]
    assert payload["rows"][1]["measured"]["tpot_ms"] is None
    assert {g["group"] for g in payload["groups"]} >= {"all", "mode=aggregated", "engine=vllm", "model=llama-3.1"}


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(TABLE.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["validate", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == "<stdin>"


def test_without_a_file_the_shipped_points_are_run(capsys: Captured) -> None:
    assert main(["validate", "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert len(payload["rows"]) >= 100 and payload["without_prediction"] == []


def test_columns_that_are_not_read_are_said(table: Path, capsys: Captured) -> None:
    table.write_text("\n".join(f"{line},x" for line in TABLE.strip().splitlines()).replace(",x", ",colour", 1) + "\n")
    assert main(["validate", str(table)]) == 0
    assert capsys.readouterr().err == "note: columns not read: colour\n"
    assert main(["validate", str(table), "-q"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\1\2",
        b"\xff\xfe\xfa",
        b"a,b,c\n1,2,3\n",
        b'model,chip,mode,isl\n"x\n',
        TABLE.replace("isl", "ils").encode(),
    ],
    ids=["empty", "binary", "not UTF-8", "other columns", "open quote", "a slip"],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_no_table_is_one_message(tmp_path: Path, capsys: Captured, data: bytes, as_json: bool) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    assert main(["validate", str(path), *(["--json"] if as_json else [])]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    if as_json:
        payload = json.loads(captured.err)
        Draft202012Validator(SCHEMAS["error"]).validate(payload)
        assert len(payload["errors"]) == 1
    else:
        assert captured.err.startswith(f"{path}:") and captured.err.count("\n") == 1


@pytest.mark.parametrize("path", ["/no/such/file.csv", "/"])
def test_no_file(path: str, capsys: Captured) -> None:
    assert main(["validate", path]) == 2
    assert capsys.readouterr().err.startswith(f"{path}: ")


def test_the_number_of_worst_rows_is_not_negative(table: Path, capsys: Captured) -> None:
    assert main(["validate", str(table), "--worst", "-1"]) == 2
    assert "--worst" in capsys.readouterr().err
