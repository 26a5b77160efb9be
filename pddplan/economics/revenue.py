"""What the tokens earn."""

from __future__ import annotations

from collections.abc import Mapping

from pddplan.spec.types import Prices


def revenue_usd_per_hour(prices: Prices, tokens_per_hour: Mapping[str, float]) -> dict[str, float]:
    """Revenue by kind [USD/h]: price per million x tokens per hour; ``input`` is the uncached part."""
    per_mtok = {
        "input": prices.input_usd_per_mtok,
        "cached_input": prices.cached_input_usd_per_mtok,
        "output": prices.output_usd_per_mtok,
    }
    return {kind: per_mtok[kind] * tokens / 1e6 for kind, tokens in tokens_per_hour.items()}
