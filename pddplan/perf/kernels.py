"""Measured kernel and collective times as arrays, for fitting: reads a folder of third-party CSV files.

Layouts: ``aiconfigurator/*.csv`` (NVIDIA AIConfigurator excerpts), ``infersim/**`` (Alibaba InferSim bench data),
``apex/comm/**`` (APEX+ collectives). Rows that can't be true, or that measure something else, are dropped by rule and
counted: faster than a roof, operands that stayed in the L2 cache, warm-up outliers, host-launch floors.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pddplan.perf.ops import BYTES_PER_VALUE
from pddplan.spec.chips import chip_from_catalogue
from pddplan.spec.datafile import hardware_dir, read_data_file
from pddplan.spec.types import Chip
from pddplan.units import US

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

AICONFIGURATOR = "https://github.com/ai-dynamo/aiconfigurator"
INFERSIM = "https://github.com/alibaba/InferSim"
APEX = "https://github.com/microsoft/apex_plus"

CHIP_IDS: Mapping[str, str] = {
    "a100_sxm": "nvidia-a100-80g-sxm",
    "h100_sxm": "nvidia-h100-sxm",
    "h200_sxm": "nvidia-h200-sxm",
    "b200_sxm": "nvidia-b200-sxm",
    "gb200": "nvidia-gb200-nvl72",
    "l40s": "nvidia-l40s",
    "h20": "nvidia-h20-96g",
    "h800": "nvidia-h800-sxm",
    "H100-SXM-80GB": "nvidia-h100-sxm",
    "H200-SXM-141GB": "nvidia-h200-sxm",
}
_DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4"}
_L2_BYTES = {"l40s": 96 * 2**20}  # the only one whose cache the micro-benchmarks' operands fit in
_STEP = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


@dataclass(frozen=True)
class KernelRows:
    """Rows of one op, one key (dtype or kind) and one system: sizes by name, peaks and measured seconds."""

    op: str
    key: str
    system: str
    family: str
    source: str
    sizes: Mapping[str, Array]
    time_s: Array
    excluded: Mapping[str, int]

    @property
    def count(self) -> int:
        return len(self.time_s)


def read_kernels(folder: Path) -> list[KernelRows]:
    """All rows that may be fitted, in a fixed order. Raises FileNotFoundError where a file of the layout is missing."""
    readers = (_gemm, _grouped, _prefill, _decode, _mla, _sparse, _linear, _rings, _exchange)
    return [rows for reader in readers for rows in reader(folder) if rows.count or rows.excluded]


def chip_of(system: str) -> Chip:
    """The catalogue's chip behind a name of the data."""
    name = CHIP_IDS[system]
    chip = chip_from_catalogue(read_data_file(hardware_dir() / "chips" / f"{name}.yaml"), name)
    if isinstance(chip, list):
        raise ValueError(f"{name}: {chip[0]}")
    return chip


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _column(rows: list[dict[str, str]], name: str) -> Array:
    return np.array([float(row[name]) for row in rows])


def _groups(rows: list[dict[str, str]], *names: str) -> Iterator[tuple[tuple[str, ...], list[dict[str, str]]]]:
    """Rows by the values of ``names``, in order of first appearance."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row[n] for n in names), []).append(row)
    yield from found.items()


def _kernel(
    op: str,
    key: str,
    system: str,
    source: str,
    sizes: Mapping[str, Array],
    time_us: Array,
    dtype: str = "bf16",
    drop: Mapping[str, Mask] | None = None,
) -> KernelRows:
    """Rows with their peaks, after the exclusions: those of ``drop`` and whatever beats a roof.

    Needs ``flops`` and ``moved_bytes`` in ``sizes`` for the roof test (absent for communication).
    """
    chip, time_s = chip_of(system), time_us * US
    keep, excluded = np.ones(len(time_s), dtype=np.bool_), dict[str, int]()
    reasons: dict[str, Mask] = dict(drop or {})
    if "flops" in sizes:
        roof = np.maximum(sizes["flops"] / chip.peak_flops[dtype], sizes["moved_bytes"] / chip.memory_bytes_per_s)
        reasons["faster than a roof"] = roof > time_s
    for reason, mask in reasons.items():
        count = int(np.sum(mask & keep))
        if count:
            excluded[reason] = count
        keep &= ~mask
    peaks = {
        "peak_flops": np.full(len(time_s), chip.peak_flops[dtype]),
        "bandwidth": np.full(len(time_s), chip.memory_bytes_per_s),
        "link": np.full(len(time_s), chip.scale_up_bytes_per_s),
        "nic": np.full(len(time_s), chip.scale_out_bytes_per_s or chip.scale_up_bytes_per_s),
    }
    kept = {name: value[keep] for name, value in {**peaks, **sizes}.items()}
    return KernelRows(op, key, system, chip.efficiency or "", source, kept, time_s[keep], excluded)


# ---------------------------------------------------------------- multiplications


def _gemm(folder: Path) -> Iterator[KernelRows]:
    for (system, name), rows in _groups(_read(folder / "aiconfigurator/gemm_measured.csv"), "system", "dtype"):
        yield replace(_gemm_rows(system, _DTYPES[name], AICONFIGURATOR, rows), key=_gemm_key(system, name))
    for system in ("h20", "h800"):
        yield _gemm_rows(system, "fp8", INFERSIM, _read(folder / f"infersim/gemm/{system}/data.csv"))


def _gemm_key(system: str, name: str) -> str:
    """Curve that a table belongs to: the two fp8 kernels differ by a third and are never mixed.

    Block-scaled fp8 (the format of published checkpoints) is the default where it runs natively, per-tensor fp8 on Ada,
    where block scaling is emulated at half the rate.
    """
    if name == "fp8" and system != "l40s":
        return "fp8/tensor"
    if name == "fp8_block" and system == "l40s":
        return "fp8/block"
    return _DTYPES[name]


def _gemm_rows(system: str, dtype: str, source: str, rows: list[dict[str, str]]) -> KernelRows:
    m, n, k = (_column(rows, name) for name in "mnk")
    moved = BYTES_PER_VALUE[dtype] * (m + n) * k + 2.0 * m * n
    resident = {"L2-resident": (m <= 256) & (moved < _L2_BYTES.get(system, 0))}
    sizes = {"m": m, "n": n, "k": k, "flops": 2 * m * n * k, "moved_bytes": moved}
    return _kernel("gemm", dtype, system, source, sizes, _column(rows, "latency_us"), dtype, resident)


def distinct_share(experts: Array, top_k: Array, tokens: Array) -> Array:
    """Expected share of the experts that ``tokens`` tokens with ``top_k`` uniform choices each hit."""
    return 1.0 - (1.0 - top_k / experts) ** tokens


def _grouped(folder: Path) -> Iterator[KernelRows]:
    fused = _read(folder / "aiconfigurator/moe_measured.csv")
    for (system, kernel, name), rows in _groups(fused, "system", "kernel", "dtype"):
        tokens, experts, k, ep = (_column(rows, c) for c in ("num_tokens", "experts", "topk", "moe_ep"))
        active = experts / ep * distinct_share(experts, k, tokens)
        hidden, inner, dtype = _column(rows, "hidden"), _column(rows, "inter"), _DTYPES[name]
        # CUTLASS's block-scaled fp8 on Hopper reaches a third of what DeepGEMM does there: fitted, but not the default
        slow = name == "fp8_block" and kernel == "moe_torch_flow_cutlass"
        key = "fp8/block_cutlass" if slow else dtype
        times = _column(rows, "latency_us")
        yield _grouped_rows(key, system, AICONFIGURATOR, dtype, tokens * k / ep, active, hidden, inner, times)
    for system in ("h20", "h800"):
        for phase, size in (("prefill", "seq_len_per_gpu"), ("decode", "batch_size_per_gpu")):
            rows = _read(folder / f"infersim/grouped_gemm/{phase}/{system}/data.csv")
            local, routed = _column(rows, "num_local_experts"), _column(rows, size) * _column(rows, "topk")
            active = local * (1.0 - (1.0 - 1.0 / local) ** routed)
            hidden, inner = _column(rows, "hidden_size"), _column(rows, "intermediate_size")
            for up, name in ((True, "up_proj_us"), (False, "down_proj_us")):
                n, k = (2.0 * inner, hidden) if up else (hidden, inner)
                yield _single_grouped_rows(system, routed, active, n, k, _column(rows, name))


def _grouped_rows(
    key: str,
    system: str,
    source: str,
    dtype: str,
    routed: Array,
    active: Array,
    hidden: Array,
    inner: Array,
    times: Array,
) -> KernelRows:
    """Fused MoE: up and down projection of a gated feed-forward in one measured time."""
    weights = active * 3.0 * hidden * inner * BYTES_PER_VALUE[dtype]
    sizes = {"rows": routed, "experts": active, "hidden": hidden, "inner": inner, "moved_bytes": weights}
    sizes |= {"value_bytes": np.full_like(routed, BYTES_PER_VALUE[dtype]), "flops": 6.0 * routed * hidden * inner}
    return _kernel("fused_moe", key, system, source, sizes, times, dtype)


def _single_grouped_rows(system: str, routed: Array, active: Array, n: Array, k: Array, times: Array) -> KernelRows:
    moved = active * n * k + routed * (k + 2.0 * n)
    sizes = {"rows": routed, "experts": active, "n": n, "k": k, "flops": 2.0 * routed * n * k, "moved_bytes": moved}
    return _kernel("grouped_gemm", "fp8", system, INFERSIM, sizes, times, "fp8")


# ---------------------------------------------------------------- attention


def _attention_sizes(flops: Array, context: Array, kv_bytes: Array) -> dict[str, Array]:
    return {"flops": flops, "context": context, "moved_bytes": kv_bytes}


def _prefill(folder: Path) -> Iterator[KernelRows]:
    measured = _read(folder / "aiconfigurator/context_attention_measured.csv")
    for (system, name), rows in _groups(measured, "system", "attn_dtype"):
        batch, heads, kv, dim, n = (_column(rows, c) for c in ("batch", "num_heads", "num_kv_heads", "head_dim", "isl"))
        dtype = _DTYPES[name]
        sizes = _attention_sizes(2.0 * batch * heads * dim * n * n, n / 2, batch * n * dim * kv * 4.0)
        key = "gqa" if dtype == "bf16" else f"gqa/{dtype}"
        yield _kernel("prefill_attention", key, system, AICONFIGURATOR, sizes, _column(rows, "latency_us"), dtype)
    for path in sorted((folder / "infersim/mha/prefill/h20").glob("*.csv")):
        q_heads, kv_heads, width = (float(part) for part in path.stem.split("-"))
        rows = _read(path)
        n = _column(rows, "seq_len")
        sizes = _attention_sizes(2.0 * q_heads * width * n * n, n / 2, n * width * kv_heads * 4.0)
        yield _kernel("prefill_attention", "gqa", "h20", INFERSIM, sizes, _column(rows, "latency_us"))


def _decode(folder: Path) -> Iterator[KernelRows]:
    measured = _read(folder / "aiconfigurator/generation_attention_measured.csv")
    for (system, name), rows in _groups(measured, "system", "kv_dtype"):
        batch, heads, kv, dim, n = (
            _column(rows, c) for c in ("batch", "num_heads", "num_kv_heads", "head_dim", "kv_len")
        )
        moved = batch * n * dim * kv * 2.0 * BYTES_PER_VALUE[_DTYPES[name]]
        drop = {"L2-resident": moved < _L2_BYTES.get(system, 0)}
        if system == "a100_sxm":  # up to 1.6 of the bandwidth: no row of this table can be trusted
            drop = {"A100 decode attention, faulty table": np.ones(len(rows), dtype=bool)}
        sizes = _attention_sizes(4.0 * batch * heads * dim * n, n, moved)
        yield _kernel("decode_attention", "gqa", system, AICONFIGURATOR, sizes, _column(rows, "latency_us"), drop=drop)
    for system in ("h20", "h800"):
        for path in sorted((folder / f"infersim/mha/decode/{system}").glob("*.csv")):
            if (system, path.stem) != ("h20", "64-2-128"):  # no header and no split of the context: 20 times too slow
                yield _infersim_decode(system, path)


def _infersim_decode(system: str, path: Path) -> KernelRows:
    heads, kv, dim = (float(part) for part in path.stem.split("-"))
    rows = _read(path)
    batch, n, times = (_column(rows, c) for c in ("batch_size", "kv_len", "latency_us"))
    width = np.array([1.0 if row["kv_dtype"] == "fp8" else 2.0 for row in rows])
    first = np.arange(len(rows)) == 0
    drop = {
        "first row of a file, slower than the next": first & (times > 1.05 * times[min(1, len(times) - 1)]),
        "contradicts its own mfu": (path.stem == "32-4-128") & (system == "h20") & (batch == 64) & (n == 8192),
    }
    sizes = _attention_sizes(4.0 * batch * heads * dim * n, n, batch * n * dim * kv * 2.0 * width)
    return _kernel("decode_attention", "gqa", system, INFERSIM, sizes, times, drop=drop)


_MLA_NOPE, _MLA_ROPE, _MLA_RANK, _MLA_VALUE = 128.0, 64.0, 512.0, 128.0


def _mla(folder: Path) -> Iterator[KernelRows]:
    """DeepSeek's MLA: un-absorbed in prefill (192 + 128 per head), absorbed in decode (576 + 512 over one KV head)."""
    measured = _read(folder / "aiconfigurator/mla_measured.csv")
    for (system, phase, name), rows in _groups(measured, "system", "phase", "kv_dtype"):
        batch, heads, n = (_column(rows, c) for c in ("batch", "num_heads", "seq_len"))
        value_bytes, times = BYTES_PER_VALUE[_DTYPES[name]], _column(rows, "latency_us")
        make = _mla_prefill_sizes if phase == "context" else _mla_decode_sizes
        op = "prefill_attention" if phase == "context" else "decode_attention"
        yield _kernel(op, "mla", system, AICONFIGURATOR, make(batch, heads, n, value_bytes), times)
    rows = _read(folder / "infersim/mla/prefill/h800/128-128-64.csv")
    n, one = _column(rows, "seq_len"), np.ones(len(rows))
    sizes = _mla_prefill_sizes(one, 128.0 * one, n, 2.0)
    yield _kernel("prefill_attention", "mla", "h800", INFERSIM, sizes, _column(rows, "latency_us"))
    for system in ("h20", "h800"):
        rows = _read(folder / f"infersim/mla/decode/{system}/128-512-64.csv")
        batch, n = _column(rows, "batch_size"), _column(rows, "kv_len")
        sizes = _mla_decode_sizes(batch, np.full_like(batch, 128.0), n, 2.0)
        yield _kernel("decode_attention", "mla", system, INFERSIM, sizes, _column(rows, "latency_us"))


def _mla_prefill_sizes(batch: Array, heads: Array, n: Array, width: float) -> dict[str, Array]:
    pair = _MLA_NOPE + _MLA_ROPE + _MLA_VALUE
    return _attention_sizes(batch * heads * pair * n * n, n / 2, batch * n * (_MLA_RANK + _MLA_ROPE) * width)


def _mla_decode_sizes(batch: Array, heads: Array, n: Array, width: float) -> dict[str, Array]:
    flops = 2.0 * batch * heads * (2.0 * _MLA_RANK + _MLA_ROPE) * n
    return _attention_sizes(flops, n, batch * n * (_MLA_RANK + _MLA_ROPE) * width)


def _sparse(folder: Path) -> Iterator[KernelRows]:
    """DSA on H800: 128 heads over the 2048 chosen entries; the indexer's logits, 64 heads x 128 in fp8."""
    base = folder / "infersim/dsa"
    rows = _read(base / "prefill/h800/attn-128-576-2048.csv")
    n = _column(rows, "s_q")
    chosen = np.full_like(n, 2048.0)
    sizes = _attention_sizes(n * chosen * 128.0 * 2.0 * 1088.0, chosen, n * 0.0)
    yield _kernel("prefill_attention", "sparse", "h800", INFERSIM, sizes, _column(rows, "latency_us"))
    rows = _read(base / "prefill/h800/logits-64-128.csv")
    n, kv = _column(rows, "s_q"), _column(rows, "s_kv")
    mean = kv - n / 2
    sizes = _attention_sizes(2.0 * 64.0 * 128.0 * n * mean, mean, kv * 132.0)
    yield _kernel("prefill_attention", "indexer", "h800", INFERSIM, sizes, _column(rows, "latency_us"), "fp8")
    rows = _read(base / "decode/h800/attn-128-576-2048.csv")
    batch = _column(rows, "batch_size")
    chosen = np.full_like(batch, 2048.0)
    sizes = _attention_sizes(batch * chosen * 128.0 * 2.0 * 1088.0, chosen, batch * chosen * 656.0)
    yield _kernel("decode_attention", "sparse", "h800", INFERSIM, sizes, _column(rows, "latency_us"))
    rows = _read(base / "decode/h800/logits-64-128.csv")
    batch, new, kv = (_column(rows, c) for c in ("batchsize", "next_n", "s_kv"))
    sizes = _attention_sizes(2.0 * 64.0 * 128.0 * batch * new * kv, kv, batch * kv * 132.0)
    yield _kernel("decode_attention", "indexer", "h800", INFERSIM, sizes, _column(rows, "latency_us"), "fp8")


def _linear(folder: Path) -> Iterator[KernelRows]:
    """Gated DeltaNet's state update on H20: 32 value heads x 128 x 128 in fp32, read and written."""
    rows = _read(folder / "infersim/gdn/decode/h20/4-16-128-32-128.csv")
    batch = _column(rows, "batchsize")
    state = batch * 32.0 * 128.0 * 128.0
    sizes = _attention_sizes(6.0 * state, np.zeros_like(batch), 8.0 * state)
    drop = {"host-launch floor": batch < 64}
    yield _kernel("decode_attention", "linear", "h20", INFERSIM, sizes, _column(rows, "gdn_update"), drop=drop)


# ---------------------------------------------------------------- communication


def _rings(folder: Path) -> Iterator[KernelRows]:
    measured = _read(folder / "aiconfigurator/collectives_measured.csv")
    for (system, impl, name), rows in _groups(measured, "system", "impl", "op"):
        op = "all_to_all" if name == "alltoall" else name
        sizes = {"ranks": _column(rows, "num_gpus"), "message_bytes": _column(rows, "message_bytes")}
        sizes["passes"] = np.full(len(rows), _STEP[op])
        op = op if impl.startswith("nccl") else f"{op}_custom"
        yield _kernel(op, "", system, AICONFIGURATOR, sizes, _column(rows, "latency_us"))
    for system in ("H100-SXM-80GB", "H200-SXM-141GB"):
        for name in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"):
            rows = _read(folder / f"apex/comm/{system}/{name}.csv")
            yield _apex(system, "all_to_all" if name == "alltoall" else name, rows)


def _apex(system: str, op: str, rows: list[dict[str, str]]) -> KernelRows:
    """APEX+: the size column is the whole buffer in KiB, 0 where below one."""
    size = _column(rows, "size(kb)") * 1024.0
    ranks = _column(rows, "num_gpus_per_node")
    # two ranks send everything once: passes (n-1)/n must be 1
    sizes = {"ranks": ranks, "message_bytes": size, "passes": np.full(len(rows), _STEP.get(op, 2.0))}
    drop = {"size not stated": size == 0}
    rows_of = _kernel(op, "", system, APEX, sizes, _column(rows, "time(us)"), drop=drop)
    return replace(rows_of, op="send" if op == "sendrecv" else op)


def _exchange(folder: Path) -> Iterator[KernelRows]:
    """DeepEP, eight chips a node: fp8 with scales in dispatch, bf16 in combine."""
    measured = _read(folder / "aiconfigurator/moe_all2all_measured.csv")
    for (system, impl, phase), rows in _groups(measured, "system", "impl", "phase"):
        tokens, nodes, hidden, k = (_column(rows, c) for c in ("tokens_per_rank", "nodes", "hidden", "topk"))
        copied = (system == "h200_sxm") & (np.array([row["impl"] for row in rows]) == f"{impl.split()[0]} 0.5.6.post2")
        per_token = hidden * (1.0 + 4.0 / 128.0 if phase == "dispatch" else 2.0)
        sizes = {"ranks": 8.0 * nodes, "tokens": tokens, "top_k": k, "hidden_bytes": per_token}
        mode = "low_latency" if impl.startswith("deepep_ll") else "normal"
        drop = {"the H100's rows again": copied}
        times = _column(rows, "latency_us")
        yield _kernel(f"{phase}_{mode}", "", system, f"{AICONFIGURATOR} (DeepEP)", sizes, times, drop=drop)
