"""Time of one op on one chip: the roofline with efficiency curves (2-model.md section 2).

All functions broadcast NumPy arrays, take SI units and return seconds. Each is non-decreasing in every size and never
beats a roof: the efficiencies are at most 1 and the two roofs are joined by a p-norm, which is at least their maximum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pddplan.perf.curves import AttentionCurve, EfficiencyCurves, GemmCurve, GroupedGemmCurve
from pddplan.spec.types import Chip

Array = NDArray[np.float64]
T = TypeVar("T")
_TINY = 1e-300

BYTES_PER_VALUE: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625}
_FALLBACK: Mapping[str, tuple[str, ...]] = {
    "fp4": ("fp4", "fp8", "bf16"),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "bf16"),
    "int4": ("bf16",),
    "bf16": ("bf16",),
}
_NEAREST_CURVE: Mapping[str, tuple[str, ...]] = {
    "fp4": ("fp4", "fp8", "bf16"),
    "fp8": ("fp8", "int8", "bf16"),
    "int8": ("int8", "fp8", "bf16"),
    "bf16": ("bf16", "fp8", "int8"),
}


def compute_dtype(chip: Chip, dtype: str) -> str:
    """The dtype that ``chip`` really computes in: fp4 -> fp8 -> bf16, int8 -> bf16 where a step is missing.

    Narrow weights are widened on the fly, so bytes stay those of the weights and only the compute roof changes.
    Raises KeyError for a chip without bf16 (not plannable).
    """
    for candidate in _FALLBACK.get(dtype, (dtype, "bf16")):
        if candidate in chip.peak_flops:
            return candidate
    raise KeyError(f"{chip.id} computes neither {dtype} nor bf16")


def op_time_s(t_compute: ArrayLike, t_memory: ArrayLike, curves: EfficiencyCurves) -> Array:
    """Time of an op from its two roof times [s]: overhead + (tc^p + tm^p)^(1/p).

    p = ``curves.roof_exponent`` (>= 1; infinity is the plain maximum); shapes broadcast. Source: 2-model.md section 2.
    """
    return curves.op_overhead_s + p_norm(t_compute, t_memory, curves.roof_exponent)


def gemm_time_s(
    chip: Chip,
    curves: EfficiencyCurves,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    dtype: str,
    weight_bytes: ArrayLike,
    activation_bytes: ArrayLike | None = None,
) -> Array:
    """Dense GEMM of m rows with an n x k weight [s].

    tc = 2 (m + m_half)(n + n_half)(k + k_half) / (eta_max peak), tm = (q + q_half) / (eta_memory bandwidth) with
    q = weight bytes + activation bytes (default: m k in dtype, m n in bf16); overhead + p-norm of both. 0 where m is 0.
    ``dtype`` falls back to what the chip has (``compute_dtype``).
    """
    m, n, k = (np.asarray(a, dtype=float) for a in (m, n, k))
    real = compute_dtype(chip, dtype)
    curve = _nearest(curves.gemm, real)
    if activation_bytes is None:
        activation_bytes = m * (k * BYTES_PER_VALUE[real] + 2.0 * n)
    moved = np.asarray(weight_bytes, dtype=float) + np.asarray(activation_bytes, dtype=float)
    time = gemm_curve_time_s(curve, chip.peak_flops[real], chip.memory_bytes_per_s, m, n, k, moved)
    return np.where(m > 0, time, 0.0)


def gemm_curve_time_s(
    curve: GemmCurve,
    peak_flops: ArrayLike,
    bandwidth: ArrayLike,
    m: Array,
    n: Array,
    k: Array,
    moved_bytes: Array,
) -> Array:
    """The formula of ``gemm_time_s`` for given peaks [FLOP/s, B/s]; shapes broadcast [s]."""
    flops = 2.0 * (m + curve.m_half) * (n + curve.n_half) * (k + curve.k_half)
    t_compute = flops / (curve.eta_max * np.asarray(peak_flops))
    t_memory = (moved_bytes + curve.half_bytes) / (curve.eta_memory * np.asarray(bandwidth))
    return curve.overhead_s + p_norm(t_compute, t_memory, curve.roof_exponent)


def grouped_gemm_time_s(
    chip: Chip,
    curves: EfficiencyCurves,
    rows: ArrayLike,
    experts: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    dtype: str,
    weight_bytes: ArrayLike,
) -> Array:
    """One grouped GEMM: ``rows`` in total over ``experts`` active experts of n x k weights on this chip [s].

    tc = 2 (rows + experts m_half) n k / (eta_max peak): tiles of a group aren't shared between experts, so each
    active expert loses m_half rows; tm = (q + q_half) / (eta_memory bandwidth) with q = bytes of the active
    experts' weights plus rows in and out. A gated feed-forward is two calls (n = 2 x intermediate, then back).
    """
    rows, experts, n, k = (np.asarray(a, dtype=float) for a in (rows, experts, n, k))
    real = compute_dtype(chip, dtype)
    curve = _nearest(curves.grouped_gemm, real)
    moved = np.asarray(weight_bytes, dtype=float) + rows * (k * BYTES_PER_VALUE[real] + 2.0 * n)
    peak = chip.peak_flops[real]
    time = grouped_curve_time_s(curve, peak, chip.memory_bytes_per_s, rows, experts, n, k, moved)
    return np.where(rows > 0, time, 0.0)


def grouped_curve_time_s(
    curve: GroupedGemmCurve,
    peak_flops: ArrayLike,
    bandwidth: ArrayLike,
    rows: Array,
    experts: Array,
    n: Array,
    k: Array,
    moved_bytes: Array,
) -> Array:
    """The formula of ``grouped_gemm_time_s`` for given peaks [FLOP/s, B/s]; shapes broadcast [s]."""
    t_compute = 2.0 * (rows + experts * curve.m_half) * n * k / (curve.eta_max * np.asarray(peak_flops))
    t_memory = (moved_bytes + curve.half_bytes) / (curve.eta_memory * np.asarray(bandwidth))
    return curve.overhead_s + p_norm(t_compute, t_memory, curve.roof_exponent)


def prefill_attention_time_s(
    chip: Chip,
    curves: EfficiencyCurves,
    flops: ArrayLike,
    new_tokens: ArrayLike,
    kv_bytes: ArrayLike,
    dtype: str = "bf16",
    kind: str = "gqa",
    cached_tokens: ArrayLike = 0.0,
) -> Array:
    """Attention of a prefill pass [s]; ``flops`` of all sequences, ``new_tokens`` and ``cached_tokens`` of one.

    tc = flops / (eta_compute peak) * (1 + half_tokens / s) with s = cached + new / 2, the mean context a query
    sees; tm = (kv_bytes + half_bytes) / (eta_memory bandwidth); overhead + p-norm.
    kind: gqa | mla | sparse | indexer | linear; ``cached_tokens`` left out overstates a chunk's time on a long prefix.
    """
    flops, new_tokens = np.asarray(flops, dtype=float), np.asarray(new_tokens, dtype=float)
    real = compute_dtype(chip, dtype)
    curve = _attention_curve(curves.prefill_attention, kind, real)
    context = np.maximum(np.asarray(cached_tokens, dtype=float) + 0.5 * new_tokens, 0.5)
    moved = np.asarray(kv_bytes, dtype=float)
    peak = chip.peak_flops[real]
    time = prefill_curve_time_s(curve, peak, chip.memory_bytes_per_s, flops, context, moved)
    return np.where(flops > 0, time, 0.0)


def prefill_curve_time_s(
    curve: AttentionCurve,
    peak_flops: ArrayLike,
    bandwidth: ArrayLike,
    flops: Array,
    context: Array,
    kv_bytes: Array,
) -> Array:
    """The formula of ``prefill_attention_time_s`` for given peaks and mean context [tokens]; shapes broadcast [s]."""
    t_compute = flops * (1.0 + curve.half_tokens / context) / (curve.eta_compute * np.asarray(peak_flops))
    t_memory = (kv_bytes + curve.half_bytes) / (curve.eta_memory * np.asarray(bandwidth))
    return curve.overhead_s + p_norm(t_compute, t_memory, curve.roof_exponent)


def decode_attention_time_s(
    chip: Chip,
    curves: EfficiencyCurves,
    flops: ArrayLike,
    kv_bytes: ArrayLike,
    dtype: str = "bf16",
    kind: str = "gqa",
    context_tokens: ArrayLike = 0.0,
) -> Array:
    """Attention of a decode step: all sequences of the chip, one layer [s].

    tc = flops / (eta_compute peak), tm = (kv_bytes + half_bytes) / (eta_memory bandwidth); overhead + p-norm, then
    p-norm with serial_s_per_token * context_tokens (the longest context; 0 on kernels that split it over the chip).
    Neither roof alone holds: MLA on H800 sits at half of both, 64 query heads per KV head on H20 at compute.
    kind: gqa | mla | mla_absorbed | sparse | indexer | linear; dtype: what the kernel multiplies in, not the cache's.
    """
    flops, kv_bytes = np.asarray(flops, dtype=float), np.asarray(kv_bytes, dtype=float)
    real = compute_dtype(chip, dtype)
    curve = _attention_curve(curves.decode_attention, kind, real)
    context = np.asarray(context_tokens, dtype=float)
    peak = chip.peak_flops[real]
    time = decode_curve_time_s(curve, peak, chip.memory_bytes_per_s, flops, context, kv_bytes)
    return np.where((flops > 0) | (kv_bytes > 0), time, 0.0)


def decode_curve_time_s(
    curve: AttentionCurve,
    peak_flops: ArrayLike,
    bandwidth: ArrayLike,
    flops: Array,
    context: Array,
    kv_bytes: Array,
) -> Array:
    """The formula of ``decode_attention_time_s`` for given peaks [FLOP/s, B/s]; shapes broadcast [s]."""
    t_compute = flops / (curve.eta_compute * np.asarray(peak_flops))
    t_memory = (kv_bytes + curve.half_bytes) / (curve.eta_memory * np.asarray(bandwidth))
    time = p_norm(t_compute, t_memory, curve.roof_exponent)
    if curve.serial_s_per_token > 0:
        time = p_norm(time, curve.serial_s_per_token * context, curve.roof_exponent)
    return curve.overhead_s + time


def stream_time_s(chip: Chip, curves: EfficiencyCurves, bytes: ArrayLike) -> Array:
    """Pure memory traffic (state update, norms, KV write) [s]: overhead + (q + q_half) / (eta_max bandwidth)."""
    q, curve = np.asarray(bytes, dtype=float), curves.stream
    time = curve.overhead_s + (q + curve.half_bytes) / (curve.eta_max * chip.memory_bytes_per_s)
    return np.where(q > 0, time, 0.0)


def fraction_of_peak(
    chip: Chip, time_s: ArrayLike, flops: ArrayLike, bytes: ArrayLike, dtype: str = "bf16"
) -> tuple[Array, Array]:
    """Shares (compute, memory bandwidth) of the peaks that an op of ``time_s`` reaches; 0 where the time is 0."""
    time = np.asarray(time_s, dtype=float)
    inverse = np.divide(1.0, time, out=np.zeros_like(time), where=time > 0)
    compute = np.asarray(flops, dtype=float) * inverse / chip.peak_flops[compute_dtype(chip, dtype)]
    return compute, np.asarray(bytes, dtype=float) * inverse / chip.memory_bytes_per_s


def p_norm(a: ArrayLike, b: ArrayLike, p: float) -> Array:
    """(a^p + b^p)^(1/p) for a, b >= 0: the larger one times (1 + ratio^p)^(1/p), which can't overflow.

    By exp and log, which NumPy vectorises; its power with a fractional exponent is ten times as slow.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    high = np.maximum(a, b)
    ratio = np.maximum(np.minimum(a, b) / np.maximum(high, _TINY), _TINY)
    return np.asarray(high * np.exp(np.log1p(np.exp(p * np.log(ratio))) / p), dtype=float)


def _nearest(by_dtype: Mapping[str, T], dtype: str) -> T:
    """Curve of ``dtype``, else of the nearest dtype that was fitted."""
    for candidate in (dtype, *_NEAREST_CURVE.get(dtype, ("bf16",))):
        if candidate in by_dtype:
            return by_dtype[candidate]
    raise KeyError(f"no curve for {dtype}")


def _attention_curve(by_kind: Mapping[str, AttentionCurve], kind: str, dtype: str) -> AttentionCurve:
    """Curve of ``kind`` and dtype, else of the kind, else gqa's. Decode always runs MLA absorbed."""
    base = kind.removesuffix("_absorbed")
    for key in (f"{kind}/{dtype}", kind, f"{base}/{dtype}", base):
        if key in by_kind:
            return by_kind[key]
    return by_kind["gqa"]
