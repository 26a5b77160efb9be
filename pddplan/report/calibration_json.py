"""A calibration as ``pddplan.calibration/1``."""

from __future__ import annotations

from typing import Any

from pddplan.accuracy.calibrate import Calibrated, FittedFactor
from pddplan.accuracy.records import METRICS
from pddplan.accuracy.score import Errors
from pddplan.report.json_schema import (
    COUNT,
    FLAG,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    NUMBER,
    SHARE,
    TEXT,
    Schema,
    document,
    one_of,
    record,
    rows,
)
from pddplan.report.plan_json import finite


def calibration_payload(found: Calibrated, written: str | None) -> dict[str, Any]:
    """Factors in order; errors in percent, ``off_by`` as ratios (1: exact)."""
    before, after = found.off or (None, None)
    return {
        "schema": "pddplan.calibration/1",
        "files": list(found.files),
        "rows": found.rows,
        "rows_used": found.used,
        "written": written,
        "better": found.better,
        "off_by": {"before": before, "after": after},
        "factors": [_factor(f) for f in found.factors],
        "held_out": [
            {"metric": h.metric, "before": _errors(h.before), "after": _errors(h.after)} for h in found.held_out
        ],
        "folds": {
            "count": found.folds.count if found.folds else 0,
            "configurations": found.folds.configurations if found.folds else 0,
            "lone_rows": found.folds.lone if found.folds else 0,
        },
        "not_used": [{"why": why, "rows": n} for why, n in found.reasons],
        "notes": list(found.notes),
    }


def _factor(f: FittedFactor) -> dict[str, Any]:
    return {
        "kind": f.factor.kind,
        "of": f.factor.owner,
        "name": f.factor.name,
        "shipped": f.factor.shipped,
        "fitted": f.value,
        "identified": f.identified,
        "low": f.low,
        "high": f.high,
        "bounds": {"low": f.factor.low, "high": f.factor.high},
        "deviation_left": f.deviation,
        "like": f.like or None,
    }


def _errors(errors: Errors) -> dict[str, Any]:
    return {
        "n": errors.n,
        "mape": finite(errors.mape),
        "median_ape": finite(errors.median_ape),
        "bias": finite(errors.bias),
    }


_ERRORS = record({"n": COUNT, "mape": MAYBE_NUMBER, "median_ape": MAYBE_NUMBER, "bias": MAYBE_NUMBER})
CALIBRATION: Schema = document(
    "pddplan.calibration/1",
    "Answer of pddplan calibrate --json",
    {
        "files": rows(TEXT, at_least=1),
        "rows": COUNT,
        "rows_used": COUNT,
        "written": MAYBE_TEXT,
        "better": {"type": ["boolean", "null"]},
        "off_by": record({"before": MAYBE_NUMBER, "after": MAYBE_NUMBER}),
        "factors": rows(
            record(
                {
                    "kind": one_of("chip", "engine"),
                    "of": TEXT,
                    "name": TEXT,
                    **dict.fromkeys(("shipped", "fitted", "low", "high"), NUMBER),
                    "identified": FLAG,
                    "bounds": record({"low": NUMBER, "high": NUMBER}),
                    "deviation_left": SHARE,
                    "like": MAYBE_TEXT,
                }
            )
        ),
        "held_out": rows(record({"metric": one_of(*METRICS), "before": _ERRORS, "after": _ERRORS})),
        "folds": record({"count": COUNT, "configurations": COUNT, "lone_rows": COUNT}),
        "not_used": rows(record({"why": TEXT, "rows": COUNT})),
        "notes": rows(TEXT),
    },
)
