"""Relay decode: which requests it takes, how many tokens it emits, how many slots it needs; the filter's books.

Symbols: n output tokens, T_exp exposed transfer time [s], T_handoff time of the hand-over [s], tau time per output
token on the relay [s], lambda request rate [1/s], w weight of an atom (sums to 1 over all atoms, relayed or not).
Sums run over the last axis.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pddplan.serve.discretize import Floats, as_floats


def relay_probability(exposed_s: ArrayLike, threshold_s: ArrayLike, sigma: float = 0.0) -> Floats:
    """Probability that the router relays a request, ``Phi(ln(T_exp/theta)/sigma)``.

    The router sees T_exp times a log-normal error of ``sigma``; with sigma 0 it relays iff ``T_exp > theta``.
    """
    time, limit = np.broadcast_arrays(as_floats(exposed_s), as_floats(threshold_s))
    if sigma <= 0:
        return np.asarray(time > limit, dtype=np.float64)
    from scipy.special import ndtr

    usual = (time > 0) & (limit > 0)
    ratio = np.log(np.where(usual, time, 1.0) / np.where(usual, limit, 1.0))
    return np.where(usual, ndtr(ratio / sigma), np.where(time > limit, 1.0, 0.0))


def eager_tokens(output_tokens: ArrayLike, exposed_s: ArrayLike, handoff_s: ArrayLike, tpot_s: ArrayLike) -> Floats:
    """Tokens the relay emits before main decode goes on, ``e = min(n, ceil((T_exp + T_handoff)/tau))``.

    Broadcasts. A quotient that is whole up to rounding isn't raised by one.
    """
    quotient = (as_floats(exposed_s) + as_floats(handoff_s)) / as_floats(tpot_s)
    return np.minimum(as_floats(output_tokens), np.ceil(np.maximum(quotient, 0.0) * (1.0 - 1e-12)))


def relay_hold_s(output_tokens: ArrayLike, exposed_s: ArrayLike, handoff_s: ArrayLike, tpot_s: ArrayLike) -> Floats:
    """Time a request keeps its relay slot, ``min(n·tau, T_exp + T_handoff)`` [s]. Broadcasts."""
    return np.minimum(as_floats(output_tokens) * as_floats(tpot_s), as_floats(exposed_s) + as_floats(handoff_s))


def relay_slots(
    rate: ArrayLike,
    weights: ArrayLike,
    output_tokens: ArrayLike,
    exposed_s: ArrayLike,
    handoff_s: ArrayLike,
    tpot_s: ArrayLike,
) -> Floats:
    """Mean relay slots in use, ``a_R = lambda Σ w·min(n·tau, T_exp + T_handoff)`` over relayed atoms.

    ``weights`` of atoms that aren't relayed are 0. Independent of tau while every output outlasts its transfer.
    Little's law: no assumption on the laws. Shape (…, atoms) -> (…).
    """
    hold = relay_hold_s(output_tokens, exposed_s, handoff_s, tpot_s)
    return np.asarray(as_floats(rate) * np.sum(as_floats(weights) * hold, axis=-1), dtype=np.float64)


def relay_token_share(weights: ArrayLike, relayed: ArrayLike, output_tokens: ArrayLike, eager: ArrayLike) -> Floats:
    """Share of all output tokens that the relay emits, ``Σ w·relayed·min(n, e)/Σ w·n``, in [0, 1].

    ``relayed`` is 0/1 or the probability of ``relay_probability``. Shape (…, atoms) -> (…). 0 without output.
    """
    mass, tokens = np.broadcast_arrays(as_floats(weights), as_floats(output_tokens))
    done = np.sum(mass * as_floats(relayed) * np.minimum(tokens, as_floats(eager)), axis=-1)
    total = np.sum(mass * tokens, axis=-1)
    return np.where(total > 0, done / np.where(total > 0, total, 1.0), 0.0)


# ------------------------------------------------------------------------------------------------ the filter


def finishes_on_relay(
    output_tokens: ArrayLike, exposed_s: ArrayLike, handoff_s: ArrayLike, tpot_s: ArrayLike
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether the last token is out before the hand-over would be done, ``n·tau <= T_exp + T_handoff``. Broadcasts."""
    return np.asarray(as_floats(output_tokens) * as_floats(tpot_s) <= as_floats(exposed_s) + as_floats(handoff_s))


def filtered_weights(weights: ArrayLike, finishes: ArrayLike, precision: float = 1.0, recall: float = 1.0) -> Floats:
    """Weight of each atom that the filter takes, given what its forecast of the output is worth.

    Of the atoms that do finish on the relay it takes ``recall``; beside each true one ``(1 - precision)/precision``
    false ones, spread over the others by weight (at most all of them). Needs 0 < precision <= 1, 0 <= recall <= 1.
    """
    mass, done = np.broadcast_arrays(as_floats(weights), np.asarray(finishes, dtype=bool))
    right = np.where(done, mass * recall, 0.0)
    others = np.where(done, 0.0, mass)
    room = np.sum(others, axis=-1, keepdims=True)
    wrong = np.sum(right, axis=-1, keepdims=True) * (1.0 - precision) / precision
    share = np.where(room > 0, np.minimum(wrong / np.where(room > 0, room, 1.0), 1.0), 0.0)
    return np.asarray(right + others * share, dtype=np.float64)


def next_delta_tokens(
    next_prompt: ArrayLike, next_new: ArrayLike, unsent: ArrayLike, output_tokens: ArrayLike
) -> Floats:
    """Tokens the next turn must send when this one was filtered, ``min(L', delta' + unsent + n)``.

    L' its prompt, delta' what it would send anyway, ``unsent`` what this turn kept back, n what this turn generated at
    the relay's site (main decode lacks those as well). Broadcasts.
    """
    return np.minimum(as_floats(next_prompt), as_floats(next_new) + as_floats(unsent) + as_floats(output_tokens))


def owed_tokens(next_prompt: ArrayLike, next_new: ArrayLike, unsent: ArrayLike, output_tokens: ArrayLike) -> Floats:
    """Tokens that filtering adds to the next turn's transfer, ``min(L', delta' + unsent + n) - min(L', delta')``."""
    usual = np.minimum(as_floats(next_prompt), as_floats(next_new))
    return next_delta_tokens(next_prompt, next_new, unsent, output_tokens) - usual


def last_turn_probability(turns: ArrayLike) -> Floats:
    """Probability that a turn is its session's last, ``1/turns``, for sessions of geometric length."""
    return np.asarray(1.0 / np.maximum(as_floats(turns), 1.0), dtype=np.float64)


def owed_bytes(owed_kv_bytes: ArrayLike, last_turn: ArrayLike, evicted: ArrayLike = 0.0) -> Floats:
    """Expected bytes a filtered request still puts on the line later, ``(1 - p_last)(1 - p_evicted)·owed`` [bytes].

    ``owed_kv_bytes``: KV of ``owed_tokens``; ``evicted``: probability that the session would have found nothing at
    main decode by then anyway, so that the debt changes nothing.
    """
    return np.asarray(
        (1.0 - as_floats(last_turn)) * (1.0 - as_floats(evicted)) * as_floats(owed_kv_bytes), dtype=np.float64
    )


def saved_bytes(
    unsent_bytes: ArrayLike, owed_kv_bytes: ArrayLike, last_turn: ArrayLike, evicted: ArrayLike = 0.0
) -> Floats:
    """Expected line bytes the filter saves on a request, ``unsent - owed`` [bytes].

    Negative where the generated tokens, which main decode would have had for nothing, outweigh the chance that nobody
    comes back: filter only where this is positive.
    """
    return np.asarray(as_floats(unsent_bytes) - owed_bytes(owed_kv_bytes, last_turn, evicted), dtype=np.float64)
