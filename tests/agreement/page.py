"""docs/agreement.md and recorded.csv: how far the formulas are from the simulation."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tests.agreement.grid import (
    BUSY_LINE,
    FEW_FLOWS,
    FIGURES,
    LEAST_WAIT,
    MOST_SKEW,
    PART,
    RELAY_TOKENS,
    SKEWED,
    STEADY,
    WAIT,
    WITHIN,
    Answer,
    Figure,
    cells,
)
from tests.agreement.measure import FIRST, MOST, RATE_BAR, SATURATED, SEED

ROOT = Path(__file__).parents[2]
RECORDED, RATES = Path(__file__).with_name("recorded.csv"), Path(__file__).with_name("rates.csv")
PAGE = ROOT / "docs" / "agreement.md"

HEAD = ("plans", "figure", "counted", "median error", "nine in ten within", "worst", "half-width", "bar", "")
TOP = """# Formulas against simulation

Written by `python -m tests.agreement.run all --write` (seed {seed}, {least:,} to {most:,} requests a plan): {plans}
plans. In {waiting} of them a tenth or more of the requests wait for prefill; {lines} have a line loaded to 0.7 or
more that carries at most 8 flows at their ceiling. The simulation shares service times, sizes and the router's rule
with the formulas, nothing of their queueing. Errors are |formula / simulation − 1| in percent; of relay tokens,
points.

A plan counts for a figure if the half-width of the simulated 95 % interval is at most a third of the bar (of the
median's bar, where the worst has another); half-widths shown are medians over the plans that count. TTFT and mean
wait are judged where a tenth or more of the requests wait. Figures without a counted plan say nothing, and are
listed so.
"""
NO_STATE = "No steady state, by the formulas or in the simulation: {}.\n"


def row_of(title: str, name: str, answers: Sequence[Answer]) -> tuple[str, ...] | None:
    """A line of a table: a figure over some plans; None where none has it under a bar."""
    having = [a for a in answers if name in a.figures and a.bar(name)]
    if not having:
        return None
    bar = having[0].bar(name)
    assert bar is not None
    counted = [a.figures[name] for a in having if a.counts(name)]
    limits = f"{bar[0]:g}" if bar[0] == bar[1] else f"median {bar[0]:g}, worst {bar[1]:g}"
    count = f"{len(counted)} of {len(having)}"
    if not counted:
        return title, name, count, "–", "–", "–", "–", limits, "not known"
    error = np.abs([f.error for f in counted])
    half = float(np.median([f.half for f in counted]))
    median, worst = float(np.median(error)), float(error.max())
    missed = worst > bar[1] if bar[0] == bar[1] else median > bar[0] or worst > bar[1]
    over = sum(float(e) > bar[1] for e in error)
    verdict = "held" if not missed else f"missed: {over} of {len(counted)} over {bar[1]:g}" if over else "missed"
    shown = (f"{median:.2g}", f"{float(np.quantile(error, 0.9)):.2g}", f"{worst:.2g}", f"{half:.2g}")
    return title, name, count, *shown, limits, verdict


def page(answers: Sequence[Answer], rates: Sequence[tuple[str, Figure | None]]) -> str:
    """docs/agreement.md."""
    known = [a for a in answers if a.figures]
    lost = [a.cell.name for a in answers if not a.figures]
    parts = [
        TOP.format(
            seed=SEED,
            least=FIRST,
            most=MOST,
            plans=len(known),
            waiting=sum(a.p_wait >= LEAST_WAIT for a in known),
            lines=sum(a.built[3] >= BUSY_LINE and 0 < a.built[2] <= FEW_FLOWS for a in known),
        ),
        NO_STATE.format("; ".join(lost)) if lost else "",
        "## All plans\n\n" + _table(_rows(known, by_group=False)),
        "## By kind of plan\n\n" + _table(_rows(known, by_group=True)),
        "## Largest rate within the limits\n\n" + SATURATION + "\n" + _rates(rates),
        "## Where it is off most\n\n" + WORST + "\n" + _worst(known),
        "## Why\n\n" + REASONS,
    ]
    return "\n".join(part for part in parts if part)


SATURATION = """The largest rate at which the limits of TTFT p50, p90, p99 and TPOT p90 hold: by the formulas by
bisection, by the simulation from there, each run read along the slopes of the formulas. The limit that
is named is what the formulas give at the plan's rate, the others are a quarter above theirs. A plan
counts if the half-width is at most a third of the bar.
"""
WORST = """The worst counted plan of each kind and figure beyond its bar, with its stages: signed errors in percent ±
half-width; shares (who waits for prefill, who for a slot of main decode, what main decode holds) in points.
"""
REASONS = """Found by single runs beside this grid; numbers are p50/p90/p99. Inferred: not tested by a change.

- **TPOT behind one or two prefill servers with very unequal prompts** (one queue c 1, queues of their own c 2):
  requests leave prefill in trains behind the rare long prompt. What main decode sees of that is taken as one
  number, the variance of the departures over the life of a request; the trains make its batch swing further at p50
  and p90.
- **Line, equal sizes, few flows**: a transfer keeps the number of others that it met, so half of those on a line at
  0.5 would never be disturbed, and the factor is read at 12 points: m = 1 at 0.5 −32/+9/+20 %, with 96 points
  +9/+9/+7 %. Of sizes that vary, as those of real traffic do, the error is within the bar.
- **Line at 0.85 behind a busy prefill** (inferred): at most as many flows begin as prefill has servers, so that
  transfers hardly share the line; the formulas take them to come at random.
- **Relay, TPOT up to 6 % high** (not explained): hand-overs lengthen steps by a mean, in the simulation they come
  in between.
- **Mean wait**: bursts of 4 at few waits −19 %; home servers that overflow at once (lengths, c 8, 0.85) +33 %,
  known to `affine_waiting` as its worst case.
- **What the TTFT rows don't show**: half-widths far below 1 % belong to plans whose quantile is a request that
  doesn't wait. Of plans with c_s² above 5 most p90 and p99 are not counted: they would take tens of millions of
  requests.
"""


def _table(rows: Iterable[Sequence[str]], head: Sequence[str] = HEAD) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _rows(known: Sequence[Answer], by_group: bool) -> list[tuple[str, ...]]:
    """A line per figure, of all plans or of each group; TTFT by the skew of the prefill times."""
    made: list[tuple[str, ...] | None] = []
    for group in dict.fromkeys(a.cell.group for a in known) if by_group else ("all",):
        mine = [a for a in known if group in ("all", a.cell.group)]
        for title, skewed in ((f"{group}, c_s² to {SKEWED:g}", False), (f"{group}, c_s² to {MOST_SKEW:g}", True)):
            made += [row_of(title, name, [a for a in mine if a.skewed == skewed]) for name in STEADY]
        made += [row_of(group, name, mine) for name in WITHIN]
    return [row for row in made if row is not None]


def _rates(rates: Sequence[tuple[str, Figure | None]]) -> str:
    binding, rows = dict(SATURATED), []
    for name, found in rates:
        if found is None:
            rows.append((name, binding[name], "–", "–", "no rate in range holds in the simulation"))
            continue
        counts = found.half <= RATE_BAR / PART
        verdict = ("held" if abs(found.error) <= RATE_BAR else "missed") if counts else "not counted"
        rows.append((name, binding[name], f"{found.error:+.1f}", f"{found.half:.1f}", verdict))
    return _table(rows, ("plan", "limit", "error", "half-width", f"within {RATE_BAR:g}"))


def _worst(known: Sequence[Answer]) -> str:
    rows = []
    for group in dict.fromkeys(a.cell.group for a in known):
        for name in (*STEADY, *WITHIN):
            found = [a for a in known if a.cell.group == group and a.counts(name)]
            worst = max(found, key=lambda a: abs(a.figures[name].error), default=None)
            if worst is None or abs(worst.figures[name].error) <= (worst.bar(name) or (0.0, 0.0))[1]:
                continue
            percent = name.split()[-1]
            beside = (WAIT, "wait share", f"prefill {percent}", f"exposed {percent}", "slot wait share", "held share")
            stages = [f"{key} {_signed(worst.figures[key])}" for key in beside if key in worst.figures and key != name]
            rows.append((worst.cell.name, name, _signed(worst.figures[name]), "; ".join(stages)))
    return _table(rows, ("plan", "figure", "error", "stages"))


def _signed(figure: Figure) -> str:
    return f"{figure.error:+.1f} ± {figure.half:.1f}"


def write_csv(answers: Sequence[Answer], path: Path) -> None:
    """A line per plan: what it is, and of each figure the formula's error and the half-width, in percent or points."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        columns = [part for name in FIGURES for part in (name, f"{name} ±")]
        writer.writerow(["plan", "c_s2", "rho", "m", "line load", "p_wait", "requests", *columns])
        for a in answers:
            row = [
                a.cell.name,
                *(f"{round(value, 6) + 0.0:.3g}" for value in a.built),
                f"{a.p_wait:.3f}",
                str(a.requests),
            ]
            for name in FIGURES:
                figure = a.figures.get(name)
                row += ["", ""] if figure is None else [f"{figure.error:.2f}", f"{figure.half:.2f}"]
            writer.writerow(row)


def recorded() -> dict[str, dict[str, str]]:
    """Rows of the CSV by plan."""
    with open(RECORDED, encoding="utf-8") as stream:
        return {row["plan"]: row for row in csv.DictReader(stream)}


def recorded_answers() -> list[Answer]:
    """The plans of the CSV: errors and half-widths as they were measured, percent of a simulated figure of 100."""
    found = []
    for cell in cells():
        row = recorded()[cell.name]
        facts = (float(row["c_s2"]), float(row["rho"]), float(row["m"]), float(row["line load"]))
        figures = {name: _figure(row, name) for name in FIGURES if row[name]}
        found.append(Answer(cell, facts, float(row["p_wait"]), int(row["requests"]), figures))
    return found


def _figure(row: dict[str, str], name: str) -> Figure:
    error, half = float(row[name]), float(row[f"{name} ±"])
    if name.endswith("share") or name == RELAY_TOKENS:
        return Figure(error / 100.0, 0.0, half, points=True)
    return Figure(100.0 + error, 100.0, half)


def write_rates(rates: Sequence[tuple[str, Figure | None]]) -> None:
    """A line per plan: its largest rate by the formulas and simulated, and the half-width in percent."""
    with open(RATES, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["plan", "formula", "simulated", "half"])
        for name, figure in rates:
            row = ["", "", ""] if figure is None else [figure.formula, figure.simulated, figure.half]
            writer.writerow([name, *(f"{value:.5g}" if value != "" else "" for value in row)])


def recorded_rates() -> list[tuple[str, Figure | None]]:
    with open(RATES, encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [
        (row["plan"], Figure(float(row["formula"]), float(row["simulated"]), float(row["half"])))
        if row["formula"]
        else (row["plan"], None)
        for row in rows
    ]
