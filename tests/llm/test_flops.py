"""FLOPs: pairs counted one by one, recurrences, properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddplan.llm.catalogue import load_model, model_ids
from pddplan.llm.flops import (
    causal_pairs,
    chunk_pairs,
    decode_flops,
    group_decode_attention_flops,
    group_prefill_attention_flops,
    head_flops,
    linear_flops_per_token,
    prefill_attention_flops,
    prefill_flops,
    window_pairs,
)

SMALL = st.integers(0, 60)
MODELS = st.sampled_from(model_ids())
PLAIN = [m for m in model_ids() if {g.attention.kind for g in load_model(m).groups} <= {"gqa", "none", "gdn", "mamba2"}]


@given(SMALL, SMALL, st.integers(1, 70), st.integers(1, 70))
def test_pairs_counted_one_by_one(new: int, cached: int, window: int, chunk: int) -> None:
    full = windowed = chunked = 0
    for i in range(new):
        query = cached + i
        for key in range(query + 1):
            full += 1
            windowed += query - key < window
            chunked += key // chunk == query // chunk
    assert float(causal_pairs(new, cached)) == full
    assert float(window_pairs(new, cached, window)) == windowed
    assert float(chunk_pairs(new, cached, chunk)) == chunked


def _attended(kind: str, position: int, window: int, ratio: int, top_k: int) -> float:
    """Keys that the query at a 1-based position attends."""
    entries = position / ratio if ratio else 0.0
    if kind == "csa":
        entries = min(entries, top_k)
    return min(position, window) + entries


@pytest.mark.parametrize("name", ["deepseek-v4-pro", "deepseek-v4-flash"])
def test_compressed_attention_summed_over_positions(name: str) -> None:
    for group in load_model(name).groups:
        a = group.attention
        top_k = a.indexer.top_k if a.indexer else 0
        new, cached = 3000, 2500
        positions = range(cached + 1, cached + new + 1)
        dense = sum(4 * a.q_heads * 512 * _attended(a.kind, p, 128, a.compress_ratio, top_k) for p in positions)
        index = sum(2 * 64 * 128 * p / a.compress_ratio for p in positions) if a.indexer else 0
        got = group_prefill_attention_flops(group, new, cached)
        assert float(got.dense) == pytest.approx(dense, rel=1e-12)
        assert float(got.indexer) == pytest.approx(index, rel=1e-12)


def test_sparse_latent_attention_summed_over_positions() -> None:
    group = load_model("deepseek-v3.2").groups[0]
    positions = range(4001, 4001 + 1000)
    got = group_prefill_attention_flops(group, 1000, 4000, absorbed=True)
    assert float(got.dense) == pytest.approx(sum(278_528 * min(p, 2048) for p in positions), rel=1e-12)
    assert float(got.indexer) == pytest.approx(sum(2 * 64 * 128 * p for p in positions), rel=1e-12)


@given(MODELS, st.integers(1, 5000))
def test_prefill_of_one_token_is_a_decode_step(name: str, cached: int) -> None:
    """One new token over c cached attends c+1 tokens, in the absorbed form; chunked attention at its upper bound."""
    model = load_model(name)
    for group in model.groups:
        if group.attention.chunk:
            continue
        prefill = group_prefill_attention_flops(group, 1, cached, absorbed=True)
        decode = group_decode_attention_flops(group, cached + 1)
        assert float(prefill.total) == pytest.approx(float(decode.total), rel=1e-9)


@given(st.sampled_from(PLAIN), st.integers(0, 200_000), st.integers(1, 200_000))
def test_a_cached_prefix_saves_exactly_its_own_prefill(name: str, cached: int, new: int) -> None:
    model = load_model(name)
    saved = prefill_flops(model, new + cached, 0) - prefill_flops(model, cached, 0)
    want = prefill_flops(model, new, cached) - head_flops(model)
    assert float(saved) == pytest.approx(float(want), rel=1e-9)


@given(MODELS, st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5), st.sampled_from([None, True]))
def test_more_tokens_never_cost_less(name: str, a: float, b: float, c: float, absorbed: bool | None) -> None:
    model, (few, many) = load_model(name), sorted((a, b))
    slack = 1 + 1e-12
    assert float(prefill_flops(model, few, c, absorbed)) <= float(prefill_flops(model, many, c, absorbed)) * slack
    assert float(decode_flops(model, few)) <= float(decode_flops(model, many)) * slack
    # a longer prefix may end at a chunk's border, where attention restarts
    if not any(g.attention.chunk for g in model.groups):
        assert float(prefill_flops(model, c, few, absorbed)) <= float(prefill_flops(model, c, many, absorbed)) * slack


@given(MODELS, st.floats(0, 1e5), st.floats(0, 1e6))
def test_the_cheaper_form_is_chosen(name: str, new: float, cached: float) -> None:
    model = load_model(name)
    best = float(prefill_attention_flops(model, new, cached))
    forms = [float(prefill_attention_flops(model, new, cached, a)) for a in (True, False)]
    assert best <= min(forms) * (1 + 1e-12)


def test_where_absorbing_pays_off() -> None:
    """DeepSeek-V3: 33.55M per cached token / (278,528 - 81,920) per pair = 171 new tokens."""
    model, cached = load_model("deepseek-v3"), 1e6
    absorbed = prefill_attention_flops(model, [169, 173], cached, True)
    expanded = prefill_attention_flops(model, [169, 173], cached, False)
    assert absorbed[0] < expanded[0]
    assert absorbed[1] > expanded[1]


def test_short_prompts_of_sparse_models_use_masked_attention() -> None:
    """V3.2 at 2,048 tokens: 81,920 per pair instead of 278,528; at 128K the sparse form wins."""
    model = load_model("deepseek-v3.2")
    group, pairs = model.groups[0], 2048 * 2049 / 2
    assert float(group_prefill_attention_flops(group, 2048, 0).dense) == pytest.approx(81_920 * pairs)
    sparse = group_prefill_attention_flops(group, 131072, 0, absorbed=True)
    assert float(group_prefill_attention_flops(group, 131072, 0).dense) == float(sparse.dense)


def test_recurrent_layers_cost_the_same_at_any_length() -> None:
    gdn = load_model("qwen3-next-80b-a3b").groups[0]
    mamba = load_model("nemotron-3-nano-30b-a3b").groups[0]
    for cached in (0, 1e6):
        got = group_prefill_attention_flops(gdn, 10, cached)
        assert (float(got.linear), float(got.dense)) == (10 * 8 * 32 * 128 * 128, 0)
        assert float(group_prefill_attention_flops(mamba, 10, cached).total) == 10 * 6 * 64 * 64 * 128


def test_nothing_to_do_costs_one_head() -> None:
    for name in model_ids():
        model = load_model(name)
        assert float(prefill_flops(model, 0, 1000)) == head_flops(model)
        assert float(prefill_attention_flops(model, 0, 1000)) == 0
        assert linear_flops_per_token(model) > 0


def test_shapes_broadcast() -> None:
    model = load_model("deepseek-v3.2")
    assert prefill_flops(model, np.ones((4, 1)), np.ones(3)).shape == (4, 3)
    assert decode_flops(model, np.ones((2, 2))).shape == (2, 2)
    record = group_prefill_attention_flops(model.groups[0], np.ones((4, 1)), np.ones(3))
    assert record.dense.shape == record.indexer.shape == record.linear.shape == (4, 3)
