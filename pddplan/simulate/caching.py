"""Main decode's cache of idle sessions: least recently used go first where running requests need the room."""

from __future__ import annotations

from pddplan.simulate.compiled import jit
from pddplan.simulate.world import Indices, World


@jit
def forget(w: World, free: Indices, d: int, z: int) -> None:
    """Session z's KV out of the cache; a session that nobody comes back to is gone for good."""
    older, newer = w.sessions[z].older, w.sessions[z].newer
    if older >= 0:
        w.sessions[older].newer = newer
    else:
        w.decodes[d].oldest = newer
    if newer >= 0:
        w.sessions[newer].older = older
    else:
        w.decodes[d].newest = older
    w.decodes[d].idle -= w.sessions[z].bytes
    w.sessions[z].idle = 0
    if w.sessions[z].lives == 0:
        w.sessions[z].turn = -1
        free.append(z)


@jit
def make_room(w: World, free: Indices, d: int) -> None:
    """Evicts until idle sessions fit beside what runs and what is under way."""
    room = w.decodes[d].memory + w.decodes[d].tier - w.decodes[d].running - w.decodes[d].under_way
    while w.decodes[d].oldest >= 0 and w.decodes[d].idle > room:
        forget(w, free, d, w.decodes[d].oldest)
    if w.decodes[d].oldest < 0:
        w.decodes[d].idle = 0.0


@jit
def keep(w: World, free: Indices, d: int, z: int, size: float) -> None:
    """Session z's KV becomes the youngest in the cache."""
    w.sessions[z].bytes = size
    w.sessions[z].pool = d
    w.sessions[z].idle = 1
    w.sessions[z].older, w.sessions[z].newer = w.decodes[d].newest, -1
    if w.decodes[d].newest >= 0:
        w.sessions[w.decodes[d].newest].newer = z
    else:
        w.decodes[d].oldest = z
    w.decodes[d].newest = z
    w.decodes[d].idle += size
    make_room(w, free, d)


@jit
def clear(w: World, free: Indices, d: int) -> None:
    """Everything out."""
    while w.decodes[d].oldest >= 0:
        forget(w, free, d, w.decodes[d].oldest)
    w.decodes[d].idle = 0.0
