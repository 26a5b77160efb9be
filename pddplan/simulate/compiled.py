"""One code for the event loop: compiled where numba (extra ``fast``) is installed, else run as it is."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

COMPILED = importlib.util.find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


def jit(function: F) -> F:
    """``numba.njit`` with its result kept on disk, or the function itself."""
    if not COMPILED:
        return function
    from numba import njit

    _keep_in_own_folder()
    compiled: Any = njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast(F, compiled)


@cache
def cache_folder() -> Path:
    """Where compiled code is kept: a folder for each state of the sources that are compiled. numba by itself looks at
    the file of a function only, not at those whose functions it calls."""
    state = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = path.read_bytes()
        if b"jit" in source or path.stem.endswith("world"):
            state.update(source)
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    base = Path(given) if given else Path.home() / ".cache"
    return base / "pddplan" / state.hexdigest()[:16]


@cache
def _keep_in_own_folder() -> None:
    import numba

    vars(numba.config)["CACHE_DIR"] = str(cache_folder())


def is_cached() -> bool:
    """Whether an earlier run has left compiled code: compiling takes about a minute."""
    return not COMPILED or any(cache_folder().rglob("*.nbc"))


@jit
def thinned(series: np.ndarray) -> int:
    """Every second point of a full time series is dropped; where the next one goes. So a run of any length is covered
    by its points (points, columns), whose counters run from the start."""
    half = int(series.shape[0] // 2)
    for n in range(half):
        series[n] = series[2 * n + 1]
    series[half:] = 0.0
    return half
