"""Predicted against published operating points of real engines (kernels/anchors.csv of the reference data).

The configuration of each row is typed here, its measured value is read from the file. Curves come from kernel
benchmarks and the engine profile from the catalogue: nothing is fitted to these rows. Rows whose engine is of 2023
(Splitwise) are printed but don't count: their README says that they serve for ratios only.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from pddplan.llm.catalogue import load_model
from pddplan.perf.curves import load_curves
from pddplan.perf.instance import Instance, Parallelism
from pddplan.perf.service import RooflineDecode, RooflinePrefill, decode_service, prefill_service
from pddplan.spec.catalogue import load_chip, load_engine
from tests.reference import reference_dir

# Benchmarks at fixed lengths with two-batch overlap and 16,384 tokens a pass, as each source states for its runs
BENCH = {"chunk_tokens": 16384, "tail_merge": "cut", "context_sigma": 0.0, "max_batch": 512}
WIDE = BENCH | {"overlap_expert_communication": True}


@dataclass(frozen=True)
class Point:
    """One row: what to predict. ``per`` chips share the rate (node or chip); ``recorded`` error in percent when last
    looked at."""

    id: str
    phase: str
    chip: str
    model: str
    parallelism: Parallelism
    tokens: float  # prompt, or context held
    per: float
    recorded: float
    batch_per_chip: float = 0.0
    engine: tuple[tuple[str, object], ...] = ()
    weights: str = "native"


def point(id: str, phase: str, chip: str, model: str, par: tuple[int, int, int, int], **rest: object) -> Point:
    engine = rest.pop("engine", BENCH)
    assert isinstance(engine, dict)
    return Point(id, phase, chip, model, Parallelism(*par), engine=tuple(engine.items()), **rest)  # type: ignore[arg-type]


V3 = "deepseek-v3"
POINTS = [
    point("IS-DSV3-P", "prefill", "h800", V3, (1, 1, 32, 32), tokens=4096, per=1, engine=WIDE, recorded=6),
    point(
        "IS-DSV3-D",
        "decode",
        "h800",
        V3,
        (1, 1, 128, 128),
        tokens=4096,
        per=1,
        batch_per_chip=128,
        engine=WIDE,
        recorded=10,
    ),
    # a running fleet: contexts differ; batch from 1,850 tokens/s a chip at 47.6 ms (21 tokens/s a user)
    point(
        "DS-PROD-D",
        "decode",
        "h800",
        V3,
        (1, 1, 144, 144),
        tokens=4989,
        per=8,
        batch_per_chip=88,
        engine=WIDE | {"context_sigma": 0.8},
        recorded=10,
    ),
    point("SGL-P-1K", "prefill", "h100", V3, (1, 1, 32, 32), tokens=1024, per=8, engine=WIDE, recorded=23),
    point("SGL-P-2K", "prefill", "h100", V3, (1, 1, 32, 32), tokens=2048, per=8, engine=WIDE, recorded=28),
    point("SGL-P-4K", "prefill", "h100", V3, (1, 1, 32, 32), tokens=4096, per=8, engine=WIDE, recorded=33),
    point(
        "SGL-D-2K",
        "decode",
        "h100",
        V3,
        (1, 1, 72, 72),
        tokens=2050,
        per=8,
        batch_per_chip=256,
        engine=WIDE,
        recorded=41,
    ),
    point("IS-Q30-P", "prefill", "h20", "qwen3-30b-a3b", (1, 1, 1, 1), tokens=4096, per=1, recorded=1),
    point(
        "IS-Q30-D", "decode", "h20", "qwen3-30b-a3b", (1, 1, 4, 4), tokens=5120, per=1, batch_per_chip=100, recorded=13
    ),
    point("IS-Q8-P", "prefill", "h20", "qwen3-8b", (1, 1, 1, 1), tokens=4096, per=1, weights="fp8", recorded=8),
    point(
        "IS-Q8-D",
        "decode",
        "h20",
        "qwen3-8b",
        (1, 1, 1, 1),
        tokens=5120,
        per=1,
        batch_per_chip=64,
        weights="fp8",
        recorded=12,
    ),
]


def built(p: Point) -> Instance:
    engine, _ = load_engine("sglang")
    engine = replace(engine, **dict(p.engine))  # type: ignore[arg-type]
    chip = load_chip(p.chip)
    return Instance(chip, load_model(p.model), p.parallelism, engine, p.weights, "bf16", load_curves(chip))


def predicted(p: Point) -> float:
    """Tokens per second of ``per`` chips."""
    one = built(p)
    if p.phase == "prefill":
        prefill = prefill_service(one)
        assert isinstance(prefill, RooflinePrefill), prefill
        seconds = float(prefill.saturated_time_s(p.tokens, 0.0)) / prefill.servers_per_instance
        return p.per * p.tokens / seconds / prefill.chips_per_instance
    decode = decode_service(one)
    assert isinstance(decode, RooflineDecode), decode
    batch = p.batch_per_chip * decode.chips_per_instance
    return p.per * p.batch_per_chip / float(decode.step_time_s(batch, p.tokens))


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    with (reference_dir() / "kernels" / "anchors.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: float(row["value"]) for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def errors(measured: dict[str, float]) -> dict[str, float]:
    """Signed errors in percent of all points; prints the table."""
    found = {}
    print("\nid           predicted   measured   error")
    for p in POINTS:
        value = predicted(p)
        found[p.id] = 100.0 * (value / measured[p.id] - 1.0)
        print(f"{p.id:12s} {value:9.0f}  {measured[p.id]:9.0f}  {found[p.id]:+5.1f} %")
    ape = np.abs(list(found.values()))
    print(f"median APE {np.median(ape):.1f} %, mean {ape.mean():.1f} %, {len(found)} rows")
    return found


def test_median_error(errors: dict[str, float]) -> None:
    """Bar of the instance model now: 25 %; 12 % once engines are calibrated (2-model.md section 9)."""
    assert np.median(np.abs(list(errors.values()))) <= 25.0


@pytest.mark.parametrize("p", POINTS, ids=lambda p: p.id)
def test_no_row_gets_worse(errors: dict[str, float], p: Point) -> None:
    """Recorded error plus 5 points; recorded is the larger one over step overheads of 0.5 ms and of the profile."""
    assert abs(errors[p.id]) <= p.recorded + 5.0


def test_balanced_experts_explain_part_of_the_gap() -> None:
    """SGLang's own simulation of perfectly balanced experts: 7,417 tokens/s a chip at 4,096 tokens, 18 % above its
    real run."""
    with (reference_dir() / "measurements" / "serving_points.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    balanced = float(rows["sgl-h100-prefill-4096-perfectEPLB"]["prefill_tok_s_chip"])
    ours = predicted(next(p for p in POINTS if p.id == "SGL-P-4K")) / 8
    print(f"\nbalanced experts: predicted {ours:.0f}, theirs {balanced:.0f}, {100 * (ours / balanced - 1):+.1f} %")
    assert ours == pytest.approx(balanced, rel=0.2)


@pytest.mark.parametrize("id", ["IS-DSV3-P", "IS-DSV3-D", "DS-PROD-D"])
def test_deepseek_v3_on_h800_from_the_roofline(errors: dict[str, float], id: str) -> None:
    """Prefill 62.7k tokens/s a node at EP32, decode 14.8k at EP144: each within 25 %."""
    assert abs(errors[id]) <= 25.0


def test_user_rate_of_the_running_fleet() -> None:
    """DeepSeek states 20 to 22 tokens/s a user at 14.8k tokens/s a node (open-infra-index, day 6)."""
    fleet = next(p for p in POINTS if p.id == "DS-PROD-D")
    assert predicted(fleet) / (fleet.per * fleet.batch_per_chip) == pytest.approx(21.0, rel=0.25)


def _splitwise(chip: str, phase: str) -> Callable[[float], float]:
    """Milliseconds of Llama-2-70B on 8 chips, TP8, against prompt tokens or batch."""
    engine, _ = load_engine("vllm")
    target = load_chip(chip)
    one = Instance(target, load_model("llama-2-70b"), Parallelism(tp=8), engine, "bf16", "bf16", load_curves(target))
    prefill, decode = prefill_service(one), decode_service(one)
    assert isinstance(prefill, RooflinePrefill)
    assert isinstance(decode, RooflineDecode)
    if phase == "P":
        return lambda n: 1e3 * float(prefill.request_time_s(n, 0.0, 0.0))
    return lambda b: 1e3 * float(decode.step_time_s(b, 512.0))


def test_ratio_of_a100_to_h100(measured: dict[str, float]) -> None:
    """Prefill of 512 to 2,048 tokens: 1.7 to 2.0 times slower on A100 (Splitwise, 2023: ratios only)."""
    print()
    for n in (512, 1024, 2048):
        ratio = _splitwise("a100", "P")(n) / _splitwise("h100", "P")(n)
        real = measured[f"SPW-A100-P{n}"] / measured[f"SPW-H100-P{n}"]
        print(f"A100/H100 prefill {n}: predicted {ratio:.2f}, measured {real:.2f}")
        assert ratio == pytest.approx(real, rel=0.3)


def test_llama_70b_on_vllm(measured: dict[str, float]) -> None:
    """vLLM on H100: 13.8 to 17.7 ms at TP8, 25.3 ms at TP4 over three traces of unknown batch (at most 32 assumed)."""
    engine, _ = load_engine("vllm")
    chip = load_chip("h100")
    times = {}
    for tp in (4, 8):
        one = Instance(chip, load_model("llama-3.1-70b"), Parallelism(tp=tp), engine, "bf16", "bf16", load_curves(chip))
        decode = decode_service(one)
        assert isinstance(decode, RooflineDecode)
        times[tp] = 1e3 * decode.step_time_s(np.array([1.0, 32.0]), 1500.0)
    print(f"\nTP8 {times[8].round(1)} ms, measured {measured['APX-70B-8TP-LO']} to {measured['APX-70B-8TP-HI']}")
    print(f"TP4 {times[4].round(1)} ms, measured {measured['APX-70B-4TP']}")
    # vLLM of 2024, whose host took longer; the profile is fitted to runs of 2025: below, by a third at most
    pairs = ((times[8][0], "APX-70B-8TP-LO"), (times[8][1], "APX-70B-8TP-HI"), (times[4].mean(), "APX-70B-4TP"))
    for predicted, row in pairs:
        assert 0.67 * measured[row] <= predicted <= 1.05 * measured[row], row
