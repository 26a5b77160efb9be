"""Per-op tables of the passes of an operating point: where the time of a decode step and of a prefill pass goes.

Times of a table add up to the time of its pass as the estimate has it: the kernels, as the engine launches them, and
the host's work (``perf.host``), which stands in rows of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from pddplan.estimate import pools
from pddplan.estimate.records import Bound, Estimate, Mode, OperatingPoint, OpShare, Phase, pool_roles
from pddplan.perf.collectives import normal_bytes
from pddplan.perf.curves import EfficiencyCurves, with_kernels
from pddplan.perf.decode import decode_attention_ops
from pddplan.perf.host import host_time
from pddplan.perf.instance import Array, Instance, stage_imbalance
from pddplan.perf.layers import OpTime, token_ops
from pddplan.perf.ops import compute_dtype
from pddplan.perf.prefill import prefill_attention_ops
from pddplan.perf.service import RooflineAggregated, RooflineDecode, RooflinePrefill
from pddplan.perf.tables import FIRST_TOKENS, pass_seconds

EXCHANGE = ("expert dispatch", "expert combine")
STAGE_SEND = "stage send"
HOST = "host"  # rows that aren't kernels begin so
COMMUNICATION = ("communication", "expert_communication")


@dataclass(frozen=True)
class PassOps:
    """One pass and its ops, the longest first; ``time_s`` is their sum."""

    role: Mode
    phase: Phase
    time_s: float
    requests: float  # decoding, of the whole instance
    new_tokens: float  # of a prompt, per scheduling unit
    cached_tokens: float  # before them
    ops: tuple[OpShare, ...]


@dataclass(frozen=True)
class _Work:
    """All launches of one op in a pass [s]: its time, the part that doesn't depend on its size, and its roofs."""

    name: str
    seconds: float
    fixed_s: float
    compute_s: float
    memory_s: float
    network_s: float

    def scaled(self, factor: float) -> _Work:
        return replace(self, seconds=self.seconds * factor, fixed_s=self.fixed_s * factor)


@dataclass(frozen=True)
class _Pass:
    """Kernels of a pass: tokens of a rank through the linears, rows of the head, attention over the context."""

    tokens: float
    rows: float
    batch: float  # decodes of a rank
    context: float
    new: float = 0.0
    cached: float = 0.0

    def attention(self, instance: Instance) -> list[OpTime]:
        ops: list[OpTime] = []
        if self.batch > 0 or self.new == 0:
            ops += decode_attention_ops(instance, np.asarray(max(self.batch, 1e-6)), np.asarray(self.context))
        if self.new > 0:
            prompt = prefill_attention_ops(instance, np.ones(()), np.asarray(self.new), np.asarray(self.cached))
            ops += [replace(op, name=f"{op.name}, prompt") for op in prompt] if ops else prompt
        return ops


def op_tables(point: OperatingPoint, answer: Estimate) -> tuple[PassOps, ...]:
    """The passes that the point runs: prefill and decode; aggregated: a step without and one with a prompt's chunk.

    Decodes at the mean number of running requests of ``answer``; a prompt is one of mean length, and its pass is the
    middle one of the chunks it takes.
    """
    services = pools.point_services(point)
    assert isinstance(services, tuple), "an estimate was made of it"
    tables: list[PassOps] = []
    for role, service, workers in zip(pool_roles(point), services, point.pools, strict=True):
        batch = answer.effective_concurrency / workers.count
        if isinstance(service, RooflinePrefill):
            tables.append(_prefill(point, role, service))
        elif isinstance(service, RooflineAggregated):
            tables += [_aggregated(point, role, service, batch, chunk) for chunk in (0.0, pools.mean_chunk(point))]
        else:
            tables.append(_decode(point, role, service, batch))
    return tuple(tables)


def _prefill(point: OperatingPoint, role: Mode, service: RooflinePrefill) -> PassOps:
    new, cached = pools.mean_chunk(point), pools.before_chunk(point)
    works = _kernels(service, _Pass(tokens=new, rows=1.0, batch=0.0, context=0.0, new=new, cached=cached))
    works = [work.scaled(service.prompt_factor) for work in works]
    works = _with_host(service.instance, works, 1.0)
    total = float(service.last_pass_s(new, cached))
    return _table(role, "prefill", works, total, 0.0, new, cached)


def _decode(point: OperatingPoint, role: Mode, service: RooflineDecode, batch: float) -> PassOps:
    per_rank, rows = _rows(service, batch)
    context = pools.running_context(point.lengths)
    works = _kernels(service, _Pass(tokens=rows, rows=rows, batch=per_rank, context=context))
    works = _with_host(service.instance, works, rows)
    total = float(service.step_time_s(batch, context)) * point.engine.mtp_accepted_tokens
    return _table(role, "decode", works, total, batch, 0.0, 0.0)


def _aggregated(point: OperatingPoint, role: Mode, service: RooflineAggregated, batch: float, chunk: float) -> PassOps:
    """A step of ``batch`` decodes; what a chunk adds to it is multiplied by the engine's ``prompt_factor``."""
    per_rank, rows = _rows(service, batch)
    context, cached = pools.running_context(point.lengths), pools.before_chunk(point)
    plain = _kernels(service, _Pass(tokens=rows, rows=rows, batch=per_rank, context=context))
    plain = _with_host(service.instance, plain, rows)
    total = float(service.step_time_s(batch, context, chunk, cached))
    if chunk == 0.0:
        return _table(role, "decode", plain, total, batch, 0.0, 0.0)
    last = rows + min(chunk, 1.0)
    both = _Pass(tokens=rows + chunk, rows=last, batch=max(per_rank, 1e-6), context=context, new=chunk, cached=cached)
    mixed = _with_host(service.instance, _kernels(service, both), last)
    before = {work.name: work.seconds for work in plain}
    factor = service.prompt_factor
    works = [_prompted(work, before.get(work.name, 0.0), factor) for work in mixed]
    return _table(role, "mixed", works, total, batch, chunk, cached)


def _prompted(work: _Work, plain_s: float, factor: float) -> _Work:
    """An op of a mixed step: ``plain + prompt_factor x what the prompt adds``."""
    seconds = plain_s + factor * (work.seconds - plain_s)
    return work.scaled(seconds / work.seconds) if work.seconds > 0 else work


def _rows(service: RooflineDecode | RooflineAggregated, batch: float) -> tuple[float, float]:
    """(requests, tokens) of a rank and micro-batch."""
    per_rank = batch / (service.parallelism.dp * service.parallelism.pp)
    return per_rank, per_rank * math.ceil(service.instance.engine.mtp_accepted_tokens)


# ---------------------------------------------------------------- kernels and host


def _kernels(service: pools.Service, one: _Pass) -> list[_Work]:
    """Ops of a pass by name, the sum of all stages; they add up to the time that the service's table gives.

    The table is linear between its grid points, ops are exact: each part is scaled to its value there (below 0.2 %).
    Exchange that is hidden behind compute counts as far as it isn't hidden.
    """
    instance, at = service.instance, np.array([one.tokens, FIRST_TOKENS])
    lean = replace(instance, curves=without_latency(instance.curves))
    heads = np.array([one.rows, FIRST_TOKENS])
    exact, free = token_ops(instance, at, heads), token_ops(lean, at, heads)
    attention, free_attention = one.attention(instance), one.attention(lean)
    tokens, rows = np.asarray(one.tokens), np.asarray(one.rows)
    parts, head = service.table.at(tokens), service.table.at(rows)["head"]
    sums: dict[str, float] = {}
    for op in exact:
        sums[op.part] = sums.get(op.part, 0.0) + op.count * float(op.seconds[0])
    works: list[_Work] = []
    for op, without in zip(exact, free, strict=True):
        wanted = float(head if op.part == "head" else parts[op.part])
        work = _work(instance, _first(op), float(without.seconds[0]), float(op.seconds[1]))
        works.append(work.scaled(wanted / sums[op.part]) if sums[op.part] > 0 else work)
    works += [_work(instance, op, float(w.seconds), 0.0) for op, w in zip(attention, free_attention, strict=True)]
    spent = np.asarray(sum(op.count * float(op.seconds) for op in attention))
    total = float(pass_seconds(service.table, tokens, tokens, rows, spent, service.overlap))
    return _exposed(_by_name(works), total)


def _first(op: OpTime) -> OpTime:
    """The op at the first of its sizes."""

    def scalar(values: Array) -> Array:
        return np.asarray(np.broadcast_to(values, (2,))[0])

    return replace(
        op,
        seconds=scalar(op.seconds),
        flops=scalar(op.flops),
        memory_bytes=scalar(op.memory_bytes),
        link_bytes=scalar(op.link_bytes),
    )


def _work(instance: Instance, op: OpTime, without_latency_s: float, at_no_tokens_s: float) -> _Work:
    """``count`` launches of an op; the fixed part of a collective is its time for a message of next to nothing."""
    chip, seconds = instance.chip, float(op.seconds)
    wire = op.kind in COMMUNICATION
    fixed = min(at_no_tokens_s, seconds) if wire else max(seconds - without_latency_s, 0.0)
    return _Work(
        name=op.name,
        seconds=op.count * seconds,
        fixed_s=op.count * fixed,
        compute_s=op.count * float(op.flops) / chip.peak_flops[compute_dtype(chip, op.dtype)],
        memory_s=op.count * float(op.memory_bytes) / chip.memory_bytes_per_s,
        network_s=op.count * _link_s(instance, op),
    )


def _link_s(instance: Instance, op: OpTime) -> float:
    """Least time of what a chip sends, at the peak of its links [s].

    Inside the scale-up domain ``sent / link``; beyond it the legs of ``perf.collectives`` that carry the fewest bytes:
    ``1/domain`` of a collective through the NIC, one copy of a token per distinct node for expert exchange.
    """
    sent, chip, par = float(op.link_bytes), instance.chip, instance.parallelism
    near, far = chip.scale_up_bytes_per_s, chip.scale_out_bytes_per_s or chip.scale_up_bytes_per_s
    domain = float(chip.scale_up_domain)
    if op.name == STAGE_SEND:
        return sent / (far if par.chips > max(chip.chips_per_node, domain) else near)
    exchange = op.kind == "expert_communication"
    ranks = float(par.stage_chips if exchange else par.tp)
    if sent == 0.0 or ranks <= domain:
        return sent / near
    whole, nodes = sent * ranks / (ranks - 1.0), ranks / domain
    ring = max(whole * (domain - 1.0) / domain / near, whole / domain * (nodes - 1.0) / nodes / far)
    if not exchange or par.ep != ranks:
        return ring
    top_k = max(g.feed_forward.top_k for g in instance.model.groups)
    token = sent / (min(top_k, ranks) * (1.0 - 1.0 / ranks))
    up, out = normal_bytes(np.asarray(ranks), domain, np.asarray(token), np.asarray(top_k), np.inf, np.ones(()))
    return min(ring, max(float(up) / near, float(out) / far))


def _by_name(works: Sequence[_Work]) -> list[_Work]:
    """Ops of one name together: the same kernel in different kinds of layers."""
    found: dict[str, _Work] = {}
    numbers = [f.name for f in fields(_Work) if f.name != "name"]
    for work in works:
        have = found.get(work.name)
        sums = {key: getattr(have, key) + getattr(work, key) for key in numbers} if have else {}
        found[work.name] = replace(work, **sums)
    return list(found.values())


def _exposed(works: list[_Work], total: float) -> list[_Work]:
    """Exchange less what two-batch overlap hides, so that the ops add up to ``total``; nothing where none is hidden."""
    everything = sum(work.seconds for work in works)
    exchange = sum(work.seconds for work in works if work.name in EXCHANGE)
    hidden = everything - total
    if exchange <= 0.0 or abs(hidden) <= 1e-12 * everything:
        return works
    left = max(1.0 - hidden / exchange, 0.0)
    works = [work.scaled(left) if work.name in EXCHANGE else work for work in works]
    rest = total / sum(work.seconds for work in works)
    return [work.scaled(rest) for work in works]


def _with_host(instance: Instance, kernels: Sequence[_Work], rows: float) -> list[_Work]:
    """Kernels of the fullest stage, and what ``perf.host.with_host`` adds to them, row by row."""
    fullest = stage_imbalance(instance.model, instance.parallelism.pp)
    host = host_time(instance, np.asarray(rows))
    times = {
        "per step": host.step_s,
        "per request": float(host.requests_s),
        "per layer": host.layers_s * fullest,
        "per expert layer": host.expert_layers_s * fullest,
    }
    added = [_Work(f"{HOST}, {what}", s, s, 0.0, 0.0, 0.0) for what, s in times.items() if s > 0.0]
    return [work.scaled(fullest) for work in kernels] + added


def without_latency(curves: EfficiencyCurves) -> EfficiencyCurves:
    """``curves`` without what a kernel takes however small it is: its launch, and the bytes lost to ramping up."""

    def lean(record: Any) -> Any:
        changes = {"overhead_s": 0.0} | ({"half_bytes": 0.0} if hasattr(record, "half_bytes") else {})
        return replace(record, **changes)

    return with_kernels(curves, lean, op_overhead_s=0.0)


# ---------------------------------------------------------------- the table


def _table(
    role: Mode, phase: Phase, works: Sequence[_Work], total: float, batch: float, new: float, cached: float
) -> PassOps:
    ordered = sorted(works, key=lambda work: (-work.seconds, work.name))
    ops = tuple(_share(work, phase, total) for work in ordered if work.seconds > 0.0)
    return PassOps(role, phase, total, batch, new, cached, ops)


def _share(work: _Work, phase: Phase, total: float) -> OpShare:
    bound, roof = _bound(work)
    return OpShare(work.name, phase, work.seconds, work.seconds / total, bound, min(roof / work.seconds, 1.0))


def _bound(work: _Work) -> tuple[Bound, float]:
    """(what most of the time goes to, time at that peak [s]): the fixed part, where it outweighs what grows with the
    op's size, else the highest of its roofs; of a fixed part the highest roof is given, too."""
    roofs: dict[Bound, float] = {"compute": work.compute_s, "memory": work.memory_s, "network": work.network_s}
    highest = max(roofs, key=lambda bound: roofs[bound])
    if work.fixed_s >= work.seconds - work.fixed_s:
        return "overhead", roofs[highest]
    return highest, roofs[highest]
