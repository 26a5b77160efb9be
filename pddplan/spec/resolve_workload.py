"""Traffic and goals: input models -> records, with every default recorded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from pddplan.spec.input import PricesInput, RoleCounts, RoleShares, ScenarioInput, SloInput, WorkloadInput
from pddplan.spec.issues import KeyPath, format_key
from pddplan.spec.notes import Notes
from pddplan.spec.price_list import find_prices
from pddplan.spec.types import (
    ROLES,
    Metric,
    Objective,
    Prices,
    Role,
    SloLimit,
    WithinLimit,
)
from pddplan.spec.values import lognormal_moments
from pddplan.spec.workload import HitRate, Sessions, TokenDistribution, Traffic, Workload
from pddplan.units import MS

# gaps and turns of published agent sessions; the 29 longest files of the set are not in the statistics
SESSIONS_SOURCE = "710 published Claude Code traces, https://github.com/callanjfox/kv-cache-tester"
SESSION_TURNS = 30.0
SESSION_GAP_P50_S, SESSION_GAP_P90_S = 17.0, 129.0
METRICS: tuple[tuple[str, Metric, float], ...] = (
    ("ttft_s", "ttft", 1.0),
    ("tpot_ms", "tpot", MS),
    ("pause_ms", "pause", MS),
    ("e2e_s", "e2e", 1.0),
)


# one deployment serves all workloads: what one of them says of it holds for those that say nothing
COMMON = ("prefix_cache", "first_token")


def resolve_traffic(
    given: Sequence[WorkloadInput], paths: Sequence[KeyPath], raw: Sequence[dict[str, Any]], notes: Notes
) -> Traffic:
    """All workloads, at the key paths ``paths``; their settings of the deployment agree already."""
    common: dict[str, tuple[str, KeyPath]] = {}
    for one, path in zip(given, paths, strict=True):
        for name in COMMON:
            if getattr(one, name) is not None:
                common.setdefault(name, (getattr(one, name), path))
    filled: list[WorkloadInput] = []
    for one, path in zip(given, paths, strict=True):
        missing = {name: value for name, (value, _) in common.items() if getattr(one, name) is None}
        for name, value in missing.items():
            note = f"as {format_key(common[name][1])} says: one deployment has one"
            notes.assume(f"{format_key(path)}.{name}", value, "input", note)
        filled.append(one.model_copy(update=missing))
    traffic = Traffic(tuple(resolve_workload(*each, notes) for each in zip(filled, paths, raw, strict=True)))
    if traffic.several and any(w.hourly_load for w in traffic.workloads):
        note = f"requests/s of all workloads in hour {traffic.peak_hour} (the first is 0), when their sum is highest"
        notes.assume("workloads.hourly_load", traffic.request_rate_per_s, "input", note)
    return traffic


def resolve_workload(given: WorkloadInput, path: KeyPath, raw: dict[str, Any], notes: Notes) -> Workload:
    key = format_key(path)
    prompt, output = _length(given.prompt_tokens), _length(given.output_tokens)
    for name, lengths in (("prompt_tokens", prompt), ("output_tokens", output)):
        _describe_lengths(f"{key}.{name}", lengths, raw.get(name), notes)
    forecast = given.output_forecast
    return Workload(
        name=given.name or "workload",
        request_rate_per_s=given.request_rate_per_s,
        prompt_tokens=prompt,
        output_tokens=output,
        prefix_hit_rate=_hit_rate(given, key, raw, notes),
        decode_prefix_hit_rate=given.decode_prefix_hit_rate,
        burstiness=notes.default(given.burstiness, f"{key}.burstiness", 1.0, "Poisson arrivals"),
        prefix_cache=notes.default(
            given.prefix_cache,
            f"{key}.prefix_cache",
            "affine",
            "a request goes where its prefix is, unless the queue is long",
        ),
        first_token=notes.default(
            given.first_token, f"{key}.first_token", "after_transfer", "as SGLang and Dynamo count TTFT"
        ),
        hourly_load=tuple(given.hourly_load) if given.hourly_load else None,
        sessions=_sessions(given, key, notes),
        output_forecast=None
        if forecast is None
        else (
            notes.default(forecast.precision, f"{key}.output_forecast.precision", 1.0, "no wrong forecast"),
            notes.default(forecast.recall, f"{key}.output_forecast.recall", 1.0, "no missed request"),
        ),
        key=key,
    )


def _length(given: TokenDistribution | None) -> TokenDistribution:
    return given if given is not None else TokenDistribution(fixed=1.0)


def _describe_lengths(key: str, lengths: TokenDistribution, raw: Any, notes: Notes) -> None:
    if lengths.lognormal is not None:
        mean, cv = lognormal_moments(*lengths.lognormal)
        notes.assume(key, mean, "input", f"log-normal through what is given: mean {mean:,.0f} tokens, CV {cv:.3g}")
    _note_weights(key, raw, notes)


def _note_weights(key: str, raw: Any, notes: Notes) -> None:
    weights = raw.get("histogram") if isinstance(raw, dict) else None
    if isinstance(weights, dict):
        total = sum(weights.values())
        if abs(total - 1.0) > 1e-6:
            notes.warn(f"{key}.histogram: the weights add up to {total:.6g}; each was divided by that.")


def _hit_rate(given: WorkloadInput, key: str, raw: dict[str, Any], notes: Notes) -> HitRate:
    name = f"{key}.prefix_hit_rate"
    rate, written = given.prefix_hit_rate, raw.get("prefix_hit_rate")
    if rate is None:
        notes.assume(name, 0.0, "default", "no prefix cache: every prompt token is computed")
        return HitRate(mean=0.0, fixed=True)
    _note_weights(name, written, notes)
    if rate.fixed:
        notes.assume(name, rate.mean, "input", "every request hits exactly this; a distribution makes longer tails")
    elif rate.histogram is None:
        if isinstance(written, dict) and written.get("share_above_95") is None:
            note = "the other requests then hit 68 % on average, as in {mean: 0.90, share_above_95: 0.75}"
            notes.assume(f"{name}.share_above_95", rate.share_above_95, "default", note)
        note = "mixture: above 95 % 1-x uniform on [0.005, 0.05]; the rest 0.95 Beta(alpha, 1); independent of length"
        notes.assume(f"{name}.shape", rate.mean, "default", note)
    return rate


def _sessions(given: WorkloadInput, key: str, notes: Notes) -> Sessions:
    sessions, name = given.sessions, f"{key}.sessions"
    turns = notes.default(sessions.turns if sessions else None, f"{name}.turns", SESSION_TURNS, SESSIONS_SOURCE)
    gaps = sessions.seconds_between_turns if sessions else None
    if gaps is None:
        gaps = (SESSION_GAP_P50_S, SESSION_GAP_P90_S)
        text = f"p50 {gaps[0]:g}, p90 {gaps[1]:g}"
        notes.assume(f"{name}.seconds_between_turns", text, "default", SESSIONS_SOURCE)
    return Sessions(turns=turns, gap_p50_s=gaps[0], gap_p90_s=gaps[1])


# ---------------------------------------------------------------- goals


def resolve_slo(
    top: SloInput | None, workloads: Sequence[tuple[WorkloadInput, KeyPath]], notes: Notes
) -> tuple[tuple[SloLimit, ...], tuple[WithinLimit, ...]]:
    """Limits by metric and quantile, and the shares of requests that goodput must hold.

    Of each workload those of its own ``slo:``, else those at top level, which count for every workload by itself.
    """
    limits: list[SloLimit] = []
    within: list[WithinLimit] = []
    several = len(workloads) > 1
    for given, path in workloads:
        own = given.slo
        slo, key = (own, f"{format_key(path)}.slo") if own is not None else (top, "slo")
        name = given.name if several else None
        found = _limits(slo, key, name, notes)
        if several and not found:
            notes.assume(f"{format_key(path)}.slo", "none", "default", "no latency limit for these requests")
        limits += found
        if slo is not None and slo.within is not None:
            within.append(WithinLimit(slo.within, name))
    if not limits and not several:
        notes.assume("slo", "none", "default", "no latency limit: only capacity counts")
    return tuple(limits), tuple(within)


def _limits(given: SloInput | None, place: str, workload: str | None, notes: Notes) -> list[SloLimit]:
    limits: list[SloLimit] = []
    for key, metric, scale in METRICS:
        pairs = getattr(given, key) if given is not None else None
        found = [SloLimit(metric, quantile, limit * scale, workload, place) for quantile, limit in pairs or ()]
        for lower, upper in pairwise(found):
            if upper.limit_s < lower.limit_s:
                higher, below = f"{upper.quantile:g}", f"{lower.quantile:g}"
                where = "slo" if workload is None else place
                notes.warn(
                    f"{where}.{key}: the limit at {higher} is below the one at {below}, which then says nothing."
                )
        limits += found
    return limits


def resolve_objective(given: ScenarioInput, notes: Notes) -> Objective:
    objective = given.objective
    if objective is None:
        return Objective(name=_default_objective(notes))
    budgeted: tuple[Literal["goodput", "profit"], ...] = ("goodput", "profit")
    for name in budgeted:
        if name in objective.model_fields_set:
            given_budget = getattr(objective, name)
            budget = given_budget.max_usd_per_hour if given_budget is not None else None
            return Objective(name=name, max_usd_per_hour=budget)
    return Objective(name=objective.plain or _default_objective(notes))


def _default_objective(notes: Notes) -> Any:
    return notes.default(None, "objective", "cost", "the cheapest plan for the given rate")


def resolve_role_numbers(given: RoleCounts | RoleShares | None) -> dict[Role, Any]:
    """Explicit values per role; a plain number holds for every role; in the order of ROLES."""
    if given is None:
        return {}
    numbers = {role: getattr(given, role) for role in ROLES}
    return {
        role: number if number is not None else given.plain
        for role, number in numbers.items()
        if number is not None or given.plain is not None
    }


def resolve_prices(given: PricesInput | None, notes: Notes) -> Prices | None:
    """Prices by value (cached input at the price of uncached where it isn't given), or of a listed model."""
    if given is None:
        return None
    if given.plain is not None:
        return listed_prices(given.plain, notes)
    uncached = given.input_usd_per_mtok or 0.0
    note = "cached input costs what uncached does"
    cached = notes.default(given.cached_input_usd_per_mtok, "prices.cached_input_usd_per_mtok", uncached, note)
    return Prices(uncached, cached, given.output_usd_per_mtok or 0.0)


def listed_prices(name: str, notes: Notes) -> Prices | None:
    """The listed prices of a model, recorded with their date; None where the name isn't listed."""
    listed = find_prices(name)
    if listed is None:
        return None
    for key in ("input_usd_per_mtok", "cached_input_usd_per_mtok", "output_usd_per_mtok"):
        notes.assume(
            f"prices.{key}", getattr(listed.prices, key), "catalogue", f"{listed.id}, {listed.date}: {listed.source}"
        )
    return listed.prices
