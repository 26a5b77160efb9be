"""Points at a rate: the queue by hand, Little's law, and the refusal of what can't be kept up with."""

from __future__ import annotations

import math

import pytest

from pddplan.errors import Excuse
from pddplan.estimate import pools
from pddplan.estimate.estimate import estimate
from pddplan.estimate.records import Lengths, OperatingPoint
from pddplan.perf.instance import Parallelism
from pddplan.perf.service import RooflineDecode, RooflinePrefill
from tests.estimate.points import answer, point, workers

FOUR = workers("h100", Parallelism(tp=4))
LENGTHS = Lengths(4096, 256)


def split(rate: float, count: int = 1, lengths: Lengths = LENGTHS, mode: str = "disaggregated") -> OperatingPoint:
    layout = [workers("h100", Parallelism(tp=4), count), workers("h100", Parallelism(tp=4), 4)]
    chosen = layout if mode == "disaggregated" else layout[:1]
    return point(mode, "llama-3.1-70b", *chosen, lengths=lengths, request_rate_per_s=rate)  # type: ignore[arg-type]


def prompt_s(asked: OperatingPoint) -> float:
    services = pools.point_services(asked)
    assert isinstance(services, tuple) and isinstance(services[0], RooflinePrefill)
    return float(services[0].request_time_s(asked.lengths.input_tokens, 0.0, 0.0))


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8, 0.95])
def test_prefill_queue_of_one_worker_by_hand(load: float) -> None:
    """Prompts of one length, Poisson arrivals, one worker: M/D/1, W = rho S / (2 (1 - rho))."""
    service = prompt_s(split(1.0))
    found = answer(split(load / service))
    assert found.ttft is not None
    assert found.ttft.prefill == pytest.approx(service, rel=1e-9)
    assert found.ttft.queue == pytest.approx(load * service / (2 * (1 - load)), rel=0.01)


@pytest.mark.parametrize("count", [2, 4])
def test_several_workers_wait_less(count: int) -> None:
    """At the same utilisation, less by at least their number: below Erlang-C's M/M/c, halved."""
    service = prompt_s(split(1.0))
    one, several = (answer(split(0.8 * c / service, c)).ttft for c in (1, count))
    assert one is not None and several is not None
    assert several.queue < one.queue / count


def test_varied_lengths_wait_longer() -> None:
    """Pollaczek-Khinchine: the same mean, a wider law of lengths."""
    wide = Lengths(4096 / 0.6, 256 / 0.6, shortest=0.2)
    assert wide.mean_share == pytest.approx(0.6)
    rate = 0.7 / prompt_s(split(1.0))
    alike, varied = answer(split(rate)).ttft, answer(split(rate, lengths=wide)).ttft
    assert alike is not None and varied is not None
    assert varied.queue > 1.05 * alike.queue


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated", "prefill"])
def test_above_capacity_it_is_refused(mode: str) -> None:
    """Never a finite TTFT: the excuse names prefill and the load; just below capacity there is an answer."""
    rate = 1.0 / prompt_s(split(1.0))
    refused = estimate(split(1.6 * rate, mode=mode))
    assert isinstance(refused, Excuse)
    assert refused.constraint == "prefill_utilization" and refused.value > 1.0 and refused.limit == 1.0
    if mode != "aggregated":
        assert refused.value == pytest.approx(1.6, rel=1e-6)
        near = answer(split(0.999 * rate, mode=mode)).ttft
        assert near is not None and math.isfinite(near.mean)
        assert near.queue > 100 * near.prefill
    else:
        answer(split(rate / refused.value, mode=mode))


def test_decode_is_the_fixed_point_of_its_batch() -> None:
    """B = rate x tokens x TPOT(B) on each worker."""
    asked = split(4.0, count=4)
    services, found = pools.point_services(asked), answer(asked)
    assert isinstance(services, tuple) and isinstance(services[1], RooflineDecode) and found.tpot_s is not None
    assert found.effective_concurrency == pytest.approx(4.0 * 256 * found.tpot_s, rel=1e-4)
    step = services[1].step_time_s(found.effective_concurrency / 4, pools.running_context(asked.lengths))
    assert found.tpot_s == pytest.approx(float(step), rel=1e-4)


def test_decode_without_slots_is_refused() -> None:
    """More requests than KV memory holds: named, with the number that would have to run."""
    tight = workers("h100", Parallelism(tp=2), weights="bf16", kv_cache="bf16")
    asked = point("decode", "llama-3.1-70b", tight, lengths=Lengths(4096, 512), request_rate_per_s=5.0)
    refused = estimate(asked)
    assert isinstance(refused, Excuse)
    assert refused.constraint == "kv_memory" and refused.value > refused.limit
    few = point("decode", "llama-3.1-70b", tight, lengths=Lengths(4096, 512), request_rate_per_s=0.2)
    assert answer(few).effective_concurrency < refused.limit


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated", "prefill", "decode"])
def test_a_request_that_fits_nowhere_is_refused(mode: str) -> None:
    tight = workers("h100", Parallelism(tp=2), weights="bf16", kv_cache="bf16")
    layout = [tight] * (2 if mode == "disaggregated" else 1)
    for load in ({"concurrency": 2.0}, {"request_rate_per_s": 1e-4}):
        asked = point(mode, "llama-3.1-70b", *layout, lengths=Lengths(120_000, 512), **load)  # type: ignore[arg-type]
        refused = estimate(asked)
        assert isinstance(refused, Excuse) and refused.constraint == "kv_of_a_request"
        assert refused.value > refused.limit


def test_a_model_that_does_not_fit_is_refused() -> None:
    refused = estimate(point("aggregated", "llama-3.1-70b", workers("h100", weights="bf16")))
    assert isinstance(refused, Excuse) and refused.constraint == "memory"
    assert refused.value == pytest.approx(142, rel=0.05)
