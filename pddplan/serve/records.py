"""What the evaluation of a plan returns: quantiles with owning stage, loads, shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pddplan.errors import Excuse
from pddplan.perf.utilization import Utilization
from pddplan.spec.types import Metric, Role


@dataclass(frozen=True)
class SloValue:
    """One service level: its value in this plan against its limit, and the stage that owns it."""

    metric: Metric
    quantile: float
    value_s: float
    limit_s: float | None  # None: reported, not limited
    stage: str  # prefill_queue | prefill | line | relay | rdma | main_decode | hand_over | router
    workload: str | None = None  # whose requests, where a scenario has several workloads

    @property
    def met(self) -> bool:
        return self.limit_s is None or self.value_s <= self.limit_s * (1 + 1e-9)


@dataclass(frozen=True)
class PoolLoad:
    """Occupancy of one pool at the planned rate."""

    role: Role
    busy_share: float  # prefill: rho; decode: mean occupancy / slots
    mean_batch: float  # running requests per instance
    step_s: float  # decode step or mean prefill time
    utilization: Utilization | None  # None where it isn't known (measured rates)
    slot_room: float | None = None  # decode: 1 - load over the most that the admission row allows


@dataclass(frozen=True)
class LineLoad:
    needed_bytes_per_s: float  # mean
    capacity_bytes_per_s: float  # goodput, our share
    utilization: float
    bytes_per_request: float


@dataclass(frozen=True)
class Routing:
    direct_share: float
    relay_share: float
    filtered_share: float
    relay_token_share: float
    threshold_s: float | None  # relay iff the predicted exposed transfer exceeds it
    stay_s: float = 0.0  # least stay on the relay, inf to the last token
    saved_bytes_share: float = 0.0
    owed_bytes_share: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """A plan under the full model. Feasible iff ``excuses`` is empty."""

    slo: tuple[SloValue, ...]  # limits first, in the scenario's order, then reported ones
    loads: tuple[PoolLoad, ...]  # of each pool of the plan, in its order
    lines: tuple[LineLoad, ...]  # of each line
    routing: Routing
    prefill_hit_rate: float
    decode_hit_rate: float
    loop_gain: float
    excuses: tuple[Excuse, ...]
    within_slo_share: float  # P(TTFT and TPOT within their limits)
    hand_over_limit_tokens: float | None = None
    notes: tuple[str, ...] = ()
    relay_limited: bool = True  # infeasible: whether another relay pool could have mattered

    @property
    def feasible(self) -> bool:
        return not self.excuses

    @property
    def pools(self) -> Mapping[Role, PoolLoad]:
        """Load of the first pool of each role."""
        return {load.role: load for load in reversed(self.loads)}

    @property
    def line(self) -> LineLoad | None:
        """The first line."""
        return self.lines[0] if self.lines else None

    @classmethod
    def failed(cls, *excuses: Excuse) -> Evaluation:
        """Where a stage gave out: nothing is known of the rest."""
        nothing = Routing(0.0, 0.0, 0.0, 0.0, None)
        return cls((), (), (), nothing, math.nan, math.nan, math.nan, excuses, 0.0)

    @property
    def line_bytes_per_s(self) -> tuple[float, ...]:
        """Mean bytes on each line [B/s]."""
        return tuple(line.needed_bytes_per_s for line in self.lines)
