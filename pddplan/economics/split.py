"""Cost by what it pays for: uncached input, cached input, output; exactly additive."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pddplan.economics.cost import Bill, mean_load
from pddplan.serve.context import Context
from pddplan.serve.deployment import Plan, Pool, band_of
from pddplan.serve.records import Evaluation, PoolLoad
from pddplan.units import SECONDS_PER_HOUR

KINDS = ("input", "cached_input", "output")


@dataclass(frozen=True)
class Split:
    """USD per hour and tokens per hour by kind (input = uncached); the USD sum to the bill."""

    usd_per_hour: Mapping[str, float]
    tokens_per_hour: Mapping[str, float]

    def usd_per_mtok(self, kind: str) -> float:
        """Cost of a million tokens of one kind; 0 where there are none (its cost is then 0 too)."""
        tokens = self.tokens_per_hour[kind]
        return self.usd_per_hour[kind] / tokens * 1e6 if tokens > 0 else 0.0


def split_cost(context: Context, deployment: Plan, evaluation: Evaluation, bill: Bill) -> Split:
    """Split a bill by time on the binding resource.

    Prefill: T(m, 0) pays uncached input, T(m, c) - T(m, 0) and the prefix fetch cached input. Decode pools: the KV
    read's share of the step pays input (uncached and cached by their tokens), weights, overheads and linear work pay
    output; where KV memory binds main decode, its cost goes by byte-seconds {running prompt -> input, running output ->
    output, idle sessions -> cached input}. Line -> uncached input. The rest (power, cache, spares, rounding) pro rata.
    Idle capacity is spread the same way, since whole instances are split.
    """
    atoms = context.demand.atoms
    parts = dict.fromkeys(KINDS, 0.0)
    cached = atoms.mean(atoms.cached) / atoms.mean(atoms.prompt)
    for pool, load, usd in zip(deployment.pools, evaluation.loads, bill.pools, strict=True):
        if pool.role == "prefill":
            shares = _prefill_shares(context.band(*band_of(deployment, pool)), pool)
        elif pool.role == "aggregated":
            shares = _aggregated_shares(context, pool, load, cached)
        else:
            shares = _decode_shares(context, pool, load.mean_batch, cached)
        for kind in KINDS:
            parts[kind] += usd * shares[kind]
    parts["input"] += bill.line_ports + bill.line_traffic
    known = sum(parts.values())
    rest = sum(bill.other.values())
    for kind in KINDS:
        parts[kind] += rest * (parts[kind] / known if known > 0 else 1.0 / len(KINDS))
    return Split(_without_empty(parts, tokens_per_hour(context)), tokens_per_hour(context))


def tokens_per_hour(context: Context) -> dict[str, float]:
    """Tokens of an average hour by kind."""
    atoms = context.demand.atoms
    scale = context.rate * SECONDS_PER_HOUR * mean_load(context.scenario)
    return {
        "input": scale * atoms.mean(atoms.uncached),
        "cached_input": scale * atoms.mean(atoms.cached),
        "output": scale * atoms.mean(atoms.output),
    }


def _without_empty(parts: dict[str, float], tokens: Mapping[str, float]) -> dict[str, float]:
    """Move the cost of a kind that has no tokens to uncached input, so that cost per token gives the bill back."""
    for kind in ("cached_input", "output"):
        if tokens[kind] <= 0:
            parts["input"] += parts[kind]
            parts[kind] = 0.0
    return parts


def _prefill_shares(context: Context, pool: Pool) -> dict[str, float]:
    atoms, service = context.demand.atoms, pool.prefill
    times = context.prefill_times(pool)
    whole = atoms.mean(times.shared + times.fetch)
    bare = atoms.mean(np.asarray(service.saturated_time_s(atoms.uncached, np.zeros_like(atoms.cached), atoms.weight)))
    input_share = min(bare / whole, 1.0)
    return {"input": input_share, "cached_input": 1.0 - input_share, "output": 0.0}


def _decode_shares(context: Context, pool: Pool, batch: float, cached: float) -> dict[str, float]:
    atoms = context.demand.atoms
    held = atoms.mean(atoms.prompt) + atoms.mean(atoms.output) / 2
    at = max(batch, 1e-6) if math.isfinite(batch) else 1e-6
    step = float(pool.decode.step_time_s(at, held))
    bare = float(pool.decode.step_time_s(at, 1.0))
    read = max(1.0 - bare / step, 0.0) if np.isfinite(step) and step > 0 else 0.0
    prompt = read * atoms.mean(atoms.prompt) / held
    return {"input": prompt * (1 - cached), "cached_input": prompt * cached, "output": 1.0 - prompt}


def _aggregated_shares(context: Context, pool: Pool, load: PoolLoad, cached: float) -> dict[str, float]:
    """Time in mixed steps beyond plain ones pays prefill, the rest decode."""
    atoms, service = context.demand.atoms, pool.aggregated
    held = atoms.mean(atoms.prompt) + atoms.mean(atoms.output) / 2
    at = max(load.mean_batch, 1e-6)
    chunk = float(service.chunk_tokens)
    mixed = float(service.step_time_s(at, held, chunk))
    plain = float(service.step_time_s(at, held, 0.0))
    bare = float(service.step_time_s(at, 1.0, 0.0))
    prefill = load.busy_share * (mixed - plain)
    decode = load.busy_share * plain + (1.0 - load.busy_share) * plain
    total = prefill + decode
    read = max(1.0 - bare / plain, 0.0) * decode / total * atoms.mean(atoms.prompt) / held
    new, old = float(service.step_time_s(at, held, chunk, 0.0)), mixed
    repeat = max(1.0 - (new - plain) / max(old - plain, 1e-12), 0.0) * prefill / total
    return {
        "input": prefill / total - repeat + read * (1 - cached),
        "cached_input": repeat + read * cached,
        "output": decode / total - read,
    }
