"""For tests that simulate more than plain Python can in their time."""

from __future__ import annotations

import pytest

from pddplan.simulate.compiled import COMPILED

needs_numba = pytest.mark.skipif(not COMPILED, reason="numba (extra `fast`) isn't installed: the simulation is slow")
