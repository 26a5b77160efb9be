"""Imports point downward only, and help stays quick: heavy packages are imported late."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pddplan"
# Lowest first. Modules of the root (units, errors) lie below all; __init__ and __main__ above all.
ORDER = (
    "spec",
    "traces",
    "llm",
    "perf",
    "serve",
    "estimate",
    "accuracy",
    "economics",
    "simulate",
    "plan",
    "report",
    "cli",
)
BELOW_ALL = ("units", "errors")
ABOVE_ALL = ("__init__", "__main__")
# The root package is imported by anyone for its version; what it loads, it loads on demand.
ROOT = "pddplan"
HEAVY = ("highspy", "numpy", "scipy", "pydantic", "rich", "yaml")


def layer_of(module: str) -> str:
    """``pddplan.plan.solve`` -> "plan"; "" for the root itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def rank(layer: str) -> int:
    if layer in BELOW_ALL:
        return -1
    if layer in ABOVE_ALL or layer == "":
        return len(ORDER)
    return ORDER.index(layer)


def imported_modules(source: str) -> Iterator[str]:
    """Every import of the file, at the top, inside a function or for types only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which layer is meant"
            assert node.module is not None
            yield node.module
            if node.module == ROOT:
                yield from (f"{ROOT}.{alias.name}" for alias in node.names if (PACKAGE / alias.name).is_dir())


def upward_imports(path: Path, source: str) -> list[str]:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return [
        f"{path.name} of {own} imports {module}"
        for module in imported_modules(source)
        if module.split(".")[0] == ROOT and module != ROOT and rank(layer_of(module)) > rank(own)
    ]


def test_imports_point_downward() -> None:
    found = [line for path in sorted(PACKAGE.rglob("*.py")) for line in upward_imports(path, path.read_text())]
    assert found == []


def test_an_upward_import_is_found() -> None:
    path = PACKAGE / "llm" / "kv.py"
    assert upward_imports(path, "def f():\n    from pddplan.plan.solve import solve\n") != []
    assert upward_imports(path, "import pddplan.spec.types\nfrom pddplan.units import GB\n") == []


def test_every_folder_is_a_known_layer() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert folders == set(ORDER)


@pytest.mark.parametrize("statement", ["import pddplan", "import pddplan.cli.main"])
def test_help_needs_no_heavy_package(statement: str) -> None:
    code = f"import sys; {statement}; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert out.stdout.strip() == "[]"


UNUSED = [
    "pddplan.cli.compare",
    "pddplan.perf.measured",
    "pddplan.plan.goodput",
    "pddplan.plan.infeasible",
    "pddplan.plan.network_search",
    "pddplan.plan.profit",
    "pddplan.plan.runner_ups",
    "pddplan.serve.aggregated",
    "pddplan.serve.network",
    "pddplan.spec.problems",
    "scipy.linalg",
    "scipy.optimize",
]
SOLVE = """
import sys
from pddplan.cli.main import main
sys.stdout = sys.stderr
main(["solve", "examples/agent_64k.yaml", "--json"])
sys.stdout = sys.__stdout__
"""


def test_solve_loads_only_what_its_answer_needs() -> None:
    code = f"{SOLVE}print([m for m in {UNUSED!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert out.stdout.strip() == "[]"
    assert '"status": "feasible"' in out.stderr
