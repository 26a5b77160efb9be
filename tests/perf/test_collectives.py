"""Collectives: limits by hand, a Monte Carlo of routing, DeepEP's published figures, monotonicity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.perf.collectives import (
    all_gather_time_s,
    all_reduce_time_s,
    all_to_all_time_s,
    dispatch_combine_time_s,
    distinct_remote,
    low_latency_exchange_time_s,
    normal_exchange_time_s,
    reduce_scatter_time_s,
    send_time_s,
)
from pddplan.perf.curves import read_curves
from tests.perf.test_ops import FAMILIES, H100, HOPPER

H800 = replace(H100, id="h800", scale_up_bytes_per_s=200e9)
RINGS = (all_reduce_time_s, all_gather_time_s, reduce_scatter_time_s, all_to_all_time_s)
HUGE = 64 * 2.0**30


@pytest.mark.parametrize("ring", RINGS)
def test_one_rank_or_no_bytes_take_no_time(ring: object) -> None:
    assert callable(ring)
    assert ring(H100, HOPPER, 1, 1e9) == 0
    assert ring(H100, HOPPER, 8, 0) == 0


def test_a_huge_message_runs_at_eta_times_the_link() -> None:
    shared = HOPPER.collectives
    gather = 7 / 8 * HUGE / (shared.all_gather.eta * 450e9)
    assert all_gather_time_s(H100, HOPPER, 8, HUGE) == pytest.approx(gather, rel=0.01)
    best = max(shared.all_reduce.eta, shared.all_reduce_custom.eta if shared.all_reduce_custom else 0)
    assert all_reduce_time_s(H100, HOPPER, 8, HUGE) == pytest.approx(2 * 7 / 8 * HUGE / (best * 450e9), rel=0.01)
    assert all_to_all_time_s(H100, HOPPER, 8, HUGE) == pytest.approx(
        7 / 8 * HUGE / (shared.all_to_all.eta * 450e9), rel=0.01
    )


def test_a_tiny_all_reduce_is_the_custom_kernels_latency() -> None:
    custom = HOPPER.collectives.all_reduce_custom
    assert custom is not None
    assert all_reduce_time_s(H100, HOPPER, 8, 1024) == pytest.approx(custom.alpha_s + 6 * custom.alpha_rank_s, rel=0.1)
    assert 2e-6 < float(all_reduce_time_s(H100, HOPPER, 8, 1024)) < 5e-6  # 3.2 us measured on H100


def test_h800_pays_for_its_narrow_link() -> None:
    assert all_gather_time_s(H800, HOPPER, 8, HUGE) / all_gather_time_s(H100, HOPPER, 8, HUGE) == pytest.approx(
        2.25, rel=0.01
    )


def test_beyond_the_domain_each_nic_carries_a_share() -> None:
    inside, across = (float(all_reduce_time_s(H100, HOPPER, r, HUGE)) for r in (8, 16))
    shared = HOPPER.collectives
    nic = 2 * (1 / 2) * HUGE / 8 / (shared.out_eta * 50e9) + 2 * shared.out_alpha_s
    assert across - inside == pytest.approx(nic, rel=1e-6)
    domain = replace(H100, scale_up_domain=72)
    assert all_reduce_time_s(domain, HOPPER, 16, HUGE) < across


@given(
    size=st.floats(1, 1e10),
    ranks=st.integers(2, 256),
    by=st.floats(1, 50),
    name=st.sampled_from(FAMILIES),
    which=st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_time_grows_with_bytes_and_ranks_and_never_beats_the_wire(
    size: float, ranks: int, by: float, name: str, which: int
) -> None:
    curves, ring = read_curves(name), RINGS[which]
    time = float(ring(H100, curves, ranks, size))
    assert time <= float(ring(H100, curves, ranks, size * by)) <= by * time * (1 + 1e-12)
    assert time <= float(ring(H100, curves, ranks + 1, size)) * (1 + 1e-12)
    inside = min(ranks, 8)
    passes = 2 if ring is all_reduce_time_s else 1
    assert time >= passes * (inside - 1) / inside * size / 450e9


# ---------------------------------------------------------------- experts


@pytest.mark.parametrize(("places", "k"), [(2, 8), (8, 8), (32, 8), (16, 1), (144, 6)])
def test_distinct_remote_places_agree_with_drawing_them(places: int, k: int) -> None:
    draws = np.random.default_rng(7).integers(0, places, size=(40_000, k))
    drawn = np.mean([len(set(row) - {0}) for row in draws.tolist()])
    assert float(distinct_remote(np.array(float(places)), np.array(float(k)))) == pytest.approx(drawn, rel=0.01)


LOW_LATENCY = [  # ranks, dispatch us, combine us: 128 tokens, hidden 7168, top 8, fp8 and bf16, H800 with 400 Gbit/s
    (8, 77, 114),
    (16, 118, 195),
    (32, 155, 273),
    (64, 173, 314),
    (128, 192, 369),
    (256, 194, 360),
]  # https://github.com/deepseek-ai/DeepEP (docs/legacy.md); not among the rows of the fit


@pytest.mark.parametrize(("ranks", "dispatch_us", "combine_us"), LOW_LATENCY)
def test_deepep_low_latency_on_h800(ranks: int, dispatch_us: float, combine_us: float) -> None:
    shared, array = HOPPER.collectives, np.asarray
    sizes = array(float(ranks)), array(128.0), array(8.0)
    there = low_latency_exchange_time_s(H800, shared.dispatch_low_latency, *sizes, array(7168 * (1 + 4 / 128)))
    back = low_latency_exchange_time_s(H800, shared.combine_low_latency, *sizes, array(7168 * 2.0))
    assert 1e6 * float(there) == pytest.approx(dispatch_us, rel=0.3)
    assert 1e6 * float(back) == pytest.approx(combine_us, rel=0.35)


@pytest.mark.parametrize(("ranks", "gb_per_s"), [(16, 43), (32, 58), (64, 51)])
def test_deepep_normal_dispatch_on_h800(ranks: int, gb_per_s: float) -> None:
    """4096 tokens, at most 4 nodes a token; the published bandwidth counts a token's copy on its own node too."""
    nodes = min(ranks / 8, 4)
    copies = nodes * (1 - (1 - 1 / nodes) ** 8)
    published_s = 4096 * 7168 * (1 + 4 / 128) * copies / (gb_per_s * 1e9)
    sizes = (np.asarray(float(x)) for x in (ranks, 4096, 8, 4, 7168 * (1 + 4 / 128)))
    time = float(normal_exchange_time_s(H800, HOPPER.collectives.dispatch_normal, *sizes))
    assert time == pytest.approx(published_s, rel=0.35)


def test_small_batches_take_the_low_latency_mode_and_large_ones_the_normal_mode() -> None:
    shared = HOPPER.collectives
    for tokens, faster in ((16.0, 0), (8192.0, 1)):
        sizes = [np.asarray(x) for x in (32.0, tokens, 8.0)]
        total = 0.0
        for low, normal, width in (
            (shared.dispatch_low_latency, shared.dispatch_normal, np.asarray(7392.0)),
            (shared.combine_low_latency, shared.combine_normal, np.asarray(14336.0)),
        ):
            modes = (
                float(low_latency_exchange_time_s(H100, low, *sizes, width)),
                float(normal_exchange_time_s(H100, normal, *sizes, np.asarray(np.inf), width)),
            )
            assert min(modes) == modes[faster]
            total += modes[faster]
        assert dispatch_combine_time_s(H100, HOPPER, 32, tokens, 7392.0, 14336.0, 8) == pytest.approx(total)


@given(
    ranks=st.integers(2, 320),
    tokens=st.floats(0.01, 1e5),
    k=st.integers(1, 16),
    by=st.floats(1, 50),
    name=st.sampled_from(FAMILIES),
)
@settings(max_examples=150, deadline=None)
def test_exchange_grows_with_tokens_choices_and_ranks(ranks: int, tokens: float, k: int, by: float, name: str) -> None:
    curves = read_curves(name)

    def time(r: float, t: float, c: float) -> float:
        return float(dispatch_combine_time_s(H100, curves, r, t, 7168.0, 14336.0, c))

    assert time(ranks, tokens, k) <= time(ranks, tokens * by, k) <= by * time(ranks, tokens, k) * (1 + 1e-12)
    assert time(ranks, tokens, k) <= time(ranks, tokens, k + 1)
    assert time(ranks, tokens, k) <= time(ranks + 1, tokens, k) * (1 + 1e-12)


def test_a_node_limit_spares_the_nics() -> None:
    args = (H100, HOPPER, 256, 4096, 7168.0, 14336.0, 8)
    assert dispatch_combine_time_s(*args, node_limit=4) < dispatch_combine_time_s(*args)
    assert dispatch_combine_time_s(H100, HOPPER, 1, 4096, 7168.0, 14336.0, 8) == 0


def test_sends_use_the_link_inside_and_the_nic_across() -> None:
    shared = HOPPER.collectives
    times = send_time_s(H100, HOPPER, HUGE, np.array([False, True]))
    assert times == pytest.approx([HUGE / (shared.send_eta * 450e9), HUGE / (shared.out_eta * 50e9)], rel=1e-3)
    assert send_time_s(H100, HOPPER, 0, True) == 0
    no_nic = replace(H100, scale_out_bytes_per_s=0.0)
    assert np.isfinite(send_time_s(no_nic, HOPPER, HUGE, True))
