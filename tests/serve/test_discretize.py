from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.serve.discretize import bin_means, tail_edges, weighted_quantile

untimed = settings(deadline=None)


def test_edges_cover_everything_and_are_finer_in_the_tail() -> None:
    edges = tail_edges(12)
    widths = np.diff(edges)
    assert edges[0] == 0 and edges[-1] == 1
    assert np.all(np.diff(widths) < 0)
    assert np.count_nonzero(edges[1:-1] > 0.98) >= 2, "p99 must lie between points"
    with pytest.raises(ValueError, match="at least one point"):
        tail_edges(0)


@untimed
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=30), st.integers(1, 20))
def test_bin_means_keep_the_mean(masses: list[float], points: int) -> None:
    values = np.arange(len(masses), dtype=float) ** 1.5
    edges = tail_edges(points)
    means = bin_means(values, masses, edges)
    assert np.sum(means * np.diff(edges)) == pytest.approx(np.average(values, weights=masses), abs=1e-9)
    assert np.all(np.diff(means) >= -1e-9)


def test_bin_means_by_hand() -> None:
    # half of the mass at 0, half at 10; the middle bin of [0, .25, .75, 1] has half of each
    assert bin_means([0, 10], [1, 1], [0, 0.25, 0.75, 1]) == pytest.approx([0, 5, 10])


def test_weighted_quantile() -> None:
    values = np.linspace(0, 1, 2001)
    assert weighted_quantile(values, np.ones(2001), 0.9) == pytest.approx(0.9, abs=1e-3)
    assert weighted_quantile([5.0], [0.2], 0.99) == 5.0
    assert weighted_quantile([3.0, 1.0, 2.0], [0.0, 1.0, 0.0], 0.5) == 1.0
    with pytest.raises(ValueError, match="positive weight"):
        weighted_quantile([1.0], [0.0], 0.5)
