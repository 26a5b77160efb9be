"""A relay that keeps what it gets is a trap, on real sessions; it is none where main decode gets everybody."""

from __future__ import annotations

import numpy as np
import pytest

from pddplan.serve.traffic import Atoms
from pddplan.simulate.records import Script
from tests.compiled import needs_numba
from tests.reference import reference_dir
from tests.stability.sessions import main_agents, replayed
from tests.stability.trap import ABOVE_TOKENS, MANY, ONE, followed, study, study_of

REQUESTS, NOISE = 20_000, 0.02


def test_sessions_by_themselves() -> None:
    """2.95 % of the requests are above 20,000 tokens by themselves; kept on the relay they make 84 to 85 % of all."""
    atoms, script = main_agents(reference_dir())
    assert (atoms.weight.size, script.first.size - 1) == (48_658, 710)
    assert float((atoms.uncached > ABOVE_TOKENS).mean()) == pytest.approx(0.0295, abs=5e-5)
    assert 0.84 <= replayed(atoms, script, ABOVE_TOKENS, only=True) <= 0.85
    assert replayed(atoms, script, ABOVE_TOKENS, only=False) == 0.0


@needs_numba
def test_a_session_by_hand() -> None:
    """Turns that add 10K, 30K, 5K, 15K tokens and answers of 1K: the second stays, what it owes keeps the others."""
    prompt, new = np.array([10e3, 41e3, 47e3, 63e3]), np.array([10e3, 30e3, 5e3, 15e3])
    atoms = Atoms(np.full(4, 0.25), prompt, prompt - new, np.full(4, 1e3), np.zeros(4, dtype=np.intp))
    script = Script(np.array([0, 4]), np.arange(4), np.full(4, 60.0))
    assert replayed(atoms, script, ABOVE_TOKENS, only=True) == 0.75
    made = study_of(atoms, script, MANY)
    for only, kept, relayed in ((True, 0.75, 0.0), (False, 0.0, 0.25)):
        found = followed(made, only, requests=REQUESTS)
        assert (found.kept, found.relayed) == (pytest.approx(kept, abs=NOISE), pytest.approx(relayed, abs=NOISE))


@needs_numba
def test_the_trap_fills_a_relay_that_has_room() -> None:
    """The same share as of the sessions by themselves, within what the draw of sessions leaves open."""
    made = study(reference_dir(), MANY)
    found = followed(made, only=True, requests=300_000)
    atoms, script = main_agents(reference_dir())
    expected = replayed(atoms, script, ABOVE_TOKENS, only=True)
    print(f"kept {found.kept:.3f}, sessions alone {expected:.3f}")
    assert found.kept == pytest.approx(expected, abs=0.02)
    assert found.relayed == 0.0 and not found.grows


@needs_numba
def test_the_trap_breaks_a_relay_of_the_size_that_both_routes_need() -> None:
    made = study(reference_dir(), ONE)
    trapped = followed(made, only=True, requests=100_000)
    both = followed(made, only=False, requests=100_000)
    assert trapped.grows and trapped.waiting[-1] > 1000
    assert not both.grows and both.waiting.max() == 0.0


@needs_numba
def test_both_routes_keep_nobody() -> None:
    made = study(reference_dir(), ONE)
    found = followed(made, only=False, requests=200_000)
    assert found.kept == 0.0
    assert found.relayed == pytest.approx(0.0295, abs=0.004)  # those above the limit by themselves
    assert found.held > 0.995
