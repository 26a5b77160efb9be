"""``pddplan calibrate``: what it prints and writes, and when it doesn't; a scenario and ``validate`` that use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.report.schemas import SCHEMAS
from pddplan.spec.calibration import load_overlay
from pddplan.spec.load import load_scenario_text
from tests.accuracy.sweeps import H100, TRUE, as_csv, sweep
from tests.spec.scenarios import SMALL

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibrate") / "rows.csv"
    path.write_text(as_csv(sweep(TRUE, tps=(1,), noise=0.01)))
    return path


def test_text_and_file(table: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = tmp_path / "c.yaml"
    assert main(["calibrate", str(table), "-o", str(output)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("CALIBRATED  ") and "Errors on rows held out" in text
    assert max(map(len, text.splitlines())) <= 80
    assert load_overlay(output).chips[H100].compute == pytest.approx(0.8, rel=0.05)

    def mape(*extra: str) -> float:
        assert main(["validate", str(table), "--json", *extra]) == 0
        groups = json.loads(capsys.readouterr().out)["groups"]
        return float(next(g["mape"] for g in groups if (g["group"], g["metric"]) == ("all", "tpot_ms")))

    assert mape("--calibration", str(output)) < 3 < 10 < mape()


def test_json(table: Path, capsys: Captured) -> None:
    assert main(["calibrate", str(table), "--json"]) == 0
    captured = capsys.readouterr()
    payload = json.loads(captured.out)
    Draft202012Validator(SCHEMAS["calibration"]).validate(payload)
    assert captured.err == "" and payload["written"] is None and payload["better"] is True
    assert {f["name"] for f in payload["factors"] if f["identified"]} >= {"compute", "step_overhead_ms"}


def test_one_row_is_too_few_to_trust(tmp_path: Path, capsys: Captured) -> None:
    path, output = tmp_path / "one.csv", tmp_path / "c.yaml"
    path.write_text(as_csv(sweep(TRUE, tps=(1,), lengths=((1024, 256),), users=(16,))))
    assert main(["calibrate", str(path), "-o", str(output)]) == 1
    assert "Not written" in capsys.readouterr().out and not output.exists()


def test_rows_that_gain_nothing_are_not_written(tmp_path: Path, capsys: Captured) -> None:
    """The shipped model's own figures: whatever noise moves, rows held out can't get better."""
    path, output = tmp_path / "r.csv", tmp_path / "c.yaml"
    path.write_text(as_csv(sweep({}, tps=(1,), users=(1, 16))))
    assert main(["calibrate", str(path), "-o", str(output)]) == 1
    assert capsys.readouterr().out.startswith("NO GAIN") and not output.exists()


def test_impossible_rows_write_nothing(table: Path, tmp_path: Path, capsys: Captured) -> None:
    path, output = tmp_path / "fast.csv", tmp_path / "c.yaml"
    head, *lines = table.read_text().splitlines()
    path.write_text("\n".join([head, *(f"{line.rsplit(',', 1)[0]},0.3" for line in lines)]))
    assert main(["calibrate", str(path), "-o", str(output)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and f"{path}: row 1: tpot_ms 0.3 is impossible" in captured.err and not output.exists()


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("data", [b"", b"\0\1", b"{", b"a,b\n1,2\n"], ids=["empty", "binary", "JSON", "columns"])
def test_what_is_no_measurement_is_one_message(tmp_path: Path, capsys: Captured, data: bytes, as_json: bool) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    assert main(["calibrate", str(path), *(["--json"] if as_json else [])]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    if as_json:
        Draft202012Validator(SCHEMAS["error"]).validate(json.loads(captured.err))
    else:
        assert captured.err.startswith(f"{path}:") and captured.err.count("\n") == 1


@pytest.mark.parametrize("path", ["/no/such/file.csv", "/"])
def test_no_file(path: str, capsys: Captured) -> None:
    assert main(["calibrate", path]) == 2
    assert capsys.readouterr().err.startswith(f"{path}: ")


# ---------------------------------------------------------------- a scenario that names the file


def scenario(tmp_path: Path, overlay: str) -> str:
    (tmp_path / "c.yaml").write_text(overlay)
    return "calibration: c.yaml\n" + SMALL


def test_a_scenario_s_chips_and_engine_are_calibrated(tmp_path: Path) -> None:
    text = scenario(tmp_path, "chips: {h800: {compute: 0.8}}\nengines: {generic: {step_overhead_ms: 4}}\n")
    plain, found = load_scenario_text(SMALL), load_scenario_text(text, base_dir=str(tmp_path))
    h800, h20 = (site.offers[0].chip for site in found.sites)
    assert h800.calibration.compute == 0.8 and h20.calibration.compute == 1.0
    assert found.engine.step_overhead_s == pytest.approx(4e-3) != plain.engine.step_overhead_s
    fitted = {a.name: (a.value, a.note) for a in found.assumptions if a.source == "fitted"}
    assert fitted["engine.step_overhead_ms"][0] == 4 and "c.yaml" in fitted["engine.step_overhead_ms"][1]
    assert fitted["nvidia-h800-sxm.calibration.compute"][0] == 0.8
    assert found.sha256 != plain.sha256 and not any("calibration" in w for w in found.warnings)


def test_the_hash_follows_the_factors_and_not_the_remarks(tmp_path: Path) -> None:
    one = "chips: {h800: {compute: 0.8}}\n"
    hashes = [
        load_scenario_text(scenario(tmp_path, text), base_dir=str(tmp_path)).sha256
        for text in (one, one + "fit: {rows: 9}\n", one.replace("0.8", "0.81"))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_the_scenario_states_goes_first(tmp_path: Path) -> None:
    text = scenario(tmp_path, "engines: {vllm: {step_overhead_ms: 4, prompt_factor: 1.3}}\n")
    found = load_scenario_text(f"engine: {{name: vllm, step_overhead_ms: 2}}\n{text}", base_dir=str(tmp_path))
    assert found.engine.step_overhead_s == pytest.approx(2e-3) and found.engine.prompt_factor == 1.3
    assert "engine.step_overhead_ms" not in {a.name for a in found.assumptions}


def test_a_calibration_of_other_chips_is_said(tmp_path: Path) -> None:
    found = load_scenario_text(scenario(tmp_path, "chips: {b200: {compute: 0.8}}\n"), base_dir=str(tmp_path))
    assert any("changes nothing here" in w for w in found.warnings)


def test_a_slower_chip_costs_more(tmp_path: Path, capsys: Captured) -> None:
    def cost(text: str) -> float:
        path = tmp_path / "s.yaml"
        path.write_text(text.replace("request_rate_per_s: 10", "request_rate_per_s: 4"))
        assert main(["solve", str(path), "--json", "-q"]) == 0
        return float(json.loads(capsys.readouterr().out)["objective"]["value"])

    slow = scenario(tmp_path, "chips: {h800: {compute: 0.6}, h20: {memory: 0.7}}\n")
    assert cost(slow) > cost(SMALL)


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        ("chips: {h800: {comput: 0.8}}\n", "c.yaml:1: chips.h800.comput: unknown key 'comput'."),
        ("chips: {h800: {compute: 1.9}}\n", "c.yaml:1: chips.nvidia-h800-sxm.compute: 1.9 makes"),
        (None, ":1: calibration: 'c.yaml': no such file."),
    ],
)
def test_what_is_wrong_with_it_is_said_where_it_stands(
    tmp_path: Path, capsys: Captured, overlay: str | None, said: str
) -> None:
    text = scenario(tmp_path, overlay or "")
    if overlay is None:
        (tmp_path / "c.yaml").unlink()
    path = tmp_path / "s.yaml"
    path.write_text(text)
    assert main(["solve", str(path), "-q"]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
