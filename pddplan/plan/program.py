"""The integer program of one level tuple, solved by HiGHS: which decode instances, how many, who goes by the relay.

Variables: z_M[k] and z_R[k] choose one (option, count) of main decode and at most one of relay decode (binary);
x[c] in [0, 1] share of routing class c that is relayed; Y tokens/s that the relay makes, between the least and the most
that the relayed classes' transfers allow; nodes of each offer (whole
buy-ins). Rows: every TTFT quantile, relay slots by time and by tokens, main decode's
tokens, idle memory that the tuple's hit rate needs, inventory, power, budget, and cuts from plans already refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.economics.cost import line_usd_per_hour
from pddplan.plan.highs import minimise
from pddplan.plan.prune import Point, Tuple, fixed_usd_per_hour, possible, refused, running_usd
from pddplan.plan.relaxation import Bounds
from pddplan.serve.context import Context
from pddplan.spec.types import ChipOffer

Array = NDArray[np.float64]
Index = NDArray[Any]  # columns of the program

BIG_ROOM = 1e18  # bytes, stands for "memory doesn't bind" in the rows


@dataclass(frozen=True)
class Relaxed:
    """Solution of the program: the bound [USD/h] and the plan that reaches it."""

    bound_usd_per_hour: float
    point: Point


class Rows:
    """Collects rows ``low <= a x <= high``, dense: a program has a few hundred variables and tens of rows."""

    def __init__(self, variables: int) -> None:
        self.variables = variables
        self.matrix: list[Array] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, entries: list[tuple[int, float]] | tuple[Index, Array], low: float, high: float) -> None:
        """One row, scaled to a largest entry of 1."""
        row = np.zeros(self.variables)
        if isinstance(entries, list):
            for column, value in entries:
                row[column] += value
        else:
            row[entries[0].astype(int)] += entries[1]
        scale = float(np.abs(row).max()) or 1.0
        self.matrix.append(row / scale)
        self.low.append(low / scale)
        self.high.append(high / scale)


def solve_program(
    context: Context,
    whole: Tuple,
    bounds: Bounds,
    limit_usd_per_hour: float = math.inf,
    q_high: float = 1.0,
) -> Relaxed | None:
    """Cheapest plan of the tuple under the optimistic rows; None where there is none below the limit."""
    level = possible(context, whole, bounds, limit_usd_per_hour, q_high)
    if level is None:
        return None
    classes = bounds.classes
    n_main, n_relay, n_class = len(level.mains), len(level.relays), classes.weight.size
    offers = _offers(level)
    y = n_main + n_relay + n_class
    first_node = y + 1
    total = first_node + len(offers)
    rows = Rows(total)
    mains = np.arange(n_main)
    relays = n_main + np.arange(n_relay)
    x = n_main + n_relay + np.arange(n_class)
    _physics(context, level, bounds, rows, (mains, relays, x, y))
    costs = np.zeros(total)
    costs[mains] = [c.instances * running_usd(c.option) for c in level.mains]
    costs[relays] = [c.instances * running_usd(c.option) for c in level.relays]
    constant = level.instances * running_usd(level.prefill)
    constant += _inventory(context, level, rows, offers, first_node, costs)
    constant += line_usd_per_hour(context.scenario, level.line, bounds.bytes_per_s)
    if math.isfinite(limit_usd_per_hour):
        used = np.flatnonzero(costs)
        rows.add((used.astype(float), costs[used]), -math.inf, limit_usd_per_hour - constant)
    _cut_rows(level, rows, relays)
    upper = np.ones(total)
    upper[x] = classes.may_relay
    upper[y] = np.inf
    upper[first_node:] = np.inf
    if not n_relay:
        upper[x], upper[y] = 0.0, 0.0
    integral = np.zeros(total)
    integral[: n_main + n_relay] = 1
    integral[first_node:] = 1
    solved = minimise(costs, integral, upper, np.array(rows.matrix), np.array(rows.low), np.array(rows.high))
    if solved is None:
        return None
    values, bound = solved
    chosen = np.flatnonzero(values[relays] > 0.5) if n_relay else np.empty(0, dtype=int)
    relay = level.relays[int(chosen[0])] if chosen.size else None
    return Relaxed(bound + constant, Point(level.instances, level.mains[int(np.argmax(values[mains]))], relay))


def _main_rows(level: Tuple, bounds: Bounds, rows: Rows, columns: tuple[Index, Index, Index], share: Array) -> None:
    """Tokens of main decode, less what hand-overs take, per option; and its idle memory.

    A hand-over of e tokens takes its instance at least t0 + e/v, and what is handed over is what the relay makes, less
    what a filter keeps, so D = sum t0 x + (Y - sum keep x)/v is instance-time per second. Of T tokens/s on I instances
    that leaves T (a - b D/I), for each line (a, b) above r: T (a - b D/I) + a k Y >= tokens, with k = ``relief``. D/I
    costs T b/I tokens/s, the most of any count of the option.
    """
    mains, x, one_y = columns
    join = np.concatenate
    choices = level.mains
    for option in dict.fromkeys(choices.options.tolist()):
        mine = choices.options == option
        first = int(np.argmax(mine))
        each = choices.extend_s_per_token[first]
        start = 0.0 if level.use_filter or each == 0.0 else choices.extend_s[first]
        passes = share * (start - each * bounds.classes.keep)
        relief = choices.relief[first : first + 1]
        of_one = float((choices.tokens / choices.counts)[mine].min())
        for a, b in choices.lines[first]:
            drag = b * of_one * passes
            big = bounds.tokens_per_s * (1.0 + b * of_one * each) + float(np.abs(drag).sum())
            most = np.where(mine, np.minimum(a * choices.tokens, 4 * big), big)
            # rows of the options that aren't chosen are switched off by their own binaries
            rows.add(
                (join([mains, x, one_y]), join([most, -drag, a * relief - b * of_one * each])),
                bounds.tokens_per_s * (1 - 1e-9) - b * of_one * each * bounds.shift_keep_per_s,
                math.inf,
            )
        tokens = np.where(mine, np.minimum(choices.tokens, 4 * bounds.tokens_per_s), bounds.tokens_per_s)
        rows.add((join([mains, one_y]), join([tokens, relief])), bounds.tokens_per_s * (1 - 1e-9), math.inf)
    # room - running(tokens) - under way >= idle needed, running by its tangent
    base, slope = choices.resting_at(bounds.tokens_per_s)
    held, room = bounds.kv_running, np.minimum(choices.room_bytes, BIG_ROOM)
    rows.add(
        (join([mains, one_y]), join([room - held * base, np.array([held * slope])])),
        min(bounds.idle_needed_bytes + bounds.under_way_bytes, BIG_ROOM) * (1 - 1e-9),
        math.inf,
    )


def _offers(level: Tuple) -> list[ChipOffer]:
    return list({o.key: o for o in (level.prefill.offer, *level.mains.offers, *level.relays.offers)}.values())


def _physics(
    context: Context, level: Tuple, bounds: Bounds, rows: Rows, columns: tuple[Index, Index, Index, int]
) -> None:
    """SLO quantiles, relay, main decode and memory rows."""
    mains, relays, x, y = columns
    classes, rate = bounds.classes, context.rate
    one = np.ones(mains.size)
    rows.add((mains, one), 1, 1)
    if relays.size:
        rows.add((relays, np.ones(relays.size)), float(any(c.option.pinned for c in level.relays)), 1)
        # nobody is relayed without a relay
        rows.add(
            (np.concatenate([x, relays]), np.concatenate([np.ones(x.size), -x.size * np.ones(relays.size)])),
            -math.inf,
            0,
        )
    for i, limit in enumerate(context.limits("ttft")):
        # sum w (x relay_ok + (1 - x) direct_ok) >= q over the requests of the limit's workload
        own = classes.own[i]
        gain = own * (classes.relay_ok[i] - classes.direct_ok[i])
        rows.add((x, gain), limit.quantile - float(own @ classes.direct_ok[i]) - 1e-9, math.inf)
    tau = level.relays.shortest_step_s
    share = rate * classes.weight
    join = np.concatenate
    one_y = np.array([float(y)])
    rows.add((join([x, one_y]), join([share * classes.least, -np.ones(1)])), -math.inf, 0)
    rows.add((join([x, one_y]), join([share * classes.most, -np.ones(1)])), 0, math.inf)
    slots = level.relays.slots
    rows.add((join([x, relays]), join([share * classes.hold_s, -slots])), -math.inf, 0)
    # a stay of t makes at most t / tau + 1 tokens, what the filter keeps stays to its end
    rows.add((join([x, one_y, relays]), join([-tau * share, np.array([tau]), -slots])), -math.inf, 0)
    # and all of them no more than the relay's tokens/s with its slots full
    makes = np.minimum(level.relays.tokens, BIG_ROOM)
    rows.add((join([x, one_y, relays]), join([-share, np.ones(1), -makes])), -math.inf, 0)
    _main_rows(level, bounds, rows, (mains, x, one_y), share)


def _inventory(
    context: Context, level: Tuple, rows: Rows, offers: list[ChipOffer], first_node: int, costs: Array
) -> float:
    """Chips, whole nodes, power; sets the node costs and returns the constant part of the bill [USD/h]."""
    spares = context.scenario.spares
    watts: dict[str, list[tuple[int, float]]] = {}
    watts_fixed: dict[str, float] = {}
    for o, offer in enumerate(offers):
        fixed = 0
        if level.prefill.offer.key == offer.key:
            fixed = (level.instances + spares.get("prefill", 0)) * level.prefill.chips
        entries = []
        for k, choice in enumerate((*level.mains, *level.relays)):
            if choice.option.offer.key == offer.key:
                spare = spares.get(choice.option.role, 0)
                entries.append((k, float((choice.instances + spare) * choice.option.chips)))
                costs[k] += spare * running_usd(choice.option)
        rows.add(entries, -math.inf, offer.max_chips - fixed)
        node = first_node + o
        rows.add([*entries, (node, -float(offer.buy_in))], -math.inf, offer.owned_chips - fixed)
        costs[node] = offer.buy_in * offer.usd_per_hour
        site = next(s for s in context.scenario.sites if any(c.key == offer.key for c in s.offers))
        if site.power is not None and site.power.max_watts is not None and offer.chip.all_in_watts is not None:
            per_chip = offer.chip.all_in_watts * site.power.pue
            watts.setdefault(site.name, []).extend((k, v * per_chip) for k, v in entries)
            watts_fixed[site.name] = watts_fixed.get(site.name, 0.0) + fixed * per_chip
    for site in context.scenario.sites:
        if site.name in watts and site.power is not None and site.power.max_watts is not None:
            rows.add(watts[site.name], -math.inf, site.power.max_watts - watts_fixed[site.name])
    return fixed_usd_per_hour(context, level.prefill)


def _cut_rows(level: Tuple, rows: Rows, relays: Index) -> None:
    """Refused rectangles of pairs: with "no relay" in one, a side must lie outside; else only one may lie inside."""
    mains = np.arange(len(level.mains))
    for at_main, at_relay in refused(level):
        without, others = bool(at_relay[0]), at_relay[1:]
        columns = np.concatenate([mains[at_main != without], relays[others != without]])
        low, high = (1.0, math.inf) if without else (-math.inf, 1.0)
        rows.add((columns, np.ones(columns.size)), low, high)
