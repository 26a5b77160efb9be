"""A comparison for people: what to do, then the architectures beside each other; 80 to 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from pddplan.plan.compare import Compared, Comparison
from pddplan.plan.records import Architecture, PlanResult
from pddplan.plan.variants import ONE_SITE
from pddplan.report.excuses import excuse_text
from pddplan.report.figures import UNKNOWN, figure, money, percent, price, seconds
from pddplan.report.layout import item, paragraph, table
from pddplan.report.plan_text import footer, line_text
from pddplan.report.plan_view import short_names
from pddplan.spec.types import Metric

NAMES: dict[Architecture, str] = {
    "aggregated": "one pool",
    "pd_one_site": "prefill | decode",
    "pd_cross_site": "cross-site",
    "pd_cross_site_drc": "+ decode cache",
    "pdd": "+ relay (PDD)",
    "pdd_filter": "+ filter",
}
MEANING = (
    "one pool: prefill and decode share instances, in one site. prefill | decode: apart, in one site. cross-site:"
    " apart, over a line, the whole KV sent. + decode cache: only what main decode doesn't hold is sent. + relay:"
    " tokens stream from a relay meanwhile. + filter: what ends there first isn't sent."
)


def render_comparison(made: Comparison, *, width: int) -> str:
    """The whole answer; its first line says what to build, or that nothing holds."""
    lines = paragraph(headline(made), width, hanging=2)
    if said := advice(made):
        lines += paragraph(said, width)
    names = short_names(made.scenario)
    lines += ["", "Cost", *_costs(made, names, width)]
    lines += ["", "Latency", *_latencies(made.rows, width)]
    if notes := _notes(made):
        lines += ["", "Notes", *(line for text in notes for line in item(text, width))]
    lines += ["", *paragraph(MEANING, width)]
    lines += ["", *footer(made.rows[0].result, width)]
    return "\n".join(lines)


def headline(made: Comparison) -> str:
    best = made.recommended
    if best is None:
        return "NOTHING HOLDS  no architecture serves this demand with these chips and lines"
    verb = "DON'T SPLIT" if best.architecture in ONE_SITE else "SPLIT"
    return f"{verb}  {best.architecture} in {best.where}  {price(best.usd_per_hour, made.scenario.cny_per_usd, '/h')}"


def advice(made: Comparison) -> str:
    """By how much the other side is dearer, and the price at which it would win."""
    split, whole = made.split, made.whole
    if not made.scenario.links:
        return ""
    if split is None or whole is None:
        side = "over a line" if split is None else "in one site"
        return f"Nothing {side} holds, so there is no choice." if made.recommended is not None else ""
    cheap, dear = sorted((split, whole), key=lambda row: row.usd_per_hour)
    more = percent(dear.usd_per_hour / cheap.usd_per_hour - 1)
    other = "one site" if dear is whole else "the cheapest split"
    rate = made.scenario.cny_per_usd
    asked = price(dear.usd_per_hour, rate, "/h")
    text = f"{other[0].upper()}{other[1:]} ({dear.architecture}) costs {more} more, {asked}"
    turn = made.turns_at
    if turn is None:
        return f"{text}; no price of the line or of one chip would turn that."
    what = "the line" if turn.what == "line" else f"{turn.what}"
    per = "/h" if turn.what == "line" else " a chip and hour"
    wins = "splitting would pay" if turn.then == "split" else "one site would be cheaper"
    now, then = (price(value, rate, show=figure) for value in (turn.now, turn.value))
    return f"{text}; {wins} if {what} cost {then}{per}, now {now}."


def _costs(made: Comparison, names: dict[str, str], width: int) -> list[str]:
    rate = made.scenario.cny_per_usd
    header = ["architecture", "chips", "line", "USD/h", *(["CNY/h"] if rate else []), "$/M tok", "BCR"]
    body = []
    for row in made.rows:
        result = row.result
        if result.cost is None:
            known = "not decided in time" if result.status == "unknown" else "doesn't hold"
            body.append([_name(row), known, *[""] * (len(header) - 2)])
            continue
        counts: dict[str, int] = {}
        for role in result.roles:
            counts[role.chip] = counts.get(role.chip, 0) + role.chips
        chips = " + ".join(f"{count:,} {names.get(chip, chip)}" for chip, count in counts.items())
        per_mtok = figure(result.cost.blended_usd_per_mtok)
        cost = [money(row.usd_per_hour), *([money(row.usd_per_hour * rate)] if rate else [])]
        body.append([_name(row), chips, line_text(result), *cost, per_mtok, figure(result.bcr)])
    return table(header, body, width, right=range(3, len(header)), flexible=(1, 0))


def _latencies(rows: Sequence[Compared], width: int) -> list[str]:
    header = ["architecture", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "req/s"]
    body = []
    for row in rows:
        if row.result.cost is not None:
            first = [_quantile(row.result, "ttft", q) for q in (0.5, 0.9, 0.99)]
            each = [_quantile(row.result, "tpot", q) for q in (0.5, 0.9)]
            body.append([_name(row), *first, *each, figure(row.result.goodput_rps)])
    return table(header, body, width, right=range(1, 7), flexible=0) if body else ["  none"]


def _quantile(result: PlanResult, metric: Metric, quantile: float) -> str:
    values = result.evaluation.slo if result.evaluation is not None else ()
    found = [v.value_s for v in values if v.metric == metric and abs(v.quantile - quantile) < 1e-9]
    return seconds(max(found)) if found else UNKNOWN


def _name(row: Compared) -> str:
    return f"{NAMES[row.architecture]}{'*' if row.hypothetical else ''}"


def _idle(row: Compared) -> float:
    items = row.result.cost.other_items if row.result.cost is not None else {}
    return items.get("node_rounding", 0.0) + items.get("owned_idle", 0.0)


def _notes(made: Comparison) -> list[str]:
    notes = ["Roles and pinned counts are lifted; each architecture has its own chunk budget and parallelism."]
    for row in made.rows:
        name = NAMES[row.architecture]
        if row.needs:
            what = ", ".join(f"needs {n.chips:,} {n.chip}, you have {n.offered:,}" for n in row.needs)
            notes.append(f"{name}: {what}.")
        elif row.result.status == "unknown":
            known = "no plan was found" if row.result.cost is None else "the plan isn't proven the cheapest"
            notes.append(f"{name}: stopped by the time limit, {known}.")
        elif row.result.cost is None:
            why = "; ".join(excuse_text(e) for e in row.result.excuses[:2]) or "no plan holds"
            notes.append(f"{name} in {row.where}: {why}.")
        if row.result.cost is not None and row.result.architecture != row.architecture:
            notes.append(f"{name}: nothing it adds pays; the plan is that of {row.result.architecture}.")
        if (idle := _idle(row)) > 0.01 * row.usd_per_hour:
            notes.append(f"{name}: ${money(idle)}/h of it is for chips that idle, in whole nodes or owned.")
    if any(row.hypothetical and row.architecture in ONE_SITE for row in made.rows):
        notes.append("*: hypothetical, the chips of all sites in one place.")
    if any(row.hypothetical and row.architecture not in ONE_SITE for row in made.rows):
        notes.append("+ filter*: hypothetical, with a perfect forecast of the output; the scenario has none.")
    if made.scenario.traffic.several:
        notes.append("Latency is that of the slowest workload at each quantile; solve has those of each.")
    if not made.scenario.links:
        notes.append("No line in the scenario: nothing can be split over sites.")
    return notes
