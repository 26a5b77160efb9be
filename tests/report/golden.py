"""Golden files: rendered output kept under tests/golden, rewritten with PDDPLAN_UPDATE_GOLDEN=1."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden"


def assert_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("PDDPLAN_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{name} is missing; PDDPLAN_UPDATE_GOLDEN=1 writes it"
    assert text == path.read_text(encoding="utf-8")
