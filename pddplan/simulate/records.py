"""What a simulation is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pddplan.spec.types import Metric, Role

Array = NDArray[np.float64]

Stage = Literal["all", "prefill", "wan", "relay", "main"]
What = Literal["prefill", "relay_decode", "main_decode", "line", "rate", "cold_cache"]
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Change:
    """Something that happens at ``at_s`` of simulated time, after warm-up.

    ``what`` prefill, relay_decode, main_decode: so many instances of the ``place``-th pool of that role are up from
    then on; line: share of the ``place``-th line's capacity; rate: factor on the request rate; cold_cache: main decode
    forgets the idle sessions (``value`` has no meaning).
    """

    at_s: float
    what: What
    value: float = 0.0
    place: int = 0


@dataclass(frozen=True)
class Asked:
    """Settings of a run. Without ``changes`` it is one of steady state, whose warm-up is cut off."""

    requests: int = 200_000
    seed: int = 1
    changes: tuple[Change, ...] = ()
    p99_within: float | None = None  # go on until the TTFT p99's interval is so narrow, or MOST_REQUESTS


@dataclass(frozen=True)
class Script:
    """Sessions whose turns are given, a trace's for instance; each new session is one of them, drawn at random.

    ``first`` (sessions + 1,): where the turns of each begin, and the end. ``atom`` (turns,): index of the request in
    the demand; ``gap_s`` (turns,): from the answer before it, of first turns without meaning. ``at_s`` (turns,), if
    not None: sessions have a clock instead, each begins once, in ascending order, and a turn comes at its time or,
    if that is later, with the answer before it.
    """

    first: NDArray[np.int64]
    atom: NDArray[np.int64]
    gap_s: Array
    at_s: Array | None = None

    @property
    def mean_turns(self) -> float:
        return self.atom.size / (self.first.size - 1)


@dataclass(frozen=True)
class RelayRule:
    """A router that looks at nothing but the bytes that a request would send, what its session owes included.

    Above ``above_bytes`` it goes to the relay; ``only``: and ends there, nothing is sent to main decode.
    """

    above_bytes: float
    only: bool = False


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Relative to the value; inf where that is 0."""
        return 0.5 * (self.high - self.low) / self.value if self.value > 0 else float("inf")


@dataclass(frozen=True)
class Simulated:
    """A quantile of a metric: of ``all`` a request takes, or of what one stage adds to its first token, over the
    requests that pass it. ``analytic_s``: what ``solve`` prints, None where the formulas have no such figure."""

    metric: Metric
    quantile: float
    stage: Stage
    analytic_s: float | None
    simulated: Interval
    workload: str | None = None
    limit_s: float | None = None  # of the SLO row, if there is one

    @property
    def error(self) -> float | None:
        """analytic / simulated - 1."""
        if self.analytic_s is None or self.simulated.value <= 0:
            return None
        return self.analytic_s / self.simulated.value - 1.0

    @property
    def met(self) -> bool:
        return self.limit_s is None or self.simulated.value <= self.limit_s * (1 + 1e-9)


@dataclass(frozen=True)
class Share:
    """A figure of the formulas beside the simulated one."""

    name: str  # relay_share, relay_token_share, filtered_share, decode_hit_rate, within_slo_share, line_utilization
    analytic: float | None
    simulated: float


@dataclass(frozen=True)
class PoolSample:
    """One pool over the run."""

    role: Role
    instances: int
    busy_share: float  # prefill: busy servers; decode: requests / slots
    mean_batch: float  # running requests per instance
    waiting_share: float | None  # decode: requests that found no slot


@dataclass(frozen=True)
class Series:
    """Over time, shape (points,); times from the start of the run, warm-up included [s]."""

    times_s: Array
    prefill_waiting: Array  # requests
    prefill_busy: Array  # servers
    line_flows: Array
    line_load: Array  # of the capacity
    relay_requests: Array
    main_requests: Array
    main_waiting: Array
    idle_bytes: Array  # main decode's cache of idle sessions
    ttft_s: Array  # mean of the requests answered since the last point, nan without any
    late_share: Array  # of them, outside the SLO


@dataclass(frozen=True)
class Growth:
    """An overloaded run: no steady state, so no quantiles."""

    requests_per_s: float  # by which the number in the system grows
    stage: str  # where they pile up: prefill | line | relay_decode | main_decode
    missing: float  # capacity missing, as a share of what there is


@dataclass(frozen=True)
class Simulation:
    """A run's answer."""

    requests: int  # completed, after warm-up
    seed: int
    simulated_s: float  # after warm-up
    warmup_s: float
    warmup_requests: int
    throughput_rps: float
    littles_law_error: float  # relative: integral of the number in the system against the sum of times in it
    line_bytes_error: float  # relative: bytes that left the line against those of its flows
    quantiles: tuple[Simulated, ...]  # empty where ``growth``
    shares: tuple[Share, ...]
    pools: tuple[PoolSample, ...]
    series: Series
    growth: Growth | None = None
    compiled: bool = True  # False: numba is missing, the run was slow
    notes: tuple[str, ...] = ()
