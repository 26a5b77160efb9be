"""The data of ``hardware/``: every file valid, every number with its origin, figures as published."""

from __future__ import annotations

import csv
import math
import re
from datetime import date
from functools import cache
from typing import Any

import pytest
import yaml

from pddplan.spec.catalogue import (
    catalogue_date,
    chip_from_mapping,
    chip_ids,
    engine_ids,
    hardware_dir,
    link_defaults,
    load_chip,
    load_engine,
)
from pddplan.spec.chips import FIGURE_KEYS, FOUR_NUMBERS
from pddplan.spec.datafile import CONFIDENCES
from tests.reference import reference_dir

CHIPS = chip_ids()
# Chips of which nobody published all four numbers: listed, and refused with what is missing.
INCOMPLETE = {
    "amd-mi308x": ("bf16_tflops", "interconnect_gb_per_s"),
    "biren-br106": FOUR_NUMBERS,
    "cambricon-mlu590": ("interconnect_gb_per_s",),
    "enflame-l600": ("bf16_tflops",),
    "enflame-s60": ("bf16_tflops",),
    "huawei-ascend-910b1": ("bf16_tflops",),
    "hygon-bw1000": ("bf16_tflops", "memory_gb_per_s", "interconnect_gb_per_s"),
    "hygon-k100": ("interconnect_gb_per_s",),
    "hygon-k100-ai": ("interconnect_gb_per_s",),
    "iluvatar-mr-v100": ("memory_gb_per_s", "interconnect_gb_per_s"),
    "kunlunxin-p800": ("memory_gb_per_s", "interconnect_gb_per_s"),
    "kunlunxin-r480": FOUR_NUMBERS,
    "metax-c500": ("interconnect_gb_per_s",),
    "metax-c550": ("bf16_tflops", "interconnect_gb_per_s"),
    "metax-c600": ("interconnect_gb_per_s",),
    "nvidia-rubin-cpx": ("interconnect_gb_per_s",),
    "thead-zhenwu-810e": ("bf16_tflops", "memory_gb_per_s"),
}
# Chips whose own figures lie outside what is plausible for their class: each file's notes say why they stand.
EYEBROWS = {
    "aws-trainium3": "fp8_tflops",
    "huawei-ascend-950dt": "interconnect_gb_per_s",
    "huawei-ascend-950pr": "interconnect_gb_per_s",
    "mthreads-s5000": "interconnect_gb_per_s",
    "nvidia-rtx-5090": "fp8_tflops",
    "nvidia-rubin-vr200-nvl72": "fp8_tflops fp4_tflops",
}


@cache
def raw(chip_id: str) -> dict[str, Any]:
    return yaml.safe_load((hardware_dir() / "chips" / f"{chip_id}.yaml").read_text())


def test_forty_seven_chips_are_plannable_and_seventeen_name_what_they_lack() -> None:
    lacking = {c: load_chip(c).missing for c in CHIPS if load_chip(c).missing}
    assert lacking == INCOMPLETE
    assert (len(CHIPS), len(CHIPS) - len(lacking)) == (64, 47)
    stated = [c for c in CHIPS if c not in lacking and "bf16_tflops" not in load_chip(c).defaulted]
    assert len(stated) == 45


@pytest.mark.parametrize("chip_id", CHIPS)
def test_a_file_gives_every_number_its_own_source_and_confidence(chip_id: str) -> None:
    data = raw(chip_id)
    numbers = {k: v for k, v in data.items() if k in FIGURE_KEYS and v is not None}
    if data.get("price"):
        numbers["price"] = data["price"]
    used = set()
    for key, number in numbers.items():
        assert isinstance(number, dict), f"{key} stands bare"
        assert number["confidence"] in CONFIDENCES and number["confidence"] != "input", key
        source = number["source"]
        used.add(source)
        text = data["sources"].get(source, source)
        # A name that isn't in `sources` is a slip, not a source: sources that stand for themselves are sentences.
        assert "http" in text or " " in text, f"{key}: {source!r} is not in sources"
    assert set(data["sources"]) == used & set(data["sources"]), "a source that no number uses"
    for key in ("aliases", "name", "vendor", "class", "status", "form", "checked", "notes"):
        assert data[key], key
    if not load_chip(chip_id).missing:
        assert data["topology"]
    assert date.fromisoformat(data["checked"]) <= date.fromisoformat(catalogue_date())


@pytest.mark.parametrize("chip_id", CHIPS)
def test_a_file_loads_and_its_four_dimensions_are_finite(chip_id: str) -> None:
    chip = load_chip(chip_id)
    assert chip.id == chip_id
    if chip.missing:
        lacking = {k for k in FOUR_NUMBERS if raw(chip_id).get(k) is None}
        assert set(chip.missing) in (lacking, lacking - {"bf16_tflops"})  # another format stands in for bf16
        return
    for value in (*chip.peak_flops.values(), chip.memory_bytes, chip.memory_bytes_per_s, chip.scale_up_bytes_per_s):
        assert value > 0 and math.isfinite(value)
    assert chip.scale_up_domain % chip.chips_per_node == 0 or chip.scale_up_domain < chip.chips_per_node
    assert "bf16" in chip.peak_flops and len(chip.peak_flops) > 1
    assert (chip.usd_per_hour is None) == (chip.price_date == "")


@pytest.mark.parametrize("chip_id", [c for c in CHIPS if not load_chip(c).missing])
def test_a_catalogue_file_is_a_valid_chip_of_a_user_and_raises_no_eyebrow(chip_id: str) -> None:
    chip = chip_from_mapping(raw(chip_id), "chip")
    assert not isinstance(chip, list), [str(p) for p in chip]
    raised = [w.split(":")[0].removeprefix("chip.") for w in chip.warnings]
    assert raised == EYEBROWS.get(chip_id, "").split()


@pytest.mark.parametrize("chip_id", [c for c in CHIPS if "pair_gb_per_s" in raw(c)])
def test_pairs_add_up_to_the_interconnect(chip_id: str) -> None:
    """A mesh has a link to each of the others, a torus two in each of 2 or 3 directions."""
    chip = load_chip(chip_id)
    assert chip.scale_up_pair_bytes_per_s is not None
    links = chip.scale_up_bytes_per_s / chip.scale_up_pair_bytes_per_s
    assert links == pytest.approx(round(links))
    assert round(links) in ({4, 6} if raw(chip_id)["topology"] == "torus" else {chip.scale_up_domain - 1})


def test_reported_memory_is_what_is_sold_within_eight_percent() -> None:
    """GB of a data sheet lie between 1e9 and 2^30 bytes: nvidia-smi tells where."""
    for chip_id in CHIPS:
        chip = load_chip(chip_id)
        if "memory_mib" in chip.provenance and chip.memory_gb_nominal:
            assert 1.0 <= chip.memory_bytes / (chip.memory_gb_nominal * 1e9) <= 1.075, chip_id


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("nvidia-a100-80g-sxm", "nvidia-h100-sxm"),
        ("nvidia-h100-sxm", "nvidia-h200-sxm"),
        ("nvidia-h200-sxm", "nvidia-b200-sxm"),
        ("nvidia-b200-sxm", "nvidia-b300-sxm"),
        ("nvidia-gb200-nvl72", "nvidia-gb300-nvl72"),
        ("nvidia-h800-sxm", "nvidia-h100-sxm"),
        ("nvidia-a800-80g-sxm", "nvidia-a100-80g-sxm"),
        ("nvidia-h20-96g", "nvidia-h20-141g"),
        ("nvidia-l20", "nvidia-l40s"),
        ("amd-mi300x", "amd-mi325x"),
        ("amd-mi325x", "amd-mi355x"),
        ("huawei-ascend-910b3", "huawei-ascend-910b2"),
        ("huawei-ascend-910b2", "huawei-ascend-910c"),
        ("google-tpu-v5e", "google-tpu-v6e"),
        ("google-tpu-v5p", "google-tpu7x-ironwood"),
    ],
)
def test_a_newer_or_uncut_chip_is_not_worse(older: str, newer: str) -> None:
    a, b = load_chip(older), load_chip(newer)
    for dtype in ("bf16", "fp8"):
        assert b.peak_flops.get(dtype, math.inf) >= a.peak_flops.get(dtype, 0.0)
    assert (b.memory_gb_nominal or 0) >= (a.memory_gb_nominal or math.inf)
    assert b.memory_bytes_per_s >= a.memory_bytes_per_s
    assert b.scale_up_bytes_per_s >= a.scale_up_bytes_per_s


def test_the_traps_of_the_data_sheets() -> None:
    h800, h100 = load_chip("h800"), load_chip("h100")
    assert h800.scale_up_bytes_per_s == 200e9 and h100.scale_up_bytes_per_s == 450e9  # 400 and 900 in print
    assert h100.peak_flops["fp8"] == 1979e12  # 3,958 in print, with sparsity
    ascend = load_chip("910c")
    assert ascend.memory_bytes == 128e9  # two dies of 64 GB are one chip
    assert ascend.peak_flops == {
        "bf16": 707.8e12,
        "fp16": 707.8e12,
        "int8": 1415.8e12,
    }  # without the vector unit; no fp8
    assert load_chip("910b2").memory_bytes_per_s == 1600e9  # not the 392 of its link
    for ultra in ("b300", "gb300"):
        chip = load_chip(ultra)
        assert chip.peak_flops["int8"] < chip.peak_flops["bf16"] / 10
    assert load_chip("h20").memory_bytes == 97871 * 2**20
    assert load_chip("mi300x").scale_up_pair_bytes_per_s == 64e9


# ---------------------------------------------------------------- against the collected facts


@cache
def reference() -> dict[str, dict[str, Any]]:
    path = reference_dir() / "hardware" / "hardware.yaml"
    with path.open(encoding="utf-8") as stream:
        data = yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {c["id"]: c for c in data["chips"]}


# Where we read the same facts differently, and why.
ON_PURPOSE = {
    ("huawei-ascend-910c", "bf16_tflops"): 707.8,  # 752 includes the vector unit; GEMMs use the cubes
    ("huawei-ascend-910c", "fp16_tflops"): 707.8,
    ("huawei-ascend-910c", "int8_tflops"): 1415.8,
}
# The nominal peak of the RTX 5090 lies below what was measured: the facts say to plan with the measurement.
MEASURED = {"nvidia-rtx-5090"}


# Our key -> what the facts call it where they give one number a confidence of its own.
FACT_OF = {
    **{f"{d}_tflops": "peak_tflops" for d in ("bf16", "fp16", "fp8", "int8", "fp4")},
    "memory_gb": "memory_gb",
    "memory_gb_per_s": "memory_bandwidth_gbps",
    "interconnect_gb_per_s": "scale_up",
    "scale_out_gbit_per_s": "scale_out_gbit_per_chip",
    "chips_per_node": "chips_per_node",
}


def published(c: dict[str, Any]) -> dict[str, Any]:
    price = c.get("price_usd_per_hour") or {}
    peaks = {**c["peak_tflops"], **(c["measured_tflops"] if c["id"] in MEASURED else {})}
    if c["id"] in MEASURED:
        peaks["fp16"] = None  # not measured by itself
    return {
        **{f"{d}_tflops": peaks[d] for d in ("bf16", "fp16", "fp8", "int8", "fp4")},
        "memory_gb": c["memory_gb"],
        "memory_mib": c.get("memory_mib_reported"),
        "memory_gb_per_s": c["memory_bandwidth_gbps"],
        "interconnect_gb_per_s": c["scale_up"]["bandwidth_gbps_unidirectional"],
        "pair_gb_per_s": c["scale_up"].get("p2p_gbps_unidirectional"),
        "domain_chips": c["scale_up"]["domain_chips"],
        "scale_out_gbit_per_s": c["scale_out_gbit_per_chip"],
        "chips_per_node": c["chips_per_node"],
        "tdp_watts": c["tdp_w"],
        "all_in_kw": c.get("all_in_kw_per_chip"),
        "usd_per_hour": price.get("value"),
    }


def test_every_chip_of_the_facts_is_there_and_as_plannable_as_they_allow() -> None:
    facts = {name: published(c) for name, c in reference().items()}
    assert set(facts) == set(CHIPS)
    rest = [k for k in FOUR_NUMBERS if k != "bf16_tflops"]
    whole = {name for name, f in facts.items() if all(f[k] is not None for k in rest)}
    with_peak = {n for n in whole if any(facts[n][f"{d}_tflops"] for d in ("bf16", "fp16", "fp8", "int8", "fp4"))}
    assert {c for c in CHIPS if not load_chip(c).missing} == with_peak
    assert len({n for n in with_peak if facts[n]["bf16_tflops"]}) == 45 and len(with_peak) == 47


@pytest.mark.parametrize("chip_id", CHIPS)
def test_figures_equal_the_collected_facts(chip_id: str) -> None:
    facts = published(reference()[chip_id])
    ours = dict(raw(chip_id))
    ours["usd_per_hour"] = {**ours["price"], "value": ours["price"]["usd_per_hour"]} if ours.get("price") else None
    for key, fact in facts.items():
        mine = ours.get(key)
        expected = ON_PURPOSE.get((chip_id, key), fact)
        if expected is not None:
            assert mine is not None and mine["value"] == expected, key
        elif mine is not None and key != "memory_mib":  # memory_mib: read elsewhere, source beside it
            assert mine["confidence"] == "estimate", f"{key} isn't among the facts and not marked as an estimate"


@pytest.mark.parametrize("chip_id", CHIPS)
def test_texts_agree_with_the_collected_facts(chip_id: str) -> None:
    fact, ours = reference()[chip_id], raw(chip_id)
    assert (ours["vendor"], ours["status"], ours.get("released")) == (
        fact["vendor"],
        fact["status"],
        fact["release_year"],
    )
    if price := ours.get("price"):
        assert price["kind"] and re.fullmatch(r"20[0-9]{2}-[0-9]{2}", price["date"])
        assert fact["price_usd_per_hour"], "a price that isn't among the facts"


@pytest.mark.parametrize("chip_id", CHIPS)
def test_no_number_is_trusted_more_than_the_facts_allow(chip_id: str) -> None:
    """``secondary`` facts don't become ``datasheet`` here; a stricter word is allowed."""
    rank = {"datasheet": 0, "documented": 0, "measured": 0, "secondary": 1, "estimate": 2}
    fact = reference()[chip_id]
    for key in FIGURE_KEYS:
        number = raw(chip_id).get(key)
        if key in ("memory_mib", "usable_mib"):  # read off a device
            continue
        if (
            number is None
            or published(fact)[key] is None
            or (chip_id in MEASURED and number["confidence"] == "measured")
        ):
            continue
        allowed = fact.get("value_confidence", {}).get(FACT_OF.get(key), fact["confidence"])
        assert rank[number["confidence"]] >= rank[allowed], key


# ---------------------------------------------------------------- lines and engines


def test_line_prices_are_per_hour_month_and_gb_by_direction_dated_and_sourced() -> None:
    tiers = {t.id: t for t in link_defaults().tiers}
    assert len(tiers) == len(link_defaults().tiers)
    assert {t.provider for t in tiers.values()} == {
        "AWS Direct Connect",
        "Carriers' waves",
        "CoreWeave Direct Connect",
        "GCP Dedicated Interconnect",
    }
    assert tiers["aws-100g"].usd_per_hour == 22.5 and tiers["gcp-10g"].usd_per_hour == 2.328
    assert tiers["coreweave-100g"].usd_per_hour == pytest.approx(12500 / 730)
    assert (tiers["aws-10g"].usd_per_gb_out, tiers["aws-10g"].usd_per_gb_in) == (0.02, 0)
    assert (tiers["coreweave-10g"].usd_per_gb_out, tiers["gcp-10g"].usd_per_gb_out) == (0, None)
    for tier in tiers.values():
        assert re.fullmatch(r"20\d\d(-\d\d)?", tier.date) and tier.kind
        assert tier.usd_per_month == pytest.approx(730 * tier.usd_per_hour)
        assert "https://" in tier.provenance.source and tier.provenance.confidence in ("datasheet", "secondary")
        if "wave" not in tier.kind:  # 400G is cheapest per Gbit/s, 1G dearest
            assert 0.1 <= tier.usd_per_hour / tier.gbit_per_s <= 0.31
    as_line = tiers["aws-10g"].line_tier("west")
    assert (as_line.gbit_per_s, as_line.usd_per_hour) == (10.0, 2.25)
    assert as_line.usd_per_byte == {"west": pytest.approx(0.02e-9)}


def test_line_prices_and_defaults_equal_the_collected_facts() -> None:
    with (reference_dir() / "hardware" / "hardware.yaml").open(encoding="utf-8") as stream:
        facts = yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    prices: dict[str, list[float]] = {}
    for row in facts["network_prices"]:
        for key in ("usd_per_hour", "usd_per_month"):
            if row.get(key) is not None:
                prices[row["item"]] = [row[key]] if isinstance(row[key], float | int) else row[key]
    known = sorted(price for listed in prices.values() for price in listed)
    ours = [t.usd_per_month if "month" in t.kind or "wave" in t.kind else t.usd_per_hour for t in link_defaults().tiers]
    assert sorted(ours) == pytest.approx(known)
    table = next(row["ms_rtt"] for row in facts["latency"] if "ms_rtt" in row)
    assert {k: s * 1e3 for k, s in link_defaults().rtt_s.items()} == pytest.approx(table)
    shares = next(row["goodput_fraction"] for row in facts["wan_goodput"] if "goodput_fraction" in row)
    by_kind = link_defaults().goodput_by_kind
    assert list(by_kind.values()) == [
        shares["dedicated_wave_rdma_tuned"],
        shares["dedicated_wave_multi_stream_tcp"],
        shares["shared_wan"],
        shares["single_stream_untuned"],
    ]
    assert link_defaults().goodput == by_kind["dedicated_wave_rdma"]


def test_link_defaults_are_the_documented_ones() -> None:
    link = link_defaults()
    assert (link.goodput, link.streams, link.stream_bytes_per_s) == (0.9, 8, 1e9 / 8)
    assert link.initial_window_bytes == 10 * 1460
    assert link.rtt_of_km(1000) == pytest.approx(link.rtt_s["km_1000"])
    assert link.rtt_of_km(1000) == pytest.approx(13e-3)
    assert {a.name for a in link.assumptions} >= {"link.goodput", "link.streams", "link.stream_gbit_per_s"}


def test_nic_share_reproduces_nine_published_transfers() -> None:
    """KV over 8 x 200 Gbit/s: latency + bytes / (share x nominal) within 8 % of what was measured."""
    link, nominal, checked = link_defaults(), 8 * 200e9 / 8, 0
    with (reference_dir() / "measurements" / "serving_points.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            found = re.search(r"KV ([0-9.]+) MB moved in ([0-9.]+) ms", row["notes"])
            if found is None or not row["id"].startswith("mc-qwen3-8b"):
                continue
            kv_bytes = float(found[1]) * 2**20  # the source prints MiB as MB
            predicted_ms = 1e3 * (link.nic_latency_s + kv_bytes / (link.nic_goodput * nominal))
            assert predicted_ms == pytest.approx(float(found[2]), rel=0.08), row["id"]
            checked += 1
    assert checked == 9


@pytest.mark.parametrize("name", engine_ids())
def test_engine_profiles_are_complete_and_within_what_was_measured(name: str) -> None:
    engine, assumptions = load_engine(name)
    assert engine.name == name
    assert engine.chunk_tokens in (4096, 8192, 16384)
    assert (engine.memory_fraction is None) == (name == "sglang") == (engine.memory_covers == "static")
    assert engine.memory_fraction is None or 0.85 <= engine.memory_fraction <= 0.97
    # Served TPOT minus kernels: up to 8 ms a step; a model of 60 expert layers and 32 requests must land there.
    layers = 60 * (engine.layer_overhead_s + engine.expert_layer_overhead_s)
    most_s = 20e-3 if name == "vllm-2023" else 8e-3  # no captured graphs then
    assert 0.0 <= engine.step_overhead_s + layers + 32 * engine.request_overhead_s <= most_s
    assert 0.0 < engine.launch_share <= 1.0 and 0.7 <= engine.prompt_factor <= 1.5
    # First outputs: some tens of ms beside kernels, some hundreds for 60 expert layers or a hand-over.
    assert 0.0 <= engine.first_output_s <= 0.1 and 0.0 <= engine.handoff_s <= 0.3
    assert 0.0 <= 60 * engine.expert_first_output_s <= 0.3
    assert engine.mtp_accepted_tokens == 1 and not engine.overlap_expert_communication
    assert len(assumptions) == (34 if name == "sglang" else 30)
    assert all(a.note and a.source in ("default", "estimate") for a in assumptions)


def test_engines_and_a_generic_one_between_them() -> None:
    assert engine_ids() == ("generic", "sglang", "trtllm", "vllm", "vllm-2023")
    generic, *known = (load_engine(name)[0] for name in ("generic", "sglang", "trtllm", "vllm"))
    for field in ("step_overhead_s", "request_overhead_s", "expert_layer_overhead_s", "first_output_s"):
        values = sorted(getattr(engine, field) for engine in known)
        assert values[0] <= getattr(generic, field) <= values[-1], field
    assert min(e.prompt_factor for e in known) <= generic.prompt_factor <= max(e.prompt_factor for e in known)
