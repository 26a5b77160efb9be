"""Distinct experts against draws, and their limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddplan.llm.catalogue import load_model
from pddplan.llm.decode import decode_bytes, decode_weight_bytes
from pddplan.llm.experts import distinct_experts, inclusion_probabilities
from pddplan.llm.weights import weight_bytes


def test_deepseek_v3_by_hand() -> None:
    got = distinct_experts(256, 8, [1, 8, 32, 64, 128])
    assert [round(float(x), 1) for x in got] == [8.0, 57.4, 163.3, 222.4, 251.6]


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(64, 4, 20), (128, 8, 5), (16, 1, 30)])
def test_uniform_routing_drawn(experts: int, top_k: int, tokens: int) -> None:
    rng = np.random.default_rng(1)
    draws = np.argsort(rng.random((3000, tokens, experts)), axis=-1)[..., :top_k].reshape(3000, -1)
    mean = np.mean([len(set(d)) for d in draws])
    assert float(distinct_experts(experts, top_k, tokens)) == pytest.approx(mean, rel=0.01)


def test_skewed_routing_drawn() -> None:
    """Independent picks with the inclusion probabilities of the Zipf law."""
    rng, chance = np.random.default_rng(2), inclusion_probabilities(64, 4, 0.8)
    picked = rng.random((3000, 12, 64)) < chance
    mean = picked.any(axis=1).sum(axis=-1).mean()
    assert float(distinct_experts(64, 4, 12, skew=0.8)) == pytest.approx(mean, rel=0.01)


@given(st.integers(1, 512), st.integers(1, 32), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 2), st.floats(0, 2))
def test_bounds_and_order(experts: int, top_k: int, a: float, b: float, s: float, t: float) -> None:
    k, (few, many), (flat, steep) = min(top_k, experts), sorted((a, b)), sorted((s, t))
    less, more = distinct_experts(experts, k, [few, many], flat)
    assert 0 <= less <= more * (1 + 1e-9) <= experts * (1 + 1e-9)
    assert more <= k * many * (1 + 1e-9)
    assert float(distinct_experts(experts, k, many, steep)) <= more * (1 + 1e-6) + 1e-9


@given(st.integers(1, 300), st.integers(1, 32), st.floats(0, 3))
def test_probabilities_add_up_to_top_k(experts: int, top_k: int, skew: float) -> None:
    k = min(top_k, experts)
    chance = inclusion_probabilities(experts, k, skew)
    assert chance.sum() == pytest.approx(k, rel=1e-9)
    assert (chance <= 1).all()
    assert (chance > 0).all()


def test_no_experts_no_reads() -> None:
    assert (distinct_experts(0, 0, [1, 100]) == 0).all()


def test_a_large_batch_reads_all_weights_but_the_embedding() -> None:
    model = load_model("deepseek-v3")
    everything = weight_bytes(model, "fp8").total - 2 * model.vocab * model.hidden
    assert float(decode_weight_bytes(model, 1e6, "fp8")) == pytest.approx(everything, rel=1e-9)
    assert float(decode_weight_bytes(model, 64, "fp8", skew=1.0)) < float(decode_weight_bytes(model, 64, "fp8"))


def test_a_tied_embedding_is_read_as_the_head() -> None:
    model = load_model("gemma-3-27b")
    assert float(decode_weight_bytes(model, 1, "bf16")) == weight_bytes(model, "bf16").total


def test_decode_bytes_broadcast_and_add_up() -> None:
    got = decode_bytes(load_model("qwen3-next-80b-a3b"), np.array([[1.0], [64.0]]), [1e3, 1e4, 1e5], "fp8", "bf16")
    assert got.total.shape == (2, 3)
    assert got.total == pytest.approx(got.weights + got.kv_read + got.state + got.kv_write)
    assert got.state[1, 0] == pytest.approx(2 * 64 * 77_266_944)
    assert (np.diff(got.kv_read, axis=1) > 0).all()
