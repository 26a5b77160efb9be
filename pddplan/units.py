"""Units: SI inside (s, bytes, FLOP, B/s, USD); names of constants say the unit.

GB is 1e9 bytes and GiB is 2^30; bandwidth and FLOP/s use decimal prefixes; ``64K`` tokens are 65,536.
"""

from __future__ import annotations

import re

KIB = 1024
GB = 1e9
MIB = 2.0**20
GIB = 2.0**30
TB = 1e12
TFLOPS = 1e12
GBIT_PER_S_IN_BYTES_PER_S = 1e9 / 8
MS = 1e-3
US = 1e-6
SECONDS_PER_HOUR = 3600.0
HOURS_PER_MONTH = 730.0
HOURS_PER_YEAR = 8760.0
TOKENS_PER_MTOK = 1e6

_TOKENS = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmM]?)\s*$")


def parse_tokens(text: str | float) -> float:
    """Token count from ``64K``, ``1.5M`` or a plain number; K = 2^10, M = 2^20 [tokens].

    Raises ValueError for anything else.
    """
    if isinstance(text, bool):
        raise ValueError(f"not a token count: {text!r}")
    if isinstance(text, (int, float)):
        return float(text)
    match = _TOKENS.match(text)
    if match is None:
        raise ValueError(f"not a token count: {text!r}")
    scale = {"": 1, "k": KIB, "m": KIB * KIB}[match[2].lower()]
    return float(match[1]) * scale
