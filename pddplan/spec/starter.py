"""The scenario that ``pddplan init`` writes: the smallest example, comments and all."""

from __future__ import annotations

from pddplan.spec.catalogue import examples_dir

STARTER = "agent_64k.yaml"


def starter_text() -> str:
    """Text of the commented starter scenario."""
    return (examples_dir() / STARTER).read_text(encoding="utf-8")
