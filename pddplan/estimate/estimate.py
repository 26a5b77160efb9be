"""Times, rates and memory of operating points: ``estimate`` for one, ``estimate_many`` for many side by side."""

from __future__ import annotations

from collections.abc import Sequence

from pddplan.errors import Excuse
from pddplan.estimate import pools
from pddplan.estimate.closed import ClosedPoint, run_closed
from pddplan.estimate.closed_loop import LoopResult
from pddplan.estimate.open_loop import OpenResult, run_open
from pddplan.estimate.records import Estimate, Mode, OperatingPoint, PoolMemory, TtftParts, pool_roles
from pddplan.perf.host import first_output_s

NEARLY_ALL = 0.98  # of the slots: the rest is rounding
WHOLE_LOOP = 0.9  # of the users: what the others wait for is mostly the common start
MOSTLY = 0.7  # of the slots: representative users fill whole ones only


def estimate(point: OperatingPoint) -> Estimate | Excuse:
    """One operating point, or why it can't run: the model doesn't fit, or a stage can't keep up with the rate."""
    return estimate_many([point])[0]


def estimate_many(points: Sequence[OperatingPoint]) -> list[Estimate | Excuse]:
    """All points, in order. Closed loops run side by side in arrays; services are built once per configuration."""
    answers: list[Estimate | Excuse | None] = [None] * len(points)
    loops: list[tuple[int, ClosedPoint]] = []
    for index, point in enumerate(points):
        services = pools.point_services(point)
        if not isinstance(services, Excuse):
            services = pools.too_long(point, services) or services
        if isinstance(services, Excuse):
            answers[index] = services
        elif point.request_rate_per_s is not None:
            found = run_open(point, services)
            answers[index] = found if isinstance(found, Excuse) else _of_rate(point, services, found)
        elif point.mode == "decode":
            answers[index] = _decode_alone(point, services)
        else:
            loops.append((index, ClosedPoint(point, services)))
    if loops:
        result = run_closed([closed for _, closed in loops])
        for row, (index, closed) in enumerate(loops):
            answers[index] = _of_loop(closed, result, row)
    return [answer for answer in answers if answer is not None]


def _of_loop(closed: ClosedPoint, result: LoopResult, row: int) -> Estimate:
    """The answer of a closed loop: per scheduling unit as run, scaled to the deployment."""
    point = closed.point
    units = closed.users / closed.unit_users
    rate = float(result.request_rate_per_s[row]) * units
    tpot = float(result.tpot_s[row]) if closed.decode is not None else None
    running = float(result.running[row]) * units
    if closed.decode is None:
        running = rate * float(result.prefill_s[row])
    parts = TtftParts(
        queue=float(result.queue_s[row]),
        prefill=float(result.prefill_s[row]),
        transfer=float(result.transfer_s[row]),
        first_step=float(result.first_step_s[row]) + _host_s(point, 0.0),
    )
    return _assemble(point, closed.services, parts, tpot, rate, running)


def _host_s(point: OperatingPoint, step_s: float) -> float:
    """What router, sampler and detokeniser add to the first token [s]; ``step_s``: a decode step, 0 where steps are
    counted elsewhere."""
    return first_output_s(point.engine, point.model, step_s) + point.engine.router_delay_s


def _of_rate(point: OperatingPoint, services: tuple[pools.Service, ...], found: OpenResult) -> Estimate:
    assert point.request_rate_per_s is not None
    parts = None
    if found.prefill_s is not None:
        step = found.tpot_s or 0.0
        unseen = pools.unseen_steps(point.engine, point.request_rate_per_s * step / point.pools[0].count) * step
        parts = TtftParts(found.queue_s + unseen, found.prefill_s, found.transfer_s, _host_s(point, step))
    return _assemble(point, services, parts, found.tpot_s, point.request_rate_per_s, found.running)


def _decode_alone(point: OperatingPoint, services: tuple[pools.Service, ...]) -> Estimate:
    """Decode workers with ``concurrency`` requests whose prompts are there already: no queue but for slots."""
    assert point.concurrency is not None
    workers = point.pools[0].count
    most, _ = pools.most_requests(point, services[0])
    running = min(point.concurrency, pools.usable(most) * workers)
    tpot = pools.decode_step_s(point, services[0], running / workers)
    rate = running / (tpot * pools.mean_output(point.lengths)) if running > 0 else 0.0
    return _assemble(point, services, None, tpot, rate, running)


def _assemble(
    point: OperatingPoint,
    services: tuple[pools.Service, ...],
    ttft: TtftParts | None,
    tpot_s: float | None,
    rate: float,
    running: float,
) -> Estimate:
    lengths = point.lengths
    inputs, outputs = pools.mean_input(lengths), pools.mean_output(lengths)
    first, last = point.pools[0], point.pools[-1]
    # an aggregated instance makes both kinds of tokens on all its chips
    prefilled = rate * inputs / first.chips if point.mode != "decode" else None
    decoded = rate * outputs / last.chips if point.mode != "prefill" else None
    tokens = {"prefill": inputs, "decode": outputs}.get(point.mode, inputs + outputs)
    memory = tuple(
        _memory(point, role, service, running / workers.count)
        for role, service, workers in zip(pool_roles(point), services, point.pools, strict=True)
    )
    return Estimate(
        ttft=ttft,
        tpot_s=tpot_s,
        request_rate_per_s=rate,
        asked_concurrency=point.concurrency,
        effective_concurrency=running,
        prefill_tokens_per_s_per_chip=prefilled,
        decode_tokens_per_s_per_chip=decoded,
        total_tokens_per_s_per_chip=rate * tokens / point.chips,
        bottleneck=_bottleneck(point, services, ttft, rate, running),
        memory=memory,
    )


def _memory(point: OperatingPoint, role: Mode, service: pools.Service, running: float) -> PoolMemory:
    most, _ = pools.most_requests(point, service)
    requests = running if role != "prefill" else float(service.parallelism.dp)
    held = min(pools.kv_held(point, service, requests), service.kv_pool_bytes)
    return PoolMemory(role, service.memory, held, most)


def _bottleneck(
    point: OperatingPoint, services: tuple[pools.Service, ...], ttft: TtftParts | None, rate: float, running: float
) -> str:
    """What a further request would wait for: slots (``kv_memory``, ``engine``), ``prefill``, else ``concurrency`` (a
    closed loop with room left) or ``rate``.

    Slots where nearly all are taken, or, where requests queue, a larger share of them than of the time of prefill.
    """
    busy = 0.0
    if ttft is not None:
        busy = rate * ttft.prefill / (point.pools[0].count * services[0].parallelism.dp)
    if point.mode != "prefill":
        most, bound = pools.most_requests(point, services[-1])
        held = running + (rate * ttft.prefill if point.mode == "aggregated" and ttft is not None else 0.0)
        taken = held / (pools.usable(most) * point.pools[-1].count) if most > 0.5 else 1.0
        queued = point.concurrency is not None and point.concurrency > running + 1.0
        if taken >= NEARLY_ALL or (queued and taken > max(busy, MOSTLY)):
            return bound
    waits = point.concurrency is None or running < WHOLE_LOOP * point.concurrency
    if waits and ttft is not None and ttft.queue > ttft.prefill:
        return "prefill"
    return "concurrency" if point.concurrency is not None else "rate"
