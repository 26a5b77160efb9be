"""``simulate --plot``: the first token by formula and by simulation, and the run over time."""

from __future__ import annotations

import importlib.util
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import InputError, Problem
from pddplan.simulate.records import Interval, Simulation
from pddplan.spec.user_file import write_whole

KINDS = (".png", ".svg", ".pdf")
INSTALL = "python3 -m pip install 'pddplan[plot]'"
LABELLED = "1235"  # first digits of seconds that have room for a label
FORMULA, SIMULATED, LIMIT = "#c2571a", "#1f5a99", "#8a8a8a"


def check_plot(path: str) -> None:
    """Before a long run: raises InputError for another suffix, without matplotlib, without the folder."""
    suffix = Path(path).suffix
    if suffix.lower() not in KINDS:
        what = suffix or "a file without suffix"
        raise InputError(Problem(f"can't draw {what}.", file=path, fix="Name it .png, .svg or .pdf."))
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(Problem("--plot needs matplotlib.", file=path, fix=f"Install it with: {INSTALL}"))
    if not Path(path).parent.is_dir():
        raise InputError(Problem("can't be written: no such folder.", file=path, fix="Make the folder first."))


def plot_simulation(found: Simulation, title: str, path: str) -> None:
    """Writes a picture by its suffix. Raises InputError where it can't, see ``check_plot``."""
    check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 8.0), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(1.0, 1.1))
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    _first_token(above, found)
    _timeline(below, found)
    drawn, kind = BytesIO(), Path(path).suffix.lower().lstrip(".")
    figure.savefig(drawn, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    try:
        write_whole(Path(path), drawn.getvalue())
    except OSError as error:
        problem = Problem(f"can't be written: {error.strerror}.", file=path, fix="Choose another place.")
        raise InputError(problem) from None


def _first_token(axes: Any, found: Simulation) -> None:
    """Quantiles of the time to the first token: formula, simulation with its interval, limits."""
    from matplotlib.ticker import FuncFormatter

    axes.set_title("Time to the first token", fontsize=10, loc="left")
    rows = [row for row in found.quantiles if row.metric == "ttft" and row.stage == "all"]
    rows.sort(key=lambda row: (row.workload or "", row.quantile))
    if not rows:
        why = "no steady state: no latency to show" if found.growth is not None else "no quantiles were asked for"
        axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    at = np.arange(len(rows))
    value = np.array([row.simulated.value for row in rows])
    spread = np.array([_either_way(row.simulated) for row in rows]).T
    axes.errorbar(at - 0.06, value, yerr=spread, fmt="o", ms=7, capsize=5, color=SIMULATED,
                  label="simulated, 95 % interval")  # fmt: skip
    formula = np.array([np.nan if row.analytic_s is None else row.analytic_s for row in rows])
    axes.plot(at + 0.06, formula, "D", ms=7, color=FORMULA, label="formula")
    limited = [(n, row.limit_s) for n, row in enumerate(rows) if row.limit_s is not None]
    for n, (x, limit) in enumerate(limited):
        axes.plot([x - 0.3, x + 0.3], [limit, limit], color=LIMIT, lw=2, label="limit" if n == 0 else None)
    axes.set_yscale("log")
    for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        ticks(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in LABELLED else ""))
    axes.set_xticks(at, [f"p{100 * row.quantile:g}" + (f"\n{row.workload}" if row.workload else "") for row in rows])
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylabel("seconds")
    axes.grid(axis="y", which="both", alpha=0.25)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)


def _either_way(found: Interval) -> tuple[float, float]:
    """Below and above the value; none where the run was too short for an interval."""
    if not (np.isfinite(found.low) and np.isfinite(found.high)):
        return 0.0, 0.0
    return max(found.value - found.low, 0.0), max(found.high - found.value, 0.0)


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over a fiftieth of the run: single points are moments."""
    width = max(values.size // 50, 1)
    weight = np.convolve(np.ones(values.size), np.ones(width), mode="same")
    return np.asarray(np.convolve(values, np.ones(width), mode="same") / weight)


def _timeline(axes: Any, found: Simulation) -> None:
    """Requests by place over time, and the line's load on the other axis."""
    series = found.series
    hours = series.times_s[-1] > 7200 if series.times_s.size else False
    time = series.times_s / (3600.0 if hours else 60.0)
    axes.set_title("The run over time", fontsize=10, loc="left")
    for name, values, color in (
        ("waiting for prefill", series.prefill_waiting, "#c2571a"),
        ("on the line", series.line_flows, "#6a4c93"),
        ("on the relay", series.relay_requests, "#2a9d8f"),
        ("on main decode", series.main_requests, "#1f5a99"),
        ("waiting for a slot", series.main_waiting, "#b5179e"),
    ):
        if values.size and values.max() > 0:
            axes.plot(time, _smooth(values), lw=1.3, color=color, label=name)
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hours" if hours else "minutes")
    axes.set_ylabel("requests")
    if found.warmup_s > 0:
        axes.axvspan(0, found.warmup_s / (3600.0 if hours else 60.0), color="#dddddd", alpha=0.5, label="warm-up")
    handles, labels = axes.get_legend_handles_labels()
    if series.line_load.size and series.line_load.max() > 0:
        load = axes.twinx()
        (line,) = load.plot(time, 100 * _smooth(series.line_load), lw=1.0, ls=":", color="#444444")
        load.set_ylabel("load of the line, %")
        load.set_ylim(0, 105)
        handles, labels = [*handles, line], [*labels, "load of the line"]
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.1, 1.0), frameon=False, fontsize=9)
