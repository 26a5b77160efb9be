"""Property tests draw the same cases in every run, so that a change alone turns them red; PDDPLAN_NEW_CASES=1 draws
others. They have no deadline: the first call of an example reads a card, on a machine that may be busy."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same_cases", deadline=None, derandomize=not os.environ.get("PDDPLAN_NEW_CASES"))
settings.load_profile("same_cases")
