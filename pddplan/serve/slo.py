"""Service levels of a plan: which rows hold, and every quantile that is reported."""

from __future__ import annotations

from pddplan.errors import Excuse
from pddplan.serve.context import Context
from pddplan.serve.metrics import Latencies
from pddplan.serve.records import SloValue
from pddplan.spec.types import Metric, SloLimit

REPORTED: tuple[tuple[Metric, float], ...] = (
    ("ttft", 0.5),
    ("ttft", 0.9),
    ("ttft", 0.99),
    ("tpot", 0.5),
    ("tpot", 0.9),
    ("tpot", 0.99),
    ("pause", 0.5),
    ("pause", 0.9),
    ("pause", 0.99),
    ("e2e", 0.5),
    ("e2e", 0.9),
    ("e2e", 0.99),
)


def constraint_name(limit: SloLimit) -> str:
    """``ttft_p99`` and the like."""
    return f"{limit.metric}_p{limit.quantile * 100:g}".replace(".", "")


def excuses_of_slo(context: Context, mixtures: Latencies, decode_known: bool) -> list[Excuse]:
    """Limits that don't hold, with the quantile's value: P(metric > limit) > 1 - q."""
    found = []
    for limit in context.scenario.slo:
        if not decode_known and limit.metric != "ttft":
            continue
        mixture = mixtures.of(limit.metric)
        if mixture.share_above(limit.limit_s * (1 + 1e-9)) > 1.0 - limit.quantile + 1e-9:
            value = mixture.quantile(limit.quantile)
            if value > limit.limit_s:
                found.append(Excuse(constraint_name(limit), value, limit.limit_s, "s", mixture.owner(value)))
    return found


def slo_values(context: Context, mixtures: Latencies, decode_known: bool) -> tuple[SloValue, ...]:
    """The scenario's limits in its order, then the quantiles that have none."""
    limited = [(s.metric, s.quantile, s.limit_s) for s in context.scenario.slo]
    have = {(metric, quantile) for metric, quantile, _ in limited}
    wanted: list[tuple[Metric, float, float | None]] = [*limited]
    wanted += [(metric, quantile, None) for metric, quantile in REPORTED if (metric, quantile) not in have]
    values = []
    for metric, quantile, limit_s in wanted:
        if not decode_known and metric != "ttft":
            continue
        mixture = mixtures.of(metric)
        value = mixture.quantile(quantile)
        values.append(SloValue(metric, quantile, value, limit_s, mixture.owner(value)))
    return tuple(values)
