"""A validation as ``pddplan.validation/1``."""

from __future__ import annotations

from typing import Any

from pddplan.accuracy.predict import Predicted
from pddplan.accuracy.ranks import Order
from pddplan.accuracy.records import METRICS, Figures
from pddplan.accuracy.score import Errors, GroupErrors, Miss
from pddplan.accuracy.validation import Validation
from pddplan.estimate.records import MODES
from pddplan.report.json_schema import (
    COUNT,
    FLAG,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    Schema,
    document,
    one_of,
    record,
    rows,
)
from pddplan.report.plan_json import finite


def validation_payload(validation: Validation, worst: tuple[Miss, ...] = ()) -> dict[str, Any]:
    """Groups, then every row of the file; percent for errors, as measured for values."""
    return {
        "schema": "pddplan.validation/1",
        "file": validation.measurements.file,
        "layout": validation.measurements.layout,
        "groups": [_group(g) for g in validation.groups],
        "order": [_order(o) for o in validation.orders],
        "rows": [_row(r) for r in validation.rows],
        "without_prediction": [{"why": why, "rows": n} for why, n in validation.reasons],
        "worst": [
            {"row": m.row.row.number, "metric": m.metric, "predicted": m.predicted, "measured": m.measured}
            | {"error": finite(m.error)}
            for m in worst
        ],
    }


def _group(group: GroupErrors) -> dict[str, Any]:
    return {
        "group": group.group,
        "metric": group.metric,
        **_errors(group.errors),
        "confidence": group.confidence or None,
        "fitted": group.fitted,
        "peer": None if group.peer is None else _errors(group.peer),
        "where_peer_answers": None if group.ours_where_peer is None else _errors(group.ours_where_peer),
    }


def _errors(errors: Errors) -> dict[str, Any]:
    return {
        "n": errors.n,
        "mape": finite(errors.mape),
        "median_ape": finite(errors.median_ape),
        "bias": finite(errors.bias),
        "spearman": None if errors.spearman is None else finite(errors.spearman),
    }


def _order(order: Order) -> dict[str, Any]:
    return {
        "metric": order.metric,
        "confidence": order.confidence or None,
        "who": order.who,
        "groups": order.groups,
        "spearman_median": order.median,
        "spearman_p10": order.tenth_percentile,
        "regret_median": order.median_regret,
        "regret_p90": order.regret_90,
    }


def _row(row: Predicted) -> dict[str, Any]:
    labels = row.row.labels
    return {
        "row": row.row.number,
        "predicted": None if row.figures is None else _figures(row.figures),
        "why": row.why or None,
        "measured": _figures(row.row.measured),
        "peer": _figures(row.row.peer) if row.row.peer else None,
        "mode": labels.mode if labels.mode in MODES else None,
        "chip": labels.chip or None,
        "model": labels.model or None,
        "family": labels.family or None,
        "engine": labels.engine or None,
        "confidence": row.row.confidence or None,
        "fitted": row.fitted,
        "id": row.row.id or None,
        "notes": list(row.row.notes),
    }


def _figures(figures: Figures) -> dict[str, float | None]:
    return {metric: figures.get(metric) for metric in METRICS}


_METRIC = one_of(*METRICS)
_ERRORS: dict[str, Schema] = {
    "n": COUNT,
    "mape": MAYBE_NUMBER,
    "median_ape": MAYBE_NUMBER,
    "bias": MAYBE_NUMBER,
    "spearman": {"type": ["number", "null"], "minimum": -1.000001, "maximum": 1.000001},
}
_VALUES: dict[str, Schema] = dict.fromkeys(METRICS, MAYBE_NUMBER)
VALIDATION: Schema = document(
    "pddplan.validation/1",
    "Answer of pddplan validate --json",
    {
        "file": TEXT,
        "layout": TEXT,
        "groups": rows(
            record(
                {
                    "group": TEXT,
                    "metric": _METRIC,
                    **_ERRORS,
                    "confidence": MAYBE_TEXT,
                    "fitted": {"type": ["boolean", "null"]},
                    "peer": record(_ERRORS, nullable=True),
                    "where_peer_answers": record(_ERRORS, nullable=True),
                }
            )
        ),
        "order": rows(
            record(
                {
                    "metric": _METRIC,
                    "confidence": MAYBE_TEXT,
                    "who": one_of("ours", "peer"),
                    "groups": COUNT,
                    **dict.fromkeys(("spearman_median", "spearman_p10", "regret_median", "regret_p90"), NUMBER),
                }
            )
        ),
        "rows": rows(
            record(
                {
                    "row": COUNT,
                    "predicted": record(_VALUES, nullable=True),
                    "why": MAYBE_TEXT,
                    "measured": record(_VALUES),
                    "peer": record(_VALUES, nullable=True),
                    "mode": {"enum": [*MODES, None]},
                    **dict.fromkeys(("chip", "model", "family", "engine", "confidence", "id"), MAYBE_TEXT),
                    "fitted": FLAG,
                    "notes": rows(TEXT),
                }
            ),
            at_least=1,
        ),
        "without_prediction": rows(record({"why": TEXT, "rows": COUNT})),
        "worst": rows(
            record({"row": COUNT, "metric": _METRIC, "predicted": NUMBER, "measured": NUMBER, "error": MAYBE_NUMBER})
        ),
    },
)
