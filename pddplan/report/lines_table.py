"""``hardware list --lines``: lines one can rent and what is taken by default, as text and as ``pddplan.lines/1``."""

from __future__ import annotations

from typing import Any

from pddplan.report.figures import UNKNOWN, exact, figure, percent, words
from pddplan.report.json_schema import MAYBE_NUMBER, NUMBER, TEXT, Schema, document, numbers_by_name, record, rows
from pddplan.report.layout import paragraph, table
from pddplan.spec.profiles import LinkDefaults, TierOffer
from pddplan.units import GBIT_PER_S_IN_BYTES_PER_S, MS

_LEGEND = (
    "A port is one end of a line: both ends are paid, and the wave between them. out, in: USD a GB that leaves and "
    "enters the provider; – isn't in its table. A month is 730 hours."
)


def render_lines(lines: LinkDefaults, width: int) -> str:
    """Tiers by provider with prices per hour, month and GB by direction; RTT by distance; goodput by kind."""
    offers = [_offer(t) for t in lines.tiers]
    header = ("line", "Gbit/s", "USD/h", "USD/month", "out", "in", "priced")
    text = [*table(header, offers, width, right=(1, 2, 3, 4, 5), indent=0), "", *paragraph(_LEGEND, width)]
    text += ["", "Round trip, where a scenario needs an rtt_ms"]
    text += table(("between", "ms"), [(_place(k), figure(s / MS)) for k, s in lines.rtt_s.items()], width, right=(1,))
    text += ["", f"Goodput: the share of a line that carries KV at best, {percent(lines.goodput)} by default"]
    by_kind = [(words(kind), percent(share)) for kind, share in lines.goodput_by_kind.items()]
    text += table(("kind of line", "share"), by_kind, width, right=(1,))
    stream = lines.stream_bytes_per_s / GBIT_PER_S_IN_BYTES_PER_S
    others = (
        f"By default too: {lines.streams} streams of {exact(stream)} Gbit/s, at most {lines.max_lines} lines of a tier."
    )
    text += ["", *paragraph(others, width), "", "sources"]
    for source in dict.fromkeys(t.provenance.source for t in lines.tiers):
        offered = [t for t in lines.tiers if t.provenance.source == source]
        kinds = ", ".join(dict.fromkeys(t.kind for t in offered))
        text += paragraph(f"{offered[0].provider} ({kinds}): {source}", width, indent=2, hanging=4)
    text += paragraph("Round trips, goodput and streams are estimates: hardware/links/defaults.yaml.", width, indent=2)
    return "\n".join(text)


def _offer(t: TierOffer) -> tuple[str, ...]:
    def per_gb(value: float | None) -> str:
        return UNKNOWN if value is None else exact(value)

    return (
        t.id,
        exact(t.gbit_per_s),
        f"{t.usd_per_hour:.2f}",
        f"{t.usd_per_month:,.0f}",
        per_gb(t.usd_per_gb_out),
        per_gb(t.usd_per_gb_in),
        t.date,
    )


def _place(key: str) -> str:
    return (
        f"{int(key.removeprefix('km_')):,} km" if key.startswith("km_") else words(key).replace(" dc", " data centre")
    )


def lines_payload(lines: LinkDefaults) -> dict[str, Any]:
    return {
        "schema": "pddplan.lines/1",
        "tiers": [
            {
                "id": t.id,
                "provider": t.provider,
                "kind": t.kind,
                "date": t.date,
                "gbit_per_s": t.gbit_per_s,
                "usd_per_hour": t.usd_per_hour,
                "usd_per_month": t.usd_per_month,
                "usd_per_gb": {"out": t.usd_per_gb_out, "in": t.usd_per_gb_in},
                "source": t.provenance.source,
                "confidence": t.provenance.confidence,
            }
            for t in lines.tiers
        ],
        "defaults": {
            "goodput": lines.goodput,
            "streams": lines.streams,
            "stream_gbit_per_s": lines.stream_bytes_per_s / GBIT_PER_S_IN_BYTES_PER_S,
            "max_lines": lines.max_lines,
        },
        "goodput_by_kind": dict(lines.goodput_by_kind),
        "rtt_ms": {k: s / MS for k, s in lines.rtt_s.items()},
    }


_TIER = {
    "id": TEXT,
    "provider": TEXT,
    "kind": TEXT,
    "date": TEXT,
    "gbit_per_s": NUMBER,
    "usd_per_hour": NUMBER,
    "usd_per_month": NUMBER,
    "usd_per_gb": record({"out": MAYBE_NUMBER, "in": MAYBE_NUMBER}),
    "source": TEXT,
    "confidence": TEXT,
}

LINES: Schema = document(
    "pddplan.lines/1",
    "Answer of pddplan hardware list --lines --json",
    {
        "tiers": rows(record(_TIER), at_least=1),
        "defaults": record({"goodput": NUMBER, "streams": NUMBER, "stream_gbit_per_s": NUMBER, "max_lines": NUMBER}),
        "goodput_by_kind": numbers_by_name(),
        "rtt_ms": numbers_by_name(),
    },
)
