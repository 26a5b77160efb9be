"""Requests of a solved plan as rows: what each kind waits for, sends and emits, before any metric is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.equilibrium import Flow, fetch_share
from pddplan.serve.line_stage import Transfer
from pddplan.serve.prefill_stage import PrefillStage

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Requests by kind, flattened: ``direct`` rows, then relayed ones, ``points`` for each pair. Shape (rows,)."""

    direct: int
    points: int
    weight: Array
    prompt_time: Array  # T_P
    exposed: Array  # line; 0 for relayed
    rdma: Array  # 0 for direct
    output: Array
    eager: Array
    pause: Array  # hand-over pause, relayed
    worst_pause: Array
    workload: NDArray[np.intp] | None = None  # of each row, None for a single one

    def of(self, workload: int) -> Rows:
        """The rows of one workload, their weights summing to 1."""
        assert self.workload is not None
        mine = self.workload == workload
        weight = self.weight[mine]
        return Rows(
            int(mine[: self.direct].sum()),
            self.points,
            weight / weight.sum(),
            self.prompt_time[mine],
            self.exposed[mine],
            self.rdma[mine],
            self.output[mine],
            self.eager[mine],
            self.pause[mine],
            self.worst_pause[mine],
        )

    @cached_property
    def later(self) -> Array:
        """Tokens after the first."""
        return np.maximum(self.output - 1.0, 0.0)

    @cached_property
    def on_relay(self) -> Array:
        """Of ``later``, those that the relay emits."""
        return np.minimum(self.eager, self.later)


def rows(context: Context, deployment: Deployment, stage: PrefillStage, move: Transfer, flow: Flow) -> Rows:
    """Flatten a flow. Pairs (kind, atom) of weight 0 are dropped."""
    output, line = context.demand.atoms.output, flow.line
    direct = flow.direct
    kind, atom = np.nonzero(direct > 0)
    exposed = _after_fetch(context, deployment, stage, flow)[kind, atom]
    points = line.probability.size
    head = kind.size * points

    def spread(values: Array, tail: Array | None = None) -> Array:
        return np.repeat(values if tail is None else np.concatenate([values, tail]), points)

    def behind(values: Array) -> Array:
        """Columns that only relayed rows have: 0 for direct ones."""
        return np.concatenate([np.zeros(head), values.ravel()])

    weight = (direct[kind, atom][:, None] * line.probability).ravel()
    of_atom = context.demand.atoms.workload if context.names else None
    if flow.ways is None or flow.relay is None or flow.handover is None:
        zero, times = np.zeros(head), spread(stage.time_s[atom])
        outputs = spread(output[atom])
        of_row = None if of_atom is None else np.repeat(of_atom[atom], points)
        return Rows(head, points, weight, times, exposed.ravel(), zero, outputs, zero, zero, zero, of_row)
    ways, pause, worst = flow.ways, flow.handover.pause_s, flow.handover.worst_pause_s
    goes, stays = np.flatnonzero(ways.relayed > 0), np.flatnonzero(ways.filtered > 0)
    both = ways.atom[np.concatenate([goes, stays])]
    ends = np.broadcast_to(output[ways.atom[stays]][:, None], (stays.size, points))  # the relay emits all of these
    none = np.zeros_like(ends)
    mass = np.concatenate([ways.relayed[goes], ways.filtered[stays]])[:, None] * line.probability
    return Rows(
        head,
        points,
        np.concatenate([weight, mass.ravel()]),
        spread(stage.time_s[atom], stage.time_s[both]),
        np.concatenate([exposed.ravel(), np.zeros(mass.size)]),
        spread(np.zeros(kind.size), move.rdma_s[both]),
        spread(output[atom], output[both]),
        behind(np.concatenate([flow.relay.eager[goes], ends])),
        behind(np.concatenate([pause[goes], none])),
        behind(np.concatenate([worst[goes], none])),
        None if of_atom is None else np.repeat(of_atom[np.concatenate([atom, both])], points),
    )


def _after_fetch(context: Context, deployment: Deployment, stage: PrefillStage, flow: Flow) -> Array:
    """Exposed time (2, atoms, points) where a share of the held prefixes comes from main decode's cache tier."""
    exposed, pool = flow.line.exposed, deployment.main
    if pool is None or pool.site.cache is None:
        return exposed
    shares, tier = fetch_share(context, pool, flow), pool.site.cache
    if not shares.any():
        return exposed
    share = shares[context.demand.atoms.workload][:, None]
    pace = max(tier.host_bytes_per_s * pool.decode.parallelism.tp, tier.remote_bytes_per_s, 1.0)
    late = np.maximum(context.demand_on(pool.offer).kv_prefix / pace - stage.time_s, 0.0)[:, None]
    return np.stack([np.maximum(exposed[0], share * late + (1 - share) * exposed[0]), exposed[1]])
