"""Op times: limits by hand, a scalar textbook implementation, the laws of physics as properties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.perf.curves import read_curves
from pddplan.perf.ops import (
    compute_dtype,
    decode_attention_time_s,
    fraction_of_peak,
    gemm_time_s,
    grouped_gemm_time_s,
    op_time_s,
    prefill_attention_time_s,
    stream_time_s,
)
from pddplan.spec.types import Chip

FAMILIES = [f"nvidia-{name}" for name in ("ampere", "hopper", "h20", "blackwell", "ada")]
FAMILIES += [f"class-{name}" for name in ("gpu", "npu", "tpu", "custom")]


def make_chip(**change: Any) -> Chip:
    facts: dict[str, Any] = {
        "id": "h100",
        "name": "H100",
        "vendor": "NVIDIA",
        "chip_class": "gpu",
        "aliases": (),
        "peak_flops": {"bf16": 989e12, "fp8": 1979e12, "int8": 1979e12},
        "memory_bytes": 80e9,
        "memory_bytes_per_s": 3.35e12,
        "scale_up_bytes_per_s": 450e9,
        "scale_up_domain": 8,
        "scale_out_bytes_per_s": 50e9,
        "chips_per_node": 8,
        "all_in_watts": None,
        "usd_per_hour": None,
        "price_kind": "",
        "price_date": "",
        "efficiency": "nvidia-hopper",
        "provenance": {},
    }
    return Chip(**{**facts, **change})


H100 = make_chip()
HOPPER = read_curves("nvidia-hopper")
family = st.sampled_from(FAMILIES)
size = st.floats(1.0, 1e5)
grow = st.floats(1.0, 100.0)
large = st.floats(1e3, 1e15)


# ---------------------------------------------------------------- by hand


def test_a_large_gemm_takes_its_flops_over_eta_times_peak() -> None:
    m = n = k = 2.0**17
    curve = HOPPER.gemm["bf16"]
    ideal = 2 * m * n * k / (curve.eta_max * 989e12)
    assert gemm_time_s(H100, HOPPER, m, n, k, "bf16", n * k * 2) == pytest.approx(ideal, rel=0.01)


def test_a_gemm_of_one_row_takes_its_weights_over_the_memory_bandwidth() -> None:
    n = k = 2.0**16
    curve = HOPPER.gemm["bf16"]
    ideal = 2 * n * k / (curve.eta_memory * 3.35e12)
    assert gemm_time_s(H100, HOPPER, 1, n, k, "bf16", n * k * 2) == pytest.approx(ideal, rel=0.02)


def test_an_empty_op_takes_no_time() -> None:
    assert gemm_time_s(H100, HOPPER, 0, 4096, 4096, "bf16", 3e7) == 0
    assert grouped_gemm_time_s(H100, HOPPER, 0, 0, 4096, 4096, "fp8", 0) == 0
    assert prefill_attention_time_s(H100, HOPPER, 0, 0, 0) == 0
    assert decode_attention_time_s(H100, HOPPER, 0, 0) == 0
    assert stream_time_s(H100, HOPPER, 0) == 0


def test_two_equal_roofs_cost_the_p_th_root_of_two() -> None:
    assert op_time_s(1.0, 1.0, HOPPER) - HOPPER.op_overhead_s == pytest.approx(2 ** (1 / HOPPER.roof_exponent))
    assert op_time_s(0.0, 1.0, HOPPER) - HOPPER.op_overhead_s == pytest.approx(1.0)
    assert op_time_s(0.0, 0.0, HOPPER) == pytest.approx(HOPPER.op_overhead_s)


def test_half_of_eta_is_reached_at_half_tokens_of_mean_context() -> None:
    curve = HOPPER.prefill_attention["gqa"]
    flops = 1e15
    time = prefill_attention_time_s(H100, HOPPER, flops, 2 * curve.half_tokens, 0.0)
    assert time == pytest.approx(2 * flops / (curve.eta_compute * 989e12), rel=1e-3)
    cached = prefill_attention_time_s(H100, HOPPER, flops, 2.0, 0.0, cached_tokens=curve.half_tokens - 1)
    assert cached == pytest.approx(time, rel=1e-9)


# ---------------------------------------------------------------- published numbers


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "width", "measured_us"),
    [  # TensorRT-LLM on H100 SXM, https://github.com/ai-dynamo/aiconfigurator
        (4096, 4096, 4096, "bf16", 2, 174.3),
        (1, 4096, 4096, "bf16", 2, 16.6),
        (2048, 7168, 2048, "fp8", 1, 70.7),
    ],
)
def test_published_gemms_on_h100(m: int, n: int, k: int, dtype: str, width: int, measured_us: float) -> None:
    predicted_us = 1e6 * float(gemm_time_s(H100, HOPPER, m, n, k, dtype, n * k * width))
    assert predicted_us == pytest.approx(measured_us, rel=0.2)


def test_mla_decode_on_h800_sits_at_half_of_both_roofs() -> None:
    # batch 128, context 16384, bf16: 1057 us, https://github.com/alibaba/InferSim (bench_data/mla/decode/h800)
    flops, kv_bytes = 2.0 * 128 * 128 * 1088 * 16384, 128.0 * 16384 * 576 * 2
    time = float(decode_attention_time_s(H100, HOPPER, flops, kv_bytes, kind="mla_absorbed"))
    assert 1e6 * time == pytest.approx(1057, rel=0.2)
    compute, memory = fraction_of_peak(H100, time, flops, kv_bytes)
    assert 0.4 < float(compute) < 0.75
    assert 0.4 < float(memory) < 0.9


# ---------------------------------------------------------------- an independent implementation


@given(m=size, n=size, k=size, name=family, dtype=st.sampled_from(["bf16", "fp8"]))
@settings(max_examples=60, deadline=None)
def test_gemm_is_the_textbook_roofline(m: float, n: float, k: float, name: str, dtype: str) -> None:
    curves = read_curves(name)
    curve = curves.gemm.get(dtype) or curves.gemm["fp8" if dtype == "bf16" else "bf16"]
    width = 2.0 if dtype == "bf16" else 1.0
    moved = n * k * width + m * k * width + 2 * m * n
    compute = 2 * (m + curve.m_half) * (n + curve.n_half) * (k + curve.k_half) / curve.eta_max / H100.peak_flops[dtype]
    memory = (moved + curve.half_bytes) / curve.eta_memory / H100.memory_bytes_per_s
    p = curve.roof_exponent
    top = max(compute, memory)
    expected = curve.overhead_s + top * math.fsum([(compute / top) ** p, (memory / top) ** p]) ** (1 / p)
    assert gemm_time_s(H100, curves, m, n, k, dtype, n * k * width) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_hand_written_decode_kernel_agrees(name: str) -> None:
    curves = read_curves(name)
    curve = curves.decode_attention["gqa"]
    for flops, moved in [(1e9, 1e8), (1e12, 1e9), (1e13, 1e7)]:
        compute = flops / (curve.eta_compute * 989e12)
        memory = (moved + curve.half_bytes) / (curve.eta_memory * 3.35e12)
        expected = curve.overhead_s + (compute**curve.roof_exponent + memory**curve.roof_exponent) ** (
            1 / curve.roof_exponent
        )
        assert decode_attention_time_s(H100, curves, flops, moved) == pytest.approx(expected, rel=1e-9)


# ---------------------------------------------------------------- laws


def roofs(flops: float, moved: float, dtype: str) -> float:
    return max(flops / H100.peak_flops[dtype], moved / H100.memory_bytes_per_s)


@given(m=size, n=size, k=size, name=family, dtype=st.sampled_from(["bf16", "fp8", "int8", "fp4"]))
@settings(max_examples=150, deadline=None)
def test_no_gemm_beats_a_roof(m: float, n: float, k: float, name: str, dtype: str) -> None:
    real = compute_dtype(H100, dtype)
    weights = n * k * 0.5
    time = float(gemm_time_s(H100, read_curves(name), m, n, k, dtype, weights))
    assert time >= roofs(2 * m * n * k, weights, real)


@given(flops=large, moved=large, name=family, kind=st.sampled_from(["gqa", "mla", "sparse", "indexer", "linear"]))
@settings(max_examples=150, deadline=None)
def test_no_attention_beats_a_roof(flops: float, moved: float, name: str, kind: str) -> None:
    curves = read_curves(name)
    assert float(decode_attention_time_s(H100, curves, flops, moved, kind=kind)) >= roofs(flops, moved, "bf16")
    assert float(prefill_attention_time_s(H100, curves, flops, 64, moved, kind=kind)) >= roofs(flops, moved, "bf16")
    assert float(stream_time_s(H100, curves, moved)) >= moved / H100.memory_bytes_per_s


@given(m=size, n=size, k=size, by=grow, name=family, axis=st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_gemm_time_never_falls_and_never_jumps(m: float, n: float, k: float, by: float, name: str, axis: int) -> None:
    curves, weights = read_curves(name), n * k
    args = [m, n, k, weights]
    more = [a * (by if i == axis else 1.0) for i, a in enumerate(args)]
    before, after = (float(gemm_time_s(H100, curves, *a[:3], "fp8", a[3])) for a in (args, more))
    assert before <= after <= by * before * (1 + 1e-12)  # smooth: growing by a factor costs at most that factor


@given(rows=size, experts=st.floats(1, 256), by=grow, name=family)
@settings(max_examples=100, deadline=None)
def test_grouped_gemm_time_never_falls(rows: float, experts: float, by: float, name: str) -> None:
    curves = read_curves(name)

    def time(r: float, e: float) -> float:
        return float(grouped_gemm_time_s(H100, curves, r, e, 4096, 7168, "fp8", e * 4096 * 7168))

    assert time(rows, experts) <= time(rows * by, experts) <= by * time(rows, experts) * (1 + 1e-12)
    assert time(rows, experts) <= time(rows, experts * by)


@given(new=size, cached=st.floats(0, 1e6), by=grow, name=family, kind=st.sampled_from(["gqa", "mla", "sparse"]))
@settings(max_examples=100, deadline=None)
def test_prefill_attention_never_falls(new: float, cached: float, by: float, name: str, kind: str) -> None:
    curves = read_curves(name)

    def time(n: float, c: float) -> float:
        flops = 4 * 64 * 128 * n * (c + n / 2)
        return float(prefill_attention_time_s(H100, curves, flops, n, (c + n) * 4096, kind=kind, cached_tokens=c))

    assert time(new, cached) <= time(new * by, cached)
    assert time(new, cached) <= time(new, cached * by)


@given(batch=st.floats(1, 1e3), context=size, by=grow, name=family, kind=st.sampled_from(["gqa", "mla", "indexer"]))
@settings(max_examples=100, deadline=None)
def test_decode_attention_never_falls(batch: float, context: float, by: float, name: str, kind: str) -> None:
    curves = read_curves(name)

    def time(b: float, c: float) -> float:
        flops, moved = 2 * b * 128 * 1088 * c, b * c * 1152
        return float(decode_attention_time_s(H100, curves, flops, moved, kind=kind, context_tokens=c))

    assert time(batch, context) <= time(batch * by, context) <= by * time(batch, context) * (1 + 1e-12)
    assert time(batch, context) <= time(batch, context * by)


def test_kernels_that_do_not_split_a_context_wait_for_the_longest() -> None:
    ampere = read_curves("nvidia-ampere")
    short = decode_attention_time_s(H100, ampere, 1e9, 1e6, kind="mla", context_tokens=1e3)
    long = decode_attention_time_s(H100, ampere, 1e9, 1e6, kind="mla", context_tokens=1e5)
    assert long > 5 * short
    assert decode_attention_time_s(H100, HOPPER, 1e9, 1e6, kind="mla", context_tokens=1e5) == (
        decode_attention_time_s(H100, HOPPER, 1e9, 1e6, kind="mla")
    )


# ---------------------------------------------------------------- dtypes, shapes


@pytest.mark.parametrize(
    ("peaks", "asked", "real"),
    [
        (("bf16", "fp8", "fp4"), "fp4", "fp4"),
        (("bf16", "fp8"), "fp4", "fp8"),
        (("bf16",), "fp4", "bf16"),
        (("bf16", "int8"), "fp8", "bf16"),
        (("bf16", "int8"), "int8", "int8"),
        (("bf16", "fp8"), "int8", "bf16"),
        (("bf16", "fp8"), "int4", "bf16"),
    ],
)
def test_the_dtype_falls_back_to_what_the_chip_has(peaks: tuple[str, ...], asked: str, real: str) -> None:
    chip = make_chip(peak_flops=dict.fromkeys(peaks, 1e14))
    assert compute_dtype(chip, asked) == real
    assert gemm_time_s(chip, HOPPER, 128, 4096, 4096, asked, 1e7) > 0


def test_a_chip_without_bf16_is_refused() -> None:
    with pytest.raises(KeyError, match="neither fp8 nor bf16"):
        compute_dtype(make_chip(peak_flops={}), "fp8")


def test_shapes_broadcast() -> None:
    m, n = np.arange(1, 6.0)[:, None], np.array([1024.0, 2048.0])
    assert gemm_time_s(H100, HOPPER, m, n, 512, "bf16", n * 1024).shape == (5, 2)
    assert decode_attention_time_s(H100, HOPPER, m, n).shape == (5, 2)
    assert prefill_attention_time_s(H100, HOPPER, m, n, 1.0).shape == (5, 2)
    assert grouped_gemm_time_s(H100, HOPPER, m, n, 512, 512, "fp8", 1e6).shape == (5, 2)
    time, flops = np.array([0.0, 1e-3]), np.array([0.0, 989e9])
    assert fraction_of_peak(H100, time, flops, 0.0)[0].tolist() == pytest.approx([0.0, 1.0])
