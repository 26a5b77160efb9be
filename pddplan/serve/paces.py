"""How fast answers of aggregated serving come: the spread of TPOT by prompts that come meanwhile and by the batch."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pddplan.serve.context import Context
from pddplan.serve.deployment import Pool
from pddplan.serve.discretize import bin_means, tail_edges
from pddplan.serve.latency import Mixture
from pddplan.serve.occupancy_law import dispersion, size_biased_occupancy
from pddplan.serve.queueing import WaitingLaw

Array = NDArray[np.float64]

PACE_POINTS, BATCH_POINTS, BEHIND_POINTS = 12, 4, 8
PARTS = 4  # of a bin of the waiting law, for its mean
ANSWER_POINTS = 10  # of TPOT in the time of a whole answer
MOST_DISPERSION = 50.0
LEAST_SPARE = 0.05


@dataclass(frozen=True)
class MixedSteps:
    """Steady state of one aggregated instance."""

    batch: float  # running decodes per instance
    pace_s: float  # a token, prompts coming as they do on average
    mixed_s: float  # a step with a full chunk
    plain_s: float  # a step without
    unit_share: float  # share of time in which a unit has a chunk
    mixed_share: float  # share of time in steps with a chunk, of any unit
    context: float
    behind_s: float  # what an answer waits on average for the prompts that came before it began
    tokens: float  # of an answer, mean

    @property
    def tpot_s(self) -> float:
        """Time per token of all answers together [s]."""
        return self.pace_s + self.behind_s / self.tokens


@dataclass(frozen=True)
class Delays:
    """What prompts add to the answers of an instance.

    ``rate`` 1/s of prompts whose delays add up, ``mean`` [s] and ``second`` [s^2] of the delay of one (with the
    burstiness), ``spare = 1 - rate mean``; ``behind_s`` (points,) delay by prompts that wait when an answer begins,
    equally likely by ``probability`` (points,).
    """

    rate: float
    mean: float
    second: float
    spare: float
    behind_s: Array
    probability: Array

    @property
    def stretch_s(self) -> float:
        """What the prompts that wait add to an answer on average, with those that come meanwhile [s]."""
        return float(self.behind_s @ self.probability) / self.spare


@dataclass(frozen=True)
class Paces:
    """TPOT over the life of requests: for each number of later tokens points and their probabilities."""

    later: Array  # (lengths,) distinct, ascending
    tpot_s: Array  # (lengths, points)
    probability: Array  # (points,)


def delays(context: Context, pool: Pool, steady: MixedSteps, prefill: Array, rate: float, law: WaitingLaw) -> Delays:
    """The prompts that an answer meets, ``prefill`` (atoms,) being the time of each [s].

    Those that wait behind a prompt have come to its unit while it waited (W) and was prefilled (S): r (W + S) of delay,
    r the share of time that delays take a unit. Where units share one queue the c - 1 others take them meanwhile, and
    of the second part max(c u - (c - 1), 0)/u remains, u the share of time that a unit is busy. The other units of the
    instance have their mean wait before them.
    """
    atoms, service = context.demand.atoms, pool.aggregated
    dp, units = service.parallelism.dp, pool.instances * service.parallelism.dp
    delay = np.maximum(prefill - np.maximum(np.ceil(atoms.uncached / service.chunk_tokens), 1.0) * steady.plain_s, 0.0)
    overlap = min(steady.mixed_share / max(dp * steady.unit_share, 1e-12), 1.0)
    arrivals = overlap * rate / pool.instances
    mean = max(atoms.mean(delay), 1e-300)
    second = atoms.mean(delay**2) + (context.scenario.traffic.burstiness - 1.0) * mean * mean
    share, busy = rate / units * mean, max(steady.unit_share, 1e-12)
    left = 1.0
    if context.scenario.traffic.prefix_cache == "shared":
        left = max(units * busy - (units - 1.0), 0.0) / busy
    edges = tail_edges(BEHIND_POINTS)
    wait, own = _wait_means(law, edges), _means(prefill, atoms.weight, edges)
    mass = np.diff(edges)
    others = (dp - 1) * law.mean_s * mean / max(atoms.mean(prefill), 1e-300)
    behind = overlap * (share * (wait[:, None] + left * own[None, :]) + others)
    joint = _means(behind.ravel(), np.multiply.outer(mass, mass).ravel(), edges)
    return Delays(arrivals, mean, max(second, 0.0), max(1.0 - arrivals * mean, LEAST_SPARE), joint, mass)


def _means(values: Array, weight: Array, edges: Array) -> Array:
    """Means in bins of probability of values in any order, (points,)."""
    order = np.argsort(values, kind="stable")
    return bin_means(values[order], weight[order], edges)


def _wait_means(law: WaitingLaw, edges: Array) -> Array:
    """Mean wait in bins of probability [s], together the law's mean."""
    parts = (np.arange(PARTS) + 0.5) / PARTS
    at = (edges[:-1, None] + np.diff(edges)[:, None] * parts).ravel()
    left = np.log1p(-at)
    waits = np.interp(-left, -law.log_survival, law.times_s)
    beyond = np.maximum(law.log_survival[-1] - left, 0.0) / max(law.tail_rate_per_s, 1e-300)
    means = np.asarray((np.where(left > -np.inf, waits + beyond, 0.0)).reshape(-1, PARTS).mean(axis=1))
    total = float(means @ np.diff(edges))
    return means * (law.mean_s / total) if total > 0 else means


def paces(context: Context, pool: Pool, steady: MixedSteps, found: Delays) -> Paces:
    """How TPOT is spread: by the prompts that wait when an answer begins and come during it, and by the batch.

    An answer of n tokens takes its own steps A = n T_plain, V of prompts that wait, and D of each that comes meanwhile
    at rate l an instance: the delay busy period of M/G/1, mean n pace + V/(1 - r), variance
    l E[D^2] (A + V)/(1 - r)^3 + V E[D^2]/E[D]/(1 - r)^2 with r = l E[D] (the second because V is itself a sum of
    delays), taken as log-normal. T_plain is that of the batch which a running request meets,
    ``size_biased_occupancy`` at its dispersion.

    TPOT p50/p90/p99 against the simulation: chat_8k +1.5/-2.8/-9 %; prompts that fill an instance for half of the time
    (c_s^2 about 1, c 1) -7/-25/+2.5 %. Range: r below 1, beyond it there is no steady state.
    """
    atoms = context.demand.atoms
    later = np.unique(np.maximum(atoms.output - 1.0, 0.0))
    count = np.maximum(later, 1.0)[:, None]
    own = count * steady.plain_s / context.scenario.engine.mtp_accepted_tokens
    behind = found.behind_s[None, :]
    mean = count * steady.pace_s + behind / found.spare
    variance = found.rate * found.second * (own + behind) / found.spare**3
    variance = variance + behind * found.second / found.mean / found.spare**2
    sigma = np.sqrt(np.log1p(variance / mean**2))
    edges = tail_edges(PACE_POINTS)
    z = np.array([NormalDist().inv_cdf(p) for p in 0.5 * (edges[1:] + edges[:-1])])
    spread = np.exp(sigma[:, :, None] * z)
    spread /= (spread @ np.diff(edges))[:, :, None]
    factor, probability = _batch_factors(pool, steady)
    tpot = (mean / count)[:, :, None, None] * spread[:, :, :, None] * (factor / (factor @ probability))
    mass = np.multiply.outer(np.multiply.outer(found.probability, np.diff(edges)), probability)
    return Paces(later, tpot.reshape(later.size, -1), mass.ravel())


def _batch_factors(pool: Pool, steady: MixedSteps) -> tuple[Array, Array]:
    """(steps at the batches that a running request meets over the steady one, probabilities)."""

    def step(batch: Array) -> Array:
        return np.asarray(pool.aggregated.step_time_s(batch, steady.context, 0.0), dtype=float)

    spread = min(dispersion(max(steady.batch, 1e-6), step), MOST_DISPERSION)
    batches, probability = size_biased_occupancy(steady.batch, 1.0, BATCH_POINTS, spread)
    return step(np.asarray(batches).ravel()) / float(step(np.array([steady.batch]))[0]), probability


def tpot_mixture(weight: Array, pace: Paces) -> Mixture:
    """TPOT of requests, ``weight`` (lengths,) of each number of later tokens; 0 where nobody has any."""
    if weight.sum() <= 0:
        return Mixture(np.ones(1), np.zeros(1), None, {"main_decode": np.zeros(1)})
    values = pace.tpot_s.ravel()
    mass = np.multiply.outer(weight / weight.sum(), pace.probability).ravel()
    return Mixture(mass, values, None, {"main_decode": values}, smooth=True)


def e2e_mixture(
    weight: Array, first: Array, later: Array, row: NDArray[np.intp], pace: Paces, law: WaitingLaw
) -> Mixture:
    """Whole answers: first token without waiting (atoms,) and ``later`` tokens at the points of their pace."""
    few, mass = _fewer(pace)
    stream = (later[:, None] * few[row]).ravel()
    start = np.repeat(first, mass.size)
    return Mixture(
        np.multiply.outer(weight, mass).ravel(), start + stream, law.survival, {"prefill": start, "main_decode": stream}
    )


def _fewer(pace: Paces) -> tuple[Array, Array]:
    """The points of each length in bins of probability that are finer towards the tail: (means, probability)."""
    edges = tail_edges(ANSWER_POINTS)
    order = np.argsort(pace.tpot_s, axis=1, kind="stable")
    values = np.take_along_axis(pace.tpot_s, order, axis=1)
    means = [bin_means(points, pace.probability[at], edges) for points, at in zip(values, order, strict=True)]
    return np.array(means), np.diff(edges)
