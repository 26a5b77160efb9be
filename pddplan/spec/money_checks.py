"""Prices that lack a part or contradict themselves, and measured rates that say too little."""

from __future__ import annotations

from typing import Any

from pddplan.errors import Problem
from pddplan.spec.issues import KeyPath, format_key, shown
from pddplan.spec.money import VARIANTS
from pddplan.spec.price_list import find_prices, price_hint
from pddplan.spec.types import Chip
from pddplan.spec.yaml_source import Document

_CAPEX_FIX = "Write {capex_usd: 25000, years: 4, all_in_kw: 1.4}."


def money_problems(document: Document, chips: dict[tuple[int, int], Chip]) -> list[Problem]:
    """Problems of chip prices, measured rates and token prices; ``chips`` are the ones that were found."""
    problems = _token_prices(document)
    sites = document.data.get("sites")
    for i, site in enumerate(sites if isinstance(sites, list) else []):
        offers = site.get("chips") if isinstance(site, dict) else None
        for j, offer in enumerate(offers if isinstance(offers, list) else []):
            if isinstance(offer, dict):
                path: KeyPath = ("sites", i, "chips", j)
                problems += _chip_price(document, path, offer, chips.get((i, j)))
                problems += _measured(document, path, offer)
    return problems


def _spelled(mapping: dict[str, Any], canonical: str) -> str | None:
    """The key under which a money value stands, whatever its currency and period."""
    return next(
        (k for k, v in mapping.items() if v is not None and k in VARIANTS and VARIANTS[k].canonical == canonical), None
    )


def _chip_price(document: Document, path: KeyPath, offer: dict[str, Any], chip: Chip | None) -> list[Problem]:
    rental, capital = _spelled(offer, "usd_per_hour"), _spelled(offer, "capex_usd")
    if rental is not None and capital is not None:
        fix = "Keep one: the rent, or the capital price with its years."
        return [document.problem((*path, capital), f"'{capital}' stands beside '{rental}'.", fix)]
    if rental is not None and isinstance(offer[rental], dict):
        return _capex(document, (*path, rental), offer[rental])
    if capital is not None:
        return _capex(document, path, offer)
    if rental is None and offer.get("years") is not None:
        return [document.problem((*path, "years"), "needs capex_usd beside it.", _CAPEX_FIX)]
    if rental is None and chip is not None and chip.usd_per_hour is None and not chip.missing:
        file, line = document.place(path)
        message = f"no price: the catalogue has none for {chip.id}."
        key = format_key((*path, "usd_per_hour"))
        return [Problem(message, key, file, line, "Write usd_per_hour, usd_per_month or capex_usd and years.")]
    return []


def _capex(document: Document, path: KeyPath, mapping: dict[str, Any]) -> list[Problem]:
    problems = []
    if _spelled(mapping, "capex_usd") is None and "capex_usd" not in mapping:
        problems.append(document.problem(path, "capex_usd is missing.", _CAPEX_FIX))
    if mapping.get("years") is None:
        problems.append(document.problem(path, "a capital price needs years.", _CAPEX_FIX))
    return problems


def _measured(document: Document, path: KeyPath, offer: dict[str, Any]) -> list[Problem]:
    problems = []
    measured = offer.get("measured")
    for role, rates in measured.items() if isinstance(measured, dict) else ():
        if role == "aggregated":
            message, fix = "measured rates of aggregated serving are not supported yet.", "Remove them."
            problems.append(document.problem((*path, "measured", role), message, fix))
            continue
        if not isinstance(rates, dict) or rates.get("tokens_per_s") is not None:
            continue
        if role == "prefill":
            enough, fix = rates.get("ttft_s") is not None, "Write tokens_per_s, or ttft_s: {1K: 0.44, 8K: 0.72}."
        else:
            enough = rates.get("batch") is not None and rates.get("tpot_ms") is not None
            fix = "Write tokens_per_s, or batch and tpot_ms."
        if not enough:
            problems.append(document.problem((*path, "measured", role), "holds no rate.", fix))
    return problems


def _token_prices(document: Document) -> list[Problem]:
    prices = document.data.get("prices")
    if isinstance(prices, str) and prices:
        if find_prices(prices) is None:
            message = f"no listed prices of {shown(prices)}."
            return [document.problem(("prices",), message, price_hint(prices))]
        return []
    if not isinstance(prices, dict):
        return []
    problems = []
    for key in ("input_usd_per_mtok", "output_usd_per_mtok"):
        if _spelled(prices, key) is None:
            file, line = document.place(("prices",))
            problems.append(Problem("is missing.", format_key(("prices", key)), file, line, f"Write {key}: 0.55."))
    return problems
