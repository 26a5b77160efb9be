"""A comparison as ``pddplan.comparison/1``."""

from __future__ import annotations

from typing import Any

from pddplan.plan.compare import Compared, Comparison
from pddplan.plan.turning import TurnsAt
from pddplan.report.json_schema import COUNT, FLAG, MAYBE_NUMBER, NUMBER, TEXT, Schema, document, one_of, record, rows
from pddplan.report.plan_json import finite, plan_payload
from pddplan.report.plan_schema import ARCHITECTURES, PLAN


def comparison_payload(made: Comparison) -> dict[str, Any]:
    return {
        "schema": "pddplan.comparison/1",
        "architectures": [_row_payload(row) for row in made.rows],
        "recommended": made.recommended.architecture if made.recommended is not None else None,
        "turns_at": _turn_payload(made.turns_at),
    }


def _turn_payload(turn: TurnsAt | None) -> dict[str, Any] | None:
    if turn is None:
        return None
    return {"what": turn.what, "unit": turn.unit, "now": turn.now, "value": turn.value, "then": turn.then}


def _row_payload(row: Compared) -> dict[str, Any]:
    return {
        "name": row.architecture,
        "status": "infeasible" if row.needs else row.result.status,
        "where": row.where,
        "hypothetical": row.hypothetical,
        "chunk_tokens": row.chunk_tokens,
        "needs": [{"chip": n.chip, "chips": n.chips, "offered": n.offered} for n in row.needs],
        "bcr": finite(row.result.bcr),
        "plan": plan_payload(row.result),
    }


COMPARISON: Schema = document(
    "pddplan.comparison/1",
    "Answer of pddplan compare --json",
    {
        "architectures": rows(
            record(
                {
                    "name": one_of(*ARCHITECTURES),
                    "status": one_of("feasible", "infeasible", "unknown"),
                    "where": TEXT,
                    "hypothetical": FLAG,
                    "chunk_tokens": COUNT,
                    "needs": rows(record({"chip": TEXT, "chips": COUNT, "offered": COUNT})),
                    "bcr": MAYBE_NUMBER,
                    "plan": PLAN,
                }
            )
        ),
        "recommended": {"enum": [*ARCHITECTURES, None]},
        "turns_at": record(
            {"what": TEXT, "unit": TEXT, "now": NUMBER, "value": NUMBER, "then": one_of("split", "whole")},
            nullable=True,
        ),
    },
)
