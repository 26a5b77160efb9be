"""Which token mixer and which feed-forward each layer has, from the schedules that config.json files use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pddplan.llm.architectures import Family, architectures
from pddplan.llm.config_reader import MAX_LAYERS, ConfigReader
from pddplan.spec.issues import shown

Labels = list[str]

_LAYER_TYPES = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "linear",
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
}
_BLOCKS = {"M": "mamba", "*": "full", "E": "moe", "-": "dense"}
_BLOCK_TYPES = {"mamba": "mamba", "attention": "full", "moe": "moe", "mlp": "dense"}
COMPRESS_RATIOS = {0: "swa", 4: "csa", 128: "hca"}
_NOPE_STEP = 4  # Llama 4 without a list: every fourth layer attends everything


def _uniform(view: ConfigReader, layers: int) -> Labels:
    return ["full"] * layers


def _every(view: ConfigReader, layers: int, names: tuple[str, ...], rest: str, default: int | None = None) -> Labels:
    """Each n-th layer is full attention, the others are ``rest``."""
    step = view.count(names) if default is None else view.count(names, default)
    return ["full" if step and (i + 1) % step == 0 else rest for i in range(layers)]


def _sliding_window(view: ConfigReader, layers: int) -> Labels:
    """Windows in all layers from ``max_window_layers`` on, unless there is no window or it isn't used."""
    if not view.has("sliding_window") or not view.flag(("use_sliding_window",), True):
        return _uniform(view, layers)
    first = view.count(("max_window_layers",), 0, 0) if view.has("use_sliding_window") else 0
    return ["window" if i >= first else "full" for i in range(layers)]


def _no_rope_layers(view: ConfigReader, layers: int) -> Labels:
    """Llama 4: layers without rotary positions attend everything, the others their chunk."""
    if view.has("no_rope_layers"):
        return view.per_layer("no_rope_layers", layers, {0: "full", 1: "chunk"})
    return _every(view, layers, ("no_rope_layer_interval",), "chunk", _NOPE_STEP)


def _linear_attn_config(view: ConfigReader, layers: int) -> Labels:
    """Kimi Linear: two lists of layer numbers, counted from 1."""
    inner = view.inside("linear_attn_config")
    full, where = inner.find(("full_attn_layers",))
    linear, _ = inner.find(("kda_layers",))
    if not isinstance(full, list) or not isinstance(linear, list):
        inner.missing(("full_attn_layers",) if not isinstance(full, list) else ("kda_layers",))
        return []
    if sorted([*full, *linear], key=str) != sorted(range(1, layers + 1), key=str):
        inner.wrong(where, f"and kda_layers don't name each of the {layers} layers once.", "They count from 1.")
        return []
    return ["full" if i + 1 in set(full) else "linear" for i in range(layers)]


_PATTERNS: Mapping[str, Callable[[ConfigReader, int], Labels]] = {
    "uniform": _uniform,
    "sliding_window": _sliding_window,
    "no_rope_layers": _no_rope_layers,
    "linear_attn_config": _linear_attn_config,
    "layer_types": lambda v, n: v.per_layer("layer_types", n, _LAYER_TYPES),
    "hybrid_layer_pattern": lambda v, n: v.per_layer("hybrid_layer_pattern", n, {0: "full", 1: "window"}),
    "attn_type_list": lambda v, n: v.per_layer("attn_type_list", n, {0: "linear", 1: "full"}),
    "compress_ratios": lambda v, n: v.per_layer("compress_ratios", n, COMPRESS_RATIOS),
    "full_attention_interval": lambda v, n: _every(v, n, ("full_attention_interval",), "linear"),
    "layer_group_size": lambda v, n: _every(v, n, ("layer_group_size",), "linear"),
    "sliding_window_pattern": lambda v, n: _every(v, n, ("sliding_window_pattern",), "window"),
}
_BY_BLOCK: Mapping[str, Mapping[str, str]] = {
    "hybrid_override_pattern": _BLOCKS,
    "layers_block_type": _BLOCK_TYPES,
}
_WITHOUT_KEY = ("uniform", "sliding_window", "no_rope_layers")  # these say what holds where their key is absent


def layer_labels(view: ConfigReader, family: Family) -> list[tuple[str, str]]:
    """(token mixer, feed-forward) of every layer: labels of the family's mixers, and dense, moe or none."""
    pattern = next((p for p in family.pattern if p in _WITHOUT_KEY or view.has(p)), "")
    if not pattern:
        view.missing(family.pattern)
        return []
    if pattern in _BY_BLOCK:
        blocks = view.find((pattern,))[0]
        total = view.count(
            architectures().fields["top"]["layers"], len(blocks) if isinstance(blocks, (list, str)) else 0
        )
        kinds = view.per_layer(pattern, total, _BY_BLOCK[pattern])
        return [("none", kind) if kind in ("dense", "moe") else (kind, "none") for kind in kinds]
    layers = view.count(architectures().fields["top"]["layers"], most=MAX_LAYERS)
    mixers = _PATTERNS[pattern](view, layers)
    for i, label in enumerate(mixers):
        if not family.has(label):
            view.wrong((*view.find((pattern,))[1], i), f"{family.name} has no {label} layers.", "Is model_type right?")
            return []
    return list(zip(mixers, _feed_forwards(view, layers) if family.experts else ["dense"] * layers, strict=False))


def _feed_forwards(view: ConfigReader, layers: int) -> Labels:
    """dense or moe, a layer: a list where there is one, else the first k dense and then every n-th with experts."""
    if view.has("mlp_layer_types"):
        return view.per_layer("mlp_layer_types", layers, {"dense": "dense", "sparse": "moe", "moe": "moe"})
    if view.has("moe_layers_enum"):
        return _enumerated(view, layers)
    if isinstance(view.find(("moe_layer_freq",))[0], list):
        return view.per_layer("moe_layer_freq", layers, {0: "dense", 1: "moe"})
    first = view.count(("first_k_dense_replace",), 0, 0, layers or MAX_LAYERS)
    step = view.count(("moe_layer_freq",), 1) or 1
    offset_step = view.count(("decoder_sparse_step", "interleave_moe_layer_step"), 1) or 1
    dense, where = view.find(("mlp_only_layers",))
    if not isinstance(dense or [], list):
        view.wrong(where, f"must be a list of layers, not {shown(dense)}.")
        return []
    return [
        "moe" if i >= first and i % step == 0 and (i + 1) % offset_step == 0 and i not in (dense or []) else "dense"
        for i in range(layers)
    ]


def _enumerated(view: ConfigReader, layers: int) -> Labels:
    """``"4,5,6"``: the layers with experts, counted from 0."""
    found, where = view.find(("moe_layers_enum",))
    parts = [p.strip() for p in found.split(",")] if isinstance(found, str) else []
    chosen = {int(p) for p in parts if p.isdecimal() and len(p) < 7}
    if not parts or len(chosen) != len(parts) or max(chosen, default=0) >= layers:
        view.wrong(where, f"must list layers from 0 to {layers - 1}, not {shown(found)}.", "As '4,5,6'.")
        return []
    return ["moe" if i in chosen else "dense" for i in range(layers)]
