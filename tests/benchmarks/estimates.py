"""``python -m tests.benchmarks.estimates [PYTHON]``: speed of estimates, alone and beside AIConfigurator's.

PYTHON: an interpreter that has the package ``aiconfigurator`` (default: the environment's AICONFIGURATOR_PYTHON, else
this one). Where it can be imported, both run the same ten points in one run: per point warm, and a whole command cold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from itertools import islice, product

import pddplan
from pddplan.errors import Excuse
from pddplan.estimate.records import Lengths, OperatingPoint, Workers
from pddplan.perf.instance import Parallelism
from tests.benchmarks.processes import measure

POINTS = 1000
RUNS = 3
REPEATS = 5  # of the ten points, warm

DENSE = ("llama-3.1-70b", "qwen3-32b", "llama-3.1-8b", "qwen2.5-72b")
EXPERTS = ("deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b", "glm-4.6")
CHIPS = ("h100", "h200", "b200", "gb200", "mi300x", "h20")
LAYOUTS = {
    DENSE: (Parallelism(tp=4), Parallelism(tp=8), Parallelism(tp=4, pp=2)),
    EXPERTS: (Parallelism(tp=8), Parallelism(tp=1, dp=16, ep=16), Parallelism(tp=8, ep=8)),
}
LOADS = ({"concurrency": 4.0}, {"concurrency": 64.0}, {"concurrency": 256.0}, {"request_rate_per_s": 0.5})
SIZES = (Lengths(1024, 1024), Lengths(8192, 1024, shortest=0.8), Lengths(4096, 256, prefix_hit=0.5))


def points() -> list[OperatingPoint]:
    """1,000 points of some 280 configurations: models, chips, layouts, engines, both modes, lengths, loads."""
    engines = [pddplan.load_engine(name) for name in ("vllm", "sglang", "trtllm")]
    found: list[OperatingPoint] = []
    for family, layouts in LAYOUTS.items():
        kinds = product(family, CHIPS, layouts, ("aggregated", "disaggregated"))
        for index, (model, chip, layout, mode) in enumerate(kinds):
            workers = Workers(pddplan.load_chip(chip), layout, 1, "fp8", "fp8")
            pools = (replace(workers, count=2), workers) if mode == "disaggregated" else (workers,)
            for lengths, load in islice(product(SIZES, LOADS), index % 3, None, 3):
                engine = engines[index % 3]
                found.append(OperatingPoint(mode, pddplan.load_model(model), engine, pools, lengths, **load))  # type: ignore[arg-type]
    return found[:: max(len(found) // POINTS, 1)][:POINTS]


def many() -> None:
    """All points through the Python API: the first time, with the tables of their services, and again."""
    asked = points()
    kinds = len({(p.mode, p.model.id, p.engine.name, *((w.chip.id, w.parallelism) for w in p.pools)) for p in asked})
    print(f"{len(asked):,} points of {kinds} configurations")
    for name in ("first, with the services' tables", "again"):
        began = time.perf_counter()
        answers = pddplan.estimate_many(asked)
        seconds = time.perf_counter() - began
        refused = sum(isinstance(a, Excuse) for a in answers)
        rate = len(asked) / seconds
        print(f"  {name:34} {seconds:6.2f} s  {rate:8,.0f} points/s  ({refused} can't run); bar 2 s")


# ---------------------------------------------------------------- beside AIConfigurator


@dataclass(frozen=True)
class Both:
    """A point that both tools know: ours by name, theirs as keyword arguments of ``cli_estimate``."""

    model: str
    theirs: str  # Hugging Face name
    chip: str
    system: str
    tp: int
    isl: int
    osl: int
    users: int
    split: bool = False
    experts: bool = False

    @property
    def keywords(self) -> dict[str, object]:
        words: dict[str, object] = {
            "model_path": self.theirs,
            "system_name": self.system,
            "backend_name": "trtllm",
            "isl": self.isl,
            "osl": self.osl,
            "batch_size": self.users,
            "tp_size": self.tp,
        }
        words |= {"moe_tp_size": 1, "moe_ep_size": self.tp} if self.experts else {}
        if self.split:
            words |= {"mode": "disagg", "prefill_batch_size": 1, "prefill_num_workers": 1}
            words |= {"decode_batch_size": self.users, "decode_num_workers": 1}
        return words

    @property
    def options(self) -> list[str]:
        """The same as a command line of theirs."""
        named = {"model_path": "--model-path", "system_name": "--system", "backend_name": "--backend"}
        words: list[str] = []
        for key, value in self.keywords.items():
            option = named.get(key, "--estimate-mode" if key == "mode" else f"--{key.replace('_', '-')}")
            words += [option, str(value)]
        return words

    @property
    def ours(self) -> OperatingPoint:
        layout = Parallelism(tp=self.tp, ep=self.tp if self.experts else 1)
        workers = Workers(pddplan.load_chip(self.chip), layout, 1, "native", "bf16")
        pools = (workers, workers) if self.split else (workers,)
        mode = "disaggregated" if self.split else "aggregated"
        lengths, model = Lengths(self.isl, self.osl), pddplan.load_model(self.model)
        return OperatingPoint(mode, model, pddplan.load_engine("trtllm"), pools, lengths, concurrency=float(self.users))

    @property
    def our_options(self) -> list[str]:
        words = ["--model", self.model, "--chip", self.chip, "--isl", str(self.isl), "--osl", str(self.osl)]
        words += ["--concurrency", str(self.users), "--tp", str(self.tp), "--engine", "trtllm"]
        words += ["--ep", str(self.tp)] if self.experts else []
        return [*words, "--xpyd", "1P1D"] if self.split else words


QWEN, LLAMA, MOE = "Qwen/Qwen3-32B", "meta-llama/Meta-Llama-3.1-70B", "Qwen/Qwen3-235B-A22B"
TEN = (
    Both("qwen3-32b", QWEN, "h200", "h200_sxm", 2, 1024, 1024, 16),
    Both("qwen3-32b", QWEN, "h200", "h200_sxm", 4, 4096, 512, 64),
    Both("qwen3-32b", QWEN, "h100", "h100_sxm", 4, 2048, 256, 32),
    Both("llama-3.1-70b", LLAMA, "h200", "h200_sxm", 8, 8192, 1024, 32),
    Both("llama-3.1-70b", LLAMA, "h100", "h100_sxm", 8, 1024, 1024, 128),
    Both("qwen3-235b-a22b", MOE, "h200", "h200_sxm", 8, 4096, 1024, 32, experts=True),
    Both("qwen3-235b-a22b", MOE, "b200", "b200_sxm", 8, 1024, 256, 64, experts=True),
    Both("qwen3-32b", QWEN, "h200", "h200_sxm", 4, 4096, 512, 64, split=True),
    Both("llama-3.1-70b", LLAMA, "h200", "h200_sxm", 8, 8192, 1024, 32, split=True),
    Both("qwen3-235b-a22b", MOE, "h200", "h200_sxm", 8, 4096, 1024, 32, split=True, experts=True),
)
# Runs inside the other interpreter: each point once to load its tables, then again and again.
THEIRS = """
import json, sys, time, warnings, logging
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
from aiconfigurator.cli.api import cli_estimate
points, repeats = json.load(sys.stdin)
out = []
for words in points:
    try:
        cli_estimate(**words)
        began = time.perf_counter()
        for _ in range(repeats):
            found = cli_estimate(**words)
        out.append([(time.perf_counter() - began) / repeats, found.ttft, found.tpot])
    except Exception as error:
        out.append([None, type(error).__name__, " ".join(str(error).split())[:100]])
print("ANSWER" + json.dumps(out))
"""


def _theirs(python: str) -> list[list[float | None]] | None:
    """(seconds, TTFT [ms], TPOT [ms]) of each of the ten; None where the package isn't there."""
    asked = json.dumps([[one.keywords for one in TEN], REPEATS])
    done = subprocess.run([python, "-c", THEIRS], input=asked, capture_output=True, text=True)
    marked = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    return json.loads(marked[-1].removeprefix("ANSWER")) if marked else None


def beside(python: str) -> None:
    theirs = _theirs(python)
    if theirs is None:
        print(f"\naiconfigurator can't be imported by {python}: no comparison.")
        return
    print(f"\n{'the same ten points, warm':46} {'theirs, ms':>10} {'ours, ms':>9} {'ratio':>7}")
    one_by_one: list[float] = []
    pairs: list[tuple[float, float]] = []
    for both, (seconds, *found) in zip(TEN, theirs, strict=True):
        asked = both.ours
        pddplan.estimate_many([asked])
        began = time.perf_counter()
        for _ in range(REPEATS):
            pddplan.estimate_many([asked])
        mine = (time.perf_counter() - began) / REPEATS
        name = (
            f"{both.model} {both.chip} tp{both.tp} {both.isl}/{both.osl} c{both.users}{' 1P1D' if both.split else ''}"
        )
        if seconds is None:
            print(f"{name:46} {'-':>10} {mine * 1e3:9.2f}  {' '.join(map(str, found))}")
            continue
        pairs.append((seconds, mine))
        one_by_one.append(seconds / mine)
        print(f"{name:46} {seconds * 1e3:10.2f} {mine * 1e3:9.2f} {seconds / mine:7.1f}")
    if not pairs:
        return
    total = sum(s for s, _ in pairs)
    print(f"{'all, one call each':46} {total * 1e3:10.2f} {sum(m for _, m in pairs) * 1e3:9.2f} "
          f"{total / sum(m for _, m in pairs):7.1f}")  # fmt: skip
    together = [both.ours for both, (seconds, *_) in zip(TEN, theirs, strict=True) if seconds is not None]
    began = time.perf_counter()
    for _ in range(REPEATS):
        pddplan.estimate_many(together)
    batch = (time.perf_counter() - began) / REPEATS
    print(f"{'all, ours in one call':46} {total * 1e3:10.2f} {batch * 1e3:9.2f} {total / batch:7.1f}   aim 50")
    asked = points()
    pddplan.estimate_many(asked)
    began = time.perf_counter()
    pddplan.estimate_many(asked)
    each = (time.perf_counter() - began) / len(asked)
    theirs_each = total / len(pairs)
    name, ratio = "a point, ours among 1,000", theirs_each / each
    print(f"{name:46} {theirs_each * 1e3:10.2f} {each * 1e3:9.2f} {ratio:7.1f}   aim 50")
    _commands(python, [both for both, (seconds, *_) in zip(TEN, theirs, strict=True) if seconds is not None])


def _commands(python: str, chosen: list[Both]) -> None:
    """Whole processes, the best of some."""
    print(f"\n{'the command, cold':46} {'theirs, s':>10} {'ours, s':>9} {'ratio':>7}")
    program = "from aiconfigurator.main import main; import sys; main(sys.argv[1:])"
    for both in chosen[:1] + [b for b in chosen if b.split][:1]:
        theirs = measure([python, "-W", "ignore", "-c", program, "cli", "estimate", *both.options], RUNS)
        ours = measure([sys.executable, "-m", "pddplan", "estimate", *both.our_options], RUNS)
        name = f"{both.model} {both.chip} tp{both.tp}{' 1P1D' if both.split else ''} (exit {theirs.code}, {ours.code})"
        ratio = theirs.seconds / ours.seconds
        print(f"{name:46} {theirs.seconds:10.2f} {ours.seconds:9.2f} {ratio:7.1f}   aim 4")


if __name__ == "__main__":
    many()
    beside(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("AICONFIGURATOR_PYTHON", sys.executable))
