"""Small tables in each layout."""

from __future__ import annotations

from pddplan.accuracy.csvfile import parse_table
from pddplan.accuracy.records import MeasuredRow, Measurements
from pddplan.accuracy.rows import measurements_of

OWN = (
    "model,chip,mode,engine,weights,kv_cache,isl,osl,concurrency,request_rate_per_s,tp,pp,dp,ep,"
    "p_workers,p_tp,d_workers,d_tp,d_dp,d_ep,ttft_ms,tpot_ms,prefill_tok_s_per_chip,decode_tok_s_per_chip"
)
E2E_AGG = (
    "system,backend,backend_version,model_path,precision,isl,osl,concurrency,tp_size,pp_size,attention_dp_size,"
    "moe_tp_size,moe_ep_size,batch_size,silicon_ttft_ms,silicon_tpot_ms,aic_status,aic_ttft_ms,aic_tpot_ms,source"
)
E2E_DISAGG = (
    "system,backend,backend_version,model_path,precision,isl,osl,concurrency,p_num_workers,p_tp,p_pp,p_dp,p_moe_tp,"
    "p_moe_ep,p_batch,d_num_workers,d_tp,d_pp,d_dp,d_moe_tp,d_moe_ep,d_batch,silicon_ttft_ms,silicon_tpot_ms,"
    "aic_status,aic_ttft_ms,aic_tpot_ms,source"
)
SERVING = (
    "id,tier,confidence,source,url,date,model,weight_dtype,kv_dtype,chip,n_chips,mode,parallelism,prefill_workers,"
    "prefill_parallelism,decode_workers,decode_parallelism,engine,isl,osl,prefix_hit,concurrency,batch_per_chip,"
    "prefill_tok_s_chip,decode_tok_s_chip,output_tok_s_chip,ttft_ms,tpot_ms,req_s,notes"
)


def read(header: str, *rows: dict[str, object]) -> Measurements:
    """A table with these cells; columns that a row doesn't name are empty."""
    columns = header.split(",")
    lines = [",".join(f'"{row.get(c, "")}"' for c in columns) for row in rows]
    assert all(set(row) <= set(columns) for row in rows)
    return measurements_of(parse_table("\n".join([header, *lines, ""]), "t.csv"))


def only(header: str, row: dict[str, object]) -> MeasuredRow:
    return read(header, row).rows[0]


def own(**cells: object) -> dict[str, object]:
    """Llama 3.1 8B on one H100, changed."""
    plain: dict[str, object] = {"model": "llama-3.1-8b", "chip": "h100", "mode": "aggregated", "engine": "vllm"}
    return {**plain, "isl": 1024, "osl": 256, "concurrency": 8, "tp": 1, "tpot_ms": 20, "ttft_ms": 200, **cells}


def e2e(**cells: object) -> dict[str, object]:
    """A DeepSeek run of InferenceX, changed."""
    plain: dict[str, object] = {"system": "b200_sxm", "backend": "trtllm", "backend_version": "1.2.0rc6.post2"}
    plain |= {"model_path": "deepseek-ai/DeepSeek-R1", "precision": "fp4", "isl": 1024, "osl": 1024, "concurrency": 64}
    plain |= {"tp_size": 8, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 8, "moe_ep_size": 1}
    plain |= {"silicon_ttft_ms": 136.58, "silicon_tpot_ms": 16.26, "aic_ttft_ms": 100, "aic_tpot_ms": 15.86}
    return {**plain, "source": "csv-2026-04-06", **cells}


def serving(**cells: object) -> dict[str, object]:
    plain: dict[str, object] = {"tier": "curated", "confidence": "A", "model": "DeepSeek-V3", "weight_dtype": "fp8"}
    plain |= {"kv_dtype": "bf16", "chip": "H100-SXM", "engine": "SGLang", "isl": 2000, "prefix_hit": "0 (random)"}
    return {**plain, **cells}
