"""Time of a pass without attention as a table over tokens: built once per instance, read millions of times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pddplan.llm.comm import moe_layers
from pddplan.perf.instance import Array, Instance
from pddplan.perf.layers import Part, token_ops

GRID_RATIO = 1.12  # neighbouring grid points; linear interpolation of a smooth curve errs by less than 0.2 %
FIRST_TOKENS = 1e-3  # below it time is constant: weights are read for any batch, however small

PARTS: tuple[Part, ...] = ("attention", "dense", "shared", "experts", "dispatch", "combine", "head")


@dataclass(frozen=True)
class TokenTable:
    """Seconds (grid, parts) of a pass by tokens per rank, the whole model, summed over pipeline stages.

    attention, dense, shared: work of a rank by its own tokens; experts, dispatch, combine: by mean tokens per rank;
    head: by its rows. No per-layer and per-step overheads. ``moe_share``: share of the layers that have experts.
    """

    tokens: Array
    seconds: Array
    moe_share: float

    def at(self, tokens: Array) -> dict[Part, Array]:
        """Each part at ``tokens``, linear between grid points and beyond the last."""
        x = np.asarray(tokens, dtype=float)
        i = np.clip(np.searchsorted(self.tokens, x, side="right") - 1, 0, self.tokens.size - 2)
        low = self.tokens[i]
        share = np.maximum((x - low) / (self.tokens[i + 1] - low), 0.0)
        base = self.seconds[:, i]
        values = base + share * (self.seconds[:, i + 1] - base)
        return dict(zip(PARTS, values, strict=True))


def token_table(instance: Instance, max_tokens: float) -> TokenTable:
    """Table from 0 to ``max_tokens`` per attention rank; ``GRID_RATIO`` apart."""
    points = int(np.ceil(np.log(max_tokens / FIRST_TOKENS) / np.log(GRID_RATIO))) + 1
    tokens = np.concatenate([[0.0], np.geomspace(FIRST_TOKENS, max_tokens, points)])
    seconds = np.zeros((len(PARTS), tokens.size))
    at = np.maximum(tokens, FIRST_TOKENS)
    for op in token_ops(instance, at, at):
        seconds[PARTS.index(op.part)] += op.count * op.seconds
    mixers = sum(g.count for g in instance.model.groups if g.attention.kind != "none")
    return TokenTable(tokens, seconds, min(moe_layers(instance.model) / max(mixers, 1), 1.0))


def pass_seconds(
    table: TokenTable, rank_tokens: Array, mean_tokens: Array, rows: Array, attention: Array, overlap: float | None
) -> Array:
    """Time of a pass without overheads [s]: the sum of all parts and of the attention over the context.

    With ``overlap`` (share of the compute units that exchange kernels hold meanwhile) the cheaper of that and two-batch
    overlap: two halves of the tokens, one computes while the other exchanges, per layer with experts
    ``max(a, d) + max(m, d) + max(m, c) + max(a, c)``: a attention and m experts of half the tokens (weights are read
    twice), d dispatch and c combine. Source: the schedule of https://github.com/deepseek-ai/profile-data.
    """
    whole = table.at(rank_tokens)
    mean = whole if mean_tokens is rank_tokens else table.at(mean_tokens)
    head = (whole if rows is rank_tokens else table.at(rows))["head"]
    mixing = whole["attention"] + attention
    plain = mixing + whole["dense"] + whole["shared"] + mean["experts"] + mean["dispatch"] + mean["combine"]
    if overlap is not None:
        half = table.at(0.5 * rank_tokens)
        half_mean = half if mean_tokens is rank_tokens else table.at(0.5 * mean_tokens)
        dispatch, combine = half_mean["dispatch"], half_mean["combine"]
        a = table.moe_share * (half["attention"] + 0.5 * attention) / (1.0 - overlap)
        m = (half["shared"] + half_mean["experts"]) / (1.0 - overlap)
        layers = np.maximum(a, dispatch) + np.maximum(m, dispatch) + np.maximum(m, combine) + np.maximum(a, combine)
        plain = np.minimum(plain, layers + (1.0 - table.moe_share) * mixing + whole["dense"])
    return np.asarray(plain + head)
