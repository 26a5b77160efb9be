"""Rows in the columns of a collection of published serving points: free text where its sources had it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pddplan.accuracy.assemble import Draft, assemble
from pddplan.accuracy.layouts import Layout, of_text
from pddplan.accuracy.names import kv_named, model_named
from pddplan.accuracy.numbers import (
    MOST_RANKS,
    MOST_REQUESTS,
    MOST_TOKENS,
    Row,
    about,
    cell,
    checked,
    count,
    figures,
    parse,
    share,
)
from pddplan.accuracy.points import UNBOUNDED_USERS, Load, Named, point_of
from pddplan.accuracy.records import MeasuredRow, Metric, NoPoint, Part
from pddplan.estimate.records import Mode

COLUMNS = ("tier", "model", "chip", "mode", "n_chips", "parallelism", "decode_parallelism")
_MEASURED: dict[Metric, str] = {
    "ttft_ms": "ttft_ms",
    "tpot_ms": "tpot_ms",
    "prefill_tok_s_per_chip": "prefill_tok_s_chip",
    "decode_tok_s_per_chip": "decode_tok_s_chip",
}
_TIMES: tuple[Metric, ...] = ("ttft_ms", "tpot_ms")
_PREFILL: tuple[Metric, ...] = ("ttft_ms", "prefill_tok_s_per_chip")
_DECODE: tuple[Metric, ...] = ("tpot_ms", "decode_tok_s_per_chip")
_RATES: tuple[Metric, ...] = ("prefill_tok_s_per_chip", "decode_tok_s_per_chip")
_APART = ("prefill+decode isolated", "prefill+decode separately")
_OFFLINE = ("agg offline max-throughput", "agg offline")
_MODES: dict[str, Mode] = {
    "agg": "aggregated",
    "disagg": "disaggregated",
    "prefill": "prefill",
    "prefill-only": "prefill",
    "prefill(production)": "prefill",
    "decode": "decode",
    "decode(production)": "decode",
    "agg baseline decode": "decode",
    **dict.fromkeys((*_OFFLINE, "agg server", "agg interactive"), "aggregated"),
    **dict.fromkeys(_APART, "prefill"),
    "disagg(production)": "disaggregated",
}
STEADY_OUTPUT_TOKENS = 128.0  # of a decode batch whose contexts alone are known
_DERIVED_TIER = "silicon"  # its throughput was computed from its times
_TOKEN_BUDGET = re.compile(r"max_num_tokens (\d+)")
_BATCH_CAP = re.compile(r"gpu_batch_size cap (\d+)")
_BURST = re.compile(r"(\d+) reqs poisson [\d.]+ req/s; max_num_seqs (\d+)")
_FULL = "batch chosen to fill kv memory"
_PASS_TOKENS = re.compile(r"(\d+) tokens")


def serving_row(row_number: int, row: Row) -> MeasuredRow:
    """One published point, or two where prefill and decode were measured apart."""
    text = cell(row, "mode").lower()
    mode: str = _MODES.get(text, "disaggregated" if text.startswith("disagg") else text)
    measured, notes = figures(row, _measured_columns(row, text))
    draft = Draft(
        named=_named(row),
        mode=mode,
        isl=cell(row, "isl"),
        osl=cell(row, "osl"),
        measured=measured,
        confidence=cell(row, "confidence"),
        source=cell(row, "source"),
        id=cell(row, "id"),
        notes=notes,
    )
    return assemble(row_number, draft, lambda: _parts(row, draft.named, text))


def _measured_columns(row: Row, mode: str) -> dict[Metric, str]:
    """Throughput only where it was measured; output over all chips is the decode rate of an aggregated instance."""
    if cell(row, "tier") == _DERIVED_TIER:
        return {metric: _MEASURED[metric] for metric in _TIMES}
    if mode in ("agg server", "agg interactive"):  # the rate is the load
        return {metric: _MEASURED[metric] for metric in _TIMES}
    columns = dict(_MEASURED)
    if _MODES.get(mode) == "aggregated":
        columns["decode_tok_s_per_chip"] = "output_tok_s_chip"
    if _BURST.match(cell(row, "concurrency").lower()):  # TTFT and rates depend on how long the burst lasted
        return {"tpot_ms": "tpot_ms"}
    return columns


def _named(row: Row) -> Named:
    """InferenceX rows by their ids: ``ix-2026…`` and ``ix-slo…`` come from tables, ``ix-dsr1…`` from the data base."""
    name, engine = cell(row, "id"), cell(row, "engine")
    inferencex = name.startswith("ix-")
    dump = "csv" if name.startswith("ix-20") else "db" if inferencex else ""
    return Named(
        model=cell(row, "model"),
        chip=cell(row, "chip"),
        engine=engine,
        version=engine.split(" ", 1)[1].strip() if " " in engine else "",
        weights=cell(row, "weight_dtype"),
        runs="inferencex" if inferencex else "nvidia" if name.startswith("aic-") else cell(row, "source"),
        dump=dump,
    )


def _parts(row: Row, named: Named, text: str) -> tuple[Part, ...]:
    if text in _APART:
        return (_part(row, named, "prefill", _PREFILL), _part(row, named, "decode", _DECODE))
    if text not in _MODES:
        raise NoPoint(f"mode {text!r} doesn't say how many workers there are" if text else "no mode")
    if text == "disagg(production)":
        raise NoPoint("a whole fleet over a day, not an operating point")
    mode = _MODES[text]
    metrics: tuple[Metric, ...] = {"prefill": _PREFILL, "decode": _DECODE}.get(mode, (*_TIMES, *_RATES))
    return (_part(row, named, mode, metrics),)


def _part(row: Row, named: Named, mode: Mode, metrics: tuple[Metric, ...]) -> Part:
    layouts = _layouts(row, named, mode)
    return Part(point_of(named, mode, layouts, _load(row, mode, layouts)), metrics)


def _layouts(row: Row, named: Named, mode: Mode) -> tuple[Layout, ...]:
    model = model_named(named.model)
    chips = count(row, "n_chips", 0) or None
    if mode == "disaggregated":
        return tuple(
            replace(of_text(cell(row, f"{pool}_parallelism"), model, None), replicas=count(row, f"{pool}_workers"))
            for pool in ("prefill", "decode")
        )
    own = cell(row, f"{mode}_parallelism") if mode in ("prefill", "decode") else ""
    one_node = named.runs == "inferencex"
    layout = of_text(own or cell(row, "parallelism"), model, chips, one_node=one_node)
    workers = count(row, f"{mode}_workers", 1) if own else layout.replicas
    return (replace(layout, replicas=workers),)


def _load(row: Row, mode: Mode, layouts: tuple[Layout, ...]) -> Load:
    input_tokens, output_tokens = _lengths(row, mode)
    users, rate = _users_or_rate(row, mode, layouts)
    return Load(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        prefix_hit=share(row, "prefix_hit"),
        users=users,
        rate_per_s=rate,
        requests_per_user=1.0 if _BURST.match(cell(row, "concurrency").lower()) else 10.0,
        settings=_settings(row, mode),
    )


def _lengths(row: Row, mode: Mode) -> tuple[float, float]:
    """Nominal input and output. Decode alone without an output length: ``isl`` is then the context of its steps."""
    input_tokens = checked(about(cell(row, "isl")), "isl", MOST_TOKENS)
    output = cell(row, "osl")
    if output or mode not in ("prefill", "decode"):
        return input_tokens, checked(output, "osl", MOST_TOKENS)
    if mode == "prefill":
        return input_tokens, 1.0
    return max(1.0, input_tokens - STEADY_OUTPUT_TOKENS / 2.0), STEADY_OUTPUT_TOKENS


def _settings(row: Row, mode: Mode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (kv := kv_named(cell(row, "kv_dtype"))) is not None:
        found["kv_cache"] = kv
    if budget := _TOKEN_BUDGET.search(cell(row, "notes")):
        found["chunk_tokens"] = float(budget[1])
    if mode == "prefill" and (tokens := _PASS_TOKENS.fullmatch(cell(row, "batch_per_chip"))):
        found["chunk_tokens"] = float(tokens[1])
    if cap := _BATCH_CAP.fullmatch(cell(row, "batch_per_chip")):
        found["max_batch"] = float(cap[1])
    if burst := _BURST.match(cell(row, "concurrency").lower()):
        found["max_batch"] = float(burst[2])
    return found


def _users_or_rate(row: Row, mode: Mode, layouts: tuple[Layout, ...]) -> tuple[float | None, float | None]:
    """The load: users of a closed loop, or requests per second. ``batch_per_chip`` counts requests, or tokens of a
    pass, on one chip; a burst is its requests, all there at once."""
    mode_text = cell(row, "mode").lower()
    if mode_text in ("agg server", "agg interactive"):
        return None, checked(cell(row, "req_s"), "req_s", MOST_REQUESTS)
    text = cell(row, "concurrency").lower()
    if burst := _BURST.match(text):
        return float(burst[1]), None
    if mode_text in _OFFLINE or text.startswith("unbounded") or parse(text) == -1:
        return UNBOUNDED_USERS, None
    if text:
        return checked(text, "concurrency", MOST_REQUESTS), None
    chips = layouts[0].parallelism.chips * layouts[0].replicas
    batch = cell(row, "batch_per_chip")
    if mode == "prefill" and not parse(batch):
        # passes follow each other without a gap, each full
        return UNBOUNDED_USERS, None
    if batch:
        return checked(batch, "batch_per_chip", MOST_RANKS) * chips, None
    if _FULL in cell(row, "notes").lower():
        return UNBOUNDED_USERS, None
    raise NoPoint("neither concurrency nor batch is stated")
