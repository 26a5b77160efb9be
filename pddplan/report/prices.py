"""Ages of the catalogue's prices that a plan rests on."""

from __future__ import annotations

from datetime import date

from pddplan.spec.catalogue import price_age_months
from pddplan.spec.types import Scenario

OLD_MONTHS = 3  # younger list prices are not worth a line


def price_notes(scenario: Scenario, today: date | None = None) -> list[str]:
    """``price of nvidia-h20-96g is 5 months old``, once for each chip whose price came from the catalogue."""
    now = today or date.today()
    from_catalogue = {a.name for a in scenario.assumptions if a.source == "catalogue"}
    notes: dict[str, None] = {}
    for site in scenario.sites:
        for offer in site.offers:
            if f"{offer.key}.usd_per_hour" not in from_catalogue:
                continue
            age = price_age_months(offer.chip, now)
            if age is None:
                notes[f"price of {offer.chip.id} has no date"] = None
            elif age >= OLD_MONTHS:
                notes[f"price of {offer.chip.id} is {age} months old ({offer.chip.price_date})"] = None
    return list(notes)
