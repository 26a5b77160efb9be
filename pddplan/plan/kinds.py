"""What makes two plans different in kind: anything but how many instances of the same they have."""

from __future__ import annotations

from dataclasses import dataclass

from pddplan.perf.instance import Parallelism
from pddplan.serve.deployment import LineChoice, Plan
from pddplan.spec.types import ChipOffer, Role, Site

LineKind = tuple[str, str, str, int, int]  # link, from, to, tier, number of lines


@dataclass(frozen=True)
class PoolKind:
    """Which chip does a role, where, in which layout."""

    role: Role
    site: str
    chip: str
    parallelism: Parallelism


@dataclass(frozen=True)
class Kind:
    """A plan without its counts. The architecture follows from the roles, the line and the filter."""

    pools: tuple[PoolKind, ...]
    line: LineKind | None
    use_filter: bool

    def pool(self, role: Role) -> PoolKind | None:
        """The role's part, None where the kind has none."""
        return next((pool for pool in self.pools if pool.role == role), None)


def pool_kind(role: Role, site: Site, offer: ChipOffer, parallelism: Parallelism) -> PoolKind:
    return PoolKind(role, site.name, offer.chip.id, parallelism)


def line_kind(line: LineChoice | None) -> LineKind | None:
    return None if line is None else (line.link.key, line.from_site, line.to_site, line.tier, line.lines)


def kind_of(deployment: Plan) -> Kind:
    """A deployment's kind; of a network, its pools and its first line."""
    pools = tuple(pool_kind(p.role, p.site, p.offer, p.service.parallelism) for p in deployment.pools)
    return Kind(pools, line_kind(next(iter(deployment.lines), None)), deployment.use_filter)
