from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.serve.overlap import exposed_transfer_s, rdma_exposed_s, streaming_ceiling_bytes_per_s
from tests.serve.small_simulations import stream_completion_s

untimed = settings(deadline=None)

positive = st.floats(1e3, 1e10)
times = st.floats(0.0, 20.0)


def brute_force(prefix: float, new: float, rate: float, seconds: list[float], layers: int, wait: float) -> float:
    """Send the prefix from the arrival, then each layer of each chunk when it is ready; chunks are equal in bytes."""
    ready, sizes = [0.0], [prefix]
    start = wait
    for chunk in seconds:
        for layer in range(layers):
            ready.append(start + chunk * (layer + 1) / layers)
            sizes.append(new / len(seconds) / layers)
        start += chunk
    return stream_completion_s(np.array(ready), np.array(sizes), rate) - start


@untimed
@given(
    st.floats(0, 1e9), positive, positive, st.lists(st.floats(0.01, 0.5), min_size=1, max_size=5), st.integers(1, 60)
)
def test_against_piece_by_piece(prefix: float, new: float, rate: float, growth: list[float], layers: int) -> None:
    """Chunks get slower with position (attention): the closed form is exact then."""
    seconds = list(np.cumsum(growth))
    total, chunks = sum(seconds), len(seconds)
    for wait in (0.0, 0.7):
        got = float(
            exposed_transfer_s(
                prefix, new, rate, 1.0, total, layers,
                first_chunk_share=seconds[0] / total, last_chunk_share=1 / chunks, head_start_s=wait,
            )
        )  # fmt: skip
        assert got == pytest.approx(brute_force(prefix, new, rate, seconds, layers, wait), rel=1e-9, abs=1e-9)


def test_by_hand() -> None:
    # everything is hidden but the last of 10 layers: 1e8 B at 1e9 B/s
    assert float(exposed_transfer_s(0, 1e9, 1e9, 1, 5.0, 10)) == pytest.approx(0.1)
    # the line is the bottleneck: 10 s of line, 9/10 of the 2 s of prefill overlap
    assert float(exposed_transfer_s(0, 1e10, 1e9, 1, 2.0, 10)) == pytest.approx(10 - 1.8)
    # a prefix keeps the line busy from the arrival on: the whole prefill overlaps
    assert float(exposed_transfer_s(5e9, 5e9, 1e9, 1, 2.0, 10)) == pytest.approx(8.0)
    assert float(exposed_transfer_s(5e9, 5e9, 1e9, 1, 2.0, 10, head_start_s=1.5)) == pytest.approx(6.5)
    # one layer can't overlap; nothing to send is only the delay; no prefill is the plain transfer
    assert float(exposed_transfer_s(0, 1e9, 1e9, 2, 5.0, 1)) == pytest.approx(2.0)
    assert float(exposed_transfer_s(0, 0, 1e9, 1, 5.0, 10, delay_s=0.004)) == pytest.approx(0.004)
    assert float(exposed_transfer_s(0, 0, 1e9, np.inf, 5.0, 10, delay_s=0.004)) == pytest.approx(0.004)
    assert float(exposed_transfer_s(3e9, 1e9, 1e9, 1, 0.0, 10, ramp=0.05)) == pytest.approx(4.05)
    assert np.isinf(exposed_transfer_s(0, 1e9, 1e9, np.inf, 5.0, 10))
    assert exposed_transfer_s(np.zeros((2, 1)), 1e9, 1e9, np.ones(3), 5.0, 10).shape == (2, 3)


@untimed
@given(positive, positive, positive, st.floats(1, 20), times, st.floats(1, 3))
def test_is_monotone(prefix: float, new: float, rate: float, factor: float, prefill: float, more: float) -> None:
    def exposed(b0: float = prefix, b1: float = new, r: float = rate, f: float = factor, h: float = 0.0) -> float:
        return float(exposed_transfer_s(b0, b1, r, f, prefill, 30, last_chunk_share=0.3, ramp=0.02, head_start_s=h))

    here = exposed()
    slack = 1e-9 * (1 + here)
    assert here >= 0
    assert exposed(b0=prefix * more) >= here - slack
    assert exposed(b1=new * more) >= here - slack
    assert exposed(f=factor * more) >= here - slack
    assert exposed(r=rate * more) <= here + slack
    assert exposed(h=more) <= here + slack


def test_rdma() -> None:
    # 3 GB at 25 GB/s: 0.12 s; with 0.1 s of prefill in 60 layers only 0.0217 s is left
    assert float(rdma_exposed_s(3e9, 5e7, 25e9, 0.1, 60)) == pytest.approx(0.12 - 0.1 * 59 / 60)
    assert float(rdma_exposed_s(3e9, 5e7, 25e9, 1.0, 60)) == pytest.approx(0.002)
    assert float(rdma_exposed_s(3e9, 3e9, 25e9, 1.0, 1)) == pytest.approx(0.12)


def test_streaming_ceiling() -> None:
    assert float(streaming_ceiling_bytes_per_s(1e9, 1e9, 4.0)) == 2.5e8
    assert float(streaming_ceiling_bytes_per_s(1e9, 1e9, 0.0)) == 1e9
    assert float(streaming_ceiling_bytes_per_s(1e9, 0.0, 4.0)) == 1e9
