"""Every vector of the reference model cards against the closed forms, for the models of the catalogue."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pddplan.llm.catalogue import load_model, model_ids
from pddplan.llm.comm import ep_dispatch_elements, moe_layers, pp_boundary_elements, tp_allreduce_elements
from pddplan.llm.decode import decode_bytes
from pddplan.llm.flops import decode_flops, head_flops, linear_flops_per_token, prefill_flops
from pddplan.llm.kv import compressor_state_bytes, kv_bytes, kv_bytes_per_token, kv_window_cap_bytes, state_bytes
from pddplan.llm.parameters import parameters
from pddplan.llm.weights import weight_bytes
from tests.reference import reference_dir

MODELS = [m for m in model_ids() if m not in ("llama-2-70b", "qwen3-8b")]  # the reference has no vectors for these
TOLERANCE = 0.005
FORMATS = {
    "bf16": "bf16",
    "fp8_block128": "fp8",
    "int4_g128_experts+linears": "int4",
    "mxfp4_experts_bf16_rest": "mxfp4",
    "nvfp4_experts_fp8_rest": "nvfp4_experts_fp8_rest",
}


@lru_cache(maxsize=1)
def _vectors(folder: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load((folder / "models" / "models.yaml").read_text("utf-8"), Loader=loader)
    vectors: dict[str, Any] = {m["id"]: m for m in data["models"]}
    return vectors


@pytest.fixture(params=MODELS)
def vector(request: pytest.FixtureRequest) -> dict[str, Any]:
    vector: dict[str, Any] = _vectors(reference_dir())[request.param]
    return vector


def _tokens(text: str) -> int:
    return int(text.removesuffix("K")) * 1024


def test_parameters_are_exact(vector: dict[str, Any]) -> None:
    count, want = parameters(load_model(vector["id"])), vector["params"]
    assert count.total == want["total"]
    assert count.active == want["active"]
    assert count.active_no_embed_no_head == want["active_no_embed_no_head"]
    assert (count.embed, count.head) == (want["embed"], want["head"])
    assert count.attention == want["attn"]
    assert (count.routed_experts, count.per_expert) == (want["routed_experts"], want["per_expert"])
    assert load_model(vector["id"]).mtp_parameters == want["mtp_extra"]
    assert count.routed_experts + count.other_linear + count.rest == count.total


def test_weight_bytes(vector: dict[str, Any]) -> None:
    model = load_model(vector["id"])
    for key, ours in FORMATS.items():
        assert weight_bytes(model, ours).total == pytest.approx(vector["weight_bytes"][key], rel=TOLERANCE), key
    native = vector["weight_native"]
    assert weight_bytes(model, "native").total == pytest.approx(native["bytes_without_mtp"], rel=TOLERANCE)
    assert (model.native.experts, model.native.other_linear, model.native.rest) == (
        native["experts"],
        native["other_linear"],
        native["rest"],
    )


@pytest.mark.parametrize("kv_format", ["bf16", "fp8"])
def test_kv_cache(vector: dict[str, Any], kv_format: str) -> None:
    model, want = load_model(vector["id"]), vector["kv"]
    assert kv_bytes_per_token(model, kv_format) == pytest.approx(want[f"per_token_{kv_format}"], rel=1e-9)
    assert kv_window_cap_bytes(model, kv_format) == pytest.approx(want[f"window_cap_{kv_format}"], rel=1e-9)
    assert state_bytes(model) == want["state_bytes_fp32"]
    assert compressor_state_bytes(model) == want.get("compressor_state_fp32_ring", 0)
    lengths = want[f"at_{kv_format}"]
    got = kv_bytes(model, [_tokens(k) for k in lengths], kv_format)
    assert list(got) == pytest.approx(list(lengths.values()), rel=1e-6)


def test_flops(vector: dict[str, Any]) -> None:
    model, want = load_model(vector["id"]), vector["flops"]
    assert linear_flops_per_token(model) == want["linear_per_token"]
    assert head_flops(model) == want["head_per_logit"]
    for key, value in want["prefill"].items():
        new, cached = map(int, re.fullmatch(r"n=(\d+),c=(\d+)", key).groups())  # type: ignore[union-attr]
        assert float(prefill_flops(model, new, cached)) == pytest.approx(float(value), rel=TOLERANCE), key
    for key, value in want["decode_per_token"].items():
        assert float(decode_flops(model, int(key[2:]))) == pytest.approx(float(value), rel=TOLERANCE), key


def test_decode_bytes_per_step(vector: dict[str, Any]) -> None:
    model = load_model(vector["id"])
    for key, want in vector["decode_bytes_step"].items():
        got = decode_bytes(model, int(key[2:]), 32768, "fp8", "native")
        assert float(got.weights) == pytest.approx(float(want["weights"]), rel=TOLERANCE), key
        assert float(got.kv_read + got.state) == pytest.approx(float(want["kv"]), rel=TOLERANCE), key


def test_communication(vector: dict[str, Any]) -> None:
    model, want = load_model(vector["id"]), vector["comm"]
    assert tp_allreduce_elements(model) == want["tp_allreduce_elems_per_token"]
    assert pp_boundary_elements(model) == want["pp_boundary_elems_per_token"]
    assert moe_layers(model) == want.get("moe_layers", 0)
    assert ep_dispatch_elements(model) == want.get("ep_dispatch_elems_per_token_per_layer", 0)
    assert ep_dispatch_elements(model) == want.get("ep_combine_elems_per_token_per_layer", 0)


def test_architecture_fields(vector: dict[str, Any]) -> None:
    model, want = load_model(vector["id"]), vector["arch"]
    assert (model.layers, model.hidden, model.vocab) == (want["layers"], want["hidden"], want["vocab"])
    assert model.tied_embeddings == want["tied_embeddings"]
    # config.json of Step-3 and Kimi Linear say it under another name, which the reference doesn't read
    assert want["max_position"] in (model.max_context, None)


@pytest.mark.skipif("PDDPLAN_REFERENCE_DATA" not in os.environ, reason="PDDPLAN_REFERENCE_DATA is not set")
def test_every_model_of_the_reference_has_a_card() -> None:
    assert set(MODELS) == set(_vectors(reference_dir()))
    assert len(MODELS) == 41
