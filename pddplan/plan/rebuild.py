"""A plan that ``solve -o`` wrote, back to what is evaluated and simulated: its pools and lines under the scenario as it
is now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pddplan.errors import Excuse
from pddplan.perf.candidates import candidate_instances
from pddplan.perf.protocols import AggregatedService, DecodeService, PrefillService
from pddplan.perf.service import aggregated_service, decode_service, prefill_service
from pddplan.plan.plan_file import AGAIN, WHOLE, LinkEntry, PlanFile, Reader, RoleEntry, load_plan_file
from pddplan.plan.records import Architecture, Solved
from pddplan.plan.solve import prepare
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, LineChoice, Network, Pool, Route
from pddplan.serve.records import Routing
from pddplan.spec.issues import shown
from pddplan.spec.types import ChipOffer, Role, Scenario, Site

CACHED: Mapping[str, bool] = {"pd_cross_site": False, "pd_cross_site_drc": True}  # else as the scenario says
SAME_GBIT = 1e-6
ANY_CHIPS = 10**6
SERVICES: Mapping[Role, Callable[..., Any]] = {
    "prefill": prefill_service,
    "relay_decode": decode_service,
    "main_decode": decode_service,
    "aggregated": aggregated_service,
}
T = TypeVar("T")
Service = PrefillService | DecodeService | AggregatedService


@dataclass(frozen=True)
class RebuiltPlan(Solved):
    """``routing``: the rule for the relay that the plan was found with, as ``evaluate`` takes it to keep it; None where
    the file has none. It is one for the scenario of then."""

    architecture: Architecture
    routing: Routing | None


def read_plan(path: str, scenario: Scenario) -> RebuiltPlan:
    """The plan of a file in the scenario's context; where the scenario asks for the largest rate or profit, at the rate
    that the plan was found for. Raises InputError where the file is no plan, or names what the scenario doesn't have.
    """
    plan = load_plan_file(path)
    reader = Reader(plan.file)
    cached = CACHED.get(plan.architecture, scenario.engine.decode_prefix_sharing)
    scenario = replace(scenario, engine=replace(scenario.engine, decode_prefix_sharing=cached))
    if plan.architecture == "pdd_filter" and scenario.traffic.output_forecast is None:
        fix = "Add workload.output_forecast, or solve it anew."
        reader.refuse("has a filter, and the scenario no forecast of the outputs.", "architecture", fix)
    context = prepare(scenario)
    if scenario.objective.name != "cost":
        if not plan.goodput_rps:
            reader.refuse("says no rate.", "goodput_rps")
        context = context.at_rate(plan.goodput_rps)
    pools = tuple(_pool(context, entry, f"roles[{n}]", reader) for n, entry in enumerate(plan.roles))
    lines = tuple(_line(scenario, entry, f"links[{n}]", reader) for n, entry in enumerate(plan.links))
    ways = _Ways(plan, pools, lines, cached, reader)
    return RebuiltPlan(context, ways.network() if plan.routes else ways.single(), plan.architecture, plan.routing)


# ---------------------------------------------------------------- ways


@dataclass(frozen=True)
class _Ways:
    """Pools and lines of a file, in its order, put together."""

    plan: PlanFile
    pools: tuple[Pool, ...]
    lines: tuple[LineChoice, ...]
    decode_cache: bool
    reader: Reader

    def single(self) -> Deployment:
        """One way: every pool and line of the file is part of it."""
        by_role = {pool.role: pool for pool in self.pools}
        if len(by_role) < len(self.pools):
            message = "has several pools of a role, and no routes that say which requests each gets."
            self.reader.refuse(message, "roles", AGAIN)
        if len(self.lines) > 1:
            self.reader.refuse("has several lines, and no routes over them.", "links", AGAIN)
        return self.deployment(by_role, self.lines[0] if self.lines else None, "roles")

    def network(self) -> Network:
        """Several ways; those that share a pool or a line hold the same object."""
        routes = []
        for n, entry in enumerate(self.plan.routes):
            key = f"routes[{n}]"
            by_role = {role: self._at(self.pools, at, f"{key}.{role}") for role, at in entry.roles.items()}
            for role, pool in by_role.items():
                if pool.role != role:
                    self.reader.refuse(f"roles[{entry.roles[role]}] is {pool.role}.", f"{key}.{role}", AGAIN)
            line = None if entry.link is None else self._at(self.lines, entry.link, f"{key}.link")
            routes.append(Route(self.deployment(by_role, line, key), entry.band, entry.share))
        network = Network(tuple(routes))
        self._check(network)
        return network

    def _check(self, network: Network) -> None:
        """Refuses routes that leave out a pool, a line or requests, or share what can't be shared."""
        refuse = self.reader.refuse
        if len(network.pools) < len(self.pools) or len(network.lines) < len(self.lines):
            refuse("leave out a pool or a line of the plan.", "routes", AGAIN)
        if abs(sum(route.weight for route in network.routes) - 1.0) > WHOLE:
            refuse("the shares of the routes don't make up all requests.", "routes", AGAIN)
        bands: dict[int, tuple[float, float]] = {}
        relays: set[int] = set()
        for n, entry in enumerate(self.plan.routes):
            prefill, relay = entry.roles.get("prefill"), entry.roles.get("relay_decode")
            if prefill is not None and bands.setdefault(prefill, entry.band) != entry.band:
                refuse("another route of the same prefill pool has other requests.", f"routes[{n}].from", AGAIN)
            if relay is not None and relay in relays:
                refuse("another route has the same relay.", f"routes[{n}].relay_decode", AGAIN)
            relays |= set() if relay is None else {relay}

    def _at(self, found: tuple[T, ...], place: int, key: str) -> T:
        if place >= len(found):
            self.reader.refuse(f"{place} is none of the plan's {len(found)}.", key, AGAIN)
        return found[place]

    def deployment(self, pools: Mapping[Role, Pool], line: LineChoice | None, key: str) -> Deployment:
        """One way, its parts where they belong: the relay beside prefill, the line between prefill and main decode."""
        refuse = self.reader.refuse
        if "aggregated" in pools:
            if len(pools) > 1 or line is not None:
                refuse("has an aggregated pool with others or a line beside it.", key, AGAIN)
            return Deployment(aggregated=pools["aggregated"])
        prefill, relay, main = pools.get("prefill"), pools.get("relay_decode"), pools.get("main_decode")
        if prefill is None or main is None:
            refuse(f"has no pool of {'prefill' if prefill is None else 'main_decode'}.", key, AGAIN)
        ends = prefill.site.name, main.site.name
        if ends[0] != ends[1] and (line is None or line.ends != ends):
            refuse(f"the plan has no line from {ends[0]} to {ends[1]}.", "links", AGAIN)
        if ends[0] == ends[1] and line is not None:
            refuse("has a line, and prefill and main decode in one site.", "links", AGAIN)
        if relay is not None and (relay.site.name != ends[0] or line is None):
            refuse("has a relay that isn't beside prefill at one end of a line.", key, AGAIN)
        use_filter = self.plan.architecture == "pdd_filter" and relay is not None
        return Deployment(prefill, relay, main, None, line, self.decode_cache, use_filter)


# ---------------------------------------------------------------- pools and lines


def _pool(context: Context, entry: RoleEntry, key: str, reader: Reader) -> Pool:
    """The pool, whatever ``max`` the scenario has for its chip: a plan that exists exists."""
    site, offer = _offer(context.scenario, entry, key, reader)
    for service in _services(context, offer, entry.role):
        own = service.parallelism
        if (own.tp, own.pp, own.dp, own.ep) == entry.layout:
            return Pool(entry.role, site, offer, service, entry.instances)
    layout = "tp {} pp {} dp {} ep {}".format(*entry.layout)
    message = f"no instance of {entry.chip} with {layout} can run the scenario's model as {entry.role}."
    reader.refuse(message, f"{key}.parallelism", AGAIN)


def _services(context: Context, offer: ChipOffer, role: Role) -> Iterator[Service]:
    """What ``options.pool_options`` may choose from, then what more chips would let it."""
    if role in offer.measured:
        from pddplan.perf.measured import measured_decode, measured_prefill  # late: few offers have measured rates

        made = (measured_prefill if role == "prefill" else measured_decode)(offer.measured[role])
        if not isinstance(made, Excuse):
            yield made
        return
    scenario = context.scenario
    for each in (offer, replace(offer, max_chips=max(offer.max_chips, ANY_CHIPS))):
        candidates, _ = candidate_instances(each, context.model, scenario.engine, scenario.precision, role)
        for instance in candidates:
            service = SERVICES[role](instance)
            if not isinstance(service, Excuse):
                yield service


def _offer(scenario: Scenario, entry: RoleEntry, key: str, reader: Reader) -> tuple[Site, ChipOffer]:
    site = next((site for site in scenario.sites if site.name == entry.site), None)
    if site is None:
        known = ", ".join(site.name for site in scenario.sites)
        reader.refuse(f"no site {shown(entry.site)} in the scenario.", f"{key}.site", f"It has {known}.")
    offers = [offer for offer in site.offers if offer.chip.id == entry.chip]
    if not offers:
        known = ", ".join(offer.chip.id for offer in site.offers)
        reader.refuse(f"no chip {shown(entry.chip)} at site {site.name}.", f"{key}.chip", f"It has {known}.")
    if entry.offer >= len(offers):
        message = f"site {site.name} has {len(offers)} of {entry.chip}, this is number {entry.offer}."
        reader.refuse(message, f"{key}.offer", AGAIN)
    return site, offers[entry.offer]


def _line(scenario: Scenario, entry: LinkEntry, key: str, reader: Reader) -> LineChoice:
    ends = entry.from_site, entry.to_site
    link = next((link for link in scenario.links if set(link.between) == set(ends)), None)
    if link is None:
        names = f"{shown(ends[0])} to {shown(ends[1])}"
        reader.refuse(f"the scenario has no link from {names}.", key, "Add it to links, or solve anew.")
    each = entry.gbit_per_s / entry.lines
    tiers = [n for n, tier in enumerate(link.tiers) if abs(tier.gbit_per_s - each) <= SAME_GBIT * tier.gbit_per_s]
    if not tiers:
        known = ", ".join(f"{tier.gbit_per_s:g}" for tier in link.tiers)
        message = f"no tier of {each:g} Gbit/s between {ends[0]} and {ends[1]}."
        reader.refuse(message, f"{key}.gbit_per_s", f"The link has {known}.")
    if entry.tier is not None and entry.tier not in tiers:
        reader.refuse(f"tier {entry.tier} of the link isn't one of {each:g} Gbit/s.", f"{key}.tier", AGAIN)
    return LineChoice(link, tiers[0] if entry.tier is None else entry.tier, entry.lines, *ends)
