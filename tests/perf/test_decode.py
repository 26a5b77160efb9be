"""A decode step: roof by hand, monotonicity, unequal ranks, pipeline, drafts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.llm.catalogue import load_model
from pddplan.llm.decode import decode_bytes
from pddplan.llm.types import FeedForward
from pddplan.perf.curves import load_curves
from pddplan.perf.decode import rank_imbalance
from pddplan.perf.layers import busiest_rank
from pddplan.perf.maxima import normal_maximum
from pddplan.perf.service import RooflineDecode, decode_service
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
    "block-sparse": ("h200", "minimax-m3", {"tp": 4, "dp": 2, "ep": 8}),
    "gated": ("gb200", "kimi-k3", {"tp": 4, "dp": 8, "ep": 32}),
    "low rank": ("h800", "step-3", {"tp": 4, "dp": 4, "ep": 16}),
    "compressed": ("h20", "deepseek-v4-pro", {"dp": 16, "ep": 16}),
}
UNEVEN = replace(ENGINE, context_sigma=0.8)


@lru_cache
def service(name: str, engine: Engine = UNEVEN) -> RooflineDecode:
    chip, model, layout = LAYOUTS[name]
    if name == "hidden":  # two-batch overlap
        engine = replace(engine, overlap_expert_communication=True)
    found = decode_service(instance(chip, model, engine=engine, **layout))
    assert isinstance(found, RooflineDecode), found
    return found


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(LAYOUTS)),
    batch=st.floats(0, 3000),
    more=st.floats(0, 500),
    context=st.floats(1, 200_000),
    longer=st.floats(0, 50_000),
)
def test_step_never_falls(name: str, batch: float, more: float, context: float, longer: float) -> None:
    s = service(name)
    t = s.step_time_s(np.array([batch, batch + more, batch]), np.array([context, context, context + longer]))
    assert t[1] >= t[0] * (1 - 1e-9)
    assert t[2] >= t[0] * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(LAYOUTS)), batch=st.floats(0.1, 4000), context=st.floats(1, 200_000))
def test_no_op_beats_a_roof(name: str, batch: float, context: float) -> None:
    """Per op: FLOP/s, bytes/s and sent bytes/s at most the chip's; so are their sums over a step."""
    s = service(name)
    chip = s.instance.chip
    for op in s.step_ops(batch, context):
        if float(op.seconds) == 0.0:
            continue
        assert op.flops / op.seconds <= max(chip.peak_flops.values()) * (1 + 1e-9), op.name
        assert op.memory_bytes / op.seconds <= chip.memory_bytes_per_s * (1 + 1e-9), op.name
    used = s.utilization(batch, context)
    for share in (used.compute, used.memory_bandwidth, used.memory_capacity, used.interconnect):
        assert 0.0 <= share <= 1.0


def test_ideal_chip_reads_weights_and_cache_at_full_bandwidth() -> None:
    """Batch 1 is bound by memory: bytes of ``llm.decode`` / bandwidth, an implementation that knows no ops."""
    chip = load_chip("h100")
    engine = replace(ENGINE, step_overhead_s=0.0)
    one = instance(chip, "llama-3.1-8b", engine=engine, curves=ideal_curves(load_curves(chip)))
    s = decode_service(one)
    assert isinstance(s, RooflineDecode)
    for context in (1_000.0, 30_000.0):
        roof = decode_bytes(load_model("llama-3.1-8b"), 1.0, context, "bf16", "native").total / chip.memory_bytes_per_s
        assert float(s.step_time_s(1.0, context)) == pytest.approx(roof, rel=0.01)


def test_ideal_moe_reads_distinct_experts_only() -> None:
    """30 B weights, 3 B active: at batch 1 only 8 of 128 experts of a layer are read."""
    chip = load_chip("h20")
    engine = replace(ENGINE, step_overhead_s=0.0)
    one = instance(chip, "qwen3-30b-a3b", engine=engine, curves=ideal_curves(load_curves(chip)))
    s = decode_service(one)
    assert isinstance(s, RooflineDecode)
    model = load_model("qwen3-30b-a3b")
    for batch in (1.0, 16.0, 64.0):
        roof = decode_bytes(model, batch, 4096.0, "bf16", "native").total / chip.memory_bytes_per_s
        assert float(s.step_time_s(batch, 4096.0)) == pytest.approx(roof, rel=0.03)


def test_empty_step_has_a_floor() -> None:
    s = service("dense")
    floor = float(s.step_time_s(0.0, 1000.0))
    assert floor > 141e9 / 4 / s.instance.chip.memory_bytes_per_s
    assert floor <= float(s.step_time_s(1.0, 1000.0))


def test_table_equals_ops() -> None:
    """The service interpolates a table; the ops summed one by one are the reference."""
    for name in LAYOUTS:
        if name == "hidden":  # not a sum
            continue
        s = service(name)
        rng = np.random.default_rng(1)
        for _ in range(12):
            batch, context = rng.uniform(1, 256 * s.parallelism.dp), rng.uniform(100, 100_000)
            summed = sum(op.count * float(op.seconds) for op in s.step_ops(batch, context))
            stretch = np.ceil(s.instance.model.layers / s.parallelism.pp) * s.parallelism.pp / s.instance.model.layers
            assert float(s.step_time_s(batch, context)) == pytest.approx(summed * stretch + 0.004, rel=0.005), name


def test_overlap_of_the_exchange_helps_and_is_bounded() -> None:
    alone = service("wide", ENGINE)
    both = service("wide", replace(ENGINE, overlap_expert_communication=True))
    batch = np.linspace(1, 8000, 40)
    a, b = alone.step_time_s(batch, 4000.0), both.step_time_s(batch, 4000.0)
    assert np.all(b <= a)
    assert np.all(b >= 0.45 * a)
    assert np.any(b < 0.97 * a)


def test_drafts_divide_the_step_and_cost_rows() -> None:
    plain, draft = service("wide"), service("wide", replace(UNEVEN, mtp_accepted_tokens=1.8))
    assert 1 / 1.8 <= float(draft.step_time_s(2000, 4000) / plain.step_time_s(2000, 4000)) < 1.0


def test_pipeline_stages_share_the_batch() -> None:
    """Two stages at half the batch each cost about a step of one; the tokens per second hardly change."""
    flat = decode_service(instance("h100", "llama-3.1-70b", tp=4, engine=ENGINE))
    assert isinstance(flat, RooflineDecode)
    piped = service("stages", ENGINE)
    assert float(piped.step_time_s(1.0, 1000.0)) > float(flat.step_time_s(1.0, 1000.0))


def test_extend_is_a_line_and_beats_decoding_one_by_one() -> None:
    s = service("wide")
    t0, v = s.extend_cost(np.array([1_000.0, 8_000.0]), 0.0)
    assert np.all(t0 > 0.0)
    assert np.all(v * s.step_time_s(32.0, np.array([1_000.0, 8_000.0])) > 5)  # 2-model.md: contracts iff v tau > 1
    assert float(s.extend_cost(8_000.0, 2_000.0)[0]) > float(s.step_time_s(2_000.0, 8_000.0)) * 0.9


@pytest.mark.parametrize(
    ("ranks", "each", "published"), [(8, 16, 1.37), (32, 16, 1.61), (144, 16, 1.88), (144, 64, 1.37)]
)
def test_rank_imbalance_by_simulation(ranks: int, each: int, published: float) -> None:
    """Log-normal contexts, sigma 0.8; the published values are those of 2-model.md section 3."""
    rng = np.random.default_rng(7)
    sums = rng.lognormal(0.0, 0.8, (1500, ranks, each)).sum(axis=2)
    simulated = float((sums.max(axis=1) / sums.mean(axis=1)).mean())
    assert float(rank_imbalance(np.array(float(each)), ranks, 0.8)) == pytest.approx(simulated, rel=0.035)
    assert simulated == pytest.approx(published, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 500), st.floats(1.0001, 2), st.integers(1, 320), st.floats(0.0, 1.0))
def test_fullest_rank_never_empties(b: float, factor: float, ranks: int, sigma: float) -> None:
    less, more = (x * float(rank_imbalance(np.array(x), ranks, sigma)) for x in (b, b * factor))
    assert more >= less * (1 - 1e-9)


def test_normal_maximum_of_two() -> None:
    """E max of two standard normals is 1/sqrt(pi), its variance 1 - 1/pi."""
    mean, variance = normal_maximum(2)
    assert mean == pytest.approx(np.pi**-0.5, abs=1e-4)
    assert variance == pytest.approx(1 - 1 / np.pi, abs=1e-3)


@pytest.mark.parametrize("tokens", [1, 4, 16, 64, 512])
def test_busiest_expert_rank_by_simulation(tokens: int) -> None:
    """256 experts, 8 per token, 8 ranks of 32: rows and active experts of the busiest rank under random routing."""
    rng = np.random.default_rng(3)
    rows, active = [], []
    for _ in range(400):
        picks = np.argsort(rng.random((tokens, 256)), axis=1)[:, :8]
        rows.append(np.bincount(picks.ravel() // 32, minlength=8).max())
        active.append(np.bincount(np.unique(picks) // 32, minlength=8).max())
    ffn = FeedForward("moe", experts=256, top_k=8, expert_intermediate=2048)
    found = busiest_rank(ffn, np.array(float(tokens)), 8, 1.0)
    assert float(found[0]) == pytest.approx(np.mean(rows), rel=0.2 if tokens < 16 else 0.08)
    assert float(found[1]) == pytest.approx(np.mean(active), rel=0.2 if tokens < 16 else 0.08)


def test_four_numbers_make_a_chip() -> None:
    s = decode_service(instance(four_number_chip(), "llama-3.1-8b"))
    assert isinstance(s, RooflineDecode)
    roof = 2 * 8.03e9 / 2e12
    assert roof < float(s.step_time_s(1.0, 1000.0)) - 0.004 < 2.0 * roof
