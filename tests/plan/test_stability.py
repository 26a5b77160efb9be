"""How much a plan survives: by hand where nothing feeds back, and formula against simulation."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from pddplan.plan.drills import with_share
from pddplan.plan.records import Solved
from pddplan.plan.simulated import lanes_of
from pddplan.plan.solve import solve
from pddplan.plan.stability import GAIN, WORDS, _bracketed, _line_loss, _Planned, gives_out, stability
from pddplan.serve.deployment import Deployment
from pddplan.serve.evaluate import evaluate
from pddplan.serve.records import Evaluation
from pddplan.spec.catalogue import examples_dir
from pddplan.spec.load import load_scenario
from tests.compiled import needs_numba

PINNED = ("workload.decode_prefix_hit_rate=0.9",)


@lru_cache(4)
def planned(*overrides: str) -> tuple[Solved, Evaluation]:
    result = solve(load_scenario(examples_dir() / "agent_64k.yaml", overrides=overrides))
    assert result.solved is not None and result.evaluation is not None
    return result.solved, result.evaluation


def roomy(times: int, *others: str) -> Deployment:
    """The pinned plan with so many times its main decode, and as many times the ``others``."""
    plan = planned(*PINNED)[0].deployment
    assert isinstance(plan, Deployment) and plan.line is not None
    for name in ("main", *others):
        pool = getattr(plan, name)
        more = (
            replace(pool, lines=times * pool.lines)
            if name == "line"
            else replace(pool, instances=times * pool.instances)
        )
        plan = replace(plan, **{name: more})
    return plan


# ---------------------------------------------------------------- by hand


def test_a_line_whose_load_nothing_feeds_gives_out_at_one() -> None:
    """Hits pinned at main decode: the bytes stay as they are, so 1 - rho of the line may be lost."""
    (solved, evaluation), plan = planned(*PINNED), roomy(10, "relay")
    context = solved.context
    assert evaluation.loop_gain == 0.0 and evaluation.line is not None
    room = 1.0 - evaluation.line.utilization
    for lost, expected in ((room - 1e-3, ""), (room + 1e-3, WORDS["line"])):
        left = with_share(plan.lines[0], 1.0 - lost)(plan)
        assert left is not None
        assert gives_out(context, left, context.rate, evaluation.routing) == expected


def test_prefill_gives_out_at_its_capacity() -> None:
    """With main decode and line ten times as large, the burst that is survived is 1/rho of prefill."""
    (solved, evaluation), plan = planned(*PINNED), roomy(10, "relay", "line")
    context = solved.context
    factor = 1.0 / evaluation.pools["prefill"].busy_share
    assert gives_out(context, plan, context.rate * factor * 0.999, evaluation.routing) == ""
    assert gives_out(context, plan, context.rate * factor * 1.001, evaluation.routing) == WORDS["prefill"]


@pytest.mark.parametrize(("edge", "near"), [(0.2, 0.2), (0.2, 0.5), (0.2, 0.03), (3.0, 1.2), (1.0, 1.5)])
def test_the_edge_lies_in_the_bracket(edge: float, near: float) -> None:
    """Wherever the search begins."""
    within = (0.0, 0.99) if edge < 1 else (1.0, 8.0)
    low, high = _bracketed(near, within, lambda value: value <= edge)
    assert low <= edge <= high and high - low < 0.2 * edge


def test_all_of_the_range_is_survived() -> None:
    assert _bracketed(0.9, (0.0, 0.99), lambda value: True) == (0.99, 0.99)


# ---------------------------------------------------------------- formula against simulation


@needs_numba
def test_formula_against_simulation() -> None:
    """agent_64k's plan, hits an outcome: the loop of misses and transfers ends it before the line is full."""
    solved, evaluation = planned()
    found = stability(solved.context, solved.deployment, evaluation.routing)
    line, burst = found.limits
    print(f"loop gain {found.loop_gain:.3f}", line, burst)
    assert evaluation.line is not None
    assert 0.0 < found.loop_gain < 1.0
    assert line.gives_out == GAIN and line.formula < 1.0 - evaluation.line.utilization
    assert line.survives - 0.03 <= line.formula <= line.breaks + 0.03
    assert burst.survives * 0.97 <= burst.formula <= burst.breaks * 1.03


@needs_numba
def test_without_feedback_the_simulation_agrees_closer() -> None:
    solved, evaluation = planned(*PINNED)
    context, plan = solved.context, roomy(3, "relay")
    lanes = lanes_of(context, plan, evaluation.routing)
    line = _line_loss(_Planned(context, plan, evaluation.routing, lanes, 1), 0, plan.lines[0], "line")
    print(line)
    assert line.gives_out in (WORDS["line"], WORDS["relay_decode"])  # which takes what the full line keeps waiting
    assert line.survives - 0.015 <= line.formula <= line.breaks + 0.015


def test_a_larger_line_survives_more() -> None:
    solved, evaluation = planned()
    plan, context = solved.deployment, solved.context
    wider = replace(plan, line=replace(plan.lines[0], lines=2 * plan.lines[0].lines))
    left = with_share(wider.lines[0], 0.6)(wider)  # 40 % lost, twice as much as the plan's line stands
    same = with_share(plan.lines[0], 0.6)(plan)
    assert left is not None and same is not None
    assert gives_out(context, left, context.rate, evaluation.routing) == ""
    assert gives_out(context, same, context.rate, evaluation.routing) != ""
    assert evaluate(context, wider).loop_gain < evaluation.loop_gain
