"""How a paged KV pool of a given size is cut into blocks, and how many sequences it holds.

KV(L) is payload; a paged engine adds block rounding and, in hybrid models, padding layers and equalised pages. This is
vLLM's arithmetic, worked out on its logs: https://github.com/vllm-project/vllm/blob/main/vllm/v1/kv_cache_interface.py
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from pddplan.llm.formats import formats
from pddplan.llm.kv import hit_granularity_tokens, layer_kv, term_copies
from pddplan.llm.types import Attention, LanguageModel


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
        return 2  # prefix caching keeps the running state and the last checkpoint
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


def paged_pool(
    model: LanguageModel,
    kv_format: str,
    tp: int,
    available_bytes: float,
    max_length: int,
    batched_tokens: int = 8192,
) -> PagedPool:
    """Blocks of one rank's pool of ``available_bytes``, and the blocks a request of ``max_length`` tokens reserves.

    Layers are sorted by kind; a block spans gs = the least count of a kind, other kinds take ceil(n/gs) blocks (the
    missing layers are padding); pages are equal, so in hybrids a block is as many tokens as hold one state. Within
    0.1 % of vLLM's logs. V4: its windows and compressor rings are outside this pool.
    """
    if any(g.attention.kind in ("csa", "hca") for g in model.groups):
        return _compressed_pool(model, kv_format, available_bytes, max_length)
    layers: Counter[_Kind] = Counter()
    page_per_token = 0.0
    for g in model.groups:
        layer = layer_kv(g.attention, kv_format)
        if not layer.terms and not layer.state_bytes:
            continue
        layers[_kind(g.attention, bool(layer.state_bytes))] += g.count
        per_rank = sum(t.slope_bytes * term_copies(t, tp) / tp for t in layer.terms)
        page_per_token = max(page_per_token, per_rank)
    block = hit_granularity_tokens(model, kv_format)
    span = min(layers.values())
    block_bytes = span * block * page_per_token
    per_request = sum(
        math.ceil(n / span) * _blocks_per_group(kind, block, max_length, batched_tokens) for kind, n in layers.items()
    )
    return PagedPool(block, block_bytes, int(available_bytes // block_bytes), per_request)
