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

PACE_POINTS, BATCH_POINTS = 20, 8
ANSWER_POINTS = 10  # of TPOT in the time of a whole answer
MOST_DISPERSION = 50.0


@dataclass(frozen=True)
class MixedSteps:
    """Steady state of one aggregated instance."""

    batch: float  # running decodes per instance
    tpot_s: float
    mixed_s: float  # a step with a full chunk
    plain_s: float  # a step without
    unit_share: float  # share of time in which a unit has a chunk
    mixed_share: float  # share of time in steps with a chunk, of any unit
    context: float


@dataclass(frozen=True)
class Paces:
    """TPOT over the life of requests: for each number of later tokens points of equal law; means are the steady one."""

    later: Array  # (lengths,) distinct, ascending
    tpot_s: Array  # (lengths, points)
    probability: Array  # (points,)


def paces(context: Context, pool: Pool, steady: MixedSteps, prefill: Array, rate: float) -> Paces:
    """How TPOT is spread: by the prompts that come during an answer, and by the batch it meets.

    An answer of n tokens takes its own steps A = n T_plain and D, what each prompt that comes meanwhile adds to them,
    at rate l an instance: the delay busy period of M/G/1, mean A/(1 - r), variance A l (Var D + b E[D]^2)/(1 - r)^3
    with r = l E[D] and b the burstiness, taken as log-normal. T_plain is that of the batch which a running request
    meets, ``size_biased_occupancy`` at its dispersion. Both are scaled to the mean TPOT of ``mixed_steps``.
    """
    atoms, service = context.demand.atoms, pool.aggregated
    steps = np.maximum(np.ceil(atoms.uncached / float(service.chunk_tokens)), 1.0)
    delay = np.maximum(prefill - steps * steady.plain_s, 0.0)
    overlap = steady.mixed_share / max(service.parallelism.dp * steady.unit_share, 1e-12)
    arrivals = min(overlap, 1.0) * rate / pool.instances
    mean = atoms.mean(delay)
    second = atoms.mean(delay**2) + (context.scenario.traffic.burstiness - 1.0) * mean * mean
    spare = max(1.0 - arrivals * mean, 0.05)
    later = np.unique(np.maximum(atoms.output - 1.0, 0.0))
    own = np.maximum(later, 1.0) * steady.plain_s / context.scenario.engine.mtp_accepted_tokens
    sigma = np.sqrt(np.log1p(arrivals * max(second, 0.0) / (own * spare)))
    edges = tail_edges(PACE_POINTS)
    z = np.array([NormalDist().inv_cdf(p) for p in 0.5 * (edges[1:] + edges[:-1])])
    prompts = np.exp(sigma[:, None] * z)
    table = _batch_factors(pool, steady)
    factor = (prompts[:, :, None] * table[0][None, None, :]).reshape(later.size, -1)
    probability = np.multiply.outer(np.diff(edges), table[1]).ravel()
    factor /= (factor @ probability)[:, None]
    return Paces(later, steady.tpot_s * factor, probability)


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
    return Mixture(mass, values, None, {"main_decode": values})


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
