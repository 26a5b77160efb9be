"""Chips and models: JSON against its schema, figures against the catalogue, text within its width."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pddplan.llm.catalogue import load_model, model_ids
from pddplan.llm.describe import describe
from pddplan.report.chip_check_report import chip_check_payload
from pddplan.report.chips_json import chip_payload, chips_payload
from pddplan.report.lines_table import lines_payload
from pddplan.report.models_report import model_payload, models_payload, render_model, render_model_list
from pddplan.report.schemas import SCHEMAS
from pddplan.spec.catalogue import chip_ids, link_defaults, load_chip
from pddplan.spec.chip_check import check_chip_file
from pddplan.spec.chip_list import chip_summaries


def test_chips() -> None:
    payload = chips_payload(chip_summaries(), "2026-11-30")
    Draft202012Validator(SCHEMAS["chips"]).validate(payload)
    assert [c["id"] for c in payload["chips"]] == list(chip_ids())
    for name in chip_ids():
        Draft202012Validator(SCHEMAS["chip"]).validate(chip_payload(load_chip(name), load_chip("h100")))
    against = chip_payload(load_chip("h20"), load_chip("h100"))["against"]
    assert against["id"] == "nvidia-h100-sxm"
    assert against["ratios"]["memory_gb_per_s"] == pytest.approx(4000 / 3350)
    listed = {c["id"]: c for c in payload["chips"]}
    assert sum(c["plannable"] for c in listed.values()) == 47
    assert sum(c["plannable"] and c["bf16_tflops"] is not None for c in listed.values()) == 45
    assert listed["metax-c500"]["missing"] == ["interconnect_gb_per_s"]


def test_lines() -> None:
    payload = lines_payload(link_defaults())
    Draft202012Validator(SCHEMAS["lines"]).validate(payload)
    tiers = {t["id"]: t for t in payload["tiers"]}
    assert tiers["aws-10g"]["usd_per_gb"] == {"out": 0.02, "in": 0}
    assert payload["rtt_ms"]["km_1000"] == pytest.approx(13) and payload["defaults"]["goodput"] == 0.9


def test_a_chip_looked_over(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nbf16_tflops: 1979\nmemory_gb: 80\nmemory_gb_per_s: 3350\n")
    payload = chip_check_payload(check_chip_file(path))
    Draft202012Validator(SCHEMAS["chip_check"]).validate(payload)
    assert (payload["status"], payload["missing"]) == ("incomplete", ["interconnect_gb_per_s"])
    kinds = {f["key"]: f["kind"] for f in payload["findings"]}
    assert kinds["interconnect_gb_per_s"] == "missing" and kinds["bf16_tflops"] == "implausible"


def test_models() -> None:
    facts = [describe(load_model(name)) for name in model_ids()]
    payload = models_payload(facts)
    Draft202012Validator(SCHEMAS["models"]).validate(payload)
    for one in facts:
        Draft202012Validator(SCHEMAS["model"]).validate(model_payload(one))
    assert max(len(line) for line in render_model_list(facts, 100).splitlines()) <= 100


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", ["deepseek-v3.2", "gpt-oss-120b", "llama-3.1-8b"])
def test_one_model_as_text(name: str, width: int) -> None:
    model = load_model(name)
    text = render_model(describe(model), model, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert name in text.splitlines()[0]
    for heading in ("Layers", "Parameters", "KV cache of one sequence", "Weights", "Sources"):
        assert heading in text


def test_figures_of_a_known_model() -> None:
    """DeepSeek-V3: 671 B parameters, 37 B active (https://huggingface.co/deepseek-ai/DeepSeek-V3)."""
    payload = model_payload(describe(load_model("deepseek-v3")))
    assert payload["parameters"] == pytest.approx(671e9, rel=0.005)
    assert payload["active_parameters"] == pytest.approx(37e9, rel=0.03)
    # 61 layers x (512 + 64) x 2 bytes
    assert payload["kv_bytes_per_token"]["bf16"] == pytest.approx(61 * 576 * 2)
