"""A measured row as read: what it asks the model, what was measured, and whom it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pddplan.estimate.records import OperatingPoint

Metric = Literal["ttft_ms", "tpot_ms", "prefill_tok_s_per_chip", "decode_tok_s_per_chip"]
METRICS: tuple[Metric, ...] = ("ttft_ms", "tpot_ms", "prefill_tok_s_per_chip", "decode_tok_s_per_chip")
TIMES: tuple[Metric, ...] = ("ttft_ms", "tpot_ms")

Figures = Mapping[Metric, float]
"""Values by metric; a metric without a value is absent."""


class NoPoint(ValueError):
    """Why a row is no operating point: raised while a row is read, caught where the row is put together."""


@dataclass(frozen=True)
class Part:
    """One question of a row: the point, and which of the row's metrics answer it.

    Most rows have one; a row that measured prefill and decode apart from each other has two.
    """

    point: OperatingPoint
    metrics: tuple[Metric, ...]


@dataclass(frozen=True)
class Labels:
    """What rows are grouped by; "" where the row doesn't say."""

    mode: str = ""
    chip: str = ""
    model: str = ""  # id of the card
    family: str = ""
    engine: str = ""


@dataclass(frozen=True)
class MeasuredRow:
    """A data row of a file, whether or not it can be predicted: then ``parts`` is empty and ``why`` says why.

    ``sweep`` are the configuration columns that rows must share to be ranked against each other. ``peer`` holds another
    tool's predictions where the file has them. ``notes``: values that were there but not used, and why.
    """

    number: int  # 1-based, of the data rows
    parts: tuple[Part, ...]
    why: str
    measured: Figures
    labels: Labels
    peer: Figures = field(default_factory=dict)
    confidence: str = ""  # tier as stated: A, B, C; "" where the file has none
    source: str = ""
    id: str = ""
    sweep: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurements:
    """A file of measurements; ``layout`` says whose columns it has; ``notes`` is for the person who gave it."""

    file: str
    layout: str
    rows: tuple[MeasuredRow, ...]
    notes: tuple[str, ...] = ()
