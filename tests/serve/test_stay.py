"""Requests that stay on the relay longer than their transfer takes, to spare main decode."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.equilibrium import Case, Flow, flow_at, longest_stay
from pddplan.serve.occupancy_law import poisson_tail
from tests.serve.test_equilibrium import stages
from tests.serve.worlds import plan

THRESHOLD_S = 1.0
STAYS = (0.0, 1.0, 3.0, 10.0, 30.0, math.inf)


def staying(context: Context, deployment: Deployment, stay_s: float) -> Flow:
    stage, move = stages(context, deployment)
    flow = flow_at(Case(context, deployment, stage, move, context.rate), 0.9, THRESHOLD_S, stay_s)
    assert not isinstance(flow, Excuse)
    return flow


def tokens_per_request(context: Context, flow: Flow) -> float:
    assert flow.ways is not None and flow.relay is not None
    return float((flow.ways.mass * flow.relay.eager).sum())


@pytest.mark.parametrize("stay", STAYS)
def test_who_stays_by_hand(stay: float) -> None:
    """Slots by Little's law, tokens by the steps that fit; the rounds of the hand-over only add to both."""
    context, deployment = plan(lines=12)
    flow = staying(context, deployment, stay)
    assert flow.ways is not None and flow.relay is not None and flow.handover is not None
    n = context.demand.atoms.output[flow.ways.atom][:, None]
    tau = flow.relay.tau_s
    span = np.maximum(flow.ways.exposed, stay)
    held = context.rate * float((flow.ways.mass * np.minimum(n * tau, span)).sum())
    tokens = np.minimum(n, np.ceil(span / tau * (1 - 1e-12)))
    # tau is that of the last round but one
    assert flow.relay.requests >= held * (1 - 2e-3)
    assert flow.relay.requests == pytest.approx(held, rel=0.15)
    assert np.all(flow.relay.eager >= tokens)
    if math.isinf(stay):
        assert np.all(flow.relay.eager == n)
        assert flow.relay.requests == pytest.approx(held, rel=2e-3)


def test_the_longer_they_stay_the_fewer_tokens_are_left() -> None:
    """And what came over the line meanwhile waits at main decode: KV under way grows."""
    context, deployment = plan(lines=12)
    flows = [staying(context, deployment, s) for s in STAYS if s != THRESHOLD_S]
    tokens = [tokens_per_request(context, f) for f in flows]
    assert np.all(np.diff(tokens) > 0)
    assert np.all(np.diff([f.relay.requests for f in flows if f.relay is not None]) > 0)
    assert np.all(np.diff([f.main.under_way_bytes for f in flows]) > 0)
    emitted = tokens[-1]
    assert flows[-1].ways is not None
    whole = float(flows[-1].ways.relayed @ context.demand.atoms.output[flows[-1].ways.atom])
    assert emitted == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(("relay", "rate"), [(1, 1.0), (1, 10.0), (1, 40.0), (2, 40.0)])
def test_the_longest_stay_fills_the_slots(relay: int, rate: float) -> None:
    """At the stay found the slots do, a little above it they don't; none where they are full as it is."""
    context, deployment = plan(
        f"workload.request_rate_per_s={rate}", relay=relay, lines=int(2 * rate), prefill=24, main=64
    )
    stage, move = stages(context, deployment)

    def fits(stay: float) -> bool:
        flow = flow_at(Case(context, deployment, stage, move, context.rate), 0.9, THRESHOLD_S, stay)
        assert not isinstance(flow, Excuse) and flow.relay is not None
        slots = flow.relay.slots
        full = float(poisson_tail(flow.relay.requests, math.floor(slots.total))) > 0.01
        return not full and flow.relay.requests <= context.cap("relay_decode") * slots.total

    found = longest_stay(Case(context, deployment, stage, move, context.rate), 0.9, THRESHOLD_S)
    if found == 0.0:
        assert not fits(0.0) or not fits(1.0)
    elif math.isinf(found):
        assert fits(math.inf)
    else:
        assert fits(found)
        assert not fits(1.1 * found)


def test_nobody_stays_where_nobody_is_relayed() -> None:
    context, deployment = plan(lines=12)
    stage, move = stages(context, deployment)
    assert longest_stay(Case(context, deployment, stage, move, context.rate), 0.9, math.inf) == 0.0
