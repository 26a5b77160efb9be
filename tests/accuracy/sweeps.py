"""Sweeps over loads and lengths that the model itself has answered, under factors that a test knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pddplan.accuracy.csvfile import parse_table
from pddplan.accuracy.factors import Changed
from pddplan.accuracy.predict import figures_of
from pddplan.accuracy.records import TIMES, MeasuredRow, Measurements
from pddplan.accuracy.rows import measurements_of
from pddplan.errors import Excuse
from pddplan.estimate.estimate import estimate_many

HEADER = "model,chip,mode,engine,weights,isl,osl,concurrency,tp"
H100 = "nvidia-h100-sxm"
TRUE = {(H100, "compute"): 0.8, (H100, "memory"): 0.9, ("vllm", "step_overhead_ms"): 3.0}
LENGTHS = ((1024, 256), (4096, 256), (16384, 128))


def sweep(
    true: Mapping[tuple[str, str], float],
    *,
    tps: Sequence[int] = (1, 2),
    lengths: Sequence[tuple[int, int]] = LENGTHS,
    users: Sequence[int] = (1, 4, 16, 64),
    noise: float = 0.0,
) -> Measurements:
    """Llama 3.1 8B on H100s under vLLM whose factors are ``true``, with log-normal noise."""
    cells = [
        f"llama-3.1-8b,h100,aggregated,vllm,bf16,{isl},{osl},{c},{tp}"
        for tp in tps
        for isl, osl in lengths
        for c in users
    ]
    read = measurements_of(parse_table("\n".join([HEADER, *cells]), "sweep.csv"))
    changed = Changed()
    points = [row.parts[0].point for row in read.rows]
    answers = estimate_many([changed.point(point, true) for point in points])
    random = np.random.default_rng(7)
    rows: list[MeasuredRow] = []
    for row, answer in zip(read.rows, answers, strict=True):
        assert not isinstance(answer, Excuse)
        figures = figures_of(answer)
        rows.append(
            replace(row, measured={m: figures[m] * float(np.exp(noise * random.standard_normal())) for m in TIMES})
        )
    return replace(read, rows=tuple(rows))


def as_csv(measurements: Measurements) -> str:
    """The sweep as a person would keep it."""
    lines = [f"{HEADER},ttft_ms,tpot_ms"]
    for row in measurements.rows:
        point = row.parts[0].point
        layout, lengths = point.pools[0].parallelism, point.lengths
        cells = (lengths.input_tokens, lengths.output_tokens, point.concurrency, layout.tp, *row.measured.values())
        lines.append("llama-3.1-8b,h100,aggregated,vllm,bf16," + ",".join(f"{c:.8g}" for c in cells if c is not None))
    return "\n".join(lines) + "\n"
