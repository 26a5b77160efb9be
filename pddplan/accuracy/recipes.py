"""Decode batches of published deployments, by their layout: ``recipes.yaml``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pddplan.accuracy.layouts import Layout
from pddplan.spec.datafile import read_data_file


@dataclass(frozen=True)
class Deployment:
    """What a recipe is found by: ``layouts`` are ``1x8 9xtep8``, prefill workers by chips, decode ones by ranks too."""

    engine: str
    chip: str
    weights: str
    lengths: str  # nominal input/output
    layouts: str


def layouts_named(prefill: Layout, decode: Layout) -> str:
    """``1x8 9xtep8``: workers of prefill x their chips, workers of decode x dep (a rank per chip) or tep (one)."""
    first, last = prefill.parallelism, decode.parallelism
    kind = "dep" if last.dp > 1 else "tep"
    return f"{prefill.replicas}x{first.chips} {decode.replicas}x{kind}{last.chips}"


@lru_cache(maxsize=1)
def _recipes() -> Mapping[Deployment, tuple[tuple[int, tuple[float, ...]], ...]]:
    """(batch of a decode rank, users) of each recipe, by deployment."""
    found: dict[Deployment, list[tuple[int, tuple[float, ...]]]] = defaultdict(list)
    for group in read_data_file(Path(__file__).with_name("recipes.yaml"))["recipes"]:
        for line in group["lines"]:
            (name, users), *_ = line.items()
            lengths, prefill, decode, batch = name.split()
            key = Deployment(group["engine"], group["chip"], group["weights"], lengths, f"{prefill} {decode}")
            found[key].append((int(batch), tuple(float(u) for u in str(users).split())))
    return {key: tuple(recipes) for key, recipes in found.items()}


def decode_batch(deployment: Deployment, users: float) -> int | None:
    """Largest batch of a decode rank: of the recipe that lists these users, else of the only one of that layout."""
    recipes = _recipes().get(deployment, ())
    exact = [batch for batch, listed in recipes if users in listed]
    if exact:
        return exact[0]
    return recipes[0][0] if len(recipes) == 1 else None
