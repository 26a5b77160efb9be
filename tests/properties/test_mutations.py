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
from tests.spec.scenarios import EVERYTHING, SMALL

DATA = [yaml.safe_load(SMALL), yaml.safe_load(EVERYTHING)]
ODD = [
    None, True, False, 0, -1, 1, 2, 0.5, 1.2, 1e-300, 1e300, 10**400, math.nan, math.inf, -math.inf, "", "x", "64K",
    "8ms", "nan", "profit", "goodput", "h20", "none.yaml", "../../..", "\ud800",
    "a" * 500, [], {}, [[]], [None], {"p50": 1},
    {"": 1}, {"=": 1}, {"mean": 0.9}, {"histogram": {}}, {"histogram": {"8K": 1}}, {"p50": 5, "p99": 1}, ["prefill"],
]  # fmt: skip


def paths_of(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(p for key, child in children for p in paths_of(child, (*path, key)))]


PATHS = [[p for p in paths_of(data) if p] for data in DATA]
KEYS = sorted({str(p[-1]) for paths in PATHS for p in paths})


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """One of the scenarios with one to four values replaced, removed, renamed, moved or doubled."""
    which = draw(st.integers(0, len(DATA) - 1))
    data = copy.deepcopy(DATA[which])
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(PATHS[which]))
        node: Any = data
        for key in path[:-1]:
            node = node[key] if _has(node, key) else None
        key = path[-1]
        if not _has(node, key):
            continue
        action = draw(st.sampled_from(["replace", "replace", "scale", "delete", "rename", "move", "double"]))
        if action == "replace":
            node[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
        elif action == "scale" and isinstance(node[key], (int, float)):
            node[key] = node[key] * draw(st.sampled_from([-1, 0, 0.1, 3, 1e6, 1e12]))
        elif action == "delete":
            del node[key]
        elif action == "rename" and isinstance(node, dict):
            node[draw(st.sampled_from(KEYS) | st.text(max_size=8))] = node.pop(key)
        elif action == "move" and isinstance(node, dict):
            data[draw(st.sampled_from(KEYS))] = copy.deepcopy(node[key])
        elif action == "double" and isinstance(node, list):
            node.append(copy.deepcopy(node[key]))
    return data


def _has(node: Any, key: Any) -> bool:
    if isinstance(node, dict):
        return key in node
    return isinstance(node, list) and isinstance(key, int) and key < len(node)


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
@given(damaged())
def test_damaged_data(data: dict[str, Any]) -> None:
    scenario = load(json.dumps(data))
    if scenario is not None:
        assert all(math.isfinite(n) for n in numbers_of(scenario))
        assert all(o.max_chips >= 1 and o.usd_per_hour >= 0 for site in scenario.sites for o in site.offers)
        assert 0 <= scenario.workload.prefix_hit_rate.mean <= 1


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
