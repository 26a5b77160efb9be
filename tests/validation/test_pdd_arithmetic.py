"""The published PDD figures agree with each other, and our formulas give them back. No solve, nothing fitted.

Figures: a press interview on PDD of July 2026 (address not recorded; https://github.com/infinigence/pdd names the
report): 88 A against 43 A + 32 B + a line, B 20 to 30 % dearer than A, total cost 3.5 to 7.1 % lower, goodput +27.8 %,
BCR up to +37.5 %; 4,649 KB or 1.5 KB for 100 tokens; 6.2 % of 1,024 output tokens from the relay at 64K and 90 % hit.
Confidence: secondary; the products below are arithmetic.
"""

from __future__ import annotations

import numpy as np
import pytest

from pddplan import load_scenario_text
from pddplan.economics.cost import Bill, bill, line_traffic_usd_per_hour
from pddplan.errors import Excuse
from pddplan.llm.catalogue import load_model
from pddplan.llm.kv import kv_bytes, transfer_bytes
from pddplan.perf.measured import MeasuredPrefill, measured_prefill
from pddplan.serve.deployment import Deployment, LineChoice, Pool
from pddplan.serve.handover import TOKEN_ID_BYTES
from pddplan.serve.line import transfer_time_s
from pddplan.serve.relay import eager_tokens, relay_slots, relay_token_share
from pddplan.spec.types import Measured, Scenario

GOODPUT_GAIN = 1.278
# premium of B over A: (stated total cost of PDD, line cost and BCR that follow)
TABLE = {0.20: (1 - 0.071, 0.35, 1.376), 0.30: (1 - 0.035, 0.32, 1.324)}
ONE_SITE_A, PDD_A, PDD_B = 88, 43, 32
KB, GB = 1e3, 1e9
OUTPUT = 1024.0

SCENARIO = """
model: deepseek-v3.2
workload: {{request_rate_per_s: 10, prompt_tokens: 64K, output_tokens: 1K, prefix_hit_rate: 0.9}}
sites:
  - name: home
    roles: [prefill, relay_decode]
    chips: [{{chip: {a}, max: 88, buy_in: 1, usd_per_hour: 1}}]
  - name: far
    roles: [main_decode]
    chips: [{{chip: {b}, max: 32, buy_in: 1, usd_per_hour: {price}}}]
links:
  - {{between: [home, far], rtt_ms: 30, tiers: [{{gbit_per_s: 10, usd_per_hour: {line}}}]}}
"""
A = "{name: gpu-a, bf16_tflops: 280, memory_gb: 96, memory_gb_per_s: 2200, interconnect_gb_per_s: 200}"
B = "{name: gpu-b, bf16_tflops: 148, memory_gb: 128, memory_gb_per_s: 3600, interconnect_gb_per_s: 200}"


def scenario(premium: float, line: float) -> Scenario:
    return load_scenario_text(SCENARIO.format(a=A, b=B, price=1 + premium, line=line))


def single_chips() -> MeasuredPrefill:
    """A service of one chip: the bill asks for nothing but its size."""
    made = measured_prefill(Measured(1, 1000.0))
    assert not isinstance(made, Excuse)
    return made


def bills(premium: float, line: float = 0.0) -> tuple[Bill, Bill]:
    """One site of 88 A, and 43 A + 32 B with a line [A-equivalents per hour]."""
    given, service = scenario(premium, line), single_chips()
    home, far = given.sites
    one = Deployment(prefill=Pool("prefill", home, home.offers[0], service, ONE_SITE_A))
    two = Deployment(
        prefill=Pool("prefill", home, home.offers[0], service, PDD_A),
        main=Pool("main_decode", far, far.offers[0], service, PDD_B),
        line=LineChoice(given.links[0], 0, 1, "home", "far"),
    )
    return bill(given, one, ()), bill(given, two, (1e9,))


@pytest.mark.parametrize("premium", TABLE)
def test_line_price_is_the_difference(premium: float) -> None:
    """88 x stated share - (43 + 32 b): 0.35 and 0.32 A-equivalents, 0.4 % of the total."""
    stated, line, _ = TABLE[premium]
    one, two = bills(premium)
    assert one.usd_per_hour == pytest.approx(88.0, rel=1e-12)
    assert two.usd_per_hour == pytest.approx({0.20: 81.4, 0.30: 84.6}[premium], rel=1e-12)
    left = one.usd_per_hour * stated - two.usd_per_hour
    assert left == pytest.approx(line, abs=0.005)
    assert left / (one.usd_per_hour * stated) == pytest.approx(0.004, abs=0.0005)


@pytest.mark.parametrize("premium", TABLE)
def test_benefit_over_cost(premium: float) -> None:
    """BCR 1.376 at +20 %, 1.324 at +30 %: "up to 37.5 %" is the 20 % end."""
    stated, line, bcr = TABLE[premium]
    one, two = bills(premium, line)
    assert two.usd_per_hour / one.usd_per_hour == pytest.approx(stated, abs=1e-3)
    assert GOODPUT_GAIN / (two.usd_per_hour / one.usd_per_hour) == pytest.approx(bcr, abs=1e-3)
    assert two.line_ports == pytest.approx(line, rel=1e-12)
    assert two.usd_per_hour == pytest.approx(sum(two.pools) + line, rel=1e-12)


def test_benefit_is_not_cost_per_token() -> None:
    """BCR x 1.376 makes a token 27.3 % cheaper; "37.5 % cheaper" would be BCR x 1.6, which the table doesn't give."""
    one, two = bills(0.20, TABLE[0.20][1])
    per_token = two.usd_per_hour / GOODPUT_GAIN / one.usd_per_hour
    assert 1 - per_token == pytest.approx(0.273, abs=1e-3)


def test_price_per_gigabyte_is_paid_for_what_leaves() -> None:
    text = SCENARIO.format(a=A, b=B, price=1.2, line=0.0)
    text = text.replace("usd_per_hour: 0.0}]", "usd_per_hour: 0.0, usd_per_gb: {from_home: 0.02}}]")
    link = load_scenario_text(text).links[0]
    assert line_traffic_usd_per_hour(LineChoice(link, 0, 1, "home", "far"), 1 * GB) == pytest.approx(72.0, rel=1e-12)
    assert line_traffic_usd_per_hour(LineChoice(link, 0, 1, "far", "home"), 1 * GB) == 0.0


def test_hand_over_sends_identifiers() -> None:
    """15 B a token against 46.5 KB: a payload 3,099 times smaller."""
    assert pytest.approx(1.5 * KB, rel=1e-12) == 100 * TOKEN_ID_BYTES
    assert pytest.approx(3099, abs=1) == 4649 * KB / (100 * TOKEN_ID_BYTES)
    assert pytest.approx(46.5 * KB, rel=1e-3) == 4649 * KB / 100


def test_small_transfers_are_bound_by_round_trips() -> None:
    """4.649 MB in 185 ms are 0.20 Gbit/s, far below any line: a fixed time per transfer is needed beside bytes/rate."""
    assert pytest.approx(0.20e9, rel=0.01) == 4649 * KB * 8 / 0.185
    at_ten_gbit = float(transfer_time_s(4649 * KB, 10e9 / 8, 1.0, 0.0))
    assert at_ten_gbit == pytest.approx(3.7e-3, rel=0.01)
    fixed = 0.185 - at_ten_gbit
    assert float(transfer_time_s(4649 * KB, 10e9 / 8, 1.0, fixed)) == pytest.approx(0.185, rel=1e-12)


def test_relay_share_law() -> None:
    """6.2 % of 1,024 tokens are 63.5; a transfer of 2.5 s then means 39 ms a token on the relay."""
    eager = 0.062 * OUTPUT
    assert eager == pytest.approx(63.5, abs=0.05)
    assert 2.5 / eager == pytest.approx(39e-3, abs=0.5e-3)
    for tau, seconds in ((0.020, 1.27), (0.030, 1.90)):
        assert eager * tau == pytest.approx(seconds, abs=0.01)
    tokens = eager_tokens(OUTPUT, 2.5, 0.0, 2.5 / eager)
    share = float(relay_token_share(np.ones(1), np.ones(1), np.full(1, OUTPUT), tokens[None]))
    assert tokens == 64.0
    assert share == pytest.approx(2.5 / (39e-3 * OUTPUT), rel=0.01)
    assert pytest.approx(15.1, abs=0.05) == (1 - 0.062) / 0.062  # the stated 15.2 is this ratio, not the payload's


def test_relay_slots_do_not_depend_on_its_speed() -> None:
    """10 requests/s whose transfer takes 2.5 s keep 25 slots busy at 20 as at 39 ms (the output outlasts it)."""
    for tau in (0.020, 0.039):
        used = relay_slots(10.0, np.ones(1), np.full(1, OUTPUT), np.full(1, 2.5), np.zeros(1), np.full(1, tau))
        assert float(used) == pytest.approx(25.0, rel=1e-12)


def test_decode_side_cache_saves_ten_times() -> None:
    """At 90 % hit a tenth of the bytes crosses the line."""
    model = load_model("deepseek-v3.2")
    whole = float(transfer_bytes(model, 65_536.0, 0.0, "fp8"))
    assert whole / float(transfer_bytes(model, 65_536.0, 0.9, "fp8")) == pytest.approx(10.0, rel=1e-9)


def test_time_of_23_gigabytes_on_the_line() -> None:
    """23 GB take 18.4 s on 10 Gbit/s, a tenth of them 1.84 s: the published 1 to 20 s."""
    assert float(transfer_time_s(23 * GB, 10e9 / 8, 1.0, 0.0)) == pytest.approx(18.4, rel=1e-12)
    assert float(transfer_time_s(2.3 * GB, 10e9 / 8, 1.0, 0.0)) == pytest.approx(1.84, rel=1e-12)
    assert pytest.approx(5 * GB, rel=1e-12) == 100_000 * 50 * KB  # "GB class" for a request of 100K


def test_flagship_kv_is_the_full_context() -> None:
    """23 GB for 80 requests of 64K at 90 % hit on a V4-Pro-class model: 4.39 KB/token if that is the whole context,
    43.9 if only the missing tenth. Our V4-Pro card has 5.1 in fp8: the first reading."""
    per_token = 23 * GB / (80 * 65_536)
    assert per_token == pytest.approx(4.39 * KB, rel=1e-3)
    ours = float(kv_bytes(load_model("deepseek-v4-pro"), 65_536.0, "fp8")) / 65_536
    print(f"\nV4-Pro: {ours:.0f} B/token, published {per_token:.0f}")
    assert ours == pytest.approx(per_token, rel=0.2)
    assert abs(ours - per_token) < abs(ours - 10 * per_token)
