"""From what the event loop counted to an answer: warm-up cut off, quantiles with intervals, beside the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.context import Context
from pddplan.serve.deployment import Pool
from pddplan.serve.equilibrium import Flow
from pddplan.serve.latency import Mixture
from pddplan.serve.records import Evaluation
from pddplan.serve.slo import rows_of
from pddplan.simulate import world as wd
from pddplan.simulate.arriving import LEAST_S, PER_FOLD
from pddplan.simulate.build import Lane
from pddplan.simulate.compiled import COMPILED
from pddplan.simulate.growing import growth_of
from pddplan.simulate.mixed_world import Mix
from pddplan.simulate.records import (
    QUANTILES,
    Asked,
    Interval,
    PoolSample,
    Series,
    Share,
    Simulated,
    Simulation,
    Stage,
)
from pddplan.simulate.run import Run
from pddplan.spec.types import Metric

Array = NDArray[Any]

LEAST_CUT, MOST_CUT = 2, 16  # batches of warm-up
CONFIDENCE = 0.975
METRIC_OF: dict[Metric, int] = {"ttft": wd.TTFT, "tpot": wd.TPOT, "pause": wd.PAUSE, "e2e": wd.E2E}
STAGE_OF: dict[Stage, int] = {"prefill": wd.AT_PREFILL, "wan": wd.AT_LINE, "relay": wd.AT_RELAY, "main": wd.AT_MAIN}
FEW = 20  # requests of a stage below which its quantiles say nothing


def warm_up(means: Array) -> int:
    """Batches to cut off the start: the least standard error of the mean of what is left (MSER; White, Simulation 69
    (1997) 323)."""
    cuts = range(LEAST_CUT, min(MOST_CUT, means.size - 4) + 1)
    return min(cuts, key=lambda cut: float(np.var(means[cut:])) / (means.size - cut))


def quantile_of(histogram: Array, q: float) -> float:
    """Quantile of the counts in bins of half a per cent, linear within the bin [s]; 0 below a microsecond."""
    counts = np.cumsum(histogram, dtype=float)
    if counts[-1] <= 0:
        return math.nan
    target = q * counts[-1]
    at = int(np.searchsorted(counts, target))
    if at == 0:
        return 0.0
    inside = (target - counts[at - 1]) / max(counts[at] - counts[at - 1], 1.0)
    return LEAST_S * math.exp((at - 1 + inside) / PER_FOLD)


def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t, by its expansion around the normal one (Abramowitz and Stegun 26.7.5)."""
    z, v = NormalDist().inv_cdf(CONFIDENCE), max(freedom, 1)
    terms = (
        z,
        (z**3 + z) / (4 * v),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
    )
    return sum(terms)


def interval(whole: float, parts: Sequence[float]) -> Interval:
    """``whole`` with the 95 % interval of the mean of equal ``parts`` of the run around it."""
    known = np.array([part for part in parts if math.isfinite(part)])
    if known.size < 2:
        return Interval(whole, 0.0, math.inf)
    half = t_quantile(known.size - 1) * float(np.std(known, ddof=1)) / math.sqrt(known.size)
    return Interval(whole, max(whole - half, 0.0), whole + half)


def quantile(histogram: Array, q: float) -> Interval:
    """A quantile over batches (batches, bins); batches are joined until each has enough requests above it."""
    counts = histogram.sum(axis=1)
    total = float(counts.sum())
    groups = int(max(min(len(counts), total * (1.0 - q) / 25.0), 1))
    parts = [quantile_of(part.sum(axis=0), q) for part in np.array_split(histogram, groups)]
    return interval(quantile_of(histogram.sum(axis=0), q), parts)


def simulation_of(run: Run, evaluation: Evaluation, asked: Asked, rate: float) -> Simulation:
    """The answer of a finished run beside the ``evaluation`` of the same plan at ``rate``."""
    w = run.world
    growth = growth_of(w.series, rate, run.crowded, _loads(run, rate)) if not asked.changes else None
    cut = 0 if asked.changes or growth is not None else warm_batches(w.batch_sums)
    sums, seconds = w.batch_sums[cut:].sum(axis=0), float(w.now[wd.SEEN_AT])
    quantiles: tuple[Simulated, ...] = ()
    if growth is None:
        quantiles = _rows(w.histogram[:, :, cut:], evaluation, run.context) + _stages(run, cut)
    return Simulation(
        **_counted(w, cut, asked),
        line_bytes_error=_bytes_error(w),
        quantiles=quantiles,
        shares=_shares(run, evaluation, sums, seconds),
        pools=_pools(run, sums, seconds),
        series=series_of(run),
        growth=growth,
        compiled=COMPILED,
    )


def _loads(run: Run, rate: float) -> dict[str, float]:
    """Load of the stages at the asked rate, by the flows of the largest rate that the formulas have an answer for."""
    more = rate / sum(case.rate for case, _ in run.lanes)
    return {
        "prefill": more * max(case.stage.law.utilization for case, _ in run.lanes),
        "line": more * max(flow.line.rho for _, flow in run.lanes),
    }


def mixed_simulation_of(
    mix: Mix, crowded: bool, pool: Pool, context: Context, evaluation: Evaluation, asked: Asked
) -> Simulation:
    """The answer of a finished run of an aggregated pool."""
    loads = {e.subject: e.value for e in evaluation.excuses if e.constraint == "prefill_utilization"}
    growth = growth_of(mix.series, context.rate, crowded, {"prefill": max(loads.values(), default=0.0)})
    cut = 0 if growth is not None else warm_batches(mix.batch_sums)
    sums = mix.batch_sums[cut:].sum(axis=0)
    count = max(float(sums[wd.BATCH_COUNT]), 1.0)
    rows = mix.series[mix.series[:, wd.AT] > 0]
    batch, busy = float(rows[:, wd.ON_MAIN_NOW].mean()), float(rows[:, wd.PREFILL_BUSY].mean())
    return Simulation(
        **_counted(mix, cut, asked),
        line_bytes_error=0.0,
        quantiles=() if growth else _rows(mix.histogram[:, :, cut:], evaluation, context),
        shares=(
            Share("within_slo_share", evaluation.within_slo_share, float(sums[wd.BATCH_INSIDE]) / count),
            Share("prefill_wait_mean_s", None, float(sums[wd.BATCH_WAIT]) / count),
        ),
        pools=(PoolSample("aggregated", pool.instances, busy / pool.instances, batch / pool.instances, None),),
        series=_series(mix.series, 1.0),
        growth=growth,
        compiled=COMPILED,
    )


def warm_batches(batch_sums: Array) -> int:
    """Batches of warm-up, by the mean TTFT of each."""
    return warm_up(batch_sums[:, wd.BATCH_TTFT] / np.maximum(batch_sums[:, wd.BATCH_COUNT], 1.0))


def _counted(w: wd.World | Mix, cut: int, asked: Asked) -> dict[str, Any]:
    """What any run has counted."""
    counts, seconds = w.batch_sums[:, wd.BATCH_COUNT], float(w.now[wd.SEEN_AT])
    answered = float(counts[cut:].sum())
    began = _began(w, float(counts[:cut].sum()))
    return {
        "requests": int(answered),
        "seed": asked.seed,
        "simulated_s": seconds - began,
        "warmup_s": began,
        "warmup_requests": int(counts[:cut].sum()),
        "throughput_rps": answered / max(seconds - began, 1e-12),
        "littles_law_error": float(abs(w.total[wd.AREA] / max(w.total[wd.SPENT], 1e-300) - 1.0)),
    }


def _began(w: wd.World | Mix, answered: float) -> float:
    """When so many requests were answered [s]."""
    if answered <= 0:
        return 0.0
    filled = w.series[:, wd.AT] > 0
    done, at = w.series[filled, wd.DONE_SO_FAR], w.series[filled, wd.AT]
    return float(np.interp(answered, done, at)) if done.size else 0.0


def _bytes_error(w: wd.World) -> float:
    """Bytes that left against those of all flows less what still waits to be sent."""
    waiting = sum(
        float(w.requests["bytes"][w.flows[line, : w.lines["flow_count"][line]]].sum()) for line in range(w.lines.size)
    )
    sent = w.total[wd.FLOW_BYTES] - waiting
    return abs(w.total[wd.LINE_BYTES] / sent - 1.0) if sent > 0 else 0.0


# ---------------------------------------------------------------- quantiles


def _rows(histogram: Array, evaluation: Evaluation, context: Context) -> tuple[Simulated, ...]:
    """The rows that ``solve`` prints, from counts (workloads, metrics, batches, bins); without the formulas' values
    where these have no steady state, as of a log that is soon over."""
    formula = {(row.metric, row.quantile, row.workload): row.value_s for row in evaluation.slo}
    found = []
    for metric, q, limit_s, name in rows_of(context):
        own = histogram.sum(axis=0) if name is None else histogram[context.names.index(name)]
        value = quantile(own[METRIC_OF[metric]], q)
        found.append(Simulated(metric, q, "all", formula.get((metric, q, name)), value, name, limit_s))
    return tuple(found)


def _stages(run: Run, cut: int) -> tuple[Simulated, ...]:
    """What each stage adds to the first token."""
    found = []
    for stage, metric in STAGE_OF.items():
        counts = run.world.histogram[:, metric, cut:].sum(axis=0)
        if counts.sum() >= FEW:
            found += [
                Simulated("ttft", q, stage, _analytic(run.lanes, stage, q), quantile(counts, q)) for q in QUANTILES
            ]
    return tuple(found)


def _analytic(lanes: Sequence[Lane], stage: Stage, q: float) -> float | None:
    """What the formulas say of a stage's time, over the requests that pass it; of a single way only."""
    if len(lanes) != 1:
        return None
    case, flow = lanes[0]
    if stage == "prefill":
        return Mixture(case.context.demand.atoms.weight, case.stage.time_s, case.stage.law.survival, {}).quantile(q)
    if stage == "main":
        return float(flow.main.admission.quantile(q)) if math.isfinite(flow.main.occupancy.tpot_s) else None
    weight, value = _passing(case.move.rdma_s, flow, stage)
    return Mixture(weight, value, None, {}).quantile(q) if weight.size else None


def _passing(rdma_s: Array, flow: Flow, stage: Stage) -> tuple[Array, Array]:
    """(weights, times) of the requests that go over the line, or by the relay."""
    if stage == "wan":
        weight = (flow.direct[..., None] * flow.line.probability).ravel()
        value = np.broadcast_to(flow.line.exposed, (*flow.direct.shape, flow.line.probability.size)).ravel()
        return weight[weight > 0], value[weight > 0]
    if flow.ways is None:
        return np.empty(0), np.empty(0)
    return flow.ways.weight, rdma_s[flow.ways.atom]


# ---------------------------------------------------------------- shares and pools


def _shares(run: Run, evaluation: Evaluation, sums: Array, seconds: float) -> tuple[Share, ...]:
    w, routing = run.world, evaluation.routing
    count = max(float(sums[wd.BATCH_COUNT]), 1.0)
    load = w.busy[w.prefills.size + w.decodes.size :] / max(seconds, 1e-12)
    hit = evaluation.prefill_hit_rate
    law = run.lanes[0][0].stage.law if len(run.lanes) == 1 else None
    found = [
        Share("relay_share", routing.relay_share, sums[wd.BATCH_RELAYED] / count),
        Share("filtered_share", routing.filtered_share, sums[wd.BATCH_FILTERED] / count),
        Share(
            "relay_token_share",
            routing.relay_token_share,
            sums[wd.BATCH_RELAY_TOKENS] / max(sums[wd.BATCH_TOKENS], 1.0),
        ),
        Share("decode_hit_rate", evaluation.decode_hit_rate, hit * sums[wd.BATCH_HELD] / max(sums[wd.BATCH_HIT], 1.0)),
        Share("within_slo_share", evaluation.within_slo_share, sums[wd.BATCH_INSIDE] / count),
        Share("prefill_wait_share", law.p_wait if law else None, sums[wd.BATCH_QUEUED] / count),
        Share("prefill_wait_mean_s", law.mean_s if law else None, sums[wd.BATCH_WAIT] / count),
        Share(
            "slot_wait_share",
            run.lanes[0][1].main.p_overflow if len(run.lanes) == 1 else None,
            sums[wd.BATCH_SLOT_WAITED] / max(sums[wd.BATCH_SLOT_ASKED], 1.0),
        ),
    ]
    for n, line in enumerate(evaluation.lines[: w.lines.size]):
        name = "line_utilization" if w.lines.size == 1 else f"line_{n + 1}_utilization"
        found.append(Share(name, line.utilization, float(load[n] / run.places.lines[n].capacity_bytes_per_s)))
    return tuple(Share(s.name, s.analytic, float(s.simulated)) for s in found)


def _pools(run: Run, sums: Array, seconds: float) -> tuple[PoolSample, ...]:
    w, places = run.world, run.places
    mean = w.busy / max(seconds, 1e-12)
    found = []
    for p, pool in enumerate(places.prefills):
        servers = int(w.prefills[p].last - w.prefills[p].first)
        busy = float(mean[p])
        found.append(PoolSample("prefill", pool.instances, busy / servers, busy / pool.instances, None))
    waited = float(sums[wd.BATCH_SLOT_WAITED] / max(sums[wd.BATCH_SLOT_ASKED], 1.0))
    for d, pool in enumerate(places.decodes):
        requests = float(mean[w.prefills.size + d])
        slots = float(w.decodes[d].slots) * pool.instances
        of_main = waited if pool.role != "relay_decode" else None
        found.append(PoolSample(pool.role, pool.instances, requests / slots, requests / pool.instances, of_main))
    return tuple(
        PoolSample(s.role, s.instances, float(s.busy_share), float(s.mean_batch), s.waiting_share) for s in found
    )


def series_of(run: Run) -> Series:
    """The time series of a run of split pools."""
    return _series(run.world.series, sum(line.capacity_bytes_per_s for line in run.places.lines))


def _series(series: Array, capacity: float) -> Series:
    """The points that were reached; ``capacity`` of all lines [B/s]."""
    rows = series[series[:, wd.AT] > 0]
    done = np.diff(rows[:, wd.DONE_SO_FAR], prepend=0.0)
    ttft, late = (np.diff(rows[:, column], prepend=0.0) for column in (wd.TTFT_SO_FAR, wd.LATE_SO_FAR))
    some = np.where(done > 0, done, np.nan)
    return Series(
        times_s=rows[:, wd.AT],
        prefill_waiting=rows[:, wd.PREFILL_WAITING],
        prefill_busy=rows[:, wd.PREFILL_BUSY],
        line_flows=rows[:, wd.LINE_FLOWS],
        line_load=rows[:, wd.LINE_LOAD] / max(capacity, 1.0),
        relay_requests=rows[:, wd.ON_RELAY_NOW],
        main_requests=rows[:, wd.ON_MAIN_NOW],
        main_waiting=rows[:, wd.MAIN_WAITING],
        idle_bytes=rows[:, wd.IDLE_BYTES],
        ttft_s=ttft / some,
        late_share=late / some,
    )
