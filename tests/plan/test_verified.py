"""``solve --verify``: limits that the simulation of a plan breaks are tightened, and the scenario solved again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from pddplan.errors import InputError, Problem
from pddplan.plan import verified
from pddplan.plan.records import PlanResult
from pddplan.plan.solve import solve
from pddplan.plan.verified import ROUNDS, Verified, verify
from pddplan.report.plan_json import plan_payload
from pddplan.report.schemas import SCHEMAS
from pddplan.report.verified_report import render_verified, verification_payload
from pddplan.simulate.records import Interval, Simulated, Simulation
from pddplan.spec.load import load_scenario
from pddplan.spec.types import Scenario
from tests.compiled import needs_numba
from tests.simulated import simulation

AGENT = "examples/agent_64k.yaml"


def scenario(*overrides: str) -> Scenario:
    return load_scenario(AGENT, overrides=overrides)


@pytest.fixture(scope="module")
def solved() -> PlanResult:
    return solve(scenario())


def told(row_s: float) -> Simulation:
    """A simulation whose TTFT p90 is so long, the limit being 8 s and the formulas saying 7.91 s."""
    row = Simulated("ttft", 0.9, "all", 7.91, Interval(row_s, row_s - 0.1, row_s + 0.1), None, 8.0)
    return replace(simulation(), quantiles=(row,))


def run(monkeypatch: pytest.MonkeyPatch, result: PlanResult, runs: list[Simulation]) -> tuple[Verified, list[Scenario]]:
    """``verify`` with ``runs`` for simulations, and the scenarios that were solved again."""
    asked: list[Scenario] = []
    given = iter(runs)

    def again(tight: Scenario) -> PlanResult:
        asked.append(tight)
        return result

    monkeypatch.setattr(verified, "simulate_deployment", lambda *a, **k: next(given))
    return verify(scenario(), result, again=again), asked


def limit_s(tight: Scenario) -> float:
    return next(s.limit_s for s in tight.slo if (s.metric, s.quantile) == ("ttft", 0.9))


def test_a_plan_that_holds_is_left_alone(monkeypatch: pytest.MonkeyPatch, solved: PlanResult) -> None:
    found, asked = run(monkeypatch, solved, [told(7.8)])
    assert found.holds and not found.tightened and not asked


def test_a_broken_limit_is_lowered_by_what_the_formulas_told_too_little(
    monkeypatch: pytest.MonkeyPatch, solved: PlanResult
) -> None:
    """9.0 s against 7.91 s: a plan of 8 x 7.91/9.0 s by the formulas would take 8 s; and half a percent less."""
    found, asked = run(monkeypatch, solved, [told(9.0), told(7.9)])
    (one,) = found.tightened
    assert found.holds and one.row == "ttft p90" and (one.limit_s, one.simulated_s) == (8.0, 9.0)
    assert one.tightened_s == pytest.approx(7.91 * 8.0 / 9.0 * 0.995)
    assert [limit_s(tight) for tight in asked] == [one.tightened_s]
    assert {s.limit_s for s in asked[0].slo if s.metric == "tpot"} == {0.05}  # the others stay


def test_after_four_rounds_it_says_that_it_does_not_hold(monkeypatch: pytest.MonkeyPatch, solved: PlanResult) -> None:
    found, asked = run(monkeypatch, solved, [told(9.0)] * (ROUNDS + 1))
    assert not found.holds and len(asked) == ROUNDS == len(found.tightened)
    lower = [limit_s(tight) for tight in asked]
    assert lower == sorted(lower, reverse=True) and len(set(lower)) == ROUNDS
    text = render_verified(found, 80)
    assert "BREAKS" in text and text.count("solved again with") == ROUNDS


def test_a_plan_that_cannot_be_simulated_keeps_its_answer(monkeypatch: pytest.MonkeyPatch, solved: PlanResult) -> None:
    def refuse(*a: object, **k: object) -> Simulation:
        raise InputError(Problem("no step time.", fix="Give one."))

    monkeypatch.setattr(verified, "simulate_deployment", refuse)
    found = verify(scenario(), solved)
    assert found.result is solved and not found.holds
    assert "no step time. Give one." in render_verified(found, 80)
    assert verification_payload(found)["why_not_simulated"] == "no step time. Give one."


def test_without_a_plan_there_is_nothing_to_simulate() -> None:
    impossible = scenario("slo.ttft_s.p50=0.001")
    found = verify(impossible, solve(impossible))
    assert found.simulation is None and not found.holds and "no plan" in found.why


def test_its_json_fits_the_schema(monkeypatch: pytest.MonkeyPatch, solved: PlanResult) -> None:
    found, _ = run(monkeypatch, solved, [told(9.0), told(7.9)])
    payload = plan_payload(found.result) | {"verification": verification_payload(found)}
    Draft202012Validator(SCHEMAS["plan"]).validate(payload)


@needs_numba
def test_a_tail_that_the_formulas_flatter_is_bought_for() -> None:
    """TPOT p99 is 2 % longer in the simulation: at a limit between the two the plan of the formulas breaks, and what is
    bought instead holds."""
    tight = scenario("slo.tpot_ms.p99=49.8")
    plain = solve(tight)
    found = verify(tight, plain)
    print(found.tightened)
    assert found.holds and found.simulation is not None and found.tightened
    assert plain.cost is not None and found.result.cost is not None
    assert found.result.cost.usd_per_hour >= plain.cost.usd_per_hour
    assert all(one.tightened_s < one.limit_s < one.simulated_s for one in found.tightened)
    ttft = next(q for q in found.simulation.quantiles if (q.metric, q.quantile, q.stage) == ("ttft", 0.99, "all"))
    assert ttft.simulated.half_width <= 0.05
