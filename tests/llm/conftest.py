"""Property tests have no deadline: the first call of an example reads a card, on a machine that may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
