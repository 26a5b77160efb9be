"""A scenario's values arrive in SI units, whatever the notation, and every default is an assumption."""

from __future__ import annotations

import io
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pddplan.errors import InputError
from pddplan.spec.catalogue import engine_ids, examples_dir, load_engine
from pddplan.spec.load import load_scenario, load_scenario_text
from pddplan.spec.profiles import ENGINE_KEYS, ENGINE_NUMBERS
from pddplan.spec.starter import starter_text
from pddplan.spec.types import ChipPrecision, Precision, Scenario
from tests.spec.scenarios import EVERYTHING, SMALL, names

# ---------------------------------------------------------------- the contract's scenarios


def test_small_scenario_in_si_units() -> None:
    s = load_scenario_text(SMALL, "a.yaml")
    assert (s.name, s.model, s.precision) == ("small", "deepseek-v3.2", Precision("fp8", "fp8"))
    assert s.workload.request_rate_per_s == 10
    assert s.workload.prompt_tokens.fixed == 65_536
    assert s.workload.output_tokens.fixed == 1_024
    assert (s.workload.prefix_hit_rate.mean, s.workload.prefix_hit_rate.share_above_95) == (0.9, 0.75)
    assert [site.roles for site in s.sites] == [("prefill", "relay_decode"), ("main_decode",)]
    h800, h20 = s.sites[0].offers[0], s.sites[1].offers[0]
    assert (h800.chip.id, h800.max_chips, h800.usd_per_hour, h800.owned_chips) == ("nvidia-h800-sxm", 96, 2.0, 0)
    assert (h20.chip.id, h20.key) == ("nvidia-h20-96g", "sites[1].chips[0]")
    line = s.links[0]
    assert (line.between, line.rtt_s, line.streams, line.stream_bytes_per_s) == (("north", "west"), 0.008, 1, 1.25e8)
    assert [(t.gbit_per_s, t.usd_per_hour) for t in line.tiers] == [(10, 2.3), (100, 23)]
    assert [(x.metric, x.quantile, x.limit_s) for x in s.slo] == [
        ("ttft", 0.5, 3), ("ttft", 0.9, 8), ("ttft", 0.99, 20), ("tpot", 0.9, 0.05)
    ]  # fmt: skip
    assert s.prices is not None and s.prices.cached_input_usd_per_mtok == 0.055
    assert s.lines["sites[1].chips[0].max"] == 15 and s.lines["slo.tpot_ms.p90"] == 23


def test_every_key_of_the_contract() -> None:
    s = load_scenario_text(EVERYTHING)
    e = s.engine
    assert (e.name, e.chunk_tokens, e.step_overhead_s, e.tail_merge) == ("sglang", 8192, 0.004, "cut")
    assert (e.layer_overhead_s, e.router_delay_s, e.reserve_bytes) == pytest.approx((3e-5, 2e-3, 3e9))
    assert (e.memory_fraction, e.max_batch, e.mtp_accepted_tokens) == (0.88, 256, 1.8)
    assert (e.expert_imbalance, e.context_sigma) == (1.2, 0.5)
    assert (e.launch_share, e.expert_layer_overhead_s, e.request_overhead_s) == (0.6, 11e-6, 12e-6)
    assert (e.poll_steps, e.first_output_s, e.first_output_steps, e.expert_first_output_s) == (10, 0.03, 2, 900e-6)
    assert (e.prompt_factor, e.handoff_s) == (1.1, 0.07)
    assert not e.decode_prefix_sharing and e.overlap_expert_communication and e.equal_pages
    assert (e.memory_covers, e.sampler_bytes_per_logit) == ("static", 10)
    assert (e.exchange_bytes, e.workspace_bytes) == pytest.approx((1e9, 1e8))
    assert (s.objective.name, s.objective.max_usd_per_hour) == ("goodput", pytest.approx(500))
    assert (dict(s.spares), dict(s.max_utilization)) == ({"prefill": 1}, {"prefill": 0.9})
    w = s.workload
    assert (w.name, w.decode_prefix_hit_rate, w.burstiness) == ("agents", 0.85, 1.5)
    assert (w.prefix_cache, w.first_token, w.output_forecast) == ("sticky", "on_prefill", (0.9, 0.8))
    assert w.hourly_load is not None and len(w.hourly_load) == 24
    assert (w.sessions.turns, w.sessions.gap_p50_s, w.sessions.gap_p90_s) == pytest.approx((12, 10, 100))
    assert (w.prefix_hit_rate.share_above_95, w.prefix_hit_rate.zero_share) == (0.5, 0.05)
    ascend, h20 = s.sites[0].offers
    assert ascend.usd_per_hour == pytest.approx(7993.5 / 7.3 / 730)  # 1.5
    assert (ascend.owned_chips, ascend.buy_in, ascend.precision) == (128, 16, ChipPrecision("int8"))
    assert (ascend.parallelism.tp, ascend.parallelism.ep, ascend.parallelism.pp) == ((8, 16), (32,), None)
    assert dict(ascend.instances) == {"prefill": 4}
    prefill, decode = ascend.measured["prefill"], ascend.measured["main_decode"]
    assert prefill.cached_counted and prefill.tokens_per_s == 73_700 and prefill.chips_per_instance == 8
    assert prefill.ttft_s == ((1024, 0.44), (8192, 0.72), (32768, 1.84), (131072, 7.4))
    assert (decode.batch, decode.tpot_s, decode.ttft_s) == (256, pytest.approx(0.047), ())
    assert h20.usd_per_hour == pytest.approx(35_040 / (4 * 8760)) and h20.chip.all_in_watts == 1400
    site, custom = s.sites[0], s.sites[1].offers[0]
    assert site.cache is not None and site.cache.host_bytes_per_chip == 128e9
    assert (site.cache.host_bytes_per_s, site.cache.remote_bytes, site.cache.remote_bytes_per_s) == (25e9, 10e12, 6e9)
    assert site.cache.usd_per_byte_hour == pytest.approx(0.5e-12)
    assert site.power is not None and (site.power.max_watts, site.power.usd_per_kwh, site.power.pue) == (9e5, 0.08, 1.2)
    assert (custom.chip.id, custom.usd_per_hour) == ("x", pytest.approx(1.0))
    assert len(s.sites[1].roles) == 4
    line = s.links[0]
    assert (line.goodput, line.shared_with_others, line.streams, line.max_lines) == (0.85, 0.2, 4, 3)
    assert line.stream_bytes_per_s == 2.5e8
    assert line.tiers[0].usd_per_hour == pytest.approx(20)
    assert dict(line.tiers[0].usd_per_byte) == pytest.approx({"north": 2e-11, "west": 0.0})
    burst = line.tiers[1].burst_95
    assert burst is not None and burst.commit_bytes_per_s == 2.5e8
    assert burst.usd_per_byte_per_s_hour * 1.25e8 * 730 == pytest.approx(73)  # one Gbit/s for a month
    assert [w.share for w in s.slo_within] == [0.95]
    assert [(x.metric, x.quantile, x.limit_s) for x in s.slo][2] == ("pause", 0.999, 0.5)
    assert s.prices is not None and s.prices.output_usd_per_mtok == pytest.approx(2.0)
    assert s.cny_per_usd == 7.3


@pytest.mark.parametrize("file", sorted(path.name for path in examples_dir().glob("*.yaml")))
def test_examples_load(file: str) -> None:
    assert load_scenario(examples_dir() / file).sites


def test_starter_is_the_contract_scenario() -> None:
    ours, contract = yaml.safe_load(starter_text()), yaml.safe_load(SMALL)
    assert {**ours, "name": "small"} == contract
    assert starter_text().count("#") > 10


def test_fleet_is_the_published_day() -> None:
    w = load_scenario(examples_dir() / "deepseek_fleet.yaml").workload
    tokens_in = w.request_rate_per_s * (w.prompt_tokens.fixed or 0) * 86_400
    tokens_out = w.request_rate_per_s * (w.output_tokens.fixed or 0) * 86_400
    assert tokens_in == pytest.approx(608e9, rel=1e-4)
    assert tokens_out == pytest.approx(168e9, rel=1e-3)
    assert tokens_in / 86_400 / 73_700 + tokens_out / 86_400 / 14_800 == pytest.approx(226.75, rel=1e-3)
    # the published mean length of the KV cache per output token
    assert (w.prompt_tokens.fixed or 0) + (w.output_tokens.fixed or 0) / 2 == pytest.approx(4989, abs=1)


# ---------------------------------------------------------------- notation doesn't matter


def shuffled(node: Any, rng: random.Random) -> Any:
    if isinstance(node, dict):
        items = list(node.items())
        rng.shuffle(items)
        return {k: shuffled(v, rng) for k, v in items}
    return [shuffled(v, rng) for v in node] if isinstance(node, list) else node


def bare(scenario: Scenario) -> Scenario:
    return replace(scenario, lines={})


@pytest.mark.parametrize("text", [SMALL, EVERYTHING])
@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_key_order_and_json_change_nothing(text: str, indent: Any) -> None:
    data = yaml.load(text, Loader=yaml.BaseLoader)  # all text, so that nothing is rewritten on the way
    expected = bare(load_scenario_text(text))
    rng = random.Random(7)
    for _ in range(5):
        mixed = shuffled(yaml.safe_load(text), rng)
        assert bare(load_scenario_text(json.dumps(mixed, indent=indent))) == expected
    as_yaml = shuffled(yaml.safe_load(text), rng)
    assert bare(load_scenario_text(yaml.safe_dump(as_yaml, sort_keys=False))) == expected
    assert set(data) == set(as_yaml)


def test_json_lines_are_those_of_the_file() -> None:
    text = json.dumps(yaml.safe_load(SMALL), indent=1)
    lines = load_scenario_text(text).lines
    rows = text.splitlines()
    assert '"request_rate_per_s"' in rows[lines["workload.request_rate_per_s"] - 1]
    assert '"max": 128' in rows[lines["sites[1].chips[0].max"] - 1]


def test_hash_is_of_the_data() -> None:
    one = load_scenario_text(SMALL).sha256
    assert load_scenario_text(SMALL.replace("usd_per_hour: 2.00", "usd_per_hour: 2") + "# end\n").sha256 == one
    assert load_scenario_text(SMALL, overrides=["workload.request_rate_per_s=10"]).sha256 == one
    assert load_scenario_text(SMALL, overrides=["workload.request_rate_per_s=11"]).sha256 != one
    assert len(one) == 64


def test_hash_covers_the_chip_file(tmp_path: Path) -> None:
    chip = "name: mine\nbf16_tflops: 400\nmemory_gb: 96\nmemory_gb_per_s: 2000\ninterconnect_gb_per_s: 200\n"
    (tmp_path / "s.yaml").write_text(SMALL.replace("nvidia-h20-96g", "mine.yaml"))
    (tmp_path / "mine.yaml").write_text(chip)
    first = load_scenario(tmp_path / "s.yaml")
    assert first.sites[1].offers[0].chip.memory_bytes == 96e9
    (tmp_path / "mine.yaml").write_text(chip.replace("2000", "2100"))
    assert load_scenario(tmp_path / "s.yaml").sha256 != first.sha256


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SMALL.encode())))
    assert bare(load_scenario("-")) == bare(load_scenario_text(SMALL, "<stdin>"))


def test_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    loaded = load_scenario(path)
    assert loaded.sha256 == load_scenario_text(SMALL).sha256
    assert loaded.lines["links[0].rtt_ms"] == 18


def test_aliases_and_merge_keys_are_data() -> None:
    text = SMALL.replace("{chip: nvidia-h800-sxm, max: 96,", "&a {chip: h800, max: 96,").replace(
        "{chip: nvidia-h20-96g, max: 128, usd_per_hour: 1.20}", "{<<: *a, max: 128}"
    )
    north, west = (site.offers[0] for site in load_scenario_text(text).sites)
    assert (north.chip, north.usd_per_hour, north.max_chips) == (west.chip, west.usd_per_hour, 96)
    assert west.max_chips == 128


def test_without_the_c_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_scenario_text(EVERYTHING)
    monkeypatch.delattr("yaml.CSafeLoader")
    assert load_scenario_text(EVERYTHING) == expected
    with pytest.raises(InputError, match="nested more than 50 deep"):
        load_scenario_text("a: " + "[" * 10_000)


def test_scalars_follow_yaml_1_2() -> None:
    text = SMALL.replace("request_rate_per_s: 10", "request_rate_per_s: 1e1").replace("name: small", "name: no")
    s = load_scenario_text(text)
    assert (s.workload.request_rate_per_s, s.name) == (10, "no")


# ---------------------------------------------------------------- defaults are said


DEFAULTS = {
    "precision.weights": "native",
    "precision.kv_cache": "bf16",
    "engine": "generic",
    "workload.burstiness": 1.0,
    "workload.prefix_cache": "affine",
    "workload.first_token": "after_transfer",
    "workload.sessions.turns": 30.0,
    "workload.sessions.seconds_between_turns": "p50 17, p90 129",
    "workload.prefix_hit_rate": 0.0,
    "sites[0].roles": "all",
    "sites[0].chips[0].buy_in": 8,
    "sites[0].chips[0].usd_per_hour": 2.0,
    "sites[0].cache.host_gb_per_chip": 0.0,
    "sites[0].cache.host_gb_per_s": 20.0,
    "sites[0].cache.remote_tb": 0.0,
    "sites[0].cache.remote_gb_per_s": 5.0,
    "sites[0].cache.usd_per_tb_hour": 0.0,
    "sites[0].power.usd_per_kwh": 0.0,
    "sites[0].power.pue": 1.2,
    "sites[0].chips[0].measured.prefill.cached_counted": "false",
    "links[0].goodput": 0.9,
    "links[0].shared_with_others": 0.0,
    "links[0].streams": 8,
    "links[0].stream_gbit_per_s": 1.0,
    "links[0].max_lines": 4,
    "links[0].tiers[0].usd_per_hour": 0.0,
    "links[0].tiers[0].usd_per_gb.from_b": 0.0,
    "slo": "none",
    "objective": "cost",
    "prices.cached_input_usd_per_mtok": 0.5,
}

SPARSE = """\
model: deepseek-v3
workload: {request_rate_per_s: 1, prompt_tokens: 100, output_tokens: 100}
sites:
  - name: a
    chips: [{chip: h800, max: 64, measured: {prefill: {chips_per_instance: 8, tokens_per_s: 100}}}]
    cache: {}
    power: {}
  - name: b
    chips: [{chip: h20, max: 64}]
links: [{between: [a, b], rtt_ms: 1, tiers: [{gbit_per_s: 10, usd_per_gb: {from_a: 0.01}}]}]
prices: {input_usd_per_mtok: 0.5, output_usd_per_mtok: 2}
"""


def test_every_default_is_an_assumption() -> None:
    s = load_scenario_text(SPARSE)
    told = {a.name: a for a in s.assumptions}
    for name, value in DEFAULTS.items():
        assert told[name].value == value, name
        assert told[name].note, name
        assert told[name].source in ("default", "estimate", "catalogue"), name
    assert told["sites[0].chips[0].usd_per_hour"].source == "catalogue"
    assert "2025-02" in told["sites[0].chips[0].usd_per_hour"].note
    assert told["workload.sessions.turns"].note.endswith("kv-cache-tester")
    assert set(told) >= {a.name for a in load_engine("generic")[1]}
    assert set(told) >= {"nvidia-h800-sxm.all_in_kw"}  # the chip's own estimates


def test_what_is_given_is_no_assumption() -> None:
    told = names(load_scenario_text(EVERYTHING))
    given = [n for n in told if not n.startswith(("nvidia-", "huawei-", "x."))]
    assert sorted(given) == ["sites[0].chips[1].buy_in", "sites[1].chips[0].buy_in", "sites[1].roles"] + [
        "workload.output_tokens", "workload.prefix_hit_rate.shape", "workload.prompt_tokens"
    ]  # fmt: skip


def test_every_key_of_an_engine_that_is_given_is_taken() -> None:
    stated = yaml.safe_load(EVERYTHING)["engine"]
    assert set(stated) == {"name", *ENGINE_KEYS}
    engine = load_scenario_text(EVERYTHING).engine
    for key in ENGINE_KEYS:
        field, factor = ENGINE_NUMBERS.get(key, (key, None))
        value = 8192 if key == "chunk_tokens" else stated[key]
        assert getattr(engine, field) == (value if factor is None else pytest.approx(value * factor)), key


def test_assumption_names_are_unique() -> None:
    for text in (SMALL, EVERYTHING, SPARSE):
        listed = [a.name for a in load_scenario_text(text).assumptions]
        assert len(listed) == len(set(listed))


def test_a_stated_reserve_is_the_whole_reserve() -> None:
    """Scenarios of before know ``reserve_gb`` alone: it holds for chips that exchange as well."""
    engine = load_scenario_text(f"engine: {{name: vllm, reserve_gb: 3}}\n{SMALL}").engine
    assert (engine.reserve_bytes, engine.exchange_bytes) == pytest.approx((3e9, 0.0))
    both = load_scenario_text(f"engine: {{name: vllm, reserve_gb: 3, exchange_gb: 1}}\n{SMALL}").engine
    assert (both.reserve_bytes, both.exchange_bytes) == pytest.approx((3e9, 1e9))


def test_a_stated_fraction_replaces_what_is_set_aside() -> None:
    whole = load_scenario_text(f"engine: sglang\n{SMALL}")
    stated = load_scenario_text(f"engine: {{name: sglang, memory_fraction: 0.9}}\n{SMALL}")
    assert whole.engine.memory_fraction is None and stated.engine.memory_fraction == 0.9
    assert "engine.outside_mib" in names(whole) and "engine.outside_mib" not in names(stated)


# ---------------------------------------------------------------- short forms


def test_engine_by_name_in_any_case() -> None:
    for name in engine_ids():
        assert load_scenario_text(f"engine: {name.upper()}\n{SMALL}").engine.name == name


def test_plain_numbers_hold_for_all_roles() -> None:
    s = load_scenario_text(f"spares: 1\nmax_utilization: 0.8\n{SMALL}")
    assert set(s.spares.values()) == {1} and len(s.spares) == 4
    assert set(s.max_utilization.values()) == {0.8} and len(s.max_utilization) == 4


def test_number_per_gb_holds_both_ways() -> None:
    s = load_scenario_text(SMALL.replace("usd_per_hour: 2.3}", "usd_per_hour: 2.3, usd_per_gb: 0.02}"))
    assert dict(s.links[0].tiers[0].usd_per_byte) == pytest.approx({"north": 2e-11, "west": 2e-11})
    assert dict(s.links[0].tiers[1].usd_per_byte) == {"north": 0, "west": 0}


@pytest.mark.parametrize(
    ("price", "usd"),
    [
        ("usd_per_hour: 2", 2.0),
        ("usd_per_month: 1460", 2.0),
        ("usd_per_year: 17520", 2.0),
        ("cny_per_hour: 14.4", 2.0),
        ("cny_per_year: 126144", 2.0),
        ("usd_per_hour: {capex_usd: 70080, years: 4}", 2.0),
        ("usd_per_hour: {capex_cny: 504576, years: 4}", 2.0),
        ("capex_usd: 70080, years: 4, all_in_kw: 1.4", 2.0),
        ("capex_cny: 504576, years: 4", 2.0),
        ("usd_per_hour: 0", 0.0),
    ],
)
def test_chip_prices(price: str, usd: float) -> None:
    text = "exchange: {cny_per_usd: 7.2}\n" + SMALL.replace("usd_per_hour: 2.00", price)
    assert load_scenario_text(text).sites[0].offers[0].usd_per_hour == pytest.approx(usd)


def test_listed_prices() -> None:
    text = SMALL[: SMALL.index("prices:")] + "prices: DeepSeek-V4-Pro\n"
    s = load_scenario_text(text)
    assert s.prices is not None and s.prices.output_usd_per_mtok == 0.87
    assert names(s)["prices.output_usd_per_mtok"] == "catalogue"


def test_one_workload_in_a_list_and_slo_inside_it() -> None:
    data = yaml.safe_load(SMALL)
    data["workloads"] = [{"name": "chat", **data.pop("workload"), "slo": data.pop("slo")}]
    s = load_scenario_text(json.dumps(data))
    assert s.workload.name == "chat"
    assert s.slo == load_scenario_text(SMALL).slo
    assert "workloads[0].burstiness" in names(s)


def test_objectives() -> None:
    assert load_scenario_text(f"objective: goodput\n{SMALL}").objective.max_usd_per_hour is None
    assert load_scenario_text(f"objective: {{goodput: }}\n{SMALL}").objective.name == "goodput"
    assert load_scenario_text(f"objective: cost\n{SMALL}").objective.name == "cost"


@pytest.mark.parametrize(
    ("given", "buy_in", "note", "paid"),
    [
        ("max: 96", 8, "whole nodes", None),
        ("max: 8", 8, "whole nodes", None),
        ("max: 4", 8, "whole nodes, although max is 4", "4 rented chips are paid as 8. Write buy_in: 4 "),
        ("max: 12", 8, "whole nodes", "12 rented chips are paid as 16. Write buy_in: 4 "),
        ("max: 12, owned: 4", 8, "whole nodes", None),  # 8 are rented
        ("max: 4, owned: 4", 8, "whole nodes", None),  # none is
        ("max: 4, buy_in: 4", 4, None, None),
        ("max: 4, buy_in: 8", 8, None, "4 rented chips are paid as 8."),  # stated or by default: the same
    ],
)
def test_nodes_are_paid_whole_whatever_max_is(given: str, buy_in: int, note: str | None, paid: str | None) -> None:
    s = load_scenario_text(SMALL.replace("max: 96", given))
    assert s.sites[0].offers[0].buy_in == buy_in
    assert [a.note for a in s.assumptions if a.name == "sites[0].chips[0].buy_in"] == ([note] if note else [])
    told = [w for w in s.warnings if "rented chips are paid" in w]
    assert len(told) == (paid is not None) and (paid is None or paid in told[0])


def test_kilo_note_is_said_once() -> None:
    notes = [w for w in load_scenario_text(SMALL).warnings if "65,536" in w]
    assert len(notes) == 1
    assert not load_scenario_text(SMALL.replace("64K", "65536").replace("1K", "1024")).warnings


def test_crossed_slo_limits_are_a_warning() -> None:
    s = load_scenario_text(SMALL, overrides=["slo.ttft_s.p99=0.05"])
    assert [x.limit_s for x in s.slo if x.quantile == 0.99] == [0.05]
    assert any("slo.ttft_s" in w for w in s.warnings)


def test_numbers_are_finite() -> None:
    w = load_scenario_text(EVERYTHING).workload
    for lengths in (w.prompt_tokens, w.output_tokens):
        assert all(math.isfinite(v) for v in lengths.lognormal or ())


def test_model_callback_sees_name_and_folder(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    (tmp_path / "s.yaml").write_text(SMALL)
    load_scenario(tmp_path / "s.yaml", check_model=lambda name, base: seen.append((name, base)) or [])
    assert seen == [("deepseek-v3.2", str(tmp_path))]
