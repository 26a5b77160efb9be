"""Pools that hold different KV formats: what crosses, who converts, how long it takes and whose time it is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from pddplan.errors import Excuse
from pddplan.llm.catalogue import load_model
from pddplan.llm.kv import kv_bytes, transfer_bytes
from pddplan.perf.candidates import candidate_instances
from pddplan.perf.curves import load_curves
from pddplan.perf.service import RooflineDecode, RooflinePrefill, decode_service, prefill_service
from pddplan.serve.context import Context, build_context
from pddplan.serve.conversion import conversion_bytes_per_s, stretch_of
from pddplan.serve.deployment import Deployment, LineChoice, Pool
from pddplan.serve.equilibrium import Case, Flow, flow_at
from pddplan.serve.evaluate import evaluate
from pddplan.serve.line_stage import Transfer, transfer
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Role

MODEL = "llama-3.1-8b"  # attention only: fp8 is half of bf16 in every byte
SCENARIO = """
name: formats
model: llama-3.1-8b
precision: {weights: bf16, kv_cache: fp8}
workload:
  request_rate_per_s: 4
  prompt_tokens: 16K
  output_tokens: 128
  prefix_hit_rate: {histogram: {0.95: 0.7, 0.5: 0.3}}
sites:
  - {name: north, roles: [prefill, relay_decode], chips: [PREFILL, RELAY]}
  - {name: west, roles: [main_decode], chips: [MAIN]}
links:
  - {between: [north, west], rtt_ms: 8, streams: 4, tiers: [{gbit_per_s: 100, usd_per_hour: 5}]}
slo: {ttft_s: {p99: 10}, tpot_ms: {p90: 60}}
"""
A100, H20 = "nvidia-a100-80g-sxm", "nvidia-h20-96g"
LAYERS = 32


def chip(name: str, kv_cache: str | None = None) -> str:
    stated = f", precision: {{kv_cache: {kv_cache}}}" if kv_cache else ""
    return f"{{chip: {name}, max: 64, usd_per_hour: 1, parallelism: {{tp: [2], pp: [1]}}{stated}}}"


@cache
def world(prefill: str, relay: str, main: str, *overrides: str) -> Context:
    text = SCENARIO.replace("PREFILL", prefill).replace("RELAY", relay).replace("MAIN", main)
    return build_context(load_scenario_text(text, overrides=overrides), load_model(MODEL), 0.8)


def plan(context: Context, relays: int = 0) -> Deployment:
    north, west = context.scenario.sites

    def pool(role: Role, count: int) -> Pool:
        site = west if role == "main_decode" else north
        offer = site.offers[1 if role == "relay_decode" else 0]
        scenario = context.scenario
        instance = candidate_instances(offer, context.model, scenario.engine, scenario.precision, role)[0][0]
        service = prefill_service(instance) if role == "prefill" else decode_service(instance)
        assert not isinstance(service, Excuse)
        return Pool(role, site, offer, service, count)

    line = LineChoice(context.scenario.links[0], 0, 1, "north", "west")
    relay = pool("relay_decode", relays) if relays else None
    return Deployment(pool("prefill", 4), relay, pool("main_decode", 4), line=line)


def stages(context: Context, deployment: Deployment) -> tuple[PrefillStage, Transfer]:
    assert deployment.prefill is not None
    stage = context.prefill_stage(deployment.prefill, context.rate, deployment.main, deployment.relay)
    assert not isinstance(stage, Excuse)
    return stage, transfer(context.demand, deployment, stage, context.nic_goodput)


def at(context: Context, deployment: Deployment, held: float, threshold_s: float) -> Flow:
    flow = flow_at(Case(context, deployment, *stages(context, deployment), context.rate), held, threshold_s)
    assert not isinstance(flow, Excuse)
    return flow


def seconds(sizes: np.ndarray, name: str) -> np.ndarray:
    """By hand: read in one format, written in the other, on two chips at the rate that a stream reaches."""
    offered = next(o for s in OFFERS.scenario.sites for o in s.offers if o.chip.id == name)
    return sizes * 1.5 / (2 * offered.chip.memory_bytes_per_s * load_curves(offered.chip).stream.eta_max)


OFFERS = world(chip(A100), chip(H20), chip(H20))
TO_H20 = world(chip(A100), chip(A100), chip(H20))  # the sender reads bf16 alone, main decode holds fp8
TO_A100 = world(chip(H20), chip(H20), chip(A100))  # the other way round
SAME = world(chip(H20), chip(H20), chip(H20))


# ---------------------------------------------------------------- equal formats


def test_nothing_converts_where_all_hold_the_same() -> None:
    deployment = plan(SAME, relays=2)
    stage, move = stages(SAME, deployment)
    assert deployment.prefill is not None
    assert stage is SAME.prefill_stage(deployment.prefill, SAME.rate)
    assert (move.kv_format, move.main_converts_s, move.relay_converts_s) == ("fp8", None, None)
    assert SAME.demand_on(deployment.prefill.offer) is SAME.demand
    assert not SAME.demand.others  # no other format was ever worked out
    assert at(SAME, plan(SAME), 0.5, np.inf).main.stretch == 1.0


def test_a_scenario_in_bf16_is_as_one_in_which_all_state_bf16() -> None:
    """Main decode, the line and prefill then hold bf16 either way; but for the atoms, which are the same here."""
    everywhere = world(chip(H20), chip(H20), chip(A100), "precision.kv_cache=bf16")
    stated = world(chip(H20, "bf16"), chip(H20, "bf16"), chip(A100))
    found = evaluate(everywhere, plan(everywhere, 2))
    assert found.slo and found.slo == evaluate(stated, plan(stated, 2)).slo
    assert found.line is not None and found.line == evaluate(stated, plan(stated, 2)).line


# ---------------------------------------------------------------- the line


@pytest.mark.parametrize("context", [TO_H20, TO_A100])
def test_the_line_carries_bf16_where_one_end_lacks_fp8(context: Context) -> None:
    _, move = stages(context, plan(context))
    atoms = context.demand.atoms
    held = transfer_bytes(context.model, atoms.prompt, atoms.cached / atoms.prompt, "bf16")
    assert move.kv_format == "bf16"
    assert move.size[0] == pytest.approx(held, rel=1e-12)
    assert move.size == pytest.approx(2 * stages(SAME, plan(SAME))[1].size, rel=1e-12)


def test_the_line_carries_fp8_where_both_read_it() -> None:
    """Main decode is stated to hold bf16, and reads what comes."""
    context = world(chip(H20), chip(H20), chip(H20, "bf16"))
    _, move = stages(context, plan(context))
    assert move.kv_format == "fp8" and move.main_converts_s is not None
    assert move.size == pytest.approx(stages(SAME, plan(SAME))[1].size)


def test_pools_hold_their_own_format() -> None:
    tokens = np.array([16384.0])
    for context, prefill, main in ((TO_H20, "bf16", "fp8"), (TO_A100, "fp8", "bf16")):
        deployment = plan(context)
        assert deployment.prefill is not None and deployment.main is not None
        for pool, kv_format in ((deployment.prefill, prefill), (deployment.main, main)):
            assert context.demand_on(pool.offer).kv_at(tokens) == kv_bytes(context.model, tokens, kv_format)
            assert isinstance(pool.service, RooflinePrefill | RooflineDecode)
            assert pool.service.instance.kv_cache == kv_format
        flow = at(context, deployment, 0.5, np.inf)
        assert flow.main.kv_running == kv_bytes(context.model, np.asarray(flow.main.context), main)
        whole = context.demand.atoms.prompt * float(kv_bytes(context.model, np.asarray(1.0), main))
        under_way = context.rate * float(((flow.line.weight * flow.line.line_time) @ whole).sum())
        assert flow.main.under_way_bytes == pytest.approx(under_way)


# ---------------------------------------------------------------- main decode converts


def test_main_decode_converts_what_it_gets() -> None:
    _, move = stages(TO_H20, plan(TO_H20))
    assert move.main_converts_s is not None
    assert move.main_converts_s == pytest.approx(seconds(move.size, H20), rel=1e-12)


def test_the_last_layer_is_converted_after_its_last_byte() -> None:
    """Against main decode that holds bf16, all else equal: one layer's conversion is what the way gets longer."""
    plain = world(chip(A100), chip(A100), chip(H20, "bf16"))
    held = stages(plain, plan(plain))[1]
    _, move = stages(TO_H20, plan(TO_H20))
    assert held.main_converts_s is None and move.main_converts_s is not None
    for factor in (1.0, 3.0):
        more = move.exposure.at(factor) - held.exposure.at(factor)
        assert more[..., 0] == pytest.approx(move.main_converts_s / LAYERS, rel=1e-6)


def test_a_slow_conversion_sets_the_pace() -> None:
    """Of two stages in a row the slower counts whole, the quicker for its first or last layer."""
    deployment, slow = plan(TO_H20), 2e7
    stage, _ = stages(TO_H20, deployment)
    move = transfer(TO_H20.demand, deployment, stage, TO_H20.nic_goodput, lambda pool: slow)
    whole = move.size * 1.5 / slow
    found = move.exposure.at(1.0)[..., 0]
    assert found == pytest.approx(whole * (1 + 1 / LAYERS) - stage.time_s + move.ramp_s + move.delay_s, rel=0.05)


def test_conversion_lengthens_main_decodes_steps() -> None:
    """As extend passes do: 1/(1 - rate x E[t]/I) of a mix in which half the prefixes are held."""
    deployment = plan(TO_H20)
    flow = at(TO_H20, deployment, 0.5, np.inf)
    _, move = stages(TO_H20, deployment)
    assert move.main_converts_s is not None and deployment.main is not None
    weight = TO_H20.demand.atoms.weight
    mean = 0.5 * float(weight @ move.main_converts_s[0]) + 0.5 * float(weight @ move.main_converts_s[1])
    assert flow.main.stretch == pytest.approx(1 / (1 - TO_H20.rate * mean / deployment.main.instances), rel=1e-12)
    assert flow.main.stretch > 1.0001


# ---------------------------------------------------------------- prefill converts


def test_prefill_converts_what_main_decode_can_not_read() -> None:
    """Into T_P and into the pool's load: as if main decode held no prefix, unless that share is given."""
    deployment = plan(TO_A100)
    assert deployment.prefill is not None
    stage, move = stages(TO_A100, deployment)
    plain = TO_A100.prefill_stage(deployment.prefill, TO_A100.rate)
    assert not isinstance(plain, Excuse) and move.main_converts_s is None
    weight, cold = TO_A100.demand.atoms.weight, seconds(move.size[1], H20)
    assert stage.saturated_s - plain.saturated_s == pytest.approx(float(weight @ cold), rel=1e-9)
    alone = TO_A100.prefill_times(deployment.prefill)
    merged = stage.time_s - alone.fetch - cold
    low, high = np.minimum(alone.alone, alone.shared), np.maximum(alone.alone, alone.shared)
    assert np.all(merged >= low * (1 - 1e-9)) and np.all(merged <= high * (1 + 1e-9))


def test_a_given_share_of_held_prefixes_counts() -> None:
    hits = TO_A100.demand.atoms.hit_rate
    context = world(chip(H20), chip(H20), chip(A100), f"workload.decode_prefix_hit_rate={hits / 2!r}")
    deployment = plan(context)
    assert deployment.prefill is not None
    plain = context.prefill_stage(deployment.prefill, context.rate)
    stage, move = stages(context, deployment)
    assert not isinstance(plain, Excuse)
    mean = 0.5 * float(context.demand.atoms.weight @ seconds(move.size.sum(axis=0), H20))
    assert stage.saturated_s - plain.saturated_s == pytest.approx(mean, rel=1e-9)


# ---------------------------------------------------------------- the relay


def test_the_relay_converts_where_prefill_has_bf16_alone() -> None:
    context = world(chip(A100), chip(H20), chip(H20))
    deployment = plan(context, relays=2)
    _, move = stages(context, deployment)
    wide = kv_bytes(context.model, context.demand.atoms.prompt, "bf16")
    took = seconds(np.asarray(wide), H20)
    assert move.relay_converts_s == pytest.approx(took, rel=1e-12)
    held = world(chip(A100), chip(H20, "bf16"), chip(H20))
    assert move.rdma_s - stages(held, plan(held, relays=2))[1].rdma_s == pytest.approx(took / LAYERS, rel=1e-6)
    flow = at(context, deployment, 0.5, 0.0)  # every request goes by the relay
    assert flow.ways is not None and flow.relay is not None and deployment.relay is not None
    mean = float(flow.ways.weight @ took[flow.ways.atom])
    assert flow.ways.converts_s == pytest.approx(mean, rel=1e-12)
    table = context.step_surface(deployment.relay).table(flow.relay.context, stretch_of(context.rate * mean / 2))
    assert flow.relay.tau_s == pytest.approx(table.at(max(flow.relay.requests / 2, 1.0)), rel=1e-6)


def test_prefill_converts_the_whole_cache_for_a_relay_without_fp8() -> None:
    """The line alone gets fp8; with the relay in the plan, prefill makes a bf16 copy of KV(L)."""
    context = world(chip(H20), chip(A100), chip(H20))
    deployment = plan(context, relays=2)
    stage, move = stages(context, deployment)
    plain, _ = stages(context, plan(context))
    wide = np.asarray(kv_bytes(context.model, context.demand.atoms.prompt, "bf16"))
    more = stage.saturated_s - plain.saturated_s
    assert (move.kv_format, move.relay_converts_s) == ("fp8", None)
    assert more == pytest.approx(float(context.demand.atoms.weight @ seconds(wide, H20)), rel=1e-9)


# ---------------------------------------------------------------- physics


@pytest.mark.parametrize("context", [TO_H20, TO_A100, world(chip(A100), chip(H20), chip(H20))])
@pytest.mark.parametrize("relays", [0, 2])
def test_more_memory_bandwidth_where_it_converts_is_never_worse(context: Context, relays: int) -> None:
    """Of the conversion alone: the same services, on chips of other bandwidth.

    TPOT but for what prefill gives on of its own rhythm: a pool that is busier lets requests go more evenly.
    """
    before: list[float] | None = None
    for factor in (0.05, 1.0, 2.0, 50.0):
        deployment = plan(context, relays)
        faster = replace(deployment, **{p.role.split("_")[0]: _with_bandwidth(p, factor) for p in deployment.pools})
        found = evaluate(build_context(context.scenario, context.model, 0.8), faster)
        shown = [s for s in found.slo if s.metric in ("ttft", "tpot")]
        values = [s.value_s for s in shown]
        assert len(values) >= 4
        within = [1e-9 if s.metric == "ttft" else 5e-4 for s in shown]
        assert before is None or all(b >= v * (1 - w) for b, v, w in zip(before, values, within, strict=True))
        before = values


def _with_bandwidth(pool: Pool, factor: float) -> Pool:
    kind = replace(pool.offer.chip, memory_bytes_per_s=pool.offer.chip.memory_bytes_per_s * factor)
    made = replace(pool, offer=replace(pool.offer, chip=kind))
    assert conversion_bytes_per_s(made) == pytest.approx(factor * conversion_bytes_per_s(pool))
    return made


def test_a_chip_that_reads_fp8_is_never_worse_than_one_that_does_not() -> None:
    """The same chips, once said to hold bf16: more bytes on the line, longer first tokens."""
    wide = world(chip(H20, "bf16"), chip(H20, "bf16"), chip(H20, "bf16"))
    narrow, broad = evaluate(SAME, plan(SAME)), evaluate(wide, plan(wide))
    assert narrow.line is not None and broad.line is not None
    assert broad.line.bytes_per_request >= 2 * narrow.line.bytes_per_request * (1 - 1e-9)
    assert narrow.slo
    for a, b in zip(narrow.slo, broad.slo, strict=True):
        assert a.value_s <= b.value_s * (1 + 1e-9)
