from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.serve import occupancy_law as law
from pddplan.serve.steps import Slots
from tests.serve.small_simulations import decode_pool, waits_for_slots

untimed = settings(deadline=None)


def moments(spent: dict[int, float]) -> tuple[float, float]:
    n = np.array(list(spent), dtype=float)
    p = np.array(list(spent.values())) / sum(spent.values())
    mean = float(np.sum(n * p))
    return mean, float(np.sum((n - mean) ** 2 * p)) / mean


# ---------------------------------------------------------------- tails


@untimed
@given(st.floats(0, 200), st.integers(0, 300))
def test_poisson_tail_is_the_sum(mean: float, slots: int) -> None:
    term, below = math.exp(-mean), 0.0
    for n in range(slots + 1):
        below += term
        term *= mean / (n + 1)
    assert float(law.poisson_tail(mean, slots)) == pytest.approx(1 - below, abs=1e-10)


@pytest.mark.parametrize(("mean", "phi"), [(5.0, 1.5), (40.0, 2.0), (100.0, 3.0)])
def test_negative_binomial_tail_is_the_sum(mean: float, phi: float) -> None:
    p, size = 1 - 1 / phi, mean / (phi - 1)
    term = (1 / phi) ** size
    total = first = second = 0.0
    for n in range(2000):
        if n in (int(mean), int(2 * mean)):
            assert float(law.occupancy_tail(mean, n - 1, phi)) == pytest.approx(1 - total, abs=1e-9)
        total += term
        first += n * term
        second += n * n * term
        term *= p * (size + n) / (n + 1)
    assert first == pytest.approx(mean) and second - first**2 == pytest.approx(phi * mean)


def test_dispersion_one_is_poisson() -> None:
    wide = law.occupancy_tail(40.0, [30, 50, 60], 1 + 1e-7)
    assert wide == pytest.approx(law.poisson_tail(40.0, [30, 50, 60]), rel=1e-4)


def test_max_offered() -> None:
    slots = np.array([16, 54, 128, 432])
    assert (law.max_offered(slots, 0.01) / slots).round(2).tolist() == [0.56, 0.73, 0.81, 0.89]
    assert law.max_offered(slots, 0.01) / slots == pytest.approx([0.55, 0.73, 0.81, 0.89], abs=0.0065)
    assert law.poisson_tail(law.max_offered(slots, 0.01), slots) == pytest.approx(np.full(4, 0.01))


@untimed
@given(st.floats(1, 500), st.floats(1e-4, 0.2), st.floats(1, 4), st.floats(1, 1.5))
def test_max_offered_is_the_limit(slots: float, epsilon: float, phi: float, more: float) -> None:
    offered = float(law.max_offered(slots, epsilon, phi))
    assert float(law.occupancy_tail(offered, slots, phi)) == pytest.approx(epsilon, rel=1e-6)
    assert float(law.max_offered(slots * more, epsilon, phi)) >= offered * (1 - 1e-9)


# ---------------------------------------------------------------- the law


def test_constant_step_is_poisson() -> None:
    n, pi = law.occupancy_pmf(1000.0, lambda b: 0.03 + 0 * b, 80)
    poisson = np.exp(n * math.log(30) - 30 - np.array([math.lgamma(x + 1) for x in n]))
    assert pi[:80] == pytest.approx(poisson[:80], abs=1e-9)
    with pytest.raises(ValueError, match="can't keep up"):
        law.occupancy_pmf(1000.0, lambda b: 0.03 + 0 * b, 30)


def test_linear_step_is_negative_binomial() -> None:
    t0, t1, tokens = 0.02, 0.0003, 1600.0
    n, pi = law.occupancy_pmf(tokens, lambda b: t0 + t1 * b, 600)
    mean = float(np.sum(n * pi))
    assert mean == pytest.approx(tokens * (t0 + t1) / (1 - tokens * t1))
    assert float(np.sum((n - mean) ** 2 * pi)) / mean == pytest.approx(1 / (1 - tokens * t1))
    tail = law.occupancy_tail(mean, [50, 80, 100], 1 / (1 - tokens * t1))
    assert tail == pytest.approx([float(pi[k + 1 :].sum()) for k in (50, 80, 100)], rel=1e-6)
    batch = tokens * t0 / (1 - tokens * t1)
    assert law.dispersion(batch, lambda b: t0 + t1 * b) == pytest.approx(1 / (1 - tokens * t1), rel=1e-4)


@pytest.mark.parametrize("fixed", [True, False])
def test_law_against_simulation(fixed: bool) -> None:
    """The occupancy is wider than Poisson when steps lengthen with the batch, whatever the law of the outputs."""
    rng = np.random.default_rng(4)
    t0, t1, mean_tokens, tokens_per_s = 0.02, 0.0005, 500.0, 1000.0
    count = 60_000
    arrivals = np.cumsum(rng.exponential(mean_tokens / tokens_per_s, count))
    tokens = np.full(count, mean_tokens) if fixed else rng.choice([100.0, 2100.0], count, p=[0.8, 0.2])
    _, spent = decode_pool(arrivals, tokens, lambda b: t0 + t1 * b)
    mean, phi = moments(spent)
    n, pi = law.occupancy_pmf(tokens_per_s, lambda b: t0 + t1 * b, 400)
    assert mean == pytest.approx(float(np.sum(n * pi)), rel=0.03)
    assert phi == pytest.approx(2.0, rel=0.1)  # 1/(1 - l·t1) = 2
    slots = 58
    simulated = sum(time for b, time in spent.items() if b > slots) / sum(spent.values())
    assert float(law.occupancy_tail(mean, slots, 2.0)) == pytest.approx(simulated, rel=0.25)
    assert float(law.poisson_tail(mean, slots)) < 0.5 * simulated  # Poisson would promise too much


def test_infinite_servers_are_poisson() -> None:
    """M/G/∞: with steps that don't depend on the batch the law of the outputs doesn't matter."""
    rng = np.random.default_rng(6)
    count = 60_000
    arrivals = np.cumsum(rng.exponential(0.5, count))
    _, spent = decode_pool(arrivals, rng.choice([100.0, 2100.0], count, p=[0.8, 0.2]), lambda b: 0.03)
    mean, phi = moments(spent)
    assert mean == pytest.approx(30, rel=0.03) and phi == pytest.approx(1.0, rel=0.08)
    simulated = sum(time for b, time in spent.items() if b > 40) / sum(spent.values())
    assert float(law.poisson_tail(30.0, 40)) == pytest.approx(simulated, rel=0.25)


# ---------------------------------------------------------------- what a request sees


def test_size_biased_by_hand() -> None:
    batches, probabilities = law.size_biased_occupancy(60.0, [0.0, 1.0, 1e6])
    means = batches @ probabilities
    assert means == pytest.approx([61, 61, 61])
    variance = ((batches - 61) ** 2) @ probabilities
    assert variance[0] == pytest.approx(60, rel=0.06)  # twelve points lose a little of it
    assert variance[1] / variance[0] == pytest.approx(2 * math.exp(-1), rel=1e-6)  # 2/x²(x - 1 + e^-x) at 1
    assert variance[2] < 1e-3
    assert law.size_biased_occupancy(0.0, 1.0)[0] == pytest.approx(np.ones(12))
    wide, _ = law.size_biased_occupancy(60.0, 0.0, dispersion=2.0)
    assert float(wide @ probabilities) == pytest.approx(62)


def test_life_average_against_simulation() -> None:
    """Mean batch over a request's life, from its finish time, for short and long lives."""
    rng = np.random.default_rng(8)
    t0, t1, mean_tokens, tokens_per_s = 0.02, 0.0005, 400.0, 800.0
    count = 80_000
    arrivals = np.cumsum(rng.exponential(mean_tokens / tokens_per_s, count))
    tokens = rng.exponential(mean_tokens, count)
    done, _ = decode_pool(arrivals, tokens, lambda b: t0 + t1 * b)
    over = done > 0
    over[: count // 10] = False
    tpot = (done - arrivals)[over] / tokens[over]
    life = tokens[over] / mean_tokens
    phi = 1 / (1 - tokens_per_s * t1)
    mean = tokens_per_s * (t0 + t1) / (1 - tokens_per_s * t1)
    for low, high in [(0.05, 0.15), (0.9, 1.1), (2.5, 3.5)]:
        seen = tpot[(life > low) & (life < high)]
        batches, probabilities = law.size_biased_occupancy(mean, (low + high) / 2, dispersion=phi)
        steps = t0 + t1 * batches
        assert float(steps @ probabilities) == pytest.approx(seen.mean(), rel=0.015)
        middle = np.cumsum(probabilities) - probabilities / 2
        assert np.interp([0.5, 0.9, 0.99], middle, steps) == pytest.approx(
            np.quantile(seen, [0.5, 0.9, 0.99]), rel=0.03
        )


@untimed
@given(st.floats(0, 300), st.floats(0, 20), st.floats(1, 3), st.floats(0, 20))
def test_size_biased_is_monotone(mean: float, life: float, phi: float, more: float) -> None:
    here, probabilities = law.size_biased_occupancy(mean, life, dispersion=phi)
    there, _ = law.size_biased_occupancy(mean + more, life, dispersion=phi)
    assert float(there @ probabilities) >= float(here @ probabilities) - 1e-6
    assert there[-1] >= here[-1] - 1e-6
    assert np.all(here >= 1) and np.all(np.diff(here) >= -1e-9)


# ---------------------------------------------------------------- waiting for a slot


def erlang_c(servers: int, offered: float) -> float:
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


@pytest.mark.parametrize(("slots", "offered"), [(1, 0.6), (16, 12.0), (54, 50.0), (432, 420.0)])
def test_wait_is_erlang_c(slots: int, offered: float) -> None:
    wait = law.admission_wait(offered, slots, 20.0)
    assert float(wait.p_wait) == pytest.approx(erlang_c(slots, offered), rel=1e-8)
    assert float(wait.mean_s) == pytest.approx(erlang_c(slots, offered) * 20.0 / (slots - offered), rel=1e-8)
    assert float(wait.tail(0.0)) == float(wait.p_wait)
    q = 1 - float(wait.p_wait) / 10
    assert float(wait.tail(wait.quantile(q))) == pytest.approx(1 - q)
    assert float(wait.quantile(0.0)) == 0.0


def test_wait_limits() -> None:
    full = law.admission_wait([16.0, 20.0], 16, 20.0)
    assert full.p_wait.tolist() == [1, 1] and np.all(np.isinf(full.mean_s)) and np.all(np.isinf(full.quantile(0.5)))
    assert float(law.admission_wait(0.0, 16, 20.0).mean_s) == 0.0
    near = law.admission_wait(12.0, 16, 20.0, dispersion=1 + 1e-7)
    assert float(near.p_wait) == pytest.approx(float(law.admission_wait(12.0, 16, 20.0).p_wait), rel=1e-4)


@pytest.mark.parametrize(("kind", "cv2"), [("exponential", 1.0), ("fixed", 0.0), ("two sizes", 3.0)])
def test_wait_against_simulation(kind: str, cv2: float) -> None:
    rng = np.random.default_rng(9)
    slots, offered, count = 16, 14.0, 150_000
    lives = {
        "exponential": rng.exponential(1.0, count),
        "fixed": np.ones(count),
        "two sizes": rng.choice([1 / 4, 4.0], count, p=[0.8, 0.2]),
    }[kind]
    cv2 = float(np.var(lives) / np.mean(lives) ** 2)
    waits = waits_for_slots(np.cumsum(rng.exponential(lives.mean() / offered, count)), lives, slots)[count // 10 :]
    wait = law.admission_wait(offered, slots, lives.mean(), cv2)
    assert float(wait.mean_s) == pytest.approx(waits.mean(), rel=0.15)
    assert float(wait.p_wait) == pytest.approx(np.mean(waits > 1e-12), rel=0.12)
    assert float(wait.tail(1.0)) == pytest.approx(np.mean(waits > 1.0), abs=0.02)


def test_wait_with_steps_that_lengthen() -> None:
    """Slots that slow each other down: against the exact chain that stays at K slots' speed beyond K."""
    t0, t1, tokens, slots = 0.02, 0.0005, 1000.0, 60
    n, pi = law.occupancy_pmf(tokens, lambda b: t0 + t1 * b, slots)
    life = 500 * (t0 + t1 * slots)  # of 500 tokens at the full batch, requests at 2/s
    queue = float(np.sum(np.maximum(n - slots, 0) * pi))
    unlimited = tokens * (t0 + t1) / (1 - tokens * t1)
    wait = law.admission_wait(unlimited, slots, life, dispersion=1 / (1 - tokens * t1))
    assert float(wait.p_wait) == pytest.approx(float(pi[slots:].sum()), rel=1e-6)
    assert float(wait.mean_s) == pytest.approx(queue / 2.0, rel=1e-6)  # Little


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("dispersion", [1.0, 1.7])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.8, 0.95])
def test_room_is_the_way_to_the_admission_row(load: float, dispersion: float, pooled: bool) -> None:
    """At ``a/(1 - room)`` the overflow is epsilon, and room has the sign of what is left."""
    allowed = Slots(per_instance=40.7, pooled=pooled, instances=3, bound="tpot")
    requests = load * allowed.total
    room = allowed.room(requests, dispersion, 0.01)
    assert allowed.overflow(requests / (1.0 - room), dispersion) == pytest.approx(0.01, rel=1e-6)
    assert (room >= 0) == (allowed.overflow(requests, dispersion) <= 0.01)
    assert room < 1.0 - load  # the row breaks before the slots are full


def test_no_slot_has_no_room_and_slots_without_end_have_all() -> None:
    assert Slots(0.9, False, 2, "kv_memory").room(1.0, 1.0, 0.01) == 0.0
    assert Slots(math.inf, True, 2, "engine").room(1.0, 1.0, 0.01) == 1.0
