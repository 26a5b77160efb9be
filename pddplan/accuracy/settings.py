"""What a run did that its table doesn't state: rules of ``runs.yaml``, put into an engine profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pddplan.accuracy.names import kv_named
from pddplan.accuracy.numbers import Row, cell, checked
from pddplan.accuracy.records import NoPoint
from pddplan.spec.datafile import read_data_file
from pddplan.spec.profiles import load_engine
from pddplan.spec.types import Engine

FALLBACK_KV = "bf16"
UNBOUNDED_USERS = 1e5  # stands for a load without a limit: slots decide
PROMPT = "prompt"  # chunk_tokens that follow the prompt's length
_SPARE_TOKENS = 64  # TensorRT-LLM's scripts round up to this, and add it
_NUMBERS = {"chunk_tokens": 1e7, "max_batch": 1e6, "mtp_accepted_tokens": 16.0, "length_range": 1.0}
SETTING_COLUMNS = (*_NUMBERS, "overlap_expert_communication")


@dataclass(frozen=True)
class Run:
    """What rules are matched on; ``runs`` is inferencex, nvidia, or the source as stated."""

    engine: str
    version: str = ""
    runs: str = ""
    dump: str = ""
    family: str = ""
    weights: str = ""
    chips: str = ""
    mode: str = ""
    users: float = 0.0
    lengths: str = ""  # nominal input/output
    tp: str = ""  # chips of an attention rank where decode runs
    attention: str = ""  # dp where it is data parallel, else tp


@lru_cache(maxsize=1)
def _rules() -> tuple[Mapping[str, Any], ...]:
    return tuple(read_data_file(Path(__file__).with_name("runs.yaml"))["rules"])


def _holds(when: Mapping[str, Any], run: Run) -> bool:
    values = {**vars(run), "versions": run.version}
    if run.users >= float(when.get("users_below", math.inf)):
        return False
    return all(
        any(str(text) in str(values[key]) if key == "runs" else str(text) == values[key] for text in texts)
        for key, texts in when.items()
        if key != "users_below"
    )


@lru_cache(maxsize=1024)
def settings_of(run: Run) -> Mapping[str, Any]:
    """Every key that a rule sets for this run, by the first rule that does."""
    found: dict[str, Any] = {}
    for rule in _rules():
        if _holds(rule["when"], run):
            found = {**rule["set"], **found}
    return found


def stated(row: Row) -> dict[str, Any]:
    """Settings that a row states itself, in columns named as a scenario's ``engine:`` keys."""
    found: dict[str, Any] = {
        key: checked(text, key, most) for key, most in _NUMBERS.items() if (text := cell(row, key))
    }
    if found.get("mtp_accepted_tokens", 1.0) < 1:
        raise NoPoint("mtp_accepted_tokens is below 1")
    if text := cell(row, "overlap_expert_communication").lower():
        if text not in ("true", "false", "yes", "no", "1", "0"):
            raise NoPoint("overlap_expert_communication is neither true nor false")
        found["overlap_expert_communication"] = text in ("true", "yes", "1")
    if (kv := kv_named(cell(row, "kv_cache"))) is not None:
        found["kv_cache"] = kv
    return found


@lru_cache(maxsize=8)
def _profile(name: str) -> Engine:
    return load_engine(name)[0]


def engine_with(name: str, settings: Mapping[str, Any], input_tokens: float, requests: float) -> Engine:
    """An engine profile with a run's settings; a chunk budget that follows the prompt holds it and every running
    request's token. A server that is measured is started for at least the requests that are sent to it."""
    chosen = {k: v for k, v in settings.items() if k not in ("kv_cache", "length_range", "requests")}
    if chosen.get("chunk_tokens") == PROMPT:
        tokens = input_tokens + requests + _SPARE_TOKENS
        chosen["chunk_tokens"] = _SPARE_TOKENS * math.ceil(tokens / _SPARE_TOKENS)
    if "max_batch" not in chosen and _profile(name).max_batch < requests < UNBOUNDED_USERS:
        chosen["max_batch"] = requests
    for key in ("chunk_tokens", "max_batch"):
        if key in chosen:
            chosen[key] = max(1, math.ceil(chosen[key]))
    return replace(_profile(name), **chosen) if chosen else _profile(name)
