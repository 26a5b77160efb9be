"""The answer of ``solve`` as typed records; report renders them, nothing else reads them as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pddplan.errors import Excuse
from pddplan.perf.utilization import Utilization
from pddplan.serve.context import Context
from pddplan.serve.deployment import Plan
from pddplan.serve.records import Evaluation
from pddplan.spec.types import Assumption, Role

Architecture = Literal["pdd", "pdd_filter", "pd_cross_site", "pd_cross_site_drc", "pd_one_site", "aggregated"]
Status = Literal["feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class RolePlan:
    role: Role
    site: str
    chip: str
    instances: int
    chips_per_instance: int
    tp: int
    pp: int
    dp: int
    ep: int
    batch: int
    usd_per_hour: float
    utilization: Utilization
    busy_share: float = math.nan  # prefill: rho; decode: mean occupancy over slots
    request_share: float = 1.0  # of all requests; below 1 where several pools share a role
    uncached_tokens: tuple[float, float] = (0.0, math.inf)  # of the requests that a prefill pool gets
    kv_format: str = ""  # where it isn't the scenario's
    offer: int = 0  # of the offers of that chip at that site

    @property
    def chips(self) -> int:
        return self.instances * self.chips_per_instance


@dataclass(frozen=True)
class LinkPlan:
    from_site: str
    to_site: str
    lines: int
    gbit_per_s: float  # bought, all lines
    needed_gbit_per_s: float
    utilization: float
    usd_per_hour: float  # ports + traffic
    usd_per_hour_traffic: float
    kv_format: str = ""  # of what it carries, where it isn't the scenario's
    tier: int | None = None  # of the link's, where several are as fast


@dataclass(frozen=True)
class CostSplit:
    """USD per hour by what it pays for, exactly additive, and per million tokens."""

    usd_per_hour: float
    roles_usd_per_hour: float
    links_usd_per_hour: float
    other_usd_per_hour: float  # power, cache, spares, whole-node rounding, owned idle chips
    link_share: float
    input_usd_per_mtok: float
    cached_input_usd_per_mtok: float
    output_usd_per_mtok: float
    blended_usd_per_mtok: float
    tokens_per_hour: Mapping[str, float]  # input, cached_input, output
    other_items: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Revenue:
    usd_per_hour: float
    input_usd_per_hour: float
    cached_input_usd_per_hour: float
    output_usd_per_hour: float
    margin_usd_per_hour: float


@dataclass(frozen=True)
class Binding:
    """A constraint that holds the optimum, its relative slack, and what would relax it."""

    constraint: str
    slack: float
    fix: str


@dataclass(frozen=True)
class Alternative:
    """Another plan. Those that were asked for (``--top``) also say whether none of their kind is cheaper (``proven``,
    to the gap; False: only found) and what they are made of."""

    usd_per_hour: float
    architecture: Architecture
    differs: str
    proven: bool | None = None
    roles: tuple[RolePlan, ...] = ()
    links: tuple[LinkPlan, ...] = ()


@dataclass(frozen=True)
class RunnerUps:
    """What was asked for beside the best plan: so many others, up to a cost, and whether none below it is missing."""

    asked: int
    within: float  # of the best plan's cost
    complete: bool


@dataclass(frozen=True)
class Fix:
    """The nearest single change that makes an infeasible scenario feasible; ``overrides`` apply it."""

    what: str
    overrides: tuple[str, ...]  # as --set takes them
    usd_per_hour: float | None


@dataclass(frozen=True)
class Solved:
    """A plan as physics sees it, in the context that it was evaluated in."""

    context: Context
    deployment: Plan


@dataclass(frozen=True)
class PlanResult:
    status: Status
    architecture: Architecture | None
    objective: str  # cost | goodput | profit
    value: float | None
    unit: str
    bound: float | None
    gap: float | None
    roles: tuple[RolePlan, ...]
    links: tuple[LinkPlan, ...]
    evaluation: Evaluation | None
    goodput_rps: float | None
    within_slo_rps: float | None
    headroom_rps: float | None
    cost: CostSplit | None
    revenue: Revenue | None
    binding: tuple[Binding, ...]
    alternatives: tuple[Alternative, ...]
    assumptions: tuple[Assumption, ...]
    recommendation: str  # one sentence in plain words
    excuses: tuple[Excuse, ...] = ()  # infeasible: what had to give and by how much
    fixes: tuple[Fix, ...] = ()
    warnings: tuple[str, ...] = ()
    timing_s: Mapping[str, float] = field(default_factory=dict)  # load, solve, evaluate
    seed: int = 0
    scenario_name: str = ""
    scenario_sha256: str = ""
    catalogue_date: str = ""
    bcr: float | None = None  # goodput per USD/h
    cny_per_usd: float | None = None
    demand_rps: float | None = None  # objective profit: of which ``goodput_rps`` is served
    runner_ups: RunnerUps | None = None  # None: not asked for, ``alternatives`` are what the search met
    solved: Solved | None = field(
        default=None, compare=False, repr=False
    )  # for what goes on from here; not in the JSON
