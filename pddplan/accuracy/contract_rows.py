"""Rows in the columns of pddplan's own table of measurements."""

from __future__ import annotations

from pddplan.accuracy.assemble import Draft, assemble
from pddplan.accuracy.layouts import Layout, checked
from pddplan.accuracy.names import mode_named
from pddplan.accuracy.numbers import MOST_REQUESTS, Row, cell, count, figures, number, share
from pddplan.accuracy.points import UNBOUNDED_USERS, Load, Named, point_of
from pddplan.accuracy.records import MeasuredRow, Metric, NoPoint, Part
from pddplan.accuracy.settings import SETTING_COLUMNS, stated
from pddplan.estimate.records import Mode
from pddplan.perf.instance import Parallelism

REQUIRED_COLUMNS = ("model", "chip", "mode", "isl")
MEASURED: dict[Metric, str] = {
    "ttft_ms": "ttft_ms",
    "tpot_ms": "tpot_ms",
    "prefill_tok_s_per_chip": "prefill_tok_s_per_chip",
    "decode_tok_s_per_chip": "decode_tok_s_per_chip",
}
PEER: dict[Metric, str] = {"ttft_ms": "aic_ttft_ms", "tpot_ms": "aic_tpot_ms"}
LAYOUT_COLUMNS = ("tp", "pp", "dp", "ep")
POOLS = ("p", "d")
PROVENANCE_COLUMNS = ("id", "source", "url", "date", "confidence")
COLUMNS = (
    *("model", "chip", "mode", "engine", "weights", "kv_cache", "isl", "osl", "prefix_hit"),
    *("concurrency", "request_rate_per_s", "requests_per_user", "workers", *LAYOUT_COLUMNS),
    *(f"{pool}_{key}" for pool in POOLS for key in ("workers", *LAYOUT_COLUMNS)),
    *SETTING_COLUMNS,
    *MEASURED.values(),
    *PEER.values(),
    *PROVENANCE_COLUMNS,
    "worst",
)
ADDED = "added"  # in the column ``worst``: not chosen by the rule, but for how far off the model is
UNBOUNDED = "unbounded"  # concurrency of a run that keeps the engine full
_OF_MODE: dict[Mode, tuple[Metric, ...]] = {
    "aggregated": ("ttft_ms", "tpot_ms", "prefill_tok_s_per_chip", "decode_tok_s_per_chip"),
    "disaggregated": ("ttft_ms", "tpot_ms", "prefill_tok_s_per_chip", "decode_tok_s_per_chip"),
    "prefill": ("ttft_ms", "prefill_tok_s_per_chip"),
    "decode": ("tpot_ms", "decode_tok_s_per_chip"),
}


def contract_row(row_number: int, row: Row) -> MeasuredRow:
    """One operating point. Without concurrency and rate, prefill and decode alone run as fast as they go."""
    measured, notes = figures(row, MEASURED)
    peer, _ = figures(row, PEER)
    named = Named(
        model=cell(row, "model"),
        chip=cell(row, "chip"),
        engine=cell(row, "engine"),
        weights=cell(row, "weights"),
    )
    try:
        mode: str = mode_named(cell(row, "mode"))
    except NoPoint:
        mode = cell(row, "mode")
    draft = Draft(
        named=named,
        mode=mode,
        isl=cell(row, "isl"),
        osl=cell(row, "osl"),
        measured=measured,
        peer=peer,
        confidence=_tier(row),
        source=cell(row, "source"),
        id=cell(row, "id"),
        notes=notes,
    )
    return assemble(row_number, draft, lambda: _parts(row, named))


def _tier(row: Row) -> str:
    """Tier as stated. A point that was added for its error would spoil an average: it is a tier of its own."""
    tier = cell(row, "confidence").upper()
    return f"{tier} worst".strip() if cell(row, "worst") == ADDED else tier


def _parts(row: Row, named: Named) -> tuple[Part, ...]:
    mode = mode_named(cell(row, "mode"))
    point = point_of(named, mode, _layouts(row, mode), _load(row, mode))
    return (Part(point, _OF_MODE[mode]),)


def _layouts(row: Row, mode: Mode) -> tuple[Layout, ...]:
    if mode != "disaggregated":
        return (_layout(row, ""),)
    return tuple(_layout(row, f"{pool}_") for pool in POOLS)


def _layout(row: Row, prefix: str) -> Layout:
    tp, pp, dp, ep = (count(row, prefix + key, 1) for key in LAYOUT_COLUMNS)
    return Layout(checked(Parallelism(tp, pp, dp, ep)), count(row, f"{prefix}workers", 1))


def _load(row: Row, mode: Mode) -> Load:
    users, rate = cell(row, "concurrency"), cell(row, "request_rate_per_s")
    alone = mode in ("prefill", "decode")
    if users and rate:
        raise NoPoint("both concurrency and request_rate_per_s are stated: a load is one of them")
    if not users and not rate and not alone:
        raise NoPoint("neither concurrency nor request_rate_per_s is stated")
    unbounded = users.lower() == UNBOUNDED or (alone and not users and not rate)
    return Load(
        input_tokens=number(row, "isl"),
        output_tokens=number(row, "osl", default=1.0 if mode == "prefill" else None),
        prefix_hit=share(row, "prefix_hit"),
        users=None if rate else UNBOUNDED_USERS if unbounded else number(row, "concurrency", MOST_REQUESTS),
        rate_per_s=number(row, "request_rate_per_s", MOST_REQUESTS) if rate else None,
        requests_per_user=number(row, "requests_per_user", default=10.0),
        settings=stated(row),
    )
