"""``pddplan compare``: streams, widths, JSON and bad input, with the real solver on a small scenario."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.report.schemas import SCHEMAS
from tests.plan.test_compare import TEXT

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(TEXT)
    return path


def test_the_answer_comes_first_and_fits_80_columns(
    small: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", str(small), "-q"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].startswith("SPLIT  pd_cross_site_drc in north > west  $")
    assert "one site would be cheaper if" in " ".join(lines[1:4])
    assert max(map(len, lines)) <= 80
    assert captured.err == ""
    assert lines[-1].startswith("pddplan ")


def test_with_an_exchange_rate_money_is_in_both_currencies(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(TEXT + "exchange: {cny_per_usd: 7.2}\n")
    assert main(["compare", str(path), "-q"]) == 0
    text = capsys.readouterr().out
    first, said = text.split("\n\n")[0].split("\n", 1)
    assert re.search(r"\$[\d.]+/h \(¥[\d.,]+/h\)$", first)
    assert len(re.findall(r"\$[\d.]+\S* \(¥[\d.,]+\S*\)", " ".join(said.split()))) == 3  # dearer by; turns at; now
    usd, cny = (float(figure) for figure in re.findall(r"\d+\.\d+", first))
    assert cny == pytest.approx(7.2 * usd, rel=0.01)
    assert re.search(r"line +USD/h +CNY/h ", text)


def test_json_is_the_contract(small: Path, tmp_path: Path, capsys: Captured) -> None:
    kept = tmp_path / "kept.json"
    assert main(["compare", str(small), "--json", "-o", str(kept)]) == 0
    captured = capsys.readouterr()
    payload = json.loads(captured.out)
    assert captured.err == "" and json.loads(kept.read_text()) == payload
    Draft202012Validator(SCHEMAS["comparison"]).validate(payload)
    assert payload["schema"] == "pddplan.comparison/1"
    by_name = {row["name"]: row for row in payload["architectures"] if not row["hypothetical"]}
    assert set(by_name) == {"aggregated", "pd_one_site", "pd_cross_site", "pd_cross_site_drc", "pdd", "pdd_filter"}
    for entry in by_name.values():
        if entry["status"] == "feasible":
            plan = entry["plan"]
            assert entry["bcr"] == pytest.approx(plan["goodput_rps"] / plan["cost"]["usd_per_hour"])
    assert payload["recommended"] == "pd_cross_site_drc"
    assert payload["turns_at"]["then"] == "whole"


@pytest.mark.parametrize(
    ("text", "said"), [("", "empty"), (TEXT.replace("prompt_tokens", "promt_tokens"), "prompt_tokens")]
)
def test_bad_input_is_one_message_and_exit_2(tmp_path: Path, capsys: Captured, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert main(["compare", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err and "Traceback" not in captured.err


def test_a_bare_compare_suggests_init(capsys: Captured) -> None:
    assert main(["compare"]) == 2
    assert "pddplan init" in capsys.readouterr().err
