"""Claude Code sessions of kv-cache-tester (https://github.com/callanjfox/kv-cache-tester, Apache-2.0) as scripts."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

from pddplan.serve.traffic import Atoms
from pddplan.simulate.records import Script

FILE = Path("traces") / "kvct_requests_all.csv.gz"
USUAL_GAP_S = 17.0  # where the trace doesn't say: its median
LONGEST_GAP_S = 300.0  # 95 % are shorter; with the longest ones it takes days until as many sessions end as begin


def main_agents(folder: Path) -> tuple[Atoms, Script]:
    """The calls of main agents, an atom each, and their sessions; those of sub-agents have contexts of their own."""
    first, gaps, rows, last = [], [], [], ""
    with gzip.open(folder / FILE, "rt", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["subagent"] == "1":
                continue
            if row["conv"] != last:
                first.append(len(rows))
                last = row["conv"]
            rows.append((float(row["input_tokens"]), float(row["hit_tokens"]), float(row["output_tokens"])))
            gap_s = float(row["think_time_s"]) if row["think_time_s"] else USUAL_GAP_S
            gaps.append(min(gap_s, LONGEST_GAP_S))
    prompt, hit, output = np.array(rows).T
    atoms = Atoms(
        weight=np.full(prompt.size, 1.0 / prompt.size),
        prompt=prompt,
        cached=np.minimum(hit, prompt - 1.0),
        output=np.maximum(output, 1.0),
        workload=np.zeros(prompt.size, dtype=np.intp),
    )
    return atoms, Script(np.array([*first, len(rows)]), np.arange(len(rows)), np.array(gaps))


def replayed(atoms: Atoms, script: Script, above_tokens: float, only: bool) -> float:
    """Share of the requests that the rule keeps on the relay, by the sessions alone: no queues, no bytes.

    ``delta = min(L, unsent + new)``; above the limit nothing is sent, and ``unsent = delta + n``.
    """
    kept = 0
    for begin, end in zip(script.first, script.first[1:], strict=False):
        unsent = 0.0
        for turn in range(begin, end):
            delta = min(float(atoms.prompt[turn]), unsent + float(atoms.uncached[turn]))
            stays = only and delta > above_tokens
            kept += stays
            unsent = delta + float(atoms.output[turn]) if stays else 0.0
    return kept / atoms.weight.size
