"""The least cost over the rate served, C(lambda), known by a few searches: bounds from below, plans from above."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pddplan.economics.cost import bill
from pddplan.plan.options import Shop
from pddplan.plan.state import GAP, Search
from pddplan.serve.context import Context
from pddplan.serve.deployment import Plan
from pddplan.serve.evaluate import evaluate

Solve = Callable[..., Search]

WITHIN = 0.98 * GAP  # of the stake: what is left open, a little below the gap that is promised
STRIDE = 0.2  # of an interval: a smaller step from its lower end is followed by one to its middle
COARSE, FINE = 0.5, 0.05  # of the gap: how near a plan is taken to the rate at which it breaks, and the best one
FINEST = GAP / 4  # of a rate: no narrower interval is split where its bounds don't close
SAME = 1e-9  # relative: rounding


@dataclass(frozen=True)
class Served:
    """A plan that holds at a rate [1/s] and its bill there [USD/h]."""

    rate: float
    deployment: Plan
    usd_per_hour: float

    def profit(self, usd_per_rps: float) -> float:
        return usd_per_rps * self.rate - self.usd_per_hour


@dataclass
class CostCurve:
    """Lower bounds ``lows`` of C at ascending ``rates`` and the plans met; prices play no part in either.

    A plan for more serves less, so C never falls: between two rates the bound of the lower one counts. ``idle`` is the
    bill of serving nothing, owned chips and remote caches [USD/h]; ``most_usd_per_hour`` the user's budget.
    """

    context: Context
    shop: Shop
    cheapest: Solve
    idle: float
    most_usd_per_hour: float = math.inf
    deadline: float = math.inf
    progress: Callable[[str], None] | None = None
    rates: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    searches: dict[float, Search] = field(default_factory=dict)  # by rate, those that found a plan
    last: Search | None = None

    def __post_init__(self) -> None:
        self.rates, self.lows = [0.0], [self.idle]

    @property
    def demand(self) -> float:
        return self.context.rate

    def search(self, rate: float, limit_usd_per_hour: float = math.inf) -> Search:
        """The cheapest plan for a rate below a limit: what it costs there, or that the limit is a lower bound."""
        budget = min(limit_usd_per_hour, self.most_usd_per_hour)
        search = self.cheapest(self.context.at_rate(rate), budget, self.deadline, None, self.shop)
        low = search.bound
        if search.best is None and search.complete:
            # nothing within the user's budget is nothing at all
            low = math.inf if self.most_usd_per_hour <= limit_usd_per_hour else limit_usd_per_hour
        self._bounded(rate, low if search.best is None else min(low, search.best.usd_per_hour))
        if search.best is not None:
            self.served.append(Served(rate, search.best.deployment, search.best.usd_per_hour))
            self.searches[rate] = search
        self.last = search
        return search

    def _bounded(self, rate: float, low: float) -> None:
        at = bisect.bisect_left(self.rates, rate)
        if at == len(self.rates) or self.rates[at] != rate:
            self.rates.insert(at, rate)
            self.lows.insert(at, self.lows[at - 1])
        self.lows[at] = max(self.lows[at], low)
        for i in range(at + 1, len(self.lows)):
            self.lows[i] = max(self.lows[i], self.lows[at])

    def best(self, usd_per_rps: float) -> Served | None:
        """The plan that leaves most, of equals that for the highest rate; None where serving nothing leaves more."""
        found = max(self.served, key=lambda s: (s.profit(usd_per_rps), s.rate), default=None)
        if found is None or found.profit(usd_per_rps) < -self.idle * (1 + SAME):
            return None
        return found

    def value(self, usd_per_rps: float) -> float:
        """Largest profit known [USD/h], at least that of serving nothing."""
        best = self.best(usd_per_rps)
        return -self.idle if best is None else best.profit(usd_per_rps)

    def stake(self, usd_per_rps: float) -> float:
        """What the gap is a share of: the revenue of the most that a plan known serves, the whole demand where one does
        (or none is known), or the bill where that is more, the least one where no plan pays [USD/h]."""
        best = self.best(usd_per_rps)
        most = max((s.rate for s in self.served), default=self.demand)
        least = min((s.usd_per_hour for s in self.served), default=self.idle)
        return max(usd_per_rps * most, least if best is None else best.usd_per_hour)

    def upper(self, usd_per_rps: float) -> float:
        """No rate and no plan leave more: ``r b - C(a)`` is the most on each [a, b] [USD/h]."""
        ends = [*self.rates[1:], self.demand]
        most = max(usd_per_rps * end - low for end, low in zip(ends, self.lows, strict=True))
        return max(most, self.value(usd_per_rps))

    def maximise(self, usd_per_rps: float) -> bool:
        """Search until no rate can leave more than the best plan known, to the gap; False at the deadline.

        On (a, b] the profit is at most ``r b - C(a)``, so what is known at a settles all rates up to
        (P + C(a))/r, P the best profit known. Where the next search goes is the first rate that is still open; where
        that is a small step, every other time the middle of what is open: plans there raise P, and so all steps.
        """
        if self.rates[-1] < self.demand:
            self._look_at(self.demand, math.inf, usd_per_rps)
        small_step_before = False
        while self.stake(usd_per_rps) > 0:
            allowed = WITHIN * self.stake(usd_per_rps)
            left = max(self._open(usd_per_rps, allowed), default=None)
            if left is None:
                break
            if time.monotonic() > self.deadline:
                return False
            _, known, first, end = left
            small_step = 0.0 < known < first and first - known < STRIDE * (end - known)
            rate = (first + end) / 2 if small_step and small_step_before else first
            small_step_before = small_step and not small_step_before
            if self.progress is not None:
                self.progress(f"profit {self.value(usd_per_rps):.2f} to {self.upper(usd_per_rps):.2f} USD/h")
            self._look_at(rate, usd_per_rps * end - self.value(usd_per_rps) - allowed, usd_per_rps)
        best = self.best(usd_per_rps)
        if best is not None:
            self.carry(best, usd_per_rps, FINE * GAP)
        return True

    def _open(self, usd_per_rps: float, allowed: float) -> Iterator[tuple[float, float, float, float]]:
        """What may leave more than ``allowed`` above the best known: (most profit, known rate below it, first open
        rate, end)."""
        floor = self.value(usd_per_rps) + allowed
        for known, low, end in zip(self.rates, self.lows, [*self.rates[1:], self.demand], strict=True):
            if usd_per_rps * end - low <= floor + SAME * allowed:
                continue
            first = (floor + low) / usd_per_rps
            if first <= known * (1 + SAME):
                # the bound at ``known`` doesn't settle even that rate: one that was a limit is looked at again with the
                # new one; what is as good as a search's gap allows only helps well beyond it
                first = known if known not in self.searches else (known + end) / 2
                if known in self.searches and end - known < FINEST * end:
                    continue
            yield (usd_per_rps * end - low, known, first, end)

    def _look_at(self, rate: float, limit_usd_per_hour: float, usd_per_rps: float) -> None:
        search = self.search(rate, limit_usd_per_hour)
        if search.best is not None:
            self.carry(self.served[-1], usd_per_rps, COARSE * GAP)

    def carry(self, plan: Served, usd_per_rps: float, tolerance: float) -> None:
        """Take a plan on to the rate at which it breaks, as far as that can leave more than the best one known.

        ``tolerance``: the share of the stake that may be missed.
        """
        low = plan
        # where the least cost is higher than its bill, it doesn't hold (but for traffic by the byte)
        high = next((x for x, c in zip(self.rates, self.lows, strict=True) if c > plan.usd_per_hour), self.demand)
        attempt = high if high == self.demand and math.isfinite(self.lows[-1]) else (low.rate + high) / 2
        while time.monotonic() < self.deadline:
            missed = usd_per_rps * high - low.usd_per_hour - self.value(usd_per_rps)
            if missed <= tolerance * self.stake(usd_per_rps) or high - low.rate <= SAME * high:
                return
            further = self._held(plan.deployment, attempt)
            if further is None:
                high = attempt
            else:
                low = further
                self.served.append(further)
            attempt = (low.rate + high) / 2

    def _held(self, deployment: Plan, rate: float) -> Served | None:
        """The plan at another rate, None where it doesn't hold or costs more than the budget."""
        at = self.context.at_rate(rate)
        evaluation = evaluate(at, deployment, detail=False)
        if not evaluation.feasible:
            return None
        usd = bill(at.scenario, deployment, evaluation.line_bytes_per_s).usd_per_hour
        return Served(rate, deployment, usd) if usd <= self.most_usd_per_hour else None
