"""Service times and memory of an instance from the roofline, by role; ``measured`` has the same from measured rates.

Units: tokens, seconds, bytes; arrays broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from pddplan.errors import Excuse
from pddplan.llm.kv import kv_bytes
from pddplan.perf.decode import decode_attention_ops
from pddplan.perf.host import engine_curves, with_host
from pddplan.perf.instance import Array, Instance, Parallelism
from pddplan.perf.layers import OpTime, token_ops
from pddplan.perf.memory import MemoryMap, memory_map
from pddplan.perf.prefill import chunk_split, prefill_attention_ops, sum_of_full_chunks
from pddplan.perf.tables import TokenTable, pass_seconds, token_table
from pddplan.perf.utilization import Utilization, peak_seconds, utilization

EXTEND_POINTS = (16.0, 256.0)  # tokens between which an extend pass is taken as a straight line
MAX_CONTEXT_TOKENS = 2.0**21  # end of the table over cached tokens; linear beyond


@dataclass(frozen=True)
class _Roofline:
    """Common to the three roofline services: the instance, its memory and the table of its passes."""

    instance: Instance
    memory: MemoryMap
    table: TokenTable

    @property
    def parallelism(self) -> Parallelism:
        return self.instance.parallelism

    @property
    def chips_per_instance(self) -> int:
        return self.instance.parallelism.chips

    @property
    def kv_pool_bytes(self) -> float:
        return self.memory.kv_pool_bytes

    @property
    def max_batch(self) -> float:
        return float(self.instance.engine.max_batch * self.instance.parallelism.dp)

    @property
    def chunk_tokens(self) -> int:
        return self.instance.engine.chunk_tokens

    @property
    def overlap(self) -> float | None:
        """Share of compute that the exchange takes while it is hidden; None where it isn't hidden."""
        engine = self.instance.engine
        if not engine.overlap_expert_communication or self.parallelism.dp == 1:
            return None
        return engine.overlap_compute_share

    def capacity_used(self, kv_bytes_held: float) -> float:
        """Share of a chip's memory in use when the instance holds ``kv_bytes_held``."""
        used = min(kv_bytes_held / self.memory.kv_pool_bytes, 1.0)
        return self.memory.capacity_used_without_kv + used * self.memory.kv_bytes_per_chip / self.memory.chip_bytes

    def pass_time_s(
        self, rank_tokens: Array, mean_tokens: Array, rows: Array, attention: Array, factor: float = 1.0
    ) -> Array:
        """Pass through all stages, what the host adds included [s]; kernels times ``factor``."""
        seconds = factor * pass_seconds(self.table, rank_tokens, mean_tokens, rows, attention, self.overlap)
        return with_host(self.instance, seconds, rows)

    @property
    def prompt_factor(self) -> float:
        return self.instance.engine.prompt_factor


def _seconds(ops: list[OpTime]) -> Array:
    total: Array = np.zeros(())
    for op in ops:
        total = total + op.count * op.seconds
    return total


@dataclass(frozen=True)
class RooflinePrefill(_Roofline):
    """Prefill times from passes of up to ``chunk_tokens`` per scheduling unit.

    All DP ranks are taken to run equal passes (they wait for each other at the experts). With pp stages the chunks of a
    request follow each other through the pipeline: it holds a stage for sum T / pp and its last chunk fills the rest
    once.
    """

    full_cached: Array
    full_seconds: Array

    @property
    def servers_per_instance(self) -> int:
        return self.parallelism.dp

    def _chunk_s(self, new: Array, cached: Array) -> Array:
        """A pass of ``new`` tokens of one request and nothing else."""
        one = np.ones(())
        attention = _seconds(prefill_attention_ops(self.instance, one, new, cached))
        return self.pass_time_s(new, new, one, attention, self.prompt_factor)

    def pool_pass_s(self, tokens: ArrayLike, prompt: ArrayLike, cached: ArrayLike) -> Array:
        """A pass over ``tokens`` new tokens of the whole instance [s]: prompts of ``prompt`` tokens after ``cached``.

        Prompts are spread over the DP ranks; a rank has one at least, whole or what fits the pass, and the pass takes
        as long as its fullest rank. Broadcasts; monotone in ``tokens``.
        """
        total, new, held = np.broadcast_arrays(*(np.asarray(a, dtype=float) for a in (tokens, prompt, cached)))
        ranks = self.parallelism.dp
        fullest = np.maximum(total / ranks, np.minimum(total, new))
        one = np.maximum(np.minimum(new, fullest), 1e-9)
        attention = _seconds(prefill_attention_ops(self.instance, fullest / one, one, held + 0.5 * (new - one)))
        rows = np.maximum(fullest / one, 1.0)
        return self.pass_time_s(fullest, total / ranks, rows, attention, self.prompt_factor)

    def _shared_chunk_s(self, new: Array, cached: Array) -> Array:
        """Share ``new/C`` of a full pass of C tokens made of C/new such pieces."""
        share = new / self.chunk_tokens
        attention = _seconds(prefill_attention_ops(self.instance, 1.0 / share, new, cached))
        full = np.asarray(float(self.chunk_tokens))
        return share * self.pass_time_s(full, full, 1.0 / share, attention, self.prompt_factor)

    def _split(self, uncached: ArrayLike, cached: ArrayLike) -> tuple[Array, Array, Array, Array, tuple[int, ...]]:
        u, c = np.broadcast_arrays(np.asarray(uncached, dtype=float), np.asarray(cached, dtype=float))
        flat_u, flat_c = np.maximum(u.ravel(), 1.0), c.ravel()
        full, tail = chunk_split(flat_u, self.chunk_tokens)
        return full, tail, flat_c, flat_c + full * self.chunk_tokens, u.shape

    def request_time_s(self, uncached: ArrayLike, cached: ArrayLike, merged: ArrayLike) -> Array:
        """Time of one request on one scheduling unit [s]: full passes + tail, alone or, with probability ``merged``,
        shared.

        ``sum_j T(C, c + jC) + (1 - merged) T(tail, c') + merged (tail/C) T(C; C/tail such tails)``; at least one token
        is computed. Through p stages of equal length passes follow each other: the sum of their times at a stage, and
        p - 1 times the longest (a flow shop whose machines are alike).
        """
        return self._time_s(uncached, cached, merged, fill=True)

    def _time_s(self, uncached: ArrayLike, cached: ArrayLike, merged: ArrayLike, fill: bool) -> Array:
        full, tail, start, last_cached, shape = self._split(uncached, cached)
        chance = np.broadcast_to(np.asarray(merged, dtype=float), shape).ravel()
        before = sum_of_full_chunks(full, start, self.chunk_tokens, self.full_cached, self.full_seconds)
        alone = self._chunk_s(tail, last_cached) if np.any(chance < 1.0) else np.zeros_like(tail)
        shared = self._shared_chunk_s(tail, last_cached) if np.any(chance > 0.0) else alone
        last = (1.0 - chance) * alone + chance * shared
        stages = self.parallelism.pp
        total = (before + last) / stages
        if fill and stages > 1:
            longest_full = np.interp(last_cached - self.chunk_tokens, self.full_cached, self.full_seconds)
            total = total + np.where(full > 0, np.maximum(last, longest_full), last) * (stages - 1) / stages
        return np.asarray(total.reshape(shape))

    def saturated_time_s(self, uncached: ArrayLike, cached: ArrayLike, weights: ArrayLike | None = None) -> Array:
        """What a request costs a scheduling unit whose queue is never empty [s].

        tail_merge cut: each tail shares a pass; never: each runs alone; whole_fit: shared with P(m' <= C - tail), the
        next request being drawn from these very atoms with ``weights`` (default: equal).
        """
        mode = self.instance.engine.tail_merge
        if mode == "never":
            return self._time_s(uncached, cached, 0.0, fill=False)
        if mode == "cut":
            return self._time_s(uncached, cached, 1.0, fill=False)
        return self._time_s(uncached, cached, self.merge_probability(uncached, cached, weights), fill=False)

    def merge_probability(self, uncached: ArrayLike, cached: ArrayLike, weights: ArrayLike | None = None) -> Array:
        """P(the next request's uncached tokens fit the room C - tail), for each atom, over the atoms themselves."""
        _, tail, _, _, shape = self._split(uncached, cached)
        u = np.maximum(np.broadcast_to(np.asarray(uncached, dtype=float), shape).ravel(), 1.0)
        w = np.ones_like(u) if weights is None else np.broadcast_to(np.asarray(weights, dtype=float), shape).ravel()
        order = np.argsort(u, kind="stable")
        below = np.concatenate([[0.0], np.cumsum(w[order])]) / max(float(w.sum()), 1e-300)
        room = self.chunk_tokens - tail
        return np.asarray(below[np.searchsorted(u[order], room, side="right")].reshape(shape))

    def last_pass_s(self, uncached: ArrayLike, cached: ArrayLike) -> Array:
        """Time of a request's last pass, run alone [s]: what layer-wise transfer can still overlap with."""
        _, tail, _, last_cached, shape = self._split(uncached, cached)
        return self._chunk_s(tail, last_cached).reshape(shape)

    def pass_ops(self, new: ArrayLike, cached: ArrayLike) -> list[OpTime]:
        """The ops of one pass of ``new`` tokens after ``cached`` ones."""
        n, c = np.asarray(new, dtype=float), np.asarray(cached, dtype=float)
        return token_ops(self.instance, n, np.ones_like(n)) + prefill_attention_ops(self.instance, np.ones(()), n, c)

    def utilization(self, uncached: ArrayLike, cached: ArrayLike, load: float) -> Utilization:
        """Four dimensions while serving this mix at utilisation ``load``: each request as passes of its mean chunk."""
        full, tail, start, last_cached, _ = self._split(uncached, cached)
        middle, passes = 0.5 * (start + last_cached), full + tail / self.chunk_tokens
        ops = self.pass_ops(np.minimum(full * self.chunk_tokens + tail, float(self.chunk_tokens)), middle)
        per_pass = peak_seconds(self.instance, ops)
        scaled = type(per_pass)(per_pass.compute * passes, per_pass.memory * passes, per_pass.interconnect * passes)
        seconds = self.saturated_time_s(uncached, cached).ravel() * self.parallelism.pp
        held = kv_bytes(self.instance.model, last_cached + tail, self.instance.kv_cache)
        used = self.capacity_used(float(np.mean(held)) * self.servers_per_instance * load)
        return utilization(scaled, np.maximum(seconds, 1e-12), load, used)


@dataclass(frozen=True)
class RooflineDecode(_Roofline):
    """Decode steps. With pp stages the batch is split into pp micro-batches that follow each other: a request's token
    takes one trip through all stages at B/pp, and all stages are busy."""

    @property
    def overlap(self) -> float | None:
        """As above, but low-latency exchange of decode steps is driven by the NIC and takes no compute."""
        return None if super().overlap is None else 0.0

    def _attention_s(self, per_rank: Array, context: Array) -> Array:
        return _seconds(decode_attention_ops(self.instance, np.maximum(per_rank, 1e-6), context))

    def step_time_s(self, batch: ArrayLike, context: ArrayLike) -> Array:
        """Time per output token at ``batch`` running requests on the instance, each holding ``context`` tokens [s].

        One step computes ceil(accepted) tokens per request (drafts are verified) and yields ``mtp_accepted_tokens``.
        Monotone in both; at batch 0 the floor: weights and overheads.
        """
        par, accepted = self.parallelism, self.instance.engine.mtp_accepted_tokens
        b = np.asarray(batch, dtype=float) / (par.dp * par.pp)
        b, held = np.broadcast_arrays(b, np.asarray(context, dtype=float))
        tokens = b * np.ceil(accepted)
        return self.pass_time_s(tokens, tokens, tokens, self._attention_s(b, held)) / accepted

    def extend_cost(self, context: ArrayLike, batch: ArrayLike = 0.0) -> tuple[Array, Array]:
        """(t0 [s], v [tokens/s]) of a pass over k known tokens of one request on top of ``batch`` running ones: t0 +
        k/v.

        The chord of T(k) between 16 and 256 tokens, the running batch's own step included in t0 (``batch`` 0: the pass
        alone). Only one DP rank has the extra tokens; experts see their mean.
        """
        par = self.parallelism
        held, b = np.broadcast_arrays(np.asarray(context, dtype=float), np.asarray(batch, dtype=float))
        b = b / (par.dp * par.pp)
        base = self._attention_s(b, held)
        low, high = (self._extend_s(k, b, held, base) for k in EXTEND_POINTS)
        slope = np.maximum(high - low, 1e-12) / (EXTEND_POINTS[1] - EXTEND_POINTS[0])
        return np.maximum(low - slope * EXTEND_POINTS[0], 0.0), 1.0 / slope

    def _extend_s(self, k: float, per_rank: Array, held: Array, base: Array) -> Array:
        new = np.full_like(held, k)
        attention = base + _seconds(prefill_attention_ops(self.instance, np.ones(()), new, held))
        mean = per_rank + k / self.parallelism.dp
        return self.pass_time_s(per_rank + k, mean, per_rank + 1.0, attention)

    def step_ops(self, batch: ArrayLike, context: ArrayLike) -> list[OpTime]:
        """The ops of one step (all stages)."""
        par = self.parallelism
        b, held = np.broadcast_arrays(
            np.asarray(batch, dtype=float) / (par.dp * par.pp), np.asarray(context, dtype=float)
        )
        tokens = b * np.ceil(self.instance.engine.mtp_accepted_tokens)
        return token_ops(self.instance, tokens, tokens) + decode_attention_ops(self.instance, b, held)

    def utilization(self, batch: ArrayLike, context: ArrayLike, load: float = 1.0) -> Utilization:
        """Four dimensions at this operating point; ``load``: share of time with a step running."""
        seconds = self.step_time_s(batch, context) * self.instance.engine.mtp_accepted_tokens
        held = float(np.mean(np.asarray(batch) * kv_bytes(self.instance.model, context, self.instance.kv_cache)))
        peaks = peak_seconds(self.instance, self.step_ops(batch, context))
        return utilization(peaks, seconds, load, self.capacity_used(held))


@dataclass(frozen=True)
class RooflineAggregated(_Roofline):
    """Mixed steps: a prefill chunk on each DP rank beside its share of the decode batch."""

    def step_time_s(
        self, batch: ArrayLike, context: ArrayLike, chunk_tokens: ArrayLike, chunk_cached: ArrayLike | None = None
    ) -> Array:
        """Time of a step with ``batch`` decodes on the instance and a chunk of ``chunk_tokens`` per scheduling unit
        [s].

        ``chunk_cached``: tokens before the chunk (default: half of ``context``). At chunk 0 a decode step; what a
        chunk adds is multiplied by the engine's ``prompt_factor``. Not divided by accepted tokens where a chunk runs:
        the step is as long as it is; the caller counts tokens.
        """
        par = self.parallelism
        cached = 0.5 * np.asarray(context, dtype=float) if chunk_cached is None else chunk_cached
        b, held, chunk, before = np.broadcast_arrays(
            np.asarray(batch, dtype=float) / (par.dp * par.pp),
            np.asarray(context, dtype=float),
            np.asarray(chunk_tokens, dtype=float),
            np.asarray(cached, dtype=float),
        )
        rows = b * np.ceil(self.instance.engine.mtp_accepted_tokens)
        decodes = _seconds(decode_attention_ops(self.instance, np.maximum(b, 1e-6), held))
        attention = decodes + _seconds(prefill_attention_ops(self.instance, np.ones(()), chunk, before))
        tokens = rows + chunk
        seconds = self.pass_time_s(tokens, tokens, rows + np.minimum(chunk, 1.0), attention)
        if self.prompt_factor == 1.0:
            return seconds
        plain = self.pass_time_s(rows, rows, rows, decodes)
        return np.asarray(plain + self.prompt_factor * (seconds - plain))

    def utilization(
        self, batch: ArrayLike, context: ArrayLike, chunk_tokens: ArrayLike, load: float = 1.0
    ) -> Utilization:
        """Four dimensions of a mixed step."""
        par = self.parallelism
        b = np.asarray(batch, dtype=float) / (par.dp * par.pp)
        held, chunk = np.asarray(context, dtype=float), np.asarray(chunk_tokens, dtype=float)
        ops = token_ops(self.instance, b + chunk, b) + decode_attention_ops(self.instance, b, held)
        ops += prefill_attention_ops(self.instance, np.ones(()), chunk, 0.5 * held)
        kept = float(np.mean(np.asarray(batch) * kv_bytes(self.instance.model, held, self.instance.kv_cache)))
        seconds = self.step_time_s(batch, context, chunk_tokens)
        return utilization(peak_seconds(self.instance, ops), seconds, load, self.capacity_used(kept))


def _as_run(instance: Instance) -> Instance:
    """The instance with its curves as its engine launches them."""
    return replace(instance, curves=engine_curves(instance.curves, instance.engine))


def prefill_service(instance: Instance) -> RooflinePrefill | Excuse:
    """Roofline prefill of an instance; an excuse where the model doesn't fit."""
    instance = _as_run(instance)
    engine = instance.engine
    memory = memory_map(instance, float(engine.chunk_tokens))
    if isinstance(memory, Excuse):
        return memory
    table = token_table(instance, float(engine.chunk_tokens))
    cached = np.concatenate([[0.0], np.geomspace(64.0, MAX_CONTEXT_TOKENS, 110)])
    draft = RooflinePrefill(instance, memory, table, cached, np.zeros_like(cached))
    seconds = draft._chunk_s(np.full_like(cached, float(engine.chunk_tokens)), cached)
    return RooflinePrefill(instance, memory, table, cached, seconds)


def decode_service(instance: Instance) -> RooflineDecode | Excuse:
    """Roofline decode of an instance; passes of the engine's largest batch must fit the memory."""
    instance = _as_run(instance)
    rows = instance.engine.max_batch * np.ceil(instance.engine.mtp_accepted_tokens)
    memory = memory_map(instance, float(rows))
    if isinstance(memory, Excuse):
        return memory
    return RooflineDecode(instance, memory, token_table(instance, 2.0 * float(rows)))


def aggregated_service(instance: Instance) -> RooflineAggregated | Excuse:
    """Roofline of mixed steps of up to chunk_tokens + max_batch tokens per scheduling unit."""
    instance = _as_run(instance)
    engine = instance.engine
    most = engine.chunk_tokens + engine.max_batch * float(np.ceil(engine.mtp_accepted_tokens))
    memory = memory_map(instance, float(most))
    if isinstance(memory, Excuse):
        return memory
    return RooflineAggregated(instance, memory, token_table(instance, 2.0 * most))
