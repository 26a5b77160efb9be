"""How busy the four dimensions of a chip are: compute, memory capacity, memory bandwidth, interconnect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pddplan.perf.instance import Array, Instance
from pddplan.perf.layers import OpTime
from pddplan.perf.ops import compute_dtype


@dataclass(frozen=True)
class Utilization:
    """Shares of a chip's peaks, 0..1."""

    compute: float
    memory_capacity: float
    memory_bandwidth: float
    interconnect: float


@dataclass(frozen=True)
class PeakSeconds:
    """Time that the work of a pass would take at the peak of each dimension [s], summed over stages.

    compute = sum flops / peak(dtype), memory = sum bytes / bandwidth, interconnect = sum sent bytes / link.
    """

    compute: Array
    memory: Array
    interconnect: Array


def peak_seconds(instance: Instance, ops: Iterable[OpTime]) -> PeakSeconds:
    """Roof times of a list of ops, ``count`` launches each [s]. The link is NIC or scale-up, whichever the stage
    spans."""
    chip = instance.chip
    link = chip.scale_up_bytes_per_s
    if instance.parallelism.stage_chips > chip.scale_up_domain and chip.scale_out_bytes_per_s > 0.0:
        link = max(link, chip.scale_out_bytes_per_s)
    compute: Array = np.zeros(())
    memory: Array = np.zeros(())
    wire: Array = np.zeros(())
    for op in ops:
        compute = compute + op.count * op.flops / chip.peak_flops[compute_dtype(chip, op.dtype)]
        memory = memory + op.count * op.memory_bytes / chip.memory_bytes_per_s
        wire = wire + op.count * op.link_bytes / link
    return PeakSeconds(compute, memory, wire)


def utilization(peaks: PeakSeconds, seconds: Array, load: float, capacity_used: float) -> Utilization:
    """Mean over the operating points of peak time / real time, times the share of time the instance works
    (``load``)."""

    def share(busy: Array) -> float:
        total = float(np.sum(np.broadcast_to(seconds, np.broadcast(busy, seconds).shape)))
        worked = float(np.sum(np.broadcast_to(busy, np.broadcast(busy, seconds).shape)))
        return min(load * worked / total, 1.0) if total > 0.0 else 0.0

    return Utilization(
        share(peaks.compute), min(max(capacity_used, 0.0), 1.0), share(peaks.memory), share(peaks.interconnect)
    )
