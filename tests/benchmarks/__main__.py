"""``python -m tests.benchmarks``: ratios measured in one run; prints, asserts nothing.

Processes are timed against ``python -c "import numpy, scipy.optimize"`` on the same machine in the same minute, the
best of several runs each, because a wall time by itself says more about the machine than about the program.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import pddplan
from pddplan.errors import Excuse
from pddplan.llm.catalogue import load_model
from pddplan.perf.candidates import candidate_instances
from pddplan.perf.service import RooflineDecode, decode_service
from pddplan.spec.catalogue import examples_dir
from tests.benchmarks import estimates
from tests.benchmarks.processes import Measured, measure

BASE = [sys.executable, "-c", "import numpy, scipy.optimize"]
CLI = [sys.executable, "-m", "pddplan"]
RUNS = 5
BATCHES, CONTEXTS = 128, 64  # operating points of a candidate: their product
REPEATS = 5


def processes() -> None:
    base = measure(BASE, RUNS)
    print(f"{'process':36} {'seconds':>8} {'ratio':>6} {'MB':>5}  exit  bar")
    print(f"{'import numpy, scipy.optimize':36} {base.seconds:8.3f} {1:6.2f} {base.megabytes:5.0f}")
    example = str(examples_dir() / "agent_64k.yaml")
    show("pddplan --help", measure([*CLI, "--help"], RUNS), base, "ratio <= 0.8")
    solved = measure([*CLI, "solve", example, "--json"], RUNS)
    show("pddplan solve agent_64k.yaml --json", solved, base, "ratio <= 4, < 250 MB")
    for path in sorted(examples_dir().glob("*.yaml")):
        show(f"pddplan check {path.name}", measure([*CLI, "check", "-q", str(path)], 1), base, "")


def show(name: str, one: Measured, base: Measured, bar: str) -> None:
    ratio = one.seconds / base.seconds
    print(f"{name:36} {one.seconds:8.3f} {ratio:6.2f} {one.megabytes:5.0f}  {one.code:4}  {bar}")


def services() -> list[RooflineDecode]:
    """Every decode candidate of the first example."""
    scenario = pddplan.load_scenario(examples_dir() / "agent_64k.yaml")
    model = load_model(scenario.model, scenario.base_dir)
    found: list[RooflineDecode] = []
    for site in scenario.sites:
        for offer in site.offers:
            instances, _ = candidate_instances(offer, model, scenario.engine, scenario.precision, "main_decode")
            built = [decode_service(instance) for instance in instances]
            found += [service for service in built if not isinstance(service, Excuse)]
    return found


def step_times() -> None:
    """(candidate x operating point) step times a second, tables of the candidates included and not."""
    began = time.perf_counter()
    candidates = services()
    prepared = time.perf_counter() - began
    batch = np.geomspace(1, 256, BATCHES)[:, None]
    context = np.geomspace(1024, 131072, CONTEXTS)[None, :]
    began = time.perf_counter()
    for _ in range(REPEATS):
        for candidate in candidates:
            candidate.step_time_s(batch, context)
    seconds = (time.perf_counter() - began) / REPEATS
    points = len(candidates) * BATCHES * CONTEXTS
    print(f"\n{points:,} step times ({len(candidates)} candidates x {BATCHES * CONTEXTS:,} points): {seconds:.3f} s")
    print(f"{points / seconds:12,.0f} a second; bar 100,000")
    print(
        f"{points / (seconds + prepared):12,.0f} a second with the load and the candidates' tables ({prepared:.2f} s)"
    )


if __name__ == "__main__":
    processes()
    step_times()
    print()
    estimates.many()
