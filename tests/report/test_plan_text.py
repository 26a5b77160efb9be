"""The plan as a person reads it: golden files at 80 and 100 columns, and what must be said."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pddplan
from pddplan.errors import Excuse
from pddplan.plan.records import Alternative, Binding, Fix, PlanResult, Revenue, RunnerUps
from pddplan.report.layout import joined, table
from pddplan.report.plan_text import render_plan
from pddplan.serve.records import SloValue
from pddplan.spec.types import Assumption, Measured
from pddplan.spec.workload import Traffic
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


def with_others(*proven: bool, asked: int, complete: bool = True) -> PlanResult:
    """The plan with runner-ups that were asked for."""
    best = plans.feasible()
    words = "main decode dp8-ep8 instead of dp16-ep16, line 2 × 10 instead of 1 × 100 Gbit/s"
    others = tuple(
        Alternative(165.0 + i, "pdd_filter", words, known, best.roles, best.links) for i, known in enumerate(proven)
    )
    return replace(best, alternatives=others, runner_ups=RunnerUps(asked, 0.05, complete))


def block(text: str, title: str) -> str:
    """A block of the text, as one line."""
    _, _, rest = text.partition(f"\n{title}\n")
    return " ".join(rest.split("\n\n")[0].split())


@pytest.mark.parametrize("width", [80, 100])
def test_runner_ups_with_cost_chips_and_difference(width: int) -> None:
    text = shown(with_others(True, False, asked=2), width)
    assert max(len(line) for line in text.splitlines()) <= width
    said = block(text, "Other plans")
    assert said.startswith(
        "- $165.0/h (+0.7 %) pdd_filter 32 h800 + 64 h20: main decode dp8-ep8 instead of dp16-ep16, "
    )
    assert "- $166.0/h (+1.3 %)" in said and said.count("Only found: its kind may have a cheaper one.") == 1
    assert said.endswith("within 5 % of the cost; no other kind has a cheaper plan than these.")


def test_fewer_runner_ups_than_asked_for() -> None:
    assert block(shown(with_others(True, asked=4)), "Other plans").endswith("No other kind is within 5 % of the cost.")
    assert block(shown(with_others(asked=4)), "Other plans") == "No plan of another kind is within 5 % of the cost."
    late = block(shown(with_others(False, asked=4, complete=False)), "Other plans")
    assert late.endswith("The time limit came first: there may be others within 5 % of the cost.")
    assert "Other plans" not in shown(with_others(asked=0))


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
    assert "line capacity, Gbit/s        32.8   9.00   264 %  north to west" in text
    assert "--set 'links[0].tiers=[{gbit_per_s: 100, usd_per_hour: 23}]'" in text
    assert "then $163.8/h" in text


def test_infeasible_leads_with_the_nearest_fix() -> None:
    second = shown(plans.infeasible()).splitlines()[1]
    assert second == "Nearest fix: Offer the 100 Gbit/s tier, then $163.8/h."
    without = shown(replace(plans.infeasible(), fixes=())).splitlines()[1]
    assert without.startswith("No single change that was tried")


def test_excuses_are_said_in_their_own_units() -> None:
    excuses = (
        Excuse("line_utilization", 28.2, 0.97, "", "line"),
        Excuse("ttft_p90", 0.5, 0.05, "s", "prefill_queue"),
        Excuse("main_decode_slots", 0.87, 0.01, "tpot", "main_decode"),
        Excuse("memory", 17.2, -1.78, "GB per chip", "m on x tp1"),
        Excuse("prefill_kv_memory", 3.2e12, 1.6e12, "bytes", "prefill"),
    )
    text = shown(replace(plans.infeasible(), excuses=excuses))
    assert text.splitlines()[0] == "INFEASIBLE  no plan holds: line utilization 2,820 %, limit 97 %"
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "line utilization 2,820 % 97 % 29.1 times" in rows
    assert "TTFT p90 500 ms 50 ms 10.0 times prefill queue" in rows
    assert "main decode slots 87 % 1 % 87.0 times" in rows
    assert "memory, GB per chip 17.2 0 – m on x tp1" in rows
    assert "prefill KV memory, GB 3,200 1,600 100 %" in rows


def test_no_plan_in_time_says_what_is_known() -> None:
    cut = replace(plans.infeasible(), status="unknown", bound=151.0, fixes=())
    text = shown(cut)
    assert text.startswith("UNKNOWN  no plan found within the time limit\nThe search was stopped")
    assert "none costs less than $151.0/h" in " ".join(text.split()) and "What had to give" not in text


def test_levels_without_a_limit_take_one_line() -> None:
    evaluation = plans.evaluation()
    free = tuple(SloValue("e2e", q, v, None, "main_decode") for q, v in ((0.5, 49.64), (0.9, 55.72), (0.99, 61.5)))
    same = tuple(SloValue("pause", q, 0.4461, None, "main_decode") for q in (0.5, 0.99))
    result = replace(plans.feasible(), evaluation=replace(evaluation, slo=(*evaluation.slo[:1], *free, *same)))
    assert "  Without a limit: E2E p50/p90/p99 49.6/55.7/61.5 s~, pause p50/p99 446 ms~." in shown(result).splitlines()
    assert "E2E p99" in shown(result, explain=True)


def test_several_workloads_have_rows_of_their_own() -> None:
    base, evaluation = plans.scenario(), plans.evaluation()
    work = base.traffic.workloads[0]
    traffic = Traffic((replace(work, name="agents"), replace(work, name="chat")))
    slo = tuple(replace(v, workload=name) for name in ("agents", "chat") for v in evaluation.slo)
    result = replace(plans.feasible(), evaluation=replace(evaluation, slo=slo))
    text = render_plan(result, replace(base, traffic=traffic), width=100, today=TODAY)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "workload level value limit margin stage" in rows
    assert "agents TTFT p99 12.0 s~ 20 s 39.8 % line" in rows and "chat TTFT p99 12.0 s~ 20 s 39.8 % line" in rows
    assert "Without a limit of chat: pause p99 412 ms~." in rows
    assert "(-43.1 % on 20)" in text  # of all workloads


def test_what_had_to_give_names_the_workload() -> None:
    late = replace(plans.infeasible(), excuses=(Excuse("ttft_p99", 3.5, 3.0, "s", "prefill_queue", "my_chat"),))
    rows = [" ".join(line.split()) for line in shown(late).splitlines()]
    assert any(row.startswith("TTFT p99 of my_chat 3.50 s 3 s") for row in rows)


def test_measured_services_claim_no_parallelism_and_no_unknown_batch() -> None:
    base = plans.scenario()
    rates = {"prefill": Measured(8, 73_700.0), "main_decode": Measured(8, 14_800.0)}
    sites = tuple(replace(s, offers=tuple(replace(o, measured=rates) for o in s.offers)) for s in base.sites)
    plan = replace(plans.feasible(), roles=tuple(replace(r, batch=0) for r in plans.feasible().roles))
    text = render_plan(plan, replace(base, sites=sites), width=100, today=TODAY)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "prefill north nvidia-h800-sxm 3 × 8 = 24 measured – 71.3 %~ 48.0" in rows
    assert "relay decode north nvidia-h800-sxm 1 × 8 = 8 tp4 dp2 ep8 – 40.2 %~ 16.0" in rows  # nobody measured it


def test_without_an_slo_nothing_is_said_of_limits() -> None:
    text = render_plan(plans.feasible(), replace(plans.scenario(), slo=()), width=100, today=TODAY)
    assert "This plan is full at 11.4~ requests/s" in text and "limits." not in text


def test_a_loss_has_its_sign_before_the_currency() -> None:
    loss = replace(plans.feasible(), revenue=Revenue(3.65, 1.0, 1.0, 1.65, -8.21), cny_per_usd=7.2)
    assert "Revenue $3.65/h, margin -$8.21/h (¥26.3/h, -¥59.1/h)." in shown(loss)


def test_the_short_list_of_assumptions_has_what_moves_the_answer_and_counts_the_rest() -> None:
    engine = tuple(Assumption(f"engine.number_{i}", 1.0, "estimate") for i in range(13))
    tail = Assumption("uncached_tokens.p50_p90_p99", "1 / 2 / 3", "estimate")
    text = shown(replace(plans.feasible(), assumptions=(*engine, *plans.ASSUMPTIONS, tail)))
    block = " ".join(text[text.index("Assumed") :].split())
    assert block.startswith("Assumed sites[0].chips[0].efficiency class-gpu; uncached_tokens.p50_p90_p99 1 / 2 / 3;")
    assert "and 13 more." in block and "engine.number" not in block


def test_names_of_constraints_in_sentences_are_words() -> None:
    bound = Binding("relay decode: without it ttft_p90 would be 10.5 s", 0.043, "A looser ttft_p90.")
    text = shown(replace(plans.feasible(), binding=(bound,), recommendation="ttft_p90 is at best 10 s."))
    assert "ttft_p90" not in text and "A looser TTFT p90." in text and "TTFT p90 is at best 10 s." in text


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
    refused = replace(plans.infeasible(), cny_per_usd=7.2)
    assert shown(refused).count("then $163.8/h (¥1,179/h)") == 2  # leads, and stands beside its flag


def test_goodput_leads_where_it_is_the_objective() -> None:
    first = shown(replace(plans.feasible(), objective="goodput", value=11.57, unit="requests/s")).splitlines()[0]
    assert first.startswith("FEASIBLE  pdd  11.6 requests/s  $163.8/h")


def test_profit_leads_with_what_is_served() -> None:
    sold = replace(plans.feasible(), objective="profit", value=39.31, goodput_rps=7.852, demand_rps=10.0)
    assert shown(sold).startswith("FEASIBLE  pdd  profit $39.3/h  serves 7.85 of 10 requests/s  cost $163.8/h")
    assert "profit -$2.00/h  serves" in shown(replace(sold, value=-2.0))
    assert "profit $39.3/h (¥283.0/h)  serves" in shown(replace(sold, cny_per_usd=7.2))


def test_where_nothing_pays_cost_stands_against_revenue() -> None:
    excuse = Excuse("cost_against_revenue", 112.0, 28.8, "USD/h")
    fix = Fix("output tokens at $3.86 per million (now 0.1)", ("prices={output_usd_per_mtok: 3.86}",), 112.0)
    refused = replace(plans.infeasible(), objective="profit", value=0.0, bound=0.05, gap=1e-4, goodput_rps=0.0)
    refused = replace(refused, excuses=(excuse,), fixes=(fix,), recommendation="At these prices no plan pays.")
    lines = shown(refused).splitlines()
    assert lines[0] == "INFEASIBLE  no plan earns its cost: at best $112.0/h against a revenue of $28.8/h"
    assert lines[1] == "At these prices no plan pays."
    assert "    --set 'prices={output_usd_per_mtok: 3.86}'" in lines
    assert shown(replace(refused, status="unknown")).startswith("UNKNOWN  no plan met so far earns its cost")


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
