"""What stands where: pools of instances and the line between them, as ``evaluate`` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from pddplan.perf.service import AggregatedService, DecodeService, PrefillService
from pddplan.spec.types import ChipOffer, Link, Role, Site


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
