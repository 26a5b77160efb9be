"""Operating points of the tests of this folder, from the catalogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pddplan.estimate.estimate import estimate
from pddplan.estimate.records import Estimate, Lengths, Mode, OperatingPoint, Workers
from pddplan.llm.catalogue import load_model
from pddplan.perf.instance import Parallelism
from pddplan.spec.catalogue import load_chip, load_engine

ONE = Parallelism()


def workers(
    chip: str = "h100", parallelism: Parallelism = ONE, count: int = 1, weights: str = "fp8", kv_cache: str = "fp8"
) -> Workers:
    return Workers(load_chip(chip), parallelism, count, weights, kv_cache)


def point(
    mode: Mode = "aggregated",
    model: str = "llama-3.1-8b",
    *pools: Workers,
    lengths: Lengths | None = None,
    engine: str = "vllm",
    changes: dict[str, Any] | None = None,
    **load: float,
) -> OperatingPoint:
    """One H100 for each pool and one user unless said otherwise; ``changes`` are of the engine's profile."""
    profile = replace(load_engine(engine)[0], **(changes or {}))
    chosen = pools or tuple(workers() for _ in range(2 if mode == "disaggregated" else 1))
    return OperatingPoint(
        mode, load_model(model), profile, chosen, lengths or Lengths(1024, 128), **(load or {"concurrency": 1.0})
    )


def answer(asked: OperatingPoint) -> Estimate:
    """Of a point that runs."""
    found = estimate(asked)
    assert isinstance(found, Estimate), found
    return found
