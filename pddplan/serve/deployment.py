"""What stands where: pools of instances and the lines between them, as ``evaluate`` takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from pddplan.perf.protocols import AggregatedService, DecodeService, PrefillService
from pddplan.spec.types import ROLES, ChipOffer, Link, Role, Site


@dataclass(frozen=True)
class Pool:
    """Equal instances of one role at one site. ``service`` gives the times, the offer the chip and its price."""

    role: Role
    site: Site
    offer: ChipOffer
    service: PrefillService | DecodeService | AggregatedService
    instances: int

    @property
    def chips(self) -> int:
        return self.instances * self.service.chips_per_instance

    @property
    def prefill(self) -> PrefillService:
        return cast(PrefillService, self.service)

    @property
    def decode(self) -> DecodeService:
        return cast(DecodeService, self.service)

    @property
    def aggregated(self) -> AggregatedService:
        return cast(AggregatedService, self.service)


@dataclass(frozen=True)
class LineChoice:
    """Lines of one tier bought between two sites; ``from_site`` is where prefill stands."""

    link: Link
    tier: int
    lines: int
    from_site: str
    to_site: str

    @property
    def ends(self) -> tuple[str, str]:
        """Sites of prefill and of main decode."""
        return self.from_site, self.to_site

    @property
    def gbit_per_s(self) -> float:
        return self.link.tiers[self.tier].gbit_per_s * self.lines

    @property
    def capacity_bytes_per_s(self) -> float:
        """What KV may use: bought x goodput x our share [B/s]."""
        return self.gbit_per_s * 1e9 / 8 * self.link.goodput * (1.0 - self.link.shared_with_others)

    @property
    def port_usd_per_hour(self) -> float:
        return self.link.tiers[self.tier].usd_per_hour * self.lines


@dataclass(frozen=True)
class Deployment:
    """A plan as physics sees it: either an aggregated pool, or prefill and main decode and maybe a relay."""

    prefill: Pool | None = None
    relay: Pool | None = None
    main: Pool | None = None
    aggregated: Pool | None = None
    line: LineChoice | None = None  # None: one site
    decode_cache: bool = True  # main decode keeps idle sessions
    use_filter: bool = False

    @property
    def pools(self) -> tuple[Pool, ...]:
        return tuple(p for p in (self.prefill, self.relay, self.main, self.aggregated) if p is not None)

    @property
    def lines(self) -> tuple[LineChoice, ...]:
        return () if self.line is None else (self.line,)


@dataclass(frozen=True)
class Route:
    """Part of the requests and the way they take. Routes share a pool or a line by holding the same object.

    Requests are ordered by their uncached tokens; ``band`` is a range of that order, in shares of all requests, and
    the route takes ``share`` of the requests in it. Prefill sees the whole band of all its routes.
    """

    way: Deployment
    band: tuple[float, float]
    share: float = 1.0

    @property
    def weight(self) -> float:
        """Share of all requests that go this way."""
        return self.share * (self.band[1] - self.band[0])


@dataclass(frozen=True)
class Network:
    """Several ways beside each other: pools of several chips or sites in one role. The weights of the routes sum to 1,
    and routes of one prefill pool have the same band."""

    routes: tuple[Route, ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Each pool once, in the order of the roles."""
        found = {id(pool): pool for route in self.routes for pool in route.way.pools}
        return tuple(sorted(found.values(), key=lambda pool: ROLES.index(pool.role)))

    @property
    def lines(self) -> tuple[LineChoice, ...]:
        """Each line once."""
        return tuple({id(line): line for route in self.routes for line in route.way.lines}.values())

    @property
    def use_filter(self) -> bool:
        return any(route.way.use_filter for route in self.routes)


Plan = Deployment | Network


def ways_of(plan: Plan) -> tuple[Deployment, ...]:
    """The single ways that a plan is made of."""
    return (plan,) if isinstance(plan, Deployment) else tuple(route.way for route in plan.routes)


def band_of(plan: Plan, pool: Pool) -> tuple[float, float]:
    """The requests that a prefill pool sees, as a range of the order by uncached tokens; all in a single way."""
    if isinstance(plan, Deployment):
        return (0.0, 1.0)
    return next(route.band for route in plan.routes if any(own is pool for own in route.way.pools))


def share_of(plan: Plan, pool: Pool) -> float:
    """Share of all requests that come through a pool."""
    if isinstance(plan, Deployment):
        return 1.0
    return sum(route.weight for route in plan.routes if any(own is pool for own in route.way.pools))


def with_pool(plan: Plan, pool: Pool, other: Pool | None) -> Plan:
    """The plan with another pool in a pool's place; None leaves a relay out."""

    def changed(way: Deployment) -> Deployment:
        if way.prefill is pool:
            return replace(way, prefill=other)
        if way.relay is pool:
            return replace(way, relay=other)
        if way.main is pool:
            return replace(way, main=other)
        return replace(way, aggregated=other) if way.aggregated is pool else way

    return _mapped(plan, changed)


def with_line(plan: Plan, line: LineChoice, other: LineChoice) -> Plan:
    """The plan with another choice in a line's place."""
    return _mapped(plan, lambda way: replace(way, line=other) if way.line is line else way)


def _mapped(plan: Plan, change: Callable[[Deployment], Deployment]) -> Plan:
    if isinstance(plan, Deployment):
        return change(plan)
    return replace(plan, routes=tuple(replace(route, way=change(route.way)) for route in plan.routes))
