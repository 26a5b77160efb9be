"""What bounds and answers need where chips of a scenario hold KV caches in different formats (``serve.conversion``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pddplan.plan.options import PoolOption
from pddplan.serve.context import Context
from pddplan.serve.conversion import (
    conversion_bytes_per_s,
    conversion_s,
    crossing_format,
    held_format,
    stretch_of,
)
from pddplan.serve.deployment import Deployment, LineChoice, Plan, Pool, ways_of
from pddplan.spec.types import Assumption, Role
from pddplan.units import GB


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


def line_format(context: Context, plan: Plan, line: LineChoice) -> str:
    """KV format that crosses a line of a plan; of several ways over it, the first one's."""
    way = next(way for way in ways_of(plan) if way.line is line)
    assert way.prefill is not None and way.main is not None
    return crossing_format(context.demand, way.prefill, way.main)


def other_format(context: Context, kv_format: str) -> str:
    """The format, "" where it is the scenario's."""
    return "" if kv_format == context.demand.kv_format else kv_format


def format_notes(context: Context, plan: Plan) -> list[Assumption]:
    """KV formats of a plan's pools and ways that aren't the scenario's, and who converts."""
    return list(dict.fromkeys(note for way in ways_of(plan) for note in _notes_of(context, way)))


def _notes_of(context: Context, deployment: Deployment) -> list[Assumption]:
    found = []
    for pool in deployment.pools:
        held = held_format(context.demand, pool)
        stated = pool.offer.precision is not None and pool.offer.precision.kv_cache is not None
        if other_format(context, held):
            note = f"what {pool.offer.chip.id} holds in {pool.site.name}"
            found.append(Assumption(f"kv_format.{pool.role}", held, "input" if stated else "default", note))
    ways = (
        ("line" if deployment.line is not None else "main_decode_transfer", deployment.main),
        ("relay_transfer", deployment.relay),
    )
    for name, receiver in ways:
        if deployment.prefill is None or receiver is None:
            continue
        ends = (deployment.prefill, receiver)
        crossing = crossing_format(context.demand, *ends)
        who = [pool for pool in ends if held_format(context.demand, pool) != crossing]
        if who or other_format(context, crossing):
            found.append(Assumption(f"kv_format.{name}", crossing, "default", _who_converts(context, who)))
    return found


def _who_converts(context: Context, pools: list[Pool]) -> str:
    """``nvidia-h20-96g turns it into fp8 at 3,210 GB/s``."""
    if not pools:
        return "what both ends hold"
    told = []
    for pool in pools:
        held, rate = held_format(context.demand, pool), conversion_bytes_per_s(pool) / GB
        made = f"makes it of its {held}" if pool.role == "prefill" else f"turns it into {held}"
        told.append(f"{pool.offer.chip.id} {made}, {rate:,.0f} GB/s read and written")
    return "; ".join(("both ends read it", *told))
