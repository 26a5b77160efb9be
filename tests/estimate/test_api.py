"""The names that ``pddplan`` exports for estimates, also after the folder of the same name was imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pddplan

SCRIPT = """
{first}
import pddplan
w = pddplan.Workers(pddplan.load_chip("h100"), pddplan.Parallelism(tp=2), 1, "fp8", "fp8")
p = pddplan.OperatingPoint("aggregated", pddplan.load_model("qwen3-32b"), pddplan.load_engine("vllm"), (w,),
                           pddplan.Lengths(2000, 200), concurrency=4.0)
one = pddplan.estimate(p)
assert isinstance(one, pddplan.Estimate), one
assert pddplan.estimate_many([p, p]) == [one, one]
from pddplan import estimate
assert estimate(p) == one
"""


@pytest.mark.parametrize(
    "first", ["", "import pddplan.estimate.records", "from pddplan.estimate.estimate import estimate"]
)
def test_python_api(first: str) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT.format(first=first)], check=True)


def test_all_names_are_there() -> None:
    assert all(getattr(pddplan, name) is not None for name in pddplan.__all__)


def test_rates_of_an_aggregated_instance_are_over_all_its_chips() -> None:
    workers = pddplan.Workers(pddplan.load_chip("h100"), pddplan.Parallelism(tp=2), 2, "fp8", "fp8")
    engine, model = pddplan.load_engine("vllm"), pddplan.load_model("qwen3-32b")
    lengths = pddplan.Lengths(2000, 200, shortest=0.8)
    asked = pddplan.OperatingPoint("aggregated", model, engine, (workers,), lengths, concurrency=8.0)
    found = pddplan.estimate(asked)
    assert isinstance(found, pddplan.Estimate)
    rate = found.request_rate_per_s / 4
    assert found.prefill_tokens_per_s_per_chip == pytest.approx(rate * 1800)
    assert found.decode_tokens_per_s_per_chip == pytest.approx(rate * 180)
    assert found.total_tokens_per_s_per_chip == pytest.approx(rate * 1980)
