"""What the sections of a plan's text draw from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pddplan.plan.records import PlanResult
from pddplan.spec.types import Scenario


@dataclass(frozen=True)
class View:
    result: PlanResult
    scenario: Scenario
    width: int
    names: Mapping[str, str]  # chip id -> short name
    weak: frozenset[str]  # names of the assumptions that are defaults or estimates
    weak_times: bool  # times rest on an estimate
    explain: bool = False  # everything is told, not only what decides


def short_names(scenario: Scenario) -> dict[str, str]:
    """Shortest alias of each chip of the scenario, its id where it has none."""
    chips = [offer.chip for site in scenario.sites for offer in site.offers]
    return {chip.id: min((*chip.aliases, chip.id), key=lambda name: (len(name), name)) for chip in chips}
