"""``--set key.path=value`` changes what the file says, and speaks for itself when it is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from pddplan.errors import InputError, Problem
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Scenario
from tests.spec.scenarios import EVERYTHING, SMALL


def loaded(*overrides: str, text: str = SMALL) -> Scenario:
    return load_scenario_text(text, "a.yaml", overrides=overrides)


def refused(*overrides: str, text: str = SMALL) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        loaded(*overrides, text=text)
    return caught.value.problems


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("workload.request_rate_per_s=30", lambda s: s.workload.request_rate_per_s, 30),
        ("workload.prompt_tokens=8K", lambda s: s.workload.prompt_tokens.fixed, 8192),
        ("workload.prefix_hit_rate={mean: 0.5}", lambda s: s.workload.prefix_hit_rate.share_above_95, 0),
        ("workload.prefix_hit_rate=0.5", lambda s: s.workload.prefix_hit_rate.fixed, True),
        ("workload.prefix_hit_rate.mean=0.8", lambda s: s.workload.prefix_hit_rate.mean, 0.8),
        ("workload.burstiness = 2", lambda s: s.workload.burstiness, 2),
        ("sites[0].chips[0].max=64", lambda s: s.sites[0].offers[0].max_chips, 64),
        ("sites.1.chips.0.max=64", lambda s: s.sites[1].offers[0].max_chips, 64),
        ("sites.west.chips.0.usd_per_hour=3", lambda s: s.sites[1].offers[0].usd_per_hour, 3),
        ("sites[west].chips.nvidia-h20-96g.usd_per_month=730", lambda s: s.sites[1].offers[0].usd_per_hour, 1),
        ("sites.north.chips[0].chip=h100", lambda s: s.sites[0].offers[0].chip.id, "nvidia-h100-sxm"),
        ("sites.north.power.usd_per_kwh=0.1", lambda s: s.sites[0].power.usd_per_kwh, 0.1),
        ("sites.north.roles=[prefill, main_decode]", lambda s: s.sites[0].roles, ("prefill", "main_decode")),
        ("links[0].rtt_ms=0", lambda s: s.links[0].rtt_s, 0),
        ("links[0].tiers[1].usd_per_hour=1e2", lambda s: s.links[0].tiers[1].usd_per_hour, 100),
        ("links[0].tiers=[{gbit_per_s: 1, usd_per_hour: 1}]", lambda s: len(s.links[0].tiers), 1),
        ("slo.pause_ms.p99=500", lambda s: s.slo[-1].limit_s, 0.5),
        ("slo.tpot_ms.p90=null", lambda s: [x.metric for x in s.slo], ["ttft"] * 3),
        ("slo.tpot_ms=", lambda s: [x.metric for x in s.slo], ["ttft"] * 3),
        ("engine=vllm", lambda s: s.engine.name, "vllm"),
        ("engine.chunk_tokens=4K", lambda s: (s.engine.name, s.engine.chunk_tokens), ("generic", 4096)),
        ("objective.goodput.max_usd_per_hour=100", lambda s: s.objective.max_usd_per_hour, 100),
        ("max_utilization=0.8", lambda s: s.max_utilization["prefill"], 0.8),
        ("max_utilization.prefill=0.8", lambda s: dict(s.max_utilization), {"prefill": 0.8}),
        ("spares.prefill=2", lambda s: dict(s.spares), {"prefill": 2}),
        ("prices=null", lambda s: s.prices, None),
        ("name=a=b", lambda s: s.name, "a=b"),
    ],
)
def test_override(override: str, read: Any, value: Any) -> None:
    assert read(loaded(override)) == (pytest.approx(value) if isinstance(value, float) else value)


def test_equals_the_edited_file() -> None:
    edited = yaml.safe_load(SMALL)
    edited["workload"]["request_rate_per_s"] = 30
    edited["sites"][1]["chips"][0]["max"] = 64
    expected = load_scenario_text(yaml.safe_dump(edited), "a.yaml")
    got = loaded("workload.request_rate_per_s=30", "sites.west.chips.0.max=64")
    assert replace(got, lines={}) == replace(expected, lines={})


def test_the_last_one_counts() -> None:
    assert loaded("workload.request_rate_per_s=30", "workload.request_rate_per_s=40").workload.request_rate_per_s == 40


def test_named_engine_keeps_its_name() -> None:
    engine = loaded("engine.chunk_tokens=4K", text=f"engine: vllm\n{SMALL}").engine
    assert (engine.name, engine.chunk_tokens) == ("vllm", 4096)


def test_another_spelling_of_a_price_replaces_it() -> None:
    assert loaded("sites[0].chips[0].usd_per_hour=2", text=EVERYTHING).sites[0].offers[0].usd_per_hour == 2


def test_an_alias_changes_alone() -> None:
    text = SMALL.replace("[{chip: nvidia-h800-sxm, max: 96, usd_per_hour: 2.00}]", "&c [{chip: h800, max: 96}]")
    text = text.replace("[{chip: nvidia-h20-96g, max: 128, usd_per_hour: 1.20}]", "*c")
    s = loaded("sites.west.chips.0.max=8", text=text)
    assert [site.offers[0].max_chips for site in s.sites] == [96, 8]


@pytest.mark.parametrize(
    ("override", "key", "message", "fix"),
    [
        ("workload.request_rate=30", "workload.request_rate", "unknown key", "'request_rate_per_s'"),
        ("nonsense.deep.path=1", "nonsense", "unknown key", ""),
        ("sites[5].chips[0].max=3", "sites[5].chips[0].max", "no entry '5'", "north, west"),
        ("sites.east.name=x", "sites.east.name", "no entry 'east'", "north, west"),
        ("sites[-1].name=x", "sites[-1].name", "no entry '-1'", ""),
        ("model.name=x", "model.name", "has no key 'name'", ""),
        ("workload.prompt_tokens.p50=1K", "workload.prompt_tokens.p50", "no key 'p50'", "{p50: …}"),
        ("workload.request_rate_per_s", "workload.request_rate_per_s", "not key=value", "--set"),
        ("=3", "", "not key=value", ""),
        ("a..b=3", "a..b", "not key=value", ""),
        ("workload.request_rate_per_s={", "workload.request_rate_per_s", "not valid YAML", ""),
        ("workload.request_rate_per_s=1\nx: 2", "workload.request_rate_per_s", "not one value", ""),
        ("workload.request_rate_per_s=!!python/none x", "workload.request_rate_per_s", "tags", ""),
        ("workload.request_rate_per_s=nan", "workload.request_rate_per_s", "not a finite number", ""),
        ("workload.request_rate_per_s=fast", "workload.request_rate_per_s", "not a number", ""),
        ("sites[0].chips[0].chip=h21x", "sites[0].chips[0].chip", "no chip", ""),
        ("sites[0].chips[0].max=0", "sites[0].chips[0].max", "too small", ""),
        ("max_utilization=1.2", "max_utilization", "too large", "at most 1"),
        ("model=null", "model", "no value", ""),
    ],
)
def test_wrong_override(override: str, key: str, message: str, fix: str) -> None:
    found = refused(override)
    assert len(found) == 1, [str(p) for p in found]
    (problem,) = found
    assert problem.file == "--set" and problem.line is None
    assert problem.key == key
    assert message in problem.message and fix in problem.fix, str(problem)


def test_problems_of_file_and_overrides_come_together() -> None:
    found = refused("sites[5].name=x", "workload.burstiness=-1", text=SMALL.replace("max: 96", "max: 0"))
    assert [(p.file, p.key) for p in found] == [
        ("--set", "sites[5].name"), ("--set", "workload.burstiness"), ("a.yaml", "sites[0].chips[0].max")
    ]  # fmt: skip


def test_an_override_can_mend_the_file() -> None:
    assert (
        loaded("sites[0].chips[0].max=96", text=SMALL.replace("max: 96", "max: 0")).sites[0].offers[0].max_chips == 96
    )
