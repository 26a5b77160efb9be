"""A row put together: whatever can't be read becomes the reason why it has no prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pddplan.accuracy.names import weights_named
from pddplan.accuracy.points import Named, labels_of, sweep_of
from pddplan.accuracy.records import Figures, Labels, MeasuredRow, Metric, NoPoint, Part
from pddplan.estimate.records import OperatingPoint
from pddplan.llm.parameters import parameters

FLOP_PER_PARAMETER = 2.0


@dataclass(frozen=True)
class Draft:
    """What a row says besides its point; ``isl`` and ``osl`` as written, for the sweep it belongs to."""

    named: Named
    mode: str
    isl: str
    osl: str
    measured: Figures
    peer: Figures = field(default_factory=dict)
    confidence: str = ""
    source: str = ""
    id: str = ""
    notes: tuple[str, ...] = ()


def assemble(number: int, draft: Draft, parts: Callable[[], tuple[Part, ...]]) -> MeasuredRow:
    """The row with its parts, or with the reason why it has none."""
    labels = labels_of(draft.mode, draft.named)
    measured, notes = draft.measured, draft.notes
    found: tuple[Part, ...] = ()
    why = ""
    try:
        found = parts()
        measured, more = possible_only(draft.measured, found)
        notes += more
    except NoPoint as reason:
        why = str(reason)
    return MeasuredRow(
        number=number,
        parts=found,
        why=why,
        measured=measured,
        labels=labels,
        peer=draft.peer,
        confidence=draft.confidence,
        source=draft.source,
        id=draft.id,
        sweep=_sweep(labels, draft, found),
        notes=notes,
    )


def without_point(number: int, why: str) -> MeasuredRow:
    """A row of which nothing could be read."""
    return MeasuredRow(number, (), why, {}, Labels())


def _sweep(labels: Labels, draft: Draft, parts: tuple[Part, ...]) -> str:
    if not parts:
        return ""
    pool = parts[0].point.pools[0]
    return sweep_of(labels, weights_named(draft.named.weights, draft.named.model, pool.chip), draft.isl, draft.osl)


def possible_only(measured: Figures, parts: tuple[Part, ...]) -> tuple[Figures, tuple[str, ...]]:
    """Without a prefill rate that no chip could reach, and the time it came from: ``2 x active parameters`` FLOP a
    token would take more than the chip's largest dense peak."""
    rate = measured.get("prefill_tok_s_per_chip")
    asked = next((p.point for p in parts if "prefill_tok_s_per_chip" in p.metrics), None)
    if rate is None or asked is None or rate <= highest_prefill_rate(asked):
        return measured, ()
    gone: tuple[Metric, ...] = ("prefill_tok_s_per_chip",)
    if asked.mode == "prefill":
        gone += ("ttft_ms",)
    kept: Mapping[Metric, float] = {m: v for m, v in measured.items() if m not in gone}
    return kept, (f"{rate:,.0f} prompt tokens/s per chip are more than the chip's peak: not a measurement",)


def highest_prefill_rate(point: OperatingPoint) -> float:
    """Largest dense peak over ``2 x active parameters`` and the share of the prompt that isn't cached
    [counted tokens/s per chip]."""
    active = parameters(point.model).active_no_embed_no_head
    peak = max(point.pools[0].chip.peak_flops.values())
    return peak / (FLOP_PER_PARAMETER * active * (1.0 - point.lengths.prefix_hit))
