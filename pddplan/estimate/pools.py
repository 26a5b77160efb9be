"""Service times of the pools of an operating point, and what one scheduling unit of them holds."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from pddplan.errors import Excuse
from pddplan.estimate.records import Lengths, Mode, OperatingPoint, Workers, pool_roles
from pddplan.llm.kv import kv_bytes
from pddplan.llm.types import LanguageModel
from pddplan.perf.curves import EfficiencyCurves, load_curves
from pddplan.perf.instance import Instance, Parallelism
from pddplan.perf.service import (
    RooflineAggregated,
    RooflineDecode,
    RooflinePrefill,
    aggregated_service,
    decode_service,
    prefill_service,
)
from pddplan.spec.identity import Same
from pddplan.spec.types import Chip, Engine
from pddplan.units import GB

Service = RooflinePrefill | RooflineDecode | RooflineAggregated
KEPT_SERVICES = 4096


@lru_cache(maxsize=KEPT_SERVICES)
def _service(
    mode: Mode,
    chip: Same[Chip],
    model: Same[LanguageModel],
    curves: Same[EfficiencyCurves],
    engine: Engine,
    layout: Parallelism,
    formats: tuple[str, str],
) -> Service | Excuse:
    instance = Instance(chip.value, model.value, layout, engine, *formats, curves.value)
    if mode == "prefill":
        return prefill_service(instance)
    return decode_service(instance) if mode == "decode" else aggregated_service(instance)


def pool_service(mode: Mode, model: LanguageModel, engine: Engine, workers: Workers) -> Service | Excuse:
    """Roofline service of an instance of ``workers`` in the role ``mode``; an excuse where the model doesn't fit.

    Built once per chip, model, engine, layout and formats and kept.
    """
    curves = workers.curves if workers.curves is not None else load_curves(workers.chip)
    formats = (workers.weights, workers.kv_cache)
    return _service(mode, Same(workers.chip), Same(model), Same(curves), engine, workers.parallelism, formats)


def point_services(point: OperatingPoint) -> tuple[Service, ...] | Excuse:
    """Services of all pools of a point in its order, or why one can't run."""
    found: list[Service] = []
    for mode, workers in zip(pool_roles(point), point.pools, strict=True):
        service = pool_service(mode, point.model, point.engine, workers)
        if isinstance(service, Excuse):
            return service
        found.append(service)
    return tuple(found)


def too_long(point: OperatingPoint, services: tuple[Service, ...]) -> Excuse | None:
    """Why no pool could hold even one request of mean length (its prompt alone, where it prefills); None if it can."""
    for role, service in zip(pool_roles(point), services, strict=True):
        tokens = mean_input(point.lengths) + (mean_output(point.lengths) if role != "prefill" else 0.0)
        held = float(kv_bytes(point.model, tokens, service.instance.kv_cache))
        if usable(service.kv_pool_bytes / max(held, 1.0)) < 1.0:
            return Excuse("kv_of_a_request", held / GB, service.kv_pool_bytes / GB, "GB", role)
    return None


# ---------------------------------------------------------------- a request of mean length


def mean_input(lengths: Lengths) -> float:
    return max(lengths.input_tokens * lengths.mean_share, 1.0)


def mean_new(lengths: Lengths) -> float:
    """Prompt tokens that prefill computes; the last one always."""
    return max(mean_input(lengths) * (1.0 - lengths.prefix_hit), 1.0)


def mean_cached(lengths: Lengths) -> float:
    return max(mean_input(lengths) - mean_new(lengths), 0.0)


def mean_chunk(point: OperatingPoint) -> float:
    """New tokens of a mean request's pass."""
    return min(mean_new(point.lengths), float(point.engine.chunk_tokens))


def before_chunk(point: OperatingPoint) -> float:
    """Tokens before the middle chunk of a mean request: what is cached, and half of the other chunks."""
    return mean_cached(point.lengths) + 0.5 * (mean_new(point.lengths) - mean_chunk(point))


def mean_output(lengths: Lengths) -> float:
    return max(lengths.output_tokens * lengths.mean_share, 1.0)


def running_context(lengths: Lengths) -> float:
    """Tokens held by a running request, mean over its life: prompt and half of the answer."""
    return mean_input(lengths) + 0.5 * mean_output(lengths)


def most_requests(point: OperatingPoint, service: Service) -> tuple[float, str]:
    """(requests that one worker can hold at full length, what sets it: ``kv_memory`` or ``engine``)."""
    lengths = point.lengths
    held = float(kv_bytes(point.model, mean_input(lengths) + mean_output(lengths), service.instance.kv_cache))
    memory = service.kv_pool_bytes / max(held, 1.0)
    return (memory, "kv_memory") if memory < service.max_batch else (service.max_batch, "engine")


def kv_held(point: OperatingPoint, service: Service, requests: float) -> float:
    """KV bytes that ``requests`` running requests keep on one worker, mean over their lives."""
    context = running_context(point.lengths)
    return requests * float(kv_bytes(point.model, context, service.instance.kv_cache))


def decode_step_s(point: OperatingPoint, service: Service, requests: float) -> float:
    """Time per output token with ``requests`` running on one worker and no prompt in the step [s]."""
    context = running_context(point.lengths)
    if isinstance(service, RooflineDecode):
        return float(service.step_time_s(requests, context))
    if isinstance(service, RooflineAggregated):
        accepted = point.engine.mtp_accepted_tokens
        return float(service.step_time_s(requests, context, 0.0)) / accepted
    return 0.0


def unseen_steps(engine: Engine, arrivals_per_step: float) -> float:
    """Mean decode steps from the arrival of a request to its being seen by a running scheduler: half a look, and the
    wait for others to join."""
    return 0.5 * engine.poll_steps + batch_wait_steps(engine.batch_wait_steps, arrivals_per_step)


def batch_wait_steps(longest: float, arrivals_per_step: float) -> float:
    """Mean steps for which prompts are held back to be joined: the first one ``longest``, those of the
    ``a = longest x arrivals`` that join it half of that on average: ``longest (1 + a/2) / (1 + a)``."""
    joined = longest * arrivals_per_step
    return longest * (1.0 + 0.5 * joined) / (1.0 + joined)


def usable(value: float) -> float:
    """A count of requests as whole ones, one at least where any part of one fits."""
    return float(max(math.floor(value + 1e-9), 1 if value > 0.5 else 0))


def uniform_quantiles(shortest: float, count: int = 5) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """``count`` equally likely shares of the nominal length, midpoints of [shortest, 1]."""
    middle = (np.arange(count) + 0.5) / count
    return np.asarray(shortest + (1.0 - shortest) * middle)
