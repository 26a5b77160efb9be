"""Every kind of bad input: message, file, line, key and fix, all problems in one run, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pddplan.errors import InputError, Problem
from pddplan.spec.load import load_scenario, load_scenario_text
from pddplan.spec.yaml_source import MAX_BYTES
from tests.spec.bad_scenarios import H20, KINDS, changed
from tests.spec.scenarios import SMALL


def problems(text: str, **options: object) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        load_scenario_text(text, "a.yaml", **options)  # type: ignore[arg-type]
    return caught.value.problems


@pytest.mark.parametrize(("kind", "text", "line", "key", "message", "fix"), KINDS, ids=[k[0] for k in KINDS])
def test_kind(kind: str, text: str, line: int | None, key: str, message: str, fix: str) -> None:
    found = problems(text)
    hits = [p for p in found if any(m in p.message for m in message.split("|"))]
    assert hits, [str(p) for p in found]
    problem = hits[0]
    assert problem.file == "a.yaml"
    if line is not None:
        assert problem.line == line, str(problem)
    if key:
        assert problem.key == key, str(problem)
    assert fix in problem.fix, str(problem)
    assert "\n" not in str(problem) and len(str(problem)) < 400


@pytest.mark.parametrize("kind", [k for k in KINDS if k[0] not in ("wrong unit", "no workload")], ids=lambda k: k[0])
def test_one_fault_is_one_problem(kind: tuple[str, str, int | None, str, str, str]) -> None:
    assert len(problems(kind[1])) == 1, [str(p) for p in problems(kind[1])]


def test_the_line_of_the_design() -> None:
    (problem,) = problems(changed((H20, "chip: nvidia-h20-96")))
    assert str(problem) == (
        "a.yaml:15: sites[1].chips[0].chip: no chip 'nvidia-h20-96' in the catalogue. "
        "Closest: nvidia-h20-96g (alias h20)."
    )


def test_all_problems_in_one_run() -> None:
    text = changed(
        ("model: deepseek-v3.2", "model: deepseek-v3.2\nmodel: x"),
        ("request_rate_per_s: 10", "request_rate_per_s: .nan"),
        ("0.90", "0.5"),
        ("[prefill, relay_decode]", "[prefil]"),
        ("max: 96", "max: 0"),
        ("2.00", "-2"),
        (H20, "chip: h21x"),
        ("[north, west]", "[north, wets]"),
        ("rtt_ms: 8", "rtt: 8ms"),
        ("gbit_per_s: 10,", "gbit_per_s: fast,"),
        ("tpot_ms: {p90: 50}", "tpot: {p90: 50}"),
    )
    found = problems(
        text,
        overrides=["sites[7].name=x", "burst=2"],
        check_model=lambda name, base: [Problem(f"no model {name!r}.", fix="Closest: deepseek-v3.2.")],
    )
    keys = [p.key for p in found]
    assert keys == [
        "burst", "sites[7].name", "model", "model", "workload.request_rate_per_s", "workload.prefix_hit_rate.mean",
        "sites[0].roles[0]", "sites[0].chips[0].max", "sites[0].chips[0].usd_per_hour", "sites[1].chips[0].chip",
        "links[0].between[1]", "links[0].rtt", "links[0].tiers[0].gbit_per_s", "slo.tpot",
    ]  # fmt: skip
    assert all(p.fix for p in found)
    assert [p.file for p in found] == ["--set"] * 2 + ["a.yaml"] * 12
    lines = [p.line for p in found[2:]]
    assert lines == sorted(lines, key=lambda n: n or 0)


def test_model_problem_gets_its_place() -> None:
    (problem,) = problems(SMALL, check_model=lambda name, base: [Problem(f"no model {name!r}.", fix="Like llama.")])
    assert str(problem) == "a.yaml:2: model: no model 'deepseek-v3.2'. Like llama."


def test_money_in_yuan_is_reported_once() -> None:
    text = changed(("usd_per_hour: 2.00", "cny_per_hour: 14"), ("usd_per_hour: 1.20", "cny_per_hour: 9"))
    assert len(problems(text)) == 1


def test_terminal_control_characters_are_not_printed() -> None:
    for problem in problems(SMALL + '"\\e[31mred\\n": 1\n'):
        assert "\x1b" not in str(problem) and "\n" not in str(problem)


def test_lone_surrogates_can_be_printed() -> None:
    for problem in problems('{"\\ud800": "\\udfff", "model": "\\ud800"}'):
        str(problem).encode("utf-8")


# ---------------------------------------------------------------- files


def refusal(path: str | Path) -> Problem:
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    (problem,) = caught.value.problems
    return problem


def test_missing_file_suggests_init(tmp_path: Path) -> None:
    problem = refusal(tmp_path / "no.yaml")
    assert problem.message == "no such file." and "pddplan init" in problem.fix
    assert problem.file.endswith("no.yaml")


def test_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path).message == "is a directory."


def test_impossible_path() -> None:
    assert "can't be read" in refusal("a\0b").message


def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text(SMALL)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert "can't be read" in refusal(path).message


def test_unreadable_by_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert refusal(tmp_path / "a.yaml").message == "can't be read: Permission denied."


def test_fifty_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as stream:
        stream.truncate(50_000_000)
    assert "larger than 1 MiB" in refusal(path).message


def test_large_text() -> None:
    assert "larger than 1 MiB" in problems("#" * (MAX_BYTES + 1))[0].message


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(bytes(range(256)))
    assert "not text" in refusal(path).message


def test_chip_file_problems_have_its_lines(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(changed((H20, "chip: mine.yaml")))
    chip = "name: m\nbf16_tflops: 4\nmemory_gb: 96GB\nmemory_gb_per_s: 9\ninterconnect_gb_per_s: 2\nbandwith: 3\n"
    (tmp_path / "mine.yaml").write_text(chip)
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "s.yaml")
    places = {(Path(p.file).name, p.line, p.key) for p in caught.value.problems}
    assert ("mine.yaml", 3, "memory_gb") in places
    assert ("mine.yaml", 6, "bandwith") in places
