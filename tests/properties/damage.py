"""Damaged scenarios: values replaced, scaled, removed, renamed, moved or doubled, for the property tests."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

ODD = [
    None, True, False, 0, -1, 1, 2, 0.5, 1.2, 1e-300, 1e300, 10**400, math.nan, math.inf, -math.inf, "", "x", "64K",
    "8ms", "nan", "profit", "goodput", "h20", "none.yaml", "../../..", "\ud800",
    "a" * 500, [], {}, [[]], [None], {"p50": 1},
    {"": 1}, {"=": 1}, {"mean": 0.9}, {"histogram": {}}, {"histogram": {"8K": 1}}, {"p50": 5, "p99": 1}, ["prefill"],
]  # fmt: skip
FACTORS = (-1, 0, 0.1, 3, 1e6, 1e12)
ACTIONS = ("replace", "replace", "scale", "delete", "rename", "move", "double")


def paths_of(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(p for key, child in children for p in paths_of(child, (*path, key)))]


@st.composite
def damaged(
    draw: st.DrawFn,
    bases: Sequence[dict[str, Any]],
    factors: Sequence[float] = FACTORS,
    actions: Sequence[str] = ACTIONS,
) -> dict[str, Any]:
    """One of the scenarios with one to four values changed."""
    paths = [[p for p in paths_of(base) if p] for base in bases]
    numbers = [[p for p in known if _is_number(_at(base, p))] for known, base in zip(paths, bases, strict=True)]
    keys = sorted({str(p[-1]) for known in paths for p in known})
    which = draw(st.integers(0, len(bases) - 1))
    data = copy.deepcopy(bases[which])
    for _ in range(draw(st.integers(1, 4))):
        action = draw(st.sampled_from(actions))
        path = draw(st.sampled_from(numbers[which] if action == "scale" else paths[which]))
        node: Any = data
        for key in path[:-1]:
            node = node[key] if _has(node, key) else None
        key = path[-1]
        if not _has(node, key):
            continue
        if action == "replace":
            node[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
        elif action == "scale" and _is_number(node[key]):
            scaled = node[key] * draw(st.sampled_from(factors))
            node[key] = round(scaled) if isinstance(node[key], int) else scaled  # half a chip is refused at once
        elif action == "delete":
            del node[key]
        elif action == "rename" and isinstance(node, dict):
            node[draw(st.sampled_from(keys) | st.text(max_size=8))] = node.pop(key)
        elif action == "move" and isinstance(node, dict):
            data[draw(st.sampled_from(keys))] = copy.deepcopy(node[key])
        elif action == "double" and isinstance(node, list):
            node.append(copy.deepcopy(node[key]))
    return data


def _at(node: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _has(node: Any, key: Any) -> bool:
    if isinstance(node, dict):
        return key in node
    return isinstance(node, list) and isinstance(key, int) and key < len(node)
