"""A validation for people: errors by metric and group, order, what has no prediction and why."""

from __future__ import annotations

from collections.abc import Sequence

from pddplan.accuracy.ranks import Order
from pddplan.accuracy.records import METRICS, Metric
from pddplan.accuracy.score import ALL, Errors, GroupErrors, Miss
from pddplan.accuracy.validation import Validation
from pddplan.estimate.records import MODES
from pddplan.report.figures import UNKNOWN, figure
from pddplan.report.layout import counted, paragraph, table

METRIC_NAMES: dict[Metric, str] = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "prefill_tok_s_per_chip": "prefill tokens/s per chip",
    "decode_tok_s_per_chip": "decode tokens/s per chip",
}
_UNITS: dict[Metric, str] = {"ttft_ms": " ms", "tpot_ms": " ms"}
_SHORT_MODES = {"aggregated": "agg", "disaggregated": "disagg"}
_MODE_GROUPS = tuple(f"mode={mode}" for mode in MODES)
_VENDORS = ("nvidia-", "amd-", "huawei-", "google-", "intel-")
_REASONS_SHOWN = 12
_PEER_HEADER = ["peer", "median"]


def render_validation(validation: Validation, worst: Sequence[Miss], width: int) -> str:
    """The answer as text: never wider than ``width``."""
    peer = any(g.peer is not None for g in validation.groups)
    lines = paragraph(_first_line(validation), width, hanging=2)
    lines += paragraph(
        "Errors in percent: mean (MAPE) and median of |predicted/measured - 1|, bias the median signed; "
        "rank: correlation of the orders." + (" peer: AIConfigurator's MAPE on the rows that it answers." * peer),
        width,
    )
    for tier in _tiers(validation.groups):
        lines += ["", *_summary([g for g in validation.groups if g.confidence == tier], tier, peer, width)]
        lines += _crossed([g for g in validation.groups if g.confidence == tier and "," in g.group], tier, peer, width)
    lines += _orders(validation.orders, width)
    lines += _worst(worst, width)
    lines += counted(
        "Rows without a prediction", validation.reasons, width, most=_REASONS_SHOWN, rest="--json has each row's"
    )
    return "\n".join(lines)


def _first_line(validation: Validation) -> str:
    total, predicted = len(validation.rows), validation.predicted
    without = f", {total - predicted} without a prediction" if predicted < total else ""
    rows = f"{total:,} row" + "s" * (total != 1)
    return f"{validation.measurements.file}: {rows}, {predicted:,} predicted{without}"


def _tiers(groups: Sequence[GroupErrors]) -> list[str]:
    return sorted({g.confidence for g in groups})


def _of_tier(tier: str) -> str:
    return f", confidence {tier}" if tier else ""


def _error_cells(group: GroupErrors, peer: bool) -> list[str]:
    e = group.errors
    cells = [f"{e.n:,}", _one(e.mape), _one(e.median_ape), _signed(e.bias), _rank(e)]
    if peer:
        cells += [_one(group.peer.mape), _one(group.peer.median_ape)] if group.peer else [UNKNOWN, UNKNOWN]
    return cells


def _one(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1e5 else f"{value:.0e}"


def _signed(value: float) -> str:
    return f"{value:+,.1f}" if abs(value) < 1e5 else f"{value:+.0e}"


def _rank(errors: Errors) -> str:
    return UNKNOWN if errors.spearman is None else f"{errors.spearman:.2f}"


def _summary(groups: Sequence[GroupErrors], tier: str, peer: bool, width: int) -> list[str]:
    """All rows, then those of groups that a fit has seen and those of groups that none has, by mode."""
    header = [f"all rows{_of_tier(tier)}", "metric", "rows", "MAPE", "median", "bias", "rank"]
    header += _PEER_HEADER if peer else []
    names = {ALL: "all", "fitted=yes": "fitted groups", "fitted=no": "not fitted"}
    modes = {g.group: g.group.removeprefix("mode=") for g in groups if g.group in _MODE_GROUPS}
    names |= modes if len(modes) > 1 else {}
    if not any(g.group == "fitted=yes" for g in groups):
        del names["fitted=no"]
    cells = [
        [names[g.group], _short_metric(g.metric), *_error_cells(g, peer)]
        for name in names
        for g in groups
        if g.group == name
    ]
    return table(header, cells, width, right=range(2, len(header)), flexible=(0, 1), indent=0)


def _short_metric(metric: Metric) -> str:
    return METRIC_NAMES[metric].removesuffix(" per chip").replace("tokens/s", "tok/s")


def _crossed(groups: Sequence[GroupErrors], tier: str, peer: bool, width: int) -> list[str]:
    lines: list[str] = []
    for metric in METRICS:
        for fitted in (False, True):
            members = [g for g in groups if g.metric == metric and bool(g.fitted) is fitted]
            if members:
                title = f"{METRIC_NAMES[metric]}, groups {'that were' if fitted else 'not'} fitted{_of_tier(tier)}"
                lines += ["", title, *_group_table(members, peer, width)]
    return lines


def _group_table(members: Sequence[GroupErrors], peer: bool, width: int) -> list[str]:
    header = ["mode", "chip", "model", "engine", "rows", "MAPE", "median", "bias"]
    header += _PEER_HEADER if peer else ["rank"]
    cells = []
    for group in members:
        mode, chip, model, engine = (part.split("=", 1)[1] for part in group.group.split(",", 3))
        errors = _error_cells(group, peer)
        kept = errors[:4] + errors[5:] if peer else errors
        cells.append([_SHORT_MODES.get(mode, mode), _short_chip(chip), model, engine, *kept])
    return table(header, cells, width, right=range(4, len(header)), flexible=(2, 1))


def _short_chip(chip: str) -> str:
    return next((chip.removeprefix(v) for v in _VENDORS if chip.startswith(v)), chip)


def _orders(orders: Sequence[Order], width: int) -> list[str]:
    if not orders:
        return []
    header = ["", "sweeps", "median rank", "p10", "regret", "p90"]
    cells = [
        [
            f"{METRIC_NAMES[o.metric]}{_of_tier(o.confidence)}{', peer' if o.who == 'peer' else ''}",
            str(o.groups),
            f"{o.median:.3f}",
            f"{o.tenth_percentile:.2f}",
            f"{_one(o.median_regret)} %",
            f"{_one(o.regret_90)} %",
        ]
        for o in orders
    ]
    title = "Order within a sweep of at least five rows; regret: the row ranked first against the best"
    return ["", *paragraph(title, width), *table(header, cells, width, right=range(1, 6), flexible=0)]


def _worst(worst: Sequence[Miss], width: int) -> list[str]:
    if not worst:
        return []
    header = ["row", "metric", "predicted", "measured", "error", "what"]
    cells = [
        [
            str(m.row.row.number),
            _short_metric(m.metric),
            f"{figure(m.predicted)}{_UNITS.get(m.metric, '')}",
            f"{figure(m.measured)}{_UNITS.get(m.metric, '')}",
            f"{_signed(m.error)} %",
            _what(m),
        ]
        for m in worst
    ]
    return ["", "Largest errors", *table(header, cells, width, right=(0, 2, 3, 4))]


def _what(miss: Miss) -> str:
    row = miss.row.row
    point = next(p.point for p in row.parts if miss.metric in p.metrics)
    one = "" if point.concurrency == 1 else "s"
    load = f"{point.concurrency:g} user{one}" if point.concurrency is not None else f"{point.request_rate_per_s:g}/s"
    pools = " + ".join(f"{pool.count} x {pool.parallelism}" for pool in point.pools)
    lengths = f"{point.lengths.input_tokens:g}/{point.lengths.output_tokens:g}"
    labels = f"{row.labels.model} {_short_chip(row.labels.chip)} {row.labels.engine}"
    return f"{labels}, {pools}, {lengths}, {load}" + (f" ({row.id})" if row.id else "")
