"""The scenario as each architecture would have it: the same demand, roles lifted, one way of serving each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pddplan.plan.records import Architecture
from pddplan.spec.types import ChipOffer, Role, Scenario, Site

ARCHITECTURES: tuple[Architecture, ...] = (
    "aggregated",
    "pd_one_site",
    "pd_cross_site",
    "pd_cross_site_drc",
    "pdd",
    "pdd_filter",
)
ONE_SITE: tuple[Architecture, ...] = ("aggregated", "pd_one_site")
FILTER_AT_BEST = (1.0, 1.0)  # precision and recall where the scenario has no forecast of the output
# Chunk budgets tried beside the scenario's own: a pool that also decodes wants short passes, a prefill pool long ones.
CHUNKS = {"aggregated": (2048, 4096, 8192, 16384)}
LONG_CHUNKS = (8192, 16384)
UNLIMITED = 8  # times the chips on offer where a baseline is solved without the limit


@dataclass(frozen=True)
class Variant:
    """One way to serve: an architecture in one place, or over one ordered pair of sites."""

    architecture: Architecture
    scenario: Scenario
    where: str  # "north", "north > west", or all sites in one place
    hypothetical: bool = False  # chips of several sites in one place, or a filter with a forecast that isn't given


def variants(scenario: Scenario) -> list[Variant]:
    """All ways to serve, in the order of ``ARCHITECTURES``; those that need a line only where there is one."""
    lifted = without_roles(scenario)
    found = [Variant(name, _alone(lifted, site, name), site.name) for name in ONE_SITE for site in lifted.sites]
    if len(lifted.sites) > 1:
        place = _together(lifted.sites)
        found += [Variant(name, _alone(lifted, place, name), place.name, hypothetical=True) for name in ONE_SITE]
    for name in ARCHITECTURES:
        if name not in ONE_SITE:
            best = name == "pdd_filter" and scenario.traffic.output_forecast is None
            found += [
                Variant(name, _apart(lifted, a, b, name), f"{a.name} > {b.name}", best) for a, b in _pairs(lifted)
            ]
    return sorted(found, key=lambda v: (ARCHITECTURES.index(v.architecture), v.hypothetical))


def without_roles(scenario: Scenario) -> Scenario:
    """The scenario with every chip free to do anything."""
    return replace(scenario, sites=tuple(_free(site) for site in scenario.sites))


def chunk_budgets(variant: Variant) -> tuple[int, ...]:
    """Chunk budgets to try, the scenario's own first."""
    own = variant.scenario.engine.chunk_tokens
    return tuple(dict.fromkeys((own, *CHUNKS.get(variant.architecture, LONG_CHUNKS))))


def with_chunk(scenario: Scenario, chunk_tokens: int) -> Scenario:
    return replace(scenario, engine=replace(scenario.engine, chunk_tokens=chunk_tokens))


def unlimited(scenario: Scenario) -> Scenario:
    """The scenario with many times the chips, and no cap on power."""

    def more(offer: ChipOffer) -> ChipOffer:
        return replace(offer, max_chips=offer.max_chips * UNLIMITED)

    def grown(site: Site) -> Site:
        power = None if site.power is None else replace(site.power, max_watts=None)
        return replace(site, offers=tuple(more(offer) for offer in site.offers), power=power)

    return replace(scenario, sites=tuple(grown(site) for site in scenario.sites))


def _free(site: Site) -> Site:
    """A site whose chips may do anything: no roles, no pinned counts."""
    roles: tuple[Role, ...] = ("prefill", "relay_decode", "main_decode", "aggregated")
    return replace(site, roles=roles, offers=tuple(replace(offer, instances={}) for offer in site.offers))


def _alone(scenario: Scenario, site: Site, name: Architecture) -> Scenario:
    roles: tuple[Role, ...] = ("aggregated",) if name == "aggregated" else ("prefill", "main_decode")
    only = _without_forecast(scenario)
    return replace(only, sites=(replace(site, roles=roles),), links=())


def _apart(scenario: Scenario, source: Site, target: Site, name: Architecture) -> Scenario:
    relays = name in ("pdd", "pdd_filter")
    first: tuple[Role, ...] = ("prefill", "relay_decode") if relays else ("prefill",)
    sites = (replace(source, roles=first), replace(target, roles=("main_decode",)))
    links = tuple(k for k in scenario.links if set(k.between) == {source.name, target.name})
    engine = replace(scenario.engine, decode_prefix_sharing=name != "pd_cross_site")
    forecast = scenario.traffic.output_forecast or FILTER_AT_BEST
    made = scenario if name == "pdd_filter" else _without_forecast(scenario)
    if name == "pdd_filter":
        made = replace(scenario, traffic=scenario.traffic.with_forecast(forecast))
    return replace(made, sites=sites, links=links, engine=engine)


def _without_forecast(scenario: Scenario) -> Scenario:
    return replace(scenario, traffic=scenario.traffic.with_forecast(None))


def _pairs(scenario: Scenario) -> Iterator[tuple[Site, Site]]:
    """Ordered pairs of sites with a line between them."""
    linked = {frozenset(link.between) for link in scenario.links}
    for a in scenario.sites:
        for b in scenario.sites:
            if a.name != b.name and frozenset((a.name, b.name)) in linked:
                yield a, b


def _together(sites: Sequence[Site]) -> Site:
    """All chips in one place. Offers of the same chip at the same price are one; cache and power are the first site's
    that has them, without a cap."""
    merged: dict[tuple[object, ...], ChipOffer] = {}
    for offer in (offer for site in sites for offer in site.offers):
        key = (offer.chip.id, offer.usd_per_hour, offer.buy_in, offer.precision, offer.parallelism)
        known = merged.get(key)
        if known is None:
            merged[key] = offer
        elif known.measured or offer.measured:
            merged[(*key, offer.key)] = offer
        else:
            owned = known.owned_chips + offer.owned_chips
            merged[key] = replace(known, max_chips=known.max_chips + offer.max_chips, owned_chips=owned)
    cache = next((site.cache for site in sites if site.cache is not None), None)
    power = next((site.power for site in sites if site.power is not None), None)
    power = None if power is None else replace(power, max_watts=None)
    name = " + ".join(site.name for site in sites)
    return Site(name=name, roles=(), offers=tuple(merged.values()), cache=cache, power=power)
