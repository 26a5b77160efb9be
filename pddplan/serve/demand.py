"""The traffic of a scenario in bytes: what each atom stores, sends and computes, before any plan is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.llm.kv import hit_granularity_tokens, kv_bytes, kv_last_layer_bytes, transfer_bytes
from pddplan.llm.pool import paged_bytes
from pddplan.llm.types import LanguageModel
from pddplan.serve.idle_sessions import IdleSessions, gap_laws
from pddplan.serve.traffic import Atoms, mix_atoms
from pddplan.spec.workload import Traffic

Array = NDArray[np.float64]

EDGE = 1e-12  # share of the requests below which an atom isn't in a band


@dataclass(frozen=True)
class Demand:
    """Atoms with their KV sizes [bytes], arrays of shape (atoms,)."""

    model: LanguageModel
    kv_format: str
    traffic: Traffic
    atoms: Atoms
    sessions: IdleSessions
    kv_prompt: Array  # KV(L)
    kv_prefix: Array  # KV(hit): what prefill fetches from a pool-wide store
    kv_session: Array  # KV(L + n): what an idle session holds
    kv_last_layer: Array  # last layer's share of KV(L): the part no overlap can hide
    delta_held: Array  # bytes to send when main decode still holds the prefix
    delta_cold: Array  # bytes to send when it holds nothing
    equal_pages: bool = False  # the engine's: layers of all kinds share one page size, see ``llm.pool``
    others: dict[str, Demand] = field(default_factory=dict, repr=False, compare=False)  # see ``in_format``
    cut: tuple[Demand, float, float] | None = field(default=None, repr=False, compare=False)  # a ``band``: of what

    def in_format(self, kv_format: str) -> Demand:
        """The same traffic with its caches in another format, made once: what a pool or a line holds that hasn't the
        scenario's. Hits are rounded to the pages of the scenario's format everywhere, so the atoms are the same."""
        if kv_format == self.kv_format:
            return self
        if kv_format not in self.others:
            if self.cut is None:
                made = demand_of(self.traffic, self.model, kv_format, self.atoms, self.equal_pages)
            else:
                whole, low, high = self.cut
                made = whole.in_format(kv_format).band(low, high)
            self.others[kv_format] = made
        return self.others[kv_format]

    @cached_property
    def middle_context(self) -> Array:
        """Context in the middle of a request's output, L + n/2 [tokens]."""
        return self.atoms.prompt + 0.5 * self.atoms.output

    @cached_property
    def output_context(self) -> Array:
        """Sum of the contexts over a request's output, n (L + n/2) [tokens^2]."""
        return self.atoms.output * self.middle_context

    @cached_property
    def mean_output(self) -> float:
        """E[n], output tokens of a request."""
        return self.atoms.mean(self.atoms.output)

    @cached_property
    def token_context(self) -> float:
        """Mean context of an output token, E[n (L + n/2)] / E[n]: what main decode holds without a relay [tokens]."""
        return self.atoms.mean(self.output_context) / self.mean_output

    @cached_property
    def token_context_cv2(self) -> float:
        """Squared CV of an output token's context, E[n ((L + n/2)^2 + n^2/12)]/E[n]/mean^2 - 1, over all tokens."""
        n = self.atoms.output
        second = self.atoms.mean(n * (self.middle_context**2 + n**2 / 12.0)) / self.mean_output
        return max(second / self.token_context**2 - 1.0, 0.0)

    @cached_property
    def bursts_that_last(self) -> float:
        """Share of the arrivals' excess variance that the number of running requests keeps, E[min(n, n')]/E[n] of two
        requests: ``integral of P(n > t)^2 / E[n]``, the peakedness of an infinite-server queue (Eckberg 1983)."""
        order = np.argsort(self.atoms.output, kind="stable")
        n, weight = self.atoms.output[order], self.atoms.weight[order]
        above = np.clip(1.0 - np.concatenate([[0.0], np.cumsum(weight)[:-1]]) / weight.sum(), 0.0, 1.0)
        return float((np.diff(n, prepend=0.0) * above**2).sum() / self.mean_output)

    @cached_property
    def mean_context(self) -> float:
        """E[L + n/2] over requests [tokens]."""
        return self.atoms.mean(self.middle_context)

    @cached_property
    def _mean_delta(self) -> tuple[Array, Array]:
        return self.atoms.by_workload(self.delta_held), self.atoms.by_workload(self.delta_cold)

    def mean_delta(self, held_share: float) -> float:
        """Mean bytes to send when main decode holds a share ``held_share`` of the prefixes, see ``IdleSessions``."""
        return self.sessions.mean(held_share, *self._mean_delta)

    def held(self, held_share: float) -> Array | float:
        """Share of each atom's requests whose prefix main decode holds, (atoms,), a number for one workload."""
        return self.sessions.of_each(held_share)[self.atoms.workload] if self.sessions.several else held_share

    def band(self, low: float, high: float) -> Demand:
        """The requests between two quantiles of the order by uncached tokens; an atom on an edge is split."""
        order = self.atoms.by_uncached
        above = np.cumsum(self.atoms.weight[order])
        above /= above[-1]
        below = np.concatenate([[0.0], above[:-1]])
        inside = np.maximum(np.minimum(above, high) - np.maximum(below, low), 0.0)
        weight = np.empty(self.atoms.weight.size)
        weight[order] = inside
        # of several workloads none may lose its last atom: each keeps its place in all that is by workload
        kept = np.flatnonzero(weight > EDGE) if self.atoms.workloads == 1 else np.arange(weight.size)
        atoms = replace(
            self.atoms,
            weight=weight[kept] / weight[kept].sum(),
            **{name: getattr(self.atoms, name)[kept] for name in ("prompt", "cached", "output", "workload")},
        )
        arrays = ("kv_prompt", "kv_prefix", "kv_session", "kv_last_layer", "delta_held", "delta_cold")
        sizes = {name: getattr(self, name)[kept] for name in arrays}
        # one cache holds the sessions of all bands: their gaps and shares are those of the whole traffic
        sessions = replace(self.sessions, kv_mean=atoms.mean(sizes["kv_session"]))
        return replace(self, atoms=atoms, sessions=sessions, others={}, cut=(self, low, high), **sizes)

    @property
    def layers(self) -> int:
        return self.model.layers

    def kv_at(self, tokens: Array) -> Array:
        """Bytes of the KV pool that a running sequence of ``tokens`` takes, any shape: KV(L), or its pages."""
        size = paged_bytes if self.equal_pages else kv_bytes
        return np.asarray(size(self.model, tokens, self.kv_format), dtype=float)


def build_demand(traffic: Traffic, model: LanguageModel, kv_format: str, equal_pages: bool = False) -> Demand:
    """Demand of all workloads for one model and KV format, under an engine whose pages are equal or not."""
    atoms = mix_atoms(traffic, float(hit_granularity_tokens(model, kv_format)))
    return demand_of(traffic, model, kv_format, atoms, equal_pages)


def demand_of(traffic: Traffic, model: LanguageModel, kv_format: str, atoms: Atoms, equal_pages: bool) -> Demand:
    """Demand of the atoms as they are; ``traffic`` gives rate, sessions and what else isn't of a single request."""
    share = atoms.cached / atoms.prompt
    session = np.asarray(kv_bytes(model, atoms.prompt + atoms.output, kv_format), dtype=float)
    return Demand(
        model=model,
        kv_format=kv_format,
        traffic=traffic,
        atoms=atoms,
        sessions=_sessions(traffic, atoms, session),
        kv_prompt=np.asarray(kv_bytes(model, atoms.prompt, kv_format), dtype=float),
        kv_prefix=np.where(atoms.cached > 0, kv_bytes(model, np.maximum(atoms.cached, 1.0), kv_format), 0.0),
        kv_session=session,
        kv_last_layer=np.asarray(kv_last_layer_bytes(model, atoms.prompt, kv_format), dtype=float),
        delta_held=np.asarray(transfer_bytes(model, atoms.prompt, share, kv_format), dtype=float),
        delta_cold=np.asarray(transfer_bytes(model, atoms.prompt, np.zeros_like(share), kv_format), dtype=float),
        equal_pages=equal_pages,
    )


def _sessions(traffic: Traffic, atoms: Atoms, kv_session: Array) -> IdleSessions:
    """What of the traffic main decode's cache of idle sessions sees."""
    kv, cached = atoms.by_workload(kv_session), atoms.by_workload(atoms.cached)
    hits = cached / cached.sum() if cached.sum() > 0 else np.asarray(atoms.parts)
    own = [float(weight @ atoms.cached) / float(weight @ atoms.prompt) for weight in atoms.weights]
    given = [w.decode_prefix_hit_rate for w in traffic.workloads]
    pinned = [min(g / x, 1.0) if x > 0 else 0.0 for g, x in zip(given, own, strict=True) if g is not None]
    return IdleSessions(
        gaps=gap_laws([(w.sessions.turns, w.sessions.gap_p50_s, w.sessions.gap_p90_s) for w in traffic.workloads]),
        kv_mean=atoms.mean(kv_session),
        kv_parts=tuple((kv / kv.sum()).tolist()),
        hit_parts=tuple(hits.tolist()),
        pinned=tuple(pinned) if traffic.pinned else None,
    )
