"""Where other people's data lie, for the tests that use them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def reference_dir() -> Path:
    """Folder named by PDDPLAN_REFERENCE_DATA; skips the calling test where it is unset or absent."""
    name = os.environ.get("PDDPLAN_REFERENCE_DATA")
    if not name:
        pytest.skip("PDDPLAN_REFERENCE_DATA is not set: reference data are not part of this project")
    path = Path(name)
    if not path.is_dir():
        pytest.skip(f"PDDPLAN_REFERENCE_DATA names {name}, which is not a folder")
    return path
