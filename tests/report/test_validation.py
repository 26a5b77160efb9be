"""A validation as text and as JSON."""

from __future__ import annotations

import json
import math

import pytest
from jsonschema import Draft202012Validator

from pddplan.accuracy import fitted
from pddplan.accuracy.score import worst
from pddplan.accuracy.validation import Validation, validate
from pddplan.report.schemas import SCHEMAS
from pddplan.report.validation_json import validation_payload
from pddplan.report.validation_text import render_validation
from tests.accuracy.standin import install
from tests.accuracy.tables import E2E_AGG, OWN, SERVING, e2e, own, read, serving
from tests.report.golden import assert_golden


@pytest.fixture
def validation(monkeypatch: pytest.MonkeyPatch) -> Validation:
    """Two sweeps of DeepSeek with a peer, one of them fitted, and rows without a prediction."""
    install(monkeypatch)
    fitted.fitted_groups.cache_clear()
    monkeypatch.setattr(fitted, "fitted_groups", lambda: frozenset({("deepseek-v3", "nvidia-b200-sxm", "trtllm")}))
    rows = [e2e(concurrency=u, silicon_tpot_ms=9 + 1.3 * u, aic_tpot_ms=8 + 2 * u) for u in (1, 4, 16, 32, 64)]
    rows += [e2e(concurrency=u, silicon_tpot_ms=30 - u, backend="sglang", aic_tpot_ms="") for u in (1, 2, 3, 4, 5)]
    rows += [e2e(model_path="bloom-176b"), e2e(concurrency=""), e2e(tp_size=8000, moe_tp_size=8000)]
    return validate(read(E2E_AGG, *rows))


@pytest.mark.parametrize("width", [80, 100])
def test_text(validation: Validation, width: int) -> None:
    text = render_validation(validation, worst(validation.rows, 3), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert_golden(f"validate_{width}.txt", text + "\n")


def test_json_has_every_row(validation: Validation) -> None:
    payload = validation_payload(validation, worst(validation.rows, 3))
    Draft202012Validator(SCHEMAS["validation"]).validate(payload)
    assert json.loads(json.dumps(payload, allow_nan=False)) == payload
    assert [r["row"] for r in payload["rows"]] == list(range(1, 14))
    last = payload["rows"][-1]
    assert last["predicted"] is None and "chips" in last["why"]
    first = payload["rows"][0]
    assert first["why"] is None and first["predicted"]["tpot_ms"] == pytest.approx(11.0)
    assert first["predicted"]["prefill_tok_s_per_chip"] is None  # the layout has no rates to compare with
    everything = next(g for g in payload["groups"] if g["group"] == "all" and g["metric"] == "tpot_ms")
    assert everything["n"] == 10 and everything["peer"]["n"] == 5
    assert sum(w["rows"] for w in payload["without_prediction"]) == 3
    assert len(payload["worst"]) == 3


def test_tiers_are_separate_in_text_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    cells = serving(mode="agg", parallelism="TP8", osl=100, concurrency=10, tpot_ms=10)
    found = validate(read(SERVING, cells, cells | {"confidence": "B", "tpot_ms": 40}))
    text = render_validation(found, (), 80)
    assert "all rows, confidence A" in text and "all rows, confidence B" in text
    groups = [g for g in validation_payload(found)["groups"] if g["group"] == "all"]
    assert [(g["confidence"], g["n"]) for g in groups] == [("A", 1), ("B", 1)]


def test_absurd_errors_stay_within_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    found = validate(read(OWN, own(tpot_ms=1e-9, ttft_ms=1e12, model="x" * 500), own(tpot_ms=1e-9, ttft_ms=1e12)))
    text = render_validation(found, worst(found.rows, 5), 80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert all(math.isfinite(g["mape"]) for g in validation_payload(found)["groups"])


def test_nothing_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    found = validate(read(OWN, own(model="x-1b")))
    assert render_validation(found, (), 80).startswith("t.csv: 1 row, 0 predicted, 1 without a prediction")
    payload = validation_payload(found)
    Draft202012Validator(SCHEMAS["validation"]).validate(payload)
    assert payload["groups"] == [] and len(payload["rows"]) == 1
