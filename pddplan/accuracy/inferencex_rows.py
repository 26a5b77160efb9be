"""Rows of InferenceX: the aggregated results of its runs, and the rows of its data base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pddplan.accuracy.assemble import Draft, assemble
from pddplan.accuracy.bench_rows import text_of
from pddplan.accuracy.layouts import Layout, checked
from pddplan.accuracy.names import chip_named, model_named
from pddplan.accuracy.numbers import MOST_REQUESTS, Row, cell, count, figures, number
from pddplan.accuracy.points import Load, Named, point_of
from pddplan.accuracy.records import MeasuredRow, Metric, NoPoint, Part
from pddplan.accuracy.settings import stated as stated_settings
from pddplan.estimate.records import Mode
from pddplan.llm.parameters import parameters
from pddplan.perf.instance import Parallelism
from pddplan.units import MS

Record = Mapping[str, Any]
_TIMES: tuple[Metric, ...] = ("ttft_ms", "tpot_ms")
_MEASURED: dict[Metric, str] = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms"}
_POOLS = {"p": "prefill", "d": "decode"}
_NO_DRAFTS = ("", "none", "off", "false")


def is_result(record: Record) -> bool:
    """``hw`` and ``conc`` of a run's result, ``hardware`` and ``conc`` of the data base."""
    return "conc" in record and ("hw" in record or "hardware" in record)


def result_rows(record: Record, stated: Row) -> list[Row]:
    """One row; times are in seconds there, means where there are some, else medians."""
    metrics = record.get("metrics")
    flat = {**record, **(metrics if isinstance(metrics, Mapping) else {})}
    found = {
        "model": text_of(flat.get("model")),
        "chip": text_of(flat.get("hw") or flat.get("hardware")),
        "engine": text_of(flat.get("framework")),
        "weights": text_of(flat.get("precision")),
        "isl": text_of(flat.get("isl")),
        "osl": text_of(flat.get("osl")),
        "concurrency": text_of(flat.get("conc")),
        "drafts": text_of(flat.get("spec_method") or flat.get("spec_decoding") or flat.get("mtp")),
        "mode": "disaggregated" if _true(flat.get("disagg")) else "aggregated",
        "ttft_ms": _milliseconds(flat, "ttft"),
        "tpot_ms": _milliseconds(flat, "tpot"),
    }
    return [{**stated, **{k: v for k, v in {**found, **_layout_cells(flat)}.items() if v}}]


def _milliseconds(record: Record, name: str) -> str:
    seconds = next((v for s in ("mean", "median") if (v := record.get(f"{s}_{name}")) is not None), None)
    return f"{float(seconds) / MS:.10g}" if isinstance(seconds, int | float) else ""


def _layout_cells(record: Record) -> dict[str, str]:
    """Layout of one instance or of both pools. A run over nodes that isn't split states it as decode's."""
    if _true(record.get("disagg")):
        return {
            f"{pool}_{key}": value
            for pool, name in _POOLS.items()
            for key, value in _pool_cells(record, f"{name}_").items()
        }
    return _pool_cells(record, "" if record.get("tp") else "decode_")


def _pool_cells(record: Record, prefix: str) -> dict[str, str]:
    """Its ``tp`` counts the chips of a worker; with attention in data parallel each of them is a rank."""
    attention = record.get(f"{prefix}dp_attention", record.get(f"{prefix}dp_attn"))
    chips = text_of(record.get(f"{prefix}tp"))
    found = {"dp" if _true(attention) else "tp": chips, "ep": text_of(record.get(f"{prefix}ep"))}
    return {**found, "workers": text_of(record.get(f"{prefix}num_workers"))}


def _true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")


def inferencex_row(row_number: int, row: Row) -> MeasuredRow:
    """A row by the rules of InferenceX's runs (``runs.yaml``): lengths, cache formats, chunk budgets."""
    measured, notes = figures(row, _MEASURED)
    named = Named(
        model=cell(row, "model"),
        chip=_chip(cell(row, "chip")),
        engine=cell(row, "engine"),
        weights=cell(row, "weights"),
        runs="inferencex",
    )
    mode: Mode = "disaggregated" if cell(row, "mode") == "disaggregated" else "aggregated"
    draft = Draft(named, mode, cell(row, "isl"), cell(row, "osl"), measured, notes=notes)
    return assemble(row_number, draft, lambda: _parts(row, named, mode))


def _chip(name: str) -> str:
    """The chip of a runner: ``b200-nvs``, ``gb200-nv_1`` name the cluster behind it."""
    for text in (name, name.rsplit("_", 1)[0], name.split("-", 1)[0]):
        try:
            return chip_named(text).id
        except NoPoint:
            continue
    return name


def _parts(row: Row, named: Named, mode: Mode) -> tuple[Part, ...]:
    settings = stated_settings(row)
    if cell(row, "drafts").lower() not in _NO_DRAFTS and "mtp_accepted_tokens" not in settings:
        raise NoPoint("speculative decoding was on: say --with mtp_accepted_tokens=TOKENS")
    load = Load(number(row, "isl"), number(row, "osl"), users=number(row, "concurrency", MOST_REQUESTS))
    prefixes = ("p_", "d_") if mode == "disaggregated" else ("",)
    layouts = tuple(_layout(row, named, prefix) for prefix in prefixes)
    return (Part(point_of(named, mode, layouts, replace(load, settings=settings)), _TIMES),)


def _layout(row: Row, named: Named, prefix: str) -> Layout:
    tp, dp, ep = (count(row, f"{prefix}{key}", 1) for key in ("tp", "dp", "ep"))
    pp = count(row, f"{prefix}pp", 1)
    if not parameters(model_named(named.model)).routed_experts:
        ep = 1
    return Layout(checked(Parallelism(tp, pp, dp, ep)), count(row, f"{prefix}workers", 1))
