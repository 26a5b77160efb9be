"""Which requests go by the relay, and how long they stay: the threshold that holds every row, or the least bad one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pddplan.errors import worst_ratio
from pddplan.serve.context import Context
from pddplan.serve.equilibrium import Flow
from pddplan.serve.line_stage import LineState
from pddplan.serve.metrics import Latencies
from pddplan.serve.records import Evaluation
from pddplan.serve.slo import is_late

RELAY_THRESHOLD_STEPS = 8.0  # default relay rule: exposed transfer above 8 x the TPOT limit (2-model, relay rule)
RISE = 0.01  # of a load that ends the walk down: single requests make small steps either way
THRESHOLD_CLASSES = 12  # class boundaries tried beside the default


def default_threshold_s(context: Context) -> float:
    """Relay threshold theta = 8 x the TPOT limit [s]."""
    return RELAY_THRESHOLD_STEPS * context.token_time_s


def thresholds(context: Context, line: LineState) -> tuple[float, ...]:
    """Relay thresholds a plan may use beside the default, ascending from one token's time to inf (relay none).

    Between them class boundaries of the predicted exposed transfer, half way from one request to the next: classes hold
    equal shares of the relay work, so that heavy requests have boundaries of their own. A transfer that takes no longer
    than a token is never relayed: there is nothing to bridge (and a line without end is one site).
    """
    values = [context.token_time_s, default_threshold_s(context), math.inf]
    order = np.argsort(line.predicted, axis=None)
    predicted = line.predicted.ravel()[order]
    weight = line.weight.ravel()[order]
    work = np.cumsum(weight * np.maximum(np.where(weight > 0, predicted, 0.0), 1e-6))
    if 0.0 < work[-1] < math.inf:
        at = np.searchsorted(work / work[-1], np.arange(1, THRESHOLD_CLASSES) / THRESHOLD_CLASSES)
        below = predicted[np.minimum(at, predicted.size - 1)]
        above = predicted[np.minimum(np.searchsorted(predicted, below, side="right"), predicted.size - 1)]
        values += [float(v) for v in (below + above) / 2 if values[0] < v < math.inf]
    return tuple(sorted(set(values)))


@dataclass(frozen=True)
class Answer:
    """A case at one relay threshold; without a flow where a stage gave out."""

    evaluation: Evaluation
    flow: Flow | None = None
    mixtures: Latencies | None = None
    full: bool = False  # the relay's slots cut the stay short

    @property
    def late(self) -> bool:
        """Whether a first-token row fails."""
        return any(is_late(e) for e in self.evaluation.excuses)

    @property
    def overloaded(self) -> bool:
        """Whether main decode has more to do than it can."""
        return any(e.subject == "main_decode" for e in self.evaluation.excuses)

    @property
    def relay_limited(self) -> bool:
        """Whether more relay could have mattered: a row of its own fails, or its slots are full."""
        return self.full or any(e.subject in ("relay_decode", "relay") for e in self.evaluation.excuses)

    @property
    def badness(self) -> tuple[int, float]:
        """Order of failed answers: those of a stage that gave out last, then by the worst relative violation."""
        return (0 if self.flow is not None else 1, worst_ratio(self.evaluation.excuses))


def best_threshold(
    ladder: tuple[float, ...],
    at_threshold: Callable[[float], Answer],
    longer: Callable[[float, Answer], Answer],
    stays: bool,
    first: Answer,
    default_s: float,
) -> Answer:
    """A threshold of the ladder (ascending) that holds, or the least bad one, from the default's answer.

    A lower threshold relays more, so the first token only improves. ``stays``: whether a token on the relay may cost
    main decode less than making it. Where it can't, every relayed request is a load, and both ends are bisected for.
    Else the highest threshold that isn't late is found by bisection, and below it the loads decide. They have one
    valley: relaying a long transfer takes more tokens off main decode than its extend passes cost, relaying a short one
    doesn't; so the walk down ends where they rise, with a look at the end. For the same reason a longer stay helps a
    busy main decode or it doesn't: where it once didn't, it isn't tried on.
    """
    best, limited = first, first.relay_limited
    known = ladder.index(default_s)
    seen: dict[int, Answer] = {}

    def at(index: int) -> Answer:
        nonlocal best, limited, stays
        if index not in seen:
            plain = seen[index] = first if index == known else at_threshold(ladder[index])
            if stays and plain.overloaded and not plain.relay_limited:
                seen[index] = min(longer(ladder[index], plain), plain, key=lambda answer: answer.badness)
                stays = seen[index] is not plain
            limited = limited or seen[index].relay_limited
            best = min(best, seen[index], key=lambda answer: answer.badness)
        return seen[index]

    if not stays:
        low, high = (0, known - 1) if first.late and not first.overloaded else (known + 1, len(ladder) - 1)
        while low <= high:
            middle = (low + high) // 2
            if at(middle).evaluation.feasible:
                return seen[middle]
            late = seen[middle].late and not seen[middle].overloaded  # where it is overloaded, that is what is late
            low, high = (low, middle - 1) if late else (middle + 1, high)
        return replace(best, evaluation=replace(best.evaluation, relay_limited=limited))
    # ladder[low] is taken as in time
    low, high = (0, max(known - 1, 0)) if first.late else (known, len(ladder) - 1)
    while low < high:
        middle = (low + high + 1) // 2
        if at(middle).evaluation.feasible:
            return seen[middle]
        low, high = (low, middle - 1) if seen[middle].late else (middle, high)
    before = math.inf
    for index in range(low, -1, -1):
        if at(index).evaluation.feasible:
            return seen[index]
        load = seen[index].badness[1]
        if load > before * (1 + RISE):
            break
        before = min(load, before)
    if at(0).evaluation.feasible:
        return seen[0]
    return replace(best, evaluation=replace(best.evaluation, relay_limited=limited))
