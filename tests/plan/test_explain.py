"""Why this plan: the slack of what binds."""

from __future__ import annotations

import pytest

from pddplan.plan.explain import bindings
from pddplan.plan.solve import cheapest, prepare
from pddplan.serve.evaluate import evaluate
from tests.plan.small_worlds import world


@pytest.mark.parametrize("seed", (6, 12, 23, 28, 34, 42))
def test_slack_of_a_slot_row_is_the_load_that_still_fits(seed: int) -> None:
    """1 - load/(the most that the admission row allows), which is less than 1 - load/slots."""
    context = prepare(world(seed))
    best = cheapest(context).best
    assert best is not None
    found = evaluate(context, best.deployment, routing=best.evaluation.routing)
    told = {"main decode": "main_decode", "relay decode": "relay_decode", "the aggregated pool": "aggregated"}
    bound = [b for b in bindings(context, best.deployment, found) if "wait for a slot" in b.constraint]
    assert bound
    for row in bound:
        where = row.constraint.partition("for a slot of ")[2].partition(" (")[0]
        load = found.pools[told[where]]
        assert load.slot_room is not None and row.slack == load.slot_room
        # an aggregated pool is busy with passes, not with slots
        assert 0.0 <= row.slack < (1.0 if load.role == "aggregated" else 1.0 - load.busy_share)
