"""How many distinct experts a batch of tokens touches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def inclusion_probabilities(experts: int, top_k: int, skew: float) -> Array:
    """P(a token picks expert j), shape (experts,), summing to top_k, none above 1.

    Popularity falls as rank^-skew (Zipf); shares that would exceed 1 are capped and the rest scaled up.
    """
    popularity = np.arange(1, experts + 1, dtype=float) ** -skew
    chance = top_k * popularity / popularity.sum()
    for _ in range(experts):
        over = chance > 1.0
        if not over.any():
            break
        full = chance >= 1.0
        chance[full] = 1.0
        free = ~full
        if not free.any():
            break
        chance[free] *= (top_k - full.sum()) / chance[free].sum()
    return np.asarray(np.minimum(chance, 1.0))


def distinct_experts(experts: int, top_k: int, tokens: npt.ArrayLike, skew: float = 0.0) -> Array:
    """Expected distinct experts of one layer that ``tokens`` tokens touch: sum_j 1 - (1 - p_j)^T.

    With ``skew`` 0 every p_j = k/E and this is E(1 - (1 - k/E)^T), an upper bound over all routings with independent
    tokens (1-(1-p)^T is concave in p). ``skew`` > 0: Zipf popularity of that exponent, fewer distinct experts.
    tokens >= 0, any shape, fractions allowed (below one: k T, a token with probability T); result of the same shape in
    [0, E]; 0 for a model without experts.
    """
    given = np.asarray(tokens, dtype=float)
    if experts == 0:
        return np.zeros_like(given)
    t, part = np.maximum(given, 1.0), np.minimum(given, 1.0)
    if top_k >= experts:
        return np.asarray(experts * part)
    if skew == 0.0:
        return np.asarray(-experts * np.expm1(t * np.log1p(-top_k / experts)) * part)
    miss = 1.0 - inclusion_probabilities(experts, top_k, skew)
    touched = 1.0 - miss ** t[..., None]
    return np.asarray(touched.sum(axis=-1) * part)
