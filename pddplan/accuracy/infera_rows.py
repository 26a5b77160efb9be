"""``profile.json`` of AMD Infera's planner: one prefill and one decode replica, swept.

``prefill``: prompt lengths and the time to first token of a request alone. ``decode``: time between tokens on a grid of
context lengths (rows) and shares of the KV cache in use (columns), which its sweep reaches by so many requests at once:
``share x max_kv_tokens / context``, each with ``context - output/2`` prompt tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pddplan.accuracy.numbers import Row

Record = Mapping[str, Any]
OUTPUT_TOKENS = 256.0  # its sweep's default of --decode-osl, which the file doesn't keep
SHORTEST_PROMPT = 16.0
_REQUESTS_ALONE = "10"


def is_profile(record: Record) -> bool:
    """Both sections, with the axes of each."""
    prefill, decode = record.get("prefill"), record.get("decode")
    return isinstance(prefill, dict) and isinstance(decode, dict) and ("isl" in prefill or "itl_ms" in decode)


def profile_rows(record: Record, stated: Row) -> list[Row]:
    """A row for each prompt length and for each cell of the grid; ValueError where the lists don't fit together.

    Its throughputs are quotients of the times and say nothing more. ``--with osl=N``: another ``--decode-osl``.
    """
    output = float(stated.get("osl") or OUTPUT_TOKENS)
    base = {key: value for key, value in stated.items() if key != "osl"}
    found: list[Row] = []
    for length, milliseconds in zip(*_prefill_lists(record["prefill"]), strict=True):
        found.append({**base, **_layout(record, "prefill", stated), **_prefill(length, milliseconds)})
    for cells in _decode(record["decode"], output):
        found.append({**base, **_layout(record, "decode", stated), **cells})
    return found


def _layout(record: Record, role: str, stated: Row) -> dict[str, str]:
    """The chips of a replica in tensor parallel, where the person doesn't say otherwise."""
    if any(stated.get(key) for key in ("tp", "dp", "pp")):
        return {}
    chips = record.get(f"{role}_engine_num_gpu", 1)
    if isinstance(chips, bool) or not isinstance(chips, int) or chips < 1:
        raise ValueError(f"{role}_engine_num_gpu is not a count of chips")
    return {"tp": str(chips)}


def _prefill_lists(section: Record) -> tuple[list[float], list[float]]:
    lengths, times = _numbers(section, "prefill", "isl"), _numbers(section, "prefill", "ttft_ms")
    if len(lengths) != len(times):
        raise ValueError(f"prefill.isl has {len(lengths)} values, prefill.ttft_ms {len(times)}")
    return lengths, times


def _prefill(length: float, milliseconds: float) -> dict[str, str]:
    cells = {"mode": "prefill", "isl": f"{length:.10g}", "osl": "1", "concurrency": "1"}
    return {**cells, "requests_per_user": _REQUESTS_ALONE, "ttft_ms": f"{milliseconds:.10g}"}


def _decode(section: Record, output: float) -> list[dict[str, str]]:
    contexts, shares = _numbers(section, "decode", "context_length"), _numbers(section, "decode", "kv_usage")
    grid, room = section.get("itl_ms"), section.get("max_kv_tokens")
    if isinstance(room, bool) or not isinstance(room, int | float) or not 0 < room < math.inf:
        raise ValueError("decode.max_kv_tokens is not a count of tokens")
    fits = isinstance(grid, list) and len(grid) == len(contexts)
    if not fits or not all(isinstance(line, list) and len(line) == len(shares) for line in grid or ()):
        raise ValueError(f"decode.itl_ms is no grid of {len(contexts)} contexts by {len(shares)} shares")
    assert isinstance(grid, list)
    return [
        {
            "mode": "decode",
            "isl": f"{max(SHORTEST_PROMPT, context - 0.5 * output):.10g}",
            "osl": f"{output:.10g}",
            "concurrency": str(max(1, round(share * room / context))),
            "tpot_ms": f"{_number(value, 'decode.itl_ms'):.10g}",
        }
        for context, line in zip(contexts, grid, strict=True)
        for share, value in zip(shares, line, strict=True)
    ]


def _numbers(section: Record, name: str, key: str) -> list[float]:
    values = section.get(key)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ValueError(f"{name}.{key} is no list of numbers")
    return [_number(value, f"{name}.{key}") for value in values]


def _number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{key} holds {value!r}, which is no positive number")
    return float(value)
