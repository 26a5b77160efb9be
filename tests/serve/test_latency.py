"""Mixtures: shares and quantiles against sampling of the very same mixture, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.serve.latency import Mixture
from pddplan.serve.queueing import WaitingLaw, waiting_law

Floats = NDArray[np.float64]
untimed = settings(deadline=None)


def law(rate: float = 0.7, servers: int = 1, scale: float = 1.0) -> WaitingLaw:
    found = waiting_law(rate / scale, servers, (scale, 2 * scale**2, 6 * scale**3))
    assert not isinstance(found, Excuse)
    return found


def sample(mixture: Mixture, wait: WaitingLaw, rng: np.random.Generator, count: int) -> Floats:
    """W by inversion of the tabulated tail, plus a constant drawn by weight."""
    tail = rng.random(count)
    waits = np.interp(-np.log(tail), -wait.log_survival, wait.times_s)
    beyond = np.maximum(wait.log_survival[-1] - np.log(tail), 0.0) / wait.tail_rate_per_s
    waits = np.where(tail >= wait.p_wait, 0.0, waits + beyond)
    return waits + mixture.constant[rng.choice(mixture.weight.size, count, p=mixture.weight)]


@pytest.mark.parametrize("rate", [0.2, 0.7, 0.95])
def test_quantiles_against_sampling(rate: float) -> None:
    rng = np.random.default_rng(7)
    constant = np.exp(rng.normal(size=40))
    weight = rng.dirichlet(np.ones(40))
    wait = law(rate)
    mixture = Mixture(weight, constant, wait.survival, {})
    drawn = sample(mixture, wait, rng, 400_000)
    for q in (0.1, 0.5, 0.9, 0.99):
        value = mixture.quantile(q)
        assert float((drawn <= value).mean()) == pytest.approx(q, abs=4 * np.sqrt(q * (1 - q) / drawn.size) + 1e-9) or (
            np.isclose(value, constant, rtol=1e-9).any()
            and (drawn < value * (1 - 1e-9)).mean() < q <= (drawn <= value).mean() + 1e-3
        )
    for t in (0.5, 1.0, 3.0, 10.0):
        assert mixture.share_above(t) == pytest.approx(float((drawn > t).mean()), abs=4e-3)


@untimed
@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.floats(0.0, 20)), min_size=1, max_size=12),
    st.floats(0.05, 0.95),
    st.floats(0.02, 0.995),
    st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_quantile_is_the_smallest_time(rows: list[tuple[float, float]], rate: float, q: float, scale: float) -> None:
    """P(T <= value) >= q there, and less just before."""
    weight = np.array([w for w, _ in rows])
    mixture = Mixture(weight / weight.sum(), np.array([c for _, c in rows]), law(rate, 1, scale).survival, {})
    value = mixture.quantile(q)
    slack = 1e-8 * max(value, 1e-3)
    assert mixture.share_above(value + slack) <= 1 - q + 1e-9
    assert value <= slack or mixture.share_above(value - 2 * slack) >= 1 - q - 1e-9


@untimed
@given(st.lists(st.tuples(st.floats(0.01, 5), st.floats(-3, 20)), min_size=1, max_size=12), st.floats(0.02, 0.995))
def test_without_waiting_it_is_the_weighted_quantile(rows: list[tuple[float, float]], q: float) -> None:
    weight, constant = (np.array(column) for column in zip(*rows, strict=True))
    weight = weight / weight.sum()
    mixture = Mixture(weight, constant, None, {})
    value = mixture.quantile(q)
    brute = min(c for c in constant if weight[constant <= c].sum() >= q - 1e-9)
    assert value == brute
    assert mixture.share_above(value) == pytest.approx(float(weight[constant > value].sum()))


def test_one_constant_by_hand() -> None:
    """M/M/1 at 0.7: P(W > t) = 0.7 e^{-0.3 t}; below 30 % nobody waits."""
    mixture = Mixture(np.ones(1), np.array([2.0]), law(0.7).survival, {})
    assert mixture.quantile(0.25) == 2.0
    assert mixture.quantile(0.9) == pytest.approx(2.0 + np.log(7.0) / 0.3, rel=2e-3)
    assert mixture.share_above(1.999) == 1.0
    assert mixture.share_above(2.0) == pytest.approx(0.7, rel=1e-3)


def test_a_jump_is_met_exactly() -> None:
    """Half of the requests have no constant: between 5 s and just before it, nothing but their wait counts."""
    mixture = Mixture(np.array([0.5, 0.5]), np.array([0.0, 5.0]), law(0.1, 1, 0.1).survival, {})
    assert mixture.quantile(0.6) == 5.0
    assert mixture.quantile(0.5 + 1e-4) == 5.0


def test_owner_is_the_stage_that_takes_the_time() -> None:
    parts = {"prefill": np.array([1.0, 1.0]), "line": np.array([0.1, 9.0])}
    mixture = Mixture(np.array([0.9, 0.1]), np.array([1.1, 10.0]), law(0.2, 1, 0.01).survival, parts)
    assert mixture.owner(1.1) == "prefill"
    assert mixture.owner(10.0) == "line"
    waiting = Mixture(np.ones(1), np.array([0.5]), law(0.95).survival, {"prefill": np.array([0.5])})
    assert waiting.owner(waiting.quantile(0.99)) == "prefill_queue"
