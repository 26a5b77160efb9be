"""The file of factors: written, read again, applied; what is wrong with one is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddplan.accuracy.calibrate import Calibrated, FittedFactor
from pddplan.accuracy.factors import Factor
from pddplan.accuracy.overlay import apply, calibrated_measurements, overlay_text
from pddplan.errors import InputError
from pddplan.perf.curves import load_curves, scaled_curves, shares
from pddplan.spec.calibration import FITTED_NUMBERS, load_overlay, parse_overlay
from pddplan.spec.profiles import ENGINE_NUMBERS, load_engine
from pddplan.spec.types import Calibration
from tests.accuracy.sweeps import H100
from tests.accuracy.tables import OWN, own, read

GOOD = """\
schema: pddplan.overlay/1
chips:
  h100: {compute: 0.8, memory: 0.9}
engines:
  vllm: {step_overhead_ms: 3, prompt_factor: 1.2}
fit: {rows: 3}
"""


def fitted(kind: str, owner: str, name: str, shipped: float, value: float, known: bool = True) -> FittedFactor:
    factor = Factor(kind, owner, name, shipped, 0.0, 9.0, 0.1, True)  # type: ignore[arg-type]
    return FittedFactor(factor, value, value - 0.1, value + 0.1, known, 0.1)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    factors = (
        fitted("chip", H100, "compute", 1.0, 0.8123),
        fitted("chip", H100, "memory", 1.0, 1.0, known=False),
        fitted("engine", "vllm", "step_overhead_ms", 1.64, 3.02),
    )
    found = Calibrated(("my: rows.csv",), 9, 8, factors, (), None, None, (), ())
    path = tmp_path / "c.yaml"
    path.write_text(overlay_text(found, "2026-12-01", "0.1.0"))
    overlay = load_overlay(path)
    assert overlay.chips == {H100: Calibration(compute=0.8123)}
    assert overlay.engines == {"vllm": {"step_overhead_ms": 3.02}}
    assert overlay.data["fit"]["files"] == ["my: rows.csv"] and overlay.data["fit"]["date"] == "2026-12-01"
    assert overlay.data["fit"]["not_identified"] == [f"{H100} memory"]


def test_a_point_gets_its_chip_s_and_its_engine_s_factors() -> None:
    overlay = parse_overlay(GOOD, "c.yaml")
    point = read(OWN, own()).rows[0].parts[0].point
    changed = apply(point, overlay)
    assert changed.pools[0].chip.calibration == Calibration(0.8, 0.9)
    assert changed.engine.step_overhead_s == pytest.approx(3e-3) and changed.engine.prompt_factor == 1.2
    assert apply(point, overlay).pools[0].chip is changed.pools[0].chip  # services are kept by chip
    other = read(OWN, own(chip="a100", engine="sglang")).rows[0].parts[0].point
    assert apply(other, overlay) == other


def test_predictions_under_an_overlay_are_slower() -> None:
    from pddplan.accuracy.predict import predict

    plain = read(OWN, own())
    changed = calibrated_measurements(plain, parse_overlay(GOOD, "c.yaml"))
    (before,), (after,) = predict(plain.rows), predict(changed.rows)
    assert before.figures is not None and after.figures is not None
    assert all(after.figures[m] > before.figures[m] * 1.05 for m in ("ttft_ms", "tpot_ms"))


def test_factors_multiply_the_shares_that_they_name() -> None:
    from pddplan.spec.catalogue import load_chip

    curves = load_curves(load_chip("h100"))
    before = dict(shares(curves))
    scaled = shares(scaled_curves(curves, Calibration(0.8, 0.9, 0.7)))
    ratios = {name: round(value / before[name], 9) for name, value in scaled}
    assert ratios["gemm.bf16.eta_max"] == ratios["prefill_attention.gqa.eta_compute"] == 0.8
    assert ratios["stream.eta_max"] == ratios["decode_attention.gqa.eta_memory"] == 0.9
    assert ratios["collectives.all_reduce.eta"] == ratios["collectives.out_eta"] == 0.7
    assert set(ratios.values()) == {0.7, 0.8, 0.9}


def test_a_share_of_just_above_one_is_one_and_more_is_refused() -> None:
    from dataclasses import replace

    from pddplan.spec.catalogue import load_chip

    chip = load_chip("h100")
    best = max(v for n, v in shares(load_curves(chip)) if n.endswith(("eta_max", "eta_compute")) and "stream" not in n)
    just = load_curves(replace(chip, calibration=Calibration(compute=1.04 / best)))
    assert max(value for _, value in shares(just)) == 1.0
    with pytest.raises(InputError) as error:
        load_curves(replace(chip, calibration=Calibration(compute=1.06 / best, file="c.yaml", line=3)))
    problem = error.value.problems[0]
    assert (problem.file, problem.line, problem.key) == ("c.yaml", 3, f"chips.{H100}.compute")
    assert "1.06" in problem.message and "1.05" in problem.fix


def test_engine_numbers_are_those_of_the_profiles() -> None:
    engine, assumptions = load_engine("vllm")
    values = {a.name.removeprefix("engine."): a.value for a in assumptions}
    for key in FITTED_NUMBERS:
        field, si = ENGINE_NUMBERS[key]
        assert getattr(engine, field) / si == pytest.approx(values[key])


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("chips:\n  h100: {comput: 0.8}\n", 2, "Did you mean 'compute'?"),
        ("chips:\n  h1000-sxm: {compute: 0.8}\n", 2, "no chip 'h1000-sxm'"),
        ("chip:\n  h100: {compute: 0.8}\n", 1, "Did you mean 'chips'?"),
        ("engines:\n  vlm: {step_overhead_ms: 3}\n", 2, "Did you mean vllm?"),
        ("engines:\n  vllm: {step_overhead_ms: -3}\n", 2, "at least 0"),
        ("engines:\n  vllm: {step_overhead: 3}\n", 2, "Did you mean 'step_overhead_ms'?"),
        ("chips:\n  h100: {compute: 0.8, memory: .nan}\n", 2, "not a finite number"),
        ("chips:\n  h100: {compute: 80 %}\n", 2, "0.8"),
        ("chips:\n  h100: 0.8\n", 2, "not a mapping"),
        ("schema: pddplan.plan/1\nchips:\n  h100: {compute: 0.8}\n", 1, "is not a calibration"),
        ("chips:\n  h100: {compute: 0.8}\n  h100: {compute: 0.9}\n", 3, "given twice"),
    ],
)
def test_a_slip_is_one_message_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_overlay(text, "c.yaml")
    (problem,) = error.value.problems
    assert (problem.file, problem.line) == ("c.yaml", line) and said in f"{problem.message} {problem.fix}"


@pytest.mark.parametrize("text", ["", "fit: {rows: 3}\n", "- 1\n"], ids=["empty", "no factors", "a list"])
def test_what_holds_no_factor_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_overlay(text, "c.yaml")
    assert len(error.value.problems) == 1
