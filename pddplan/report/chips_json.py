"""Chips as ``pddplan.chips/1`` (the list) and ``pddplan.chip/1`` (one, with a source per number)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pddplan.report.json_schema import (
    COUNT,
    FLAG,
    MAYBE_NUMBER,
    TEXT,
    Schema,
    document,
    numbers_by_name,
    record,
    rows,
)
from pddplan.report.plan_json import finite, finite_map
from pddplan.spec.catalogue import ChipSummary
from pddplan.spec.types import Chip


def chips_payload(summaries: Sequence[ChipSummary], catalogue_date: str) -> dict[str, Any]:
    chips = [{name: _plain(value) for name, value in asdict(row).items()} for row in summaries]
    return {"schema": "pddplan.chips/1", "catalogue_date": catalogue_date, "chips": chips}


def chip_payload(chip: Chip) -> dict[str, Any]:
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
                    "bf16_tflops": MAYBE_NUMBER,
                    "memory_gb": MAYBE_NUMBER,
                    "memory_gb_per_s": MAYBE_NUMBER,
                    "interconnect_gb_per_s": MAYBE_NUMBER,
                    "chips_per_node": COUNT,
                    "usd_per_hour": MAYBE_NUMBER,
                    "plannable": FLAG,
                    "missing": _NAMES,
                }
            ),
            at_least=1,
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
        "price": record({"usd_per_hour": MAYBE_NUMBER, "kind": TEXT, "date": TEXT}),
        "provenance": {
            "type": "object",
            "additionalProperties": record({"source": TEXT, "confidence": TEXT}),
        },
    },
)
