"""The fit finds what made the data, drops what can't be true, and writes files that load to the same curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from pddplan.perf.curves import Evidence, GemmCurve, curves_from_dict, read_curves, validate_curves
from pddplan.perf.fit import FORMS, errors, fit_curve, fit_family, form_of, main, predict, report
from pddplan.perf.fitfiles import Fitted, class_document, write_families
from pddplan.perf.kernels import KernelRows, chip_of, distinct_share
from pddplan.perf.kernels import _kernel as kernel

TRUE = GemmCurve(0.7, 40.0, 120.0, 90.0, 0.8, 1e5, 6e-6, 3.0)


def gemm_rows(system: str = "h100_sxm", noise: float = 0.0, repeat: int = 1) -> KernelRows:
    """Made of TRUE on a grid of shapes, with log-normal noise."""
    sides = [1024.0, 4096.0, 16384.0]
    grid = [(m, n, k) for m in (1.0, 16, 64, 256, 1024, 4096, 16384) for n in sides for k in sides] * repeat
    m, n, k = np.array(grid).T
    sizes: Mapping[str, np.ndarray] = {
        "m": m,
        "n": n,
        "k": k,
        "moved_bytes": 2.0 * (m * k + n * k + m * n),
        "flops": 2 * m * n * k,
    }
    made = kernel("gemm", "bf16", system, "https://example.org", sizes, np.full(len(m), 1e12))
    clean = FORMS["gemm"].predict(TRUE, made.sizes)
    return replace(made, time_s=clean * np.exp(noise * np.random.default_rng(3).normal(size=len(m))))


def test_the_curve_that_made_the_rows_is_found() -> None:
    rows = [gemm_rows(noise=0.03, repeat=3)]
    found = fit_curve(FORMS["gemm"], rows)
    assert isinstance(found, GemmCurve)
    assert found.eta_max == pytest.approx(TRUE.eta_max, rel=0.03)
    assert found.eta_memory == pytest.approx(TRUE.eta_memory, rel=0.03)
    assert found.m_half == pytest.approx(TRUE.m_half, rel=0.25)
    assert found.overhead_s == pytest.approx(TRUE.overhead_s, rel=0.1)
    assert errors(predict(FORMS["gemm"], found, rows), rows[0].time_s)[0] < 3


def test_a_few_wild_rows_do_not_move_the_fit() -> None:
    rows = gemm_rows()
    wild = rows.time_s.copy()
    wild[::20] *= 8
    found = fit_curve(FORMS["gemm"], [replace(rows, time_s=wild)])
    assert isinstance(found, GemmCurve)
    assert found.eta_max == pytest.approx(TRUE.eta_max, rel=0.05)


def test_every_system_counts_alike_however_many_rows_it_has() -> None:
    slow = gemm_rows("h200_sxm", repeat=6)
    fast = gemm_rows("h100_sxm")
    found = fit_curve(FORMS["gemm"], [replace(slow, time_s=slow.time_s * 1.3), fast])
    ratio = [np.median(predict(FORMS["gemm"], found, [r]) / r.time_s) for r in (slow, fast)]
    assert ratio[1] == pytest.approx(1.3**0.5, abs=0.06)  # half way in logarithms, not at the larger table


def test_efficiency_stays_within_one_even_on_impossible_rows() -> None:
    rows = gemm_rows()
    found = fit_curve(FORMS["gemm"], [replace(rows, time_s=rows.time_s / 3)])
    assert isinstance(found, GemmCurve)
    assert found.eta_max <= 1
    assert found.eta_memory <= 1


def test_rows_that_beat_a_roof_are_dropped_and_counted() -> None:
    size = np.array([4096.0, 4096.0])
    sizes = {"flops": 2 * size**3, "moved_bytes": 6 * size**2}
    possible_us = 2 * 4096.0**3 / 989e12 * 1e6
    rows = kernel("gemm", "bf16", "h100_sxm", "s", sizes, np.array([possible_us * 1.2, possible_us * 0.9]))
    assert rows.count == 1
    assert rows.excluded == {"faster than a roof": 1}
    resident = {"L2-resident": np.array([True, True])}
    rows = kernel(
        "gemm", "bf16", "h100_sxm", "s", sizes, np.array([possible_us * 1.2, possible_us * 0.9]), drop=resident
    )
    assert (rows.count, dict(rows.excluded)) == (0, {"L2-resident": 2})  # counted once, under the first reason


def test_distinct_experts_are_those_of_a_draw() -> None:
    draws = [
        len({*np.concatenate([rng.permutation(64)[:6] for _ in range(20)])}) / 64
        for rng in [np.random.default_rng(5)]
        for _ in range(400)
    ]
    share = distinct_share(np.array([64.0]), np.array([6.0]), np.array([20.0]))
    assert float(share[0]) == pytest.approx(np.mean(draws), abs=0.01)


def test_only_some_families_have_serial_contexts_and_a_shared_bus() -> None:
    assert form_of("decode_attention", "mla", "nvidia-ampere").start["serial_s_per_token"] > 0
    assert form_of("decode_attention", "gqa", "nvidia-ampere").start["serial_s_per_token"] == 0
    assert form_of("all_reduce", "", "nvidia-ada").start["contention"] > 0
    assert form_of("all_reduce", "", "nvidia-hopper").start["contention"] == 0
    assert form_of("fused_moe", "fp8") is FORMS["grouped_gemm"]


def donor() -> Fitted:
    """Hopper as it stands in its file, in the form the fit returns."""
    curves = read_curves("nvidia-hopper")
    keyed = {
        (op, key): curve
        for op in ("gemm", "grouped_gemm", "prefill_attention", "decode_attention")
        for key, curve in getattr(curves, op).items()
        if key != "linear"
    }
    shared = {
        (name, ""): getattr(curves.collectives, name)
        for name in asdict(curves.collectives)
        if not isinstance(getattr(curves.collectives, name), float)
    }
    return Fitted("nvidia-hopper", {**keyed, **shared, ("send", ""): shared["all_gather", ""]}, curves.evidence, 0.1)


def test_written_files_load_to_the_same_curves(tmp_path: Path) -> None:
    rows = gemm_rows("h20", noise=0.02)
    own = fit_family("nvidia-h20", [rows])
    paths = write_families([donor(), own, replace(donor(), family="class-gpu")], tmp_path, "2026-11-30")
    assert sorted(p.stem for p in paths) == sorted(
        ["nvidia-hopper", "nvidia-h20", "class-gpu", "class-npu", "class-tpu", "class-custom"]
    )
    assert not list(tmp_path.glob("*.new"))
    read = curves_from_dict(yaml.safe_load((tmp_path / "nvidia-h20.yaml").read_text()))
    assert validate_curves(read) == []
    assert read.gemm["bf16"] == own.curves["gemm", "bf16"]
    borrowed = {e.op for e in read.evidence if e.confidence == "borrowed"}
    assert {"all_reduce", "decode_attention gqa", "dispatch_normal"} <= borrowed
    assert "gemm bf16" not in borrowed
    hopper = curves_from_dict(yaml.safe_load((tmp_path / "nvidia-hopper.yaml").read_text()))
    assert hopper.collectives.all_reduce == read.collectives.all_reduce
    for name in ("class-npu", "class-custom"):
        scaled = curves_from_dict(yaml.safe_load((tmp_path / f"{name}.yaml").read_text()))
        assert validate_curves(scaled) == []
        assert scaled.gemm["fp8"].eta_max < hopper.gemm["fp8"].eta_max
        assert scaled.collectives.all_reduce.alpha_s > hopper.collectives.all_reduce.alpha_s


def test_shares_of_a_class_are_capped_at_one() -> None:
    base = {"gemm": {"bf16": {"eta_max": 0.8, "overhead_s": 2e-6, "m_half": 3.0}}, "op_overhead_s": 1e-6, "stream": {}}
    change = {"shares": {"gemm": 2.0}, "latencies": 1.5, "band": 0.4, "sources": ["s"]}
    made = class_document(base, "class-x", change, "2026-11-30")
    assert made["gemm"]["bf16"] == {"eta_max": 1.0, "overhead_s": 3e-6, "m_half": 3.0}
    assert (made["id"], made["band"], made["op_overhead_s"]) == ("class-x", 0.4, 1.5e-6)


def test_the_report_shows_rows_and_residuals() -> None:
    row = Evidence("gemm bf16", 192, 4.3, 11.0, "https://example.org", "fitted", 7)
    text = report([Fitted("nvidia-x", {}, (row,), 0.12)])
    assert "192" in text and "4.3" in text and "11.0" in text and "band 0.120" in text


def test_wrong_usage_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["folder", "--write"]) == 2
    assert capsys.readouterr().err.startswith("usage: python -m pddplan.perf.fit KERNELS_DIR")


def test_systems_of_the_data_are_chips_of_the_catalogue() -> None:
    assert chip_of("h20").efficiency == "nvidia-h20"
    assert chip_of("gb200").scale_up_domain == 72
