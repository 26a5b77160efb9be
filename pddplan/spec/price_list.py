"""List prices of hosted models: what ``prices: deepseek-v3.2`` in a scenario means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pddplan.spec.datafile import read_data_file
from pddplan.spec.issues import closest
from pddplan.spec.types import Prices

_FILE = Path(__file__).resolve().parent / "prices.yaml"


@dataclass(frozen=True)
class ListedPrices:
    """Prices of one model [USD per million tokens], with the month (YYYY-MM, "" unknown) and the source."""

    id: str
    prices: Prices
    date: str
    source: str
    confidence: str


@lru_cache(maxsize=1)
def listed_prices_all() -> dict[str, ListedPrices]:
    rows = read_data_file(_FILE)["prices"]
    return {
        name: ListedPrices(
            id=name,
            prices=Prices(float(row["input"]), float(row["cached_input"]), float(row["output"])),
            date=str(row["date"]),
            source=str(row["source"]),
            confidence=str(row["confidence"]),
        )
        for name, row in rows.items()
    }


def find_prices(name: str) -> ListedPrices | None:
    """The listed prices of a model, without case; None where it isn't listed."""
    return listed_prices_all().get(name.strip().lower())


def price_hint(name: str) -> str:
    """What to write instead of a name that isn't listed."""
    near = closest(name, listed_prices_all())
    listed = f"Did you mean {near}?" if near else f"Listed: {', '.join(listed_prices_all())}."
    return f"{listed} Or write {{input_usd_per_mtok: …, cached_input_usd_per_mtok: …, output_usd_per_mtok: …}}."
