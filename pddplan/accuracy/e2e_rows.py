"""Rows in the columns of AIConfigurator's end-to-end tables, aggregated and disaggregated."""

from __future__ import annotations

from pddplan.accuracy.assemble import Draft, assemble
from pddplan.accuracy.layouts import Layout, checked, of_groups, undo_product
from pddplan.accuracy.names import model_named
from pddplan.accuracy.numbers import MOST_REQUESTS, Row, cell, count, figures, number
from pddplan.accuracy.points import Load, Named, point_of
from pddplan.accuracy.records import MeasuredRow, Metric, Part
from pddplan.estimate.records import Mode

AGGREGATED_COLUMNS = ("system", "backend", "model_path", "tp_size")
DISAGGREGATED_COLUMNS = ("system", "backend", "model_path", "p_tp", "d_tp")
_MEASURED: dict[Metric, str] = {"ttft_ms": "silicon_ttft_ms", "tpot_ms": "silicon_tpot_ms"}
_PEER: dict[Metric, str] = {"ttft_ms": "aic_ttft_ms", "tpot_ms": "aic_tpot_ms"}
_TIMES: tuple[Metric, ...] = ("ttft_ms", "tpot_ms")
_DUMPS = ("db", "csv")  # of InferenceX; anything else is NVIDIA's own validation run


def _named(row: Row) -> Named:
    dump = cell(row, "source").split("-", 1)[0].lower()
    return Named(
        model=cell(row, "model_path"),
        chip=cell(row, "system"),
        engine=cell(row, "backend"),
        version=cell(row, "backend_version"),
        weights=cell(row, "precision"),
        runs="inferencex" if dump in _DUMPS else "nvidia",
        dump=dump,
    )


def _draft(row: Row, mode: Mode) -> Draft:
    measured, notes = figures(row, _MEASURED)
    peer, _ = figures(row, _PEER)
    return Draft(
        named=_named(row),
        mode=mode,
        isl=cell(row, "isl"),
        osl=cell(row, "osl"),
        measured=measured,
        peer=peer,
        source=cell(row, "source"),
        notes=notes,
    )


def _load(row: Row, pool: str) -> Load:
    """Lengths and users; where ``concurrency`` is empty, the batch of each decode rank times the ranks, as in all rows
    that have both."""
    if cell(row, "concurrency") or not cell(row, f"{pool}batch" if pool else "batch_size"):
        users = number(row, "concurrency", MOST_REQUESTS)
    elif pool:
        users = count(row, "d_batch") * count(row, "d_dp", 1) * count(row, "d_num_workers", 1)
    else:
        users = count(row, "batch_size") * count(row, "attention_dp_size", 1)
    return Load(number(row, "isl"), number(row, "osl"), users=users)


def aggregated_row(row_number: int, row: Row) -> MeasuredRow:
    """A row of the aggregated table; its ``concurrency`` is of the whole deployment, which is one instance."""
    draft = _draft(row, "aggregated")

    def parts() -> tuple[Part, ...]:
        layout = _layout(row, draft.named, "", one_node=draft.named.runs == "inferencex")
        return (Part(point_of(draft.named, "aggregated", (layout,), _load(row, "")), _TIMES),)

    return assemble(row_number, draft, parts)


def disaggregated_row(row_number: int, row: Row) -> MeasuredRow:
    """A row of the disaggregated table: two pools of workers, one concurrency for both."""
    draft = _draft(row, "disaggregated")

    def parts() -> tuple[Part, ...]:
        layouts = tuple(_layout(row, draft.named, pool) for pool in ("p_", "d_"))
        return (Part(point_of(draft.named, "disaggregated", layouts, _load(row, "d_")), _TIMES),)

    return assemble(row_number, draft, parts)


def _layout(row: Row, named: Named, pool: str, *, one_node: bool = False) -> Layout:
    """Groups of a pool: attention on tp x dp chips, experts on moe_tp x moe_ep of the same chips. Expert groups that
    aren't stated (0) are the engine's default without expert parallelism."""
    names = ("tp_size", "pp_size", "attention_dp_size") if not pool else (f"{pool}tp", f"{pool}pp", f"{pool}dp")
    expert_names = ("moe_tp_size", "moe_ep_size") if not pool else (f"{pool}moe_tp", f"{pool}moe_ep")
    tp, pp, dp = count(row, names[0]), count(row, names[1], 1), count(row, names[2], 1)
    moe_ep = count(row, expert_names[1], 1)
    moe_tp = count(row, expert_names[0], max(1, tp * dp // moe_ep))
    if one_node:
        tp, dp, moe_tp, moe_ep = undo_product(tp, dp, moe_tp, moe_ep)
    parallelism = checked(of_groups(model_named(named.model), tp, pp, dp, moe_tp, moe_ep))
    return Layout(parallelism, count(row, f"{pool}num_workers", 1) if pool else 1)
