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
