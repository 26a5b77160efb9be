"""init, hardware, model, schema, help and version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import pddplan
from pddplan.cli.main import main
from pddplan.report.schemas import SCHEMAS
from pddplan.spec.catalogue import examples_dir, hardware_dir
from tests.cli.test_solve import Captured

COMMANDS = [
    ["solve"],
    ["compare"],
    ["check"],
    ["validate"],
    ["estimate"],
    ["init"],
    ["hardware", "list"],
    ["hardware", "show"],
    ["hardware", "add"],
    ["model", "list"],
    ["model", "show"],
    ["model", "import"],
    ["schema"],
]


def test_init_writes_a_scenario_and_the_next_command(tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "new" / "folder"
    assert main(["init", str(folder)]) == 0
    target = folder / "scenario.yaml"
    captured = capsys.readouterr()
    assert captured.out == f"Wrote {target}.\n"
    assert captured.err == f"Next: pddplan solve {target}\n"
    assert pddplan.load_scenario(target).workload.request_rate_per_s == 10
    assert "#" in target.read_text()


def test_init_never_overwrites_unasked(tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "scenario.yaml"
    target.write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert target.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert main(["init", str(tmp_path), "--force"]) == 0
    assert target.read_text() != "mine"


def test_init_without_a_folder_writes_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert (tmp_path / "scenario.yaml").is_file()


def test_init_where_a_file_stands(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str], capsys: Captured) -> None:
    assert main([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: pddplan {' '.join(command)}")
    assert f"Example: pddplan {' '.join(command)}" in " ".join(text.split())
    assert "--json" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_help_names_what_is_there_and_nothing_else(capsys: Captured) -> None:
    assert main([]) == 0
    bare = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == bare
    listed = bare[bare.index("Commands:") :]
    named = ("solve", "compare", "check", "simulate", "estimate", "validate", "init", "hardware", "model", "schema")
    for name in named:
        assert f"\n  {name} " in listed
    for absent in ("bathtub", "frontier"):
        assert absent not in listed


@pytest.mark.parametrize("command", [["--version"], ["solve", "--version"]])
def test_version(command: list[str], capsys: Captured) -> None:
    assert main(command) == 0
    assert capsys.readouterr().out == f"pddplan {pddplan.__version__}\n"


@pytest.mark.parametrize(
    ("command", "schema"),
    [
        (["hardware", "list"], "chips"),
        (["hardware", "list", "--vendor", "nvidia", "--dtype", "fp8", "--where", "memory_gb>=96"], "chips"),
        (["hardware", "list", "--where", "memory_gb>1e6"], "chips"),
        (["hardware", "list", "--lines"], "lines"),
        (["hardware", "show", "h20"], "chip"),
        (["hardware", "show", "kunlunxin-r480", "--against", "mi300x"], "chip"),
        (["hardware", "add", str(hardware_dir() / "chips" / "nvidia-h20-96g.yaml")], "chip_check"),
        (["model", "list"], "models"),
        (["model", "show", "deepseek-ai/DeepSeek-V3.2"], "model"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else x,
)
def test_catalogue_commands(command: list[str], schema: str, capsys: Captured) -> None:
    assert main([*command, "--json"]) == 0
    Draft202012Validator(SCHEMAS[schema]).validate(json.loads(capsys.readouterr().out))
    assert main(command) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("command", [["hardware", "show", "h2O0"], ["model", "show", "deepseek-v33"]], ids=" ".join)
def test_an_unknown_name_suggests_the_closest(command: list[str], capsys: Captured) -> None:
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Closest: " in captured.err


@pytest.mark.parametrize("name", ["scenario", *SCHEMAS])
def test_schema(name: str, capsys: Captured) -> None:
    assert main(["schema", "--of", name]) == 0
    Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))


def test_the_scenario_schema_accepts_the_examples(capsys: Captured) -> None:
    import yaml

    main(["schema"])
    validator = Draft202012Validator(json.loads(capsys.readouterr().out))
    examples = sorted(examples_dir().glob("*.yaml"))
    assert examples
    for path in examples:
        validator.validate(yaml.safe_load(path.read_text()))


def test_python_api() -> None:
    assert set(pddplan.__all__) <= set(dir(pddplan))
    assert pddplan.InputError.__module__ == "pddplan.errors"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pddplan.nothing  # type: ignore[attr-defined]
    with pytest.raises(pddplan.InputError) as caught:
        pddplan.load_scenario(examples_dir() / "agent_64k.yaml", ["model=deepseek-v33"])
    assert "deepseek-v3" in caught.value.problems[0].fix
