"""Results of ``vllm bench serve`` and ``sglang.bench_serving`` as rows of measurements.

Both say how they sent requests and what came back, neither where: chip and layout come from the person, or from keys
that were put into the result (``vllm bench serve --metadata chip=h200 tp=8``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pddplan.accuracy.contract_rows import COLUMNS
from pddplan.accuracy.names import engine_named
from pddplan.accuracy.numbers import Row
from pddplan.units import MS

Record = Mapping[str, Any]
_FULL = 0.9  # of the most users: below it the rate was the load, not the users
_LEAST_RANGE = 0.01
_OTHER_NAMES = {"gpu": "chip", "hw": "chip", "tensor_parallel_size": "tp", "data_parallel_size": "dp"}
_SERVER = {"tp_size": "tp", "dp_size": "dp", "pp_size": "pp", "ep_size": "ep", "model_path": "model"}


def is_sglang(record: Record) -> bool:
    """Whether SGLang's client wrote it."""
    return "mean_ttft_ms" in record and any(k in record for k in ("input_throughput", "random_range_ratio"))


def is_vllm(record: Record) -> bool:
    """Whether vLLM's client, or one derived from it, wrote it."""
    return "mean_ttft_ms" in record and ("total_input_tokens" in record or "request_throughput" in record)


def vllm_rows(record: Record, stated: Row) -> list[Row]:
    """One row; the engine is vLLM unless the back end's name or the person says otherwise."""
    backend = text_of(record.get("backend") or record.get("endpoint_type"))
    engine = backend if engine_named(backend) != "generic" else "vllm"
    found = {"engine": engine, "model": text_of(record.get("model_id") or record.get("model"))}
    return [_row(record, {**found, **_metadata(record)}, stated)]


def sglang_rows(record: Record, stated: Row) -> list[Row]:
    """One row; lengths of random prompts are uniform in ``random_range_ratio`` to 1 of their longest."""
    server = record.get("server_info")
    known = _server_layout(server) if isinstance(server, Mapping) else {}
    backend = text_of(record.get("backend"))
    engine = backend if engine_named(backend) != "generic" else "sglang"
    found = {"engine": engine, "model": text_of(record.get("model_id") or record.get("model"))}
    found = {k: v for k, v in found.items() if v}
    ratio = record.get("random_range_ratio")
    random = text_of(record.get("dataset_name")).startswith("random")
    shortest = float(ratio) if random and isinstance(ratio, int | float) and 0 <= ratio < 1 else 1.0
    return [_row(record, {**known, **found, **_metadata(record)}, stated, shortest)]


def _server_layout(server: Record) -> dict[str, str]:
    """SGLang's ``tp_size`` counts all chips where attention runs in data parallel over them; its ``dp_size`` counts
    replicas where it doesn't."""
    known = _renamed(server, _SERVER)
    ranks = int(number_of(server, "dp_size", 1.0))
    if server.get("enable_dp_attention"):
        known["tp"] = str(max(1, int(number_of(server, "tp_size", 1.0)) // max(ranks, 1)))
    elif ranks > 1:
        known["workers"] = known.pop("dp")
    return known


def _metadata(record: Record) -> dict[str, str]:
    """Keys that a person put into the result, under the names of columns."""
    plain = {c: text_of(record[c]) for c in COLUMNS if isinstance(record.get(c), str | int | float) and c != "source"}
    return {**_renamed(record, _OTHER_NAMES), **plain}


def _renamed(record: Record, names: Mapping[str, str]) -> dict[str, str]:
    return {new: text_of(record[old]) for old, new in names.items() if record.get(old) is not None}


def _row(record: Record, found: Mapping[str, str], stated: Row, shortest: float = 1.0) -> Row:
    """Lengths are means of what was sent and answered; nominal ones are ``2 mean/(1 + shortest)``."""
    done = number_of(record, "completed", number_of(record, "num_prompts", 0.0))
    if done <= 0:
        raise ValueError("'completed' says that no request was answered")
    stretch = 2.0 / (1.0 + shortest)
    lengths = {
        "isl": f"{stretch * number_of(record, 'total_input_tokens') / done:.10g}",
        "osl": f"{stretch * number_of(record, 'total_output_tokens') / done:.10g}",
    }
    if shortest < 1.0:
        lengths["length_range"] = f"{max(shortest, _LEAST_RANGE):.10g}"
    measured = {
        "ttft_ms": f"{number_of(record, 'mean_ttft_ms'):.10g}",
        "tpot_ms": f"{number_of(record, 'mean_tpot_ms'):.10g}",
    }
    own = {k: v for k, v in found.items() if v}
    return {"mode": "aggregated", **stated, **own, **lengths, **measured, **_load(record, done)}


def _load(record: Record, done: float) -> dict[str, str]:
    """Users where so many kept the server busy, else the rate. A client with a rate and a most of users is taken by
    what bound it: the mean number of requests in flight, by Little's law."""
    rate, most = _finite(record.get("request_rate")), _finite(record.get("max_concurrency"))
    if most is None and rate is None:  # all requests at once
        return {"concurrency": f"{done:.10g}", "requests_per_user": "1"}
    if most is None or (rate is not None and _in_flight(record, done) < _FULL * min(most, done)):
        return {"request_rate_per_s": f"{rate:.10g}"}
    users = min(most, done)
    return {"concurrency": f"{users:.10g}", "requests_per_user": f"{done / users:.10g}"}


def _in_flight(record: Record, done: float) -> float:
    """``requests/s x (TTFT + (output - 1) TPOT)``, means."""
    output = number_of(record, "total_output_tokens") / done
    seconds = MS * (number_of(record, "mean_ttft_ms") + (output - 1.0) * number_of(record, "mean_tpot_ms"))
    return number_of(record, "request_throughput", 0.0) * seconds


def _finite(value: object) -> float | None:
    """A positive finite number; None for ``inf``, "inf", null and anything else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def number_of(record: Record, key: str, default: float | None = None) -> float:
    """A finite number of a result; ValueError that names the key otherwise."""
    value = record.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        what = "is missing" if value is None else "is not a finite number"
        raise ValueError(f"{key!r} {what}")
    return float(value)


def text_of(value: object) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)
