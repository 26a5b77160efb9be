"""A plan for people: the answer first, then the plan, the SLO, the cost and why; 80 to 100 columns."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import pddplan
from pddplan.plan.records import PlanResult
from pddplan.plan.state import GAP as PROVEN
from pddplan.report import plan_sections as sections
from pddplan.report.excuses import excuse_text, worded
from pddplan.report.figures import cash, exact, figure, percent, price
from pddplan.report.layout import item, joined, paragraph
from pddplan.report.marks import LEGEND, explain_lines, summary_lines, times_are_weak, weak_names
from pddplan.report.plan_view import View, short_names
from pddplan.report.prices import price_notes
from pddplan.spec.types import Scenario


def render_plan(
    result: PlanResult, scenario: Scenario, *, width: int, explain: bool = False, today: date | None = None
) -> str:
    """The whole answer; first line the answer itself, last line version, catalogue date and scenario hash."""
    assumed = result.assumptions
    view = View(result, scenario, width, short_names(scenario), weak_names(assumed), times_are_weak(assumed), explain)
    lines = headline(view)
    if said := second_line(result):
        lines += paragraph(said, width)
    if result.status != "feasible":
        title = "What had to give" if result.status == "infeasible" else "What the closest plan so far breaks"
        lines += _block(title, sections.excuse_lines(view))
        lines += _block("Nearest fix", sections.fix_lines(view))
    drawn: list[tuple[str, Callable[[View], list[str]]]] = [
        ("Plan", sections.role_lines),
        ("Line", sections.link_lines),
        ("Requests", sections.routing_lines),
        ("SLO", sections.slo_lines),
        ("Cost", sections.cost_lines),
        ("What binds", sections.binding_lines),
        ("Headroom", sections.headroom_lines),
        ("Other plans", sections.alternative_lines),
    ]
    for title, draw in drawn:
        if title != "What binds" or result.status == "feasible":
            lines += _block(title, draw(view))
    lines += _notes(view, explain=explain, today=today)
    lines += ["", *footer(result, width)]
    return "\n".join(lines)


def _block(title: str, body: list[str]) -> list[str]:
    return ["", title, *body] if body else []


def _notes(view: View, *, explain: bool, today: date | None) -> list[str]:
    """Assumptions, the legend of the mark, ages of prices."""
    result, width = view.result, view.width
    lines: list[str] = []
    if explain:
        lines += _block("Assumptions", explain_lines(result.assumptions, width))
    elif view.weak:
        lines += _block("Assumed", [*summary_lines(result.assumptions, width), *paragraph(LEGEND, width, indent=2)])
    ages = [line for text in price_notes(view.scenario, today) for line in item(text, width)]
    return lines + _block("Prices", ages)


def second_line(result: PlanResult) -> str:
    """The recommendation in plain words. Without a plan: the fix that is nearest, or what is known so far."""
    if _nothing_pays(result):
        return worded(result.recommendation)
    if result.status == "infeasible":
        if result.fixes:
            usd = result.fixes[0].usd_per_hour
            then = f", then {price(usd, result.cny_per_usd, '/h')}" if usd is not None else ""
            return f"Nearest fix: {worded(result.fixes[0].what.rstrip('.'), result.excuses)}{then}."
        # Changes are tried for the cheapest plan only.
        tried = "No single change that was tried (a looser SLO, more chips, a faster line) is enough."
        return tried if result.objective == "cost" else ""
    if result.status == "unknown" and result.cost is None:
        bound = f"; none costs less than {price(result.bound, result.cny_per_usd, '/h')}" if result.bound else ""
        return f"The search was stopped before it met a plan that holds, or proved that there is none{bound}."
    return worded(result.recommendation, result.excuses)


def headline(view: View) -> list[str]:
    """``FEASIBLE  pdd  $163.8/h  $0.068 per M tokens  32 h800 + 64 h20  100 Gbit/s``."""
    result = view.result
    if _nothing_pays(result):
        by_now = "no plan earns its cost" if result.status == "infeasible" else "no plan met so far earns its cost"
        against = f"{cash(result.excuses[0].value)}/h against a revenue of {cash(result.excuses[0].limit)}/h"
        return paragraph(f"{result.status.upper()}  {by_now}: at best {against}", view.width, hanging=2)
    if result.status == "infeasible":
        first = result.excuses[0] if result.excuses else None
        why = f"no plan holds: {excuse_text(first)}" if first else "no plan holds"
        return paragraph(f"INFEASIBLE  {why}", view.width, hanging=2)
    parts = [result.status.upper(), result.architecture or ""]
    if result.status == "unknown" and result.cost is None:
        return joined([*parts, "no plan found within the time limit"], view.width)
    if result.objective == "profit":
        parts += _profit_parts(result)
    else:
        parts += [f"{figure(result.value)} {result.unit}"] if result.objective == "goodput" and result.value else []
        parts += _money_parts(view)
    parts += [sections.chip_counts(view, result.roles), line_text(result)]
    if result.status == "unknown":
        parts.append(f"not proven: gap {percent(result.gap)}")
    elif result.gap is not None and result.gap > PROVEN:
        parts.append(f"proven within {percent(result.gap)}")
    return joined(parts, view.width)


def _nothing_pays(result: PlanResult) -> bool:
    """Plans hold, but serving nothing leaves more than any of them."""
    return result.objective == "profit" and result.cost is None and result.value is not None


def _profit_parts(result: PlanResult) -> list[str]:
    """``profit $39.3/h  serves 7.85 of 10 requests/s  cost $218.1/h``."""
    value, rate = result.value or 0.0, result.cny_per_usd
    yuan = f" ({cash(value * rate, '¥')}/h)" if rate else ""
    served = f"serves {figure(result.goodput_rps)} of {exact(result.demand_rps or 0.0)} requests/s"
    cost = [f"cost {price(result.cost.usd_per_hour, rate, '/h')}"] if result.cost else []
    return [f"profit {cash(value)}/h{yuan}", served, *cost]


def _money_parts(view: View) -> list[str]:
    cost = view.result.cost
    if cost is None:
        return []
    rate = view.result.cny_per_usd
    return [price(cost.usd_per_hour, rate, "/h"), f"{price(cost.blended_usd_per_mtok, rate, show=figure)} per M tokens"]


def line_text(result: PlanResult) -> str:
    total = sum(link.gbit_per_s for link in result.links)
    return f"{figure(total)} Gbit/s" if total else ""


def footer(result: PlanResult, width: int) -> list[str]:
    digest = result.scenario_sha256[:12] or "unknown"
    parts = [
        f"pddplan {pddplan.__version__}",
        f"catalogue {result.catalogue_date or 'unknown'}",
        f"scenario {digest}",
        f"seed {result.seed}",
    ]
    return joined(parts, width, gap=" · ")
