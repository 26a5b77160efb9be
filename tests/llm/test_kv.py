"""KV cache: limits by hand, properties, and what crosses a line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddplan.llm.catalogue import load_model, model_ids
from pddplan.llm.kv import (
    compressor_state_bytes,
    group_kv_bytes,
    group_kv_replication,
    hit_granularity_tokens,
    kv_bytes,
    kv_bytes_per_rank,
    kv_bytes_per_token,
    kv_constant_bytes,
    kv_last_layer_bytes,
    kv_read_bytes,
    kv_replication,
    kv_window_cap_bytes,
    kv_write_bytes,
    layer_kv_bytes,
    state_bytes,
    transfer_bytes,
)

FORMATS = st.sampled_from(["bf16", "fp8"])
MODELS = st.sampled_from(model_ids())
LENGTHS = st.floats(0, 2e6)


@given(MODELS, FORMATS, LENGTHS, LENGTHS)
def test_longer_is_never_smaller(name: str, kv_format: str, a: float, b: float) -> None:
    short, long = kv_bytes(load_model(name), sorted((a, b)), kv_format)
    assert short <= long


@given(MODELS, FORMATS, st.floats(1e6, 1e8))
def test_long_sequences_grow_by_the_slope(name: str, kv_format: str, length: float) -> None:
    model = load_model(name)
    want = kv_constant_bytes(model, kv_format) + kv_window_cap_bytes(model, kv_format)
    want += kv_bytes_per_token(model, kv_format) * length
    assert float(kv_bytes(model, length, kv_format)) == pytest.approx(want, rel=1e-12)


@given(MODELS, FORMATS, LENGTHS)
def test_layers_add_up_to_the_model(name: str, kv_format: str, length: float) -> None:
    model = load_model(name)
    layers = layer_kv_bytes(model, length, kv_format)
    assert layers.shape == (len(model.groups),)
    total = sum(g.count * float(b) for g, b in zip(model.groups, layers, strict=True))
    assert total == pytest.approx(float(kv_bytes(model, length, kv_format)), rel=1e-12)
    assert float(kv_last_layer_bytes(model, length, kv_format)) == layers.max()


@given(MODELS, FORMATS, LENGTHS, st.floats(0, 1), st.floats(0, 1))
def test_transfer_lies_between_the_difference_and_the_whole(
    name: str, kv_format: str, length: float, a: float, b: float
) -> None:
    model, (less, more) = load_model(name), sorted((a, b))
    whole = float(kv_bytes(model, length, kv_format))
    moved = [float(transfer_bytes(model, length, x, kv_format)) for x in (less, more)]
    assert moved[1] <= moved[0] <= whole * (1 + 1e-12)
    difference = whole - float(kv_bytes(model, more * length, kv_format))
    assert moved[1] >= difference - 1e-9 * whole


def test_transfer_of_windows_by_hand() -> None:
    """gpt-oss: at x = 0.9 of 64K the far side lacks 6,553.6 tokens: 18 full layers of them, 18 windows of 128."""
    model, layer = load_model("gpt-oss-120b"), 8 * (64 + 64) * 2
    missing = 0.1 * 65536
    assert float(transfer_bytes(model, 65536, 0.9, "bf16")) == pytest.approx(18 * layer * (missing + 128), rel=1e-12)
    # below the window both kinds lack the same tokens
    assert float(transfer_bytes(model, 1000, 0.9, "bf16")) == pytest.approx(36 * layer * 100, rel=1e-12)


def test_linear_state_always_moves_whole() -> None:
    model = load_model("qwen3.5-397b-a17b")
    assert float(transfer_bytes(model, 65536, 1.0, "fp8")) == state_bytes(model) > 0


def test_transfer_broadcasts() -> None:
    moved = transfer_bytes(load_model("deepseek-v3.2"), np.full((3, 1), 65536.0), np.linspace(0, 1, 5), "fp8")
    assert moved.shape == (3, 5)
    assert moved[0] == pytest.approx(48068 * 65536 * (1 - np.linspace(0, 1, 5)))


@given(MODELS, FORMATS, LENGTHS)
def test_a_step_reads_no_more_than_there_is(name: str, kv_format: str, length: float) -> None:
    model = load_model(name)
    held = float(kv_bytes(model, length, kv_format)) - state_bytes(model)
    read = float(kv_read_bytes(model, length, kv_format))
    assert 0 <= read <= held * (1 + 1e-12) + 1e-6
    if not any(g.attention.indexer for g in model.groups):
        assert read == pytest.approx(held, rel=1e-12, abs=1e-6)


def test_sparse_reads_by_hand() -> None:
    v32, v4 = load_model("deepseek-v3.2"), load_model("deepseek-v4-pro")
    assert float(kv_read_bytes(v32, 100_000, "fp8")) == 61 * (132 * 100_000 + 656 * 2048)
    csa = 584 * 128 + 584 * 1024 + 68 * 100_000 / 4
    hca = 584 * 128 + 584 * 100_000 / 128
    assert float(kv_read_bytes(v4, 100_000, "fp8")) == pytest.approx(30 * csa + 31 * hca, rel=1e-12)


@given(MODELS, FORMATS)
def test_writing_a_sequence_fills_short_caches(name: str, kv_format: str) -> None:
    """Below every window the cache is its tokens' writes plus state."""
    model = load_model(name)
    want = 100 * kv_write_bytes(model, kv_format) + state_bytes(model)
    assert float(kv_bytes(model, 100, kv_format)) == pytest.approx(want, rel=1e-12)


@given(MODELS, FORMATS, st.floats(100, 1e6), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_ranks_hold_the_cache_and_its_copies(name: str, kv_format: str, length: float, tp: int) -> None:
    model = load_model(name)
    rank, whole = float(kv_bytes_per_rank(model, length, kv_format, tp)), float(kv_bytes(model, length, kv_format))
    assert whole / tp * (1 - 1e-12) <= rank <= whole * (1 + 1e-12)
    if tp == 1:
        assert kv_replication(model, 1) == 1.0
    if kv_replication(model, tp) == tp and not state_bytes(model):
        assert rank == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "tp", "copies"),
    [
        ("deepseek-v3", 8, 8),
        ("deepseek-v3.2", 16, 16),
        ("deepseek-v4-pro", 4, 4),
        ("llama-3.1-70b", 8, 1),
        ("llama-3.1-70b", 16, 2),
        ("qwen3-235b-a22b", 8, 2),
        ("qwen3.5-397b-a17b", 8, 4),
        ("gpt-oss-120b", 8, 1),
    ],
)
def test_replication_over_tensor_parallelism(name: str, tp: int, copies: float) -> None:
    assert kv_replication(load_model(name), tp) == copies


def test_state_is_split_while_latents_are_copied() -> None:
    model = load_model("kimi-linear-48b-a3b")
    assert [group_kv_replication(g, 8) for g in model.groups] == [1.0, 1.0, 8.0]
    rank = float(kv_bytes_per_rank(model, 1000, "bf16", 8))
    assert rank == pytest.approx(state_bytes(model) / 8 + 7 * 1152 * 1000, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "kv_format", "tokens"),
    [
        ("llama-3.1-8b", "bf16", 16),
        ("deepseek-v3.2", "fp8", 64),
        ("deepseek-v4-pro", "fp8", 256),
        ("qwen3.6-35b-a3b", "fp8", 2096),  # printed by vLLM: https://github.com/noonghunna/club-3090/issues/612
        ("qwen3.6-35b-a3b", "bf16", 1056),
    ],
)
def test_prefix_hits_come_in_blocks(name: str, kv_format: str, tokens: int) -> None:
    assert hit_granularity_tokens(load_model(name), kv_format) == tokens


def test_compressor_rings_of_v4_by_hand() -> None:
    want = 30 * 8 * 4 * (512 + 128) * 4 + 31 * 128 * 2 * 512 * 4
    assert compressor_state_bytes(load_model("deepseek-v4-pro")) == want
    assert compressor_state_bytes(load_model("deepseek-v3.2")) == 0


def test_shapes_and_bad_formats() -> None:
    model = load_model("gpt-oss-120b")
    assert kv_bytes(model, np.ones((2, 3)), "fp8").shape == (2, 3)
    assert group_kv_bytes(model.groups[0], [1, 2], "fp8").shape == (2,)
    for call in (kv_bytes_per_token, kv_constant_bytes, kv_write_bytes):
        with pytest.raises(ValueError, match="unknown KV cache format 'fp6'"):
            call(model, "fp6")
