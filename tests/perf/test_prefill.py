"""Prefill passes: roofs by hand, chunk sums by brute force, tails, monotonicity."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pddplan.llm.catalogue import load_model
from pddplan.llm.flops import head_flops, prefill_flops
from pddplan.perf.curves import load_curves
from pddplan.perf.prefill import chunk_split
from pddplan.perf.service import RooflinePrefill, prefill_service
from pddplan.spec.catalogue import load_chip
from pddplan.spec.types import Engine
from tests.perf.instances import ENGINE, four_number_chip, ideal_curves, instance

LAYOUTS = {
    "dense": ("h100", "llama-3.1-70b", {"tp": 4}),
    "wide": ("h800", "deepseek-v3", {"dp": 32, "ep": 32}),
    "hidden": ("h800", "deepseek-v3", {"dp": 32, "ep": 32}),
    "sparse": ("h20", "deepseek-v3.2", {"tp": 4, "dp": 4, "ep": 16}),
    "linear": ("h200", "qwen3-next-80b-a3b", {"tp": 2, "ep": 2}),
    "window": ("h100", "gpt-oss-120b", {"tp": 2, "ep": 1}),
    "stages": ("h100", "llama-3.1-70b", {"tp": 2, "pp": 2}),
    "compressed": ("h20", "deepseek-v4-pro", {"dp": 16, "ep": 16}),
}


@lru_cache
def service(name: str, engine: Engine = ENGINE) -> RooflinePrefill:
    chip, model, layout = LAYOUTS[name]
    if name == "hidden":  # two-batch overlap
        engine = replace(engine, overlap_expert_communication=True)
    found = prefill_service(instance(chip, model, engine=engine, **layout))
    assert isinstance(found, RooflinePrefill), found
    return found


def pass_by_hand(s: RooflinePrefill, new: float, cached: float) -> float:
    """Sum of the ops of a pass, without any table."""
    model, pp = s.instance.model, s.parallelism.pp
    stretch = np.ceil(model.layers / pp) * pp / model.layers
    total = sum(op.count * float(op.seconds) for op in s.pass_ops(new, cached))
    return float(total * stretch + s.instance.engine.step_overhead_s)


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - {"hidden"}))  # overlap is not a sum of ops
def test_request_equals_its_passes_one_by_one(name: str) -> None:
    s = service(name)
    rng = np.random.default_rng(2)
    for _ in range(6):
        u, c = float(rng.integers(1, 60_000)), float(rng.integers(0, 100_000))
        times, left, before = [], u, c
        while left > 0:
            step = min(left, 8192.0)
            times.append(pass_by_hand(s, step, before))
            left, before = left - step, before + step
        pp = s.parallelism.pp
        expected = sum(times) / pp + max(times) * (pp - 1) / pp
        assert float(s.request_time_s(u, c, 0.0)) == pytest.approx(expected, rel=0.005)
        assert float(s.last_pass_s(u, c)) == pytest.approx(times[-1], rel=0.005)


@settings(max_examples=60, deadline=None)
@example(name="sparse", uncached=1.0, more=0.0, cached=0.0, longer=1.0, merged=0.0)
@example(name="stages", uncached=4486.0, more=3707.0, cached=0.0, longer=0.0, merged=0.0)  # a short last pass
@given(
    name=st.sampled_from(sorted(LAYOUTS)),
    uncached=st.floats(1, 100_000),
    more=st.floats(0, 20_000),
    cached=st.floats(0, 300_000),
    longer=st.floats(0, 50_000),
    merged=st.sampled_from([0.0, 1.0]),
)
def test_time_never_falls(name: str, uncached: float, more: float, cached: float, longer: float, merged: float) -> None:
    s = service(name)
    t = s.request_time_s([uncached, uncached + more, uncached], [cached, cached, cached + longer], merged)
    assert t[1] >= t[0] * (1 - 1e-6)
    assert t[2] >= t[0] * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(LAYOUTS)), new=st.floats(1, 8192), cached=st.floats(0, 200_000))
def test_no_op_beats_a_roof(name: str, new: float, cached: float) -> None:
    s = service(name)
    chip = s.instance.chip
    for op in s.pass_ops(new, cached):
        if float(op.seconds) == 0.0:
            continue
        assert op.flops / op.seconds <= max(chip.peak_flops.values()) * (1 + 1e-9), op.name
        assert op.memory_bytes / op.seconds <= chip.memory_bytes_per_s * (1 + 1e-9), op.name
    used = s.utilization(new, cached, 1.0)
    for share in (used.compute, used.memory_bandwidth, used.memory_capacity, used.interconnect):
        assert 0.0 <= share <= 1.0


def test_ideal_chip_computes_at_its_peak() -> None:
    """A long prompt is bound by compute: FLOPs of ``llm.flops`` / peak, an implementation that knows no ops.

    Norms and activations move bytes on top (2 to 4 % here).
    """
    chip = load_chip("h20")  # 37 FLOP per byte: the roof is compute everywhere
    engine = replace(ENGINE, step_overhead_s=0.0)
    s = prefill_service(instance(chip, "llama-3.1-8b", engine=engine, curves=ideal_curves(load_curves(chip))))
    assert isinstance(s, RooflinePrefill)
    model = load_model("llama-3.1-8b")
    for u, c in ((8192.0, 0.0), (30_000.0, 0.0), (8192.0, 50_000.0)):
        heads = head_flops(model)  # one row in both; at one row the head is bound by memory
        roof = (float(prefill_flops(model, u, c)) - heads) / chip.peak_flops["bf16"]
        assert roof < float(s.request_time_s(u, c, 0.0)) < 1.05 * roof


def test_chunk_split() -> None:
    full, tail = chunk_split(np.array([1.0, 8191.0, 8192.0, 8193.0, 20_000.0]), 8192)
    assert full.tolist() == [0, 0, 0, 1, 2]
    assert tail.tolist() == [1, 8191, 8192, 1, 20_000 - 2 * 8192]


def test_whole_chunk_costs_the_same_alone_and_shared() -> None:
    s = service("dense")
    alone, shared = (float(s.request_time_s(3 * 8192.0, 0.0, m)) for m in (0.0, 1.0))
    assert shared == pytest.approx(alone, rel=1e-6)


def test_short_tail_shares_cheaply() -> None:
    """64 tokens alone read all weights; their share of a full pass is less than a tenth of that."""
    s = service("dense")
    alone, shared = (float(s.request_time_s(64.0, 0.0, m)) for m in (0.0, 1.0))
    assert shared < 0.2 * alone
    middle = float(s.request_time_s(64.0, 0.0, 0.25))
    assert middle == pytest.approx(0.75 * alone + 0.25 * shared)


def test_cut_has_no_dips_and_never_has() -> None:
    """Tokens per second at saturation against length: smooth with cut, a drop just above a whole chunk with never."""
    lengths = np.array([8192.0, 8192.0 + 300.0])
    rates = {}
    for mode in ("cut", "never", "whole_fit"):
        s = service("dense", replace(ENGINE, tail_merge=mode))
        rates[mode] = lengths / s.saturated_time_s(lengths, 0.0)
    assert rates["cut"][1] > 0.99 * rates["cut"][0]
    assert rates["never"][1] < 0.98 * rates["never"][0]
    assert np.allclose(rates["whole_fit"], rates["never"], rtol=1e-6)  # a next request of 8,192 never fits the room


def test_whole_fit_merges_what_fits() -> None:
    """Tail 1,808 of 10,000 leaves room for 6,384: requests of 4,000 fit, those of 10,000 don't."""
    s = service("dense", replace(ENGINE, tail_merge="whole_fit"))
    chance = s.merge_probability([10_000.0, 4_000.0], [0.0, 0.0], [0.3, 0.7])
    assert chance == pytest.approx([0.7, 0.7])
    assert s.merge_probability([10_000.0, 8_000.0], 0.0) == pytest.approx([0.0, 0.0])


def test_prefix_costs_attention_only() -> None:
    s = service("wide")
    fresh, prefixed, whole = s.request_time_s([2048.0, 2048.0, 34_816.0], [0.0, 32_768.0, 0.0], 0.0)
    assert fresh < prefixed < whole


def test_pipeline_overlaps_chunks() -> None:
    """With 2 stages a long request holds each half as long; only its last chunk pays the way through."""
    piped = service("stages")
    many = float(piped.request_time_s(16 * 8192.0, 0.0, 0.0))
    work = 16 * 8192.0
    one_by_one = sum(pass_by_hand(piped, 8192.0, 8192.0 * j) for j in range(16))
    assert 0.5 * one_by_one < many < 0.56 * one_by_one
    assert float(piped.saturated_time_s(work, 0.0)) == pytest.approx(one_by_one / 2, rel=0.005)


def test_four_numbers_make_a_chip() -> None:
    s = prefill_service(instance(four_number_chip(), "llama-3.1-8b"))
    assert isinstance(s, RooflinePrefill)
    roof = float(prefill_flops(load_model("llama-3.1-8b"), 8192.0, 0.0)) / 400e12
    assert roof < float(s.request_time_s(8192.0, 0.0, 0.0)) < 3.0 * roof


def test_shapes_broadcast() -> None:
    s = service("dense")
    assert s.request_time_s(np.full((3, 1), 100.0), np.zeros(4), 0.5).shape == (3, 4)
    assert s.request_time_s(100.0, 0.0, 0.0).shape == ()
