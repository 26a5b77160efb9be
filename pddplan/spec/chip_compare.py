"""One chip against another in the four dimensions, compute once per format that it has."""

from __future__ import annotations

from dataclasses import dataclass

from pddplan.spec.chips import FOUR_NUMBERS, figure_of
from pddplan.spec.types import Chip

REFERENCE = "nvidia-h100-sxm"  # the chip that most people know
# What a chip without a format computes it in: 2-model.md section 2, and as pddplan.perf.ops does.
_INSTEAD = {
    "fp8": ("fp8", "int8", "bf16"),
    "int8": ("int8", "fp8", "bf16"),
    "fp4": ("fp4", "fp8", "bf16"),
    "bf16": ("bf16",),
}
_OTHERS = (("memory_gb", "GB"), ("memory_gb_per_s", "GB/s"), ("interconnect_gb_per_s", "GB/s"))


@dataclass(frozen=True)
class Dimension:
    """A number of a chip over the reference's."""

    key: str
    unit: str
    value: float | None  # None: not published
    reference: float | None
    against: str  # the reference's key: another format where it lacks this one

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.value and self.reference else None


def compare_chips(chip: Chip, reference: Chip) -> tuple[Dimension, ...]:
    """Compute in bf16, in 8 bits (fp8, else int8) and in fp4 where the chip has it; memory, bandwidth, interconnect.

    A format that the reference lacks is held against the one it computes in instead.
    """
    eight_bit = "int8" if "fp8" not in chip.peak_flops and "int8" in chip.peak_flops else "fp8"
    formats = ["bf16", eight_bit, *(["fp4"] if "fp4" in chip.peak_flops else [])]
    rows = []
    for dtype in formats:
        instead = next((d for d in _INSTEAD[dtype] if d in reference.peak_flops), dtype)
        rows.append(_dimension(chip, reference, f"{dtype}_tflops", "TFLOP/s", f"{instead}_tflops"))
    return (*rows, *(_dimension(chip, reference, key, unit, key) for key, unit in _OTHERS))


def _dimension(chip: Chip, reference: Chip, key: str, unit: str, against: str) -> Dimension:
    return Dimension(key, unit, figure_of(chip, key), figure_of(reference, against), against)


def extremes(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, Dimension] | None:
    """The dimensions with the smallest and the largest ratio; None where one of the four is unknown."""
    known = [d for d in dimensions if d.ratio is not None]
    if not set(FOUR_NUMBERS) <= {d.key for d in known}:
        return None
    return min(known, key=lambda d: d.ratio or 0.0), max(known, key=lambda d: d.ratio or 0.0)
