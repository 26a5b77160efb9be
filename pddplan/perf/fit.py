"""Fits the efficiency curves to measured kernels: ``python -m pddplan.perf.fit KERNELS_DIR [--write FOLDER]``.

Least squares on log time with a soft-L1 loss (single rows of micro-benchmarks are off by a factor), one fit per chip
family, op and dtype or kind, by the very formulas that predict. A weak pull towards the start values keeps what the
data don't determine. Writes one YAML a family plus ``class-gpu``, the pooled fit for chips without data; its error is
that of families left out of the pool (``left_out``). Reproducible: no randomness, a fixed row order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.perf import collectives, ops
from pddplan.perf.curves import (
    AttentionCurve,
    CollectiveCurve,
    Evidence,
    ExpertExchangeCurve,
    GemmCurve,
    GroupedGemmCurve,
)
from pddplan.perf.fitfiles import Fitted, write_families
from pddplan.perf.kernels import KernelRows, read_kernels

Array = NDArray[np.float64]
Sizes = Mapping[str, Array]
Curve = GemmCurve | GroupedGemmCurve | AttentionCurve | CollectiveCurve | ExpertExchangeCurve

FAMILIES = ("nvidia-ampere", "nvidia-hopper", "nvidia-h20", "nvidia-blackwell", "nvidia-ada")
FIT_DATE = "2026-11-30"
PULL = 0.02  # weight of ln(parameter / start) beside ln(predicted / measured) of one row, times sqrt(rows)
SOFT = 0.1  # log error from which a row counts linearly
BOUNDS: Mapping[str, tuple[float, float]] = {
    **{name: (0.02, 1.0) for name in ("eta_max", "eta_compute", "eta_memory", "eta", "eta_up", "eta_out")},
    **{name: (1e-9, 3e-4) for name in ("alpha_s", "alpha_rank_s", "alpha_out_s", "fill_s", "fill_rank_s")},
    "overhead_s": (1e-7, 1e-4),
    "half_bytes": (1e3, 3e7),
    "fill_half_bytes": (1e4, 1e8),
}


@dataclass(frozen=True)
class Form:
    """How one op is predicted and where its fit starts; ``bounds`` in place of the general ones."""

    kind: type[Any]
    start: Mapping[str, float]
    bounds: Mapping[str, tuple[float, float]]
    predict: Callable[[Any, Sizes], Array]


def predict_gemm(curve: GemmCurve, x: Sizes) -> Array:
    """Seconds of dense GEMM rows."""
    return ops.gemm_curve_time_s(curve, x["peak_flops"], x["bandwidth"], x["m"], x["n"], x["k"], x["moved_bytes"])


def predict_grouped(curve: GroupedGemmCurve, x: Sizes) -> Array:
    """Seconds of grouped GEMM rows: one multiplication, or a fused gated feed-forward where ``inner`` is given."""

    def one(n: Array, k: Array, width: Array | float) -> Array:
        moved = x["experts"] * n * k * width + x["rows"] * (k * width + 2.0 * n)
        return ops.grouped_curve_time_s(curve, x["peak_flops"], x["bandwidth"], x["rows"], x["experts"], n, k, moved)

    if "inner" not in x:
        return one(x["n"], x["k"], 1.0)
    activation = x["rows"] * 3.0 * x["inner"] * 2.0 / (curve.eta_memory * x["bandwidth"])
    up, down = one(2.0 * x["inner"], x["hidden"], x["value_bytes"]), one(x["hidden"], x["inner"], x["value_bytes"])
    return up + down + activation


def predict_prefill(curve: AttentionCurve, x: Sizes) -> Array:
    """Seconds of prefill attention rows."""
    args = x["peak_flops"], x["bandwidth"], x["flops"], x["context"], x["moved_bytes"]
    return ops.prefill_curve_time_s(curve, *args)


def predict_decode(curve: AttentionCurve, x: Sizes) -> Array:
    """Seconds of decode attention rows."""
    args = x["peak_flops"], x["bandwidth"], x["flops"], x["context"], x["moved_bytes"]
    return ops.decode_curve_time_s(curve, *args)


def predict_ring(curve: CollectiveCurve, x: Sizes) -> Array:
    """Seconds of collective rows inside one node."""
    return collectives.ring_curve_time_s(curve, x["link"], x["ranks"], x["message_bytes"], x["passes"][0])


def predict_low_latency(curve: ExpertExchangeCurve, x: Sizes) -> Array:
    """Seconds of DeepEP low-latency rows, eight ranks a node."""
    up, out = collectives.low_latency_bytes(x["ranks"], 8.0, x["tokens"], x["top_k"], x["hidden_bytes"])
    return collectives.exchange_curve_time_s(curve, x["link"], x["nic"], up, out)


def predict_normal(curve: ExpertExchangeCurve, x: Sizes) -> Array:
    """Seconds of DeepEP normal rows, eight ranks a node, routing without a node limit."""
    up, out = collectives.normal_bytes(x["ranks"], 8.0, x["tokens"], x["top_k"], np.inf, x["hidden_bytes"])
    return collectives.exchange_curve_time_s(curve, x["link"], x["nic"], up, out)


_GEMM = {"eta_max": 0.75, "m_half": 40.0, "n_half": 100.0, "k_half": 100.0, "eta_memory": 0.85}
_TAIL = {"half_bytes": 1e5, "overhead_s": 4e-6, "roof_exponent": 3.0}
_ROOF = (1.5, 8.0)
_PREFILL = {"eta_compute": 0.6, "half_tokens": 300.0, "eta_memory": 0.8, **_TAIL, "serial_s_per_token": 0.0}
_DECODE = {"eta_compute": 0.5, "half_tokens": 0.0, "eta_memory": 0.85, **_TAIL, "serial_s_per_token": 0.0}
_RING = {"alpha_s": 7e-6, "alpha_rank_s": 1e-6, "fill_s": 3e-5, "fill_rank_s": 1e-7, "fill_half_bytes": 5e6}
_EXCHANGE = {"alpha_s": 2e-5, "alpha_out_s": 2e-5, "eta_up": 0.6, "eta_out": 0.8}
_GEMM_BOUNDS = {"m_half": (0.1, 300.0), "n_half": (0.1, 400.0), "k_half": (0.1, 400.0), "roof_exponent": _ROOF}
_ATTENTION_BOUNDS = {"half_tokens": (0.1, 2000.0), "eta_memory": (0.4, 1.0), "roof_exponent": (1.5, 8.0)}
_SERIAL = {"serial_s_per_token": (1e-10, 1e-6)}

_ring = Form(CollectiveCurve, {**_RING, "eta": 0.75, "contention": 0.0}, {}, predict_ring)
_low = Form(ExpertExchangeCurve, _EXCHANGE, {}, predict_low_latency)
_normal = Form(ExpertExchangeCurve, _EXCHANGE, {}, predict_normal)
FORMS: Mapping[str, Form] = {
    "gemm": Form(GemmCurve, {**_GEMM, **_TAIL}, _GEMM_BOUNDS, predict_gemm),
    "grouped_gemm": Form(
        GroupedGemmCurve,
        {"eta_max": 0.6, "m_half": 20.0, "eta_memory": 0.75, **_TAIL},
        {"m_half": (0.1, 300.0), "roof_exponent": _ROOF},
        predict_grouped,
    ),
    "prefill_attention": Form(AttentionCurve, _PREFILL, _ATTENTION_BOUNDS, predict_prefill),
    "decode_attention": Form(AttentionCurve, _DECODE, _ATTENTION_BOUNDS, predict_decode),
    **{name: _ring for name in ("all_reduce", "all_reduce_custom", "all_gather", "reduce_scatter", "all_to_all")},
    "send": _ring,
    "dispatch_low_latency": _low,
    "combine_low_latency": _low,
    "dispatch_normal": _normal,
    "combine_normal": _normal,
}
SERIAL_FAMILIES = ("nvidia-ampere", "nvidia-ada")  # their MLA decode kernels don't split a context
SHARED_BUS_FAMILIES = ("nvidia-ada",)  # no NVLink: all ranks behind one host bridge


def form_of(op: str, key: str = "", family: str = "") -> Form:
    """The form of ``op``, freed of what only some families need (serial contexts, contention on the bus)."""
    form = FORMS["grouped_gemm" if op == "fused_moe" else op]
    if op == "decode_attention" and key == "mla" and family in SERIAL_FAMILIES:
        return Form(form.kind, {**form.start, "serial_s_per_token": 5e-8}, {**form.bounds, **_SERIAL}, form.predict)
    if form is _ring and family in SHARED_BUS_FAMILIES:
        bounds = {"contention": (0.1, 3.0), "fill_rank_s": (1e-9, 1e-3)}
        return Form(form.kind, {**form.start, "contention": 1.5}, bounds, form.predict)
    return form


def predict(form: Form, curve: Curve, rows: Iterable[KernelRows]) -> Array:
    """Predicted seconds of all ``rows``, joined."""
    return np.concatenate([form.predict(curve, r.sizes) for r in rows if r.count])


def measured(rows: Iterable[KernelRows]) -> Array:
    """Measured seconds of all ``rows``, joined."""
    return np.concatenate([r.time_s for r in rows if r.count])


def fit_curve(form: Form, rows: Sequence[KernelRows]) -> Curve:
    """The curve that minimises the soft-L1 log error over ``rows``, every system alike; what starts at 0 stays 0."""
    from scipy.optimize import least_squares

    free = [name for name, value in form.start.items() if value > 0]
    bounds = {**BOUNDS, **form.bounds}
    low, high = np.log([bounds[name] for name in free]).T
    start = np.log([form.start[name] for name in free])
    target, weight = np.log(measured(rows)), _weights(rows)
    pull = PULL * np.sqrt(len(target))

    def residuals(point: Array) -> Array:
        curve = form.kind(**{**form.start, **dict(zip(free, np.exp(point), strict=True))})
        return np.concatenate([weight * (np.log(predict(form, curve, rows)) - target), pull * (point - start)])

    inside = np.clip(start, low + 1e-9, high - 1e-9)
    found = least_squares(residuals, inside, bounds=(low, high), loss="soft_l1", f_scale=SOFT)
    rounded = {name: float(f"{value:.4g}") for name, value in zip(free, np.exp(found.x), strict=True)}
    curve: Curve = form.kind(**{**form.start, **rounded})
    return curve


def _weights(rows: Sequence[KernelRows]) -> Array:
    """Square roots of row weights that give every system the same total, the mean of them 1."""
    totals: dict[str, int] = {}
    for r in rows:
        totals[r.system] = totals.get(r.system, 0) + r.count
    share = sum(totals.values()) / max(len(totals), 1)
    return np.concatenate([np.full(r.count, np.sqrt(share / totals[r.system])) for r in rows if r.count])


def errors(predicted: Array, seconds: Array) -> tuple[float, float]:
    """Median and 90 % quantile of the absolute percentage error."""
    ape = 100.0 * np.abs(predicted / seconds - 1.0)
    return float(np.median(ape)), float(np.quantile(ape, 0.9))


def group(rows: Iterable[KernelRows]) -> dict[tuple[str, str, str], list[KernelRows]]:
    """Rows by (family, op, key); the fused MoE rows belong to the grouped GEMM."""
    found: dict[tuple[str, str, str], list[KernelRows]] = {}
    for r in rows:
        op = "grouped_gemm" if r.op == "fused_moe" else r.op
        found.setdefault((r.family, op, r.key), []).append(r)
    return found


def evidence(op: str, key: str, curve: Curve, form: Form, rows: Sequence[KernelRows], confidence: str) -> Evidence:
    """What a fitted curve rests on and how well it fits."""
    median, p90 = errors(predict(form, curve, rows), measured(rows))
    source = ", ".join(dict.fromkeys(r.source for r in rows if r.count))
    dropped = sum(sum(r.excluded.values()) for r in rows)
    name = f"{op} {key}".strip()
    return Evidence(name, len(measured(rows)), round(median, 1), round(p90, 1), source, confidence, dropped)


def fit_family(family: str, rows: Sequence[KernelRows]) -> Fitted:
    """All curves that ``rows`` of one family determine; band = 68 % quantile of the relative error over all rows."""
    curves: dict[tuple[str, str], Curve] = {}
    notes, apes = [], []
    for (_, op, key), members in group(_renamed(rows, family)).items():
        if not sum(r.count for r in members):
            continue
        form = form_of(op, key, family)
        curve = curves[op, key] = fit_curve(form, members)
        notes.append(evidence(op, key, curve, form, members, "fitted"))
        apes.append(np.abs(predict(form, curve, members) / measured(members) - 1.0))
    return Fitted(family, curves, tuple(notes), round(float(np.quantile(np.concatenate(apes), 0.68)), 3))


def _renamed(rows: Iterable[KernelRows], family: str) -> list[KernelRows]:
    """The rows with ``family`` in place of their own, so that they are pooled."""
    return [replace(r, family=family) for r in rows]


def fit_all(folder: Path) -> list[Fitted]:
    """All families, then the pooled class, whose evidence is the error on families left out of the pool."""
    rows = read_kernels(folder)
    fitted = [fit_family(family, [r for r in rows if r.family == family]) for family in FAMILIES]
    pool = [r for r in rows if _is_typical(r)]
    notes, band = left_out(pool)
    whole = fit_family("class-gpu", pool)
    return [*fitted, Fitted("class-gpu", whole.curves, notes, band)]


def _is_typical(r: KernelRows) -> bool:
    """Whether rows belong into the pool: not a second kernel for the same dtype, no fallback kernel, no shared bus."""
    variant = "/" in r.key and not r.op.endswith("attention")
    serial = r.op == "decode_attention" and r.key == "mla" and r.family in SERIAL_FAMILIES
    bus = r.family in SHARED_BUS_FAMILIES and FORMS.get(r.op) is _ring
    return not (variant or serial or bus)


def left_out(pool: Sequence[KernelRows]) -> tuple[tuple[Evidence, ...], float]:
    """Error of the pooled fit on families it hasn't seen, per op and key, and its 68 % quantile as the band."""
    notes, apes = [], []
    for (_, op, key), members in group(_renamed(pool, "class-gpu")).items():
        predicted, seconds = [], []
        for family in FAMILIES:
            test, train = _split(pool, members, family)
            if test and train:
                form = form_of(op, key)
                predicted.append(predict(form, fit_curve(form, train), test))
                seconds.append(measured(test))
        if predicted:
            guess, truth = np.concatenate(predicted), np.concatenate(seconds)
            median, p90 = errors(guess, truth)
            source = ", ".join(dict.fromkeys(r.source for r in members if r.count))
            name = f"{op} {key}".strip()
            notes.append(Evidence(name, len(truth), round(median, 1), round(p90, 1), source, "left-out"))
            apes.append(np.abs(guess / truth - 1.0))
    return tuple(notes), round(float(np.quantile(np.concatenate(apes), 0.68)), 3)


def _split(
    pool: Sequence[KernelRows], members: Sequence[KernelRows], family: str
) -> tuple[list[KernelRows], list[KernelRows]]:
    """Members of the pool's group inside and outside ``family``; they stand in the pool's order."""
    systems = {r.system for r in pool if r.family == family}
    filled = [r for r in members if r.count]
    return [r for r in filled if r.system in systems], [r for r in filled if r.system not in systems]


def report(fitted: Iterable[Fitted]) -> str:
    """The table of residuals: family, op, rows, rows dropped, median and 90 % absolute percentage error."""
    lines = [f"{'family':17} {'op':34} {'rows':>5} {'dropped':>7} {'median %':>8} {'p90 %':>6}  basis"]
    for family in fitted:
        lines += [
            f"{family.family:17} {e.op:34} {e.rows:5d} {e.excluded:7d} "
            f"{e.median_ape:8.1f} {e.p90_ape:6.1f}  {e.confidence}"
            for e in family.evidence
        ]
        lines.append(f"{family.family:17} band {family.band:.3f}")
    return "\n".join(lines)


def dropped(rows: Iterable[KernelRows]) -> str:
    """How many rows each rule dropped, by system."""
    counts: dict[tuple[str, str], int] = {}
    for r in rows:
        for reason, count in r.excluded.items():
            counts[r.system, reason] = counts.get((r.system, reason), 0) + count
    return "\n".join(f"{system:17} {count:5d}  {reason}" for (system, reason), count in sorted(counts.items()))


def main(arguments: Sequence[str]) -> int:
    """Prints the tables; with ``--write FOLDER`` writes the files as well."""
    if not arguments or arguments[0].startswith("-") or len(arguments) not in (1, 3):
        print("usage: python -m pddplan.perf.fit KERNELS_DIR [--write FOLDER]", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    fitted = fit_all(folder)
    print(report(fitted))
    print()
    print(dropped(read_kernels(folder)))
    if len(arguments) == 3:
        for path in write_families(fitted, Path(arguments[2]), FIT_DATE):
            print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
