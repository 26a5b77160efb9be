"""What a pass takes beside its kernels: the host's work that the GPU waits for, and launches that a graph hides.

The op curves come from micro-benchmarks, in which each kernel pays its own launch. Engines replay a decode step as one
captured graph, where part of that latency is hidden. A prompt's pass is launched kernel by kernel: its first token
reaches the client later than its kernels end. Numbers: the engine profiles (hardware/engines), fitted on served rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from pddplan.llm.comm import moe_layers
from pddplan.llm.types import LanguageModel
from pddplan.perf.curves import EfficiencyCurves, with_kernels
from pddplan.perf.instance import Array, Instance, stage_imbalance
from pddplan.spec.identity import Same
from pddplan.spec.types import Engine


def engine_curves(curves: EfficiencyCurves, engine: Engine) -> EfficiencyCurves:
    """``curves`` as an engine runs them: every kernel's fixed time multiplied by ``launch_share`` (0, 1] (collectives
    stay, they wait for their peers), experts on the engine's own kernel where the family has a curve for it."""
    if engine.launch_share == 1.0 and not engine.expert_kernel:
        return curves
    return _scaled(Same(curves), engine.launch_share, engine.expert_kernel)


@lru_cache(maxsize=64)
def _scaled(key: Same[EfficiencyCurves], share: float, kernel: str) -> EfficiencyCurves:
    curves = key.value
    own = {k: curves.grouped_gemm.get(f"{k}/{kernel}", c) for k, c in curves.grouped_gemm.items()}

    def less(record: Any) -> Any:
        return replace(record, overhead_s=record.overhead_s * share)

    return with_kernels(replace(curves, grouped_gemm=own), less, op_overhead_s=curves.op_overhead_s * share)


@dataclass(frozen=True)
class HostTime:
    """What the host adds to the kernels of a pass [s]: per layer of all stages; per step and request once."""

    layers_s: float
    expert_layers_s: float
    step_s: float
    requests_s: Array


def host_time(instance: Instance, rows: Array) -> HostTime:
    """Overheads of the engine for ``rows`` requests of a scheduling unit; those of drafts count once."""
    engine, model = instance.engine, instance.model
    return HostTime(
        layers_s=engine.layer_overhead_s * model.layers,
        expert_layers_s=engine.expert_layer_overhead_s * moe_layers(model),
        step_s=engine.step_overhead_s,
        requests_s=np.asarray(engine.request_overhead_s * rows / math.ceil(engine.mtp_accepted_tokens)),
    )


def with_host(instance: Instance, kernels_s: Array, rows: Array) -> Array:
    """Time of a pass through all stages [s] from that of its kernels, one stage after the other.

    ``(kernels + layers + expert layers) x fullest stage over the mean + step + requests``. Monotone in both.
    """
    host = host_time(instance, rows)
    seconds = kernels_s + (host.layers_s + host.expert_layers_s)
    fullest = stage_imbalance(instance.model, instance.parallelism.pp)
    return np.asarray(seconds * fullest + host.step_s + host.requests_s)


def handoff_s(engine: Engine, step_s: float) -> float:
    """From prefill to decode in separate workers, beside the bytes [s]: ``handoff + handoff_steps x step``."""
    return engine.handoff_s + engine.handoff_steps * step_s


def first_output_s(engine: Engine, model: LanguageModel, step_s: float) -> float:
    """From the end of a prompt's kernels to the first output that the client sees, the router excluded [s].

    ``first_output + first_output_steps x step + expert layers x expert_first_output``; ``step_s``: a decode step.
    """
    steps = engine.first_output_steps * step_s
    return engine.first_output_s + steps + engine.expert_first_output_s * moe_layers(model)
