"""Per-op tables: they add up to the pass, what bounds an op is what its size says, shares of a peak stay below one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddplan.estimate import pools
from pddplan.estimate.op_table import PassOps, op_tables
from pddplan.estimate.records import Lengths, OperatingPoint
from pddplan.perf.curves import load_curves
from pddplan.perf.instance import Parallelism
from pddplan.perf.service import RooflineAggregated, RooflineDecode, RooflinePrefill
from pddplan.spec.catalogue import load_chip
from tests.estimate.points import answer, point, workers
from tests.perf.instances import ideal_curves

WIDE = workers("h200", Parallelism(tp=1, dp=16, ep=16))
LONG = Lengths(20_000, 1024, prefix_hit=0.3, shortest=0.8)
CASES = {
    "dense, aggregated": point("aggregated", "llama-3.1-70b", workers("h100", Parallelism(tp=4)), concurrency=64),
    "dense, pipeline": point(
        "disaggregated", "llama-3.1-70b", *[workers("h100", Parallelism(tp=2, pp=3))] * 2, concurrency=16
    ),
    "experts, wide": point("disaggregated", "deepseek-v3", WIDE, WIDE, lengths=LONG, engine="sglang", concurrency=256),
    "experts, hidden exchange and drafts": point(
        "disaggregated",
        "deepseek-v3",
        WIDE,
        WIDE,
        concurrency=1024,
        changes={"overlap_expert_communication": True, "mtp_accepted_tokens": 1.7},
    ),
    "aggregated, hidden exchange": point(
        "aggregated", "deepseek-v3", WIDE, concurrency=1024, changes={"overlap_expert_communication": True}
    ),
    "sparse attention": point(
        "aggregated",
        "deepseek-v3.2",
        workers("h200", Parallelism(tp=8)),
        lengths=LONG,
        engine="sglang",
        changes={"mtp_accepted_tokens": 2.0},
        concurrency=32,
    ),
    "linear attention": point(
        "aggregated",
        "qwen3.5-397b-a17b",
        workers("b200", Parallelism(tp=4), weights="nvfp4"),
        engine="generic",
        concurrency=50,
    ),
    "prefill alone": point("prefill", "qwen3-32b", workers("h20", Parallelism(tp=2)), lengths=LONG, concurrency=4),
    "decode alone": point("decode", "gpt-oss-120b", workers("mi300x", weights="native"), concurrency=33),
}


def tables(asked: OperatingPoint) -> tuple[PassOps, ...]:
    return op_tables(asked, answer(asked))


@pytest.mark.parametrize("name", CASES)
def test_ops_add_up_to_the_pass(name: str) -> None:
    """Against the services, which the estimate's times come from."""
    asked = CASES[name]
    services = pools.point_services(asked)
    assert isinstance(services, tuple)
    context, found = pools.running_context(asked.lengths), tables(asked)
    assert {t.phase for t in found} == {
        "aggregated": {"decode", "mixed"},
        "disaggregated": {"prefill", "decode"},
        "prefill": {"prefill"},
        "decode": {"decode"},
    }[asked.mode]
    for table in found:
        service = services[-1] if table.phase == "decode" else services[0]
        if isinstance(service, RooflinePrefill):
            seconds = service.request_time_s(table.new_tokens, table.cached_tokens, 0.0)
        elif isinstance(service, RooflineDecode):
            seconds = service.step_time_s(table.requests, context) * asked.engine.mtp_accepted_tokens
        else:
            assert isinstance(service, RooflineAggregated)
            seconds = service.step_time_s(table.requests, context, table.new_tokens, table.cached_tokens)
        assert sum(op.time_s for op in table.ops) == pytest.approx(float(seconds), rel=1e-9)
        assert table.time_s == pytest.approx(float(seconds), rel=1e-9)
        assert sum(op.share for op in table.ops) == pytest.approx(1.0, rel=1e-9)
        assert [op.time_s for op in table.ops] == sorted((op.time_s for op in table.ops), reverse=True)
        assert len({op.name for op in table.ops}) == len(table.ops)
        assert all(0.0 <= op.fraction_of_peak <= 1.0 for op in table.ops)
        assert {op.phase for op in table.ops} == {table.phase}


def test_what_bounds_an_op() -> None:
    """Large multiplications are bound by compute, few rows by the weights' bytes, small kernels by their launch."""
    step, mixed = tables(CASES["dense, aggregated"])
    few = {op.name: op for op in step.ops}
    many = {op.name: op for op in mixed.ops}
    assert few["ffn in"].bound == "memory" and many["ffn in"].bound == "compute"
    assert many["ffn all-reduce"].bound == "network"
    assert few["kv write"].bound == "overhead"
    assert few["gqa attention"].bound == "memory" and many["gqa attention, prompt"].bound == "compute"
    host = [op for op in step.ops if op.name.startswith("host")]
    assert {op.bound for op in host} == {"overhead"} and {op.fraction_of_peak for op in host} == {0.0}
    engine = CASES["dense, aggregated"].engine
    assert few["host, per step"].time_s == engine.step_overhead_s
    assert few["host, per request"].time_s == pytest.approx(engine.request_overhead_s * step.requests)


def test_one_request_on_a_cluster_waits_for_messages() -> None:
    one = replace(CASES["experts, wide"], concurrency=1.0)
    step = next(t for t in tables(one) if t.phase == "decode")
    assert {op.bound for op in step.ops if op.name.startswith("expert d")} == {"overhead"}


def test_an_op_at_its_roof_reaches_all_of_it() -> None:
    """With perfect curves: every op that isn't communication or host is at its roof, which is what the share says."""
    chip = load_chip("h100")
    perfect = replace(workers(), curves=ideal_curves(load_curves(chip)), weights="bf16", kv_cache="bf16")
    step, mixed = tables(point("aggregated", "llama-3.1-8b", perfect, changes={"prompt_factor": 1.0}, concurrency=32))
    kernels = [op for op in (*step.ops, *mixed.ops) if not op.name.startswith("host")]
    assert kernels and all(op.bound in ("compute", "memory") for op in kernels)
    assert min(op.fraction_of_peak for op in kernels) > 0.99


def test_hidden_exchange_counts_as_far_as_it_is_not_hidden() -> None:
    hidden = CASES["experts, hidden exchange and drafts"]
    seen = replace(hidden, engine=replace(hidden.engine, overlap_expert_communication=False))
    exchange = [
        sum(op.time_s for t in tables(p) if t.phase == "prefill" for op in t.ops if op.name.startswith("expert "))
        for p in (hidden, seen)
    ]
    assert exchange[0] < exchange[1]
