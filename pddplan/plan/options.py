"""What can be bought: pools per role and chip, lines per tier; dominated ones dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.economics.cost import cache_usd_per_chip_hour, energy_usd_per_chip_hour
from pddplan.errors import Excuse
from pddplan.perf.candidates import candidate_instances
from pddplan.perf.protocols import AggregatedService, DecodeService, PrefillService
from pddplan.perf.service import aggregated_service, decode_service, prefill_service
from pddplan.serve.context import Context
from pddplan.serve.deployment import LineChoice, Pool
from pddplan.serve.main_decode import occupancy_tail
from pddplan.serve.steps import LOG_SPAN, StepTable
from pddplan.spec.types import ChipOffer, Role, Scenario, Site

Array = NDArray[np.float64]

DOMINANCE_SLACK = 1e-9
MIXED_ROLES: tuple[Role, ...] = ("prefill", "main_decode", "aggregated")
HIDDEN_SHARE = 0.05  # of a first-token limit: a transfer this short is as good as none


@dataclass(frozen=True, eq=False)
class PoolOption:
    """One kind of instance that a role can run at a site; compared by identity."""

    role: Role
    site: Site
    offer: ChipOffer
    service: PrefillService | DecodeService | AggregatedService
    max_instances: int
    min_instances: int  # above 1 only where the user pins the count
    pinned: bool = False  # the user asks what so many instances give: they are part of every plan

    @cached_property
    def chips(self) -> int:
        return self.service.chips_per_instance

    @cached_property
    def usd_per_hour(self) -> float:
        """Price of one instance: chips, energy, host cache; whole-node rounding comes on top [USD/h]."""
        per_chip = self.offer.usd_per_hour + energy_usd_per_chip_hour(self.offer, self.site)
        return self.chips * (per_chip + cache_usd_per_chip_hour(self.site))

    def rent_usd_per_hour(self, instances: int) -> float:
        """Least rent of so many instances: chips beyond the owned ones, no whole nodes [USD/h]."""
        rented = max(instances * self.chips - self.offer.owned_chips, 0)
        return rented * self.offer.usd_per_hour

    def pool(self, instances: int) -> Pool:
        return Pool(self.role, self.site, self.offer, self.service, instances)


@dataclass(frozen=True)
class Shop:
    """Everything a scenario lets one buy, and why the rest can't run."""

    pools: dict[Role, tuple[PoolOption, ...]]
    lines: tuple[LineChoice, ...]
    excuses: tuple[Excuse, ...]

    def between(self, source: str, target: str) -> list[LineChoice]:
        """Lines from a site that prefills to one that decodes."""
        return [line for line in self.lines if line.ends == (source, target)]


OptionsOf = Callable[[Context, Site, ChipOffer, Role], tuple[list[PoolOption], list[Excuse]]]


def mixable(shop: Shop) -> bool:
    """Whether some role could stand on more than one offer."""
    return any(len({option.offer.key for option in shop.pools[role]}) > 1 for role in MIXED_ROLES)


def all_pinned(shop: Shop) -> bool:
    """Whether the user pins counts of several offers in one role: every plan must have all of them."""
    return any(len({o.offer.key for o in options if o.pinned}) > 1 for options in shop.pools.values())


def build_shop(context: Context, options_of: OptionsOf | None = None) -> Shop:
    """Options of all sites and roles; ``options_of`` stands in for ``pool_options``."""
    options_of = options_of or pool_options
    pools: dict[Role, list[PoolOption]] = {"prefill": [], "relay_decode": [], "main_decode": [], "aggregated": []}
    excuses: list[Excuse] = []
    for site in context.scenario.sites:
        for offer in site.offers:
            for role in site.roles:
                found, why = options_of(context, site, offer, role)
                pools[role] += found
                if not found:
                    excuses += why
    kept = {role: _only_pinned(options) for role, options in pools.items()}
    split = any(o.pinned for role, options in kept.items() if role != "aggregated" for o in options)
    whole = any(o.pinned for o in kept["aggregated"])
    if split and not whole:
        kept["aggregated"] = ()
    if whole:
        kept["prefill"] = kept["main_decode"] = ()
    return Shop(kept, line_options(context.scenario), tuple(excuses))


def _only_pinned(options: list[PoolOption]) -> tuple[PoolOption, ...]:
    """The pinned options of a role where there are any: they are part of every plan."""
    pinned = tuple(o for o in options if o.pinned)
    return pinned or tuple(options)


def pool_options(context: Context, site: Site, offer: ChipOffer, role: Role) -> tuple[list[PoolOption], list[Excuse]]:
    """Options of one role on one offer: measured rates if given, else the roofline of each candidate."""
    pinned = offer.instances.get(role)
    services: list[PrefillService | DecodeService | AggregatedService] = []
    excuses: list[Excuse] = []
    if role in offer.measured:
        from pddplan.perf.measured import measured_decode, measured_prefill  # late: few offers have measured rates

        measured = offer.measured[role]
        made = measured_prefill(measured) if role == "prefill" else measured_decode(measured)
        _keep(made, services, excuses)
    else:
        scenario = context.scenario
        candidates, excuses = candidate_instances(offer, context.model, scenario.engine, scenario.precision, role)
        for instance in candidates:
            if role == "prefill":
                _keep(prefill_service(instance), services, excuses)
            elif role == "aggregated":
                _keep(aggregated_service(instance), services, excuses)
            else:
                _keep(decode_service(instance), services, excuses)
    options = []
    spares = context.scenario.spares.get(role, 0)
    for service in services:
        most = offer.max_chips // service.chips_per_instance - spares
        powered = _powered(site, offer, service.chips_per_instance)
        if powered < max(pinned or 1, 1):
            watts = (
                (offer.chip.all_in_watts or 0.0) * service.chips_per_instance * (site.power.pue if site.power else 1.0)
            )
            limit = (site.power.max_watts if site.power else None) or math.inf
            excuses.append(Excuse("power", watts * max(pinned or 1, 1), limit, "W", f"{role} on {offer.chip.id}"))
            continue
        most = min(most, powered)
        if pinned is not None:
            most = min(most, pinned)
        if most >= max(pinned or 1, 1):
            options.append(PoolOption(role, site, offer, service, most, pinned or 1, pinned is not None))
        else:
            need = (max(pinned or 1, 1) + spares) * service.chips_per_instance
            excuses.append(Excuse("chips", need, offer.max_chips, "chips", f"{role} on {offer.chip.id}"))
    return _undominated(context, options), excuses


def _powered(site: Site, offer: ChipOffer, chips: int) -> int:
    """Instances that the site's power cap alone would let run."""
    if site.power is None or site.power.max_watts is None or not offer.chip.all_in_watts:
        return offer.max_chips
    return int(site.power.max_watts // (offer.chip.all_in_watts * site.power.pue * chips))


def _keep(
    made: PrefillService | DecodeService | AggregatedService | Excuse,
    services: list[PrefillService | DecodeService | AggregatedService],
    excuses: list[Excuse],
) -> None:
    if isinstance(made, Excuse):
        excuses.append(made)
    else:
        services.append(made)


def _undominated(context: Context, options: list[PoolOption]) -> list[PoolOption]:
    """Drop an option if another on the same offer is no larger and no worse in every figure.

    Ties keep the first: fewest chips, then the order of ``candidate_instances``.
    """
    if len(options) <= 1 or options[0].role == "aggregated":
        return options
    figures = [_figures(context, o) for o in options]
    kept: list[int] = []
    for i in range(len(options)):
        beaten = any(
            j != i
            and np.all(figures[j] <= figures[i] * (1 + DOMINANCE_SLACK))
            and (j < i or not np.all(figures[i] <= figures[j] * (1 + DOMINANCE_SLACK)))
            for j in range(len(options))
        )
        if not beaten:
            kept.append(i)
    return [options[i] for i in kept]


def _figures(context: Context, option: PoolOption) -> Array:
    """What counts against an option, each smaller is better, per chip where it scales with chips."""
    if option.role == "prefill":
        times = context.prefill_times(option.pool(1))
        servers = option.pool(1).prefill.servers_per_instance
        atoms = context.demand.atoms
        cost = atoms.mean(times.shared) / servers * option.chips
        heavy = float(np.max(times.alone))
        nic = option.pool(1).prefill.parallelism.tp * option.pool(1).prefill.parallelism.pp
        return np.array([option.chips, cost, atoms.mean(times.alone), heavy, 1.0 / nic])
    pool = option.pool(1)
    service, mean = pool.decode, context.demand.mean_context
    table = context.step_surface(pool).table(mean)
    kv = float(context.demand_on(option.offer).kv_at(np.asarray(mean)))
    if not np.isfinite(table.seconds[0]):
        return np.array([float(option.chips)])
    most = min(service.max_batch, service.kv_pool_bytes / kv, table.largest_batch(context.tpot_limit_s()))
    speed = most / float(table(np.asarray(max(most, 1e-6)))) if most >= 1 else 0.0
    ranks = service.parallelism.tp * service.parallelism.pp
    rate = option.offer.chip.scale_out_bytes_per_s * ranks * context.nic_goodput
    flow = min(rate, _useful_nic(context, option.role))
    figures = [float(option.chips), option.chips / max(speed, 1e-9), 1.0 / flow]
    if len(context.kv_formats) > 1:
        figures.append(1.0 / ranks)  # that convert a cache
    # a relay holds requests for their transfers' time, whatever its speed; main decode's memory is a cache as well
    held = most if option.role == "relay_decode" else service.kv_pool_bytes
    figures.append(option.chips / max(held, 1e-9))
    return np.array(figures, dtype=float)


def _useful_nic(context: Context, role: Role) -> float:
    """NIC rate of a decode instance beyond which nothing gets better [B/s].

    Main decode over a line: what a flow reaches on it. Else the rate at which the largest prompt's KV takes 5 % of
    the tightest first-token limit (of a second without one).
    """
    if role == "main_decode" and context.scenario.links:
        return max(k.streams * k.stream_bytes_per_s for k in context.scenario.links)
    tightest = min((s.limit_s for s in context.limits("ttft")), default=1.0)
    largest = max(float(context.demand.in_format(name).kv_prompt.max()) for name in context.kv_formats)
    return largest / (HIDDEN_SHARE * tightest)


def line_options(scenario: Scenario, *, every: bool = False) -> tuple[LineChoice, ...]:
    """Tier x number of lines of every link, in both directions where sites can prefill and decode; undominated, unless
    ``every`` one is wanted."""
    found: list[LineChoice] = []
    roles = {s.name: set(s.roles) for s in scenario.sites}
    for link in scenario.links:
        for source, target in (link.between, link.between[::-1]):
            if "prefill" not in roles[source] or "main_decode" not in roles[target]:
                continue
            choices = [
                LineChoice(link, tier, lines, source, target)
                for tier in range(len(link.tiers))
                for lines in range(1, link.max_lines + 1)
            ]
            found += [c for c in choices if every or not any(_beats(o, c) for o in choices if o is not c)]
    return tuple(found)


def _beats(other: LineChoice, line: LineChoice) -> bool:
    """``other`` is as fast, no dearer and no dearer per byte; ties go to fewer lines, then the earlier tier.

    A faster line doesn't beat a slower one at the same price: the slower one leaves more tokens to the relay, which
    can spare an instance of main decode.
    """
    a, b = other.link.tiers[other.tier], line.link.tiers[line.tier]
    if a.burst_95 != b.burst_95 or (a.burst_95 is not None and other.lines != line.lines):
        return False
    bytes_a, bytes_b = a.usd_per_byte.get(other.from_site, 0.0), b.usd_per_byte.get(line.from_site, 0.0)
    no_worse = other.gbit_per_s == line.gbit_per_s and other.port_usd_per_hour <= line.port_usd_per_hour
    if not (no_worse and bytes_a <= bytes_b):
        return False
    better = other.port_usd_per_hour < line.port_usd_per_hour or bytes_a < bytes_b
    return better or (other.lines, other.tier) < (line.lines, line.tier)


def admitted(
    table: StepTable, slots: float, counts: Array, pooled: bool, epsilon: float, *, poisson: bool = False
) -> Array:
    """Mean number running that the admission row lets in at most, on each count of instances with K slots each.

    The row's law widens as steps lengthen with the batch, exactly as ``settle`` says (``poisson``: it doesn't, the
    relay's), and its mean is longer by phi - 1 (``MainState.running``; bursts only add to both). So the mean is
    searched on a grid of batches per instance, 0.5 % apart. The answer is the grid's next batch above the last that
    fits: an upper bound, which the integer program needs. Shape (counts,).
    """
    if slots < 1 and not (pooled and poisson):
        return np.zeros(counts.size)
    batch = np.geomspace(max(slots * 0.02, 1e-3), max(slots, 2e-3), 800)
    width = np.ones(batch.size)
    if not poisson:
        bend = np.log(table(batch * 1.1) / np.maximum(table(batch * 0.9), 1e-12)) / LOG_SPAN
        width = 1.0 / (1.0 - np.clip(bend, 0.0, 0.98))
    if not pooled:
        fits = (occupancy_tail(batch + width - 1.0, float(math.floor(slots)), width) <= epsilon)[None, :]
    else:
        tail = occupancy_tail(
            batch[None, :] * counts[:, None] + (width - 1.0), np.floor(slots * counts)[:, None], width[None, :]
        )
        fits = tail <= epsilon
    last = batch.size - 1 - np.argmax(fits[:, ::-1], axis=1)
    above = np.where(fits.any(axis=1), batch[np.minimum(last + 1, batch.size - 1)], batch[0])
    return np.asarray(above * counts, dtype=float)


def site_pairs(scenario: Scenario) -> Sequence[tuple[Site, Site]]:
    """(prefill site, main-decode site) pairs, the same site first."""
    pairs = [
        (a, b) for a in scenario.sites for b in scenario.sites if "prefill" in a.roles and "main_decode" in b.roles
    ]
    return sorted(pairs, key=lambda p: p[0].name != p[1].name)
