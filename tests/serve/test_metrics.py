"""TTFT, TPOT, pause and E2E of a flow: against a sampling of the same requests, request by request."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.latency import Mixture
from pddplan.serve.metrics import OCCUPANCY_POINTS, WAIT_BINS, Latencies, _compress
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.spec.types import Metric
from tests.serve.test_evaluate import parts
from tests.serve.test_latency import law, sample
from tests.serve.worlds import plan, two_workloads

Floats = NDArray[np.float64]
DRAWS = 200_000


def draws(context: Context, deployment: Deployment, threshold: float, seed: int) -> tuple[dict[str, Floats], Latencies]:
    """Requests drawn one by one: kind, atom, spread point, wait at prefill, batch seen, wait for a slot; and their
    workload."""
    stage, move, flow, mixtures = parts(context, deployment, threshold)
    rng, atoms = np.random.default_rng(seed), context.demand.atoms
    atom = rng.choice(atoms.weight.size, DRAWS, p=atoms.weight)
    held = np.broadcast_to(context.demand.held(flow.held_share), atoms.weight.shape)
    kind = (rng.random(DRAWS) > held[atom]).astype(int)
    point = rng.choice(flow.line.probability.size, DRAWS, p=flow.line.probability)
    wait = sample(Mixture(np.ones(1), np.zeros(1), stage.law.survival, {}), stage.law, rng, DRAWS)
    exposed, relayed = flow.line.exposed[kind, atom, point], flow.line.predicted[kind, atom] > threshold
    row = np.full(flow.line.weight.shape, -1)
    eager, pause, worst, tau_relay = np.zeros(DRAWS), np.zeros(DRAWS), np.zeros(DRAWS), 0.0
    if flow.ways is not None and flow.relay is not None and flow.handover is not None:
        row[flow.ways.kind, flow.ways.atom] = np.arange(flow.ways.atom.size)
        at = (row[kind, atom], point)
        eager = np.where(relayed, flow.relay.eager[at], 0.0)
        pause = np.where(relayed, flow.handover.pause_s[at], 0.0)
        worst = np.where(relayed, flow.handover.worst_pause_s[at], 0.0)
        tau_relay = flow.relay.tau_s
    admission = flow.main.admission
    slot = np.where(~relayed & (rng.random(DRAWS) < float(admission.p_wait)), rng.exponential(size=DRAWS), 0.0)
    slot = slot / float(admission.decay_per_s)
    n = atoms.output[atom]
    on_relay = np.minimum(eager, n - 1)
    steps, probability = flow.main.seen_steps(OCCUPANCY_POINTS)
    middles = np.cumsum(probability) - 0.5 * probability
    tau = np.interp(rng.random(DRAWS), middles, steps)  # the steps are means of bins
    router = context.scenario.engine.router_delay_s
    first = wait + stage.time_s[atom] + router
    way = np.where(relayed, move.rdma_s[atom] if move.rdma_s.size else 0.0, exposed)
    after = context.scenario.traffic.first_token == "on_prefill"
    handed = np.where(n - 1 > on_relay, pause, 0.0)
    stream = on_relay * tau_relay + (n - 1 - on_relay) * tau + handed
    mean_stream = on_relay * tau_relay + (n - 1 - on_relay) * float(steps @ probability) + handed
    found = {
        "ttft": first if after else first + way + slot,
        "tpot": ((stream + (way if after else 0.0)) / np.maximum(n - 1, 1))[n > 1],
        "e2e": first + way + slot + mean_stream,
        "pause": np.maximum(worst, way if after else 0.0),
        "workload": atoms.workload[atom].astype(float),
    }
    return found, mixtures


@pytest.mark.parametrize("threshold", [0.6, 3.0, math.inf])
@pytest.mark.parametrize("first_token", ["after_transfer", "on_prefill"])
def test_mixtures_are_their_samples(threshold: float, first_token: str) -> None:
    override = f"workload.first_token={first_token}"
    context, deployment = plan(override, prefill=3, relay=3, main=5, lines=6)
    found, mixtures = draws(context, deployment, threshold, 3)
    metrics: tuple[Metric, ...] = ("ttft", "tpot", "e2e")
    for metric in metrics:
        for q in (0.2, 0.5, 0.9, 0.99):
            assert_quantile(metric, q, mixtures.of(metric).quantile(q), found[metric], 5e-3)


def assert_quantile(metric: Metric, q: float, value_s: float, drawn: Floats, within: float) -> None:
    """P(drawn <= value) is q, TTFT and E2E; TPOT's law is read between its points: the value is right to a percent."""
    if metric == "tpot":
        assert value_s == pytest.approx(float(np.quantile(drawn, q)), rel=1e-2), (metric, q)
        return
    assert float((drawn <= value_s * (1 + 1e-9)).mean()) >= q - within, (metric, q)
    assert float((drawn < value_s * (1 - 1e-9)).mean()) <= q + within, (metric, q)


@pytest.mark.parametrize("threshold", [0.6, math.inf])
@pytest.mark.parametrize("first_token", ["after_transfer", "on_prefill"])
def test_mixtures_of_each_workload_are_its_samples(threshold: float, first_token: str) -> None:
    """Each quantile is over the requests of one workload only; those of the other are elsewhere."""
    context, deployment = two_workloads(f"workloads.agents.first_token={first_token}", relay=3, main=6, lines=6)
    found, mixtures = draws(context, deployment, threshold, 4)
    metrics: tuple[Metric, ...] = ("ttft", "tpot", "e2e")
    for k, name in enumerate(("agents", "chat")):
        own, mine = mixtures.of_workload(name), found["workload"] == k
        for metric in metrics:
            for q in (0.2, 0.5, 0.9, 0.99):
                assert_quantile(metric, q, own.of(metric).quantile(q), found[metric][mine], 6e-3)
    late = [mixtures.of_workload(name).of("ttft").quantile(0.9) for name in ("agents", "chat")]
    assert late[0] > 1.2 * late[1]


def test_within_of_each_workload() -> None:
    """A workload's own limits; of all, the mean over requests."""
    context, deployment = two_workloads("slo.ttft_s={p50: 2, p99: 4}", relay=3, main=6, lines=6)
    found, mixtures = draws(context, deployment, 1.0, 5)
    ok = (found["ttft"] <= 4.0) & (found["tpot"] <= 0.05)
    for k, name in enumerate(("agents", "chat")):
        assert mixtures.of_workload(name).within == pytest.approx(float(ok[found["workload"] == k].mean()), abs=0.01)
    assert mixtures.within == pytest.approx(float(ok.mean()), abs=0.01)


def test_within_is_the_joint_probability() -> None:
    context, deployment = plan("slo.ttft_s={p50: 2, p99: 4}", prefill=3, relay=3, main=5, lines=6)
    found, mixtures = draws(context, deployment, 1.0, 5)
    ok = (found["ttft"] <= 4.0) & (found["tpot"] <= 0.05)
    assert mixtures.within == pytest.approx(float(ok.mean()), abs=0.01)
    assert mixtures.within <= 1 - mixtures.of("ttft").share_above(4.0) + 0.01


def test_output_of_one_token_has_no_tpot() -> None:
    context, deployment = plan("workload.output_tokens=1", relay=0, lines=8)
    _, _, _, mixtures = parts(context, deployment, math.inf)
    assert mixtures.of("tpot").quantile(0.99) == 0.0
    assert mixtures.of("e2e").quantile(0.9) == pytest.approx(mixtures.of("ttft").quantile(0.9), rel=1e-6)


def test_parts_add_up_to_the_constant() -> None:
    context, deployment = plan(relay=3, lines=6)
    _, _, _, mixtures = parts(context, deployment, 1.0)
    metrics: tuple[Metric, ...] = ("ttft", "e2e")
    for metric in metrics:
        mixture = mixtures.of(metric)
        assert sum(mixture.parts.values()) == pytest.approx(mixture.constant)
        assert mixture.weight.sum() == pytest.approx(1.0)


def test_pause_is_a_step_or_a_pass_or_ones_own_hand_over() -> None:
    context, deployment = plan(relay=3, lines=6)
    _, _, flow, mixtures = parts(context, deployment, 1.0)
    pause = mixtures.of("pause")
    assert flow.handover is not None
    step = pause.constant.min()
    assert step >= flow.main.occupancy.tpot_s * 0.999
    longest = float(flow.handover.added.time_s(flow.handover.eager).max())
    highest = max(step + longest, float(flow.handover.worst_pause_s.max()))
    assert pause.quantile(1.0) <= highest * (1 + 1e-9)
    _, _, _, plain = parts(context, Deployment(**{**deployment.__dict__, "relay": None}), math.inf)
    assert plain.of("pause").quantile(0.99) == pytest.approx(plain.of("pause").quantile(0.01))


def test_wait_bins_are_those_of_an_exponential() -> None:
    rng = np.random.default_rng(1)
    drawn = np.sort(rng.exponential(size=1_000_000))
    low = 0.0
    for share, mean in WAIT_BINS:
        part = drawn[int(low * drawn.size) : int((low + share) * drawn.size)]
        assert mean == pytest.approx(float(part.mean()), rel=0.01)
        low += share
    assert low == pytest.approx(1.0)
    assert sum(share * mean for share, mean in WAIT_BINS) == pytest.approx(1.0, rel=1e-4)


def test_merging_rows_keeps_mean_and_quantiles() -> None:
    rng = np.random.default_rng(2)
    weight, constant = rng.dirichlet(np.ones(30_000)), np.exp(rng.normal(size=30_000))
    wait = law(0.7)
    stage = PrefillStage(wait, constant, 1.0, constant, constant, 0.7, 1.0)
    whole = Mixture(weight, constant, wait.survival, {"prefill": constant})
    merged = _compress(weight, constant, {"prefill": constant}, stage)
    assert merged.weight.size <= 4000
    assert float(merged.weight @ merged.constant) == pytest.approx(float(weight @ constant))
    for q in (0.5, 0.9, 0.99):
        assert merged.quantile(q) == pytest.approx(whole.quantile(q), rel=2e-3)
