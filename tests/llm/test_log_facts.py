"""Bytes per token and concurrency that serving engines printed, against the closed forms."""

from __future__ import annotations

import csv

import pytest

from pddplan.llm.catalogue import find_model, load_model
from pddplan.llm.kv import kv_bytes_per_rank, kv_bytes_per_token
from pddplan.llm.pool import paged_pool
from pddplan.llm.types import Attention, FeedForward, LanguageModel, LayerGroup, WeightRecipe
from pddplan.llm.weights import weight_bytes
from pddplan.units import GIB
from tests.reference import reference_dir

ALIKE = {"MiniMax-M2.7-AWQ": "minimax-m2.5"}


def _rows() -> list[dict[str, str]]:
    with (reference_dir() / "models" / "kv_log_facts.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _slope_per_rank(model: LanguageModel, row: dict[str, str]) -> float:
    """Slope on one rank from two lengths; decode context parallelism splits it once more."""
    tp = int(row["tp"] or 1)
    kv_format = "fp8" if row["kv_dtype"].startswith("fp8") else "bf16"
    one, two = kv_bytes_per_rank(model, [100_000, 200_000], kv_format, tp)
    return float(two - one) / 100_000 / (8 if "DCP8" in row["note"] else 1)


def test_bytes_per_token_and_tokens_of_engine_logs() -> None:
    seen = set()
    for row in _rows():
        found = find_model(ALIKE.get(row["model"], row["model"]))
        if found is None or not row["kv_bytes_per_token_per_gpu"]:
            continue
        per_rank = _slope_per_rank(load_model(found), row)
        assert per_rank == pytest.approx(float(row["kv_bytes_per_token_per_gpu"]), rel=0.005), row["id"]
        if row["avail_kv_gib_per_gpu"]:
            tokens = float(row["avail_kv_gib_per_gpu"]) * GIB / per_rank
            assert tokens == pytest.approx(float(row["reported_kv_tokens"]), rel=0.005), row["id"]
        seen.add(row["id"])
    assert {"2", "3", "8", "20", "21", "23", "24", "26", "27", "30", "45", "47"} <= seen


# Engine logs, typed by hand: (card, KV format, GiB available, max length, blocks, concurrency, source)
POOLS = [
    ("gemma-3-27b", "bf16", 19.53, 8192, 15998, 4.46, "github.com/llm-d-incubation/llm-d-planner gemma-3-27b-it log"),
    ("qwen3.6-35b-a3b", "fp8", 5.98, 131072, 299, 4.33, "github.com/noonghunna/club-3090/issues/612"),
    ("llama-3.1-8b", "fp8", 58.11, 8192, 59502, None, "github.com/llm-d-incubation/llm-d-planner v0.19.0"),
    ("deepseek-v4-pro", "fp8", 26.09, 65536, 21306, None, "github.com/vllm-project/vllm/pull/48993"),
]


@pytest.mark.parametrize(("name", "kv_format", "gib", "length", "blocks", "concurrency", "source"), POOLS)
def test_paged_pool_equals_engine_logs(
    name: str, kv_format: str, gib: float, length: int, blocks: int, concurrency: float | None, source: str
) -> None:
    pool = paged_pool(load_model(name), kv_format, 1, gib * GIB, length)
    assert pool.blocks == pytest.approx(blocks, rel=2e-3), source
    if concurrency is not None:
        assert round(pool.concurrency, 2) == concurrency, source


def test_chunked_attention_pool_under_tensor_parallelism() -> None:
    """Llama-4-Scout, TP4: 16.75 GiB gave concurrency 44.68 at 8,192 tokens (llm-d-planner v0.19.0 log)."""
    none = FeedForward("none")
    full = Attention("gqa", q_heads=40, kv_heads=8, head_dim_k=128, head_dim_v=128)
    chunk = Attention("gqa", q_heads=40, kv_heads=8, head_dim_k=128, head_dim_v=128, chunk=8192)
    groups = (LayerGroup(12, full, none), LayerGroup(36, chunk, none))
    recipe = WeightRecipe("bf16", "bf16", "bf16")
    scout = LanguageModel("scout", "Scout", (), 5120, 202048, False, None, groups, recipe)
    pool = paged_pool(scout, "bf16", 4, 16.75 * GIB, 8192)
    assert pool.concurrency == pytest.approx(44.68, rel=1e-3)
    assert pool.blocks // 4 * pool.block_tokens == pytest.approx(365_968, rel=1e-3)


def test_pool_of_a_plain_model_is_payload() -> None:
    model = load_model("qwen3-32b")
    pool = paged_pool(model, "bf16", 1, 10 * GIB, 40_960)
    assert pool.block_bytes == pool.block_tokens * kv_bytes_per_token(model, "bf16")
    assert pool.concurrency == pytest.approx(10 * GIB / (40_960 * 262_144), rel=1e-3)


def test_weights_loaded_by_engines() -> None:
    """vLLM 0.11 on H100: Qwen3-32B 61.03 GiB; gpt-oss-120b 64.38 GiB, which pads 2880 by 5.9 %."""
    assert weight_bytes(load_model("qwen3-32b"), "bf16").total / GIB == pytest.approx(61.03, rel=1e-3)
    assert weight_bytes(load_model("gpt-oss-120b"), "native").total / GIB == pytest.approx(64.38 / 1.059, rel=2e-3)
