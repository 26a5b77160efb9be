"""Completion as a shell asks for it: the installed script, with the variables that bash, zsh and fish set."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pddplan
from pddplan.cli.completion import chip_names, files_that_end, model_names, scenario_files, scenario_keys
from pddplan.cli.main import main
from pddplan.llm.catalogue import model_ids
from pddplan.spec.catalogue import chip_ids
from pddplan.spec.key_paths import key_paths
from pddplan.spec.load import load_scenario_text
from tests.cli.test_solve import Captured

CHECKOUT = Path(pddplan.__file__).parent.parent
SCRIPT = Path(sys.executable).parent / "pddplan"
HEAVY = ("numpy", "scipy", "highspy")

needs_script = pytest.mark.skipif(not SCRIPT.exists(), reason="pddplan isn't installed: there is no console script")


def ask(line: str, shell: str, folder: Path = CHECKOUT) -> list[str]:
    """What the installed script answers where the cursor stands at the end of the line."""
    words = line.split(" ")
    variables = {
        "bash": {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    variables["_PDDPLAN_COMPLETE"] = f"complete_{shell}"
    done = run([str(SCRIPT)], folder, variables)
    assert done.stderr == ""
    if shell == "zsh":  # _arguments '*: :(("a":"help" "b"))'
        return [entry.split('"')[1] for entry in done.stdout.splitlines()]
    return [entry.split("\t")[0] for entry in done.stdout.splitlines()]


def run(command: list[str], folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


@needs_script
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_ids(shell: str) -> None:
    chips = ask("pddplan hardware show h2", shell)
    assert {"h20", "h200"} <= set(chips) and all(name.startswith("h2") for name in chips)
    assert ask("pddplan model show deepseek-v3", shell) == [m for m in model_ids() if m.startswith("deepseek-v3")]
    assert set(ask("pddplan hardware ", shell)) >= {"list", "show", "add"}


@needs_script
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_each_shell_gets_files(shell: str, tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    for name in ("plans/a.yaml", "plans/b.yml", "plans/c.json", "plans/notes.txt"):
        (tmp_path / name).write_text("")
    three = ["plans/a.yaml", "plans/b.yml", "plans/c.json"]
    assert ask("pddplan solve pl", shell, tmp_path) == three
    assert ask("pddplan check plans/a.yaml plans/b", shell, tmp_path) == ["plans/b.yml"]


@needs_script
def test_options_and_their_values() -> None:
    assert ask("pddplan schema --of chip", "bash") == ["chips", "chip", "chip_check"]
    assert ask("pddplan solve x.yaml --objective g", "bash") == ["goodput"]
    assert ask("pddplan solve x.yaml --set workload.request_r", "bash") == ["workload.request_rate_per_s="]
    assert "--top" in ask("pddplan solve x.yaml --t", "bash")
    assert ask("pddplan hardware show h20 --against mi300x", "bash")[0] == "mi300x"


@needs_script
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_bash_completes() -> None:
    """The script of ``--show-completion``, sourced, and its function called as bash calls it."""
    lines = [
        f'PATH="{SCRIPT.parent}:$PATH"',
        'eval "$(_PDDPLAN_COMPLETE=source_bash pddplan)"',
        "complete -p pddplan",
        "COMP_WORDS=(pddplan hardware show nvidia-h20-9) COMP_CWORD=3",
        "_pddplan_completion pddplan",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    done = run(["bash", "--norc", "-c", "\n".join(lines)], CHECKOUT, {})
    assert done.stderr == ""
    assert done.stdout.splitlines()[-2:] == ["complete -o default -F _pddplan_completion pddplan", "nvidia-h20-96g"]


@needs_script
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str) -> None:
    done = run([str(SCRIPT)], CHECKOUT, {"_PDDPLAN_COMPLETE": f"source_{shell}"})
    assert done.returncode == 0 and f"_PDDPLAN_COMPLETE=complete_{shell}" in done.stdout


@pytest.mark.parametrize("line", ["hardware show h2", "model show d", "solve ex", "solve x --set w", "schema --of c"])
def test_nothing_heavy_is_loaded(line: str) -> None:
    """Not even where the shell asks."""
    words = ["pddplan", *line.split(" ")]
    code = (
        "import atexit, sys; from pddplan.cli.main import main\n"
        f"atexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr))\n"
        "main([])"
    )
    asked = {
        "_PDDPLAN_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = run([sys.executable, "-c", code], CHECKOUT, asked)
    assert done.stderr.strip() == "[]" and done.stdout.strip()


def test_help_says_how(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "--install-completion" in text and "--show-completion" in text


def test_an_unknown_shell_is_bad_usage(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    import typer.completion

    monkeypatch.setattr(typer.completion, "_get_shell_name", lambda: "tcsh")
    assert main(["--show-completion"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and "tcsh" in captured.err


def test_names() -> None:
    everything = chip_names("")
    assert set(chip_ids()) < set(everything) and {"h20", "h800"} <= set(everything)
    assert len(everything) == len(set(everything))
    assert model_names("") == list(model_ids())
    assert chip_names("no such") == []


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders end in a slash; what can't be read, hidden files and names with blanks are left to the shell."""
    for folder in ("one", "two", "empty", ".hidden"):
        (tmp_path / folder).mkdir()
    for name in ("one/x.yaml", "top.JSON", "a b.yaml", ".secret.yaml", "readme.md"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert scenario_files("") == ["empty/", "one/", "top.JSON", "two/"]
    assert scenario_files("o") == ["one/x.yaml"]
    assert scenario_files("e") == ["empty/"]
    assert scenario_files(".") == [".hidden/", ".secret.yaml"]
    assert scenario_files("no/such/") == []
    assert files_that_end(f"{tmp_path}/t", (".json",)) == [f"{tmp_path}/top.JSON", f"{tmp_path}/two/"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert scenario_files("~/o") == ["~/one/x.yaml"]
    assert model_names("one/") == ["one/x.yaml"]


def test_keys_go_level_by_level() -> None:
    assert "workload." in key_paths("") and "slo." in key_paths("")
    assert key_paths("sites.0.chips.0.ma") == ["sites.0.chips.0.max="]
    assert key_paths("sites.north.chips.0.ma") == ["sites.north.chips.0.max="]
    assert scenario_keys("workload.request_rate_per_s=1") == []
    assert key_paths("nothing.") == []


def test_every_offered_key_is_a_key() -> None:
    """Whatever is wrong with a value that suits none of them, nobody says that there is no such key."""
    text = (CHECKOUT / "examples" / "agent_64k.yaml").read_text()
    offered, beginnings = [], [""]
    while beginnings:
        for path in key_paths(beginnings.pop()):
            (beginnings if path.endswith(".") and path.count(".") < 4 else offered).append(path)
    keys = [path for path in offered if path.endswith("=") and not path.startswith("workloads")]
    assert len(keys) > 60
    for key in [*keys, "workload.no_such_key="]:
        try:
            load_scenario_text(text, "x.yaml", overrides=[key + "{nonsense: 1}"])
        except pddplan.InputError as error:
            name = key.rstrip("=").split(".")[-1]
            unknown = [p for p in error.problems if f"unknown key '{name}'" in p.message]
            assert bool(unknown) == (name == "no_such_key"), (key, unknown)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_home_that_cant_be_written_is_one_message(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    home = tmp_path / "file"  # no folder: not even root may write into it
    home.write_text("")
    monkeypatch.setenv("HOME", str(home))
    assert main(["--install-completion", shell]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    assert str(home) in captured.err and "can't be installed" in captured.err and "--show-completion" in captured.err
    assert home.read_text() == ""
