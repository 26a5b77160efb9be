"""A model that answers at once, so that reading and scoring are tested by themselves: two numbers by hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from pddplan.errors import Excuse
from pddplan.estimate.records import Answer, Estimate, OperatingPoint, TtftParts

TTFT_S = 0.1
LEAST_TPOT_S = 0.010
TPOT_PER_USER_S = 0.001
MOST_CHIPS = 1000


def answer(point: OperatingPoint) -> Answer:
    """TPOT 10 ms and 1 ms a user; TTFT 0.1 s; no more than 1,000 chips."""
    if point.chips > MOST_CHIPS:
        return Excuse("chips", point.chips, MOST_CHIPS, "chips", point.model.id)
    users = point.concurrency or 1.0
    prefills, decodes = point.mode != "decode", point.mode != "prefill"
    return Estimate(
        ttft=TtftParts(0.0, TTFT_S, 0.0, 0.0) if prefills else None,
        tpot_s=LEAST_TPOT_S + TPOT_PER_USER_S * users if decodes else None,
        request_rate_per_s=1.0,
        asked_concurrency=point.concurrency,
        effective_concurrency=users,
        prefill_tokens_per_s_per_chip=1000.0 if prefills else None,
        decode_tokens_per_s_per_chip=100.0 if decodes else None,
        total_tokens_per_s_per_chip=1100.0,
        bottleneck="concurrency",
        memory=(),
    )


def install(monkeypatch: pytest.MonkeyPatch) -> list[OperatingPoint]:
    """Put the stand-in in the model's place; the list holds every point it was asked."""
    asked: list[OperatingPoint] = []

    def estimate_many(points: Sequence[OperatingPoint]) -> list[Answer]:
        asked.extend(points)
        return [answer(point) for point in points]

    monkeypatch.setitem(sys.modules, "pddplan.estimate.estimate", SimpleNamespace(estimate_many=estimate_many))
    return asked
