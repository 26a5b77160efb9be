"""``estimate --json``: the answer, null where a mode has none, and the question it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pddplan
from pddplan.errors import Excuse
from pddplan.estimate.op_table import PassOps
from pddplan.estimate.question import Question
from pddplan.estimate.records import Estimate, OperatingPoint, PoolMemory, TtftParts, pool_roles
from pddplan.report.excuses import excuse_text
from pddplan.report.json_schema import (
    COUNT,
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
from pddplan.units import MS

TTFT = ("mean", "queue", "prefill", "transfer", "first_step")


def estimate_payload(
    question: Question, answer: Estimate | Excuse, tables: Sequence[PassOps], remedy: str
) -> dict[str, Any]:
    """The object of the contract in 4-experience.md; ``why`` says what keeps a point from running, else null."""
    point = question.point
    found = answer if isinstance(answer, Estimate) else None
    return {
        "schema": "pddplan.estimate/1",
        "version": pddplan.__version__,
        "why": f"{excuse_text(answer)}. {remedy}".strip() if isinstance(answer, Excuse) else None,
        **_asked(point),
        "ttft_ms": _ttft(found.ttft if found is not None else None),
        "tpot_ms": found.tpot_s / MS if found is not None and found.tpot_s is not None else None,
        "concurrency": {
            "asked": point.concurrency,
            "effective": found.effective_concurrency if found is not None else None,
        },
        "request_rate_per_s": found.request_rate_per_s if found is not None else None,
        "tokens_per_s_per_chip": {
            "prefill": found.prefill_tokens_per_s_per_chip if found is not None else None,
            "decode": found.decode_tokens_per_s_per_chip if found is not None else None,
            "total": found.total_tokens_per_s_per_chip if found is not None else None,
        },
        "bottleneck": found.bottleneck if found is not None else None,
        "memory_bytes": {pool.role: _memory(pool) for pool in (found.memory if found is not None else ())},
        "passes": [_pass(table) for table in tables],
        "ops": [_op(table, i) for table in tables for i in range(len(table.ops))],
        "assumptions": [
            {"name": a.name, "value": a.value, "source": a.source, "note": a.note} for a in question.assumptions
        ],
    }


def _asked(point: OperatingPoint) -> dict[str, Any]:
    lengths = point.lengths
    return {
        "model": point.model.id,
        "mode": point.mode,
        "engine": point.engine.name,
        "input_tokens": lengths.input_tokens,
        "output_tokens": lengths.output_tokens,
        "prefix_hit": lengths.prefix_hit,
        "shortest": lengths.shortest,
        "asked_rate_per_s": point.request_rate_per_s,
        "chips": point.chips,
        "pools": [
            {
                "role": role,
                "chip": workers.chip.id,
                "workers": workers.count,
                "chips_per_worker": workers.parallelism.chips,
                "parallelism": {key: getattr(workers.parallelism, key) for key in ("tp", "pp", "dp", "ep")},
                "weights": workers.weights,
                "kv_cache": workers.kv_cache,
            }
            for role, workers in zip(pool_roles(point), point.pools, strict=True)
        ],
    }


def _ttft(parts: TtftParts | None) -> dict[str, float | None]:
    return {key: getattr(parts, key) / MS if parts is not None else None for key in TTFT}


def _memory(pool: PoolMemory) -> dict[str, float]:
    """Per chip, but for the pool of the whole worker and what is held in it."""
    m = pool.memory
    return {
        "chip": m.chip_bytes,
        "weights": m.weight_bytes,
        "activations": m.activation_bytes,
        "reserve": m.reserve_bytes,
        "kv_per_chip": m.kv_bytes_per_chip,
        "kv_pool": m.kv_pool_bytes,
        "kv_held": pool.kv_held_bytes,
        "most_requests": pool.most_requests,
    }


def _pass(table: PassOps) -> dict[str, Any]:
    return {
        "role": table.role,
        "phase": table.phase,
        "time_ms": table.time_s / MS,
        "requests": table.requests,
        "new_tokens": table.new_tokens,
        "cached_tokens": table.cached_tokens,
    }


def _op(table: PassOps, index: int) -> dict[str, Any]:
    op = table.ops[index]
    return {
        "name": op.name,
        "phase": op.phase,
        "time_ms": op.time_s / MS,
        "share": op.share,
        "bound": op.bound,
        "fraction_of_peak": op.fraction_of_peak,
    }


_ROLE = one_of("aggregated", "disaggregated", "prefill", "decode")
_PHASE = one_of("prefill", "decode", "mixed")
_MEMORY = record(
    {
        key: NUMBER
        for key in (
            "chip",
            "weights",
            "activations",
            "reserve",
            "kv_per_chip",
            "kv_pool",
            "kv_held",
            "most_requests",
        )
    }
)

ESTIMATE: Schema = document(
    "pddplan.estimate/1",
    "Answer of pddplan estimate --json",
    {
        "version": TEXT,
        "why": MAYBE_TEXT,
        "model": TEXT,
        "mode": _ROLE,
        "engine": TEXT,
        "input_tokens": NUMBER,
        "output_tokens": NUMBER,
        "prefix_hit": SHARE,
        "shortest": SHARE,
        "asked_rate_per_s": MAYBE_NUMBER,
        "chips": COUNT,
        "pools": rows(
            record(
                {
                    "role": _ROLE,
                    "chip": TEXT,
                    "workers": COUNT,
                    "chips_per_worker": COUNT,
                    "parallelism": record({"tp": COUNT, "pp": COUNT, "dp": COUNT, "ep": COUNT}),
                    "weights": TEXT,
                    "kv_cache": TEXT,
                }
            ),
            at_least=1,
        ),
        "ttft_ms": record({key: MAYBE_NUMBER for key in TTFT}),
        "tpot_ms": MAYBE_NUMBER,
        "concurrency": record({"asked": MAYBE_NUMBER, "effective": MAYBE_NUMBER}),
        "request_rate_per_s": MAYBE_NUMBER,
        "tokens_per_s_per_chip": record({"prefill": MAYBE_NUMBER, "decode": MAYBE_NUMBER, "total": MAYBE_NUMBER}),
        "bottleneck": MAYBE_TEXT,
        "memory_bytes": {"type": "object", "additionalProperties": _MEMORY},
        "passes": rows(
            record(
                {
                    "role": _ROLE,
                    "phase": _PHASE,
                    "time_ms": NUMBER,
                    "requests": NUMBER,
                    "new_tokens": NUMBER,
                    "cached_tokens": NUMBER,
                }
            )
        ),
        "ops": rows(
            record(
                {
                    "name": TEXT,
                    "phase": _PHASE,
                    "time_ms": NUMBER,
                    "share": SHARE,
                    "bound": one_of("compute", "memory", "network", "overhead"),
                    "fraction_of_peak": SHARE,
                }
            )
        ),
        "assumptions": rows(
            record({"name": TEXT, "value": {"type": ["number", "string"]}, "source": TEXT, "note": TEXT})
        ),
    },
)
