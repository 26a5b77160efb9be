"""At which price the choice between one site and two turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pddplan.plan.state import GAP
from pddplan.spec.types import ChipOffer, LineTier, Scenario

STEPS = 6
LEAST_FACTOR, MOST_FACTOR = 0.02, 50.0  # of a price: beyond them nobody would call it a turning point
FACTORS = np.geomspace(LEAST_FACTOR, MOST_FACTOR, 2001)

Side = Literal["split", "whole"]
SIDES: tuple[Side, Side] = ("split", "whole")


@dataclass(frozen=True)
class Priced:
    """What a plan costs, and what of it goes into the prices that may be scaled [USD/h]."""

    usd_per_hour: float
    chips: Mapping[str, float]  # by id, idle chips of whole nodes and owned ones included
    line: float


Plans = dict[Side, list[Priced]]


@dataclass(frozen=True)
class TurnsAt:
    """A price at which one site and two cost the same; ``then`` is the side that wins beyond it."""

    what: str  # "line" or a chip's id
    unit: Literal["USD/h per chip", "USD/h"]
    now: float
    value: float
    then: Side


@dataclass(frozen=True)
class _Lever:
    """A price that may be scaled, and what a plan spends on it [USD/h]."""

    what: str
    change: Callable[[Scenario, float], Scenario]
    spent: Callable[[Priced], float]
    now: float
    unit: Literal["USD/h per chip", "USD/h"]


def turning_point(
    scenario: Scenario, plans: Plans, cheapest_at: Callable[[Scenario], Plans], line_usd_per_hour: float
) -> TurnsAt | None:
    """The price, of the line or of one chip, that must change least (as a factor) for the other side to win.

    A plan's cost is a line in the factor, ``C - S + S f``, S what it spends on that price, so a side's least cost over
    the plans known is a lower envelope; ``cheapest_at`` solves both sides anew at a factor where two envelopes cross
    and adds its plans, until the crossing stays. ``line_usd_per_hour``: what the line costs now. None where no price
    turns it.
    """
    wins: Side = "split" if _least(plans["split"]) < _least(plans["whole"]) else "whole"
    then: Side = "whole" if wins == "split" else "split"
    found: list[tuple[float, _Lever]] = []
    for lever in _levers(scenario, plans, line_usd_per_hour):
        factor = _crossing(_lines(lever, plans, 1.0), wins)
        if factor is not None:
            found.append((factor, lever))
    # the smallest change first; what turns out to have no turning point when solved anew gives way to the next
    for factor, lever in sorted(found, key=lambda pair: max(pair[0], 1.0 / pair[0])):
        settled = _settle(scenario, lever, factor, _lines(lever, plans, 1.0), wins, cheapest_at)
        if settled is not None:
            return TurnsAt(lever.what, lever.unit, lever.now, settled * lever.now, then)
    return None


Lines = dict[Side, list[tuple[float, float]]]  # (constant, slope) of each plan's cost over the factor


def _settle(
    scenario: Scenario,
    lever: _Lever,
    factor: float,
    lines: Lines,
    wins: Side,
    cheapest_at: Callable[[Scenario], Plans],
) -> float | None:
    for _ in range(STEPS):
        fresh = cheapest_at(lever.change(scenario, factor))
        if not fresh["split"] and not fresh["whole"]:
            return None
        added = _lines(lever, fresh, factor)
        lines = {side: [*lines[side], *added[side]] for side in lines}
        following = _crossing(lines, wins)
        if following is None or abs(following / factor - 1.0) <= 2 * GAP:
            return following
        factor = following
    return factor


def _least(plans: Sequence[Priced]) -> float:
    return min((plan.usd_per_hour for plan in plans), default=float("inf"))


def _lines(lever: _Lever, plans: Plans, factor: float) -> Lines:
    made: Lines = {"split": [], "whole": []}
    for side, found in plans.items():
        for plan in found:
            spent = lever.spent(plan)
            made[side].append((plan.usd_per_hour - spent, spent / factor))
    return made


def _crossing(lines: Lines, wins: Side) -> float | None:
    """The factor nearest to 1 at which the other side's envelope falls below; None where there is none."""
    if not lines["split"] or not lines["whole"]:
        return None

    def ahead(factors: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Where the side that wins now still does."""
        split, whole = (
            np.min([constant + slope * factors for constant, slope in lines[side]], axis=0) for side in SIDES
        )
        return np.asarray(split < whole if wins == "split" else whole <= split)

    lost = FACTORS[~ahead(FACTORS)]
    if lost.size == 0:
        return None
    beyond = float(lost[np.argmin(np.abs(np.log(lost)))])
    near = 1.0
    for _ in range(40):
        middle = (near * beyond) ** 0.5
        near, beyond = (middle, beyond) if bool(ahead(np.array([middle]))[0]) else (near, middle)
    return beyond if LEAST_FACTOR < beyond < MOST_FACTOR else None


def _levers(scenario: Scenario, plans: Plans, line: float) -> list[_Lever]:
    levers = []
    if line > 0:
        levers.append(_Lever("line", _lines_at, lambda plan: plan.line, line, "USD/h"))
    for chip in dict.fromkeys(chip for side in SIDES for plan in plans[side] for chip in plan.chips):
        prices = {o.usd_per_hour for site in scenario.sites for o in site.offers if o.chip.id == chip}
        if len(prices) == 1 and min(prices) > 0:
            levers.append(_Lever(chip, _chip_at(chip), _spent_on(chip), min(prices), "USD/h per chip"))
    return levers


def _spent_on(chip: str) -> Callable[[Priced], float]:
    return lambda plan: plan.chips.get(chip, 0.0)


def _chip_at(chip: str) -> Callable[[Scenario, float], Scenario]:
    def change(scenario: Scenario, factor: float) -> Scenario:
        def priced(offer: ChipOffer) -> ChipOffer:
            return replace(offer, usd_per_hour=offer.usd_per_hour * factor) if offer.chip.id == chip else offer

        sites = tuple(replace(site, offers=tuple(priced(o) for o in site.offers)) for site in scenario.sites)
        return replace(scenario, sites=sites)

    return change


def _lines_at(scenario: Scenario, factor: float) -> Scenario:
    def priced(tier: LineTier) -> LineTier:
        per_byte = {site: usd * factor for site, usd in tier.usd_per_byte.items()}
        return replace(tier, usd_per_hour=tier.usd_per_hour * factor, usd_per_byte=per_byte)

    links = tuple(replace(k, tiers=tuple(priced(t) for t in k.tiers)) for k in scenario.links)
    return replace(scenario, links=links)
