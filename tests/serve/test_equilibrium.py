"""The hit share at main decode as a fixed point, and the stages at one share."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.equilibrium import (
    HELD_TOLERANCE,
    Case,
    Flow,
    equilibrium,
    fetch_share,
    flow_at,
    loop_gain,
    pinned_share,
    tier_bytes,
)
from pddplan.serve.handover import extend_rounds, one_shot_pause_s, one_shot_share
from pddplan.serve.line import mean_ceiling_bytes_per_s, slowdown, spread
from pddplan.serve.line_stage import Transfer, transfer
from pddplan.serve.main_decode import admission_wait, length_biased_context, occupancy, occupancy_tail
from pddplan.serve.overlap import exposed_transfer_s
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.relay import eager_tokens, relay_slots
from pddplan.serve.residency import gap_cdf, residency_s
from tests.serve.worlds import plan


def stages(context: Context, deployment: Deployment) -> tuple[PrefillStage, Transfer]:
    assert deployment.prefill is not None
    stage = context.prefill_stage(deployment.prefill, context.rate)
    assert not isinstance(stage, Excuse)
    return stage, transfer(context.demand, deployment, stage, context.nic_goodput)


def at(context: Context, deployment: Deployment, q: float, threshold_s: float) -> Flow | Excuse:
    stage, move = stages(context, deployment)
    return flow_at(Case(context, deployment, stage, move, context.rate), q, threshold_s)


TIGHT = ({"main": 4, "lines": 4}, ("workload.sessions={turns: 30, seconds_between_turns: {p50: 170, p90: 900}}",))
PLANS = [({}, ()), TIGHT, ({"relay": 0, "lines": 8}, TIGHT[1])]


@pytest.mark.parametrize(("keys", "overrides"), PLANS)
@pytest.mark.parametrize("threshold", [0.5, 4.0])
def test_largest_fixed_point_by_a_fine_scan(keys: dict[str, int], overrides: tuple[str, ...], threshold: float) -> None:
    """No share above the one found maps onto itself, and this one does."""
    context, deployment = plan(*overrides, **keys)
    stage, move = stages(context, deployment)
    found = equilibrium(Case(context, deployment, stage, move, context.rate), threshold)
    scan = np.linspace(1.0, 0.0, 401)
    mapped = [at(context, deployment, float(q), threshold) for q in scan]
    crossing = next(
        (q for q, f in zip(scan, mapped, strict=True) if not isinstance(f, Excuse) and f.next_held_share >= q), None
    )
    if isinstance(found, Excuse):
        upper = next(q for q, f in zip(scan, mapped, strict=True) if isinstance(f, Excuse))
        assert crossing is None or crossing < upper
        return
    assert crossing is not None
    assert abs(found.next_held_share - found.held_share) <= HELD_TOLERANCE
    assert crossing == pytest.approx(found.held_share, abs=1 / 400 + 2 * HELD_TOLERANCE)


def test_the_map_rises_and_its_slope_is_the_loop_gain() -> None:
    context, deployment = plan(*TIGHT[1], main=8, lines=24)
    stage, move = stages(context, deployment)
    flow = equilibrium(Case(context, deployment, stage, move, context.rate), 1.0)
    assert not isinstance(flow, Excuse)
    q = np.linspace(max(flow.held_share - 0.05, 0.0), min(flow.held_share + 0.05, 1.0), 11)
    mapped = [at(context, deployment, float(x), 1.0) for x in q]
    values = [f.next_held_share for f in mapped if not isinstance(f, Excuse)]
    assert np.all(np.diff(values) >= -1e-9)
    near = [at(context, deployment, flow.held_share + d, 1.0) for d in (-0.01, 0.01)]
    low, high = (f.next_held_share for f in near if not isinstance(f, Excuse))
    gain = loop_gain(Case(context, deployment, stage, move, context.rate), flow)
    assert gain == pytest.approx(abs(high - low) / 0.02, rel=1e-9)
    assert 0 < gain < 1


def test_pinned_shares() -> None:
    context, deployment = plan("workload.decode_prefix_hit_rate=0.8", lines=24)
    assert pinned_share(context, deployment) == pytest.approx(0.8 / context.demand.atoms.hit_rate)
    uncached = Deployment(**{**deployment.__dict__, "decode_cache": False})
    assert pinned_share(context, uncached) == 0.0
    stage, move = stages(context, uncached)
    flow = at(context, uncached, 0.0, math.inf)
    assert isinstance(flow, Excuse) or flow.held_share == 0.0
    assert loop_gain(Case(context, deployment, stage, move, context.rate), at_pinned(context, deployment)) == 0.0
    assert pinned_share(*plan()) is None


def at_pinned(context: Context, deployment: Deployment) -> Flow:
    stage, move = stages(context, deployment)
    flow = equilibrium(Case(context, deployment, stage, move, context.rate), 1.0)
    assert not isinstance(flow, Excuse)
    return flow


def test_a_cache_tier_adds_room_and_is_asked_less_often() -> None:
    override = "sites.1.cache={host_gb_per_chip: 128, host_gb_per_s: 20}"
    context, deployment = plan(override, *TIGHT[1], lines=24)
    assert deployment.main is not None
    assert tier_bytes(deployment.main) == pytest.approx(deployment.main.chips * 128e9)
    with_tier, without = at(context, deployment, 0.9, 1.0), at(*plan(*TIGHT[1], lines=24), 0.9, 1.0)
    assert not isinstance(with_tier, Excuse) and not isinstance(without, Excuse)
    assert with_tier.main.idle_bytes == pytest.approx(without.main.idle_bytes + tier_bytes(deployment.main))
    assert with_tier.next_held_share > without.next_held_share
    share = fetch_share(context, deployment.main, with_tier)
    small = float(gap_cdf(residence(context, without.main.idle_bytes), context.demand.sessions.gaps[0]))
    whole = float(gap_cdf(residence(context, with_tier.main.idle_bytes), context.demand.sessions.gaps[0]))
    assert share == pytest.approx(1 - small / whole, abs=2e-3)


def residence(context: Context, idle_bytes: float) -> float:
    """Solved instead of read off the table."""
    return float(
        residency_s(idle_bytes, context.rate, context.demand.sessions.kv_mean, context.demand.sessions.gaps[0])
    )


# ---------------------------------------------------------------- the same, slowly


@pytest.mark.parametrize("q", [1.0, 0.97, 0.9])
@pytest.mark.parametrize("threshold", [0.0, 1.0, 5.0])
def test_flow_equals_the_formulas_put_together_plainly(q: float, threshold: float) -> None:
    """Every array (2, atoms, points), nothing picked out or cached: line, relay, hand-over, main decode."""
    context, deployment = plan(relay=4, main=6, lines=6)
    demand, atoms = context.demand, context.demand.atoms
    stage, move = stages(context, deployment)
    flow = at(context, deployment, q, threshold)
    assert not isinstance(flow, Excuse)
    assert deployment.relay is not None and deployment.main is not None
    weight = np.stack([q * atoms.weight, (1 - q) * atoms.weight])
    rho = context.rate * float((weight * move.size).sum()) / move.capacity
    streaming = np.minimum(move.streaming_ceiling, move.capacity)
    m = move.capacity / float(mean_ceiling_bytes_per_s(weight.ravel(), move.size.ravel(), streaming.ravel()))
    factors, probability = spread(m, rho)
    assert flow.line.rho == pytest.approx(rho)
    assert flow.line.factor_mean == pytest.approx(float(slowdown(m, rho)))

    def exposed(factor: np.ndarray) -> np.ndarray:
        return exposed_transfer_s(
            move.prefix[..., None],
            (move.size - move.prefix)[..., None],
            move.ceiling[..., None],
            factor,
            stage.time_s[:, None],
            demand.layers,
            first_chunk_share=stage.first_chunk_share[:, None],
            last_chunk_share=stage.last_chunk_share[:, None],
            ramp=move.ramp_s[..., None],
            delay_s=move.delay_s,
        )

    times, predicted = exposed(factors), exposed(np.array([slowdown(m, rho)]))[..., 0]
    assert flow.line.exposed == pytest.approx(times)
    relayed = weight * (predicted > threshold)
    n = np.broadcast_to(atoms.output[None, :, None], times.shape)
    mass = relayed[..., None] * probability
    cost, added = context.extend_cost(deployment.main)
    table = context.step_surface(deployment.relay).table(float((relayed * demand.middle_context).sum() / relayed.sum()))
    step = context.typical_step_s(deployment.main)
    extra = np.zeros_like(times)
    for _ in range(2):
        tau = float(table.seconds[0])
        for _ in range(4):
            requests = float(relay_slots(context.rate, mass.ravel(), n.ravel(), (times + extra).ravel(), 0.0, tau))
            tau = float(table(np.asarray(max(requests / deployment.relay.instances, 1.0))))
        eager = eager_tokens(n, times, extra, tau)
        assert flow.relay is not None and flow.handover is not None and flow.ways is not None
        share = float(one_shot_share(requests / flow.relay.slots.total, int(flow.relay.slots.total)))
        rounds = extend_rounds(eager, move.rtt_s, cost, tau, step_s=step)
        extra = (1 - share) * rounds.extra_relay_s
    assert (flow.relay.tau_s, flow.relay.requests) == (pytest.approx(tau), pytest.approx(requests))
    picked = (flow.ways.kind, flow.ways.atom)
    assert np.all((weight[picked] > 0) & (predicted[picked] > threshold))
    assert flow.relay.eager == pytest.approx(eager[picked])
    pause = share * one_shot_pause_s(eager, move.rtt_s, cost, step) + (1 - share) * rounds.pause_s
    assert flow.handover.pause_s == pytest.approx(pause[picked])
    saved = float(cost.t0_s) - float(added.t0_s)
    several = np.maximum(rounds.extend_passes_s - (rounds.rounds + 1) * saved, 0.0)
    passes = float((mass * (share * added.time_s(eager) + (1 - share) * several)).sum() / mass.sum())
    assert flow.main.extend_s == pytest.approx(passes)
    whole, done = weight[..., None] * probability, np.where(relayed[..., None] > 0, eager, 0.0)
    context_mean = float(
        length_biased_context(
            whole.ravel(), np.broadcast_to(atoms.prompt[None, :, None], times.shape).ravel(), n.ravel(), done.ravel()
        )
    )
    assert flow.main.context == pytest.approx(context_mean)
    tokens = float((whole * (n - done)).sum())
    main_table = context.step_surface(deployment.main).table(context_mean, flow.main.stretch)
    settled = occupancy(context.rate, tokens, main_table, deployment.main.instances, float(main_table.batch[-1]))
    assert not isinstance(settled, Excuse)
    assert flow.main.occupancy.batch == pytest.approx(settled.batch, rel=1e-6)
    load = context.rate * float(relayed.sum()) * passes / deployment.main.instances
    assert flow.main.stretch == pytest.approx(1 / (1 - load))
    life = tokens * flow.main.occupancy.tpot_s / float((whole * (n > done)).sum())
    many, per_instance = flow.main.occupancy, flow.main.slots.per_instance
    width = many.dispersion * max(bursts_plainly(context, deployment, stage.time_s, life), 1.0)
    running = many.batch + width - width / many.dispersion  # of the law whose steps lengthen with the batch
    expected = admission_wait(running, per_instance, life, 1.0, width).mean_s
    assert float(flow.main.admission.mean_s) == pytest.approx(float(expected))
    assert flow.main.p_overflow == pytest.approx(float(occupancy_tail(running, np.floor(per_instance), width)))


def bursts_plainly(context: Context, deployment: Deployment, time_s: np.ndarray, life_s: float) -> float:
    """Variance over mean of the number of requests of an instance of main decode, whose steps are constant: what
    prefill gives on of its rhythm, and how much of it remains of answers of unequal lengths."""
    atoms = context.demand.atoms
    assert deployment.prefill is not None and deployment.main is not None
    servers = deployment.prefill.instances * deployment.prefill.prefill.servers_per_instance
    rho = context.rate * float(atoms.weight @ time_s) / servers
    cv2 = float(atoms.weight @ time_s**2) / float(atoms.weight @ time_s) ** 2 - 1.0
    assert context.scenario.traffic.burstiness == 1.0
    assert context.scenario.traffic.prefix_cache != "shared"  # so each server has a queue of its own
    near = 1.0 + rho**2 * (cv2 - 1.0)
    relaxes = float(atoms.weight @ time_s) * (1.0 + cv2) / (2.0 * (1.0 - rho) ** 2)
    leaves = near + (1.0 - near) * life_s / (life_s + relaxes)
    shorter = np.minimum(atoms.output[:, None], atoms.output[None, :])
    kept = float(atoms.weight @ shorter @ atoms.weight) / float(atoms.weight @ atoms.output)
    return 1.0 + (leaves - 1.0) * kept / deployment.main.instances
