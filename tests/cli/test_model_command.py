"""``model import``, ``show`` and ``list``, and a scenario that names a config.json, from the command line."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import pddplan
from pddplan.cli.main import main
from pddplan.llm.catalogue import load_model
from pddplan.report.schemas import SCHEMAS
from tests.cli.test_newcomer import SMALL, Captured
from tests.llm.configs import ALL, DEEPSEEK, LLAMA

LLAMA_8B: dict[str, Any] = {
    **LLAMA,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """config.json in a folder named as its model."""
    folder = tmp_path / "My-Model"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    return path


def test_import_prints_a_card_that_show_takes(config: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["model", "import", str(config)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    card = tmp_path / "card.yaml"
    card.write_text(captured.out)
    assert yaml.safe_load(captured.out)["id"] == "my-model"
    shown = []
    for name in (str(card), str(config), str(config.parent), "llama-3.1-8b"):
        assert main(["model", "show", name, "--json"]) == 0
        payload = json.loads(capsys.readouterr().out)
        Draft202012Validator(SCHEMAS["model"]).validate(payload)
        shown.append({k: v for k, v in payload.items() if k not in ("id", "name", "aliases", "sources")})
    assert shown[0] == shown[1] == shown[2] == shown[3]


@pytest.mark.parametrize("name", ["card.yaml", "card.json"])
def test_import_writes_a_file_whole(name: str, config: Path, tmp_path: Path, capsys: Captured) -> None:
    card = tmp_path / name
    card.write_text("old")
    assert main(["model", "import", str(config), "-o", str(card), "--name", "Mine 8B"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"Wrote {card}.\n"
    assert captured.err == f"Next: pddplan model show {card}\n"
    assert main(["model", "show", str(card)]) == 0
    assert capsys.readouterr().out.startswith("Mine 8B (mine-8b)\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["My-Model", name])
    assert main(["-q", "model", "import", str(config), "-o", str(card)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ALL)
def test_import_as_json(name: str, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ALL[name]))
    assert main(["model", "import", str(path), "--json"]) == 0
    captured = capsys.readouterr()
    payload = json.loads(captured.out)
    Draft202012Validator(SCHEMAS["import"]).validate(payload)
    assert captured.err == "" and payload["file"] is None
    assert main(["model", "import", str(path), "--json", "-o", str(tmp_path / "card.yaml")]) == 0
    assert json.loads(capsys.readouterr().out) == {**payload, "file": str(tmp_path / "card.yaml")}
    assert yaml.safe_load((tmp_path / "card.yaml").read_text()) == payload["card"]


def test_import_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(DEEPSEEK).encode())))
    assert main(["model", "import", "-"]) == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out)["id"] == "model"
    assert captured.err.startswith("mtp_parameters: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "config.json: is empty."),
        ("{", "config.json:1: is not valid JSON"),
        ('{"model_type": "rwkv7"}', "config.json:1: model_type: no architecture 'rwkv7' is known."),
        (json.dumps({**LLAMA_8B, "hidden_size": None}), "config.json:1: hidden_size: is missing."),
        (json.dumps({**LLAMA_8B, "hidden_size": "big"}), "config.json:1: hidden_size: must be a whole number"),
        (json.dumps({**LLAMA_8B, "vocab_size": 1e300}), "config.json:1: vocab_size: must be from 1 to 1,000,000"),
        (" " * ((1 << 20) + 1), "config.json: is larger than 1 MiB."),
    ],
)
def test_a_bad_config_is_one_message_and_writes_nothing(
    text: str, message: str, config: Path, tmp_path: Path, capsys: Captured
) -> None:
    config.write_text(text)
    card = tmp_path / "card.yaml"
    assert main(["model", "import", str(config), "-o", str(card)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and not card.exists()
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err
    assert main(["model", "import", str(config), "--json"]) == 2
    captured = capsys.readouterr()
    Draft202012Validator(SCHEMAS["error"]).validate(json.loads(captured.err))
    assert captured.out == ""


def test_import_refuses_what_would_spoil_a_file(config: Path, tmp_path: Path, capsys: Captured) -> None:
    before = config.read_text()
    for file in (str(config), str(config.parent)):
        assert main(["model", "import", file, "-o", str(config)]) == 2
        assert "overwritten by its own card" in capsys.readouterr().err
    assert config.read_text() == before
    assert main(["model", "import", str(config), "-o", str(tmp_path / "no" / "card.yaml")]) == 2
    assert "Make the folder first." in capsys.readouterr().err


def _scenario(folder: Path, model: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(SMALL), "model": model}, sort_keys=False))
    return path


def test_a_scenario_may_name_a_config_json_its_folder_or_a_card(config: Path, tmp_path: Path) -> None:
    """Relative to the scenario; the plan is the one of the catalogue's card of the same model."""
    assert main(["-q", "model", "import", str(config), "-o", str(tmp_path / "card.yaml")]) == 0
    want = replace(load_model("llama-3.1-8b"), id="", name="", aliases=(), sources=())
    for model in ("My-Model/config.json", "./My-Model", "./card.yaml"):
        scenario = pddplan.load_scenario(_scenario(tmp_path, model))
        found = load_model(scenario.model, scenario.base_dir)
        assert replace(found, id="", name="", aliases=(), sources=()) == want
    plans = [
        pddplan.solve(pddplan.load_scenario(_scenario(tmp_path, model)))
        for model in ("llama-3.1-8b", "./My-Model/config.json")
    ]
    assert plans[0].status == plans[1].status
    assert plans[0].objective == plans[1].objective


def test_what_is_wrong_with_the_model_of_a_scenario_has_its_own_place(
    config: Path, tmp_path: Path, capsys: Captured
) -> None:
    config.write_text(json.dumps({**LLAMA_8B, "vocab_size": 0, "hidden_size": "big"}, indent=1))
    assert main(["solve", str(_scenario(tmp_path, "./My-Model/config.json"))]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all("config.json:" in line for line in lines)
    assert any("vocab_size: must be from 1" in line for line in lines)


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_the_list_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["model", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    if columns >= 80:  # one line a model, no word broken
        body = lines[1 : lines.index("")]
        assert len(body) == 43 and all(line[0] != " " for line in body)
