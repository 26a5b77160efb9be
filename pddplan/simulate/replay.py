"""A request log as traffic: each request by itself or a turn of its session, at its own time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pddplan.serve.traffic import Atoms
from pddplan.simulate.records import Script
from pddplan.traces.requests import RequestLog


def first_of(log: RequestLog, requests: int) -> RequestLog:
    """The log's first requests, all where it has no more."""
    arrays = ("time_s", "prompt", "output", "cached", "session")
    return replace(log, **{name: getattr(log, name)[:requests] for name in arrays})


def script_of(log: RequestLog) -> tuple[Atoms, Script]:
    """An atom for each request, and their sessions by the clock; a request without one is a session of one turn.

    The last token of a prompt is always computed, so at most L - 1 tokens of it count as cached.
    """
    count = log.time_s.size
    lone = log.session < 0
    session = np.where(lone, log.session.max(initial=-1) + 1 + np.arange(count), log.session)
    _, begins, number = np.unique(session, return_index=True, return_inverse=True)
    rank = np.empty(begins.size, dtype=np.int64)
    rank[np.argsort(begins, kind="stable")] = np.arange(begins.size)  # the log is in order of time
    order = np.argsort(rank[number], kind="stable")
    turns = np.bincount(rank[number], minlength=begins.size)
    atoms = Atoms(
        weight=np.full(count, 1.0 / count),
        prompt=log.prompt,
        cached=np.minimum(log.cached, log.prompt - 1.0),
        output=log.output,
        workload=np.zeros(count, dtype=np.intp),
    )
    first = np.concatenate([[0], np.cumsum(turns)])
    return atoms, Script(first, order, np.zeros(count), log.time_s[order])
