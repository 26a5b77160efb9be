"""A thousand damaged scenarios: the loader returns a scenario or raises InputError, never anything else."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pddplan.errors import InputError
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Scenario
from tests.properties.damage import ODD, damaged, paths_of
from tests.spec.bad_scenarios import mixed
from tests.spec.scenarios import EVERYTHING, SMALL

DATA = [yaml.safe_load(SMALL), yaml.safe_load(EVERYTHING), yaml.safe_load(mixed())]
for _work in DATA[2]["workloads"]:
    _work |= {"hourly_load": [1, *[0.5] * 23], "output_forecast": {"recall": 0.8}, "decode_prefix_hit_rate": 0.5}
PATHS = [[p for p in paths_of(data) if p] for data in DATA]


def load(text: str) -> Scenario | None:
    """The scenario, or None after checking that the refusal is one that a person can use."""
    try:
        return load_scenario_text(text, "a.yaml")
    except InputError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message and "\n" not in str(problem)
            assert "Traceback" not in str(problem) and "pydantic" not in str(problem)
            str(problem).encode("utf-8")
        return None


def numbers_of(value: Any) -> list[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, (int, float)):
        return [float(value)]
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers_of(v)]
    if isinstance(value, (tuple, list)):
        return [n for v in value for n in numbers_of(v)]
    return [n for name in value.__dataclass_fields__ for n in numbers_of(getattr(value, name))]


quick = settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@quick
@given(damaged(DATA))
def test_damaged_data(data: dict[str, Any]) -> None:
    scenario = load(json.dumps(data))
    if scenario is not None:
        assert all(math.isfinite(n) for n in numbers_of(scenario))
        assert all(o.max_chips >= 1 and o.usd_per_hour >= 0 for site in scenario.sites for o in site.offers)
        assert all(0 <= work.prefix_hit_rate.mean <= 1 for work in scenario.traffic.workloads)


def test_nasty_values_everywhere() -> None:
    """Each key once with each of the values that break arithmetic, printing or dispatch."""
    for which, paths in enumerate(PATHS):
        for i, path in enumerate(paths):
            for nasty in (1e300, 10**400, 1e-300, math.nan, "\ud800", {"=": 1})[i % 2 :: 2]:
                data = copy.deepcopy(DATA[which])
                node: Any = data
                for key in path[:-1]:
                    node = node[key]
                node[path[-1]] = nasty
                scenario = load(json.dumps(data))
                assert scenario is None or all(math.isfinite(n) for n in numbers_of(scenario)), (path, nasty)


@settings(quick, max_examples=250)
@given(st.data())
def test_damaged_text(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([SMALL, EVERYTHING]))
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(text) - 1))
        end = start + data.draw(st.integers(0, 12))
        inserted = data.draw(
            st.sampled_from([*"{}[]:,&*!|>'\"%@`#-?\t\n \x00\x85", "&a ", "*a", "<<: ", "!!", "---\n"])
            | st.text(max_size=3)
        )
        text = text[:start] + inserted + text[end:]
    load(text)


@settings(quick, max_examples=200)
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    assert load(text) is None


@settings(quick, max_examples=150)
@given(
    st.lists(st.sampled_from([".".join(map(str, p)) for p in PATHS[1]]) | st.text(max_size=12), max_size=2),
    st.sampled_from(ODD) | st.text(max_size=8),
)
def test_any_override(keys: list[str], value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        load_scenario_text(SMALL, "a.yaml", overrides=[f"{key}={text}" for key in keys])
    except InputError as error:
        assert error.problems
