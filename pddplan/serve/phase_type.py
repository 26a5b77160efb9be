"""Two-phase distributions fitted to moments, and the waiting law of PH/PH/c queues with them.

A job runs in phase 1 or phase 2, so ``c`` busy servers have c + 1 phases: i of them are in phase 2. That keeps
the chain small enough to be solved exactly, level by level, with nonnegative matrices only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Blocks = tuple[Array, Array, Array]

LEAST_SKEW = 1.5 * (1.0 + 1e-3)  # m1 m3/m2^2 of a mixture of two exponentials is above 1.5
LONGEST_PHASE = 1e5  # cap of (m1 m3/m2^2) (m2/m1^2): beyond, the long phase is rarer than rounding resolves
_POINTS_PER_OCTAVE = 32
_MAX_OCTAVES = 90
_TAIL_LOG = 34.0  # the grid ends where P(W > t) has fallen by e^-34; exponential beyond


@dataclass(frozen=True)
class PhaseType2:
    """Time until absorption with two phases: starts in phase 1 or 2, leaves each at ``rates``, 1 -> 2 with ``onward``.

    ``initial`` (p1, p2) sums to 1; ``rates`` in 1/s; ``onward`` is the probability that the end of phase 1 is
    the start of phase 2. Mixtures have onward 0, chains have initial (1, 0) and onward 1.
    """

    initial: tuple[float, float]
    rates: tuple[float, float]
    onward: float = 0.0


@dataclass(frozen=True)
class WaitTable:
    """P(W > t) on a grid: ``times`` ascending from 0, ``log_survival`` there, exponential with ``tail_rate`` beyond."""

    p_wait: float
    mean: float
    times: Array
    log_survival: Array
    tail_rate: float


def fit_hyperexponential(m1: float, m2: float, m3: float) -> PhaseType2:
    """Mixture of two exponentials with raw moments m1, m2, m3 [s, s^2, s^3].

    With n_k = m_k/k! the means t1, t2 are the roots of t^2 - s t + q, s = (n3 - n1 n2)/(n2 - n1^2),
    q = (n1 n3 - n2^2)/(n2 - n1^2). Needs m2 > 2 m1^2 and m1 m3 > 1.5 m2^2 (ValueError otherwise); phase 2 is the
    long one. Source: moment problem of order two; Whitt, Oper. Res. 30 (1982) 125.
    """
    n1, n2, n3 = m1, m2 / 2.0, m3 / 6.0
    spread = n2 - n1 * n1
    product = n1 * n3 - n2 * n2
    if not (spread > 0.0 and product > 0.0):
        raise ValueError("no mixture of two exponentials has these moments")
    total = (n3 - n1 * n2) / spread
    root = np.sqrt(max(total * total - 4.0 * product / spread, 0.0))
    long_mean = float(0.5 * (total + root))
    short_mean = float(product / spread / long_mean)
    p_long = min(max((n1 - short_mean) / (long_mean - short_mean), 0.0), 1.0)
    return PhaseType2((1.0 - p_long, p_long), (1.0 / short_mean, 1.0 / long_mean))


def fit_phases(m1: float, m2: float, m3: float) -> tuple[Array, Array]:
    """Phase type (initial (k,), generator (k, k) [1/s]) with the mean and, from c_s^2 0.1 up, the second moment.

    c_s^2 > 1 a mixture of two exponentials (m1 m3/m2^2 raised to 1.5 where below), 0.5..1 two stages, below
    a chain of round(1/c_s^2) equal stages, at most 10.
    """
    scv = max(m2 / (m1 * m1) - 1.0, 0.0)
    if abs(scv - 1.0) < 1e-4:
        return np.ones(1), np.array([[-1.0 / m1]])
    if scv < 0.5:
        stages = min(max(round(1.0 / max(scv, 0.05)), 2), 10)
        chain = np.diag(np.full(stages, -1.0)) + np.diag(np.full(stages - 1, 1.0), 1)
        return np.eye(stages)[0], chain * stages / m1
    if scv < 1.0:
        fit = fit_two_stages(m1, scv)
    else:
        fit = fit_hyperexponential(m1, m2, clipped_skew(m1, m2, m3) * m2 * m2 / m1)
    return np.array(fit.initial), np.array([[-fit.rates[0], fit.onward * fit.rates[0]], [0.0, -fit.rates[1]]])


def clipped_skew(m1: float, m2: float, m3: float) -> float:
    """m1 m3/m2^2 within what a mixture of two exponentials can have and rounding can resolve."""
    return max(min(m1 * m3 / (m2 * m2), LONGEST_PHASE * m1 * m1 / m2), LEAST_SKEW)


def fit_two_stages(m1: float, scv: float) -> PhaseType2:
    """Two exponential stages in a row with mean m1 [s] and squared CV in [0.5, 1).

    Stage means m1 (1 +- sqrt(2 scv - 1))/2, so that the variance is scv m1^2. ValueError outside the range.
    """
    if not 0.5 <= scv < 1.0:
        raise ValueError("two stages have a squared CV in [0.5, 1)")
    half_gap = float(np.sqrt(2.0 * scv - 1.0))
    return PhaseType2((1.0, 0.0), (2.0 / (m1 * (1.0 + half_gap)), 2.0 / (m1 * (1.0 - half_gap))), 1.0)


def fit_gaps(rate: float, burstiness: float) -> tuple[Array, Array]:
    """Gap between arrivals as a phase type: initial (m,), generator (m, m) [1/s]; squared CV ``burstiness``.

    1: exponential. Above: mixture of two exponentials with the first three moments of the gamma distribution
    (the convention of serving benchmarks; third moment m1^3 (1 + b)(1 + 2b)). Below: two stages; squared CVs
    under 0.5 are taken as 0.5, which overstates waiting.
    """
    if abs(burstiness - 1.0) < 1e-9:
        return np.ones(1), np.array([[-rate]])
    mean = 1.0 / rate
    if burstiness > 1.0:
        m2 = mean**2 * (1.0 + burstiness)
        gap = fit_hyperexponential(mean, m2, mean * m2 * (1.0 + 2.0 * burstiness))
    else:
        gap = fit_two_stages(mean, max(burstiness, 0.5))
    generator = np.array([[-gap.rates[0], gap.onward * gap.rates[0]], [0.0, -gap.rates[1]]])
    return np.array(gap.initial), generator


def _level_blocks(busy: int, service: PhaseType2) -> Blocks:
    """Rates with ``busy`` jobs in service, state i = jobs in phase 2: (local (n+1, n+1), down (n+1, n), up (n+1, n+2)).

    ``local`` moves 1 -> 2 and carries the negative total service rate on its diagonal [1/s]; ``down`` are departures
    [1/s]; ``up`` the phase of a starting job (probabilities).
    """
    second = np.arange(busy + 1.0)
    leave_first = (busy - second) * service.rates[0]
    leave_second = second * service.rates[1]
    states = np.arange(busy + 1)
    local = np.zeros((busy + 1, busy + 1))
    local[states, states] = -(leave_first + leave_second)
    local[states[:-1], states[:-1] + 1] = leave_first[:-1] * service.onward
    down = np.zeros((busy + 1, busy))
    down[states[:-1], states[:-1]] = leave_first[:-1] * (1.0 - service.onward)
    down[states[1:], states[1:] - 1] = leave_second[1:]
    up = np.zeros((busy + 1, busy + 2))
    up[states, states] = service.initial[0]
    up[states, states + 1] = service.initial[1]
    return local, down, up


def _set_row_sums(generator: Array, sums: Array) -> None:
    """Correct the diagonal in place so that rows add up to ``sums``."""
    states = np.arange(len(generator))
    generator[states, states] += sums - generator.sum(axis=1)


def first_passage_down(up: Array, local: Array, down: Array) -> Array:
    """G of a quasi-birth-death process: 0 = down + local G + up G^2, phase on first reaching the level below.

    Logarithmic reduction (Latouche and Ramaswami 1993), quadratic convergence at any load. All (k, k) [1/s].
    """
    size = len(local)
    both = np.linalg.solve(-local, np.hstack([up, down]))
    high, low = both[:, :size], both[:, size:]
    passage, product = low.copy(), high.copy()
    eye = np.eye(size)
    for _ in range(60):
        mixed = eye - (high @ low + low @ high)
        both = np.linalg.solve(mixed, np.hstack([high @ high, low @ low]))
        high, low = both[:, :size], both[:, size:]
        passage += product @ low
        product = product @ high
        if product.max() < 1e-15 or low.max() < 1e-15:
            break
    return np.asarray(passage)


def _pair(gap: Array, service: Array) -> Array:
    """Kronecker product gap (x) service (np.kron with less overhead; the plain block when there is one gap phase)."""
    if gap.shape == (1, 1):
        return np.asarray(gap[0, 0] * service)
    block = gap[:, None, :, None] * service[None, :, None, :]
    return np.asarray(block.reshape(gap.shape[0] * service.shape[0], gap.shape[1] * service.shape[1]))


def _boundary(blocks: list[Blocks], gap_initial: Array, gap_generator: Array) -> tuple[list[Array], Array]:
    """Below level c: return matrices (-U_n)^-1 seen from above per level, and first passage from level c-1 to c.

    F_n = (-U_n)^-1 Up_n with U_n = Local_n + Down_n F_{n-1}; first entry of the list is level 0. Row sums are known
    (the only way out is an arrival; F is stochastic) and imposed: rounding would grow by mu n/lambda a level.
    """
    eye_gap = np.eye(len(gap_initial))
    exit_rate = -gap_generator.sum(axis=1)
    arrive = np.outer(exit_rate, gap_initial)
    inverses: list[Array] = []
    passage: Array = np.zeros((0, 0))
    for busy, (local, down, up) in enumerate(blocks):
        censored = _pair(gap_generator, np.eye(busy + 1)) + _pair(eye_gap, local)
        if busy:
            censored = censored + _pair(eye_gap, down) @ passage
        _set_row_sums(censored, -np.repeat(exit_rate, busy + 1))
        inverse = np.asarray(np.linalg.inv(-censored), dtype=float)
        inverses.append(inverse)
        passage = inverse @ _pair(arrive, up)
        passage /= passage.sum(axis=1, keepdims=True)
    return inverses, passage


@dataclass(frozen=True)
class Waiting:
    """P(W > t) = ``start`` e^{``age`` t} ``starts`` of a queue, and its mean."""

    start: Array
    age: Array
    starts: Array
    mean: float


def solve_queue(servers: int, service: PhaseType2, gap_initial: Array, gap_generator: Array) -> WaitTable:
    """Waiting time of a first-come-first-served PH/PH2/c queue as a table; see ``waiting``."""
    found = waiting(servers, service, gap_initial, gap_generator)
    return no_wait() if found is None else tabulate(found)


def waiting(servers: int, service: PhaseType2, gap_initial: Array, gap_generator: Array) -> Waiting | None:
    """Waiting time of a first-come-first-served PH/PH2/c queue, exact for these distributions; None: nobody waits.

    While all servers are busy and somebody waits, the age of the head of the queue has density psi e^{Tx} with
    T = D0 + E[e^{T gap}] D1 (Sengupta 1989; for Poisson arrivals E[e^{T gap}] = lambda (lambda I - T)^-1), D0 and
    D1 the service phases without and with a departure. With K the first passage from "one waits" to "none
    waits", E[e^{T gap}] D1 = sum over gap phases of exit rate x K. So P(W > t) = psi e^{Tt} (-T)^-1 D1 1 / rate,
    psi the flow of arrivals that find exactly c jobs, from the levels below by block elimination.
    Cost O(c^4); utilisation must be below 1.
    """
    phases, gap_phases = servers + 1, len(gap_initial)
    exit_rate = -gap_generator.sum(axis=1)
    blocks = [_level_blocks(busy, service) for busy in range(servers + 1)]
    local, down, _ = blocks[-1]
    departure = down @ blocks[-2][2]
    eye, eye_gap = np.eye(phases), np.eye(gap_phases)
    local_full = _pair(gap_generator, eye) + _pair(eye_gap, local)
    passage_down = first_passage_down(
        _pair(np.outer(exit_rate, gap_initial), eye), local_full, _pair(eye_gap, departure)
    )
    entrance = _pair(gap_initial[None, :], eye) @ passage_down  # (phases, gap_phases * phases)
    age = local + sum(exit_rate[b] * entrance[:, b * phases : (b + 1) * phases] for b in range(gap_phases))

    inverses, passage_up = _boundary(blocks[:-1], gap_initial, gap_generator)
    down_full = _pair(eye_gap, down)
    at_c = local_full + _pair(exit_rate[:, None], eye) @ entrance + down_full @ passage_up
    _set_row_sums(at_c, np.zeros(len(at_c)))
    level = _stationary(at_c)
    psi = np.asarray(exit_rate @ level.reshape(gap_phases, phases))
    not_waiting = _arrivals_below(level, inverses, blocks, exit_rate)
    starts = np.linalg.solve(-age, departure.sum(axis=1))  # (-T)^-1 D1 1
    kept_waiting = float(psi @ starts)
    total = kept_waiting + not_waiting
    if not np.isfinite(total) or kept_waiting <= 1e-250 * total:
        return None
    mean = float(psi @ np.linalg.solve(-age, starts)) / total
    return Waiting(psi / total, age, starts, mean)


def no_wait() -> WaitTable:
    """The law of a queue in which nobody ever waits."""
    return WaitTable(0.0, 0.0, np.zeros(1), np.full(1, -np.inf), 1.0)


def _stationary(generator: Array) -> Array:
    """Left null vector of a generator, scaled to sum 1."""
    system = generator.T.copy()
    system[-1] = 1.0
    right = np.zeros(len(system))
    right[-1] = 1.0
    return np.asarray(np.maximum(np.linalg.solve(system, right), 0.0))


def _arrivals_below(level: Array, inverses: list[Array], blocks: list[Blocks], exit_rate: Array) -> float:
    """Flow of arrivals that find a server free, in the units of ``level`` (the vector of level c)."""
    eye_gap = np.eye(len(exit_rate))
    flow = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for busy in range(len(inverses) - 1, -1, -1):
            level = level @ _pair(eye_gap, blocks[busy + 1][1]) @ inverses[busy]
            flow += float((level.reshape(len(exit_rate), -1).sum(axis=1) * exit_rate).sum())
    return flow


def tabulate(law: Waiting) -> WaitTable:
    """start e^{age t} starts on a grid of 32 points per octave, by repeated squaring of nonnegative matrices."""
    age, starts = law.age, law.starts
    step = 1.0 / (8.0 * float(np.max(-np.diag(age))))
    power = _small_exponential(age * step)
    rows = [law.start]
    for _ in range(_POINTS_PER_OCTAVE):
        rows.append(rows[-1] @ power)
    values = [float(r @ starts) for r in rows]
    if values[0] < 1e-250:
        return no_wait()
    vectors = np.array(rows)
    times = [step * k for k in range(_POINTS_PER_OCTAVE + 1)]
    for _ in range(int(np.log2(_POINTS_PER_OCTAVE))):
        power = power @ power
    half = _POINTS_PER_OCTAVE // 2
    end = times[-1]
    floor = np.log(values[0]) - _TAIL_LOG
    for _ in range(_MAX_OCTAVES):
        # points 2, 4, ... of the last half octave's grid and below it, shifted by its end, double the range
        shifted = vectors[2::2] @ power
        vectors = np.vstack([vectors[0::2], shifted])
        times += list(end + 2.0 * end / _POINTS_PER_OCTAVE * np.arange(1, half + 1))
        values += list(shifted @ starts)
        end *= 2.0
        if values[-1] <= 0.0 or np.log(values[-1]) < floor:
            break
        power = power @ power
    kept = np.array(values) > 0.0
    grid, log_survival = np.array(times)[kept], np.log(np.array(values)[kept])
    log_survival = np.minimum.accumulate(log_survival)
    inside = log_survival >= floor - 2.0
    grid, log_survival = grid[inside], log_survival[inside]
    tail = float((log_survival[-2] - log_survival[-1]) / (grid[-1] - grid[-2]))
    return WaitTable(float(values[0]), law.mean, grid, log_survival, tail)


def exponential(matrix: Array) -> Array:
    """e^matrix of a matrix with nonnegative off-diagonal, by scaling and squaring; not scipy.linalg, whose import takes
    longer than all of these."""
    halvings = max(int(np.ceil(np.log2(max(float(np.abs(matrix).max()) * len(matrix), 1e-300)))), 0)
    power = _small_exponential(matrix / 2.0**halvings)
    for _ in range(halvings):
        power = power @ power
    return power


def _small_exponential(matrix: Array) -> Array:
    """e^matrix of a matrix with nonnegative off-diagonal and norm below about 1, by Taylor series after a shift."""
    shift = float(np.max(-np.diag(matrix)))
    shifted = matrix + shift * np.eye(len(matrix))
    term, total = np.eye(len(matrix)), np.eye(len(matrix))
    for k in range(1, 25):
        term = term @ shifted / k
        total = total + term
        if term.max() < 1e-18:
            break
    return np.asarray(np.exp(-shift) * total)
