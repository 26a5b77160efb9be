"""TTFT, TPOT, pause and E2E of a solved plan as mixtures over requests, with the parts that own them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.equilibrium import Flow, fetch_share
from pddplan.serve.latency import Mixture
from pddplan.serve.line_stage import Transfer
from pddplan.serve.main_decode import size_biased_occupancy
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.spec.types import Metric

Array = NDArray[np.float64]

MAX_MIXTURE_SIZE = 4000
OCCUPANCY_POINTS = 8
# Quantile bins of an exponential wait for a decode slot: probability and mean in units of the mean wait
# (mean of an exponential within its lower 50 %, next 40 %, top 10 %).
WAIT_BINS = ((0.5, 0.3069), (0.4, 1.2435), (0.1, 3.3026))


@dataclass(frozen=True)
class Rows:
    """Requests by kind, flattened: direct ones per atom and spread point, then relayed ones. Shape (rows,)."""

    weight: Array
    relayed: Array  # 0 or 1
    prompt_time: Array  # T_P
    exposed: Array  # line, direct; 0 for relayed
    rdma: Array
    output: Array
    eager: Array
    pause: Array  # hand-over pause, relayed
    worst_pause: Array
    filtered: Array


def rows(context: Context, deployment: Deployment, stage: PrefillStage, move: Transfer, flow: Flow) -> Rows:
    """Flatten a flow. Direct and relayed rows of weight 0 are dropped."""
    atoms = context.demand.atoms
    direct = np.maximum(flow.weight - flow.relayed - flow.filtered, 0.0)
    shape = flow.line.exposed.shape
    probability = np.broadcast_to(flow.line.probability, shape)

    def spread(values: Array) -> Array:
        return np.broadcast_to(values[..., None] if values.ndim == 2 else values[None, :, None], shape)

    exposed = flow.line.exposed
    share = fetch_share(context, deployment.main, flow) if deployment.main is not None else 0.0
    if share > 0 and deployment.main is not None and deployment.main.site.cache is not None:
        tier = deployment.main.site.cache
        pace = max(tier.host_bytes_per_s * deployment.main.decode.parallelism.tp, tier.remote_bytes_per_s, 1.0)
        late = np.maximum(context.demand.kv_prefix / pace - stage.time_s, 0.0)[:, None]
        exposed = np.stack([np.maximum(exposed[0], share * late + (1 - share) * exposed[0]), exposed[1]])
    zero = np.zeros(shape)
    parts = [_block(direct, probability, spread, zero, stage.time_s, exposed, zero, atoms.output, zero, zero, zero, zero)]
    if flow.relay is not None and flow.handover is not None:
        one = np.ones(shape)
        for weight, gone in ((flow.relayed, zero), (flow.filtered, one)):
            parts.append(
                _block(
                    weight,
                    probability,
                    spread,
                    one,
                    stage.time_s,
                    zero,
                    spread(move.rdma_s),
                    atoms.output,
                    np.where(gone > 0, spread(atoms.output), flow.relay.eager),
                    flow.handover.pause_s * (1 - gone),
                    flow.handover.worst_pause_s * (1 - gone),
                    gone,
                )
            )
    table = np.concatenate(parts, axis=1)
    return Rows(*table[:, table[0] > 0])


def _block(weight, probability, spread, relayed, time, exposed, rdma, output, eager, pause, worst, filtered):  # type: ignore[no-untyped-def]
    columns = (
        spread(weight) * probability,
        relayed,
        spread(time),
        exposed,
        rdma,
        spread(output),
        eager,
        pause,
        worst,
        filtered,
    )
    return np.stack([np.asarray(c, dtype=float).ravel() for c in columns])


@dataclass(frozen=True)
class Latencies:
    """Mixtures of the metrics that this plan has; TPOT and pause without waiting, TTFT and E2E with prefill's."""

    ttft: Mixture
    tpot: Mixture
    pause: Mixture
    e2e: Mixture
    within: float  # P(TTFT and TPOT within their limits)

    def of(self, metric: Metric) -> Mixture:
        return {"ttft": self.ttft, "tpot": self.tpot, "pause": self.pause, "e2e": self.e2e}[metric]


def latencies(context: Context, stage: PrefillStage, flow: Flow, table: Rows, router_s: float) -> Latencies:
    """All four metrics.

    TTFT = W_P + T_P + router + (relay: RDMA exposed | direct: line exposed + admission wait); with first token
    ``on_prefill`` it ends after T_P and the rest of the way is a pause. TPOT = (E2E - TTFT)/(n - 1), hand-over
    pause included, requests of one token excluded. Pause is the longest gap between two tokens.
    """
    batch, probability, life = _seen_batches(flow)
    tau_points = np.asarray(flow.main.table(batch), dtype=float)
    tau_mean = float(tau_points @ probability)
    tau_relay = flow.relay.tau_s if flow.relay is not None else 0.0
    on_prefill = context.scenario.workload.first_token == "on_prefill"
    admission = flow.main.admission
    wait_mean = float(1.0 / admission.decay_per_s) if float(admission.decay_per_s) > 0 else 0.0
    wait_share = min(float(admission.p_wait), 1.0)
    way = table.rdma + table.exposed
    first = table.prompt_time + router_s
    direct = table.relayed == 0
    # rest of the tokens after the first
    later = np.maximum(table.output - 1.0, 0.0)
    on_relay = np.where(table.relayed > 0, np.minimum(table.eager, later), 0.0)
    on_main = later - on_relay
    gap_way = way if on_prefill else np.zeros_like(way)
    stream = on_relay * tau_relay + on_main * tau_mean + table.pause * (on_main > 0) + gap_way
    parts = {"prefill": table.prompt_time, "router": np.full_like(first, router_s)}
    ttft_parts = dict(parts) if on_prefill else {**parts, "line": table.exposed, "relay": table.rdma}
    constant = first if on_prefill else first + way
    waiting = np.where(direct, wait_share, 0.0)
    ttft = _with_admission(table.weight, constant, waiting, wait_mean, ttft_parts, None if on_prefill else "main_decode")
    e2e_parts = {**parts, "line": table.exposed, "relay": table.rdma + on_relay * tau_relay}
    e2e_parts |= {"main_decode": on_main * tau_mean, "hand_over": table.pause * (on_main > 0)}
    e2e = _with_admission(table.weight, first + way + stream - gap_way, waiting, wait_mean, e2e_parts, "main_decode")
    tpot, tpot_ok = _tpot(context, table, stream, on_main, later, tau_points, probability, tau_mean)
    pause = _pause(context, flow, table, tau_points, probability, life, gap_way, direct)
    limit = max((s.limit_s for s in context.limits("ttft")), default=float("inf"))
    late = np.array([1.0]) if np.isinf(limit) else _on_time(stage, limit - constant)
    return Latencies(
        ttft=_compress(ttft, stage),
        tpot=Mixture(*tpot, None, {"main_decode": tpot[1]}),
        pause=pause,
        e2e=_compress(e2e, stage),
        within=float((table.weight * tpot_ok * late).sum() / table.weight.sum()),
    )


def _on_time(stage: PrefillStage, room: Array) -> Array:
    """P(W <= room), 0 where there is none."""
    late = np.ones_like(room)
    late[room >= 0] = stage.law.survival(room[room >= 0])
    return 1.0 - late


def _seen_batches(flow: Flow) -> tuple[Array, Array, float]:
    """Batch a running request sees, averaged over its life, with probabilities; and a mean life [s]."""
    settled = flow.main.occupancy
    points, probability = size_biased_occupancy(settled.batch, 1.0, OCCUPANCY_POINTS, min(settled.dispersion, 50.0))
    batch = np.minimum(np.asarray(points).ravel(), max(flow.main.slots.per_instance, 1.0))
    life = settled.requests / max(flow.main.handover_rate, 1e-9)
    return batch, probability, life


def _tpot(
    context: Context,
    table: Rows,
    stream: Array,
    on_main: Array,
    later: Array,
    tau: Array,
    probability: Array,
    tau_mean: float,
) -> tuple[tuple[Array, Array], Array]:
    """Weights and TPOT of requests with two tokens or more, and P(TPOT within the limit) per row."""
    limit = context.tpot_limit_s()
    many = later > 0
    base = stream[many] / later[many]
    swing = (on_main[many] / later[many])[:, None] * (tau[None, :] - tau_mean)
    values = base[:, None] + swing
    weight = table.weight[many][:, None] * probability[None, :]
    ok = np.ones_like(later)
    ok[many] = (values <= limit * (1 + 1e-9)) @ probability
    if not many.any():
        return (np.array([1.0]), np.array([0.0])), ok
    return (weight.ravel() / weight.sum(), values.ravel()), ok


def _pause(
    context: Context,
    flow: Flow,
    table: Rows,
    tau: Array,
    probability: Array,
    life: float,
    gap_way: Array,
    direct: Array,
) -> Mixture:
    """Longest gap: a step at a high batch, an extend pass of somebody else's hand-over, one's own hand-over."""
    step = float(np.interp(0.95, np.cumsum(probability), tau))
    rate = flow.main.handover_rate
    instances = flow.main.slots.instances
    own_life = float((table.weight * table.output).sum()) * float(tau @ probability)
    hit = 1.0 - float(np.exp(-rate * own_life / instances)) if rate > 0 else 0.0
    own = np.maximum(table.worst_pause, gap_way)
    weight = np.concatenate([table.weight * (1 - hit), table.weight * hit])
    plain, passed = np.maximum(own, step), np.maximum(own, step + flow.main.extend_s)
    value = np.concatenate([plain, passed])
    hand = np.concatenate([table.worst_pause, table.worst_pause])
    keep = weight > 0
    rest = np.maximum(value - hand, 0.0)
    return Mixture(weight[keep] / weight[keep].sum(), value[keep], None, {"main_decode": rest[keep], "hand_over": hand[keep]})


def _with_admission(
    weight: Array, constant: Array, waiting: Array, wait_mean: float, parts: Mapping[str, Array], stage: str | None
) -> tuple[Array, Array, dict[str, Array]]:
    """Split each row by whether it waits for a decode slot: exponential, in three quantile bins."""
    if stage is None or wait_mean <= 0 or float((weight * waiting).sum()) < 1e-6:
        return weight, constant, dict(parts)
    weights, constants = [weight * (1 - waiting)], [constant]
    columns = {name: [part] for name, part in parts.items()}
    added = {stage: [parts.get(stage, np.zeros_like(constant))]}
    for share, mean in WAIT_BINS:
        weights.append(weight * waiting * share)
        constants.append(constant + mean * wait_mean)
        for name, part in parts.items():
            columns[name].append(part)
        added[stage].append(parts.get(stage, np.zeros_like(constant)) + mean * wait_mean)
    columns |= added
    return np.concatenate(weights), np.concatenate(constants), {k: np.concatenate(v) for k, v in columns.items()}


def _compress(rows: tuple[Array, Array, dict[str, Array]], stage: PrefillStage) -> Mixture:
    """Mixture with prefill's waiting; more than MAX_MIXTURE_SIZE rows are merged with their neighbours in value."""
    weight, constant, parts = rows
    keep = weight > 0
    weight, constant = weight[keep], constant[keep]
    parts = {name: part[keep] for name, part in parts.items()}
    total = weight.sum()
    if weight.size > MAX_MIXTURE_SIZE:
        order = np.argsort(constant, kind="stable")
        starts = np.unique(np.linspace(0, weight.size, MAX_MIXTURE_SIZE, endpoint=False).astype(int))
        mass = np.add.reduceat(weight[order], starts)
        constant = np.add.reduceat((weight * constant)[order], starts) / mass
        parts = {name: np.add.reduceat((weight * part)[order], starts) / mass for name, part in parts.items()}
        weight = mass
    return Mixture(weight / total, constant, stage.law.survival, parts)
