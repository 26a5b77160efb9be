"""Elements exchanged by tensor, expert and pipeline parallelism."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pddplan.llm.catalogue import load_model
from pddplan.llm.comm import (
    ep_dispatch_elements,
    ep_leaving_share,
    ep_node_copies,
    group_all_reduces,
    group_ep_elements,
    moe_layers,
    pp_boundary_elements,
    ring_share,
    tp_allreduce_elements,
)


def test_deepseek_v3_by_hand() -> None:
    model = load_model("deepseek-v3")
    assert tp_allreduce_elements(model) == 2 * 61 * 7168
    assert moe_layers(model) == 58
    assert ep_dispatch_elements(model) == 8 * 7168
    assert [group_ep_elements(g, model.hidden) for g in model.groups] == [0, 8 * 7168]
    assert pp_boundary_elements(model) == 7168


def test_blocks_with_one_reduction_and_latent_experts() -> None:
    nano, super_ = load_model("nemotron-3-nano-30b-a3b"), load_model("nemotron-3-super-120b-a12b")
    assert {group_all_reduces(g) for g in nano.groups} == {1}
    assert tp_allreduce_elements(nano) == 52 * 2688
    assert ep_dispatch_elements(super_) == 22 * 1024


def test_hyper_connections_carry_four_streams() -> None:
    assert pp_boundary_elements(load_model("deepseek-v4-pro")) == 4 * 7168


def test_a_dense_model_dispatches_nothing() -> None:
    model = load_model("llama-3.1-8b")
    assert (moe_layers(model), ep_dispatch_elements(model)) == (0, 0)


def test_ring_and_leaving_shares() -> None:
    assert ring_share([1, 2, 8]) == pytest.approx([0, 1, 1.75])
    assert ep_leaving_share([1, 8]) == pytest.approx([0, 0.875])


@pytest.mark.parametrize(("experts", "top_k", "nodes"), [(256, 8, 4), (64, 6, 8), (128, 1, 16)])
def test_distinct_nodes_drawn(experts: int, top_k: int, nodes: int) -> None:
    rng = np.random.default_rng(3)
    picked = np.argsort(rng.random((20_000, experts)), axis=-1)[:, :top_k] // (experts // nodes)
    mean = np.mean([len(set(p)) for p in picked])
    got = float(ep_node_copies(experts, top_k, nodes))
    assert got == pytest.approx(mean, rel=0.01)
    exact = nodes * (1 - math.comb(experts - experts // nodes, top_k) / math.comb(experts, top_k))
    assert got == pytest.approx(exact, rel=1e-12)
    assert 1 <= got <= min(top_k, nodes)


def test_one_node_needs_one_copy() -> None:
    assert float(ep_node_copies(256, 8, 1)) == 1.0
