"""KV from a prefill worker to a decode worker of the same site, over their NICs."""

from __future__ import annotations

from pddplan.estimate.pools import mean_input
from pddplan.estimate.records import OperatingPoint, Workers
from pddplan.llm.kv import kv_bytes, kv_last_layer_bytes
from pddplan.spec.catalogue import link_defaults


def nic_bytes_per_s(workers: Workers, goodput: float) -> float:
    """NIC x the chips that hold one request's KV (tp x pp) x goodput [B/s]."""
    ranks = workers.parallelism.tp * workers.parallelism.pp
    return workers.chip.scale_out_bytes_per_s * ranks * goodput


def kv_transfer_s(point: OperatingPoint, prefill_s: float) -> float:
    """Exposed time of the whole KV of a mean request, sent layer by layer while prefill runs [s].

    ``handoff + latency + max(KV/rate - T_P (1 - 1/layers), KV_last/rate)``, rate the slower of both ends' NICs
    (2-model.md section 5); handoff: what the engine's router and registration take. Without a NIC no bytes are charged.
    """
    links = link_defaults()
    rate = min(nic_bytes_per_s(workers, links.nic_goodput) for workers in point.pools)
    if rate <= 0.0:
        return point.engine.handoff_s
    length, kv_format = mean_input(point.lengths), point.pools[-1].kv_cache
    whole = float(kv_bytes(point.model, length, kv_format)) / rate
    last = float(kv_last_layer_bytes(point.model, length, kv_format)) / rate
    return (
        point.engine.handoff_s + links.nic_latency_s + max(whole - prefill_s * (1.0 - 1.0 / point.model.layers), last)
    )
