"""Time and peak memory of a process, the best of several runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# ru_maxrss counts kilobytes on Linux and bytes on macOS.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Measured:
    seconds: float
    megabytes: float
    code: int


def measure(command: list[str], runs: int) -> Measured:
    return min((_once(command) for _ in range(runs)), key=lambda one: one.seconds)


def _once(command: list[str]) -> Measured:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    return Measured(seconds, usage.ru_maxrss * RSS_UNIT / 1e6, process.returncode)
