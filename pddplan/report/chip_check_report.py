"""``hardware add``: a chip file looked over, as text and as ``pddplan.chip_check/1``."""

from __future__ import annotations

from typing import Any

from pddplan.report.figures import UNKNOWN, exact
from pddplan.report.json_schema import (
    COUNT,
    FLAG,
    MAYBE_COUNT,
    MAYBE_NUMBER,
    NUMBER,
    TEXT,
    Schema,
    document,
    one_of,
    record,
    rows,
)
from pddplan.report.layout import item, paragraph, table
from pddplan.spec.chip_check import ChipCheck, Finding, Kind

_HEADINGS: tuple[tuple[Kind, str], ...] = (
    ("missing", "Missing: it can't be planned with before these are known"),
    ("implausible", "Implausible: a slip? Chips of its class don't have this"),
    ("name", "Names that are taken"),
    ("unusual", "Unusual, beyond every chip of its class in the catalogue"),
    ("left out", "Left out"),
)


def render_chip_check(check: ChipCheck, width: int) -> str:
    """The verdict, what is missing, implausible or left out, and the figures beside those of the class."""
    lines = paragraph(_verdict(check), width, hanging=2)
    for kind, heading in _HEADINGS:
        found = check.of_kind(kind)
        if found:
            lines += ["", *paragraph(heading, width)]
            lines += [line for f in found for line in item(_told(f), width)]
    members = "all" if check.chip.chip_class == "custom" else check.chip.chip_class
    lines += ["", *paragraph(f"Against the {check.peers} chips of the catalogue ({members})", width)]
    header = ("", "this", "", "from", "to")
    body = [
        (
            r.key,
            UNKNOWN if r.value is None else exact(r.value),
            "outside" if r.outside else "",
            exact(r.low),
            exact(r.high),
        )
        for r in check.ranges
    ]
    lines += table(header, body, width, right=(1, 3, 4))
    return "\n".join([*lines, "", *_next(check, width)])


def _verdict(check: ChipCheck) -> str:
    head = f"{check.status.upper()}  {check.chip_id}"
    if check.status == "incomplete":
        return f"{head}  no {', '.join(check.missing)}"
    count = len(check.of_kind("implausible"))
    if count:
        return f"{head}  {count} {'figure looks' if count == 1 else 'figures look'} wrong; it can be planned with"
    return f"{head}  can be planned with"


def _told(finding: Finding) -> str:
    place = "" if finding.line is None else f" (line {finding.line})"
    return f"{finding.key}{place}: {finding.message}"


def _next(check: ChipCheck, width: int) -> list[str]:
    file = "FILE" if check.file == "<stdin>" else check.file
    if check.status == "incomplete":
        return paragraph("Next: add what is missing, then check it again.", width)
    first = "check those figures; then " if check.status == "implausible" else ""
    text = (
        f"Next: {first}name it in a scenario as chip: {file}, or put it among hardware/chips as {check.chip_id}.yaml."
    )
    return paragraph(text, width)


def chip_check_payload(check: ChipCheck) -> dict[str, Any]:
    return {
        "schema": "pddplan.chip_check/1",
        "file": check.file,
        "id": check.chip_id,
        "class": check.chip.chip_class,
        "status": check.status,
        "plannable": not check.missing,
        "missing": list(check.missing),
        "findings": [
            {"kind": f.kind.replace(" ", "_"), "key": f.key, "line": f.line, "message": f.message}
            for f in check.findings
        ],
        "peers": check.peers,
        "ranges": [
            {
                "key": r.key,
                "value": r.value,
                "outside": r.outside,
                "low": r.low,
                "low_chip": r.low_chip,
                "high": r.high,
                "high_chip": r.high_chip,
            }
            for r in check.ranges
        ],
    }


_KINDS = one_of(*(kind.replace(" ", "_") for kind, _ in _HEADINGS))
_RANGE = {
    "key": TEXT,
    "value": MAYBE_NUMBER,
    "outside": FLAG,
    "low": NUMBER,
    "low_chip": TEXT,
    "high": NUMBER,
    "high_chip": TEXT,
}

CHIP_CHECK: Schema = document(
    "pddplan.chip_check/1",
    "Answer of pddplan hardware add --json",
    {
        "file": TEXT,
        "id": TEXT,
        "class": TEXT,
        "status": one_of("complete", "implausible", "incomplete"),
        "plannable": FLAG,
        "missing": rows(TEXT),
        "findings": rows(record({"kind": _KINDS, "key": TEXT, "line": MAYBE_COUNT, "message": TEXT})),
        "peers": COUNT,
        "ranges": rows(record(_RANGE)),
    },
)
