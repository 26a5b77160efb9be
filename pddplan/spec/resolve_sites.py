"""Sites, chips and lines: input models -> records in SI units, with every default recorded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pddplan.spec import catalogue
from pddplan.spec.input_sites import (
    CacheInput,
    ChipInput,
    InstancesInput,
    LinkInput,
    MeasuredInput,
    MeasuredRolesInput,
    PowerInput,
    SiteInput,
    TierInput,
)
from pddplan.spec.issues import format_key
from pddplan.spec.notes import Notes
from pddplan.spec.types import (
    ROLES,
    Burst95,
    CacheTier,
    Chip,
    ChipOffer,
    ChipPrecision,
    LineTier,
    Link,
    Measured,
    ParallelismChoice,
    Power,
    Role,
    Site,
)
from pddplan.units import GB, GBIT_PER_S_IN_BYTES_PER_S, HOURS_PER_MONTH, HOURS_PER_YEAR, MS, TB

EIGHT_BIT = ("int8", "fp8")


def resolve_site(given: SiteInput, index: int, chips: dict[tuple[int, int], Chip], notes: Notes) -> Site:
    key = f"sites[{index}]"
    if given.roles is None:
        notes.assume(f"{key}.roles", "all", "default", "the site may serve every role")
    asked = set(given.roles) if given.roles is not None else set(ROLES)
    offers = tuple(
        resolve_offer(offer, chips[index, j], format_key(("sites", index, "chips", j)), notes)
        for j, offer in enumerate(given.chips)
    )
    return Site(
        name=given.name,
        roles=tuple(role for role in ROLES if role in asked),
        offers=offers,
        cache=_cache(given.cache, f"{key}.cache", notes) if given.cache else None,
        power=_power(given.power, f"{key}.power", notes) if given.power else None,
    )


def resolve_offer(given: ChipInput, chip: Chip, key: str, notes: Notes) -> ChipOffer:
    price, kilowatts = offer_price(given)
    if price is None:
        price = chip.usd_per_hour or 0.0
        kind = f"{chip.price_kind or 'list price'}{f', {chip.price_date}' if chip.price_date else ''}"
        notes.assume(f"{key}.usd_per_hour", price, "catalogue", f"{chip.id}: {kind}")
    if kilowatts is not None:
        chip = replace(chip, all_in_watts=kilowatts * 1e3)
    for assumption in catalogue.chip_assumptions(chip):
        notes.add(assumption)
    for warning in chip.warnings:
        notes.warn(warning)
    stated = ChipPrecision(given.precision.weights, given.precision.kv_cache) if given.precision else None
    if stated is not None:
        _doubt_formats(chip, stated, notes)
    asked = given.parallelism
    return ChipOffer(
        chip=chip,
        max_chips=given.max,
        owned_chips=given.owned or 0,
        usd_per_hour=price,
        buy_in=_buy_in(given, chip, key, notes),
        precision=stated,
        parallelism=ParallelismChoice(asked.tp, asked.pp, asked.dp, asked.ep) if asked else ParallelismChoice(),
        instances=_per_role(given.instances),
        measured={role: _measured(m, f"{key}.measured.{role}", notes) for role, m in _per_role(given.measured).items()},
        key=key,
    )


def _buy_in(given: ChipInput, chip: Chip, key: str, notes: Notes) -> int:
    """Chips bought at a time: the chip's node unless stated, whatever ``max`` is.

    ``max`` bounds the chips in use, ``buy_in`` says how they are paid, so that a larger ``max`` never makes a plan
    dearer. A rented part of a node is paid as a whole one; where ``max`` would leave such a part, a warning says so.
    """
    node = chip.chips_per_node
    rented = given.max - (given.owned or 0)
    note = "whole nodes" if given.max >= node or not rented else f"whole nodes, although max is {given.max}"
    buy_in = notes.default(given.buy_in, f"{key}.buy_in", node, note)
    if rented % buy_in:
        over = math.ceil(rented / buy_in) * buy_in
        notes.warn(
            f"{key}: {chip.id} is bought {buy_in} at a time: {rented} rented chips are paid as {over}. "
            f"Write buy_in: {math.gcd(rented, buy_in)} if fewer can be had at a time, or a max of whole nodes."
        )
    return buy_in


def _doubt_formats(chip: Chip, stated: ChipPrecision, notes: Notes) -> None:
    """Stated 8-bit formats that the chip doesn't compute in: taken at the user's word, kept as they are in memory and
    widened to bf16 in each operation. What isn't stated is for ``perf.precision`` to choose."""
    weights, kv_cache = stated.weights, stated.kv_cache
    if weights in EIGHT_BIT and weights not in chip.peak_flops:
        other = next((name for name in EIGHT_BIT if name in chip.peak_flops), None)
        faster = f"; with precision: {{weights: {other}}} on this chip it computes in {other}" if other else ""
        notes.warn(f"{chip.id} has no {weights}: its weights are widened to bf16, at bf16's speed{faster}.")
    if kv_cache in EIGHT_BIT and kv_cache not in chip.peak_flops:
        notes.warn(f"{chip.id} has no {kv_cache}: its KV cache is stored so and widened to bf16, if its engine can.")


def _per_role(given: InstancesInput | MeasuredRolesInput | None) -> dict[Role, Any]:
    found = {role: getattr(given, role, None) for role in ROLES}
    return {role: value for role, value in found.items() if value is not None}


def offer_price(given: ChipInput) -> tuple[float | None, float | None]:
    """(USD per hour, all-in kW) as written: ``capex/(years * 8760 h)`` where a capital price is given."""
    price = given.usd_per_hour
    if price is not None and price.plain is not None:
        return price.plain, given.all_in_kw
    source = price if price is not None else given
    if source.capex_usd is None or source.years is None:
        return None, source.all_in_kw
    return source.capex_usd / (source.years * HOURS_PER_YEAR), source.all_in_kw


def _measured(given: MeasuredInput, key: str, notes: Notes) -> Measured:
    counted = given.cached_counted
    if given.tokens_per_s is not None and key.endswith(("prefill", "aggregated")) and counted is None:
        notes.assume(f"{key}.cached_counted", "false", "default", "the rate counts computed prompt tokens only")
    return Measured(
        chips_per_instance=given.chips_per_instance,
        tokens_per_s=given.tokens_per_s,
        cached_counted=bool(counted),
        ttft_s=given.ttft_s or (),
        batch=given.batch,
        tpot_s=None if given.tpot_ms is None else given.tpot_ms * MS,
    )


def _cache(given: CacheInput, key: str, notes: Notes) -> CacheTier:
    host = notes.default(given.host_gb_per_chip, f"{key}.host_gb_per_chip", 0.0, "no host memory for prefixes")
    host_rate = notes.default(given.host_gb_per_s, f"{key}.host_gb_per_s", 20.0, "PCIe, host to chip", "estimate")
    remote = notes.default(given.remote_tb, f"{key}.remote_tb", 0.0, "no remote store")
    remote_rate = notes.default(given.remote_gb_per_s, f"{key}.remote_gb_per_s", 5.0, "one NIC, shared", "estimate")
    price = notes.default(given.usd_per_tb_hour, f"{key}.usd_per_tb_hour", 0.0, "in the price of the chips")
    return CacheTier(
        host_bytes_per_chip=host * GB,
        host_bytes_per_s=host_rate * GB,
        remote_bytes=remote * TB,
        remote_bytes_per_s=remote_rate * GB,
        usd_per_byte_hour=price / TB,
    )


def _power(given: PowerInput, key: str, notes: Notes) -> Power:
    return Power(
        max_watts=None if given.max_kw is None else given.max_kw * 1e3,
        usd_per_kwh=notes.default(given.usd_per_kwh, f"{key}.usd_per_kwh", 0.0, "energy is in the price of the chips"),
        pue=notes.default(given.pue, f"{key}.pue", 1.2, "cooling and losses of a recent site", "estimate"),
    )


# ---------------------------------------------------------------- lines


def resolve_link(given: LinkInput, index: int, notes: Notes) -> Link:
    key = f"links[{index}]"
    defaults = catalogue.link_defaults()
    said = {a.name.removeprefix("link."): a for a in defaults.assumptions}
    stream_gbit = defaults.stream_bytes_per_s / GBIT_PER_S_IN_BYTES_PER_S

    def of_line(value: float | None, name: str, default: float) -> float:
        return notes.default(value, f"{key}.{name}", default, said[name].note, said[name].source)

    stream = of_line(given.stream_gbit_per_s, "stream_gbit_per_s", stream_gbit)
    ends = (given.between[0], given.between[1])
    return Link(
        between=ends,
        rtt_s=given.rtt_ms * MS,
        goodput=of_line(given.goodput, "goodput", defaults.goodput),
        shared_with_others=notes.default(
            given.shared_with_others, f"{key}.shared_with_others", 0.0, "the line is ours"
        ),
        streams=int(of_line(given.streams, "streams", defaults.streams)),
        stream_bytes_per_s=stream * GBIT_PER_S_IN_BYTES_PER_S,
        max_lines=int(of_line(given.max_lines, "max_lines", defaults.max_lines)),
        tiers=tuple(_tier(tier, f"{key}.tiers[{j}]", ends, notes) for j, tier in enumerate(given.tiers)),
        key=key,
    )


def _tier(given: TierInput, key: str, ends: tuple[str, str], notes: Notes) -> LineTier:
    per_gb = given.usd_per_gb or {}
    if given.usd_per_gb is not None and "" not in per_gb:
        for end in ends:
            if f"from_{end}" not in per_gb:
                notes.assume(f"{key}.usd_per_gb.from_{end}", 0.0, "default", "no price per GB is given this way")
    burst = given.burst_95
    return LineTier(
        gbit_per_s=given.gbit_per_s,
        usd_per_hour=notes.default(
            given.usd_per_hour, f"{key}.usd_per_hour", 0.0, "the port is free: only traffic is priced"
        ),
        usd_per_byte={end: per_gb.get(f"from_{end}", per_gb.get("", 0.0)) / GB for end in ends},
        burst_95=None
        if burst is None
        else Burst95(
            commit_bytes_per_s=burst.commit_gbit_per_s * GBIT_PER_S_IN_BYTES_PER_S,
            usd_per_byte_per_s_hour=burst.usd_per_gbit_month / HOURS_PER_MONTH / GBIT_PER_S_IN_BYTES_PER_S,
        ),
    )
