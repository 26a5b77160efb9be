"""Chips as ``pddplan.chips/1`` (the list) and ``pddplan.chip/1`` (one, with a source per number)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pddplan.report.json_schema import (
    COUNT,
    FLAG,
    MAYBE_COUNT,
    MAYBE_NUMBER,
    TEXT,
    Schema,
    document,
    numbers_by_name,
    record,
    rows,
)
from pddplan.report.plan_json import finite, finite_map
from pddplan.spec.chip_compare import compare_chips
from pddplan.spec.chip_list import ChipSummary
from pddplan.spec.chips import DTYPES
from pddplan.spec.types import Chip


def chips_payload(summaries: Sequence[ChipSummary], catalogue_date: str) -> dict[str, Any]:
    chips = [{name: _plain(value) for name, value in asdict(row).items()} for row in summaries]
    return {"schema": "pddplan.chips/1", "catalogue_date": catalogue_date, "chips": chips}


def chip_payload(chip: Chip, reference: Chip) -> dict[str, Any]:
    return {
        "schema": "pddplan.chip/1",
        "id": chip.id,
        "name": chip.name,
        "vendor": chip.vendor,
        "class": chip.chip_class,
        "aliases": list(chip.aliases),
        "plannable": not chip.missing,
        "missing": list(chip.missing),
        "peak_flops": finite_map(chip.peak_flops),
        "memory_bytes": finite(chip.memory_bytes),
        "memory_bytes_per_s": finite(chip.memory_bytes_per_s),
        "scale_up_bytes_per_s": finite(chip.scale_up_bytes_per_s),
        "scale_up_domain": chip.scale_up_domain,
        "scale_out_bytes_per_s": finite(chip.scale_out_bytes_per_s),
        "chips_per_node": chip.chips_per_node,
        "all_in_watts": finite(chip.all_in_watts),
        "price": {"usd_per_hour": finite(chip.usd_per_hour), "kind": chip.price_kind, "date": chip.price_date},
        "efficiency": chip.efficiency,
        "status": chip.status,
        "tdp_watts": finite(chip.tdp_watts),
        "notes": list(chip.notes),
        "against": {"id": reference.id, "ratios": {d.key: finite(d.ratio) for d in compare_chips(chip, reference)}},
        "provenance": {
            field: {"source": origin.source, "confidence": origin.confidence}
            for field, origin in chip.provenance.items()
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return finite(value) if isinstance(value, float) else value


_NAMES = rows(TEXT)

CHIPS: Schema = document(
    "pddplan.chips/1",
    "Answer of pddplan hardware list --json",
    {
        "catalogue_date": TEXT,
        "chips": rows(
            record(
                {
                    "id": TEXT,
                    "aliases": _NAMES,
                    "name": TEXT,
                    "vendor": TEXT,
                    "chip_class": TEXT,
                    "status": TEXT,
                    "released": MAYBE_COUNT,
                    **{f"{d}_tflops": MAYBE_NUMBER for d in DTYPES},
                    "memory_gb": MAYBE_NUMBER,
                    "memory_gb_per_s": MAYBE_NUMBER,
                    "interconnect_gb_per_s": MAYBE_NUMBER,
                    "domain_chips": COUNT,
                    "scale_out_gbit_per_s": MAYBE_NUMBER,
                    "chips_per_node": COUNT,
                    "tdp_watts": MAYBE_NUMBER,
                    "all_in_kw": MAYBE_NUMBER,
                    "usd_per_hour": MAYBE_NUMBER,
                    "price_kind": TEXT,
                    "price_date": TEXT,
                    "confidence": TEXT,
                    "plannable": FLAG,
                    "missing": _NAMES,
                }
            ),
        ),
    },
)

CHIP: Schema = document(
    "pddplan.chip/1",
    "Answer of pddplan hardware show --json",
    {
        "id": TEXT,
        "name": TEXT,
        "vendor": TEXT,
        "class": TEXT,
        "aliases": _NAMES,
        "plannable": FLAG,
        "missing": _NAMES,
        "peak_flops": numbers_by_name(),
        "memory_bytes": MAYBE_NUMBER,
        "memory_bytes_per_s": MAYBE_NUMBER,
        "scale_up_bytes_per_s": MAYBE_NUMBER,
        "scale_up_domain": COUNT,
        "scale_out_bytes_per_s": MAYBE_NUMBER,
        "chips_per_node": COUNT,
        "all_in_watts": MAYBE_NUMBER,
        "status": TEXT,
        "tdp_watts": MAYBE_NUMBER,
        "notes": rows(TEXT),
        "against": record({"id": TEXT, "ratios": numbers_by_name(nullable=True)}),
        "price": record({"usd_per_hour": MAYBE_NUMBER, "kind": TEXT, "date": TEXT}),
        "provenance": {
            "type": "object",
            "additionalProperties": record({"source": TEXT, "confidence": TEXT}),
        },
    },
)
