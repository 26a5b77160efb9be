"""What an estimate is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pddplan.errors import Excuse
from pddplan.llm.types import LanguageModel
from pddplan.perf.curves import EfficiencyCurves
from pddplan.perf.instance import Parallelism
from pddplan.perf.memory import MemoryMap
from pddplan.spec.types import Chip, Engine

Mode = Literal["aggregated", "disaggregated", "prefill", "decode"]
MODES: tuple[Mode, ...] = ("aggregated", "disaggregated", "prefill", "decode")
Phase = Literal["prefill", "decode", "mixed"]
Bound = Literal["compute", "memory", "network", "overhead"]


@dataclass(frozen=True)
class Workers:
    """``count`` alike instances of ``parallelism`` on ``chip``, each under ``weights`` and ``kv_cache`` formats."""

    chip: Chip
    parallelism: Parallelism
    count: int
    weights: str
    kv_cache: str
    curves: EfficiencyCurves | None = None  # default: those of the chip's family

    @property
    def chips(self) -> int:
        return self.count * self.parallelism.chips


@dataclass(frozen=True)
class Lengths:
    """Tokens of a request: nominal input and output, drawn uniformly from [shortest, 1] x nominal, independently."""

    input_tokens: float
    output_tokens: float
    prefix_hit: float = 0.0  # share of the input that is cached where prefill runs, 0..1
    shortest: float = 1.0  # 1: all alike; InferenceX draws from 0.8

    @property
    def mean_share(self) -> float:
        return 0.5 * (1.0 + self.shortest)


@dataclass(frozen=True)
class OperatingPoint:
    """A deployment and its load. Exactly one of ``concurrency`` (closed loop: that many users, each sends its next
    request when the last one is answered, all start at once) and ``request_rate_per_s`` (Poisson) is given.

    ``pools``: one for aggregated, prefill and decode; (prefill, decode) for disaggregated. Concurrency and rate are of
    the whole deployment.
    """

    mode: Mode
    model: LanguageModel
    engine: Engine
    pools: tuple[Workers, ...]
    lengths: Lengths
    concurrency: float | None = None
    request_rate_per_s: float | None = None
    requests_per_user: float = 10.0  # how long a closed-loop run lasts: decides the weight of the common start

    @property
    def chips(self) -> int:
        return sum(pool.chips for pool in self.pools)


@dataclass(frozen=True)
class TtftParts:
    """Mean time to the first token [s], by what it is spent on; ``mean`` is their sum."""

    queue: float
    prefill: float
    transfer: float
    first_step: float

    @property
    def mean(self) -> float:
        return self.queue + self.prefill + self.transfer + self.first_step


@dataclass(frozen=True)
class OpShare:
    """One op of a phase's pass: all its launches together; share of the pass; what bounds it; share of that peak."""

    name: str
    phase: Phase
    time_s: float
    share: float
    bound: Bound
    fraction_of_peak: float


@dataclass(frozen=True)
class PoolMemory:
    """Memory of one worker of a pool, and the KV that the operating point keeps in it."""

    role: Mode
    memory: MemoryMap
    kv_held_bytes: float  # of one worker, mean
    most_requests: float  # that one worker can hold at this point's lengths


@dataclass(frozen=True)
class Estimate:
    """Answer for one operating point. Rates are tokens/s per chip of the pool that makes them; ``total`` counts input
    and output tokens over all chips. None where the mode has no such stage."""

    ttft: TtftParts | None
    tpot_s: float | None
    request_rate_per_s: float
    asked_concurrency: float | None
    effective_concurrency: float  # requests running on decode (or prefilling, in mode prefill) at once, mean
    prefill_tokens_per_s_per_chip: float | None
    decode_tokens_per_s_per_chip: float | None
    total_tokens_per_s_per_chip: float
    bottleneck: str  # prefill | decode | kv_memory | concurrency | engine
    memory: tuple[PoolMemory, ...]


Answer = Estimate | Excuse


def pool_roles(point: OperatingPoint) -> tuple[Mode, ...]:
    """What each pool of a point does, in their order."""
    return ("prefill", "decode") if point.mode == "disaggregated" else (point.mode,)
