"""``hardware list``, ``show``, ``add`` on the command line: filters, order, messages, plain encodings."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pddplan
from pddplan.cli.main import main
from pddplan.cli.output import emit
from pddplan.spec.catalogue import chip_ids, load_chip
from tests.cli.test_examples import three_digits
from tests.cli.test_solve import Captured
from tests.report.golden import assert_golden

FOUR = "name: Acme One\nbf16_tflops: 400\nmemory_gb: 96\nmemory_gb_per_s: 2000\ninterconnect_gb_per_s: 200\n"


def listed(capsys: Captured, *options: str) -> list[dict[str, Any]]:
    assert main(["hardware", "list", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)["chips"]


def test_list_has_all_chips_and_says_which_can_be_planned_with(capsys: Captured) -> None:
    chips = listed(capsys)
    assert {c["id"] for c in chips} == set(chip_ids()) and len(chips) == 64
    assert all(c["plannable"] is (c["missing"] == []) for c in chips)
    assert sum(c["plannable"] for c in chips) == 47


def test_list_filters_and_sorts(capsys: Captured) -> None:
    chips = listed(
        capsys, "--vendor", "nvidia", "--vendor", "amd", "--dtype", "fp8", "--where", "memory_gb>=180",
        "--where", "usd_per_hour<8", "--sort", "memory_gb_per_s",
    )  # fmt: skip
    assert [c["id"] for c in chips] == [
        "amd-mi355x",
        "nvidia-gb300-nvl72",
        "nvidia-b300-sxm",
        "nvidia-b200-sxm",
        "amd-mi325x",
        "amd-mi300x",
    ]
    back = listed(capsys, "--sort", "memory_gb_per_s", "--reverse", "--plannable")
    assert back[0]["id"] == "huawei-atlas-300i-duo" and len(back) == 47


def test_list_without_a_match_did_its_work(capsys: Captured) -> None:
    assert listed(capsys, "--where", "memory_gb>1e6") == []
    assert main(["hardware", "list", "--where", "memory_gb>1e6"]) == 0
    assert capsys.readouterr().out == "None of 64 chips fits.\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vendor", "nvidai"], "Did you mean NVIDIA?"),
        (["--dtype", "fp9"], "Did you mean fp8?"),
        (["--sort", "memory"], "Did you mean memory_gb?"),
        (["--where", "memory_gb"], "in quotes"),
        (["--lines", "--sort", "id"], "leave the other options out"),
    ],
    ids=" ".join,
)
def test_bad_options_are_one_message(options: list[str], words: str, capsys: Captured) -> None:
    assert main(["hardware", "list", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and len(captured.err.splitlines()) == 1


def test_show_is_against_the_h100_unless_said_otherwise(capsys: Captured) -> None:
    assert main(["hardware", "show", "gb200"]) == 0
    assert "against nvidia-h100-sxm (| = 100 %)" in capsys.readouterr().out
    assert main(["hardware", "show", "gb200", "--against", "MI300X"]) == 0
    assert "against amd-mi300x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (["h20", "--against", "nope"], "pddplan hardware show: --against: no chip 'nope'"),
        (["nope", "--against", "h20"], "pddplan hardware show: no chip 'nope'"),
        (["--against", "h20", "nope"], "pddplan hardware show: no chip 'nope'"),
    ],
    ids=" ".join,
)
def test_an_unknown_chip_is_blamed_where_it_stands(command: list[str], place: str, capsys: Captured) -> None:
    assert main(["hardware", "show", *command]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(place) and "h20" not in captured.err


@pytest.mark.parametrize("command", [["show", "trainium"], ["show", "h20", "--against", "trainium"]], ids=" ".join)
def test_a_name_of_two_chips_names_both(command: list[str], capsys: Captured) -> None:
    assert main(["hardware", *command]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Name one: aws-trainium2, aws-trainium3." in captured.err


@pytest.mark.parametrize("chip", [c for c in chip_ids() if load_chip(c).missing])
def test_an_incomplete_chip_is_refused_with_the_missing_number_named(
    chip: str, scenario_file: Path, capsys: Captured
) -> None:
    assert main(["solve", str(scenario_file), "--set", f"sites[0].chips[0].chip={chip}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    assert f"chip '{chip}' can't be planned with: no published {', '.join(load_chip(chip).missing)}." in captured.err


@pytest.mark.parametrize("chip", [c for c in chip_ids() if not load_chip(c).missing])
def test_every_other_chip_is_read_in_a_scenario(chip: str, scenario_file: Path) -> None:
    scenario = pddplan.load_scenario(scenario_file, [f"sites[0].chips[0].chip={chip}"])
    assert scenario.sites[0].offers[0].chip.id == chip


def test_add_checks_a_file_and_writes_nothing(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "acme-one.yaml"
    path.write_text(FOUR)
    assert main(["hardware", "add", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("COMPLETE  acme-one  can be planned with\n") and captured.err == ""
    assert path.read_text() == FOUR and list(tmp_path.iterdir()) == [path]
    path.write_text(FOUR.replace("memory_gb: 96\n", ""))
    assert main(["hardware", "add", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == ["memory_gb"]


def test_add_names_every_slip_with_its_line(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nbf16_tflops: -3\nmemory_gb: many\nfoo: 1\n")
    assert main(["hardware", "add", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    places = [line.split(" ")[0] for line in captured.err.splitlines()]
    assert places == [f"{path}:2:", f"{path}:3:", f"{path}:4:", f"{path}:", f"{path}:"]
    assert main(["hardware", "add", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and [e["line"] for e in json.loads(captured.err)["errors"]] == [2, 3, 4, None, None]


def test_add_tells_everything_in_one_run_in_the_order_of_the_file(tmp_path: Path, capsys: Captured) -> None:
    """A missing name hides nothing, nor does a number beyond all measure; what is nowhere in the file comes last."""
    path = tmp_path / "x.yaml"
    path.write_text("foo: 1\nmemory_gb: 1e30\nname:\nfp8_tflops: fast\nprice: {usd_per_hour: -1}\n")
    assert main(["hardware", "add", str(path)]) == 2
    told = [line.removeprefix(str(path)).split(" ")[:2] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        [":1:", "foo:"],
        [":2:", "memory_gb:"],
        [":3:", "name:"],
        [":4:", "fp8_tflops:"],
        [":5:", "price.usd_per_hour:"],
        [":", "memory_gb_per_s:"],
        [":", "interconnect_gb_per_s:"],
    ]


def test_add_without_a_name_is_incomplete_as_without_a_number(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        FOUR.replace("name: Acme One\n", "").replace("memory_gb: 96\n", "").replace("s: 200\n", "s: 4000\n")
    )
    assert main(["hardware", "add", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["id"], found["status"], found["plannable"]) == ("x", "incomplete", False)
    assert found["missing"] == ["name", "memory_gb"]
    assert {f["kind"] for f in found["findings"]} >= {"missing", "implausible"}


def test_a_checked_file_serves_in_a_scenario(tmp_path: Path, scenario_file: Path) -> None:
    (scenario_file.parent / "acme-one.yaml").write_text(FOUR)
    scenario = pddplan.load_scenario(scenario_file, ["sites[0].chips[0].chip=acme-one.yaml"])
    assert scenario.sites[0].offers[0].chip.name == "Acme One"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_stream_without_the_signs_gets_plain_ones(encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    emit("memory  ██|  – 50 %", stream)
    stream.flush()
    assert raw.getvalue().decode(encoding) == "memory  ##|  - 50 %\n"


@pytest.mark.parametrize("command", [["show", "h20"], ["show", "p800"], ["list"], ["list", "--lines"]], ids=" ".join)
def test_ascii_through_a_pipe_at_80_columns(command: list[str]) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    run = [sys.executable, "-m", "pddplan", "hardware", *command]
    done = subprocess.run(run, capture_output=True, env=env, timeout=60, check=True)
    text = done.stdout.decode("ascii")
    assert "?" not in text and "\x1b" not in text and max(map(len, text.splitlines())) <= 80
    assert done.stderr == b""
    if command[0] == "show":
        assert "###" in text


GOLDEN = {
    "hardware_list": ["list"],
    "hardware_list_fp4": ["list", "--dtype", "fp4", "--where", "memory_gb>=150", "--sort", "memory_gb_per_s"],
    "hardware_lines": ["list", "--lines"],
    "hardware_show_h20": ["show", "h20"],
    "hardware_show_p800": ["show", "p800", "--against", "910c"],
}


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("width", [80, 100])
def test_golden_text(name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["hardware", *GOLDEN[name]]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert_golden(f"{name}_{width}.txt", text)


@pytest.mark.parametrize("name", ["hardware_show_h20", "hardware_lines"])
def test_golden_json(name: str, capsys: Captured) -> None:
    assert main(["hardware", *GOLDEN[name], "--json"]) == 0
    payload = three_digits(json.loads(capsys.readouterr().out))
    assert_golden(f"{name}.json", json.dumps(payload, indent=2, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("kind", ["implausible", "incomplete"])
def test_golden_of_add(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    text = FOUR.replace("interconnect_gb_per_s: 200", "interconnect_gb_per_s: 400  # both directions")
    lacking = FOUR.replace("memory_gb: 96", "memory_gb: null")
    Path("acme-one.yaml").write_text(text if kind == "implausible" else lacking)
    assert main(["hardware", "add", "acme-one.yaml"]) == 0
    assert_golden(f"hardware_add_{kind}.txt", capsys.readouterr().out)
