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


def is_late(excuse: Excuse) -> bool:
    """Whether it is a first-token row."""
    return excuse.constraint.startswith("ttft")


def excuses_of_slo(context: Context, mixtures: Latencies, decode_known: bool) -> list[Excuse]:
    """Limits that don't hold, with the quantile's value: P(metric > limit) > 1 - q, over the limit's own workload."""
    found = []
    for limit in context.scenario.slo:
        if not decode_known and limit.metric != "ttft":
            continue
        mixture = mixtures.of_workload(limit.workload).of(limit.metric)
        if mixture.share_above(limit.limit_s * (1 + 1e-9)) > 1.0 - limit.quantile + 1e-9:
            value = mixture.quantile(limit.quantile)
            if value > limit.limit_s:
                name, stage = constraint_name(limit), mixture.owner(value)
                found.append(Excuse(name, value, limit.limit_s, "s", stage, limit.workload))
    return found


def excuses_of_within(context: Context, mixtures: Latencies) -> list[Excuse]:
    """Workloads of which too few requests keep their TTFT and TPOT limits."""
    found = []
    for limit in context.scenario.slo_within:
        share = mixtures.of_workload(limit.workload).within
        if share < limit.share:
            found.append(Excuse("within", share, limit.share, "", "slo", limit.workload))
    return found


def rows_of(context: Context) -> list[tuple[Metric, float, float | None, str | None]]:
    """(metric, quantile, limit, workload): the scenario's limits in its order, then the quantiles that have none, by
    workload where there are several."""
    limited = [(s.metric, s.quantile, s.limit_s, s.workload) for s in context.scenario.slo]
    have = {(metric, quantile, workload) for metric, quantile, _, workload in limited}
    wanted: list[tuple[Metric, float, float | None, str | None]] = [*limited]
    for name in context.names or (None,):
        wanted += [
            (metric, quantile, None, name) for metric, quantile in REPORTED if (metric, quantile, name) not in have
        ]
    return wanted


def slo_values(context: Context, mixtures: Latencies, decode_known: bool) -> tuple[SloValue, ...]:
    """The values of ``rows_of``, of TTFT alone where steps have no time."""
    values = []
    for metric, quantile, limit_s, workload in rows_of(context):
        if not decode_known and metric != "ttft":
            continue
        mixture = mixtures.of_workload(workload).of(metric)
        value = mixture.quantile(quantile)
        values.append(SloValue(metric, quantile, value, limit_s, mixture.owner(value), workload))
    return tuple(values)
