"""Efficiency curves of a chip family: which share of a roof an op reaches as a function of its size.

The numbers live in ``hardware/efficiency/<family>.yaml`` with source, rows, residual and date; a chip without a
family takes its class's file (``class-gpu`` ...), whose numbers are estimates with a wider band. Every curve keeps
time a non-decreasing function of work and its efficiency at most 1 (``validate_curves``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pddplan.errors import InputError, Problem
from pddplan.spec.datafile import hardware_dir, read_data_file
from pddplan.spec.types import MAX_EFFICIENCY, Calibration, Chip

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
SHIPPED = Calibration()


@dataclass(frozen=True)
class GemmCurve:
    """Dense GEMM of one dtype: see ``ops.gemm_time_s``."""

    eta_max: float  # share of the dense peak reached by a large GEMM
    m_half: float  # rows at which half of it is reached
    n_half: float  # the same for columns
    k_half: float  # and for the depth
    eta_memory: float  # share of the memory bandwidth a long stream of operands reaches
    half_bytes: float  # bytes at which half of it is reached
    overhead_s: float
    roof_exponent: float


@dataclass(frozen=True)
class GroupedGemmCurve:
    """Grouped (expert) GEMM of one dtype: ``m_half`` rows are lost per active expert."""

    eta_max: float
    m_half: float
    eta_memory: float
    half_bytes: float
    overhead_s: float
    roof_exponent: float


@dataclass(frozen=True)
class StreamCurve:
    """Pure memory traffic: eta_max * q / (q + half_bytes) of the memory bandwidth."""

    eta_max: float
    half_bytes: float
    overhead_s: float


@dataclass(frozen=True)
class AttentionCurve:
    """Attention kernel of one kind: share of the compute roof and of the memory roof."""

    eta_compute: float
    half_tokens: float  # prefill: mean attended context at which half of eta_compute is reached; decode: 0
    eta_memory: float
    half_bytes: float
    overhead_s: float
    roof_exponent: float
    serial_s_per_token: float = 0.0  # decode kernels that don't split a context over the chip: time along it


@dataclass(frozen=True)
class CollectiveCurve:
    """One collective: latency by ranks, filling time of the pipeline, share of the link bandwidth."""

    alpha_s: float  # two ranks, empty message
    alpha_rank_s: float  # per further rank
    fill_s: float  # further latency of the protocol for large messages, two ranks
    fill_rank_s: float  # per further rank
    fill_half_bytes: float
    eta: float  # at two ranks
    contention: float = 0.0  # eta (2/n)^contention: 0 behind a switch, about 2 where ranks share one host bridge


@dataclass(frozen=True)
class ExpertExchangeCurve:
    """Expert dispatch or combine in one mode (low latency or normal)."""

    alpha_s: float  # inside the scale-up domain
    alpha_out_s: float  # further latency across NICs
    eta_up: float  # share of scale-up bandwidth
    eta_out: float  # share of NIC bandwidth


@dataclass(frozen=True)
class CollectiveCurves:
    """All communication of a family."""

    all_reduce: CollectiveCurve
    all_reduce_custom: CollectiveCurve | None  # one-shot / two-shot kernels of serving engines
    all_gather: CollectiveCurve
    reduce_scatter: CollectiveCurve
    all_to_all: CollectiveCurve
    dispatch_low_latency: ExpertExchangeCurve
    combine_low_latency: ExpertExchangeCurve
    dispatch_normal: ExpertExchangeCurve
    combine_normal: ExpertExchangeCurve
    send_alpha_s: float
    send_eta: float
    out_alpha_s: float  # one hop across NICs
    out_eta: float  # share of NIC bandwidth


@dataclass(frozen=True)
class Evidence:
    """What a curve rests on: rows fitted, residual in percent, source, ``fitted | borrowed | estimate | left-out``."""

    op: str
    rows: int
    median_ape: float
    p90_ape: float
    source: str
    confidence: str
    excluded: int = 0  # rows dropped by rule


@dataclass(frozen=True)
class EfficiencyCurves:
    """Curves of one chip family, dimensionless shares beside sizes in rows and bytes and latencies in seconds."""

    id: str
    confidence: str  # fitted | estimate
    date: str
    band: float  # relative error band of a predicted op time
    op_overhead_s: float
    roof_exponent: float
    gemm: Mapping[str, GemmCurve]
    grouped_gemm: Mapping[str, GroupedGemmCurve]
    stream: StreamCurve
    prefill_attention: Mapping[str, AttentionCurve]  # by kind, "kind/dtype" where a dtype differs
    decode_attention: Mapping[str, AttentionCurve]
    collectives: CollectiveCurves
    evidence: tuple[Evidence, ...] = field(default=())


def load_curves(chip: Chip) -> EfficiencyCurves:
    """Curves of ``chip``: its family's file, else the default of its class, times its calibration. Cached.

    Raises InputError, also where the calibration makes a share larger than is possible.
    """
    name = chip.efficiency or f"class-{chip.chip_class}"
    return read_curves(name) if chip.calibration == SHIPPED else _calibrated(name, chip.id, chip.calibration)


@lru_cache(maxsize=64)
def _calibrated(name: str, chip_id: str, calibration: Calibration) -> EfficiencyCurves:
    curves = read_curves(name)
    found = impossible_factors(curves, calibration)
    if found:
        fix = f"A share of at most {MAX_EFFICIENCY:g} is believed: calibrate again, or check chip, layout and formats."
        where = calibration.file, calibration.line
        raise InputError([Problem(why, f"chips.{chip_id}.{factor}", *where, fix) for factor, why in found])
    return scaled_curves(curves, calibration, most=1.0)


def with_kernels(
    curves: EfficiencyCurves, kernel: Callable[[Any], Any], stream: Callable[[Any], Any] | None = None, **others: Any
) -> EfficiencyCurves:
    """``curves`` with ``kernel`` of each kernel's record, ``stream`` (default: the same) of that of plain memory
    traffic, and ``others`` of its own fields; collectives stay unless they are among these."""
    by_key = ("gemm", "grouped_gemm", "prefill_attention", "decode_attention")
    changed = {name: {k: kernel(c) for k, c in getattr(curves, name).items()} for name in by_key}
    return replace(curves, **{**changed, "stream": (stream or kernel)(curves.stream), **others})


def scaled_curves(curves: EfficiencyCurves, calibration: Calibration, most: float = math.inf) -> EfficiencyCurves:
    """``curves`` with ``min(share x factor, most)`` for each share of a roof; sizes and latencies stay."""
    compute, memory, communication = (
        _times(factor, most) for factor in (calibration.compute, calibration.memory, calibration.communication)
    )
    family = curves.collectives
    rings = {name: _link(ring, communication) for name in _RINGS_ALL if (ring := getattr(family, name)) is not None}
    exchanges = {name: _link(getattr(family, name), communication) for name in _EXCHANGES}
    return with_kernels(
        curves,
        lambda record: _roofs(record, compute, memory),
        lambda record: replace(record, eta_max=memory(record.eta_max)),
        collectives=replace(_link(family, communication), **rings, **exchanges),
    )


def _times(factor: float, most: float) -> Callable[[float], float]:
    return lambda share: share if factor == 1.0 else min(share * factor, most)


def _roofs(record: T, compute: Callable[[float], float], memory: Callable[[float], float]) -> T:
    """A kernel's record with its shares of the two roofs changed."""
    changed = {"eta_max": compute, "eta_compute": compute, "eta_memory": memory}
    return _changed(record, changed)


def _link(record: T, communication: Callable[[float], float]) -> T:
    return _changed(record, dict.fromkeys(("eta", "eta_up", "eta_out", "send_eta", "out_eta"), communication))


def _changed(record: T, changed: Mapping[str, Callable[[float], float]]) -> T:
    new: dict[str, Any] = {
        f.name: changed[f.name](getattr(record, f.name)) for f in fields(record) if f.name in changed
    }
    return replace(record, **new)


def impossible_factors(curves: EfficiencyCurves, calibration: Calibration) -> list[tuple[str, str]]:
    """(factor, what it makes of which curve) for each factor that lifts a share above ``MAX_EFFICIENCY``."""
    found = []
    for factor in ("compute", "memory", "communication"):
        value = getattr(calibration, factor)
        share, name = _largest_share(curves, factor)
        if value > 1.0 and value * share > MAX_EFFICIENCY:
            found.append((factor, f"{value:.4g} makes {name} {value * share:.3g} of what {curves.id} can do."))
    return found


def largest_factor(curves: EfficiencyCurves, factor: str) -> float:
    """The largest value of ``compute``, ``memory`` or ``communication`` that is still believed."""
    return max(1.0, MAX_EFFICIENCY / _largest_share(curves, factor)[0])


def with_factor(calibration: Calibration, factor: str, value: float) -> Calibration:
    """``calibration`` with one of its three factors changed."""
    new: dict[str, Any] = {factor: value}
    return replace(calibration, **new)


def _largest_share(curves: EfficiencyCurves, factor: str) -> tuple[float, str]:
    """The largest of the shares that a factor multiplies, and its name."""
    doubled = dict(shares(scaled_curves(curves, with_factor(SHIPPED, factor, 2.0))))
    return max((share, name) for name, share in shares(curves) if doubled[name] != share)


def shares(curves: EfficiencyCurves) -> Iterator[tuple[str, float]]:
    """Every share of a roof with its name: ``gemm.fp8.eta_max``."""
    for owner, record in _records(curves):
        for f in fields(record):
            if _is_share(f.name):
                yield f"{owner}.{f.name}", getattr(record, f.name)


@lru_cache(maxsize=64)
def read_curves(name: str) -> EfficiencyCurves:
    """Curves of the family ``name``. Raises InputError where there is no such file or a number is impossible."""
    folder = hardware_dir() / "efficiency"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*-*.yaml")))
        raise InputError(Problem(f"no efficiency family '{name}'", key="efficiency", fix=f"Known: {known}."))
    curves = curves_from_dict(read_data_file(path))
    problems = validate_curves(curves)
    if problems:
        raise InputError([Problem(text, file=str(path)) for text in problems])
    return curves


def curves_from_dict(raw: Mapping[str, Any]) -> EfficiencyCurves:
    """Record from the parsed YAML. Keys that a record doesn't know are remarks (source, rows) and skipped."""

    def by_key(key: str, kind: type[T]) -> dict[str, T]:
        return {name: _record(kind, value) for name, value in raw[key].items()}

    return EfficiencyCurves(
        id=raw["id"],
        confidence=raw["confidence"],
        date=str(raw["date"]),
        band=float(raw["band"]),
        op_overhead_s=float(raw["op_overhead_s"]),
        roof_exponent=float(raw["roof_exponent"]),
        gemm=by_key("gemm", GemmCurve),
        grouped_gemm=by_key("grouped_gemm", GroupedGemmCurve),
        stream=_record(StreamCurve, raw["stream"]),
        prefill_attention=by_key("prefill_attention", AttentionCurve),
        decode_attention=by_key("decode_attention", AttentionCurve),
        collectives=_collectives(raw["collectives"]),
        evidence=tuple(Evidence(**row) for row in raw.get("evidence", ())),
    )


def _collectives(raw: Mapping[str, Any]) -> CollectiveCurves:
    custom = raw.get("all_reduce_custom")
    return CollectiveCurves(
        all_reduce=_record(CollectiveCurve, raw["all_reduce"]),
        all_reduce_custom=_record(CollectiveCurve, custom) if custom else None,
        all_gather=_record(CollectiveCurve, raw["all_gather"]),
        reduce_scatter=_record(CollectiveCurve, raw["reduce_scatter"]),
        all_to_all=_record(CollectiveCurve, raw["all_to_all"]),
        dispatch_low_latency=_record(ExpertExchangeCurve, raw["dispatch_low_latency"]),
        combine_low_latency=_record(ExpertExchangeCurve, raw["combine_low_latency"]),
        dispatch_normal=_record(ExpertExchangeCurve, raw["dispatch_normal"]),
        combine_normal=_record(ExpertExchangeCurve, raw["combine_normal"]),
        send_alpha_s=float(raw["send_alpha_s"]),
        send_eta=float(raw["send_eta"]),
        out_alpha_s=float(raw["out_alpha_s"]),
        out_eta=float(raw["out_eta"]),
    )


_RINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_RINGS_ALL = (*_RINGS, "all_reduce_custom")
_EXCHANGES = ("dispatch_low_latency", "combine_low_latency", "dispatch_normal", "combine_normal")


def _record(kind: type[T], value: Mapping[str, Any]) -> T:
    return kind(**{f.name: float(value[f.name]) for f in fields(kind) if f.name in value})


def _is_share(name: str) -> bool:
    return name.startswith("eta") or name.endswith("_eta")


def _records(curves: EfficiencyCurves) -> Iterator[tuple[str, Any]]:
    """Every record of numbers with its name."""
    for group in ("gemm", "grouped_gemm", "prefill_attention", "decode_attention"):
        for name, record in getattr(curves, group).items():
            yield f"{group}.{name}", record
    yield "stream", curves.stream
    yield "collectives", curves.collectives
    for name in (*_RINGS_ALL, *_EXCHANGES):
        record = getattr(curves.collectives, name)
        if record is not None:
            yield f"collectives.{name}", record


def validate_curves(curves: EfficiencyCurves) -> list[str]:
    """What is physically impossible in ``curves``: shares outside (0, 1], negative sizes, roof exponent below 1."""
    problems: list[str] = []
    for owner, record in _records(curves):
        for f in fields(record):
            value = getattr(record, f.name)
            if not isinstance(value, float):
                continue
            share = _is_share(f.name)
            low_ok = value > 0 if share else value >= (1 if f.name == "roof_exponent" else 0)
            if not math.isfinite(value) or not low_ok or (share and value > 1):
                problems.append(f"{owner}.{f.name} = {value} is impossible")
    return problems
