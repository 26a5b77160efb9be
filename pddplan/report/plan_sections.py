"""The parts of a plan's text, one function each: lines, empty where there is nothing to say."""

from __future__ import annotations

import math
import shlex

from pddplan.plan.records import Alternative, CostSplit, RolePlan, RunnerUps
from pddplan.report.excuses import amounts, constraint_names_in, excuse_name, excuse_subject, off_by
from pddplan.report.figures import (
    UNKNOWN,
    cash,
    constraint_name,
    exact,
    figure,
    limit_seconds,
    money,
    percent,
    price,
    quantile_name,
    seconds,
    signed_percent,
    words,
)
from pddplan.report.layout import item, paragraph, table
from pddplan.report.marks import is_weak, mark, offer_key
from pddplan.report.plan_view import View
from pddplan.serve.records import SloValue
from pddplan.spec.types import Scenario

STAGE_NAMES = {"rdma": "KV to the relay", "hand_over": "hand-over"}
OTHER_NAMES = {"node_rounding": "idle chips of whole nodes", "owned_idle": "idle chips that are owned"}
TELLING_LOOP_GAIN = 0.1  # below it a lost hit costs next to nothing more


def role_lines(view: View) -> list[str]:
    header = ["role", "site", "chip", "inst × chips", "parallel", "batch", "busy", "USD/h"]
    rows = [_role_row(view, role, role.chip) for role in view.result.roles]
    if not rows:
        return []
    if _too_wide([header, *rows], view.width):
        rows = [_role_row(view, role, view.names.get(role.chip, role.chip)) for role in view.result.roles]
    return table(header, rows, view.width, right=(3, 5, 6, 7), flexible=(4, 2, 1, 0, 3))


def _too_wide(rows: list[list[str]], width: int) -> bool:
    return 2 + sum(max(len(row[i]) for row in rows) + 2 for i in range(len(rows[0]))) - 2 > width


def _role_row(view: View, role: RolePlan, chip: str) -> list[str]:
    key = offer_key(view.scenario, role.site, role.chip)
    return [
        words(role.role),
        role.site,
        chip,
        f"{role.instances:,} × {role.chips_per_instance} = {role.chips:,}",
        "measured" if is_measured(view.scenario, role) else parallelism(role),
        f"{role.batch:,}" if role.batch else UNKNOWN,
        mark(percent(role.busy_share), view.weak_times) if math.isfinite(role.busy_share) else UNKNOWN,
        mark(money(role.usd_per_hour), is_weak(view.weak, f"{key}.usd_per_hour")),
    ]


def parallelism(role: RolePlan) -> str:
    """``tp8 ep16``: what is split; ``tp1`` where nothing is."""
    split = {"tp": role.tp, "pp": role.pp, "dp": role.dp, "ep": role.ep}
    return " ".join(f"{name}{ways}" for name, ways in split.items() if ways > 1) or "tp1"


def is_measured(scenario: Scenario, role: RolePlan) -> bool:
    """True where measured rates stand for the role: the parallelism behind them isn't known."""
    offers = [o for site in scenario.sites if site.name == role.site for o in site.offers if o.chip.id == role.chip]
    return any(role.role in offer.measured for offer in offers)


def link_lines(view: View) -> list[str]:
    lines: list[str] = []
    keys = {link.between: link.key for link in view.scenario.links}
    for link in view.result.links:
        ends = (link.from_site, link.to_site)
        key = keys.get(ends) or keys.get((ends[1], ends[0]), "")
        weak = is_weak(view.weak, f"{key}.goodput", f"{key}.streams", f"{key}.stream_gbit_per_s")
        traffic = f", of it ${money(link.usd_per_hour_traffic)}/h traffic" if link.usd_per_hour_traffic else ""
        text = (
            f"{link.from_site} to {link.to_site}: "
            f"{link.lines} × {figure(link.gbit_per_s / max(link.lines, 1))} Gbit/s, "
            f"{mark(figure(link.needed_gbit_per_s), weak)} Gbit/s needed on average "
            f"({mark(percent(link.utilization), weak)} busy), ${money(link.usd_per_hour)}/h{traffic}"
        )
        lines += paragraph(text, view.width, indent=2, hanging=4)
    return lines


def routing_lines(view: View) -> list[str]:
    evaluation = view.result.evaluation
    if evaluation is None or not view.result.roles:
        return []
    routing = evaluation.routing
    text = (
        f"{percent(routing.direct_share)} direct, {percent(routing.relay_share)} by the relay"
        f" (which makes {percent(routing.relay_token_share)} of the output tokens)"
    )
    if routing.stay_s > 0:
        until = f"for {seconds(routing.stay_s)} at least" if math.isfinite(routing.stay_s) else "to their last token"
        text += f", where they stay {until} to spare main decode"
    if routing.filtered_share:
        text += f", {percent(routing.filtered_share)} finish on the relay"
    if view.explain and evaluation.hand_over_limit_tokens is not None:
        text += f"; rounds of the hand-over end with {figure(evaluation.hand_over_limit_tokens)} tokens to make up"
    keys = (f"{w.key}.{name}" for w in view.scenario.traffic.workloads for name in ("sessions", "prefix_cache"))
    weak = is_weak(view.weak, *keys)
    hits = (
        f"Prefix hits: {percent(evaluation.prefill_hit_rate)} at prefill, "
        f"{mark(percent(evaluation.decode_hit_rate), weak)} at main decode"
    )
    if view.explain or evaluation.loop_gain >= TELLING_LOOP_GAIN:
        hits += f"; loop gain {figure(evaluation.loop_gain)} (at 1 misses and transfers drive each other up)"
    relays = routing.relay_share > 0 or any(role.role == "relay_decode" for role in view.result.roles)
    told = [*([f"{text}."] if relays else []), f"{hits}.", *evaluation.notes]
    return [line for sentence in told for line in paragraph(sentence, view.width, indent=2, hanging=4)]


def slo_lines(view: View) -> list[str]:
    """A row for each level with a limit; the levels without one in a line (each with its stage in ``--explain``)."""
    evaluation = view.result.evaluation
    if evaluation is None or not evaluation.slo:
        return []
    several = view.scenario.traffic.several
    shown = [value for value in evaluation.slo if view.explain or value.limit_s is not None]
    rows = [[*([value.workload or ""] if several else []), *_slo_row(view, value)] for value in shown]
    header = [*(["workload"] if several else []), "level", "value", "limit", "margin", "stage"]
    right = (2, 3, 4) if several else (1, 2, 3)
    lines = table(header, rows, view.width, right=right, flexible=(0, 5) if several else None) if rows else []
    for name in () if view.explain else dict.fromkeys(value.workload for value in evaluation.slo):
        free = [value for value in evaluation.slo if value.limit_s is None and value.workload == name]
        metrics = dict.fromkeys(value.metric for value in free)
        named = ", ".join(_levels(view, [v for v in free if v.metric == metric]) for metric in metrics)
        whose = "" if name is None else f" of {name}"
        lines += paragraph(f"Without a limit{whose}: {named}.", view.width, indent=2, hanging=4) if free else []
    return lines


def _metric_name(metric: str) -> str:
    return metric if metric == "pause" else metric.upper()


def _levels(view: View, values: list[SloValue]) -> str:
    """``E2E p50/p90/p99 49.6/55.7/61.5 s~``; one number where all are alike."""
    unit = 1e-3 if max(v.value_s for v in values) < 1 else 1.0
    numbers = [figure(v.value_s / unit) for v in values]
    told = numbers[:1] if len(set(numbers)) == 1 else numbers
    quantiles = "/".join(quantile_name(v.quantile) for v in values)
    amount = mark(f"{'/'.join(told)} {'s' if unit == 1.0 else 'ms'}", view.weak_times)
    return f"{_metric_name(values[0].metric)} {quantiles} {amount}"


def _slo_row(view: View, value: SloValue) -> list[str]:
    limit = value.limit_s
    missed = "" if value.met else "  over the limit"
    margin = UNKNOWN if limit is None or not math.isfinite(value.value_s) else percent(1 - value.value_s / limit)
    return [
        f"{_metric_name(value.metric)} {quantile_name(value.quantile)}",
        mark(seconds(value.value_s, limit), view.weak_times),
        limit_seconds(limit),
        margin,
        STAGE_NAMES.get(value.stage, words(value.stage)) + missed,
    ]


def cost_lines(view: View) -> list[str]:
    cost = view.result.cost
    if cost is None:
        return []
    rate = view.result.cny_per_usd
    parts = [
        ("chips", cost.roles_usd_per_hour),
        ("line", cost.links_usd_per_hour),
        ("other", cost.other_usd_per_hour),
        ("total", cost.usd_per_hour),
    ]
    header = ["per hour", "USD", *(["CNY"] if rate else []), "share"]
    rows = [
        [name, money(usd), *([money(usd * rate)] if rate else []), _share(usd, cost.usd_per_hour)]
        for name, usd in parts
    ]
    lines = table(header, rows, view.width, right=(1, 2, 3) if rate else (1, 2))
    if cost.other_items:
        items = [(OTHER_NAMES.get(name, words(name)), usd) for name, usd in cost.other_items.items() if usd]
        named = ", ".join(f"{name} ${money(usd)}/h" for name, usd in items)
        lines += paragraph(f"other: {named}", view.width, indent=2, hanging=4) if named else []
    lines += ["", *_per_token_lines(cost, rate, view.width)]
    revenue = view.result.revenue
    if revenue is not None:
        earned, kept = revenue.usd_per_hour, revenue.margin_usd_per_hour
        text = f"Revenue {cash(earned)}/h, margin {cash(kept)}/h"
        text += f" ({cash(earned * rate, '¥')}/h, {cash(kept * rate, '¥')}/h)" if rate else ""
        lines += ["", *paragraph(f"{text}.", view.width, indent=2)]
    return lines


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else UNKNOWN


def _per_token_lines(cost: CostSplit, rate: float | None, width: int) -> list[str]:
    prices = [
        ("input", cost.input_usd_per_mtok),
        ("cached input", cost.cached_input_usd_per_mtok),
        ("output", cost.output_usd_per_mtok),
        ("blended", cost.blended_usd_per_mtok),
    ]
    header = ["per M tokens", *(name for name, _ in prices)]
    rows = [["USD", *(figure(usd) for _, usd in prices)]]
    if rate:
        rows.append(["CNY", *(figure(usd * rate) for _, usd in prices)])
    return table(header, rows, width, right=(1, 2, 3, 4))


def binding_lines(view: View) -> list[str]:
    lines: list[str] = []
    for bound in view.result.binding:
        fix = f" {bound.fix}" if bound.fix else ""
        text = f"{constraint_name(bound.constraint)} (slack {percent(bound.slack)}).{fix}"
        lines += item(constraint_names_in(text), view.width)
    return lines


def headroom_lines(view: View) -> list[str]:
    result = view.result
    if result.headroom_rps is None:
        return []
    planned = view.scenario.traffic.request_rate_per_s
    limited = dict.fromkeys(_metric_name(limit.metric) for limit in view.scenario.slo)
    verb = "breaks its SLO" if limited else "is full"
    text = f"This plan {verb} at {mark(figure(result.headroom_rps), view.weak_times)} requests/s"
    if planned > 0 and result.objective == "cost":
        text += f" ({signed_percent(result.headroom_rps / planned - 1)} on {exact(planned)})"
    within = [metric for metric in limited if metric in ("TTFT", "TPOT")]
    if result.within_slo_rps is not None and within:
        rate = mark(figure(result.within_slo_rps), view.weak_times)
        text += f"; {rate} requests/s are within the {' and '.join(within)} limits"
    return paragraph(f"{text}.", view.width, indent=2, hanging=4)


def alternative_lines(view: View) -> list[str]:
    """Plans that the search met by the way; with ``--top`` the runner-ups that it looked for."""
    if view.result.runner_ups is not None:
        return _runner_up_lines(view, view.result.runner_ups)
    rows = [[a.architecture, money(a.usd_per_hour), _dearer(view, a), a.differs] for a in view.result.alternatives]
    return table(["architecture", "USD/h", "cost", "differs"], rows, view.width, right=(1, 2)) if rows else []


def _dearer(view: View, other: Alternative) -> str:
    cost = view.result.cost
    return signed_percent(other.usd_per_hour / cost.usd_per_hour - 1) if cost and cost.usd_per_hour else UNKNOWN


def _runner_up_lines(view: View, asked: RunnerUps) -> list[str]:
    """Each runner-up, then what is known of all of them."""
    others, near = view.result.alternatives, percent(asked.within)
    if not asked.asked:
        return []
    lines: list[str] = []
    for other in others:
        said = "" if other.proven else " Only found: its kind may have a cheaper one."
        price = f"${money(other.usd_per_hour)}/h ({_dearer(view, other)})"
        text = f"{price}  {other.architecture}  {chip_counts(view, other.roles)}: {other.differs}.{said}"
        lines += item(text, view.width)
    if not asked.complete:
        end = f"The time limit came first: there may be others within {near} of the cost."
    elif len(others) == asked.asked:
        end = f"Different in kind, within {near} of the cost; no other kind has a cheaper plan than these."
    else:
        end = f"No {'other' if others else 'plan of another'} kind is within {near} of the cost."
    return lines + paragraph(end, view.width, indent=2)


def chip_counts(view: View, roles: tuple[RolePlan, ...]) -> str:
    """``32 h800 + 64 h20``: chips bought, by kind, in the order of the plan."""
    counts: dict[str, int] = {}
    for role in roles:
        counts[role.chip] = counts.get(role.chip, 0) + role.chips
    return " + ".join(f"{count:,} {view.names.get(chip, chip)}" for chip, count in counts.items())


def excuse_lines(view: View) -> list[str]:
    rows = []
    for excuse in view.result.excuses:
        value, limit, unit = amounts(excuse)
        name = excuse_name(excuse) + (f", {unit}" if unit else "")
        rows.append([name, value, limit, off_by(excuse), excuse_subject(excuse)])
    header = ["constraint", "best found", "limit", "off by", "where"]
    return table(header, rows, view.width, right=(1, 2, 3), flexible=(4, 0)) if rows else []


def fix_lines(view: View) -> list[str]:
    """Each fix with the command line that applies it."""
    lines: list[str] = []
    for fix in view.result.fixes:
        rate = view.result.cny_per_usd
        then = f", then {price(fix.usd_per_hour, rate, '/h')}" if fix.usd_per_hour is not None else ""
        lines += item(constraint_names_in(f"{fix.what.rstrip('.')}{then}."), view.width)
        flags = " ".join(f"--set {shlex.quote(override)}" for override in fix.overrides)
        # Not wrapped inside a flag: it is there to be copied.
        lines += [f"    {flags}"] if flags else []
    return lines
