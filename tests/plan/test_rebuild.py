"""Plans read back from their JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pddplan.errors import InputError
from pddplan.plan.rebuild import RebuiltPlan, read_plan
from pddplan.plan.records import PlanResult
from pddplan.plan.solve import solve
from pddplan.report.plan_json import plan_payload
from pddplan.report.schemas import SCHEMAS
from pddplan.serve.deployment import Deployment, Network, Plan
from pddplan.serve.evaluate import evaluate
from pddplan.serve.records import Evaluation
from pddplan.spec.catalogue import examples_dir
from pddplan.spec.load import load_scenario
from pddplan.spec.types import Scenario

QUICK = ("agent_64k", "chat_8k", "910c_h20_metro", "two_workloads", "egress_priced", "three_sites")
NO_CACHE = ("engine.decode_prefix_sharing=false", "links[0].max_lines=40")


def scenario(name: str, *overrides: str) -> Scenario:
    return load_scenario(str(examples_dir() / f"{name}.yaml"), overrides=list(overrides))


@lru_cache
def solved(name: str, *overrides: str) -> PlanResult:
    return solve(scenario(name, *overrides))


def payload(name: str, *overrides: str) -> dict[str, Any]:
    """A copy to change."""
    made: dict[str, Any] = json.loads(json.dumps(plan_payload(solved(name, *overrides))))
    return made


def written(data: Any, folder: Path) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def there_and_back(folder: Path, name: str, *overrides: str) -> RebuiltPlan:
    data = payload(name, *overrides)
    Draft202012Validator(SCHEMAS["plan"]).validate(data)
    return read_plan(written(data, folder), scenario(name, *overrides))


def parts(plan: Plan) -> tuple[Any, ...]:
    """All that a plan is made of."""
    pools = [(p.role, p.offer, p.site, p.service.parallelism, p.instances) for p in plan.pools]
    lines = [(x.link, x.tier, x.lines, x.ends) for x in plan.lines]
    ways = [plan] if not isinstance(plan, Network) else [route.way for route in plan.routes]
    routes = [] if not isinstance(plan, Network) else [(route.band, route.share) for route in plan.routes]
    return pools, lines, routes, [(w.decode_cache, w.use_filter) for w in ways]


def assert_same(found: Evaluation, kept: Evaluation) -> None:
    assert [(r.metric, r.quantile, r.workload, r.stage) for r in found.slo] == [
        (r.metric, r.quantile, r.workload, r.stage) for r in kept.slo
    ]
    assert [r.value_s for r in found.slo] == pytest.approx([r.value_s for r in kept.slo], rel=1e-9)
    assert [load.busy_share for load in found.loads] == pytest.approx([x.busy_share for x in kept.loads], rel=1e-9)
    assert found.line_bytes_per_s == pytest.approx(kept.line_bytes_per_s, rel=1e-9)
    assert found.excuses == kept.excuses


@pytest.mark.parametrize("name", QUICK)
def test_the_same_plan_comes_back(name: str, tmp_path: Path) -> None:
    result, found = solved(name), there_and_back(tmp_path, name)
    assert result.solved is not None and result.evaluation is not None
    assert parts(found.deployment) == parts(result.solved.deployment)
    assert found.architecture == result.architecture
    assert_same(evaluate(found.context, found.deployment, routing=found.routing), result.evaluation)
    assert_same(evaluate(found.context, found.deployment), result.evaluation)  # the rule is found again


@pytest.mark.parametrize("name", QUICK)
def test_what_solve_hands_on_evaluates_to_its_answer(name: str) -> None:
    result = solved(name)
    assert result.solved is not None and result.evaluation is not None
    context, deployment = result.solved.context, result.solved.deployment
    assert_same(evaluate(context, deployment, routing=result.evaluation.routing), result.evaluation)
    assert sum(pool.chips for pool in deployment.pools) == sum(role.chips for role in result.roles)


@pytest.mark.parametrize(
    ("name", "overrides", "architecture"),
    [
        ("910c_h20_metro", NO_CACHE, "pd_cross_site"),
        ("egress_priced", NO_CACHE, "pd_cross_site"),
        ("910c_h20_metro", ("objective=goodput",), "pd_cross_site_drc"),
    ],
)
def test_other_ways_come_back(name: str, overrides: tuple[str, ...], architecture: str, tmp_path: Path) -> None:
    result, found = solved(name, *overrides), there_and_back(tmp_path, name, *overrides)
    assert result.solved is not None and result.evaluation is not None
    assert result.architecture == found.architecture == architecture
    assert parts(found.deployment) == parts(result.solved.deployment)
    assert found.context.rate == pytest.approx(result.goodput_rps, rel=1e-9)
    assert_same(evaluate(found.context, found.deployment, routing=found.routing), result.evaluation)


def test_a_filter_comes_back(tmp_path: Path) -> None:
    """The plan of ``agent_64k`` has a relay; with a filter on it, it is another one."""
    forecast = scenario("agent_64k", "workload.output_forecast={precision: 0.9, recall: 0.9}")
    known, data = solved("agent_64k").solved, {**payload("agent_64k"), "architecture": "pdd_filter"}
    assert known is not None and isinstance(known.deployment, Deployment)
    found = read_plan(written(data, tmp_path), forecast)
    mine = evaluate(found.context, found.deployment, routing=found.routing)
    theirs = replace(known.deployment, use_filter=True)
    assert_same(mine, evaluate(replace(known.context, scenario=forecast), theirs, routing=found.routing))
    assert mine.routing.filtered_share > 0


def test_a_cache_at_decode_is_the_plans_own(tmp_path: Path) -> None:
    """A plan without one stays without, whatever the scenario says now."""
    data = {**payload("910c_h20_metro"), "architecture": "pd_cross_site"}
    found = read_plan(written(data, tmp_path), scenario("910c_h20_metro"))
    assert not found.context.scenario.engine.decode_prefix_sharing
    assert parts(found.deployment)[-1] == [(False, False)]


def test_two_offers_of_a_chip_and_two_tiers_as_fast(tmp_path: Path) -> None:
    """Where names and rates don't tell them apart, the file does."""
    tiers = "[{gbit_per_s: 10, usd_per_hour: 90}, {gbit_per_s: 10, usd_per_hour: 2.3}]"
    dear, cheap = ({"chip": "nvidia-h20-96g", "max": 128, "usd_per_hour": usd} for usd in (90, 1.5))
    overrides = (f"links[0].tiers={tiers}", f"sites[1].chips={json.dumps([dear, cheap])}")
    data = payload("agent_64k", *overrides)
    assert [role.get("offer") for role in data["roles"] if role["site"] == "west"] == [1]
    assert [link["tier"] for link in data["links"]] == [1]
    found, result = there_and_back(tmp_path, "agent_64k", *overrides), solved("agent_64k", *overrides)
    assert result.solved is not None
    assert parts(found.deployment) == parts(result.solved.deployment)


def test_more_chips_than_the_scenario_has(tmp_path: Path) -> None:
    """A plan that exists exists, whatever can be rented now."""
    data = payload("agent_64k")
    data["roles"][0]["instances"] = 500
    few = "sites[0].chips[0].max=8"
    assert read_plan(written(data, tmp_path), scenario("agent_64k", few)).deployment.pools[0].instances == 500


def changed(data: dict[str, Any], *keys: Any, value: Any = None) -> dict[str, Any]:
    """The data with another value at a path."""
    inner = data
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return data


def at(*keys: Any, value: Any = None) -> Callable[[dict[str, Any]], Any]:
    return lambda data: changed(data, *keys, value=value)


HUGE = 10**400
BAD: list[tuple[Callable[[dict[str, Any]], Any], str, str]] = [
    (lambda d: [], "schema", "says no schema"),
    (at("schema", value="pddplan.chips/1"), "schema", "has the schema 'pddplan.chips/1'"),
    (at("schema", value={"a": 1}), "schema", "says no schema"),
    (at("roles", value=[]), "roles", "has no plan"),
    (at("status", value="infeasible"), "status", "has no plan: its scenario was infeasible"),
    (at("architecture", value="castle"), "architecture", "no architecture 'castle'"),
    (at("architecture", value=["pdd"]), "architecture", "no architecture a list"),
    (at("architecture", value="pdd_filter"), "architecture", "has a filter"),
    (at("roles", value={"role": "prefill"}), "roles", "list of objects"),
    (at("roles", value=[{}] * 2000), "roles", "more than 1,000 entries"),
    (at("roles", 0, "role", value="cooking"), "roles[0].role", "no role 'cooking'"),
    (at("roles", 0, "role", value={}), "roles[0].role", "no role a mapping"),
    (at("roles", 0, "instances", value=-3), "roles[0].instances", "-3 is no whole number"),
    (at("roles", 0, "instances", value=True), "roles[0].instances", "whole number"),
    (at("roles", 0, "instances", value=HUGE), "roles[0].instances", "whole number"),
    (at("roles", 0, "instances", value=2.5), "roles[0].instances", "2.5 is no whole number"),
    (at("roles", 0, "parallelism", value=8), "roles[0].parallelism", "is no object"),
    (at("roles", 0, "parallelism", "tp", value=3), "roles[0].parallelism", "no instance of"),
    (at("roles", 0, "site", value="nowhere"), "roles[0].site", "no site 'nowhere'"),
    (at("roles", 0, "site", value=7), "roles[0].site", "7 is no text"),
    (at("roles", 0, "chip", value="nvidia-h100-sxm"), "roles[0].chip", "no chip 'nvidia-h100-sxm'"),
    (at("roles", 0, "offer", value=1), "roles[0].offer", "site north has 1 of"),
    (at("roles", 1, "site", value="west"), "roles[1].chip", "at site west"),
    (lambda d: changed(d, "roles", value=d["roles"] * 2), "roles", "several pools"),
    (lambda d: changed(d, "roles", value=d["roles"][1:]), "roles", "no pool of prefill"),
    (lambda d: changed(d, "roles", value=d["roles"][:1]), "roles", "no pool of main_decode"),
    (at("links", value=[]), "links", "no line from north to west"),
    (at("links", value=None), "links", "list of objects"),
    (lambda d: changed(d, "links", value=d["links"] * 2), "links", "several lines"),
    (at("links", 0, "from", value="moon"), "links[0]", "no link from 'moon'"),
    (lambda d: d["links"][0].update({"from": "west", "to": "north"}) or d, "links", "no line from north"),
    (at("links", 0, "lines", value=0), "links[0].lines", "whole number"),
    (at("links", 0, "gbit_per_s", value=77), "links[0].gbit_per_s", "no tier of"),
    (at("links", 0, "gbit_per_s", value=math.nan), "links[0].gbit_per_s", "nan is no number"),
    (at("links", 0, "gbit_per_s", value=HUGE), "links[0].gbit_per_s", "is no number"),
    (at("links", 0, "tier", value=9), "links[0].tier", "tier 9"),
    (at("routing", value=[]), "routing", "is no object"),
    (at("routing", "direct_share", value=-1), "routing.direct_share", "-1 is no number"),
    (at("routing", "threshold_s", value="soon"), "routing.threshold_s", "'soon' is no number"),
    (at("routing", "stay_s", value=math.inf), "routing.stay_s", "inf is no number"),
]
BAD_ROUTES: list[tuple[Callable[[dict[str, Any]], Any], str, str]] = [
    (lambda d: {k: v for k, v in d.items() if k != "routes"}, "roles", "several pools of a role, and no routes"),
    (at("routes", value=7), "routes", "list of objects"),
    (at("routes", 0, "prefill", value=99), "routes[0].prefill", "99 is none of the plan's"),
    (at("routes", 0, "prefill", value=1), "routes[0].prefill", "roles[1] is main_decode"),
    (at("routes", 0, "prefill", value=None), "routes[0]", "no pool of prefill"),
    (at("routes", 0, "share", value=0.0), "routes[0].share", "0 is no number"),
    (at("routes", 0, "share", value=1e-3), "routes", "don't make up all"),
    (at("routes", 0, "to", value=0.0), "routes[0].to", "ends where it begins"),
    (at("routes", 0, "to", value=math.nan), "routes[0].to", "nan is no number"),
    (at("routes", 1, "from", value=0.5), "routes", "don't make up all"),
    (lambda d: changed(d, "routes", value=d["routes"][:1]), "routes", "leave out a pool"),
    (lambda d: [r.pop("link", None) for r in d["routes"]] and d, "links", "no line from west to north"),
    (lambda d: [r.update(link=0) for r in d["routes"]] and d, "links", "has a line, and prefill and main"),
    (lambda d: d["routes"][0].update(aggregated=0) or d, "routes[0].aggregated", "roles[0] is prefill"),
]
CASES = [("agent_64k", *bad) for bad in BAD] + [("egress_priced", *bad) for bad in BAD_ROUTES]


@pytest.mark.parametrize(("name", "change", "key", "says"), CASES, ids=[f"{c[0]}-{c[2]}-{c[3]}" for c in CASES])
def test_a_bad_plan_is_one_clear_message(
    name: str, change: Callable[[dict[str, Any]], Any], key: str, says: str, tmp_path: Path
) -> None:
    path = written(change(payload(name)), tmp_path)
    with pytest.raises(InputError) as caught:
        read_plan(path, scenario(name))
    (problem,) = caught.value.problems
    assert says in problem.message
    assert (problem.file, problem.key) == (path, key) and problem.fix
    assert len(str(problem)) < 300 + len(path)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\x00\x01", "is not JSON"),
        (b"\xff\xfe{}", "is not text"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"schema": ' + b"9" * 10_000 + b"}", "a number too long"),
        (b'{"schema": 1e999}', "says no schema"),
        (b" " * (8 * 2**20 + 1), "is larger than 8 MiB"),
    ],
    ids=range(8),
)
def test_what_is_no_plan(raw: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        read_plan(str(path), scenario("agent_64k"))
    (problem,) = caught.value.problems
    assert says in problem.message and problem.file == str(path) and problem.fix


@pytest.mark.parametrize("place", ["missing.json", "."])
def test_no_file(place: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file|is a directory"):
        read_plan(str(tmp_path / place), scenario("agent_64k"))


def test_an_infeasible_answer_has_no_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its scenario was infeasible"):
        there_and_back(tmp_path, "infeasible")


def test_the_solved_plan_stays_out_of_comparisons() -> None:
    result = solved("chat_8k")
    assert replace(result, solved=None) == result
    assert "Context" not in repr(result)
    assert "solved" not in plan_payload(result)
