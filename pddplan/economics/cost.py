"""What a deployment costs per hour: whole instances, whole nodes, owned first, lines, power, cache, spares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pddplan.serve.deployment import LineChoice, Plan
from pddplan.spec.types import ChipOffer, Scenario, Site
from pddplan.units import SECONDS_PER_HOUR


@dataclass(frozen=True)
class Bill:
    """USD per hour; ``other`` holds power, cache tiers, spares, whole-node rounding and idle owned chips."""

    pools: tuple[float, ...]  # of each pool of the plan, in its order
    lines: tuple[tuple[float, float], ...]  # ports and traffic of each line
    other: Mapping[str, float]

    @property
    def line_ports(self) -> float:
        return sum((ports for ports, _ in self.lines), 0.0)

    @property
    def line_traffic(self) -> float:
        return sum((traffic for _, traffic in self.lines), 0.0)

    @property
    def usd_per_hour(self) -> float:
        return sum(self.pools) + self.line_ports + self.line_traffic + sum(self.other.values())


def chips_paid(offer: ChipOffer, chips_used: int) -> int:
    """Chips on the bill: owned ones always, rented ones in whole nodes of ``buy_in`` [chips]."""
    rented = max(chips_used - offer.owned_chips, 0)
    return offer.owned_chips + math.ceil(rented / offer.buy_in) * offer.buy_in


def energy_usd_per_chip_hour(offer: ChipOffer, site: Site) -> float:
    """Electricity of one chip, all in: W / 1000 x PUE x USD/kWh [USD/h]; 0 without a power price."""
    if site.power is None or offer.chip.all_in_watts is None:
        return 0.0
    return offer.chip.all_in_watts / 1000.0 * site.power.pue * site.power.usd_per_kwh


def cache_usd_per_chip_hour(site: Site) -> float:
    """Host-memory tier per chip in use [USD/h]."""
    return 0.0 if site.cache is None else site.cache.host_bytes_per_chip * site.cache.usd_per_byte_hour


def remote_cache_usd_per_hour(site: Site) -> float:
    """Remote store of a site [USD/h], whatever runs there."""
    return 0.0 if site.cache is None else site.cache.remote_bytes * site.cache.usd_per_byte_hour


def line_traffic_usd_per_hour(line: LineChoice, bytes_per_s: float, mean_load: float = 1.0) -> float:
    """Per-GB price of the bytes that leave prefill's site plus the 95th-percentile burst [USD/h].

    Volume is billed on the hourly mean (``mean_load`` = mean over peak hour), the burst on the peak.
    """
    tier = line.link.tiers[line.tier]
    volume = bytes_per_s * mean_load * SECONDS_PER_HOUR * tier.usd_per_byte.get(line.from_site, 0.0)
    if tier.burst_95 is None:
        return volume
    above = max(bytes_per_s - tier.burst_95.commit_bytes_per_s * line.lines, 0.0)
    return volume + above * tier.burst_95.usd_per_byte_per_s_hour


def line_usd_per_hour(scenario: Scenario, line: LineChoice | None, bytes_per_s: float) -> float:
    """Ports and traffic of a line, 0 without one [USD/h]."""
    if line is None:
        return 0.0
    return line.port_usd_per_hour + line_traffic_usd_per_hour(line, bytes_per_s, mean_load(scenario))


def mean_load(scenario: Scenario) -> float:
    """Mean over peak of the day's load profile, of all workloads together; 1 without one."""
    return scenario.traffic.mean_load


def chips_by_offer(scenario: Scenario, deployment: Plan) -> dict[str, tuple[ChipOffer, Site, int]]:
    """Chips that a deployment takes of each offer, spares included, by the offer's key."""
    used: dict[str, tuple[ChipOffer, Site, int]] = {}
    for pool in deployment.pools:
        chips = pool.chips + scenario.spares.get(pool.role, 0) * pool.service.chips_per_instance
        before = used.get(pool.offer.key, (pool.offer, pool.site, 0))[2]
        used[pool.offer.key] = (pool.offer, pool.site, before + chips)
    return used


def within_offers(scenario: Scenario, deployment: Plan) -> bool:
    """Whether a plan's chips are within every offer, and their power within every site's."""
    watts: dict[str, float] = {}
    for offer, site, chips in chips_by_offer(scenario, deployment).values():
        if chips > offer.max_chips:
            return False
        if site.power is not None and site.power.max_watts is not None:
            own = chips * (offer.chip.all_in_watts or 0.0) * site.power.pue
            watts[site.name] = watts.get(site.name, 0.0) + own
            if watts[site.name] > site.power.max_watts * (1 + 1e-9):
                return False
    return True


def paid_by_chip(scenario: Scenario, deployment: Plan) -> dict[str, float]:
    """Rent of a deployment by chip id [USD/h]: whole nodes, owned chips whether they are used or not."""
    used = chips_by_offer(scenario, deployment)
    paid: dict[str, float] = {}
    for site in scenario.sites:
        for offer in site.offers:
            chips = used[offer.key][2] if offer.key in used else 0
            usd = chips_paid(offer, chips) * offer.usd_per_hour
            paid[offer.chip.id] = paid.get(offer.chip.id, 0.0) + usd
    return paid


def bill(scenario: Scenario, deployment: Plan, line_bytes_per_s: Sequence[float]) -> Bill:
    """The hourly bill of a deployment; every entry additive, nothing counted twice. ``line_bytes_per_s``: mean load of
    each of its lines."""
    used = chips_by_offer(scenario, deployment)
    other = {"spares": 0.0, "power": 0.0, "cache": 0.0, "node_rounding": 0.0, "owned_idle": 0.0}
    for pool in deployment.pools:
        spare = scenario.spares.get(pool.role, 0) * pool.service.chips_per_instance
        other["spares"] += spare * pool.offer.usd_per_hour
    for offer, site, chips in used.values():
        idle = max(offer.owned_chips - chips, 0)
        paid = chips_paid(offer, chips)
        other["owned_idle"] += idle * offer.usd_per_hour
        other["node_rounding"] += (paid - chips - idle) * offer.usd_per_hour
        other["power"] += chips * energy_usd_per_chip_hour(offer, site)
        other["cache"] += chips * cache_usd_per_chip_hour(site)
    for site in scenario.sites:
        other["cache"] += remote_cache_usd_per_hour(site)
        for offer in site.offers:
            if offer.key not in used:
                other["owned_idle"] += offer.owned_chips * offer.usd_per_hour
    pools = tuple(pool.chips * pool.offer.usd_per_hour for pool in deployment.pools)
    lines = tuple(
        (line.port_usd_per_hour, line_traffic_usd_per_hour(line, load, mean_load(scenario)))
        for line, load in zip(deployment.lines, line_bytes_per_s, strict=True)
    )
    return Bill(pools, lines, other)
