"""A calibration for people: what moved, what the rows can't tell, what it gains on rows held out."""

from __future__ import annotations

from pddplan.accuracy.calibrate import Calibrated, FittedFactor
from pddplan.accuracy.folds import Folds
from pddplan.report.figures import figure
from pddplan.report.layout import counted, item, paragraph, table
from pddplan.report.validation_text import METRIC_NAMES

_REASONS_SHOWN = 8


def render_calibration(found: Calibrated, written: str | None, width: int) -> str:
    """The answer as text: never wider than ``width``. ``written``: the file, None where none was."""
    lines = paragraph(_first_line(found), width, hanging=2)
    lines += paragraph(_second_line(found, written), width)
    lines += _factors(found, width)
    lines += _alike(found, width)
    lines += _held_out(found, width)
    lines += counted("Rows not used", found.reasons, width, most=_REASONS_SHOWN, rest="--json has them")
    return "\n".join(lines)


def _first_line(found: Calibrated) -> str:
    moved, rows = len(found.moved), f"{found.used:,} of {found.rows:,} row" + "s" * (found.rows != 1)
    factors = f"{moved} of {len(found.factors)} factors fitted to {rows}"
    if found.off is None:
        return f"CALIBRATED  {factors}, nothing held out"
    verdict = "CALIBRATED" if found.better else "NO GAIN"
    return f"{verdict}  {factors}; held-out values off by {_off(found.off[0])} before, {_off(found.off[1])} after"


def _off(ratio: float) -> str:
    """1.43 -> "43 %": the geometric mean of how far values are off."""
    return f"{100.0 * (ratio - 1.0):.1f} %"


def _second_line(found: Calibrated, written: str | None) -> str:
    if written is not None:
        unsure = "" if found.better else " It was forced: nothing shows that it is better than the shipped factors."
        return f"Written: {written}. A scenario beside it says calibration: {written.rsplit('/', 1)[-1]}{unsure}"
    if not found.moved:
        return "Not written: the rows determine no factor. Measure more loads, lengths or layouts."
    if found.better is None:
        return "Not written: too few rows to hold some out. More rows, or --force."
    if not found.better:
        return "Not written: rows that the fit had not seen got worse, or no better. --force writes it all the same."
    return "Not written: name a file with -o."


def _factors(found: Calibrated, width: int) -> list[str]:
    """A table for each chip and engine."""
    lines: list[str] = []
    header = ["shipped", "fitted", "range", "bounds", "identified"]
    longest = max(len(f.factor.name) for f in found.factors)
    for owner in dict.fromkeys(f.factor.owner for f in found.factors):
        own = [_row(f, longest) for f in found.factors if f.factor.owner == owner]
        title = f"{owner} (range: one deviation)" if not lines else owner
        lines += ["", title, *table(["factor", *header], own, width, right=(1, 2), flexible=0)]
    return lines


def _row(f: FittedFactor, longest: int) -> list[str]:
    span = f"{figure(f.low)}–{figure(f.high)}" if f.identified else ""
    bounds = f"{figure(f.factor.low)}–{figure(f.factor.high)}"
    fitted = figure(f.value) if f.identified else "as shipped"
    known = "yes" if f.identified else "no"
    return [f.factor.name.ljust(longest), figure(f.factor.shipped), fitted, span.ljust(11), bounds.ljust(10), known]


def _alike(found: Calibrated, width: int) -> list[str]:
    """Why a factor isn't identified, where another one explains the same rows."""
    lines = [line for f in found.factors if f.like for line in item(f"{f.factor.label}: as {f.like}", width)]
    return ["", "Factors that these rows can't tell from another", *lines] if lines else []


def _held_out(found: Calibrated, width: int) -> list[str]:
    if not found.held_out or found.folds is None:
        return ["", *paragraph("Nothing held out: that takes two rows at least.", width)]
    header = ["", "rows", "MAPE before", "after", "median before", "after"]
    cells = [
        [
            METRIC_NAMES[h.metric],
            f"{h.before.n:,}",
            *(f"{value:,.1f}" for e in ("mape", "median_ape") for value in (getattr(h.before, e), getattr(h.after, e))),
        ]
        for h in found.held_out
    ]
    lines = ["", *paragraph(f"Errors on rows held out, percent ({folds_text(found.folds)})", width)]
    return [*lines, *table(header, cells, width, right=range(1, 6), flexible=0)]


def folds_text(folds: Folds) -> str:
    """``5 folds of whole configurations, 12 rows of a lone one one by one``."""
    if folds.lone == len(folds.of_row):
        return f"{folds.count} folds of single rows: there is one configuration of each chip and engine"
    lone = f", {folds.lone} rows of lone ones one by one" if folds.lone else ""
    return f"{folds.count} folds of whole configurations{lone}"
