"""What bounds need where the chips of a scenario hold KV caches in different formats (``serve.conversion``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pddplan.plan.options import PoolOption
from pddplan.serve.context import Context
from pddplan.serve.conversion import conversion_bytes_per_s, conversion_s, stretch_of
from pddplan.serve.deployment import Pool
from pddplan.spec.types import Role


@dataclass(frozen=True)
class ConversionRates:
    """Rates at which the options of main decode and relay convert caches, at most and at least [B/s]."""

    quickest: Mapping[Role, float]
    slowest: Mapping[Role, float]


def conversion_rates(options: Iterable[PoolOption]) -> ConversionRates:
    """Extremes of the options of each role."""
    rates: dict[Role, list[float]] = {}
    for option in dict.fromkeys(options):
        rates.setdefault(option.role, []).append(conversion_bytes_per_s(option.pool(1)))
    return ConversionRates({r: max(v) for r, v in rates.items()}, {r: min(v) for r, v in rates.items()})


def by_format(context: Context, options: tuple[PoolOption, ...]) -> Iterator[tuple[PoolOption, ...]]:
    """The options by the KV format that they hold."""
    held = {option: context.demand_on(option.offer).kv_format for option in options}
    for kv_format in dict.fromkeys(held.values()):
        yield tuple(option for option in options if held[option] == kv_format)


def longest_stretch(context: Context, pool: Pool) -> float:
    """Factor on a decode pool's steps at most: it converts every request's cache from another format; 1 where no chip
    of the scenario holds another."""
    if len(context.kv_formats) == 1:
        return 1.0
    sizes = [context.demand.in_format(name).kv_prompt for name in context.kv_formats]
    seconds = conversion_s(np.sum(sizes, axis=0), np.zeros_like(sizes[0]), conversion_bytes_per_s(pool))
    return stretch_of(context.rate * context.demand.atoms.mean(seconds) / pool.instances)
