"""The plan as a person reads it: golden files at 80 and 100 columns, and what must be said."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pddplan
from pddplan.plan.records import Fix, PlanResult
from pddplan.report.layout import joined, table
from pddplan.report.plan_text import render_plan
from tests.report import plans
from tests.report.golden import assert_golden

TODAY = date(2026, 11, 30)


def shown(result: PlanResult, width: int = 100, *, explain: bool = False) -> str:
    return render_plan(result, plans.scenario(), width=width, explain=explain, today=TODAY)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", ["feasible", "infeasible", "unknown"])
def test_golden(name: str, width: int) -> None:
    text = shown(getattr(plans, name)(), width).replace(f"pddplan {pddplan.__version__}", "pddplan VERSION")
    assert_golden(f"plan_{name}_{width}.txt", text + "\n")


def test_golden_explained_in_two_currencies() -> None:
    text = shown(replace(plans.feasible(), cny_per_usd=7.2), explain=True)
    assert_golden("plan_explained_100.txt", text.replace(f"pddplan {pddplan.__version__}", "pddplan VERSION") + "\n")


def test_first_line_is_the_answer() -> None:
    first, second = shown(plans.feasible()).splitlines()[:2]
    assert first == "FEASIBLE  pdd  $163.8/h  $0.0684 per M tokens  32 h800 + 64 h20  100 Gbit/s"
    assert second == plans.feasible().recommendation


def test_last_line_names_version_catalogue_and_scenario() -> None:
    last = shown(plans.feasible()).splitlines()[-1]
    assert last == f"pddplan {pddplan.__version__} · catalogue 2026-11-12 · scenario {plans.SHA[:12]} · seed 0"


def test_infeasible_says_what_by_how_much_and_the_fix() -> None:
    text = shown(plans.infeasible(), 80)
    assert text.startswith("INFEASIBLE  ")
    assert "32.8 Gbit/s  9.00 Gbit/s   264 %" in text
    assert "--set 'links[0].tiers=[{gbit_per_s: 100, usd_per_hour: 23}]'" in text
    assert "then $163.8/h" in text


def test_a_missed_limit_is_said() -> None:
    evaluation = plans.evaluation()
    late = replace(evaluation, slo=(replace(evaluation.slo[1], value_s=25.0),))
    text = shown(replace(plans.feasible(), evaluation=late))
    row = next(line for line in text.splitlines() if line.startswith("  TTFT p99"))
    assert "-25 %" in row and row.endswith("over the limit")


def test_numbers_from_defaults_are_marked_and_named() -> None:
    text = shown(plans.feasible())
    assert "32.8~ Gbit/s" in text  # rests on the default goodput of the line
    assert "86.1 %~ at main decode" in text  # on the default sessions
    for name in ("links[0].goodput 0.9", "workload.sessions.turns 30", "workload.prefix_cache affine"):
        assert name in text
    given_all = replace(plans.feasible(), assumptions=())
    assert "~" not in shown(given_all)


def test_explain_lists_every_assumption_with_its_source() -> None:
    text = " ".join(shown(plans.feasible(), explain=True).split())
    for assumption in plans.ASSUMPTIONS:
        assert assumption.name in text
        assert assumption.note in text
    assert text.index("Estimates") < text.index("Defaults") < text.index("From the catalogue") < text.index("Given")


def test_only_old_catalogue_prices_are_said() -> None:
    assert "price of nvidia-h20-96g is 5 months old (2026-06)" in shown(plans.feasible())
    assert "price of nvidia-h800-sxm" not in shown(plans.feasible())  # the scenario's own
    fresh = render_plan(plans.feasible(), plans.scenario(), width=80, today=date(2026, 8, 1))
    assert "months old" not in fresh


def test_both_currencies() -> None:
    text = shown(replace(plans.feasible(), cny_per_usd=7.2))
    assert "$163.8/h (¥1,179/h)" in text
    assert re.search(r"total +163\.8 +1,179", text)


def test_goodput_leads_where_it_is_the_objective() -> None:
    first = shown(replace(plans.feasible(), objective="goodput", value=11.57, unit="requests/s")).splitlines()[0]
    assert first.startswith("FEASIBLE  pdd  11.6 requests/s  $163.8/h")


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(80, 100),
    site=st.text("abcdefgh-", min_size=1, max_size=30),
    chip=st.text("abcdefgh-0123", min_size=1, max_size=30),
    instances=st.integers(1, 99_999),
    usd=st.floats(0.01, 1e6),
    words=st.lists(st.text("abcdefghijkl", min_size=1, max_size=70), max_size=30),
)
def test_never_wider_than_asked(width: int, site: str, chip: str, instances: int, usd: float, words: list[str]) -> None:
    base = plans.feasible()
    role = replace(base.roles[2], site=site, chip=chip, instances=instances, usd_per_hour=usd, tp=16, pp=2, dp=128)
    result = replace(base, roles=(*base.roles[:2], role), recommendation=" ".join(words))
    assert max(len(line) for line in shown(result, width).splitlines()) <= width


def test_a_flag_to_copy_is_never_broken() -> None:
    fix = Fix("Raise the limit.", ("slo.ttft_s={p50: 30, p90: 80, p99: 200}" + " " * 3 + "# " + "x" * 90,), None)
    text = shown(replace(plans.infeasible(), fixes=(fix,)), 80)
    assert f"--set '{fix.overrides[0]}'" in text


def test_joined_breaks_between_parts_only() -> None:
    assert joined(["aaaa", "bbbb", "cccc"], 10) == ["aaaa  bbbb", "  cccc"]


def test_table_wraps_its_flexible_column() -> None:
    lines = table(["a", "b"], [["1", "one two three four five"]], 16, right=(0,))
    assert max(map(len, lines)) <= 16
    assert "".join(" ".join(lines).split()) == "ab1onetwothreefourfive"
