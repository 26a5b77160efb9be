"""What a pass takes beside its kernels: the host's work that the GPU waits for, and launches that a graph hides.

The op curves come from micro-benchmarks, in which each kernel pays its own launch. Engines replay a decode step as one
captured graph, where part of that latency is hidden. A prompt's pass is launched kernel by kernel: its first token
reaches the client later than its kernels end. Numbers: the engine profiles (hardware/engines), fitted on served rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from pddplan.llm.types import LanguageModel
from pddplan.perf.curves import EfficiencyCurves, with_kernels
from pddplan.perf.instance import Array, Instance, feed_forward_groups, stage_imbalance
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


def expert_layers(model: LanguageModel) -> int:
    """Layers with routed experts."""
    return sum(count for ffn, count in feed_forward_groups(model).items() if ffn.kind == "moe")


def with_host(instance: Instance, kernels_s: Array, rows: Array) -> Array:
    """Time of a pass through all stages [s] from that of its kernels, one stage after the other.

    ``(kernels + layers layer + expert layers x expert_layer) x fullest stage over the mean + step + request x rows``,
    rows being the requests of a scheduling unit. Monotone in both.
    """
    engine, model = instance.engine, instance.model
    layers = engine.layer_overhead_s * model.layers + engine.expert_layer_overhead_s * expert_layers(model)
    seconds = (kernels_s + layers) * stage_imbalance(model, instance.parallelism.pp)
    drafts = math.ceil(engine.mtp_accepted_tokens)
    return np.asarray(seconds + engine.step_overhead_s + engine.request_overhead_s * rows / drafts)


def first_output_s(engine: Engine, model: LanguageModel, step_s: float) -> float:
    """From the end of a prompt's kernels to the first output that the client sees, the router excluded [s].

    ``first_output + first_output_steps x step + expert layers x expert_first_output``; ``step_s``: a decode step.
    """
    steps = engine.first_output_steps * step_s
    return engine.first_output_s + steps + engine.expert_first_output_s * expert_layers(model)
