"""Instances for the tests of this folder: catalogue chips and models, an engine whose numbers stand here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pddplan.llm.catalogue import load_model
from pddplan.llm.types import LanguageModel
from pddplan.perf.curves import EfficiencyCurves, load_curves
from pddplan.perf.instance import Instance, Parallelism
from pddplan.spec.catalogue import load_chip
from pddplan.spec.types import Chip, ChipOffer, Engine, ParallelismChoice

ENGINE = Engine(
    name="test",
    chunk_tokens=8192,
    tail_merge="cut",
    step_overhead_s=0.004,
    layer_overhead_s=0.0,
    router_delay_s=0.0,
    memory_fraction=0.9,
    reserve_bytes=2e9,
    max_batch=256,
    mtp_accepted_tokens=1.0,
    decode_prefix_sharing=True,
    overlap_expert_communication=False,
    expert_imbalance=1.0,
    context_sigma=0.0,
)


def four_number_chip(**changes: object) -> Chip:
    """A chip known by compute, memory, memory bandwidth and interconnect alone."""
    chip = Chip(
        id="four",
        name="four",
        vendor="",
        chip_class="custom",
        aliases=(),
        peak_flops={"bf16": 400e12},
        memory_bytes=96e9,
        memory_bytes_per_s=2e12,
        scale_up_bytes_per_s=200e9,
        scale_up_domain=8,
        scale_out_bytes_per_s=25e9,
        chips_per_node=8,
        all_in_watts=None,
        usd_per_hour=None,
        price_kind="",
        price_date="",
        efficiency=None,
        provenance={},
    )
    return replace(chip, **changes)  # type: ignore[arg-type]


def instance(
    chip: str | Chip,
    model: str | LanguageModel,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    *,
    engine: Engine = ENGINE,
    weights: str = "native",
    kv_cache: str = "bf16",
    curves: EfficiencyCurves | None = None,
) -> Instance:
    chip = load_chip(chip) if isinstance(chip, str) else chip
    model = load_model(model) if isinstance(model, str) else model
    return Instance(chip, model, Parallelism(tp, pp, dp, ep), engine, weights, kv_cache, curves or load_curves(chip))


def offer(chip: str | Chip, max_chips: int = 64, **choice: tuple[int, ...]) -> ChipOffer:
    chip = load_chip(chip) if isinstance(chip, str) else chip
    return ChipOffer(chip, max_chips, 0, 2.0, chip.chips_per_node, None, ParallelismChoice(**choice), {}, {})


def _perfect(curves: Mapping[str, object], **changes: float) -> dict[str, object]:
    return {key: replace(curve, **changes) for key, curve in curves.items()}  # type: ignore[type-var]


def ideal_curves(base: EfficiencyCurves) -> EfficiencyCurves:
    """Every op at its roof: no latency, no efficiency loss, the plain maximum of compute and memory time."""
    roof = {"eta_memory": 1.0, "half_bytes": 0.0, "overhead_s": 0.0, "roof_exponent": 200.0}
    return replace(
        base,
        op_overhead_s=0.0,
        roof_exponent=200.0,
        gemm=_perfect(base.gemm, eta_max=1.0, m_half=0.0, n_half=0.0, k_half=0.0, **roof),
        grouped_gemm=_perfect(base.grouped_gemm, eta_max=1.0, m_half=0.0, **roof),
        stream=replace(base.stream, eta_max=1.0, half_bytes=0.0, overhead_s=0.0),
        prefill_attention=_perfect(base.prefill_attention, eta_compute=1.0, half_tokens=0.0, **roof),
        decode_attention=_perfect(base.decode_attention, eta_compute=1.0, half_tokens=0.0, **roof),
    )
