"""What the layers above see of an instance in each role; the roofline and measured rates both have it.

Units: tokens, seconds, bytes; arrays broadcast.
"""

from __future__ import annotations

from typing import Protocol

from numpy.typing import ArrayLike

from pddplan.perf.instance import Array, Parallelism
from pddplan.perf.utilization import Utilization


class InstanceService(Protocol):
    """What an instance is in any role."""

    @property
    def chips_per_instance(self) -> int: ...
    @property
    def kv_pool_bytes(self) -> float: ...
    @property
    def parallelism(self) -> Parallelism: ...


class PrefillService(InstanceService, Protocol):
    """Prefill on one instance; a scheduling unit (DP rank) serves one request at a time, in passes of chunk_tokens."""

    @property
    def servers_per_instance(self) -> int: ...

    def request_time_s(self, uncached: ArrayLike, cached: ArrayLike, merged: ArrayLike) -> Array: ...
    def saturated_time_s(self, uncached: ArrayLike, cached: ArrayLike, weights: ArrayLike | None = None) -> Array: ...
    def last_pass_s(self, uncached: ArrayLike, cached: ArrayLike) -> Array: ...
    def utilization(self, uncached: ArrayLike, cached: ArrayLike, load: float) -> Utilization | None: ...


class DecodeService(InstanceService, Protocol):
    """Decode on one instance; ``max_batch`` is the engine's limit for the whole instance."""

    @property
    def max_batch(self) -> float: ...

    def step_time_s(self, batch: ArrayLike, context: ArrayLike) -> Array: ...
    def extend_cost(self, context: ArrayLike, batch: ArrayLike = 0.0) -> tuple[Array, Array]: ...
    def utilization(self, batch: ArrayLike, context: ArrayLike, load: float = 1.0) -> Utilization | None: ...


class AggregatedService(InstanceService, Protocol):
    """Prefill chunks and decodes in the same steps of one instance."""

    @property
    def max_batch(self) -> float: ...
    @property
    def chunk_tokens(self) -> int: ...

    def step_time_s(
        self, batch: ArrayLike, context: ArrayLike, chunk_tokens: ArrayLike, chunk_cached: ArrayLike | None = None
    ) -> Array: ...
    def utilization(
        self, batch: ArrayLike, context: ArrayLike, chunk_tokens: ArrayLike, load: float = 1.0
    ) -> Utilization | None: ...
