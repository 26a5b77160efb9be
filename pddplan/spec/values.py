"""Numbers and distributions as a person writes them: ``64K``, ``{p50: 1K, p95: 8K}``, ``{mean: 0.9}``.

Plain functions: each returns the parsed record, or the list of issues found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from pddplan.spec.issues import Issue, closest, shown
from pddplan.spec.workload import HitRate, TokenDistribution
from pddplan.units import parse_tokens

MAX_TOKENS = 1e8  # a prompt longer than this is a typing error
MAX_SIGMA = 4.0  # of ln tokens or ln seconds; real request logs have 0.5 to 2.5
HIGH_SHARE_MEAN = 0.9725  # mean of x where 1-x is uniform on [0.005, 0.05]
REST_MAX = 0.95  # x of the rest is 0.95 * Beta(alpha, 1)
REST_MEAN = 0.6825  # mean of the rest in {mean: 0.90, share_above_95: 0.75}

_NUMBER_WITH_UNIT = re.compile(r"^\s*([-+]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z/%$]+.*?)\s*$")
_PLAIN_NUMBER = re.compile(r"^\s*[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$")
_QUANTILE = re.compile(r"^p([0-9]{1,2})(?:\.([0-9]{1,3}))?$")
_QUANTILE_NINES = re.compile(r"^p(9[0-9]{2,3})$")


def not_a_number(value: object, whole: bool = False) -> Issue:
    """The issue of a value that should have been a number, with what would be right."""
    kind = "a whole number" if whole else "a number"
    if isinstance(value, str):
        if _PLAIN_NUMBER.match(value):
            return Issue(f"{shown(value)} is text, not {kind}.", f"Write {value.strip()} without quotes.")
        match = _NUMBER_WITH_UNIT.match(value.strip().lstrip("$¥€"))
        if match is None and _PLAIN_NUMBER.match(value.strip().lstrip("$¥€")):
            bare = value.strip().lstrip("$¥€").strip()
            return Issue(f"{shown(value)} is not {kind}.", f"The currency stands in the key: write {bare}.")
        if match and match[2] == "%":
            return Issue(f"{shown(value)} is not {kind}.", f"Write the fraction: {float(match[1]) / 100:g}.")
        if match:
            return Issue(
                f"{shown(value)} is not {kind}.", f"The unit stands in the key: write a plain number, like {match[1]}."
            )
    return Issue(f"{shown(value)} is not {kind}.", f"Write {kind}.")


def check_number(value: object, low: float, high: float, *, low_open: bool = False) -> float | Issue:
    """A finite number in [low, high] (or (low, high])."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return not_a_number(value)
    if not math.isfinite(value):
        return Issue(f"{shown(float(value))} is not a finite number.", f"Write a number from {low:g} to {high:g}.")
    if value < low or (low_open and value == low):
        return Issue(f"{shown(value)} is too small.", f"It must be {'above' if low_open else 'at least'} {low:g}.")
    if value > high:
        return Issue(f"{shown(value)} is too large.", f"It must be at most {high:g}.")
    return float(value)


def normal_quantile(q: float) -> float:
    """z with Phi(z) = q."""
    from statistics import NormalDist  # its imports cost more than a scenario does

    return NormalDist().inv_cdf(q)


def quantile_of(key: str) -> float | None:
    """Probability of a quantile key: p50 -> 0.5, p99 -> 0.99, p99.9 and p999 -> 0.999; None if it is none."""
    nines = _QUANTILE_NINES.match(key)
    if nines:
        return int(nines[1]) / 10.0 ** len(nines[1])
    match = _QUANTILE.match(key)
    if match is None:
        return None
    q = float(f"{match[1]}.{match[2] or 0}") / 100.0
    return round(q, 9) if q > 0 else None


# ---------------------------------------------------------------- tokens


def token_count(value: object) -> float | Issue:
    """A token count [tokens], 1 to 1e8, from a number or ``64K``."""
    if isinstance(value, str):
        try:
            value = parse_tokens(value)
        except ValueError:
            match = _NUMBER_WITH_UNIT.match(str(value))
            kilo = match is not None and match[2][0] in "kKmM"
            fix = f"Write {match[1]}{match[2][0].upper()}." if match and kilo else "Write 65536 or 64K."
            return Issue(f"{shown(value)} is not a token count.", fix)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Issue(f"{shown(value)} is not a token count.", "Write 65536 or 64K.")
    return check_number(value, 1.0, MAX_TOKENS)


def tokens(value: object) -> TokenDistribution | list[Issue]:
    """Length distribution: number, {p50, p95}, {mean, cv} or {histogram: {8K: 0.3}}."""
    if not isinstance(value, Mapping):
        count = token_count(value)
        return [count] if isinstance(count, Issue) else TokenDistribution(fixed=count)
    keys = set(value)
    if "histogram" in keys:
        return _token_histogram(value)
    if keys & {"mean", "cv"}:
        return _tokens_from_mean(value)
    return _tokens_from_quantiles(value)


def _unknown(value: Mapping[str, object], known: tuple[str, ...]) -> list[Issue]:
    issues = []
    for key in value:
        if key not in known:
            near = closest(str(key), known)
            fix = f"Did you mean '{near}'?" if near else f"Known here: {', '.join(known)}."
            issues.append(Issue(f"unknown key '{key}'.", fix, (key,)))
    return issues


def weights(
    value: object, parse: Callable[[object], float | Issue], example: str
) -> tuple[tuple[float, float], ...] | list[Issue]:
    """Atoms of a histogram {key: weight}, ascending, weights normalised to sum 1."""
    if not isinstance(value, Mapping) or not value:
        return [Issue(f"{shown(value)} is not a histogram.", f"Write value: weight pairs, like {example}.")]
    issues: list[Issue] = []
    atoms: dict[float, float] = {}
    for key, raw in value.items():
        atom, weight = parse(key), check_number(raw, 0.0, 1e12, low_open=True)
        for part in (atom, weight):
            if isinstance(part, Issue):
                issues.append(Issue(part.message, part.fix, (key,)))
        if not isinstance(atom, Issue) and not isinstance(weight, Issue):
            atoms[atom] = atoms.get(atom, 0.0) + weight
    if issues:
        return issues
    total = math.fsum(atoms.values())
    return tuple((atom, atoms[atom] / total) for atom in sorted(atoms))


def _below(issues: list[Issue], key: str) -> list[Issue]:
    return [Issue(i.message, i.fix, (key, *i.where)) for i in issues]


def _token_histogram(value: Mapping[str, object]) -> TokenDistribution | list[Issue]:
    issues = _unknown(value, ("histogram",))
    atoms = weights(value["histogram"], token_count, "{8K: 0.3, 64K: 0.7}")
    if isinstance(atoms, list):
        return issues + _below(atoms, "histogram")
    return issues or TokenDistribution(histogram=atoms)


def _tokens_from_mean(value: Mapping[str, object]) -> TokenDistribution | list[Issue]:
    """Log-normal with sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2/2; cv 0 is a fixed length."""
    issues = _unknown(value, ("mean", "cv"))
    for key in ("mean", "cv"):
        if key not in value:
            issues.append(Issue(f"'{key}' is missing.", "Give both, like {mean: 8K, cv: 0.5}."))
    mean = token_count(value["mean"]) if "mean" in value else 1.0
    cv = check_number(value["cv"], 0.0, 100.0) if "cv" in value else 0.0
    if isinstance(mean, Issue):
        issues.append(Issue(mean.message, mean.fix, ("mean",)))
    if isinstance(cv, Issue):
        issues.append(Issue(cv.message, cv.fix, ("cv",)))
    if issues or isinstance(mean, Issue) or isinstance(cv, Issue):
        return issues
    if cv == 0.0:
        return TokenDistribution(fixed=mean)
    variance = math.log1p(cv * cv)
    return TokenDistribution(lognormal=(math.log(mean) - variance / 2, math.sqrt(variance)))


def lognormal_through(
    quantiles: Mapping[str, object], parse: Callable[[object], float | Issue], example: str
) -> tuple[float, float] | list[Issue]:
    """(mu, sigma) of the log-normal through two quantiles: sigma = ln(v2/v1)/(z2 - z1), mu = ln v1 - sigma z1."""
    issues: list[Issue] = []
    points: list[tuple[float, float]] = []
    for key, raw in quantiles.items():
        q, number = quantile_of(str(key)), parse(raw)
        if q is None:
            issues.append(Issue(f"unknown key '{key}'.", f"Write two quantiles, like {example}.", (key,)))
        elif not 0.01 <= q <= 0.999:
            issues.append(Issue(f"quantile '{key}' is too far out.", "Use p1 to p99.9.", (key,)))
        if isinstance(number, Issue):
            issues.append(Issue(number.message, number.fix, (key,)))
        elif q is not None:
            points.append((q, number))
    if not issues and len({q for q, _ in points}) != 2:
        issues.append(Issue(f"{len(points)} quantiles given.", f"Two make a distribution, like {example}."))
    if issues:
        return issues
    (q1, v1), (q2, v2) = sorted(points)
    if v2 < v1:
        return [
            Issue(f"the quantiles fall: {v1:g} at {q1:g}, {v2:g} at {q2:g}.", "A higher quantile can't be smaller.")
        ]
    z1, z2 = normal_quantile(q1), normal_quantile(q2)
    sigma = math.log(v2 / v1) / (z2 - z1)
    if sigma > MAX_SIGMA:
        return [Issue(f"the quantiles are too far apart (sigma {sigma:.3g}).", f"sigma is at most {MAX_SIGMA:g}.")]
    return math.log(v1) - sigma * z1, sigma


def _tokens_from_quantiles(value: Mapping[str, object]) -> TokenDistribution | list[Issue]:
    fitted = lognormal_through(value, token_count, "{p50: 8K, p95: 64K}")
    if isinstance(fitted, list):
        return fitted
    mu, sigma = fitted
    if sigma == 0.0:
        return TokenDistribution(fixed=math.exp(mu))
    return TokenDistribution(lognormal=(mu, sigma))


# ---------------------------------------------------------------- hit rate


def default_share_above_95(mean: float, zero_share: float = 0.0) -> float:
    """Share s that leaves the rest with mean 0.6825: s = (mean - 0.6825 (1-z))/(0.9725 - 0.6825), within [0, 1-z]."""
    share = (mean - REST_MEAN * (1.0 - zero_share)) / (HIGH_SHARE_MEAN - REST_MEAN)
    return min(max(share, 0.0), 1.0 - zero_share)


def mean_range(share_above_95: float, zero_share: float) -> tuple[float, float]:
    """Means that the mixture of 2-model.md section 4 can have with these shares."""
    low = HIGH_SHARE_MEAN * share_above_95
    return low, low + REST_MAX * max(1.0 - share_above_95 - zero_share, 0.0)


def hit_rate_number(value: object) -> float | Issue:
    """A hit rate in [0, 1]; percent signs and percentages get their fix."""
    number = check_number(value, 0.0, 1.0)
    if isinstance(number, Issue) and isinstance(value, (int, float)) and not isinstance(value, bool):
        fix = f"For {value:g} % write {value / 100:g}." if 2.0 <= value <= 100.0 else "Write a fraction like 0.9."
        return Issue(f"a hit rate lies between 0 and 1, not {value:g}.", fix)
    return number


def _hit_rate_key(key: object) -> float | Issue:
    try:
        return hit_rate_number(float(str(key)))
    except ValueError:
        return Issue(f"{shown(key)} is not a hit rate.", "Write a fraction like 0.97.")


def hit_rate(value: object) -> HitRate | list[Issue]:
    """Hit rate: number, {mean, share_above_95, zero_share} or {histogram: {0.97: 0.7, 0.3: 0.3}}."""
    if not isinstance(value, Mapping):
        number = hit_rate_number(value)
        return [number] if isinstance(number, Issue) else HitRate(mean=number, fixed=True)
    if "histogram" in value:
        issues = _unknown(value, ("histogram",))
        atoms = weights(value["histogram"], _hit_rate_key, "{0.97: 0.7, 0.3: 0.3}")
        if isinstance(atoms, list):
            return issues + _below(atoms, "histogram")
        return issues or HitRate(mean=math.fsum(x * w for x, w in atoms), histogram=atoms)
    return _hit_rate_mixture(value)


def _hit_rate_mixture(value: Mapping[str, object]) -> HitRate | list[Issue]:
    issues = _unknown(value, ("mean", "share_above_95", "zero_share"))
    if "mean" not in value:
        issues.append(Issue("'mean' is missing.", "Write {mean: 0.9, share_above_95: 0.75}."))
    numbers: dict[str, float] = {}
    for key in ("mean", "share_above_95", "zero_share"):
        if value.get(key) is None:
            continue
        number = hit_rate_number(value[key])
        if isinstance(number, Issue):
            issues.append(Issue(number.message, number.fix, (key,)))
        else:
            numbers[key] = number
    if issues or "mean" not in numbers:
        return issues or [Issue("'mean' is empty.", "Write {mean: 0.9}.", ("mean",))]
    mean, zero = numbers["mean"], numbers.get("zero_share", 0.0)
    given = numbers.get("share_above_95")
    if mean == 0.0 and not given:
        return HitRate(mean=0.0, fixed=True)
    share = default_share_above_95(mean, zero) if given is None else given
    wrong = _mixture_issue(mean, share, zero, given is not None)
    return [wrong] if wrong else HitRate(mean=mean, share_above_95=share, zero_share=zero)


def _mixture_issue(mean: float, share: float, zero: float, given: bool) -> Issue | None:
    if share + zero > 1.0 + 1e-12:
        return Issue("share_above_95 and zero_share add up to more than 1.", "Lower one of them.")
    low, high = mean_range(share, zero)
    # a mixture without a rest has exactly one mean; with one, its mean lies strictly inside (0, 0.95)
    if share + zero >= 1.0 - 1e-9:
        if abs(mean - low) <= 1e-6:
            return None
        allowed = f"exactly {low:.4g}"
    elif low < mean < high:
        return None
    else:
        allowed = f"between {low:.4g} and {high:.4g}"
    shares = f"share_above_95 {share:g}" + (f" and zero_share {zero:g}" if zero else "")
    if not given:
        allowed = allowed.replace("exactly", "at most")
        return Issue(
            f"a mean of {mean:g} is out of reach of the default mixture{f' with zero_share {zero:g}' if zero else ''}.",
            f"The mean must be {allowed}; or write a number (every request the same) or a histogram.",
        )
    return Issue(
        f"a mean of {mean:g} contradicts {shares}.",
        f"With these shares the mean must be {allowed}; or leave share_above_95 out.",
        ("mean",),
    )


def lognormal_moments(mu: float, sigma: float) -> tuple[float, float]:
    """(mean, CV) of a log-normal: exp(mu + sigma^2/2), sqrt(exp(sigma^2) - 1)."""
    return math.exp(mu + sigma * sigma / 2.0), math.sqrt(math.expm1(sigma * sigma))
