"""Closed loops against an independent event simulation, and their limiting cases."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest

from pddplan.estimate import pools
from pddplan.estimate.closed import ClosedPoint, run_closed
from pddplan.estimate.closed_loop import representatives
from pddplan.estimate.estimate import estimate_many
from pddplan.estimate.records import Estimate, Lengths, Mode, OperatingPoint
from pddplan.estimate.transfer import kv_transfer_s
from pddplan.perf.instance import Parallelism
from pddplan.perf.service import RooflineAggregated, RooflineDecode, RooflinePrefill
from tests.estimate import event_loop
from tests.estimate.points import answer, point, workers

FOUR = workers("h100", Parallelism(tp=4))
# What the host adds to a first token lies outside the loop, and steps that it takes are no matter of queues.
PLAIN = {"first_output_steps": 0.0, "poll_steps": 0.0, "first_output_s": 0.0, "router_delay_s": 0.0}
SEEDS = 2
SHAPES = [(1024, 128), (512, 512), (8192, 256)]


def loop_point(mode: Mode, shape: tuple[int, int], shortest: float, users: int) -> OperatingPoint:
    lengths = Lengths(*shape, shortest=shortest)
    layout = [FOUR] * (2 if mode == "disaggregated" else 1)
    return point(mode, "llama-3.1-70b", *layout, lengths=lengths, changes=PLAIN, concurrency=float(users))


def simulated(asked: OperatingPoint) -> np.ndarray:
    """(TTFT, TPOT, requests/s, running) of the event simulation, mean of some seeds."""
    services = pools.point_services(asked)
    assert isinstance(services, tuple) and asked.concurrency is not None
    lengths = asked.lengths
    context, new = pools.running_context(lengths), lengths.input_tokens * (1.0 - lengths.prefix_hit)
    load = event_loop.Load(int(asked.concurrency), new, lengths.output_tokens, lengths.shortest)
    most, _ = pools.most_requests(asked, services[-1])
    slots, chunk, first = int(most) * asked.pools[-1].count, float(asked.engine.chunk_tokens), services[0]
    if isinstance(first, RooflineAggregated):

        @lru_cache(None)
        def mixed(running: float, tokens: float) -> float:
            before = pools.mean_cached(lengths) + 0.5 * max(pools.mean_new(lengths) - tokens, 0.0)
            return float(first.step_time_s(running, context, tokens, before))

        runs = [event_loop.aggregated(load, mixed, chunk, slots, seed).mean() for seed in range(SEEDS)]
        return np.mean(runs, axis=0)
    second = services[-1]
    assert isinstance(first, RooflinePrefill) and isinstance(second, RooflineDecode)

    @lru_cache(None)
    def prefill(_: float, tokens: float) -> float:
        return float(first.pool_pass_s(tokens, pools.mean_new(lengths), pools.mean_cached(lengths)))

    @lru_cache(None)
    def decode(running: float, _: float) -> float:
        return float(second.step_time_s(running / asked.pools[1].count, context))

    alone = float(first.request_time_s(pools.mean_new(lengths), pools.mean_cached(lengths), 0.0))
    settings = {"chunk": chunk * first.parallelism.dp, "servers": asked.pools[0].count, "slots": slots}
    runs = [
        event_loop.disaggregated(
            load, prefill, decode, transfer_s=kv_transfer_s(asked, alone), seed=seed, **settings
        ).mean()
        for seed in range(SEEDS)
    ]
    return np.mean(runs, axis=0)


def errors(asked: OperatingPoint) -> np.ndarray:
    """Relative errors of (TTFT, TPOT, requests/s, running) against the simulation."""
    services = pools.point_services(asked)
    assert isinstance(services, tuple)
    found = run_closed([ClosedPoint(asked, services)])
    ttft = found.queue_s + found.prefill_s + found.transfer_s + found.first_step_s
    ours = np.array([ttft[0], found.tpot_s[0], found.request_rate_per_s[0], found.running[0]])
    return ours / simulated(asked) - 1.0


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("shortest", [1.0, 0.8])
def test_every_user_by_itself(mode: Mode, shape: tuple[int, int], shortest: float) -> None:
    """Up to 16 users the loop runs each of them: TTFT within 10 %, but for one case in which the order of arrivals
    decides (8 users, 8192/256: 14 %); TPOT and requests/s within 3 %."""
    for users in (1, 3, 8, 16):
        ttft, tpot, rate, running = errors(loop_point(mode, shape, shortest, users))
        print(f"\n{mode} {shape} {shortest} {users:3}: TTFT {ttft:+.1%} TPOT {tpot:+.1%} rate {rate:+.1%}")
        assert abs(ttft) < (0.18 if users == 8 else 0.11)
        assert abs(tpot) < 0.03 and abs(rate) < 0.04 and abs(running) < 0.05


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_users_of_varied_lengths_by_representatives(mode: Mode, shape: tuple[int, int]) -> None:
    """Beyond 16 users one stands for several. Lengths drawn from 0.8 on: TPOT within 7 %, requests/s within 3 %; TTFT
    within 17 % at 24 users, up to 32 % too short at 128, in one case (8192/256) 38 % too long."""
    for users, bound in ((24, 0.17), (128, 0.45)):
        ttft, tpot, rate, _ = errors(loop_point(mode, shape, 0.8, users))
        print(f"\n{mode} {shape} {users:3}: TTFT {ttft:+.1%} TPOT {tpot:+.1%} rate {rate:+.1%}")
        assert abs(ttft) < bound and abs(tpot) < 0.08 and abs(rate) < 0.03


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_users_of_one_length_by_representatives(mode: Mode, shape: tuple[int, int]) -> None:
    """Users that share lengths exactly stay in step for ever in the simulation and queue for prefill together; the
    estimate takes most of that queue for an artefact of its representatives: TTFT up to 70 % too short. TPOT within 5 %
    and requests/s within 2 % all the same."""
    for users in (24, 64):
        ttft, tpot, rate, _ = errors(loop_point(mode, shape, 1.0, users))
        print(f"\n{mode} {shape} {users:3}: TTFT {ttft:+.1%} TPOT {tpot:+.1%} rate {rate:+.1%}")
        assert -0.72 < ttft < 0.10 and abs(tpot) < 0.055 and abs(rate) < 0.02


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_one_user_never_waits(mode: Mode) -> None:
    """TTFT is the prompt's pass (and its KV's way), TPOT a step of one request."""
    asked = loop_point(mode, (2048, 200), 1.0, 1)
    services, found = pools.point_services(asked), answer(asked)
    assert isinstance(services, tuple) and found.ttft is not None
    context = pools.running_context(asked.lengths)
    first, last = services[0], services[-1]
    if isinstance(first, RooflinePrefill):
        prefill = float(first.request_time_s(2048.0, 0.0, 0.0))
        assert found.ttft.transfer == pytest.approx(kv_transfer_s(asked, prefill), rel=1e-6)
    else:
        assert isinstance(first, RooflineAggregated)
        prefill = float(first.step_time_s(0.0, context, 2048.0, 0.0))
    assert not isinstance(last, RooflinePrefill)
    step = last.step_time_s(1.0, context) if isinstance(last, RooflineDecode) else last.step_time_s(1.0, context, 0.0)
    assert found.ttft.queue == pytest.approx(0.0, abs=1e-9)
    assert found.ttft.prefill == pytest.approx(prefill, rel=0.01)  # the loop reads a table of passes
    assert found.ttft.first_step == 0.0
    assert found.tpot_s == pytest.approx(float(step), rel=1e-3)


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
@pytest.mark.parametrize("users", [16, 64, 512])
def test_no_more_run_than_there_are_slots(mode: Mode, users: int) -> None:
    """A batch of at most 8: the rest waits, whatever was asked, and what it waits for is said."""
    changes = PLAIN | {"max_batch": 8}
    layout = [FOUR] * (2 if mode == "disaggregated" else 1)
    asked = point(mode, "llama-3.1-70b", *layout, lengths=Lengths(512, 512), changes=changes, concurrency=float(users))
    found = answer(asked)
    assert found.asked_concurrency == users
    assert 0.7 * 8 < found.effective_concurrency <= 8 * (1 + 1e-9)
    assert found.bottleneck == "engine"


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
@pytest.mark.parametrize("users", [24, 128])
def test_users_beyond_the_slots_only_wait(mode: Mode, users: int) -> None:
    """Against the simulation, at most 8 running: TTFT, TPOT, requests/s and running requests within 3 %."""
    asked = loop_point(mode, (512, 512), 0.8, users)
    found = errors(replace(asked, engine=replace(asked.engine, max_batch=8)))
    print(f"\n{mode} {users} users, 8 slots: {', '.join(f'{e:+.1%}' for e in found)}")
    assert np.abs(found).max() < 0.035


@pytest.mark.parametrize(("mode", "ttft_bound"), [("aggregated", 0.72), ("disaggregated", 0.06)])
def test_few_users_more_than_many_slots(mode: Mode, ttft_bound: float) -> None:
    """64 users of 40 slots. In aggregated serving the wait for a slot is taken for one of the representatives' batches:
    TTFT 69 % too short; requests/s and TPOT are right."""
    asked = loop_point(mode, (512, 512), 0.8, 64)
    ttft, tpot, rate, running = errors(replace(asked, engine=replace(asked.engine, max_batch=40)))
    assert -ttft_bound < ttft < 0.06 and max(abs(tpot), abs(rate), abs(running)) < 0.03


def test_kv_memory_caps_the_batch() -> None:
    """Little memory is left beside the weights: what runs is what fits, the bottleneck is named."""
    layout = workers("h100", Parallelism(tp=2), weights="bf16", kv_cache="bf16")
    asked = point("aggregated", "llama-3.1-70b", layout, lengths=Lengths(4096, 512), concurrency=64)
    found = answer(asked)
    assert found.memory[0].most_requests < 8
    assert found.effective_concurrency < found.memory[0].most_requests
    assert found.memory[0].kv_held_bytes <= found.memory[0].memory.kv_pool_bytes
    assert found.bottleneck == "kv_memory"


USERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated", "prefill", "decode"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_more_users_never_lower_the_throughput(mode: Mode, shape: tuple[int, int]) -> None:
    """Beyond the noise of representatives: 2 % from one to the next."""
    found = estimate_many([loop_point(mode, shape, 0.8, users) for users in USERS])
    rates = [one.request_rate_per_s for one in found if isinstance(one, Estimate)]
    assert len(rates) == len(USERS)
    for (few, less), (many, more) in pairwise(zip(USERS, rates, strict=True)):
        assert more >= 0.98 * less, (few, many)


def test_points_dont_depend_on_their_neighbours() -> None:
    """Many side by side give what each gives alone."""
    asked = [loop_point(m, s, 0.8, u) for m in ("aggregated", "disaggregated") for s in SHAPES for u in (3, 40)]
    for one, together in zip(asked, estimate_many(asked), strict=True):
        alone = answer(one)
        assert isinstance(together, Estimate) and together.ttft is not None and alone.ttft is not None
        assert together.ttft.mean == pytest.approx(alone.ttft.mean, rel=1e-9)
        assert together.tpot_s == pytest.approx(alone.tpot_s, rel=1e-9)


def test_littles_law() -> None:
    """Users = requests/s x (TTFT + answer + pause), the last round's ends aside."""
    for mode in ("aggregated", "disaggregated"):
        asked = loop_point(mode, (1024, 128), 1.0, 8)
        services = pools.point_services(asked)
        assert isinstance(services, tuple)
        found = run_closed([ClosedPoint(asked, services)])
        ttft = found.queue_s + found.prefill_s + found.transfer_s + found.first_step_s
        life = ttft + found.tpot_s * 127 + 0.010
        assert float((found.request_rate_per_s * life)[0]) == pytest.approx(8.0, rel=0.05)


# ---------------------------------------------------------------- prompts that are held back


def test_mean_steps_of_a_batch_wait() -> None:
    """Alone a prompt waits to the end; among many, half of that; never more with more of them."""
    assert pools.batch_wait_steps(20.0, 0.0) == 20.0
    assert pools.batch_wait_steps(20.0, 1e9) == pytest.approx(10.0)
    held = [pools.batch_wait_steps(20.0, rate) for rate in (0.0, 0.01, 0.1, 1.0)]
    assert held == sorted(held, reverse=True)


@pytest.mark.parametrize(("key", "share"), [("poll_steps", 0.5), ("batch_wait_steps", 1.0)])
def test_what_is_held_back_waits_in_steps(key: str, share: float) -> None:
    """Of two users one sees a running scheduler: its requests wait so many steps; one alone never does."""
    for users, waits in ((1, False), (2, True)):
        asked = loop_point("aggregated", (512, 512), 0.8, users)
        held = replace(asked, engine=replace(asked.engine, **{key: 40.0}))
        plain, later = answer(asked), answer(held)
        assert plain.ttft is not None and later.ttft is not None and plain.tpot_s is not None
        more = (later.ttft.queue - plain.ttft.queue) / plain.tpot_s
        assert more == (pytest.approx(share * 40.0, rel=0.35) if waits else pytest.approx(0.0, abs=1e-6))


def test_a_hand_over_takes_decode_steps() -> None:
    asked = loop_point("disaggregated", (512, 512), 0.8, 4)
    handed = replace(asked, engine=replace(asked.engine, handoff_steps=10.0))
    plain, later = answer(asked), answer(handed)
    assert plain.ttft is not None and later.ttft is not None and plain.tpot_s is not None
    assert (later.ttft.transfer - plain.ttft.transfer) / plain.tpot_s == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize(("users", "slots"), [(4301, 4096), (180, 160), (6, 5), (24, 16), (666, 512)])
def test_representatives_share_users_and_slots_alike(users: int, slots: int) -> None:
    """Users over slots, which decides the wait for a slot, within a tenth; of few users each is run."""
    count, weight = representatives(np.array(float(users)), np.array(float(slots)))
    assert count * weight == pytest.approx(users)
    whole = max(round(slots / float(weight)), 1)
    assert float(count) / whole == pytest.approx(users / slots, rel=0.1)
