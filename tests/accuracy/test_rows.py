"""Every data row of a file is read, in each layout, or says why it has no point."""

from __future__ import annotations

import random

import pytest

from pddplan.accuracy.csvfile import parse_table
from pddplan.accuracy.points import UNBOUNDED_USERS
from pddplan.accuracy.records import MeasuredRow
from pddplan.accuracy.rows import measurements_of, read_measurements
from pddplan.estimate.records import OperatingPoint
from pddplan.perf.instance import Parallelism
from tests.accuracy.tables import E2E_AGG, E2E_DISAGG, OWN, SERVING, e2e, only, own, serving
from tests.reference import reference_dir


def point(row: MeasuredRow) -> OperatingPoint:
    assert row.why == "" and len(row.parts) == 1
    return row.parts[0].point


def test_own_columns() -> None:
    row = only(OWN, own(weights="fp8", kv_cache="fp8", decode_tok_s_per_chip=400))
    asked = point(row)
    assert (asked.model.id, asked.mode, asked.engine.name) == ("llama-3.1-8b", "aggregated", "vllm")
    assert asked.pools[0].weights == asked.pools[0].kv_cache == "fp8"
    assert (asked.lengths.input_tokens, asked.lengths.output_tokens, asked.concurrency) == (1024, 256, 8)
    assert row.measured == {"ttft_ms": 200, "tpot_ms": 20, "decode_tok_s_per_chip": 400}
    assert row.number == 1 and row.labels.chip == "nvidia-h100-sxm"


def test_own_columns_of_two_pools() -> None:
    cells = own(mode="disaggregated", p_workers=3, p_tp=2, d_workers=1, d_tp=1, d_dp=8)
    prefill, decode = point(only(OWN, cells)).pools
    assert (prefill.count, prefill.parallelism) == (3, Parallelism(tp=2))
    assert (decode.count, decode.parallelism) == (1, Parallelism(dp=8))


def test_a_rate_instead_of_users() -> None:
    asked = point(only(OWN, own(concurrency="", request_rate_per_s=2.5)))
    assert asked.concurrency is None and asked.request_rate_per_s == 2.5


def test_prefill_alone_runs_as_fast_as_it_goes() -> None:
    asked = point(only(OWN, own(mode="prefill", concurrency="", osl="")))
    assert asked.concurrency == UNBOUNDED_USERS and asked.lengths.output_tokens == 1


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"model": "no-such-model-1b"}, "unknown model 'no-such-model-1b'"),
        ({"model": ""}, "no model is named"),
        ({"chip": "tpu-of-mine"}, "unknown chip 'tpu-of-mine'"),
        ({"mode": "both"}, "mode 'both' is none of"),
        ({"isl": "nan"}, "isl 'nan' is not a number"),
        ({"isl": "-5"}, "isl '-5' is not above 0"),
        ({"isl": "0"}, "isl '0' is not above 0"),
        ({"isl": "1e300"}, "isl '1e300' is above"),
        ({"isl": "about 100"}, "isl 'about 100' is not a number"),
        ({"isl": ""}, "isl is not stated"),
        ({"osl": "inf"}, "osl 'inf' is not a number"),
        ({"concurrency": ""}, "neither concurrency nor request_rate_per_s"),
        ({"request_rate_per_s": 3}, "both concurrency and request_rate_per_s"),
        ({"concurrency": "-1"}, "concurrency '-1' is not above 0"),
        ({"tp": "2.5"}, "tp '2.5' is not a whole number"),
        ({"tp": "100000"}, "tp '100000' is above"),
        ({"tp": 4, "ep": 3}, "ep 3 doesn't divide"),
        ({"weights": "fp3"}, "weights format 'fp3'"),
        ({"kv_cache": "fp3"}, "KV cache format 'fp3'"),
    ],
)
def test_what_a_row_lacks(cells: dict[str, object], why: str) -> None:
    row = only(OWN, own(**cells))
    assert row.parts == () and why in row.why
    assert row.measured["tpot_ms"] == 20


def test_values_that_are_no_measurement_are_left_out_and_said() -> None:
    row = only(OWN, own(ttft_ms="nan", tpot_ms=-3, decode_tok_s_per_chip=0, prefill_tok_s_per_chip=1e20))
    assert row.parts and row.measured == {}
    assert len(row.notes) == 4


def test_a_prefill_rate_above_the_peak_is_no_measurement() -> None:
    """8 B parameters at 2 FLOP each: an H100 of 1,979 TFLOP/s (fp8) ends at 124,000 tokens/s."""
    assert only(OWN, own(prefill_tok_s_per_chip=100_000)).measured["prefill_tok_s_per_chip"] == 100_000
    row = only(OWN, own(mode="prefill", prefill_tok_s_per_chip=200_000))
    assert row.measured == {"tpot_ms": 20} and "more than the chip's peak" in row.notes[0]


def test_predictions_do_not_depend_on_what_was_measured() -> None:
    rng = random.Random(7)
    for header, row in ((OWN, own()), (E2E_AGG, e2e())):
        first = only(header, row)
        cells = {k: v for k, v in row.items() if "ttft" not in k and "tpot" not in k}
        changed = only(header, cells | {k: rng.uniform(1, 1e4) for k in row if k not in cells})
        assert point(changed) == point(first)
        assert point(only(header, cells)) == point(first)


def test_end_to_end_columns() -> None:
    row = only(E2E_AGG, e2e())
    asked = point(row)
    assert asked.pools[0].parallelism == Parallelism(tp=8)
    assert (asked.pools[0].weights, asked.pools[0].kv_cache) == ("nvfp4", "fp8")
    assert asked.lengths.shortest == 0.8 and asked.engine.mtp_accepted_tokens == 1
    assert row.peer == {"ttft_ms": 100, "tpot_ms": 15.86}


def test_ranks_that_a_converter_multiplied() -> None:
    """The same run, 136.58 and 16.26 ms, stands in two dumps: as 8 chips with 8 expert groups, and as 64 chips."""
    right = point(only(E2E_AGG, e2e(moe_tp_size=1, moe_ep_size=8)))
    wrong = point(only(E2E_AGG, e2e(tp_size=64, moe_tp_size=8, moe_ep_size=8)))
    assert right.pools[0].parallelism == wrong.pools[0].parallelism == Parallelism(tp=8, ep=8)
    attention = point(only(E2E_AGG, e2e(tp_size=1, attention_dp_size=64, moe_tp_size=8, moe_ep_size=8)))
    assert attention.pools[0].parallelism == Parallelism(dp=8, ep=8)
    own_run = only(E2E_AGG, e2e(tp_size=64, moe_tp_size=8, moe_ep_size=8, source="nv-internal"))
    assert point(own_run).pools[0].parallelism == Parallelism(tp=64, ep=8)


def test_runs_of_nvidia_have_fixed_lengths() -> None:
    row = only(E2E_AGG, e2e(source="nv-internal", concurrency="", batch_size=4, attention_dp_size=2, tp_size=4))
    assert point(row).lengths.shortest == 1.0
    assert point(row).concurrency == 8  # four requests on each of two attention ranks


def test_speculative_runs_by_their_version() -> None:
    row = only(E2E_AGG, e2e(backend_version="1.2.0rc6.post3"))
    assert point(row).engine.mtp_accepted_tokens > 1
    other = only(E2E_AGG, e2e(backend_version="1.1.0rc2.post2", source="db-2026-04-27"))
    assert point(other).engine.mtp_accepted_tokens == 1


def test_two_pools_of_the_end_to_end_columns() -> None:
    cells = {k: v for k, v in e2e().items() if k in E2E_DISAGG.split(",")} | {"source": "db-2026-04-27"}
    pools = {"p_num_workers": 2, "p_tp": 1, "p_pp": 1, "p_dp": 4, "p_moe_tp": 1, "p_moe_ep": 4}
    pools |= {"d_num_workers": 1, "d_tp": 1, "d_pp": 1, "d_dp": 32, "d_moe_tp": 1, "d_moe_ep": 32}
    row = only(E2E_DISAGG, cells | pools | {"system": "gb300"})
    prefill, decode = point(row).pools
    assert (prefill.count, prefill.parallelism) == (2, Parallelism(dp=4, ep=4))
    assert (decode.count, decode.parallelism) == (1, Parallelism(dp=32, ep=32))
    assert row.labels.chip == "nvidia-gb300-nvl72" and row.labels.mode == "disaggregated"


def test_attention_and_experts_of_different_size() -> None:
    row = only(E2E_AGG, e2e(tp_size=2, moe_tp_size=4, source="nv-internal"))
    assert "attention runs on 2 chips, experts on 4" in row.why


def test_published_points_of_prefill_and_decode() -> None:
    prefill = only(
        SERVING,
        serving(mode="prefill", n_chips="32.0", prefill_parallelism="EP32 DP-attn", batch_per_chip="16384 tokens"),
    )
    asked = point(prefill)
    assert asked.pools[0].parallelism == Parallelism(dp=32, ep=32)
    assert asked.engine.chunk_tokens == 16384 and asked.concurrency == UNBOUNDED_USERS
    decode = only(
        SERVING, serving(mode="decode", n_chips="72.0", decode_parallelism="EP72 DP-attn", batch_per_chip=256)
    )
    assert point(decode).concurrency == 256 * 72
    # without an output length isl is the context of the steps
    lengths = point(decode).lengths
    assert lengths.input_tokens + lengths.output_tokens / 2 == 2000


def test_prefill_and_decode_apart_are_two_questions() -> None:
    cells = serving(mode="prefill+decode isolated", model="llama2-70b", weight_dtype="fp16", parallelism="TP8")
    row = only(SERVING, cells | {"osl": 128, "concurrency": 1, "ttft_ms": 53, "tpot_ms": 30})
    assert [(p.point.mode, p.metrics[0]) for p in row.parts] == [("prefill", "ttft_ms"), ("decode", "tpot_ms")]


@pytest.mark.parametrize(
    ("text", "parallelism", "replicas"),
    [
        ("TP8", Parallelism(tp=8), 1),
        ("DEP8", Parallelism(dp=8, ep=8), 1),
        ("EP32 DP32 (4 nodes)", Parallelism(dp=32, ep=32), 1),
        ("EP128 TP1", Parallelism(dp=128, ep=128), 1),
        ("TP4 PP2 x1 replicas", Parallelism(tp=4, pp=2), 1),
        ("TP1 PP1 x8 replicas", Parallelism(), 8),
        ("TP8 PP1 EP8 DP-attn x9 replicas", Parallelism(dp=8, ep=8), 9),
        ("DP2 EP2", Parallelism(dp=2, ep=2), 1),
        ("attnTP1 attnDP8 moeTP8 moeEP1", Parallelism(dp=8), 1),
        ("attnTP2 attnDP1 moeTP- moeEP2", Parallelism(tp=2, ep=2), 1),
    ],
)
def test_parallelism_as_text(text: str, parallelism: Parallelism, replicas: int) -> None:
    row = only(SERVING, serving(mode="agg", parallelism=text, osl=100, concurrency=4))
    pool = point(row).pools[0]
    assert (pool.parallelism, pool.count) == (parallelism, replicas)


def test_loads_of_published_points() -> None:
    def load(**cells: object) -> OperatingPoint:
        return point(only(SERVING, serving(parallelism="TP8", osl=100, **cells)))

    assert load(mode="agg offline max-throughput", concurrency="unbounded (offline)").concurrency == UNBOUNDED_USERS
    assert load(mode="agg", concurrency=-1).concurrency == UNBOUNDED_USERS
    assert load(mode="agg Server", req_s=5.5).request_rate_per_s == 5.5
    burst = load(mode="agg", concurrency="300 reqs Poisson 10 req/s; max_num_seqs 128")
    assert (burst.concurrency, burst.engine.max_batch, burst.requests_per_user) == (300, 128, 1)
    assert load(mode="agg", concurrency=4, isl="~294").lengths.input_tokens == 294
    assert load(mode="agg", concurrency=4, notes="max_num_tokens 3584").engine.chunk_tokens == 3584


def test_throughput_that_was_derived_is_not_compared() -> None:
    cells = serving(mode="agg", parallelism="TP8", osl=100, concurrency=4, output_tok_s_chip=50, tpot_ms=20)
    assert "decode_tok_s_per_chip" in only(SERVING, cells).measured
    assert only(SERVING, cells | {"tier": "silicon"}).measured == {"tpot_ms": 20}


def test_a_row_with_too_few_or_too_many_cells_stays() -> None:
    rows = measurements_of(parse_table("model,chip,mode,isl\nllama-3.1-8b,h100\na,b,prefill,1,2,3\n", "t.csv")).rows
    assert [r.why for r in rows] == [
        "the row has 2 cells, the header 4 columns",
        "the row has 6 cells, the header 4 columns",
    ]


@pytest.mark.parametrize(
    ("name", "layout", "rows", "with_points"),
    [
        ("e2e_agg_measured_vs_aic.csv", "e2e_aggregated", 734, 734),
        ("e2e_disagg_measured_vs_aic.csv", "e2e_disaggregated", 245, 245),
        ("serving_points.csv", "serving_points", 939, 860),
    ],
)
def test_the_collection(name: str, layout: str, rows: int, with_points: int) -> None:
    read_rows = read_measurements(str(reference_dir() / "measurements" / name))
    assert read_rows.layout == layout
    assert [r.number for r in read_rows.rows] == list(range(1, rows + 1))
    assert all(bool(r.parts) != bool(r.why) for r in read_rows.rows)
    assert sum(bool(r.parts) for r in read_rows.rows) >= with_points
