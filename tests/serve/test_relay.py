from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.serve import line, relay
from tests.serve.small_simulations import agent_uncached_share, shared_line

untimed = settings(deadline=None)


def test_eager_tokens_by_hand() -> None:
    # the published illustration: 2.5 s at 39 ms a token is 64.1 tokens, the 65th covers the end
    assert float(relay.eager_tokens(1024, 2.2, 0.3, 0.039)) == 65
    assert float(relay.eager_tokens(40, 2.2, 0.3, 0.039)) == 40
    assert float(relay.eager_tokens(1024, 0.0, 0.0, 0.039)) == 0
    assert float(relay.eager_tokens(1024, 0.3, 0.0, 0.1)) == 3  # 0.3/0.1 is 2.9999999999999996 or 3: not 4
    assert float(relay.eager_tokens(1024, 0.1 + 0.2, 0.0, 0.1)) == 3  # 3.0000000000000004 is 3 as well


def test_relay_slots_by_hand() -> None:
    slots = relay.relay_slots(10.0, [0.2, 0.1, 0.0], [1000, 10, 1000], [2.0, 2.0, 9.0], 0.5, 0.04)
    assert float(slots) == pytest.approx(10 * (0.2 * 2.5 + 0.1 * 0.4))
    many = relay.relay_slots(10.0, [1.0], [1e9], [2.0], 0.5, np.array([[0.01], [0.02], [0.05]]))
    assert many == pytest.approx([25, 25, 25])  # independent of tau


def test_token_share_by_hand() -> None:
    share = relay.relay_token_share([0.5, 0.5], [1, 0], [1000, 1000], [124, 900])
    assert float(share) == pytest.approx(0.062)
    assert float(relay.relay_token_share([1.0], [1.0], [10], [99])) == 1.0
    assert float(relay.relay_token_share([1.0], [1.0], [0], [0])) == 0.0


@untimed
@given(st.floats(0, 100), st.floats(0, 2), st.floats(0.005, 0.1), st.integers(1, 5000), st.floats(1, 4))
def test_tokens_and_hold_agree(exposed: float, handoff: float, tau: float, n: int, more: float) -> None:
    eager = float(relay.eager_tokens(n, exposed, handoff, tau))
    hold = float(relay.relay_hold_s(n, exposed, handoff, tau))
    assert 0 <= eager <= n
    assert hold <= eager * tau * (1 + 1e-9) + 1e-12
    assert eager * tau <= hold + tau * (1 + 1e-9)
    assert float(relay.eager_tokens(n, exposed * more, handoff, tau)) >= eager
    assert float(relay.eager_tokens(n, exposed, handoff, tau * more)) <= eager


def test_relay_probability() -> None:
    times = np.array([0.0, 0.1, 0.4, 0.41, 10.0])
    assert relay.relay_probability(times, 0.4).tolist() == [0, 0, 0, 1, 1]
    soft = relay.relay_probability(times, 0.4, sigma=0.5)
    assert soft[0] == 0 and soft[2] == pytest.approx(0.5) and np.all(np.diff(soft) > 0)
    rng = np.random.default_rng(1)
    seen = 0.3 * np.exp(0.5 * rng.standard_normal(200_000)) > 0.4
    assert float(relay.relay_probability(0.3, 0.4, 0.5)) == pytest.approx(seen.mean(), abs=0.004)
    assert relay.relay_probability([0.0, 1.0], 0.0, 0.5).tolist() == [0, 1]


@pytest.mark.parametrize("ceiling_gbit", [0.375, 0.75, 3.0])
def test_relay_share_law_against_simulation(ceiling_gbit: float) -> None:
    """Token share within 0.3 points at three times per token, slots within 3 %: 40 Gbit/s at 0.7, as published case."""
    rng = np.random.default_rng(11)
    count, output, handoff, theta = 60_000, 1024.0, 0.35, 0.32
    capacity, ceiling = 40e9 / 8 * 0.9, ceiling_gbit * 1e9 / 8
    full = 46.5e3 * 64_512
    sizes = full * agent_uncached_share(rng.random(count))
    points = full * agent_uncached_share((np.arange(2000) + 0.5) / 2000)
    rho, m = 0.7, capacity / ceiling
    rate = rho * capacity / points.mean()
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    times = shared_line(arrivals, sizes, capacity, ceiling)
    slow = float(line.slowdown(m, rho))
    warm = slice(count // 10, None)

    factors, probabilities = line.spread(m, rho)
    factors = line.spread_for_size(factors[None, :], slow, (points / points.mean())[:, None], rho)
    law = (points[:, None] / ceiling * factors).ravel()
    weights = np.broadcast_to(probabilities / len(points), (len(points), len(probabilities))).ravel()
    by_router = np.repeat(relay.relay_probability(points / ceiling * slow, theta), len(probabilities))
    relayed = sizes / ceiling * slow > theta
    for tau in (0.02, 0.03, 0.04):
        simulated = np.where(relayed, np.minimum(np.ceil((times + handoff) / tau), output), 0.0)[warm].mean() / output
        eager = relay.eager_tokens(output, law, handoff, tau)
        assert float(relay.relay_token_share(weights, by_router, output, eager)) == pytest.approx(simulated, abs=0.003)
        held = np.where(relayed, np.minimum(times + handoff, output * tau), 0.0)[warm].mean() * rate
        slots = relay.relay_slots(rate, weights * by_router, output, law, handoff, tau)
        assert float(slots) == pytest.approx(held, rel=0.03)


# ---------------------------------------------------------------- filter


def test_finishes_on_relay() -> None:
    done = relay.finishes_on_relay([10, 100, 1000], 3.0, 0.9, 0.039)
    assert done.tolist() == [True, True, False]


@untimed
@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.booleans()), min_size=1, max_size=20),
    st.floats(0.05, 1),
    st.one_of(st.just(0.0), st.floats(1e-6, 1)),
)
def test_filtered_weights(atoms: list[tuple[float, bool]], precision: float, recall: float) -> None:
    weights = np.array([a[0] for a in atoms])
    finishes = np.array([a[1] for a in atoms])
    taken = relay.filtered_weights(weights, finishes, precision, recall)
    assert np.all(taken >= 0) and np.all(taken <= weights * (1 + 1e-12))
    right = taken[finishes].sum()
    assert right == pytest.approx(recall * weights[finishes].sum())
    if right > 0 and taken.sum() - right < weights[~finishes].sum() * 0.999:
        assert right / taken.sum() == pytest.approx(precision)


def test_perfect_forecast_takes_exactly_those_that_finish() -> None:
    assert relay.filtered_weights([0.2, 0.8], [True, False]).tolist() == [0.2, 0.0]
    assert relay.filtered_weights([1.0], [False], 0.5, 1.0).tolist() == [0.0]


def test_owed() -> None:
    # 50K kept back, 20 generated, next turn adds 1K: all of it is owed
    assert float(relay.next_delta_tokens(80_000, 1000, 50_000, 20)) == 51_020
    assert float(relay.owed_tokens(80_000, 1000, 50_000, 20)) == 50_020
    # a compacted next prompt owes no more than it has
    assert float(relay.next_delta_tokens(8000, 1000, 50_000, 20)) == 8000
    assert float(relay.owed_tokens(8000, 8000, 50_000, 20)) == 0


def test_saved_bytes() -> None:
    assert float(relay.last_turn_probability(30)) == pytest.approx(1 / 30)
    assert float(relay.last_turn_probability(0.2)) == 1.0
    # the session ends: all is saved; it goes on: the generated tokens come on top
    assert float(relay.saved_bytes(100.0, 110.0, 1.0)) == 100.0
    assert float(relay.saved_bytes(100.0, 110.0, 0.0)) == -10.0
    assert float(relay.saved_bytes(100.0, 110.0, 1 / 30)) == pytest.approx(100 - 110 * 29 / 30)
    assert float(relay.owed_bytes(110.0, 0.0, evicted=1.0)) == 0.0


def test_saved_bytes_by_playing_sessions() -> None:
    """Sessions of geometric length in which one turn is filtered: bytes with and without, counted turn by turn."""
    rng = np.random.default_rng(5)
    turns, new, output = 4.0, 2000.0, 50.0
    saved = []
    for _ in range(20_000):
        length = rng.geometric(1 / turns)
        usual = length * new
        debt, sent = 0.0, 0.0
        for turn in range(length):
            if turn == 0:
                debt = new + output
            else:
                sent += new + debt
                debt = 0.0
        saved.append(usual - sent)
    owed = relay.owed_tokens(1e9, new, new, output)
    predicted = relay.saved_bytes(new, owed, relay.last_turn_probability(turns))
    assert float(predicted) == pytest.approx(np.mean(saved), abs=40)
