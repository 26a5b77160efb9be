"""``estimate`` on the command line: the answer first, the contract's JSON, one message for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.report.schemas import SCHEMAS
from tests.cli.test_solve import Captured

BASE = ["estimate", "--model", "llama-3.1-70b", "--chip", "h100", "--isl", "4K", "--osl", "512"]
SPLIT = [*BASE, "--xpyd", "2P1D", "--tp", "4", "--concurrency", "64", "--shortest", "0.8"]
WIDE = ["--dp", "16", "--ep", "16", "--tp", "1"]
RUNS = {
    "defaults": BASE,
    "aggregated": [*BASE, "--tp", "4", "--concurrency", "32", "--engine", "vllm"],
    "at a rate": [*BASE, "--tp", "4", "--rate", "1.5"],
    "disaggregated": SPLIT,
    "disaggregated at a rate": [*SPLIT[:-4], "--rate", "2", "--kv-cache", "fp8"],
    "two chips": [*BASE, "--tp", "8", "--decode-chip", "h20", "--decode-workers", "2", "--prefix-hit", "0.5"],
    "prefill": [*BASE[:-2], "--tp", "4", "--mode", "prefill", "--concurrency", "8"],
    "decode": [*BASE, "--tp", "4", "--mode", "decode", "--concurrency", "100", "--mtp", "1.8"],
    "wide": ["estimate", "--model", "deepseek-v3", "--chip", "h200", "--isl", "8K", "--osl", "1K", *WIDE],
    "doesn't fit": [*BASE, "--tp", "1"],
    "too long": [*BASE, "--isl", "100K", "--tp", "2"],
    "too fast": [*SPLIT[:-4], "--rate", "500"],
}
REFUSED = {"doesn't fit": "memory", "too long": "KV of a request", "too fast": "prefill utilization"}


def payload(capsys: Captured, arguments: list[str]) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    Draft202012Validator(SCHEMAS["estimate"]).validate(found)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_json_is_the_contract(name: str, capsys: Captured) -> None:
    found = payload(capsys, RUNS[name])
    assert found["schema"] == "pddplan.estimate/1"
    parts = found["ttft_ms"]
    assert set(parts) == {"mean", "queue", "prefill", "transfer", "first_step"}
    assert set(found["tokens_per_s_per_chip"]) == {"prefill", "decode", "total"}
    if name in REFUSED:
        assert REFUSED[name] in found["why"] and found["ops"] == [] and found["memory_bytes"] == {}
        assert {*parts.values(), found["tpot_ms"], found["concurrency"]["effective"]} == {None}
        return
    assert found["why"] is None
    assert (parts["mean"] is None) is (name == "decode") and (found["tpot_ms"] is None) is (name == "prefill")
    if parts["mean"] is not None:
        assert sum(v for k, v in parts.items() if k != "mean") == pytest.approx(parts["mean"])
    for one in found["passes"]:
        ops = [op for op in found["ops"] if op["phase"] == one["phase"]]
        assert sum(op["time_ms"] for op in ops) == pytest.approx(one["time_ms"], rel=1e-9)
    assert set(found["memory_bytes"]) == {pool["role"] for pool in found["pools"]}
    for memory in found["memory_bytes"].values():
        parts = [memory[key] for key in ("weights", "activations", "reserve", "kv_per_chip")]
        assert sum(parts) == pytest.approx(memory["chip"])
        assert memory["kv_held"] <= memory["kv_pool"]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", RUNS)
def test_text_fits_and_its_first_line_is_the_answer(
    name: str, width: int, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(RUNS[name]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err == "" and max(map(len, lines)) <= width and "nan" not in captured.out
    if name in REFUSED:
        assert lines[0].startswith(f"can't run: {REFUSED[name]}")
        return
    assert ("TTFT" in lines[0]) is (name != "decode") and ("TPOT" in lines[0]) is (name != "prefill")
    assert "tokens/s per chip" in " ".join(lines[:2])
    assert "assumed" in lines and "efficiency of nvidia-h" in captured.out


def test_text_and_json_say_the_same(capsys: Captured) -> None:
    found = payload(capsys, RUNS["aggregated"])
    assert main([*RUNS["aggregated"], "--ops", "0"]) == 0
    text = capsys.readouterr().out
    assert f"TPOT {found['tpot_ms']:.1f} ms~" in text
    assert f"{found['concurrency']['effective']:.1f} of 32 running" in text
    assert "bound by" not in text


def test_defaults_are_said(capsys: Captured) -> None:
    """One user, the fewest chips that hold the weights, formats, the engine."""
    found = payload(capsys, BASE)
    said = {a["name"]: (a["value"], a["source"]) for a in found["assumptions"]}
    assert said["concurrency"] == (1.0, "default") and said["tp"] == (2.0, "default")
    assert said["engine"] == ("generic", "default") and said["precision.kv_cache"] == ("bf16", "default")
    assert said["efficiency.nvidia-h100-sxm"] == ("nvidia-hopper", "fitted")
    assert found["concurrency"]["asked"] == 1 and found["pools"][0]["parallelism"]["tp"] == 2
    given = payload(capsys, [*RUNS["aggregated"], "--weights", "fp8", "--kv-cache", "fp8"])
    names = {a["name"] for a in given["assumptions"]}
    assert names.isdisjoint({"concurrency", "tp", "engine", "precision.kv_cache", "precision.weights"})


def test_explain_lists_every_assumption_with_its_source(capsys: Captured) -> None:
    assert main([*RUNS["aggregated"], "--explain"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in ("engine.step_overhead_ms", "engine.handoff_ms", "efficiency.nvidia-h100-sxm", "precision.weights"):
        assert f"- {name} = " in text


def test_engine_numbers_can_be_set(capsys: Captured) -> None:
    def memory(*options: str) -> dict[str, float]:
        found: dict[str, float] = payload(capsys, [*RUNS["aggregated"], *options])["memory_bytes"]["aggregated"]
        return found

    assert memory("--set", "engine.memory_fraction=0.5")["kv_pool"] < 0.5 * memory()["kv_pool"]
    slow = payload(capsys, [*RUNS["aggregated"], "--set", "engine.step_overhead_ms=100"])
    assert slow["tpot_ms"] > 100
    assert payload(capsys, [*RUNS["aggregated"], "--chunk-tokens", "512"])["passes"][1]["new_tokens"] == 512


def test_a_chip_of_ones_own(tmp_path: Path, capsys: Captured) -> None:
    chip = tmp_path / "mine.yaml"
    chip.write_text("name: mine\nbf16_tflops: 400\nmemory_gb: 96\nmemory_gb_per_s: 2000\ninterconnect_gb_per_s: 200\n")
    arguments = [*BASE, "--chip", str(chip), "--tp", "4", "--concurrency", "8"]
    found = payload(capsys, arguments)
    assert found["pools"][0]["chip"] == "mine" and found["tpot_ms"] > 0
    assert ("efficiency.mine", "estimate") in {(a["name"], a["source"]) for a in found["assumptions"]}
    assert main(arguments) == 0
    assert "class-custom, estimate, typical error of an op" in " ".join(capsys.readouterr().out.split())
    chip.write_text("name: mine\nbf16_tflops: 400\nmemory_gb: 96\n")
    assert main(arguments) == 2
    assert "memory_gb_per_s" in capsys.readouterr().err


BAD = {
    "unknown model": (["--model", "lama-3.1-70b"], "--model", "Closest: llama-3.1-70b"),
    "unknown chip": (["--chip", "h1O0"], "--chip", "Closest: "),
    "chip without numbers": (["--chip", "kunlunxin-r480"], "--chip", "no published bf16_tflops"),
    "no such file": (["--chip", "nowhere.yaml"], "nowhere.yaml", "no such file"),
    "unknown engine": (["--engine", "vlm"], "--engine", "Did you mean vllm?"),
    "unknown format": (["--kv-cache", "int8"], "--kv-cache", "One of bf16, fp8."),
    "negative": (["--concurrency", "-3"], "--concurrency", "-3 is not possible"),
    "zero": (["--concurrency", "0"], "--concurrency", "0 is not possible"),
    "not whole": (["--concurrency", "1.5"], "--concurrency", "a whole number"),
    "not a number": (["--rate", "nan"], "--rate", "nan is not possible"),
    "endless": (["--rate", "inf"], "--rate", "inf is not possible"),
    "two loads": (["--rate", "1", "--concurrency", "2"], "--concurrency", "a rate is given, too"),
    "tokens": (["--isl", "lots"], "--isl", "Write 8192 or 8K"),
    "no tokens": (["--osl", "0"], "--osl", "0 is not possible"),
    "heads": (["--tp", "3"], "--tp", "3 doesn't divide the 64 heads"),
    "stages": (["--pp", "81"], "--pp", "80 layers"),
    "no experts": (["--ep", "4"], "--ep", "no experts"),
    "too many expert ranks": (["--model", "deepseek-v3", "--ep", "512"], "--ep", "256 experts"),
    "expert ranks": (["--model", "deepseek-v3", "--tp", "8", "--ep", "3"], "--ep", "doesn't divide tp x dp = 8"),
    "hit": (["--prefix-hit", "1.2"], "--prefix-hit", "a share from 0 to 1"),
    "two pools of one": (["--mode", "prefill", "--decode-tp", "2"], "--mode", "one pool"),
    "split": (["--xpyd", "2x"], "--xpyd", "Write 2P1D"),
    "workers": (["--xpyd", "0P1D"], "--prefill-workers", "1 or more"),
    "key of the engine": (["--set", "engine.memory_fracton=1"], "engine.memory_fracton", "unknown key"),
    "value of the engine": (["--set", "engine.memory_fraction=2"], "engine.memory_fraction", "at most 1"),
    "another key": (["--set", "slo.ttft_s=1"], "slo.ttft_s=1", "no number of the engine"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_message(name: str, capsys: Captured) -> None:
    options, key, words = BAD[name]
    assert main([*BASE, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    assert key in captured.err and words in captured.err
    assert main([*BASE, *options, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and json.loads(captured.err)["schema"] == "pddplan.error/1"


def test_all_that_is_wrong_is_said_at_once(capsys: Captured) -> None:
    assert main([*BASE, "--model", "nobody", "--chip", "nothing", "--engine", "none", "--prefix-hit", "7"]) == 2
    keys = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert keys == ["--prefix-hit", "--model", "--engine", "--chip"]


@pytest.mark.parametrize("missing", ["--model", "--isl", "--chip", "--osl"])
def test_what_is_missing_is_named(missing: str, capsys: Captured) -> None:
    at = BASE.index(missing)
    assert main(BASE[:at] + BASE[at + 2 :]) == 2
    captured = capsys.readouterr()
    assert missing in captured.err and len(captured.err.splitlines()) == 1


def test_fitted_factors_go_before_the_profile_and_what_is_stated_before_them(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "fitted.yaml"
    file.write_text(
        "schema: pddplan.overlay/1\n"
        "chips: {nvidia-h100-sxm: {memory: 0.8}}\n"
        "engines: {generic: {step_overhead_ms: 9}}\n"
    )
    plain = payload(capsys, RUNS["aggregated"][:-2])
    fitted = payload(capsys, [*RUNS["aggregated"][:-2], "--calibration", str(file)])
    stated = payload(
        capsys, [*RUNS["aggregated"][:-2], "--calibration", str(file), "--set", "engine.step_overhead_ms=0"]
    )
    assert plain["tpot_ms"] < stated["tpot_ms"] < fitted["tpot_ms"] - 8
    assumed = {a["name"]: (a["value"], a["source"]) for a in fitted["assumptions"]}
    assert assumed["engine.step_overhead_ms"] == (9, "fitted")
    assert assumed["nvidia-h100-sxm.calibration.memory"] == (0.8, "fitted")
    assert len(assumed) == len(fitted["assumptions"])


def test_a_calibration_that_is_missing(capsys: Captured) -> None:
    assert main([*BASE, "--calibration", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: no such file" in capsys.readouterr().err
