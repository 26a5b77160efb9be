"""KV from a prefill worker to a decode worker of the same site, over their NICs."""

from __future__ import annotations

from pddplan.estimate.pools import mean_input
from pddplan.estimate.records import OperatingPoint
from pddplan.llm.kv import kv_bytes, kv_last_layer_bytes
from pddplan.perf.host import handoff_s
from pddplan.perf.instance import request_nic_bytes_per_s
from pddplan.serve.overlap import rdma_exposed_s
from pddplan.spec.catalogue import link_defaults


def kv_transfer_s(point: OperatingPoint, prefill_s: float, step_s: float = 0.0) -> float:
    """Exposed time of the whole KV of a mean request, sent layer by layer while prefill runs [s].

    ``handoff + latency +`` what ``rdma_exposed_s`` says at the slower of both ends' NICs; handoff: see
    ``perf.host.handoff_s``, at decode steps of ``step_s``. Without a NIC no bytes are charged.
    """
    handed = handoff_s(point.engine, step_s)
    links = link_defaults()
    rate = min(request_nic_bytes_per_s(w.chip, w.parallelism, links.nic_goodput) for w in point.pools)
    if rate <= 0.0:
        return handed
    length, kv_format = mean_input(point.lengths), point.pools[-1].kv_cache
    whole = float(kv_bytes(point.model, length, kv_format))
    last = float(kv_last_layer_bytes(point.model, length, kv_format))
    exposed = float(rdma_exposed_s(whole, last, rate, prefill_s, point.model.layers))
    return handed + links.nic_latency_s + exposed
