"""Tables and counts of an aggregated pool: what ``mixing`` works on."""

from __future__ import annotations

from typing import Any, NamedTuple

from pddplan.simulate.world import Floats, Ints, table_of

NEVER, WHOLE_FIT, CUT = range(3)  # tail_merge

# (kinds,): cumulative weight of all, tokens, workload.
MIX_KIND = table_of("workload", "cumulative prompt uncached output ttft_limit tpot_limit")
# (units,): queue of prompts; tokens that wait, tokens in the running step.
UNIT = table_of("head tail count", "work planned")
# (instances,): batch, prompts, version, 1: its step has prompts; tokens each has made, start and number of the steps
# that run, and their time.
MIX_INSTANCE = table_of("batch prompts version mixed", "progress began steps seconds")
# (requests at once,).
MIX_REQUEST = table_of("kind next unit position", "arrival start new before first_token pause left target")


class Mix(NamedTuple):
    """Tables and counts."""

    kinds: Any
    units: Any
    instances: Any
    requests: Any
    heap: Ints  # (instances, slots) requests by target
    batches: Floats  # grids of the step's time
    chunks: Floats
    befores: Floats
    step: Floats  # (batches, chunks, befores) [s]
    slots: int
    chunk: float
    accepted: float  # tokens a step
    merge: int
    mode: int  # prefix_cache
    leave: float  # affine: tokens at home above which a request goes elsewhere
    rate: float
    burstiness: float
    router: float
    now: Floats
    histogram: Ints
    total: Floats
    batch_sums: Floats
    series: Floats
