"""Numbers for people: three significant digits with a unit, counts exact, shares in percent."""

from __future__ import annotations

import math
from collections.abc import Callable

UNKNOWN = "–"


def figure(value: float | None) -> str:
    """Three significant digits; whole numbers with separators from 1,000 on; a dash for what isn't known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 999.5:
        return f"{value:,.0f}"
    if size < 1e-4:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:.{decimals}f}"
    # 9.996 rounds up to 10.00: one digit too many
    if len(text.lstrip("-0.").replace(".", "")) > 3 and decimals:
        text = f"{value:.{decimals - 1}f}"
    return text


def money(value: float | None) -> str:
    """Like ``figure`` but with one decimal from 100 to 1,000, so that the rows of a bill add up to its total."""
    if value is not None and 99.95 <= abs(value) < 999.95:
        return f"{value:.1f}"
    return figure(value)


def cash(value: float | None, currency: str = "$") -> str:
    """A sum of money with its sign before the currency's: "$163.8", "-$8.21"."""
    return f"-{currency}{money(-value)}" if value is not None and value < 0 else f"{currency}{money(value)}"


def price(
    usd: float | None, cny_per_usd: float | None = None, per: str = "", *, show: Callable[[float], str] = money
) -> str:
    """A sum in USD, where there is an exchange rate in CNY as well: "$163.8/h (¥1,179/h)"."""
    if usd is None or not math.isfinite(usd) or not cny_per_usd:
        return f"${UNKNOWN if usd is None else show(usd)}{per}"
    return f"${show(usd)}{per} (¥{show(usd * cny_per_usd)}{per})"


def percent(share: float | None) -> str:
    """A fraction as percent: 0.113 -> "11.3 %", 0.71 -> "71 %", 0.004 -> "0.4 %"."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = 100 * share
    size = abs(value)
    if 0 < size < 0.05:
        return "< 0.1 %" if value > 0 else "> -0.1 %"
    decimals = 1 if size < 99.95 and abs(value - round(value)) >= 0.05 else 0
    return f"{value:,.{decimals}f} %"


def seconds(value: float | None, limit: float | None = None) -> str:
    """A time with its unit: ms below a second, s above; from 0.1 s on in the unit of its limit, if it has one."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    small = value < 1 if limit is None else limit < 1 or value < 0.1
    return f"{figure(value * 1e3)} ms" if small else f"{figure(value)} s"


def limit_seconds(limit: float | None) -> str:
    """A limit as it was given: "20 s", "50 ms"."""
    if limit is None or not math.isfinite(limit):
        return UNKNOWN
    return f"{exact(round(limit * 1e3, 6))} ms" if limit < 1 else f"{exact(limit)} s"


def quantile_name(quantile: float) -> str:
    """0.5 -> "p50", 0.99 -> "p99", 0.999 -> "p999"."""
    digits = f"{quantile:.6f}".split(".")[1].rstrip("0")
    return "p" + digits.ljust(2, "0")


def signed_percent(share: float | None) -> str:
    text = percent(share)
    return text if text == UNKNOWN or (share or 0) < 0 else f"+{text}"


def exact(value: float) -> str:
    """A number that somebody gave, as given: no rounding to three digits, no trailing zeros."""
    return f"{value:,.10g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.10g}"


def words(name: str) -> str:
    """``relay_decode`` -> "relay decode"."""
    return name.replace("_", " ")


def constraint_name(constraint: str) -> str:
    """``tpot_p90`` -> "TPOT p90", ``line_capacity`` -> "line capacity"."""
    parts = words(constraint).split(" ")
    return " ".join(part.upper() if part in ("ttft", "tpot", "e2e", "kv", "usd") else part for part in parts)
