"""How a paged KV pool of a given size is cut into blocks, and how many sequences it holds.

KV(L) is payload; a paged engine adds block rounding and, in hybrid models, padding layers and equalised pages. This is
vLLM's arithmetic, worked out on its logs: https://github.com/vllm-project/vllm/blob/main/vllm/v1/kv_cache_interface.py
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pddplan.llm.formats import formats
from pddplan.llm.kv import hit_granularity_tokens, kv_bytes, layer_kv, term_copies
from pddplan.llm.types import Attention, FeedForward, LanguageModel, LayerGroup

STATE_BLOCKS = 2  # prefix caching keeps the running state and the last checkpoint


class _Kind(NamedTuple):
    """Layers that share blocks: full attention, one window, one chunk, or constant state."""

    name: str
    span: int  # tokens; 0 for full attention and state


@dataclass(frozen=True)
class PagedPool:
    """One rank's pool. ``block_bytes`` is what one block takes; concurrency is in sequences of ``max_length``."""

    block_tokens: int
    block_bytes: float
    blocks: int
    blocks_per_request: int

    @property
    def concurrency(self) -> float:
        return self.blocks / self.blocks_per_request


def _kind(attention: Attention, has_state: bool) -> _Kind:
    if has_state:
        return _Kind("state", 0)
    if attention.window:
        return _Kind("window", attention.window)
    return _Kind("chunk", attention.chunk) if attention.chunk else _Kind("full", 0)


def _blocks_per_group(kind: _Kind, block: int, max_length: int, batched_tokens: int) -> int:
    """Blocks that one layer group of a request may take: all tokens, a window plus a step's tokens, or two states."""
    if kind.name == "state":
        return STATE_BLOCKS
    if kind.name == "window":
        return math.ceil(min(kind.span - 1 + batched_tokens, max_length) / block) + 1
    if kind.name == "chunk":
        return math.ceil(min(kind.span + batched_tokens, max_length) / block)
    return math.ceil(max_length / block)


def _compressed_pool(model: LanguageModel, kv_format: str, available_bytes: float, max_length: int) -> PagedPool:
    """V4: one block holds 256 tokens of every layer, each layer's part padded to a multiple of 576 bytes."""
    f, total = formats().state, 0.0
    block, align = f.block_compressed, f.compressed_alignment_bytes
    for g in model.groups:
        for t in layer_kv(g.attention, kv_format).terms:
            if math.isinf(t.window_tokens):
                total += g.count * math.ceil(t.slope_bytes * block / align) * align
    return PagedPool(block, total, int(available_bytes // total), math.ceil(max_length / block))


@dataclass(frozen=True)
class _Pages:
    """How a model's layers share blocks: layers by kind, layers that one block spans, tokens of a block."""

    layers: Counter[_Kind]
    slopes: dict[_Kind, float]  # bytes per token of one layer on one rank; 0 for state
    span: int
    block: int  # tokens that the widest attention layer has in a block; narrower ones have as many more

    @property
    def page_bytes(self) -> float:
        """One layer's part of a block on one rank."""
        return self.block * max(self.slopes.values())

    def groups(self, kind: _Kind) -> int:
        """Blocks that the layers of a kind need for the same tokens; what the last lacks is padding."""
        return math.ceil(self.layers[kind] / self.span)


def _pages(model: LanguageModel, kv_format: str, tp: int) -> _Pages:
    layers: Counter[_Kind] = Counter()
    slopes: dict[_Kind, float] = {}
    for g in model.groups:
        layer = layer_kv(g.attention, kv_format)
        if not layer.terms and not layer.state_bytes:
            continue
        kind = _kind(g.attention, bool(layer.state_bytes))
        layers[kind] += g.count
        slopes[kind] = max(slopes.get(kind, 0.0), sum(t.slope_bytes * term_copies(t, tp) / tp for t in layer.terms))
    return _Pages(layers, slopes, min(layers.values()), hit_granularity_tokens(model, kv_format))


def with_draft_layer(model: LanguageModel, draft_tokens: int) -> LanguageModel:
    """The layers that hold cache when a multi-token-prediction layer drafts ``draft_tokens`` a step.

    One layer of full attention more, and convolution states of K - 1 + draft_tokens rows.
    """
    full = next(g.attention for g in model.groups if _kind(g.attention, False).name == "full" and g.attention.kv_heads)
    groups = tuple(
        replace(g, attention=replace(g.attention, conv_kernel=g.attention.conv_kernel + draft_tokens))
        if g.attention.conv_kernel
        else g
        for g in model.groups
    )
    return replace(model, groups=(*groups, LayerGroup(1, full, FeedForward("none"))))


def paged_pool(
    model: LanguageModel,
    kv_format: str,
    tp: int,
    available_bytes: float,
    max_length: int,
    batched_tokens: int = 8192,
    draft_tokens: int = 0,
) -> PagedPool:
    """Blocks of one rank's pool of ``available_bytes``, and the blocks a request of ``max_length`` tokens reserves.

    Layers are sorted by kind; a block spans gs = the least count of a kind, other kinds take ceil(n/gs) blocks (the
    missing layers are padding); pages are equal, so in hybrids a block is as many tokens as hold one state. Each
    drafted token keeps one more state. Within 0.1 % of vLLM's logs. V4: its windows and compressor rings are outside
    this pool.
    """
    if any(g.attention.kind in ("csa", "hca") for g in model.groups):
        return _compressed_pool(model, kv_format, available_bytes, max_length)
    if draft_tokens:
        model = with_draft_layer(model, draft_tokens)
    pages = _pages(model, kv_format, tp)
    block = pages.block
    block_bytes = pages.span * pages.page_bytes
    per_request = 0
    for kind in pages.layers:
        slope = pages.slopes[kind]
        of_kind = round(pages.page_bytes / slope) if slope else block
        extra = draft_tokens if kind.name == "state" else 0
        per_request += pages.groups(kind) * (_blocks_per_group(kind, of_kind, max_length, batched_tokens) + extra)
    return PagedPool(block, block_bytes, int(available_bytes // block_bytes), per_request)


def paged_bytes(model: LanguageModel, length: npt.ArrayLike, kv_format: str) -> npt.NDArray[np.float64]:
    """Pages that a running sequence of ``length`` tokens takes, whole model, copies over ranks once [B].

    KV(L) where all layers are alike. In hybrids the sum over kinds of ``gs ceil(n/gs) slope tokens``: all tokens and
    half a block of rounding, a window and a block, a chunk; or two blocks for a state. Shape of ``length``. V4: KV(L),
    which is 2 % below its pages. Source: as ``paged_pool``.
    """
    tokens = np.asarray(length, dtype=float)
    payload = np.asarray(kv_bytes(model, tokens, kv_format), dtype=float)
    if any(g.attention.kind in ("csa", "hca") for g in model.groups):
        return payload
    pages = _pages(model, kv_format, 1)
    if len(pages.layers) < 2 or pages.page_bytes == 0.0:
        return payload
    held = np.zeros_like(tokens)
    for kind, slope in pages.slopes.items():
        blocks_of_all = pages.groups(kind) * pages.span
        if kind.name == "state":
            held = held + blocks_of_all * STATE_BLOCKS * pages.page_bytes
            continue
        block = pages.page_bytes / slope
        most = kind.span + (block if kind.name == "window" else 0.0) if kind.span else math.inf
        held = held + blocks_of_all * slope * np.minimum(tokens + 0.5 * block, most)
    return held
