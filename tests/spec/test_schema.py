"""The JSON Schema accepts what the loader accepts and refuses what only a typing error can be."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from pddplan.spec.catalogue import examples_dir
from pddplan.spec.schema import DIALECT, scenario_schema
from tests.spec.scenarios import EVERYTHING, SMALL
from tests.spec.test_load import SPARSE

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is part of the extra dev")


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = scenario_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def as_json(text: str) -> Any:
    return json.loads(json.dumps(yaml.safe_load(text)))


@pytest.mark.parametrize("text", [SMALL, EVERYTHING, SPARSE])
def test_accepts_what_the_loader_accepts(validator: Any, text: str) -> None:
    assert [e.message for e in validator.iter_errors(as_json(text))] == []


@pytest.mark.parametrize("file", sorted(path.name for path in examples_dir().glob("*.yaml")))
def test_accepts_the_examples(validator: Any, file: str) -> None:
    validator.validate(as_json((examples_dir() / file).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("prompt_tokens: 64K", "prompt_tokens: 65536"),
        ("prompt_tokens: 64K", "prompt_tokens: {p50: 1K, p99.9: 8k}"),
        ("prompt_tokens: 64K", "prompt_tokens: {mean: 1.5K, cv: 0.3}"),
        ("prompt_tokens: 64K", "prompt_tokens: {histogram: {8K: 0.3, 9000: 1}}"),
        ("prefix_hit_rate: {mean: 0.90, share_above_95: 0.75}", "prefix_hit_rate: 0.9"),
        ("prefix_hit_rate: {mean: 0.90, share_above_95: 0.75}", "prefix_hit_rate: {histogram: {0.9: 1}}"),
        ("usd_per_hour: 2.00", "cny_per_month: 9000"),
        ("usd_per_hour: 2.00", "usd_per_hour: {capex_cny: 200000, years: 4}"),
        ("name: small", "engine: sglang"),
        ("name: small", "objective: goodput"),
        ("name: small", "max_utilization: 0.9"),
        ("name: small", "spares: 1"),
        ("name: small", "engine:"),
        ("usd_per_hour: 2.3}", "usd_per_gb: 0.02}"),
    ],
)
def test_accepts_the_other_forms(validator: Any, old: str, new: str) -> None:
    text = SMALL.replace(old, new)
    assert text != SMALL
    assert [e.message for e in validator.iter_errors(as_json(text))] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model:", "modle:"),
        ("rtt_ms: 8", "rtt_ms: 8ms"),
        ("max: 96", "max: 0"),
        ("max: 96", "max: 9.5"),
        ("64K", "64KB"),
        ("mean: 0.90", "mean: 1.2"),
        ("usd_per_hour: 1.20", "usd_per_hour: -1"),
        ("[main_decode]", "[main_decod]"),
        ("tpot_ms: {p90: 50}", "tpot_ms: 50"),
        ("tpot_ms: {p90: 50}", "tpot_ms: {q90: 50}"),
        ("name: small", "max_utilization: 1.2"),
        ("name: small", "'=': 1"),
        ("output_usd_per_mtok", "output_eur_per_mtok"),
    ],
)
def test_refuses_typing_errors(validator: Any, old: str, new: str) -> None:
    text = SMALL.replace(old, new)
    assert text != SMALL
    assert list(validator.iter_errors(as_json(text)))


def test_is_a_described_document() -> None:
    schema = scenario_schema()
    assert schema["$schema"] == DIALECT
    chip = schema["$defs"]["ChipInput"]["properties"]
    assert chip["max"]["description"]
    assert {"usd_per_hour", "usd_per_month", "cny_per_year", "capex_cny"} <= set(chip)
    assert scenario_schema() == schema  # the same every time
    json.dumps(schema)
