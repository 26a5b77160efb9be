"""The rows of ``hardware list``: every chip with its published numbers, chosen and ordered as the user asks."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pddplan.errors import InputError, Problem
from pddplan.spec.catalogue import chip_ids, load_chip
from pddplan.spec.chips import DTYPES, FOUR_NUMBERS, figure_of
from pddplan.spec.issues import closest, shown
from pddplan.spec.types import Chip

NUMBERS = (
    *(f"{d}_tflops" for d in DTYPES),
    "memory_gb",
    "memory_gb_per_s",
    "interconnect_gb_per_s",
    "domain_chips",
    "scale_out_gbit_per_s",
    "chips_per_node",
    "tdp_watts",
    "all_in_kw",
    "usd_per_hour",
    "released",
)
TEXTS = ("vendor", "id", "name", "status")
SORT_KEYS = (*TEXTS, *NUMBERS)
CHEAPEST_FIRST = ("usd_per_hour", "tdp_watts", "all_in_kw")  # all other numbers: the largest first
_CONDITION = re.compile(r"^\s*([A-Za-z0-9_]+)\s*(>=|<=|==|=|>|<)\s*([^\s=<>]\S*)\s*$")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
    "==": operator.eq,
}


@dataclass(frozen=True)
class ChipSummary:
    """A row of ``hardware list``; None where nobody published the number."""

    id: str
    aliases: tuple[str, ...]
    name: str
    vendor: str
    chip_class: str
    status: str  # shipping | announced | discontinued
    released: int | None
    bf16_tflops: float | None
    fp16_tflops: float | None
    fp8_tflops: float | None
    int8_tflops: float | None
    fp4_tflops: float | None
    memory_gb: float | None  # as marketed
    memory_gb_per_s: float | None
    interconnect_gb_per_s: float | None  # one direction
    domain_chips: int
    scale_out_gbit_per_s: float | None
    chips_per_node: int
    tdp_watts: float | None
    all_in_kw: float | None
    usd_per_hour: float | None
    price_kind: str
    price_date: str
    confidence: str  # the weakest of the four dimensions
    plannable: bool
    missing: tuple[str, ...]


def chip_summaries() -> tuple[ChipSummary, ...]:
    """Every chip as a row of ``hardware list``, by id."""
    return tuple(_summary(load_chip(chip_id)) for chip_id in chip_ids())


def _summary(chip: Chip) -> ChipSummary:
    def published(key: str) -> float | None:
        return None if key in chip.defaulted else figure_of(chip, key)

    return ChipSummary(
        id=chip.id,
        aliases=chip.aliases,
        name=chip.name,
        vendor=chip.vendor,
        chip_class=chip.chip_class,
        status=chip.status,
        released=chip.released,
        bf16_tflops=published("bf16_tflops"),
        fp16_tflops=published("fp16_tflops"),
        fp8_tflops=published("fp8_tflops"),
        int8_tflops=published("int8_tflops"),
        fp4_tflops=published("fp4_tflops"),
        memory_gb=published("memory_gb"),
        memory_gb_per_s=published("memory_gb_per_s"),
        interconnect_gb_per_s=published("interconnect_gb_per_s"),
        domain_chips=chip.scale_up_domain,
        scale_out_gbit_per_s=published("scale_out_gbit_per_s"),
        chips_per_node=chip.chips_per_node,
        tdp_watts=published("tdp_watts"),
        all_in_kw=published("all_in_kw"),
        usd_per_hour=chip.usd_per_hour,
        price_kind=chip.price_kind,
        price_date=chip.price_date,
        confidence=_weakest(chip),
        plannable=not chip.missing,
        missing=chip.missing,
    )


def _weakest(chip: Chip) -> str:
    order = ("datasheet", "measured", "documented", "secondary", "estimate", "input")
    named = [chip.provenance[f].confidence for f in FOUR_NUMBERS if f in chip.provenance]
    return max(named, key=order.index, default="estimate")


# ---------------------------------------------------------------- choosing and ordering


@dataclass(frozen=True)
class Condition:
    """``memory_gb >= 96``: a number of a chip against a limit, in the unit of the key."""

    key: str
    sign: str
    limit: float

    def holds(self, row: ChipSummary) -> bool:
        """False where the number isn't published."""
        value = getattr(row, self.key)
        return value is not None and _COMPARE[self.sign](float(value), self.limit)


def read_condition(text: str) -> Condition:
    """A condition as written: ``memory_gb>=96``; InputError with the keys and the form otherwise."""
    match = _CONDITION.match(text)
    if match is None:
        fix = 'Write KEY>=NUMBER in quotes, as --where "memory_gb>=96"; >, <, <= and = too.'
        raise InputError(Problem(f"--where {shown(text)} is no condition.", fix=fix))
    key, sign, number = match[1].lower(), match[2], match[3]
    if key not in NUMBERS:
        raise InputError(_unknown("--where", match[1], NUMBERS))
    try:
        limit = float(number.replace(",", "").replace("_", ""))
    except ValueError:
        limit = float("nan")
    if limit != limit:
        fix = f"{key} is a plain number in the unit of its name."
        raise InputError(Problem(f"--where {shown(text)}: {shown(number)} is not a number.", fix=fix))
    return Condition(key, sign, limit)


def select_chips(
    rows: Iterable[ChipSummary],
    *,
    vendors: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    conditions: Sequence[Condition] = (),
    plannable: bool = False,
) -> tuple[ChipSummary, ...]:
    """The chips of any of the vendors that have every dtype and hold every condition.

    InputError for a vendor that no chip has, or a dtype that no chip could have.
    """
    rows = tuple(rows)
    makers = {r.vendor for r in rows}
    wanted = {maker for asked in vendors for maker in _makers(asked, makers)}
    for asked in dtypes:
        if asked.lower() not in DTYPES:
            raise InputError(_unknown("--dtype", asked, DTYPES))
    return tuple(
        r
        for r in rows
        if (not vendors or r.vendor in wanted)
        and all(getattr(r, f"{d.lower()}_tflops") is not None for d in dtypes)
        and all(c.holds(r) for c in conditions)
        and (r.plannable or not plannable)
    )


def _makers(asked: str, makers: set[str]) -> set[str]:
    """Vendors whose name is or holds what was asked, whatever the case and the separators."""
    plain = {re.sub(r"[^a-z0-9]", "", maker.lower()): maker for maker in makers}
    name = re.sub(r"[^a-z0-9]", "", asked.lower())
    found = {plain[name]} if name in plain else {maker for p, maker in plain.items() if name and name in p}
    if not found:
        raise InputError(_unknown("--vendor", asked, sorted(makers)))
    return found


def sort_chips(rows: Iterable[ChipSummary], key: str, *, reverse: bool = False) -> tuple[ChipSummary, ...]:
    """Ordered by one column: numbers from the largest, prices and watts from the smallest, texts from A; unknown last.

    Ties are broken by vendor and id. InputError for a key that isn't a column.
    """
    name = key.lower()
    if name not in SORT_KEYS:
        raise InputError(_unknown("--sort", key, SORT_KEYS))
    rows = sorted(rows, key=lambda r: (r.vendor.lower(), r.id))
    known = [r for r in rows if getattr(r, name) not in (None, "")]
    unknown = [r for r in rows if getattr(r, name) in (None, "")]
    if name in TEXTS:
        known.sort(key=lambda r: str(getattr(r, name)).lower(), reverse=reverse)
    else:
        known.sort(key=lambda r: float(getattr(r, name)), reverse=reverse is (name in CHEAPEST_FIRST))
    return (*known, *unknown)


def _unknown(option: str, asked: str, known: Sequence[str]) -> Problem:
    near = closest(asked, known)
    start = f"Did you mean {near}? " if near else ""
    return Problem(f"{option}: unknown {shown(asked)}.", fix=f"{start}Known: {', '.join(known)}.")
