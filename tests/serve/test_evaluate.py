"""A whole plan: limits by hand, monotonicity, and an event simulation of prefill queue, line and relay rule."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.equilibrium import Case, Flow, equilibrium
from pddplan.serve.evaluate import evaluate
from pddplan.serve.line_stage import Transfer, nic_bytes_per_s, transfer
from pddplan.serve.metrics import Latencies, latencies
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.records import Evaluation
from pddplan.serve.request_rows import rows
from tests.serve.small_simulations import shared_line_unequal
from tests.serve.worlds import NIC_GOODPUT, plan, two_workloads

Floats = NDArray[np.float64]
QUANTILES = (0.5, 0.9, 0.99)
few = settings(max_examples=12, deadline=None)


def parts(
    context: Context, deployment: Deployment, threshold_s: float, rate: float | None = None
) -> tuple[PrefillStage, Transfer, Flow, Latencies]:
    """Stages of a plan at one relay threshold."""
    at = context.rate if rate is None else rate
    assert deployment.prefill is not None
    stage = context.prefill_stage(deployment.prefill, at)
    assert not isinstance(stage, Excuse), stage
    move = transfer(context.demand, deployment, stage, context.nic_goodput)
    flow = equilibrium(Case(context, deployment, stage, move, at), threshold_s)
    assert not isinstance(flow, Excuse), flow
    table = rows(context, deployment, stage, move, flow)
    return stage, move, flow, latencies(context, stage, flow, table, context.scenario.engine.router_delay_s)


def ttft(evaluation: Evaluation) -> list[float]:
    return [value.value_s for value in evaluation.slo if value.metric == "ttft"]


# ---------------------------------------------------------------- limits by hand


def test_a_good_plan_holds() -> None:
    evaluation = evaluate(*plan())
    assert evaluation.feasible, evaluation.excuses
    routing = evaluation.routing
    assert routing.direct_share + routing.relay_share + routing.filtered_share == pytest.approx(1.0)
    assert 0 < routing.relay_token_share < routing.relay_share < 1
    assert evaluation.decode_hit_rate <= evaluation.prefill_hit_rate == pytest.approx(0.9, rel=1e-3)
    assert [v.limit_s for v in evaluation.slo[:4]] == [3.0, 8.0, 20.0, 0.05]
    assert all(v.met for v in evaluation.slo)


def test_without_detail_the_verdict_is_the_same() -> None:
    for keys in ({}, {"relay": 0}, {"main": 2}, {"prefill": 3, "lines": 2}, {"lines": 1}):
        context, deployment = plan(**keys)
        long, short = evaluate(context, deployment), evaluate(context, deployment, detail=False)
        names = [e.constraint for e in long.excuses if e.constraint != "loop_gain"]
        assert [e.constraint for e in short.excuses if e.constraint != "loop_gain"] == names
        assert long.routing == short.routing and long.line == short.line


def test_line_of_infinite_speed_leaves_the_nic() -> None:
    """Many lines, RTT 0, many streams: nobody shares, a transfer takes what the slower NIC and the prefill leave."""
    context, deployment = plan("links.0.rtt_ms=0", "links.0.streams=64", lines=64, relay=0)
    stage, move, flow, _ = parts(context, deployment, math.inf)
    assert deployment.prefill is not None and deployment.main is not None
    nic = min(nic_bytes_per_s(pool, NIC_GOODPUT) for pool in (deployment.prefill, deployment.main))
    streams = 64 * context.scenario.links[0].stream_bytes_per_s
    assert flow.line.factor_mean == pytest.approx(1.0, abs=0.01)
    for kind in (0, 1):
        size, new = move.size[kind], move.size[kind] - move.prefix[kind]
        pace = 1.0 / min(nic, streams)
        first = stage.time_s * stage.first_chunk_share / context.demand.layers
        own = np.maximum(size * pace - stage.time_s, first + new * pace - stage.time_s)
        own = np.maximum(own, new * pace * stage.last_chunk_share / context.demand.layers)
        assert flow.line.exposed[kind, :, 0] == pytest.approx(own, rel=0.02, abs=1e-4)


def test_ttft_is_wait_and_prefill_where_nothing_is_sent_for_long() -> None:
    """One site, no relay: the transfer is hidden but for its last layer; TTFT = W + T_P + router + a little."""
    context, deployment = plan("workload.prefix_cache=shared", main_site="north", relay=0, main=4)
    stage, _, _, mixtures = parts(context, deployment, math.inf)
    weight = context.demand.atoms.weight
    for t in (1.0, 3.0, 8.0):
        room = t - context.scenario.engine.router_delay_s - stage.time_s
        alone = float(weight @ np.where(room < 0, 1.0, stage.law.survival(np.maximum(room, 0.0))))
        late = float(weight @ np.where(room < 0.1, 1.0, stage.law.survival(np.maximum(room - 0.1, 0.0))))
        assert alone - 1e-12 <= mixtures.of("ttft").share_above(t) <= late + 1e-3


def test_infinite_free_line_equals_one_site() -> None:
    """Same chips on both ends, RTT 0, more lines and streams than the NICs can fill."""
    keys = ("links.0.rtt_ms=0", "links.0.streams=4000")
    context, one = plan(*keys, main_site="north", relay=0, main=4)
    _, far = plan(*keys, relay=0, lines=64)
    assert far.line is not None
    two = Deployment(prefill=one.prefill, main=one.main, line=far.line)
    a, b = evaluate(context, one), evaluate(context, two)
    assert ttft(b) == pytest.approx(ttft(a), rel=0.01)
    assert b.decode_hit_rate == pytest.approx(a.decode_hit_rate, rel=1e-3)


def test_without_hits_the_whole_cache_is_sent() -> None:
    context, deployment = plan(
        "workload.prefix_hit_rate=0", "workload.request_rate_per_s=2", prefill=8, relay=0, lines=12
    )
    _, move, flow, _ = parts(context, deployment, math.inf)
    assert move.size[0] == pytest.approx(context.demand.kv_prompt)
    assert np.all(move.prefix == 0)
    assert flow.line.bytes_per_request == pytest.approx(context.demand.atoms.mean(context.demand.kv_prompt))
    assert evaluate(context, deployment).decode_hit_rate == 0.0


def test_without_cold_requests_only_uncached_bytes_are_sent() -> None:
    """Pinned at prefill's own hit rate nothing is ever missing at main decode: KV of L - hit crosses, no more."""
    hit = plan()[0].demand.atoms.hit_rate
    context, deployment = plan(f"workload.decode_prefix_hit_rate={hit!r}")
    _, _, flow, _ = parts(context, deployment, math.inf)
    atoms = context.demand.atoms
    per_token = context.demand.kv_prompt / atoms.prompt  # MLA: proportional to the length
    assert flow.held_share == 1.0
    assert flow.line.bytes_per_request == pytest.approx(atoms.mean(per_token * atoms.uncached), rel=1e-6)


@pytest.mark.parametrize("threshold", [0.0, 1.0, math.inf])
def test_tokens_and_shares_add_up(threshold: float) -> None:
    """Every token is emitted once, on the relay or on main decode; nothing relayed at inf, everything at 0."""
    context, deployment = plan(relay=6, main=6)
    _, _, flow, _ = parts(context, deployment, threshold)
    output = context.demand.atoms.mean(context.demand.atoms.output)
    on_main = flow.main.occupancy.requests / flow.main.occupancy.tpot_s
    on_relay, share = 0.0, 0.0
    if flow.ways is not None and flow.relay is not None:
        on_relay = context.rate * float((flow.ways.mass * flow.relay.eager).sum())
        share = float(flow.ways.weight.sum())
    assert on_main + on_relay == pytest.approx(context.rate * output, rel=1e-6)
    assert float(flow.direct.sum()) + share == pytest.approx(1.0)
    assert {0.0: share == pytest.approx(1.0), math.inf: share == 0.0}.get(threshold, 0 < share < 1)


def test_filter_keeps_shares_and_bytes() -> None:
    keys = ("workload.output_forecast={precision: 0.9, recall: 0.8}", "workload.output_tokens={p50: 60, p95: 400}")
    context, deployment = plan(*keys, lines=6)
    evaluation = evaluate(context, deployment)
    routing = evaluation.routing
    assert routing.filtered_share > 0
    assert routing.direct_share + routing.relay_share + routing.filtered_share == pytest.approx(1.0)
    assert routing.saved_bytes_share >= 0 and routing.owed_bytes_share >= 0
    plain = evaluate(context, Deployment(**{**deployment.__dict__, "use_filter": False}))
    assert evaluation.line is not None and plain.line is not None
    assert evaluation.line.bytes_per_request < plain.line.bytes_per_request * (1 + 1e-3)


def test_stages_give_out_with_a_reason() -> None:
    for keys, constraint in (
        ({"prefill": 1}, "prefill_utilization"),
        ({"lines": 1}, "line_utilization"),
        ({"main": 1}, "main_decode_throughput"),
    ):
        evaluation = evaluate(*plan(**keys), detail=False)
        assert not evaluation.feasible
        assert evaluation.excuses[0].constraint == constraint
        assert evaluation.excuses[0].value > evaluation.excuses[0].limit


# ---------------------------------------------------------------- monotone


@few
@given(st.integers(4, 8), st.integers(4, 12), st.floats(6.0, 10.0))
def test_ttft_never_rises_with_more(prefill: int, lines: int, rate: float) -> None:
    """Of a plan without relay: prefill instances, lines, and less traffic; every quantile.

    Where nobody waits, tails of chunks share passes less often, so a request's own prefill may get longer by a little.
    """
    context, base = plan("workload.decode_prefix_hit_rate=0.88", prefill=prefill, lines=lines, relay=0, main=8)
    here = ttft(evaluate(context, base, rate))
    for keys, at in (({"prefill": prefill + 1}, rate), ({"lines": lines + 1}, rate), ({}, rate * 0.9)):
        change = {"prefill": prefill, "lines": lines, "relay": 0, "main": 8, **keys}
        better = ttft(evaluate(*plan("workload.decode_prefix_hit_rate=0.88", **change), at))
        slack = 1e-6 if "lines" in keys else 1e-3
        assert all(b <= a * (1 + slack) for a, b in zip(here, better, strict=True)), (keys, here, better)


def test_ttft_mean_falls_with_the_hit_rate() -> None:
    means = []
    for hit in (0.80, 0.85, 0.90, 0.93):
        override = f"workload.prefix_hit_rate={{mean: {hit}, share_above_95: 0.6}}"
        context, deployment = plan(override, prefill=8, lines=10, relay=0, main=8)
        stage, _, _, mixtures = parts(context, deployment, math.inf)
        mixture = mixtures.of("ttft")
        means.append(stage.law.mean_s + float(mixture.weight @ mixture.constant))
    assert means == sorted(means, reverse=True)


# ---------------------------------------------------------------- simulation


def simulate(
    context: Context, deployment: Deployment, threshold_s: float, count: int, seed: int
) -> tuple[Floats, float, float, Floats]:
    """TTFT of ``count`` requests, mean number in prefill (waiting or served), rate x mean stay there, the workloads.

    M/G/c first come first served; a transfer starts with its prefill, is no faster than its prefill makes bytes, and
    shares the line max-min; who is relayed goes by the same predicted time. No formula of the package but the
    service times, sizes and the router's prediction.
    """
    stage, move, flow, _ = parts(context, deployment, threshold_s)
    rng = np.random.default_rng(seed)
    atoms = context.demand.atoms
    which = rng.choice(atoms.weight.size, count, p=atoms.weight)
    held = np.broadcast_to(context.demand.held(flow.held_share), atoms.weight.shape)
    kind = (rng.random(count) > held[which]).astype(int)
    arrival = np.cumsum(rng.exponential(1.0 / context.rate, count))
    assert deployment.prefill is not None
    servers = deployment.prefill.instances * deployment.prefill.prefill.servers_per_instance
    fetch = context.prefill_times(deployment.prefill).fetch[which]
    busy = (stage.time_s[which] - fetch).tolist()
    free = [0.0] * servers
    begin = np.empty(count)
    for i, now in enumerate(arrival.tolist()):
        begin[i] = max(now, heapq.heappop(free))
        heapq.heappush(free, begin[i] + busy[i])
    end = begin + stage.time_s[which]
    size = move.size[kind, which]
    ceiling = np.minimum(move.ceiling[kind, which], size / stage.time_s[which])
    order = np.argsort(begin, kind="stable")
    sent = np.empty(count)
    sent[order] = shared_line_unequal(begin[order], size[order], ceiling[order], move.capacity)
    exposed = np.maximum(begin + sent + move.ramp_s[kind, which] - end, 0.0) + move.delay_s
    relayed = flow.line.predicted[kind, which] > threshold_s
    first = end + np.where(relayed, move.rdma_s[which] if move.rdma_s.size else 0.0, exposed)
    times = first - arrival + context.scenario.engine.router_delay_s
    warm = slice(count // 10, None)
    inside = float((begin + busy - arrival)[warm].mean())
    stays = np.sort(np.concatenate([begin + busy]))
    span = arrival[-1] - arrival[count // 10]
    present = (np.minimum(stays, arrival[-1]) - np.maximum(np.sort(arrival), arrival[count // 10])).clip(0).sum() / span
    return times[warm], float(present), context.rate * inside, atoms.workload[which][warm].astype(float)


@pytest.mark.parametrize(
    ("keys", "threshold", "fast"),
    [({"prefill": 2, "lines": 6, "relay": 0}, math.inf, 2), ({"prefill": 3, "lines": 4}, 1.0, 1)],
)
def test_ttft_against_an_event_simulation(keys: dict[str, int], threshold: float, fast: int) -> None:
    """p50, p90 and p99 within 10 % of a simulation of the same plan; Little's law in the simulation and the stage."""
    context, deployment = plan("workload.prefix_cache=shared", f"links.0.streams={fast}", **keys)
    stage, _, _, mixtures = parts(context, deployment, threshold)
    runs = [simulate(context, deployment, threshold, 20_000, seed) for seed in (1, 2)]
    times = np.concatenate([r[0] for r in runs])
    for q in QUANTILES:
        assert mixtures.of("ttft").quantile(q) == pytest.approx(float(np.quantile(times, q)), rel=0.10), q
    for _, present, by_rate, _ in runs:
        assert present == pytest.approx(by_rate, rel=0.05)
    in_prefill = context.rate * stage.law.mean_s + stage.busy_servers
    assert in_prefill == pytest.approx(np.mean([r[1] for r in runs]), rel=0.10)


def test_ttft_of_each_workload_against_an_event_simulation() -> None:
    """Agents and chat in the same queue and on the same line: the quantiles of either, within 8 % or, as requests come
    in steps, two per cent of the requests."""
    context, deployment = two_workloads("workloads.agents.prefix_cache=shared", "links.0.streams=2", relay=0, lines=6)
    _, _, _, mixtures = parts(context, deployment, math.inf)
    runs = [simulate(context, deployment, math.inf, 20_000, seed) for seed in (1, 2)]
    times, workload = np.concatenate([r[0] for r in runs]), np.concatenate([r[3] for r in runs])
    for k, name in enumerate(("agents", "chat")):
        for q in QUANTILES:
            step = min(0.02, (1 - q) / 4)
            low, high = np.quantile(times[workload == k], (q - step, q + step))
            assert 0.92 * low <= mixtures.of_workload(name).of("ttft").quantile(q) <= 1.08 * high, (name, q)


def test_pinned_hits_are_those_of_each_workload() -> None:
    """Main decode's hits by tokens; a workload that is pinned to none sends whole prompts."""
    pins = ("workloads.agents.decode_prefix_hit_rate=0.8", "workloads.chat.decode_prefix_hit_rate=0")
    context, deployment = two_workloads(*pins, relay=0, lines=12)
    _, move, flow, _ = parts(context, deployment, math.inf)
    atoms = context.demand.atoms
    long, short = (6 / 24 * float(atoms.weights[0] @ atoms.prompt), 18 / 24 * float(atoms.weights[1] @ atoms.prompt))
    evaluation = evaluate(context, deployment)
    assert evaluation.decode_hit_rate == pytest.approx(0.8 * long / (long + short), rel=1e-6)
    held = flow.line.weight[0] / atoms.weight
    assert held[atoms.workload == 1].max() == 0.0
    assert held[atoms.workload == 0] == pytest.approx(0.8 / (float(atoms.weights[0] @ atoms.cached) / (long * 4)))
    sent = float((flow.line.weight * move.size).sum())
    assert flow.line.bytes_per_request == pytest.approx(sent)
