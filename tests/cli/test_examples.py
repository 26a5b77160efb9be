"""``solve`` and ``check`` on every example: exit code, the JSON contract, sums, and the golden answer."""

from __future__ import annotations

import contextlib
import io
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pddplan.cli.main import main
from pddplan.report.schemas import SCHEMAS
from pddplan.spec.catalogue import examples_dir
from tests.report.golden import assert_golden

EXIT_CODES = {
    "agent_64k": 0,
    "chat_8k": 0,
    "910c_h20_metro": 0,
    "egress_priced": 0,
    "deepseek_fleet": 0,
    "infeasible": 1,
    "prfaas_1t": 0,
    "three_p_four_d": 0,
    "three_sites": 0,
    "two_workloads": 0,
}
FEASIBLE = [name for name, code in EXIT_CODES.items() if code == 0]
# Change with the release, the catalogue or the machine, not with the plan.
VOLATILE = ("version", "catalogue_date", "timing_s")


@lru_cache
def answer(name: str, *flags: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``pddplan solve`` on an example."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["solve", str(examples_dir() / f"{name}.yaml"), *flags])
    return code, out.getvalue(), err.getvalue()


def payload(name: str) -> dict[str, Any]:
    code, out, err = answer(name, "--json")
    assert (code, err) == (EXIT_CODES[name], "")
    plan: dict[str, Any] = json.loads(out)
    return plan


def three_digits(value: Any) -> Any:
    """Numbers as ``%.3g``: what a golden file compares."""
    if isinstance(value, dict):
        return {key: three_digits(inner) for key, inner in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [three_digits(inner) for inner in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def test_every_example_is_listed() -> None:
    assert {path.stem for path in examples_dir().glob("*.yaml")} == set(EXIT_CODES)


@pytest.mark.parametrize("name", EXIT_CODES)
def test_json_keeps_the_contract(name: str) -> None:
    Draft202012Validator(SCHEMAS["plan"]).validate(payload(name))


@pytest.mark.parametrize("name", EXIT_CODES)
def test_golden(name: str) -> None:
    code, text, _ = answer(name)
    assert code == EXIT_CODES[name]
    body, last = text.rstrip("\n").rsplit("\n", 1)
    assert re.fullmatch(r"pddplan \S+ · catalogue \d{4}-\d{2}-\d{2} · scenario [0-9a-f]{12} · seed 0", last)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert_golden(f"solve_{name}.txt", body + "\n")
    assert_golden(f"solve_{name}.json", json.dumps(three_digits(payload(name)), indent=2, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("name", FEASIBLE)
def test_figures_add_up(name: str) -> None:
    plan = payload(name)
    assert all(r["chips"] == r["instances"] * r["chips_per_instance"] for r in plan["roles"])
    cost = plan["cost"]
    parts = [*(r["usd_per_hour"] for r in plan["roles"]), *(x["usd_per_hour"] for x in plan["links"])]
    assert sum(parts) + cost["other_usd_per_hour"] == pytest.approx(cost["usd_per_hour"], rel=1e-9)
    per_mtok, tokens = cost["usd_per_million_tokens"], cost["tokens_per_hour"]
    back = sum(per_mtok[kind] * tokens[kind] / 1e6 for kind in ("input", "cached_input", "output"))
    assert back == pytest.approx(cost["usd_per_hour"], rel=1e-9)
    assert per_mtok["blended"] * sum(tokens.values()) / 1e6 == pytest.approx(cost["usd_per_hour"], rel=1e-9)
    routing = plan["routing"]
    shares = routing["direct_share"] + routing["relay_share"] + routing["filtered_share"]
    assert shares == pytest.approx(1, abs=1e-9)
    assert all(level["met"] for level in plan["slo"])
    several = len({role["role"] for role in plan["roles"]}) < len(plan["roles"])  # pools in a role: found, not proven
    assert 0 <= plan["objective"]["gap"] <= (1.0 if several else 0.001)


def test_first_line_names_the_architecture_and_the_cost() -> None:
    plan = payload("agent_64k")
    first = answer("agent_64k")[1].splitlines()[0].split("  ")
    assert first[:2] == ["FEASIBLE", plan["architecture"]]
    assert float(first[2].strip("$/h").replace(",", "")) == pytest.approx(plan["cost"]["usd_per_hour"], rel=0.005)


def test_an_infeasible_example_says_why_and_what_would_help() -> None:
    plan, text = payload("infeasible"), answer("infeasible")[1]
    assert plan["status"] == "infeasible" and plan["reasons"] and plan["binding"] and plan["fixes"]
    assert text.startswith("INFEASIBLE  ") and "--set" in text


def test_the_fix_of_an_infeasible_example_makes_it_feasible() -> None:
    fix = payload("infeasible")["fixes"][0]
    flags = [flag for override in fix["overrides"] for flag in ("--set", override)]
    code, out, _ = answer("infeasible", "--json", *flags)
    assert code == 0 and json.loads(out)["status"] == "feasible"


def test_same_input_same_bytes() -> None:
    def stable(text: str) -> str:
        return re.sub(r'"timing_s": \{[^}]*\}', "", text)

    first = answer("agent_64k", "--json")[1]
    answer.cache_clear()
    assert stable(answer("agent_64k", "--json")[1]) == stable(first)


def test_check_agrees_with_solve(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(examples_dir() / f"{name}.yaml") for name in EXIT_CODES]
    assert main(["check", *paths, "--json"]) == max(EXIT_CODES.values())
    verdicts = json.loads(capsys.readouterr().out)["scenarios"]
    for name, verdict in zip(EXIT_CODES, verdicts, strict=True):
        plan = payload(name)
        assert verdict["status"] == plan["status"]
        assert verdict["usd_per_hour"] == (plan["cost"] or {}).get("usd_per_hour")


def test_the_readme_shows_what_is_printed() -> None:
    """All but the last line, which has the version and the scenario's hash."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = readme.split("<!-- output:start -->\n```\n")[1].split("```\n<!-- output:end -->")[0]
    _, out, _ = answer("agent_64k")
    assert shown.splitlines()[:-1] == out.splitlines()[:-1]
