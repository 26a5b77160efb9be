"""Measured services, aggregated steps, and that roofline and measured services are exchangeable."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.errors import Excuse
from pddplan.perf.measured import MeasuredDecode, MeasuredPrefill, measured_decode, measured_prefill, monotone_line
from pddplan.perf.protocols import AggregatedService, DecodeService, PrefillService
from pddplan.perf.service import (
    RooflineAggregated,
    RooflineDecode,
    RooflinePrefill,
    aggregated_service,
    decode_service,
    prefill_service,
)
from pddplan.spec.types import Measured
from tests.perf.instances import ENGINE, instance

# Prefill times of a 1T hybrid model on 8 x H200, arXiv 2604.15039, case study profile (1K, 8K, 32K, 128K tokens)
PROFILE = ((1024.0, 0.44), (8192.0, 0.72), (32768.0, 1.84), (131072.0, 7.40))


def prefill(**values: object) -> MeasuredPrefill:
    found = measured_prefill(Measured(**{"chips_per_instance": 8, "tokens_per_s": None} | values))  # type: ignore[arg-type]
    assert isinstance(found, MeasuredPrefill)
    return found


def decode(**values: object) -> MeasuredDecode:
    found = measured_decode(Measured(**{"chips_per_instance": 8, "tokens_per_s": None} | values))  # type: ignore[arg-type]
    assert isinstance(found, MeasuredDecode)
    return found


def test_profile_is_interpolated() -> None:
    """Through the points of PrfaaS's profile, and a little below the chords, which give T(45,046) = 2.534 s and
    T(27,486) = 1.599 s: no further than a parabola through three of its points."""
    s = prefill(ttft_s=PROFILE)
    assert s.request_time_s([n for n, _ in PROFILE], 0.0, 0.0) == pytest.approx([t for _, t in PROFILE])
    bend = np.polyfit([n for n, _ in PROFILE[1:]], [t for _, t in PROFILE[1:]], 2)
    for tokens, chord in ((45_046.0, 2.534), (27_486.0, 1.599)):
        found = float(s.request_time_s(tokens, 50_000.0, 0.0))
        assert min(np.polyval(bend, tokens), chord) * 0.985 < found < chord - 0.005
    two = prefill(ttft_s=PROFILE[:2])
    assert float(two.request_time_s(4608.0, 0.0, 0.0)) == pytest.approx(0.58)  # two points know of no bend


def test_a_square_profile_is_met_between_its_points() -> None:
    """a + b x + c x² measured at five lengths: less than half as far off between them as the chords."""
    x = np.geomspace(1024.0, 262_144.0, 5)
    law = lambda n: 0.02 + 2e-5 * n + 4e-10 * n**2  # noqa: E731
    s = prefill(ttft_s=tuple(zip(x.tolist(), law(x).tolist(), strict=True)))
    between = np.geomspace(1024.0, 262_144.0, 99)
    chord = np.interp(between, x, law(x))
    error = np.abs(np.asarray(s.request_time_s(between, 0.0, 0.0)) / law(between) - 1)
    assert error.max() < 0.5 * np.abs(chord / law(between) - 1).max()


def test_profile_is_extended_by_its_end_slopes() -> None:
    s = prefill(ttft_s=PROFILE)
    slope = (7.40 - 1.84) / (131072 - 32768)
    assert float(s.request_time_s(200_000.0, 0.0, 0.0)) == pytest.approx(7.40 + slope * (200_000 - 131072))
    assert float(s.request_time_s(1.0, 0.0, 0.0)) == pytest.approx(0.44 - 0.28 / 7168 * 1023)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.floats(0.001, 100)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.floats(0, 2e6),
    st.floats(0, 1e5),
)
def test_any_table_gives_a_rising_positive_time(points: list[tuple[float, float]], x: float, more: float) -> None:
    table = tuple(sorted(points))
    a, b = monotone_line([x, x + more], table)
    assert b >= a - 1e-9 * abs(a)
    assert a >= 0.0


def test_rate_counts_cached_tokens_only_where_it_says_so() -> None:
    """73.7k prompt tokens/s a node with 56.3 % cached is 32.2k computed ones (DeepSeek open-infra-index, day 6)."""
    counted = prefill(tokens_per_s=73_700.0, cached_counted=True)
    plain = prefill(tokens_per_s=32_207.0)
    u, c = 437.0, 563.0
    assert float(counted.saturated_time_s(u, c)) == pytest.approx(1000.0 / 73_700.0)
    assert float(plain.saturated_time_s(u, c)) == pytest.approx(float(counted.saturated_time_s(u, c)), rel=1e-3)
    assert counted.servers_per_instance == 1
    assert counted.chips_per_instance == 8


def test_table_gives_latency_and_rate_gives_capacity() -> None:
    s = prefill(tokens_per_s=50_000.0, ttft_s=PROFILE)
    assert float(s.request_time_s(8192.0, 0.0, 0.0)) == pytest.approx(0.72)
    assert float(s.saturated_time_s(8192.0, 0.0)) == pytest.approx(8192 / 50_000)


def test_decode_rate_batch_and_tpot_agree() -> None:
    """Any two of rate, batch and time per token give the third."""
    for s in (
        decode(tokens_per_s=5000.0, batch=200.0),
        decode(tokens_per_s=5000.0, tpot_s=0.04),
        decode(batch=200.0, tpot_s=0.04),
    ):
        assert s.max_tokens_per_s == pytest.approx(5000.0)
        assert s.tpot_s == pytest.approx(0.04)
        assert s.max_batch == pytest.approx(200.0)
        assert float(s.step_time_s(200.0, 5000.0)) == pytest.approx(0.04)
        assert float(400.0 / s.step_time_s(400.0, 5000.0)) == pytest.approx(5000.0)
        assert float(s.step_time_s(10.0, 5000.0)) == pytest.approx(0.04)


def test_rate_alone_leaves_tpot_unknown() -> None:
    s = decode(tokens_per_s=14_800.0)
    assert s.max_tokens_per_s == 14_800.0
    assert math.isnan(s.tpot_s)
    assert np.isnan(s.step_time_s(100.0, 1000.0))
    assert s.max_batch == math.inf
    t0, v = s.extend_cost(1000.0)
    assert (float(t0), float(v)) == (0.0, 14_800.0)


def test_nothing_measured_is_an_excuse() -> None:
    empty = Measured(chips_per_instance=8, tokens_per_s=None)
    assert isinstance(measured_prefill(empty), Excuse)
    assert isinstance(measured_decode(empty), Excuse)


def test_services_are_exchangeable() -> None:
    one = instance("h100", "llama-3.1-70b", tp=4)
    p, d = prefill_service(one), decode_service(one)
    assert isinstance(p, RooflinePrefill)
    assert isinstance(d, RooflineDecode)
    prefills: list[PrefillService] = [p, prefill(tokens_per_s=10_000.0)]
    decodes: list[DecodeService] = [d, decode(tokens_per_s=1000.0, batch=50.0)]
    for service in prefills:
        assert service.chips_per_instance >= 4
        assert service.kv_pool_bytes > 0
        assert service.request_time_s(np.ones(3), np.zeros(3), 0.0).shape == (3,)
        assert service.saturated_time_s(np.ones(3), np.zeros(3)).shape == (3,)
        assert service.last_pass_s(1.0, 0.0) > 0.0
    for service in decodes:
        assert service.max_batch > 0
        assert service.step_time_s(np.ones(3), 1000.0).shape == (3,)
        assert service.extend_cost(np.array([1000.0, 2000.0]))[0].shape == (2,)
    assert p.utilization(4096.0, 0.0, 0.5) is not None
    assert prefill(tokens_per_s=1.0).utilization(1.0, 0.0, 1.0) is None


def aggregated() -> RooflineAggregated:
    found = aggregated_service(instance("h100", "llama-3.1-70b", tp=8))
    assert isinstance(found, RooflineAggregated)
    return found


def test_mixed_step_without_chunk_is_a_decode_step() -> None:
    d = decode_service(instance("h100", "llama-3.1-70b", tp=8))
    assert isinstance(d, RooflineDecode)
    s: AggregatedService = aggregated()
    batch = np.array([1.0, 30.0, 200.0])
    assert s.step_time_s(batch, 4000.0, 0.0) == pytest.approx(d.step_time_s(batch, 4000.0), rel=0.003)


def test_mixed_step_without_decodes_is_a_prefill_pass() -> None:
    p = prefill_service(instance("h100", "llama-3.1-70b", tp=8))
    assert isinstance(p, RooflinePrefill)
    mixed = float(aggregated().step_time_s(0.0, 0.0, 4096.0, 1000.0))
    assert mixed == pytest.approx(float(p.request_time_s(4096.0, 1000.0, 0.0)), rel=0.005)


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 250), st.floats(1, 100_000), st.floats(0, 8000), st.floats(1, 500))
def test_mixed_step_never_falls_and_sharing_saves(batch: float, context: float, chunk: float, more: float) -> None:
    s = aggregated()
    t, a, b, c = s.step_time_s(
        [batch, batch + more, batch, batch],
        [context, context, context + more, context],
        [chunk, chunk, chunk, chunk + more],
        500.0,
    )
    assert min(a, b, c) >= t * (1 - 1e-9)
    apart = float(s.step_time_s(batch, context, 0.0)) + float(s.step_time_s(0.0, 0.0, chunk, 500.0))
    assert t <= apart * 1.001


def test_memory_is_the_engines_say() -> None:
    small = aggregated_service(instance("h100", "llama-3.1-70b", tp=2, engine=replace(ENGINE, memory_fraction=0.5)))
    assert isinstance(small, Excuse)
