"""The hourly bill: whole instances and nodes, owned first, lines by port, volume and burst, power, cache, spares."""

from __future__ import annotations

import pytest

from pddplan import load_scenario_text
from pddplan.economics.cost import bill, chips_paid, line_traffic_usd_per_hour, mean_load
from pddplan.plan.options import build_shop
from pddplan.plan.solve import prepare
from pddplan.serve.deployment import Deployment, LineChoice

SCENARIO = """
name: bill
model: llama-3.1-8b
precision: {weights: fp8, kv_cache: fp8}
workload:
  request_rate_per_s: 2
  prompt_tokens: 4096
  output_tokens: 256
  prefix_hit_rate: 0.5
  hourly_load: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]
sites:
  - name: a
    roles: [prefill, relay_decode]
    chips: [{chip: h100, max: 32, owned: 4, usd_per_hour: 2.0, buy_in: 8, parallelism: {tp: [2]}}]
    cache: {host_gb_per_chip: 100, host_gb_per_s: 20, remote_tb: 2, usd_per_tb_hour: 0.5}
    power: {usd_per_kwh: 0.10, pue: 1.2}
  - name: b
    roles: [main_decode]
    chips: [{chip: h20, max: 32, usd_per_hour: 1.0, buy_in: 1, parallelism: {tp: [1]}}]
links:
  - between: [a, b]
    rtt_ms: 5
    tiers:
      - {gbit_per_s: 10, usd_per_hour: 3, usd_per_gb: {from_a: 0.02, from_b: 0.5}}
      - {gbit_per_s: 10, usd_per_hour: 1, burst_95: {commit_gbit_per_s: 2, usd_per_gbit_month: 73}}
spares: {main_decode: 2}
"""


def deployment(tier: int = 0, lines: int = 1) -> tuple[object, Deployment]:
    context = prepare(load_scenario_text(SCENARIO))
    shop = build_shop(context)
    choice = LineChoice(context.scenario.links[0], tier, lines, "a", "b")
    main = next(o for o in shop.pools["main_decode"] if o.chips == 1)
    prefill = next(o for o in shop.pools["prefill"] if o.chips == 2)
    return context, Deployment(prefill=prefill.pool(3), main=main.pool(5), line=choice)


def test_owned_chips_are_paid_anyway_and_rented_ones_in_whole_nodes() -> None:
    context, _ = deployment()
    offer = context.scenario.sites[0].offers[0]
    assert [chips_paid(offer, used) for used in (0, 4, 5, 12, 13)] == [4, 4, 12, 12, 20]


def test_every_part_of_the_bill_by_hand() -> None:
    context, plan = deployment()
    bytes_per_s = 1e8
    costs = bill(context.scenario, plan, (bytes_per_s,))
    assert costs.pools == pytest.approx((6 * 2.0, 5 * 1.0))  # prefill, main decode
    assert costs.other["spares"] == pytest.approx(2 * 1.0)
    # 6 chips used, 4 owned: 2 rented, billed as one node of 8
    assert costs.other["node_rounding"] == pytest.approx(6 * 2.0)
    assert costs.other["owned_idle"] == 0.0
    watts = context.scenario.sites[0].offers[0].chip.all_in_watts
    assert costs.other["power"] == pytest.approx(6 * watts / 1000 * 1.2 * 0.10)
    assert costs.other["cache"] == pytest.approx((6 * 0.1 + 2.0) * 0.5)
    assert costs.line_ports == pytest.approx(3.0)
    # day mean over peak: (12 x 1 + 12 x 3)/24 / 3
    assert mean_load(context.scenario) == pytest.approx(2 / 3)
    assert costs.line_traffic == pytest.approx(0.1 * 3600 * 0.02 * 2 / 3)
    assert costs.usd_per_hour == pytest.approx(
        sum(costs.pools) + sum(costs.other.values()) + costs.line_ports + costs.line_traffic
    )


def test_the_volume_of_several_workloads_is_that_of_their_sum() -> None:
    """Two profiles that complement each other: 2 + 6/3 requests/s in the first half of the day, 2 + 6 in the second."""
    head, rest = SCENARIO.split("workload:\n")
    work, rest = rest[: rest.index("sites:")], rest[rest.index("sites:") :]
    entries = [work.replace("  request", f"  - name: {name}\n    request", 1) for name in ("one", "other")]
    entries = [entry.replace("\n  ", "\n    ").replace("\n      ", "\n    ") for entry in entries]
    flat = "\n".join(line for line in entries[0].splitlines() if "hourly" not in line)
    more = entries[1].replace("request_rate_per_s: 2", "request_rate_per_s: 6")
    scenario = load_scenario_text(f"{head}workloads:\n{flat}\n{more}{rest}")
    assert scenario.traffic.request_rate_per_s == pytest.approx(8)
    assert mean_load(scenario) == pytest.approx((12 * 4 + 12 * 8) / 24 / 8)


def test_the_burst_is_billed_above_the_commitment_of_all_lines() -> None:
    _, plan = deployment(tier=1, lines=2)
    assert plan.line is not None
    assert line_traffic_usd_per_hour(plan.line, 0.4e9) == 0.0  # 3.2 of 4 Gbit/s committed
    assert line_traffic_usd_per_hour(plan.line, 1e9) == pytest.approx((8 - 4) * 73 / 730)


def test_an_unused_offer_still_costs_its_owned_chips() -> None:
    context, plan = deployment()
    empty = bill(context.scenario, Deployment(main=plan.main, line=None), ())
    assert empty.other["owned_idle"] == pytest.approx(4 * 2.0)
