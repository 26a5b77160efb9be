"""How much a plan survives: the most of a line that may be lost, and the largest lasting burst, before it runs full.

Surviving is having a steady state, whether or not the SLO holds in it; drills ask for the SLO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pddplan.errors import Excuse
from pddplan.plan.drills import Progress, with_share
from pddplan.plan.simulated import lanes_of
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, LineChoice, Plan
from pddplan.serve.equilibrium import Flow, loop_gain
from pddplan.serve.evaluate import evaluate, flows_of
from pddplan.serve.records import Routing
from pddplan.simulate import world as wd
from pddplan.simulate.build import Lane, places_of
from pddplan.simulate.growing import grows
from pddplan.simulate.records import Asked, Change

WARM_S, LONGEST_S, MOST_REQUESTS = 900.0, 4 * 3600.0, 100_000.0  # before the change; after it, at most
STEPS, RUNS = 14, 4  # halvings by the formulas, by the simulation
LEAST_LEFT, MOST_FACTOR = 0.01, 8.0  # of a line; of the rate: beyond it nothing is asked
NEAR = 0.06  # around the formulas' answer where the simulation looks first
GAIN = "misses and transfers drive each other up"
WORDS = {"prefill": "prefill", "line": "the line", "relay_decode": "the relay", "main_decode": "main decode"}


@dataclass(frozen=True)
class Limit:
    """The most that a plan survives of one thing that lasts.

    ``what`` line: share of its capacity that is lost; rate: factor on the requests. ``formula``: nearly this much is
    survived, then ``gives_out``, "" where the whole range is survived. The simulation survives ``survives`` and not
    ``breaks``; the ends of the range where it has no such side.
    """

    what: str
    name: str
    formula: float
    gives_out: str
    survives: float
    breaks: float


@dataclass(frozen=True)
class Stability:
    """``loop_gain``: of the plan as it is, see ``serve.equilibrium.loop_gain``; below 1 a loss of hits dies out."""

    loop_gain: float
    limits: tuple[Limit, ...]


def stability(
    context: Context, deployment: Plan, routing: Routing, seed: int = 1, progress: Progress | None = None
) -> Stability:
    """Of a split plan with its router's rule, by the formulas and simulated from its steady state on."""
    plan = _Planned(context, deployment, routing, lanes_of(context, deployment, routing), seed)
    lines = places_of(plan.lanes).lines
    limits = []
    for n, line in enumerate(lines):
        if progress is not None:
            progress(n / (len(lines) + 1), "line loss")
        limits.append(_line_loss(plan, n, line, "line" if len(lines) == 1 else f"{line.from_site} to {line.to_site}"))
    if progress is not None:
        progress(len(lines) / (len(lines) + 1), "largest burst")
    limits.append(_burst(plan))
    return Stability(evaluate(context, deployment, routing=routing).loop_gain, tuple(limits))


@dataclass(frozen=True)
class _Planned:
    context: Context
    deployment: Plan
    routing: Routing
    lanes: tuple[Lane, ...]
    seed: int


def _line_loss(plan: _Planned, place: int, line: LineChoice, name: str) -> Limit:
    """The share of a line's capacity that may be lost."""

    def formula(lost: float) -> str:
        left = with_share(line, 1.0 - lost)(plan.deployment)
        assert left is not None
        return gives_out(plan.context, left, plan.context.rate, plan.routing)

    def simulated(lost: float) -> bool:
        return _survives(plan, Change(WARM_S, "line", 1.0 - lost, place), 1.0)

    return _limit("line", name, (0.0, 1.0 - LEAST_LEFT), formula, simulated)


def _burst(plan: _Planned) -> Limit:
    """The factor on the request rate."""

    def formula(factor: float) -> str:
        return gives_out(plan.context, plan.deployment, plan.context.rate * factor, plan.routing)

    def simulated(factor: float) -> bool:
        return _survives(plan, Change(WARM_S, "rate", factor), factor)

    return _limit("rate", "requests", (1.0, MOST_FACTOR), formula, simulated)


# ---------------------------------------------------------------- by the formulas


def gives_out(context: Context, deployment: Plan, rate: float, routing: Routing) -> str:
    """What of a plan has no steady state at a rate: a stage whose load reaches 1, or the loop of misses and transfers;
    "" for nothing. Caps and limits of the SLO don't count."""
    lanes = flows_of(context, deployment, rate, routing)
    if isinstance(lanes, Excuse):
        return WORDS.get(lanes.subject, lanes.subject)
    for _, flow in lanes:
        full = _full(flow)
        if full:
            return full
    if isinstance(deployment, Deployment):
        return GAIN if loop_gain(*lanes[0]) >= 1.0 else ""
    return GAIN if evaluate(context, deployment, rate, routing=routing).loop_gain >= 1.0 else ""


def _full(flow: Flow) -> str:
    """A decode pool that is asked for more requests at once than it has slots."""
    if flow.relay is not None and flow.relay.requests >= flow.relay.slots.total:
        return WORDS["relay_decode"]
    return WORDS["main_decode"] if flow.main.occupancy.requests >= flow.main.slots.total else ""


# ---------------------------------------------------------------- by the simulation


def _survives(plan: _Planned, change: Change, factor: float) -> bool:
    """Whether a run that was in its steady state has one after the change too."""
    from pddplan.simulate.run import simulate_lanes

    rate = plan.context.rate * factor
    asked, end_s = Asked(10**9, plan.seed, (change,)), WARM_S + min(MOST_REQUESTS / rate, LONGEST_S)
    run = simulate_lanes(plan.context, plan.lanes, asked, end_s=end_s, patient=False)
    rows = run.world.series
    return not run.crowded and not grows(rows[rows[:, wd.AT] > WARM_S], rate)


def _limit(
    what: str,
    name: str,
    within: tuple[float, float],
    formula: Callable[[float], str],
    simulated: Callable[[float], bool],
) -> Limit:
    low, high = within
    why = formula(high)
    if why:
        for _ in range(STEPS):
            middle = 0.5 * (low + high)
            found = formula(middle)
            low, high, why = (middle, high, why) if not found else (low, middle, found)
    known = high if not why else low
    survives, breaks = _bracketed(known, within, simulated)
    return Limit(what, name, known, why, survives, breaks)


def _bracketed(near: float, within: tuple[float, float], survived: Callable[[float], bool]) -> tuple[float, float]:
    """(survived, not survived) near a value, by halving; an end of the range where all of it is on one side."""
    least, most = within
    reach = NEAR * near if near > 1.0 else NEAR
    low, high = max(near - reach, least), min(near + reach, most)
    while low > least and not survived(low):
        low, high = max(low - 2.0 * reach, least), low
    while high < most and survived(high):
        low, high = high, min(high + 2.0 * reach, most)
    if high >= most and survived(high):
        return high, high
    for _ in range(RUNS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if survived(middle) else (low, middle)
    return low, high
