"""Results of other people's benchmarks as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pddplan.accuracy.files import read_file, stated_columns
from pddplan.accuracy.records import Measurements
from pddplan.errors import InputError

WHERE = {"chip": "h200", "tp": "8"}
VLLM: dict[str, Any] = {
    "date": "20261101-120000",
    "backend": "openai",
    "model_id": "meta-llama/Llama-3.1-70B-Instruct",
    "num_prompts": 320,
    "request_rate": "inf",
    "max_concurrency": 32,
    "completed": 320,
    "total_input_tokens": 320 * 1000,
    "total_output_tokens": 320 * 250,
    "request_throughput": 4.0,
    "total_token_throughput": 5000.0,
    "mean_ttft_ms": 210.5,
    "median_ttft_ms": 190.0,
    "mean_tpot_ms": 21.25,
}
SGLANG: dict[str, Any] = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 4.0,
    "max_concurrency": None,
    "random_range_ratio": 0.5,
    "completed": 100,
    "total_input_tokens": 100 * 1500,
    "total_output_tokens": 100 * 300,
    "input_throughput": 3000.0,
    "request_throughput": 3.9,
    "mean_ttft_ms": 150.0,
    "mean_tpot_ms": 12.0,
    "server_info": {"model_path": "meta-llama/Llama-3.1-8B", "tp_size": 2, "dp_size": 1},
}
INFERENCEX: dict[str, Any] = {
    "hw": "h200-nv",
    "tp": 8,
    "ep": 8,
    "dp_attention": "true",
    "conc": 64,
    "model": "deepseek-ai/DeepSeek-R1-0528",
    "framework": "sglang",
    "precision": "fp8",
    "isl": 1024,
    "osl": 1024,
    "mean_ttft": 0.5,
    "mean_tpot": 0.0331,
    "tput_per_gpu": 400.0,
}
INFERA: dict[str, Any] = {
    "prefill": {"isl": [512, 4096], "ttft_ms": [45.0, 340.0], "thpt_per_gpu": [9800.0, 12100.0]},
    "decode": {
        "kv_usage": [0.1, 0.5],
        "context_length": [1024, 4096, 16384],
        "itl_ms": [[9.0, 20.0], [9.0, 19.0], [9.5, 18.0]],
        "thpt_per_gpu": [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]],
        "max_kv_tokens": 262144,
    },
    "prefill_engine_num_gpu": 1,
    "decode_engine_num_gpu": 2,
}


def rows(tmp_path: Path, content: object, **stated: str) -> Measurements:
    path = tmp_path / "result.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_file(str(path), stated)


def test_vllm(tmp_path: Path) -> None:
    found = rows(tmp_path, VLLM, **WHERE)
    (row,) = found.rows
    assert found.layout == "vllm" and row.why == "" and row.measured == {"ttft_ms": 210.5, "tpot_ms": 21.25}
    point = row.parts[0].point
    assert (point.engine.name, point.model.id, point.pools[0].chip.id) == ("vllm", "llama-3.1-70b", "nvidia-h200-sxm")
    assert (point.lengths.input_tokens, point.lengths.output_tokens) == (1000, 250)
    assert (point.concurrency, point.requests_per_user, point.pools[0].parallelism.tp) == (32, 10, 8)


@pytest.mark.parametrize(
    ("changes", "users", "rate"),
    [
        ({"max_concurrency": None}, 320, None),  # all at once
        ({"max_concurrency": None, "request_rate": 4.5}, None, 4.5),
        ({"request_rate": 0.5, "request_throughput": 0.49}, None, 0.5),  # the users were never all busy
        ({"request_rate": 50.0, "request_throughput": 5.7}, 32, None),  # they were
    ],
)
def test_the_load_of_a_benchmark(
    tmp_path: Path, changes: dict[str, Any], users: float | None, rate: float | None
) -> None:
    point = rows(tmp_path, {**VLLM, **changes}, **WHERE).rows[0].parts[0].point
    assert (point.concurrency, point.request_rate_per_s) == (users, rate)


def test_keys_put_into_a_result_say_where_it_ran(tmp_path: Path) -> None:
    point = rows(tmp_path, {**VLLM, "chip": "h100", "tensor_parallel_size": 4}).rows[0].parts[0].point
    assert (point.pools[0].chip.id, point.pools[0].parallelism.tp) == ("nvidia-h100-sxm", 4)


def test_what_a_result_does_not_say_is_asked_for_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        rows(tmp_path, VLLM)
    (problem,) = error.value.problems
    assert "chip, tp" in problem.message and "--chip NAME --tp N" in problem.fix


def test_sglang_lines(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({**SGLANG, "mean_tpot_ms": t}) for t in (12.0, 13.0)) + "\n"
    found = rows(tmp_path, lines, chip="h100")
    assert found.layout == "sglang" and [r.measured["tpot_ms"] for r in found.rows] == [12.0, 13.0]
    point = found.rows[0].parts[0].point
    assert (point.engine.name, point.model.id, point.pools[0].parallelism.tp) == ("sglang", "llama-3.1-8b", 2)
    assert point.request_rate_per_s == 4.0
    # 0.5 to 1 of 2,000 tokens has a mean of 1,500
    assert (point.lengths.input_tokens, point.lengths.shortest) == (2000, 0.5)


def test_sglang_counts_chips_where_attention_is_data_parallel(tmp_path: Path) -> None:
    server = {"model_path": "deepseek-ai/DeepSeek-V3", "tp_size": 8, "dp_size": 8, "ep_size": 8}
    one = {**SGLANG, "server_info": {**server, "enable_dp_attention": True}}
    layout = rows(tmp_path, one, chip="h200").rows[0].parts[0].point.pools[0].parallelism
    assert (layout.tp, layout.dp, layout.ep) == (1, 8, 8)


def test_inferencex(tmp_path: Path) -> None:
    found = rows(tmp_path, [INFERENCEX])
    (row,) = found.rows
    assert found.layout == "inferencex" and row.measured == {"ttft_ms": 500.0, "tpot_ms": 33.1}
    point = row.parts[0].point
    layout = point.pools[0].parallelism
    assert (point.pools[0].chip.id, layout.tp, layout.dp, layout.ep) == ("nvidia-h200-sxm", 1, 8, 8)
    assert point.lengths.shortest == 0.8 and point.engine.chunk_tokens == 32768  # what its runs do


def test_inferencex_disaggregated(tmp_path: Path) -> None:
    pools = {"prefill_tp": 4, "prefill_ep": 4, "prefill_dp_attention": True, "prefill_num_workers": 2}
    pools |= {"decode_tp": 8, "decode_ep": 8, "decode_dp_attention": "false", "decode_num_workers": 1}
    kept = {k: v for k, v in INFERENCEX.items() if k not in ("tp", "ep", "dp_attention", "hw")}
    metrics = {"mean_ttft": kept.pop("mean_ttft"), "mean_tpot": kept.pop("mean_tpot")}
    record = {**kept, **pools, "hardware": "gb200", "disagg": True, "metrics": metrics}
    point = rows(tmp_path, record).rows[0].parts[0].point
    first, second = point.pools
    assert point.mode == "disaggregated" and (first.count, second.count) == (2, 1)
    assert (first.parallelism.dp, second.parallelism.tp, second.parallelism.ep) == (4, 8, 8)


def test_inferencex_with_drafts_of_unknown_length_is_a_reason(tmp_path: Path) -> None:
    record = {**INFERENCEX, "mtp": "on"}
    assert "mtp_accepted_tokens" in rows(tmp_path, record).rows[0].why
    stated = rows(tmp_path, record, mtp_accepted_tokens="1.8").rows[0]
    assert stated.why == "" and stated.parts[0].point.engine.mtp_accepted_tokens == 1.8


def test_infera(tmp_path: Path) -> None:
    found = rows(tmp_path, INFERA, chip="mi300x", model="llama-3.1-70b", engine="sglang", weights="fp8")
    assert found.layout == "infera" and [r.labels.mode for r in found.rows] == ["prefill"] * 2 + ["decode"] * 6
    first, last = found.rows[0].parts[0].point, found.rows[-1].parts[0].point
    assert (first.lengths.input_tokens, first.concurrency, first.pools[0].parallelism.tp) == (512, 1, 1)
    assert last.concurrency == 8  # 0.5 x 262,144 / 16,384
    assert last.lengths.input_tokens + last.lengths.output_tokens / 2 == 16384
    assert last.pools[0].parallelism.tp == 2 and found.rows[-1].measured == {"tpot_ms": 18.0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("[]", "holds no result"),
        ("{", "is no JSON"),
        ('{"a": 1}\n{"b": }\n', "is no JSON"),
        ("[1, 2]", "is no list of results"),
        ({"name": "x"}, "none of the JSON"),
        ({**VLLM, "completed": 0}, "no request was answered"),
        ({**VLLM, "mean_ttft_ms": None}, "'mean_ttft_ms' is missing"),
        ({**INFERA, "decode": {**INFERA["decode"], "itl_ms": [[1.0]]}}, "no grid of 3 contexts by 2 shares"),
        ({**INFERA, "prefill": {"isl": [1, 2], "ttft_ms": [1]}}, "2 values"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_what_cannot_be_read_is_one_message(tmp_path: Path, content: object, said: str) -> None:
    with pytest.raises(InputError) as error:
        rows(tmp_path, content, chip="h200", tp="8", model="llama-3.1-70b")
    (problem,) = error.value.problems
    assert said in problem.message and problem.file.endswith("result.json") and problem.fix


@pytest.mark.parametrize("where", ["missing.json", "."])
def test_no_file(tmp_path: Path, where: str) -> None:
    with pytest.raises(InputError):
        read_file(str(tmp_path / where), {})


def test_a_table_takes_what_it_lacks_from_the_person(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("mode,isl,osl,concurrency,chip,tpot_ms\naggregated,1024,64,4,,20\naggregated,1024,64,4,a100,20\n")
    found = read_file(str(path), {"model": "llama-3.1-8b", "chip": "h100"})
    assert [r.labels.chip for r in found.rows] == ["nvidia-h100-sxm", "nvidia-a100-80g-sxm"]
    assert all(r.why == "" for r in found.rows)


def test_stated_columns() -> None:
    assert stated_columns(["p_tp=4"], {"chip": "h100", "tp": None}) == {"chip": "h100", "p_tp": "4"}
    with pytest.raises(InputError, match="Did you mean prefix_hit"):
        stated_columns(["prefix_hits=0.5"], {})
