"""A cell of ``grid`` by the formulas and by the simulation, and the largest rate within limits by both."""

from __future__ import annotations

import math

import numpy as np

from pddplan.serve.context import Context
from pddplan.serve.equilibrium import Case, Flow
from pddplan.serve.evaluate import evaluate, flows_of
from pddplan.serve.latency import Mixture
from pddplan.simulate import world as wd
from pddplan.simulate.outcome import interval, quantile, simulation_of, warm_batches
from pddplan.simulate.records import QUANTILES, Asked, Interval, Simulation
from pddplan.simulate.run import Run, simulate_lanes
from tests.agreement.grid import FIGURES, PART, RELAY_TOKENS, WAIT, Answer, Built, Cell, Figure, build, cells

SEED, FIRST, MOST = 1, 100_000, 600_000  # requests of the short run, and at most
STAGES = {"prefill": "prefill", "wan": "exposed"}


def measure(cell: Cell, requests: int, seed: int = SEED) -> Answer:
    """A cell by the formulas and in one run of so many requests."""
    built = build(cell)
    facts = (built.skew, built.prefill_load, built.flows, built.line_load)
    run, found = _simulate(built.context, built, requests, seed)
    if run is None or found is None or found.growth is not None:
        return Answer(cell, facts, 0.0, requests)
    shares = {share.name: share for share in found.shares}
    return Answer(cell, facts, shares["prefill_wait_share"].simulated, requests, _figures(cell, run, found))


def measure_enough(cell: Cell) -> Answer:
    """The same with as many requests as the half-widths of all that ``MOST`` requests can judge need."""
    first = measure(cell, FIRST)
    if not first.figures:  # a short run may look like one that grows
        return measure(cell, MOST)
    needs = [0.0]
    for name, figure in first.figures.items():
        bar = first.bar(name)
        if bar is not None and math.isfinite(figure.half):
            needs.append(1.3 * FIRST * (figure.half * PART / bar[0]) ** 2)
    asked = max(need for need in needs if need <= MOST)
    return first if asked <= FIRST else measure(cell, math.ceil(asked / 1e5) * 100_000)


def _simulate(context: Context, built: Built, requests: int, seed: int) -> tuple[Run | None, Simulation | None]:
    """A run of a plan at the context's rate; None where the formulas have no steady state."""
    evaluation = evaluate(context, built.plan)
    lanes = flows_of(context, built.plan, context.rate, evaluation.routing) if evaluation.slo else ()
    if not isinstance(lanes, tuple) or not lanes:
        return None, None
    asked = Asked(requests, seed)
    run = simulate_lanes(context, lanes, asked)
    return run, simulation_of(run, evaluation, asked, context.rate)


def _figures(cell: Cell, run: Run, found: Simulation) -> dict[str, Figure]:
    """All of ``FIGURES`` that the cell has."""
    made: dict[str, Figure] = {}
    for row in found.quantiles:
        name = f"{STAGES.get(row.stage, row.metric)} p{100 * row.quantile:g}"
        if row.analytic_s and row.simulated.value > 0 and name in FIGURES and row.stage in ("all", *STAGES):
            made[name] = Figure(row.analytic_s, row.simulated.value, 100 * row.simulated.half_width)
    (case, flow), *_ = run.lanes
    sums = run.world.batch_sums[warm_batches(run.world.batch_sums) :]
    made[WAIT] = _mean(case.stage.law.mean_s, sums, wd.BATCH_WAIT, wd.BATCH_COUNT)
    made["wait share"] = _mean(case.stage.law.p_wait, sums, wd.BATCH_QUEUED, wd.BATCH_COUNT, points=True)
    admitted = float(flow.main.admission.p_wait)
    made["slot wait share"] = _mean(admitted, sums, wd.BATCH_SLOT_WAITED, wd.BATCH_SLOT_ASKED, points=True)
    if cell.flows:
        made |= _line(run, case, flow)
    shares = {share.name: share for share in found.shares}
    if cell.relay:
        share = shares["relay_token_share"].analytic or 0.0
        made[RELAY_TOKENS] = _mean(share, sums, wd.BATCH_RELAY_TOKENS, wd.BATCH_TOKENS, points=True)
    if cell.sessions:
        made["held share"] = _mean(flow.held_share, sums, wd.BATCH_HELD, wd.BATCH_HIT, points=True)
    return {name: made[name] for name in FIGURES if name in made}


def _mean(formula: float, sums: wd.Floats, of: int, per: int, points: bool = False) -> Figure:
    """A ratio of two sums over batches (batches, ``BATCH_SUMS``)."""
    parts = sums[:, of] / np.maximum(sums[:, per], 1.0)
    found: Interval = interval(float(sums[:, of].sum() / max(sums[:, per].sum(), 1.0)), parts.tolist())
    half = 100 * 0.5 * (found.high - found.low) if points else 100 * found.half_width
    return Figure(formula, found.value, half, points)


def _line(run: Run, case: Case, flow: Flow) -> dict[str, Figure]:
    """Time of all transfers over the line from the start of prefill until the last byte has left."""
    counts = run.world.histogram[:, wd.LINE_TIME, warm_batches(run.world.batch_sums) :].sum(axis=0)
    state = flow.line
    weight = (state.weight[..., None] * state.probability).ravel()
    value = np.broadcast_to(
        state.exposed - case.move.delay_s + case.stage.time_s[:, None], (*state.weight.shape, state.probability.size)
    )
    mixture = Mixture(weight, value.ravel(), None, {})
    found = {q: quantile(counts, q) for q in QUANTILES}
    return {
        f"line p{100 * q:g}": Figure(mixture.quantile(q), at.value, 100 * at.half_width)
        for q, at in found.items()
        if at.value > 0
    }


# ---------------------------------------------------------------- saturation


RATES, STEPS, RATE_REQUESTS, RATE_BAR = (0.7, 1.3), 20, 2_500_000, 3.0
NEARER = 2  # runs, each at the rate at which the one before says that the limits hold
LIMITED = ("ttft p50", "ttft p90", "ttft p99", "tpot p90")
SPARE = 1.25  # of a cell's limits but for the one that binds
SATURATED = (  # cell, and the limit that binds: the formulas meet it exactly at the cell's rate
    ("one queue, equal, c 4, rho 0.8, shared", "ttft p99"),
    ("one queue, lengths, c 16, rho 0.8, shared", "ttft p90"),
    ("one queue, agent, c 4, rho 0.7, shared", "ttft p90"),
    ("one queue, skewed, c 4, rho 0.7, shared", "ttft p90"),
    ("queues of their own, agent, c 8, rho 0.5, sticky", "ttft p90"),
    ("home and elsewhere, half, c 8, rho 0.7, affine", "ttft p90"),
    ("bursts, agent, c 8, rho 0.8, shared, burst 2", "ttft p90"),
    ("line, equal, shared, m 4, line 0.7", "ttft p90"),
    ("line, lengths, shared, m 4, line 0.7", "ttft p90"),
    ("line, agent, shared, m 8, line 0.7", "ttft p99"),
    ("relay, agent, shared, m 20, line 0.7, relay 8", "tpot p90"),
    ("sessions, agent, c 4, rho 0.7, shared, memory 160", "ttft p90"),
)


def saturation(name: str, binding: str) -> tuple[str, Figure | None]:
    """Largest rate at which all limits hold: by the formulas by bisection over the cell's rate; by the simulation from
    there, each run read along the formulas' slopes d ln(figure)/d ln(rate). Half-width: the binding figure's by its
    slope."""
    built = build(next(cell for cell in cells() if cell.name == name))
    rate = built.context.rate
    at_cell = _by_formula(built, rate)
    limits = {key: at_cell[key] * (1.0 if key == binding else SPARE) for key in LIMITED}
    formula = _largest(built, limits)
    low, high = (_by_formula(built, rate * factor) for factor in (0.98, 1.02))
    slopes = {key: math.log(high[key] / low[key]) / math.log(1.02 / 0.98) for key in LIMITED}
    found, half = formula, math.inf
    for _ in range(NEARER):
        _, run = _simulate(built.context.at_rate(found), built, RATE_REQUESTS, SEED)
        if run is None or run.growth is not None:
            return name, None
        rows = {f"{r.metric} p{100 * r.quantile:g}": r.simulated for r in run.quantiles if r.stage == "all"}
        rates = {
            key: found * (limits[key] / rows[key].value) ** (1.0 / slopes[key]) for key in LIMITED if slopes[key] > 0
        }
        binds = min(rates, key=lambda key: rates[key])
        found, half = rates[binds], 100 * rows[binds].half_width / slopes[binds]
    return name, Figure(formula, found, half)


def _by_formula(built: Built, rate: float) -> dict[str, float]:
    """The limited figures [s], empty where a stage has no steady state."""
    rows = evaluate(built.context.at_rate(rate), built.plan).slo
    values = {f"{row.metric} p{100 * row.quantile:g}": row.value_s for row in rows}
    return {key: values[key] for key in LIMITED} if values else {}


def _largest(built: Built, limits: dict[str, float]) -> float:
    """The formulas' largest rate, by bisection between ``RATES`` of the cell's; 0 where not even the lowest holds."""

    def holds(at: float) -> bool:
        found = _by_formula(built, at)
        return bool(found) and all(found[key] <= limit * (1 + 1e-9) for key, limit in limits.items())

    low, high = (built.context.rate * factor for factor in RATES)
    if not holds(low):
        return 0.0
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return 0.5 * (low + high)
