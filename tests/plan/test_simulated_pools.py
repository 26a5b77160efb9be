"""The formulas of aggregated serving against the same pool step by step."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import pytest
import yaml

from pddplan.plan.simulated import simulate_deployment
from pddplan.plan.solve import cheapest, prepare
from pddplan.serve.deployment import Plan
from pddplan.serve.evaluate import evaluate
from pddplan.simulate.records import Asked, Simulation
from pddplan.spec.catalogue import examples_dir
from pddplan.spec.load import load_scenario_text
from tests.compiled import needs_numba

pytestmark = needs_numba

# allowed error of the formulas [%]; TPOT's tail is short by a tenth, which the page of agreement says
BOUNDS = {
    ("ttft", 0.5): 8,
    ("ttft", 0.9): 9,
    ("ttft", 0.99): 11,
    ("tpot", 0.5): 5,
    ("tpot", 0.9): 11,
    ("tpot", 0.99): 16,
}


@lru_cache(1)
def chat() -> tuple[dict[str, Any], Plan]:
    """The example and the pool that is bought for it."""
    data = yaml.safe_load((examples_dir() / "chat_8k.yaml").read_text(encoding="utf-8"))
    best = cheapest(prepare(load_scenario_text(yaml.safe_dump(data)))).best
    assert best is not None
    return data, best.deployment


def simulated(**changes: Any) -> Simulation:
    data, pool = chat()
    changed = copy.deepcopy(data)
    changed["workload"] |= changes
    context = prepare(load_scenario_text(yaml.safe_dump(changed)))
    evaluation = evaluate(context, pool)
    return simulate_deployment(context, pool, Asked(requests=60_000, seed=2), evaluation=evaluation)


@pytest.mark.parametrize(
    "changes",
    [
        {"request_rate_per_s": 4},
        {"request_rate_per_s": 10},
        {"request_rate_per_s": 12},
        {"request_rate_per_s": 10, "prefix_cache": "sticky"},
        {"request_rate_per_s": 7, "prefix_cache": "shared"},
        {"request_rate_per_s": 10, "output_tokens": {"p50": 200, "p95": 800}},
    ],
    ids=str,
)
def test_quantiles_of_an_aggregated_pool(changes: dict[str, Any]) -> None:
    found = simulated(**changes)
    assert found.growth is None and found.littles_law_error < 1e-9
    assert found.throughput_rps == pytest.approx(changes["request_rate_per_s"], rel=0.03)
    for row in found.quantiles:
        if (bound := BOUNDS.get((row.metric, row.quantile))) is None:
            continue
        assert row.error is not None
        print(f"\n{row.metric} p{100 * row.quantile:g} {100 * row.error:+.1f} %")
        assert abs(100 * row.error) < bound + 100 * row.simulated.half_width


def test_an_overloaded_pool_has_no_latency() -> None:
    """40 requests/s where some 20 can be served: what grows, not how long it takes."""
    data, pool = chat()
    changed = copy.deepcopy(data)
    changed["workload"]["request_rate_per_s"] = 40
    context = prepare(load_scenario_text(yaml.safe_dump(changed)))
    evaluation = evaluate(context, pool)
    assert not evaluation.feasible
    found = simulate_deployment(context, pool, Asked(requests=40_000, seed=1), evaluation=evaluation)
    assert found.growth is not None and found.quantiles == ()
    assert found.growth.stage == "prefill"
    assert 10 < found.growth.requests_per_s < 30 and found.growth.missing > 0.3
