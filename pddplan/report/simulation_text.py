"""A simulated plan as text: does it hold, formulas beside the simulation, where time goes, what happened over time."""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from pddplan.report.figures import UNKNOWN, figure, percent
from pddplan.report.layout import item, paragraph, table
from pddplan.simulate.records import Growth, Interval, Series, Simulated, Simulation, Stage

STAGES: dict[Stage, str] = {
    "all": "",
    "prefill": "prefill, queue included",
    "wan": "line, exposed",
    "relay": "relay, until its first token",
    "main": "wait for a slot of main decode",
}
SHARES = {
    "relay_share": "requests by the relay",
    "filtered_share": "requests that stay on it",
    "relay_token_share": "tokens that it makes",
    "decode_hit_rate": "prefix hits at main decode",
    "within_slo_share": "requests within the SLO",
    "prefill_wait_share": "requests that wait for prefill",
    "prefill_wait_mean_s": "mean wait for prefill",
    "slot_wait_share": "requests that wait for a slot",
    "line_utilization": "load of the line",
}
ROLES = {"prefill": "prefill", "relay_decode": "relay", "main_decode": "main decode", "aggregated": "aggregated"}
BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#%@"
CHART_COLUMNS, LABEL_COLUMNS = 48, 22


def render_simulation(found: Simulation, width: int) -> str:
    """The whole answer, at most ``width`` columns."""
    lines = paragraph(headline(found), width)
    lines += paragraph(_run(found), width)
    if found.growth is None and math.isfinite(found.throughput_rps):
        lines += quantile_table(found, width) + _stages(found, width)
    lines += _shares(found, width) + _pools(found, width) + _chart(found.series, width)
    if found.notes:
        lines += ["", *[line for note in found.notes for line in item(note, width)]]
    return "\n".join(lines)


def headline(found: Simulation) -> str:
    """Whether the SLO holds in the simulation; of an overloaded one no time is told."""
    if not math.isfinite(found.throughput_rps):
        return "UNKNOWN  the run has no times: a service time or step time isn't known"
    if found.growth is not None:
        return growth_sentence(found.growth)
    limits = [row for row in found.quantiles if row.limit_s is not None]
    broken = [row for row in limits if not row.met]
    if broken:
        worst = max(broken, key=lambda row: row.simulated.value / (row.limit_s or 1.0))
        rest = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        return f"BREAKS  {_name(worst)} {_time(worst.simulated.value)}, limit {_time(worst.limit_s)}{rest}"
    tight = max(limits, key=lambda row: row.simulated.value / (row.limit_s or 1.0), default=None)
    if tight is None:
        return "HOLDS  no limit is set"
    near = f"{_name(tight)} {_time(tight.simulated.value)}, limit {_time(tight.limit_s)}"
    held = f"all {len(limits)} limits; nearest:" if len(limits) > 1 else "the limit:"
    return f"HOLDS  {held} {near}"


def growth_sentence(growth: Growth) -> str:
    """What an overloaded plan does instead of settling."""
    where = ROLES.get(growth.stage, growth.stage)
    more = "far more" if not math.isfinite(growth.missing) else f"{percent(growth.missing)} more"
    rate = figure(growth.requests_per_s)
    return f"OVERLOADED  no steady state: grows by {rate} requests/s at {where}; {more} capacity is needed there"


def _run(found: Simulation) -> str:
    parts = [f"{found.requests:,} requests in {_span(found.simulated_s)} of simulated time"]
    if found.warmup_requests:
        parts.append(f"{found.warmup_requests:,} of warm-up left out")
    parts += [f"{figure(found.throughput_rps)} requests/s", f"seed {found.seed}"]
    return ", ".join(parts) + "."


def _span(seconds: float) -> str:
    return f"{figure(seconds / 3600)} h" if seconds >= 7200 else f"{figure(seconds)} s"


# ---------------------------------------------------------------- tables


def quantile_table(found: Simulation, width: int) -> list[str]:
    rows = [row for row in found.quantiles if row.stage == "all"]
    header = ("level", "formula", "simulated", "95 % interval", "error", "limit")
    cells = [
        (
            _name(row),
            _time(row.analytic_s),
            _time(row.simulated.value),
            _interval(row.simulated),
            _error(row),
            (_time(row.limit_s) + ("" if row.met else " !")) if row.limit_s is not None else "",
        )
        for row in rows
    ]
    return ["", "Formula and simulation", *table(header, cells, width, right=(1, 2, 3, 4, 5), flexible=(0, 3))]


def _stages(found: Simulation, width: int) -> list[str]:
    rows = [row for row in found.quantiles if row.stage != "all"]
    if not rows:
        return []
    header = ("first token, by stage", "level", "formula", "simulated", "error")
    cells, last = [], ""
    for row in rows:
        name = STAGES[row.stage]
        label = "" if name == last else name
        cells.append(
            (label, f"p{100 * row.quantile:g}", _time(row.analytic_s), _time(row.simulated.value), _error(row))
        )
        last = name
    return ["", *table(header, cells, width, right=(2, 3, 4), flexible=0)]


def _shares(found: Simulation, width: int) -> list[str]:
    cells = []
    for share in found.shares:
        a_time = share.name.endswith("_s")
        if (not share.simulated and not share.analytic) or (a_time and found.growth is not None):
            continue
        show = _time if a_time else percent
        cells.append(
            (SHARES.get(share.name, share.name.replace("_", " ")), show(share.analytic), show(share.simulated))
        )
    if not cells:
        return []
    return ["", *table(("share", "formula", "simulated"), cells, width, right=(1, 2), flexible=0)]


def _pools(found: Simulation, width: int) -> list[str]:
    header = ("pool", "instances", "busy", "running each", "waited for a slot")
    cells = [
        (
            ROLES.get(pool.role, pool.role),
            f"{pool.instances:,}",
            percent(pool.busy_share),
            figure(pool.mean_batch),
            percent(pool.waiting_share) if pool.waiting_share is not None else "",
        )
        for pool in found.pools
    ]
    return ["", *table(header, cells, width, right=(1, 2, 3, 4), flexible=(0, 4))] if cells else []


def _name(row: Simulated) -> str:
    metric = {"ttft": "TTFT", "tpot": "TPOT", "pause": "pause", "e2e": "E2E"}[row.metric]
    whose = f" {row.workload}" if row.workload else ""
    return f"{metric} p{100 * row.quantile:g}{whose}"


def _time(seconds: float | None) -> str:
    """Seconds, from 0.1 s down milliseconds."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return f"{figure(1000 * seconds)} ms" if seconds < 0.1 else f"{figure(seconds)} s"


def _interval(interval: Interval) -> str:
    if not math.isfinite(interval.high):
        return UNKNOWN
    small = interval.value < 0.1
    low, high = (1000 * x if small else x for x in (interval.low, interval.high))
    return f"{figure(low)}–{figure(high)} {'ms' if small else 's'}"


def _error(row: Simulated) -> str:
    if row.error is None or not math.isfinite(row.error):
        return UNKNOWN
    text = f"{100 * row.error:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


# ---------------------------------------------------------------- over time


def _chart(series: Series, width: int) -> list[str]:
    """Rows of blocks, each from 0 to its own largest value."""
    rows: list[tuple[str, NDArray[np.float64], str]] = [
        ("waiting for prefill", series.prefill_waiting, ""),
        ("on the line", series.line_flows, ""),
        ("on the relay", series.relay_requests, ""),
        ("on main decode", series.main_requests, ""),
        ("waiting for a slot", series.main_waiting, ""),
        ("outside the SLO", series.late_share, "%"),
    ]
    shown = [row for row in rows if row[1].size and np.nanmax(np.nan_to_num(row[1])) > 0]
    tops = [float(np.nanmax(np.nan_to_num(values))) for _, values, _ in shown]
    most = [percent(top) if unit else figure(top) for top, (_, _, unit) in zip(tops, shown, strict=True)]
    columns = min(CHART_COLUMNS, width - LABEL_COLUMNS - max((len(f"  to {text}") for text in most), default=0))
    if not shown or columns < 8:
        return []
    marks = BLOCKS if _encodes(BLOCKS) else PLAIN
    lines = ["", f"Over time, 0 to {_span(float(series.times_s[-1]))}"]
    for (name, values, _), text in zip(shown, most, strict=True):
        lines.append(f"  {name}".ljust(LABEL_COLUMNS) + f"{blocks(values, columns, marks)}  to {text}")
    return lines


def blocks(values: NDArray[np.float64], columns: int, marks: str) -> str:
    """``values`` as the highest of each column, in heights of ``marks``."""
    parts = np.array_split(np.nan_to_num(values), min(columns, max(values.size, 1)))
    tops = np.array([float(part.max()) if part.size else 0.0 for part in parts])
    top = max(float(tops.max()), 1e-300)
    return "".join(marks[round(height / top * (len(marks) - 1))] for height in tops)


def _encodes(text: str) -> bool:
    """Whether standard output can show it."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
