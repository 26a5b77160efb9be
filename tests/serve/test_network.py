"""Networks: several ways beside each other against the single way they add up to, and against a simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, Network, Pool, Route, band_of, share_of, with_line, with_pool
from pddplan.serve.evaluate import evaluate
from pddplan.serve.latency import Blend, Mixture
from pddplan.serve.line_stage import transfer
from pddplan.serve.records import Evaluation
from tests.serve.small_simulations import Floats, shared_line_unequal, waits_for_slots
from tests.serve.worlds import plan

QUANTILES = (0.5, 0.9, 0.99)


def values(evaluation: Evaluation) -> dict[tuple[str, float], float]:
    return {(v.metric, v.quantile): v.value_s for v in evaluation.slo}


def halved(pool: Pool | None, count: int) -> Pool:
    assert pool is not None
    return replace(pool, instances=count)


def assert_same(one: Evaluation, other: Evaluation, rel: float) -> None:
    assert [e.constraint for e in one.excuses] == [e.constraint for e in other.excuses]
    assert values(one) == pytest.approx(values(other), rel=rel)
    assert one.decode_hit_rate == pytest.approx(other.decode_hit_rate, rel=rel)
    assert one.routing.relay_token_share == pytest.approx(other.routing.relay_token_share, rel=rel, abs=1e-9)
    assert [line.utilization for line in one.lines] == pytest.approx([x.utilization for x in other.lines], rel=rel)
    for mine, theirs in zip(one.loads, other.loads, strict=True):
        assert (mine.busy_share, mine.step_s) == pytest.approx((theirs.busy_share, theirs.step_s), rel=rel)


@pytest.mark.parametrize("relay", [0, 1])
def test_one_route_is_the_single_way(relay: int) -> None:
    context, deployment = plan(relay=relay)
    assert_same(evaluate(context, Network((Route(deployment, (0.0, 1.0)),))), evaluate(context, deployment), 1e-9)


def test_a_random_part_of_the_same_way_changes_nothing() -> None:
    """Two routes through the same pools and line, a third of the requests on one of them."""
    context, deployment = plan(relay=0)
    routes = (Route(deployment, (0.0, 1.0), 1 / 3), Route(deployment, (0.0, 1.0), 2 / 3))
    # q's fixed point stops within 1e-4, so the last digits may differ
    assert_same(evaluate(context, Network(routes)), evaluate(context, deployment), 1e-6)


def test_two_equal_halves_are_each_the_half_world() -> None:
    """Own pools and own lines for half of the requests each: what one half would be at half the rate."""
    context, deployment = plan(relay=0, prefill=2, main=3, lines=2)
    twin = replace(
        deployment,
        prefill=halved(deployment.prefill, 2),
        main=halved(deployment.main, 3),
        line=replace(deployment.line) if deployment.line else None,
    )
    network = Network((Route(deployment, (0.0, 1.0), 0.5), Route(twin, (0.0, 1.0), 0.5)))
    both, half = evaluate(context, network), evaluate(context, deployment, context.rate / 2)
    assert values(both) == pytest.approx(values(half), rel=1e-6)
    assert both.decode_hit_rate == pytest.approx(half.decode_hit_rate, rel=1e-9)
    assert len(both.loads) == 4 and len(both.lines) == 2
    assert [p.role for p in network.pools] == ["prefill", "prefill", "main_decode", "main_decode"]


def split_by_length(context: Context, deployment: Deployment, edge: float, counts: tuple[int, int]) -> Network:
    """Prefill of the requests above a quantile of uncached tokens on instances of their own; all else shared."""
    short = replace(deployment, prefill=halved(deployment.prefill, counts[0]))
    long = replace(deployment, prefill=halved(deployment.prefill, counts[1]))
    return Network((Route(short, (0.0, edge)), Route(long, (edge, 1.0))))


def test_the_bands_share_the_work() -> None:
    """rho of each prefill pool by hand: rate x sum of w T over its requests, the edge's atom divided. Passes
    are shared among the requests of the pool, so that T differs a little from that of the whole traffic."""
    context, deployment = plan(relay=0)
    edge = 0.9
    network = split_by_length(context, deployment, edge, (2, 3))
    found = evaluate(context, network)
    assert deployment.prefill is not None
    times, atoms = context.prefill_times(deployment.prefill).shared, context.demand.atoms
    order = np.argsort(atoms.uncached, kind="stable")
    top = np.cumsum(atoms.weight[order])
    below = np.clip(edge - (top - atoms.weight[order]), 0.0, atoms.weight[order])
    work = context.rate * np.array([below @ times[order], (atoms.weight[order] - below) @ times[order]])
    servers = deployment.prefill.prefill.servers_per_instance * np.array([2, 3])
    assert [load.busy_share for load in found.loads[:2]] == pytest.approx(list(work / servers), rel=1e-2)
    assert share_of(network, network.pools[1]) == pytest.approx(1 - edge)
    assert band_of(network, network.pools[0]) == (0.0, edge)
    whole = evaluate(context, deployment)
    assert found.lines[0].needed_bytes_per_s == pytest.approx(whole.lines[0].needed_bytes_per_s, rel=1e-3)


def simulate(context: Context, network: Network, held: float, count: int, seed: int) -> Floats:
    """TTFT of ``count`` requests: a queue for each prefill pool, one line for what all of them send. A transfer starts
    with its prefill and is no faster than that makes bytes. Nothing of the package but times, sizes and ceilings."""
    rng = np.random.default_rng(seed)
    atoms, rate = context.demand.atoms, context.rate
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    where = rng.random(count)
    kind = (rng.random(count) > held).astype(int)
    begin, end, size, ceiling, ramp = (np.zeros(count) for _ in range(5))
    for route in network.routes:
        low, high = route.band
        mine = np.flatnonzero((where >= low) & (where < high))
        part, pool = context.band(low, high), route.way.prefill
        assert pool is not None
        stage = part.prefill_stage(pool, rate * (high - low))
        assert not isinstance(stage, Excuse)
        move = transfer(part.demand, route.way, stage, context.nic_goodput)
        which = rng.choice(part.demand.atoms.weight.size, mine.size, p=part.demand.atoms.weight)
        time = stage.time_s[which]
        wait = waits_for_slots(arrival[mine], time, pool.instances * pool.prefill.servers_per_instance)
        begin[mine] = arrival[mine] + wait
        end[mine] = begin[mine] + time
        size[mine], ramp[mine] = move.size[kind[mine], which], move.ramp_s[kind[mine], which]
        ceiling[mine] = np.minimum(move.ceiling[kind[mine], which], size[mine] / time)
    order = np.argsort(begin, kind="stable")
    sent = np.empty(count)
    sent[order] = shared_line_unequal(begin[order], size[order], ceiling[order], move.capacity)
    exposed = np.maximum(begin + sent + ramp - end, 0.0) + move.delay_s
    assert atoms.weight.sum() == pytest.approx(1.0)
    return (end + exposed - arrival + context.router_s(True))[count // 10 :]


@pytest.mark.parametrize("lines", [4, 8])
def test_ttft_of_a_split_prefill_against_an_event_simulation(lines: int) -> None:
    """Two prefill pools by length, one line and one main-decode pool: p50, p90 and p99 within 10 %."""
    context, deployment = plan("workload.prefix_cache=shared", "links.0.streams=2", prefill=2, lines=lines, relay=0)
    network = split_by_length(context, deployment, 0.93, (2, 2))
    found = evaluate(context, network)
    held = found.decode_hit_rate / context.demand.atoms.hit_rate
    ttft = np.concatenate([simulate(context, network, held, 10_000, seed) for seed in (1, 2)])
    for q in QUANTILES:
        assert values(found)["ttft", q] == pytest.approx(float(np.quantile(ttft, q)), rel=0.10), q


def test_parts_are_replaced_by_what_they_are() -> None:
    context, deployment = plan(relay=0)
    network = split_by_length(context, deployment, 0.9, (2, 3))
    first = network.pools[0]
    grown = with_pool(network, first, replace(first, instances=9))
    assert [p.instances for p in grown.pools] == [9, 3, deployment.main.instances if deployment.main else 0]
    assert deployment.line is not None
    doubled = with_line(network, network.lines[0], replace(deployment.line, lines=8))
    assert [line.lines for line in doubled.lines] == [8]
    assert evaluate(context, doubled).lines[0].utilization < evaluate(context, network).lines[0].utilization


def test_a_pool_that_gives_out_says_so() -> None:
    context, deployment = plan(relay=0)
    found = evaluate(context, split_by_length(context, deployment, 0.5, (4, 1)))
    assert [e.constraint for e in found.excuses] == ["prefill_utilization"]


def test_blend_is_the_mixture_of_its_groups() -> None:
    """Exponential waits of two groups against the closed form; without waits, the jumps of a plain sample."""

    def group(constant: float, mean: float) -> Mixture:
        one = np.ones(1)
        return Mixture(one, one * constant, lambda t: np.exp(-np.maximum(t, 0.0) / mean), {"prefill": one * constant})

    blend = Blend(((0.25, group(1.0, 2.0)), (0.75, group(0.5, 0.1))))
    t = blend.quantile(0.9)
    assert 0.25 * math.exp(-(t - 1.0) / 2.0) + 0.75 * math.exp(-(t - 0.5) / 0.1) == pytest.approx(0.1, rel=1e-6)
    assert blend.share_above(t) == pytest.approx(0.1, rel=1e-6)
    assert blend.owner(t) == "prefill_queue"
    values_s = np.array([1.0, 2.0, 3.0])
    plain = Mixture(np.full(3, 1 / 3), values_s, None, {"line": values_s})
    steps = Blend(((0.5, plain), (0.5, replace(plain, constant=values_s + 0.5))))
    assert [steps.quantile(q) for q in (0.1, 0.5, 0.99)] == pytest.approx([1.0, 2.0, 3.5], rel=1e-6)
    assert steps.owner(3.5) == "line"


def test_a_band_in_another_format_is_the_band_of_that_format() -> None:
    """Whichever is taken first: sizes, weights and what idle sessions share."""
    demand = plan("workload.decode_prefix_hit_rate=0.8", relay=0)[0].demand
    one, other = demand.band(0.2, 0.7).in_format("bf16"), demand.in_format("bf16").band(0.2, 0.7)
    assert one.kv_format == "bf16" and one.sessions == other.sessions
    for name in ("kv_prompt", "kv_session", "delta_held", "delta_cold"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert np.array_equal(one.atoms.weight, other.atoms.weight)
