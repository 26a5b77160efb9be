"""State of a search: plans found and refused, nodes of the queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pddplan.economics.cost import Bill, bill
from pddplan.errors import Excuse
from pddplan.plan.choices import Choices, Pace
from pddplan.plan.kinds import Kind, PoolKind, kind_of, line_kind, pool_kind
from pddplan.plan.options import PoolOption, Shop
from pddplan.plan.prune import Cuts, Pairs, Tuple
from pddplan.serve.context import Context
from pddplan.serve.deployment import LineChoice, Network, Plan, Pool
from pddplan.serve.evaluate import evaluate
from pddplan.serve.records import Evaluation

Place = tuple[int, int, bool, int]  # see Node.place
GAP = 1e-3  # "proven" means the gap between bound and re-evaluated plan is at most this


@dataclass(frozen=True)
class Found:
    """A plan with its evaluation (without detail) and bill."""

    deployment: Plan
    evaluation: Evaluation
    bill: Bill

    @property
    def usd_per_hour(self) -> float:
        return self.bill.usd_per_hour


@dataclass
class Search:
    """State of one search: incumbent, bound, all feasible plans seen, the nearest refused ones."""

    context: Context
    shop: Shop
    budget_usd_per_hour: float = math.inf
    deadline: float = math.inf
    progress: Callable[[str], None] | None = None
    first_only: bool = False  # stop at the first plan that holds: is there one at all?
    best: Found | None = None
    bound: float = math.inf
    closed: float = math.inf  # least bound of a node given up because its plan came within the gap
    complete: bool = True
    open: bool = False  # plans of several pools per role may exist that weren't found; ``bound`` counts them
    feasible: list[Found] = field(default_factory=list)
    refused: list[Found] = field(default_factory=list)
    stage_excuses: list[Excuse] = field(default_factory=list)
    seen: dict[tuple[object, ...], Found] = field(default_factory=dict)
    prompt: dict[int, bool] = field(default_factory=dict)
    cuts: dict[Place, Cuts] = field(default_factory=dict)  # by Node.place, for all levels and counts
    programs: int = 0
    evaluations: int = 0
    choices: dict[str, tuple[tuple[Choices, Choices], ...]] = field(default_factory=dict)
    excluded: frozenset[Kind] = frozenset()  # plans of these kinds are no answer: known already
    excluded_pairs: dict[Place, Pairs] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Plans at or above this cost can't improve the incumbent."""
        return min(self.best.usd_per_hour if self.best else math.inf, self.budget_usd_per_hour * (1 + 1e-9))

    def settled(self, bound: float) -> bool:
        """Whether nothing with this bound is worth a look; the gap counts against a plan, not against the budget."""
        return bound >= self.limit or (self.best is not None and bound >= self.best.usd_per_hour * (1 - GAP / 2))

    def try_plan(self, deployment: Plan) -> Found:
        """Evaluate a deployment, once, and keep it where it belongs."""
        key = _key(deployment)
        if key in self.seen:
            return self.seen[key]
        self.evaluations += 1
        evaluation = evaluate(self.context, deployment, detail=False)
        costs = bill(self.context.scenario, deployment, _bytes_on(deployment, evaluation))
        found = Found(deployment, evaluation, costs)
        if not evaluation.feasible:
            self.refused.append(found)
        elif found.usd_per_hour <= self.budget_usd_per_hour * (1 + 1e-9):
            self.feasible.append(found)
            cheaper = self.best is None or found.usd_per_hour < self.best.usd_per_hour * (1 - 1e-12)
            if cheaper and not (self.excluded and kind_of(deployment) in self.excluded):
                self.best = found
        self.seen[key] = found
        return found

    def cuts_at(self, node: Node) -> Cuts:
        """What the program of a node leaves out: refused plans, and pairs that make an excluded kind."""
        cuts = self.cuts.get(node.place, Cuts())
        if not self.excluded:
            return cuts
        if node.place not in self.excluded_pairs:
            self.excluded_pairs[node.place] = tuple(_pairs_of(node, self.excluded))
        return replace(cuts, pairs=self.excluded_pairs[node.place])


def _bytes_on(plan: Plan, evaluation: Evaluation) -> tuple[float, ...]:
    """Mean load of each line, 0 where no stage came to an answer [B/s]."""
    return evaluation.line_bytes_per_s or (0.0,) * len(plan.lines)


def _key(deployment: Plan) -> tuple[object, ...]:
    if isinstance(deployment, Network):
        return tuple((_key(route.way), route.band, route.share) for route in deployment.routes)
    line = deployment.line
    where = None if line is None else (id(line.link), line.tier, line.lines, line.from_site)
    return (*((p.role, id(p.service), p.instances) for p in deployment.pools), where, deployment.use_filter)


@dataclass(frozen=True)
class Node:
    """One tuple in the queue; ``mains`` and ``relays`` are lists shared by all nodes of a site pair."""

    prefill: PoolOption
    instances: int
    line: LineChoice | None
    mains: Choices
    relays: Choices
    q: tuple[float, float]
    use_filter: bool
    least: int  # least stable prefill count
    pace: Pace
    whole: bool = True  # q is the whole range, not looked at yet: it opens the next prefill count

    @property
    def level(self) -> Tuple:
        """The node's part of the program, without cuts."""
        return Tuple(self.prefill, self.instances, self.line, self.mains, self.relays, Cuts(), self.use_filter)

    @property
    def place(self) -> Place:
        """What a refused plan has in common with the plans it cuts off: prefill option, line, filter, and the KV
        formats of main decode and relay, which share a pace."""
        return (id(self.prefill), id(self.line), self.use_filter, id(self.pace))

    @property
    def receivers(self) -> tuple[Pool, Pool | None]:
        """A main decode and a relay that this node's prefill sends to: any, for all hold the same KV format."""
        relay = self.relays[0].option.pool(1) if self.relays else None
        return self.mains[0].option.pool(1), relay


def _pairs_of(node: Node, kinds: frozenset[Kind]) -> Iterator[tuple[frozenset[int], frozenset[int] | None]]:
    """Options of main decode and of the relay (None: no relay) that make one of these kinds of the node's plans."""
    prefill = node.prefill
    own = pool_kind(prefill.role, prefill.site, prefill.offer, prefill.service.parallelism)
    for kind in kinds:
        relay = kind.pool("relay_decode")
        filtered = node.use_filter and relay is not None
        if (kind.pool("prefill"), kind.line, kind.use_filter) == (own, line_kind(node.line), filtered):
            yield (
                _options_of(node.mains, kind.pool("main_decode")),
                None if relay is None else _options_of(node.relays, relay),
            )


def _options_of(choices: Choices, wanted: PoolKind | None) -> frozenset[int]:
    """Identities of the options of a kind."""
    options = dict.fromkeys(choice.option for choice in choices)
    return frozenset(id(o) for o in options if pool_kind(o.role, o.site, o.offer, o.service.parallelism) == wanted)
