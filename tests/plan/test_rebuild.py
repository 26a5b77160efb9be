"""Plans read back from their JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pddplan.errors import InputError
from pddplan.plan.rebuild import read_plan
from pddplan.plan.solve import solve
from pddplan.report.plan_json import plan_payload
from pddplan.serve.evaluate import evaluate
from pddplan.spec.catalogue import examples_dir
from pddplan.spec.load import load_scenario
from pddplan.spec.types import Scenario


def scenario(name: str) -> Scenario:
    return load_scenario(str(examples_dir() / f"{name}.yaml"))


@pytest.fixture(scope="module")
def agent() -> dict[str, Any]:
    return json.loads(json.dumps(plan_payload(solve(scenario("agent_64k")))))


@pytest.mark.parametrize("name", ["agent_64k", "chat_8k", "910c_h20_metro", "two_workloads"])
def test_the_same_plan_comes_back(name: str, tmp_path: Path) -> None:
    result = solve(scenario(name))
    assert result.solved is not None and result.evaluation is not None
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_payload(result)), encoding="utf-8")
    found = read_plan(str(path), scenario(name))
    kept, back = result.solved.deployment, found.deployment
    assert [(p.role, p.site.name, p.offer.chip.id, p.instances) for p in back.pools] == [
        (p.role, p.site.name, p.offer.chip.id, p.instances) for p in kept.pools
    ]
    assert [(x.tier, x.lines, x.ends) for x in back.lines] == [(x.tier, x.lines, x.ends) for x in kept.lines]
    # under the very rule for the relay that the plan was found with
    again = evaluate(found.context, back, routing=result.evaluation.routing)
    assert [row.value_s for row in again.slo] == pytest.approx([row.value_s for row in result.evaluation.slo], rel=1e-9)


def test_more_chips_than_the_scenario_has(agent: dict[str, Any], tmp_path: Path) -> None:
    """A plan that exists exists, whatever can be rented now."""
    path = tmp_path / "plan.json"
    agent = json.loads(json.dumps(agent))
    agent["roles"][0]["instances"] = 500
    path.write_text(json.dumps(agent), encoding="utf-8")
    assert read_plan(str(path), scenario("agent_64k")).deployment.pools[0].instances == 500


def without(data: dict[str, Any], *keys: Any, value: Any = None) -> dict[str, Any]:
    """The data with another value at a path."""
    inner = data
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return data


BAD: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda d: [], "says no schema"),
    (lambda d: without(d, "schema", value="pddplan.chips/1"), "has the schema 'pddplan.chips/1'"),
    (lambda d: without(d, "roles", value=[]), "has no plan"),
    (lambda d: without(d, "status", value="infeasible"), "has no plan"),
    (lambda d: without(d, "roles", value={"role": "prefill"}), "list of objects"),
    (lambda d: without(d, "roles", 0, "role", value="cooking"), "no role 'cooking'"),
    (lambda d: without(d, "roles", 0, "instances", value=-3), "whole number"),
    (lambda d: without(d, "roles", 0, "instances", value=True), "whole number"),
    (lambda d: without(d, "roles", 0, "parallelism", value=8), "is no object"),
    (lambda d: without(d, "roles", 0, "parallelism", "tp", value=3), "no instance of"),
    (lambda d: without(d, "roles", 0, "site", value="nowhere"), "no site 'nowhere'"),
    (lambda d: without(d, "roles", 0, "chip", value="nvidia-h100-sxm"), "no chip 'nvidia-h100-sxm'"),
    (lambda d: without(d, "links", value=[]), "no line"),
    (lambda d: without(d, "links", 0, "gbit_per_s", value=77), "no tier of"),
    (lambda d: without(d, "links", 0, "gbit_per_s", value=float("nan")), "no tier of"),
    (lambda d: without(d, "roles", value=d["roles"] * 2), "several pools"),
]


@pytest.mark.parametrize(("change", "says"), BAD, ids=[says for _, says in BAD])
def test_a_bad_plan_is_one_clear_message(
    change: Callable[[dict[str, Any]], Any], says: str, agent: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(change(json.loads(json.dumps(agent)))), encoding="utf-8")
    with pytest.raises(InputError, match=says) as caught:
        read_plan(str(path), scenario("agent_64k"))
    (problem,) = caught.value.problems
    assert problem.file == str(path) and problem.fix


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"schema": 1e999}', "\x00\x01"])
def test_what_is_no_plan(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        read_plan(str(path), scenario("agent_64k"))


def test_the_solved_plan_stays_out_of_comparisons() -> None:
    result = solve(scenario("chat_8k"))
    assert replace(result, solved=None) == result
