"""The fit of the engine profiles finds the numbers that made the rows, and splits rows by whole groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pddplan.accuracy import engine_fit
from pddplan.accuracy.predict import predict
from pddplan.accuracy.records import MeasuredRow
from tests.accuracy.tables import OWN, only, own

MADE = {"step_overhead_ms": 2.0, "request_overhead_us": 25.0, "expert_layer_overhead_us": 40.0}


def row(number: int, **cells: object) -> MeasuredRow:
    return replace(only(OWN, own(**cells)), number=number)


@pytest.fixture(scope="module")
def made() -> list[MeasuredRow]:
    """Rows of a dense and of an expert model whose TPOT a known profile made."""
    cells = [
        {"model": model, "chip": chip, "tp": tp, "concurrency": users, "isl": 1024, "osl": 128}
        for model, tp in (("llama-3.1-8b", 1), ("qwen3-30b-a3b", 1))
        for chip in ("h100_sxm", "h200_sxm")
        for users in (1, 32, 128, 512)
    ]
    rows = [row(i, **c) for i, c in enumerate(cells)]
    assert all(r.parts for r in rows), [r.why for r in rows]
    found = predict(engine_fit.with_engine(rows, MADE))
    return [replace(r, measured={"tpot_ms": p.figures["tpot_ms"]}) for r, p in zip(rows, found, strict=True)]  # type: ignore[index]


def test_it_finds_what_made_the_rows(made: list[MeasuredRow], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the prior's pull: within 20 %, in seven evaluations of a loop that isn't smooth."""
    monkeypatch.setattr(engine_fit, "PULL", 0.002)
    found = engine_fit.fit_engine(made, engine_fit.STAGES[:1])
    for key, value in MADE.items():
        assert found[key] == pytest.approx(value, rel=0.2), found


def test_the_prior_pulls_and_errors_fall_all_the_same(made: list[MeasuredRow]) -> None:
    found = engine_fit.fit_engine(made, engine_fit.STAGES[:1])
    prior = {p.key: p.prior for p in engine_fit.TPOT_PARAMETERS}
    for key, value in MADE.items():
        assert prior[key] < found[key] < value, found
    left = engine_fit.log_errors_of(made, {"vllm": found})["tpot_ms"]
    before = engine_fit.log_errors_of(made, {"vllm": prior})["tpot_ms"]
    assert np.mean(np.abs(left)) < 0.75 * np.mean(np.abs(before))


def test_a_row_that_says_nothing_leaves_the_prior(made: list[MeasuredRow]) -> None:
    dense = [r for r in made if r.labels.model == "llama-3.1-8b"]
    found = engine_fit.fit_engine(dense, engine_fit.STAGES[:1])
    prior = next(p.prior for p in engine_fit.TPOT_PARAMETERS if p.key == "expert_layer_overhead_us")
    assert found["expert_layer_overhead_us"] == prior


def test_halves_are_whole_groups_of_every_engine() -> None:
    rows = [
        row(i, model=model, chip=chip, engine=engine, tp=8)
        for engine in ("vllm", "sglang")
        for model in ("llama-3.1-8b", "qwen3-30b-a3b")
        for chip in ("h100_sxm", "h200_sxm")
        for i in range(2)
    ]
    fitted, other = engine_fit.halves(rows)
    assert len(fitted) == len(other) == 4 and not set(fitted) & set(other)
    for engine in ("vllm", "sglang"):
        own_groups = sorted(g for g in (*fitted, *other) if g[2] == engine)
        assert [g for g in own_groups if g in fitted] == own_groups[1::2]
