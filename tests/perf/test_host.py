"""What an engine adds to kernels: hidden launches, overheads by layer, request and step, the first output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pddplan.llm.catalogue import load_model
from pddplan.llm.comm import moe_layers
from pddplan.perf.curves import load_curves
from pddplan.perf.host import engine_curves, first_output_s, with_host
from pddplan.spec.catalogue import load_chip
from pddplan.spec.identity import Same
from tests.perf.instances import ENGINE, instance


def test_launches_of_kernels_are_hidden_in_part_collectives_wait_for_peers() -> None:
    curves = load_curves(load_chip("nvidia-h100-sxm"))
    half = engine_curves(curves, replace(ENGINE, launch_share=0.5))
    assert half.op_overhead_s == pytest.approx(0.5 * curves.op_overhead_s)
    for name in ("gemm", "grouped_gemm", "prefill_attention", "decode_attention"):
        for key, curve in getattr(curves, name).items():
            assert getattr(half, name)[key].overhead_s == pytest.approx(0.5 * curve.overhead_s), (name, key)
    assert half.collectives == curves.collectives
    assert engine_curves(curves, ENGINE) is curves
    assert engine_curves(curves, replace(ENGINE, launch_share=0.5)) is half  # made once


def test_an_engine_runs_experts_on_its_own_kernel_where_the_family_has_a_curve() -> None:
    curves = load_curves(load_chip("nvidia-h100-sxm"))
    own = engine_curves(curves, replace(ENGINE, expert_kernel="block_cutlass"))
    named = {key.split("/")[0] for key in curves.grouped_gemm if key.endswith("/block_cutlass")}
    assert named
    for key in named:
        assert own.grouped_gemm[key] == curves.grouped_gemm[f"{key}/block_cutlass"]
        assert own.grouped_gemm[key] != curves.grouped_gemm[key]
    assert engine_curves(curves, replace(ENGINE, expert_kernel="unheard_of")).grouped_gemm == curves.grouped_gemm


def test_host_time_by_hand() -> None:
    engine = replace(
        ENGINE, step_overhead_s=2e-3, layer_overhead_s=1e-5, expert_layer_overhead_s=3e-5, request_overhead_s=2e-5
    )
    own = instance("nvidia-h200-sxm", "deepseek-v3", 8, engine=engine)
    assert moe_layers(own.model) == 58 and own.model.layers == 61
    found = with_host(own, np.array([0.02]), np.array([64.0]))
    assert found[0] == pytest.approx(0.02 + 61 * 1e-5 + 58 * 3e-5 + 2e-3 + 64 * 2e-5)
    # two drafted tokens of one request are sampled and detokenised in one go
    drafted = replace(own, engine=replace(engine, mtp_accepted_tokens=1.8))
    assert with_host(drafted, np.array([0.02]), np.array([64.0]))[0] == pytest.approx(found[0] - 32 * 2e-5)


def test_a_pipeline_keeps_the_step_of_its_fullest_stage() -> None:
    own = instance("nvidia-h200-sxm", "deepseek-v3", 8, 2, engine=replace(ENGINE, step_overhead_s=0.0))
    # 61 layers over two stages: 31 and 30
    assert with_host(own, np.array([0.061]), np.array([1.0]))[0] == pytest.approx(0.062, rel=0.02)


def test_the_first_output_by_hand() -> None:
    engine = replace(ENGINE, first_output_s=0.05, first_output_steps=3.0, expert_first_output_s=1e-3)
    assert first_output_s(engine, load_model("deepseek-v3"), 0.02) == pytest.approx(0.05 + 0.06 + 0.058)
    assert first_output_s(engine, load_model("llama-3.1-8b"), 0.02) == pytest.approx(0.11)


def test_equal_records_are_different_keys() -> None:
    chip = load_chip("nvidia-h100-sxm")
    other = replace(chip)
    assert other == chip
    assert Same(chip) == Same(chip) and hash(Same(chip)) == hash(Same(chip))
    assert Same(chip) != Same(other)
