"""Binary heaps of requests by ``target``, one per decode instance, from which any request can be taken out."""

from __future__ import annotations

from pddplan.simulate.compiled import jit
from pddplan.simulate.world import World


@jit
def _swap(w: World, i: int, a: int, b: int) -> None:
    x, y = w.heap[i, a], w.heap[i, b]
    w.heap[i, a], w.heap[i, b] = y, x
    w.requests[y].position, w.requests[x].position = a, b


@jit
def _up(w: World, i: int, at: int) -> None:
    while at > 0:
        above = (at - 1) // 2
        if w.requests[w.heap[i, at]].target >= w.requests[w.heap[i, above]].target:
            break
        _swap(w, i, at, above)
        at = above


@jit
def _down(w: World, i: int, at: int, size: int) -> None:
    while True:
        least = at
        for child in (2 * at + 1, 2 * at + 2):
            if child < size and w.requests[w.heap[i, child]].target < w.requests[w.heap[i, least]].target:
                least = child
        if least == at:
            break
        _swap(w, i, at, least)
        at = least


@jit
def insert(w: World, i: int, r: int) -> None:
    """Request r into the batch of instance i; ``batch`` counts it."""
    at = w.instances[i].batch
    w.heap[i, at] = r
    w.requests[r].position = at
    w.instances[i].batch = at + 1
    _up(w, i, at)


@jit
def remove(w: World, i: int, r: int) -> None:
    """Request r out of the batch of instance i."""
    at, last = w.requests[r].position, w.instances[i].batch - 1
    w.instances[i].batch = last
    if at != last:
        moved = w.heap[i, last]
        _swap(w, i, at, last)
        _up(w, i, at)
        _down(w, i, w.requests[moved].position, last)
    w.requests[r].position = -1
