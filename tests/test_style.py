"""Habits that no linter holds: short modules and functions, no escape hatches, one version, a whole README."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pddplan

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "pddplan").rglob("*.py"))
MOST_LINES_OF_A_MODULE = 400
MOST_LINES_OF_A_FUNCTION = 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_modules_are_short() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES_OF_A_MODULE} == {}


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    docstring = node.body[0] if ast.get_docstring(node) is not None else None
    spent = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
    return (node.end_lineno or 0) - node.lineno + 1 - spent


def long_functions(path: Path) -> dict[str, int]:
    nodes = ast.walk(ast.parse(path.read_text()))
    sizes = {n.name: body_lines(n) for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {f"{name_of(path)}: {name}": size for name, size in sizes.items() if size > MOST_LINES_OF_A_FUNCTION}


def test_functions_are_short() -> None:
    assert {name: size for path in MODULES for name, size in long_functions(path).items()} == {}


def test_modules_say_what_they_are() -> None:
    assert [name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_no_escape_hatches() -> None:
    found = [p for p in MODULES if re.search(r"#\s*(TODO|FIXME|XXX)|NotImplementedError", p.read_text())]
    assert [name_of(path) for path in found] == []


def broad_handlers(source: str) -> int:
    """``except:``, ``except Exception`` and ``except BaseException``."""
    handlers = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ExceptHandler)]
    return sum(
        h.type is None or (isinstance(h.type, ast.Name) and h.type.id in ("Exception", "BaseException"))
        for h in handlers
    )


def test_one_place_catches_everything() -> None:
    """The boundary of the command line; anywhere else it would hide a mistake."""
    found = {name_of(p): n for p in MODULES if (n := broad_handlers(p.read_text()))}
    assert found == {"pddplan/cli/main.py": 1}


def test_readme_has_the_two_lines() -> None:
    """Word for word as a user runs them; .ci/run does."""
    start = (
        'python3 -c "import ensurepip" 2>/dev/null || { $(command -v sudo) apt-get update && '
        "$(command -v sudo) apt-get install -y python3-venv; }; python3 -m venv .venv && .venv/bin/pip install "
    )
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("python3 -c")]
    assert lines == [
        start + ". && .venv/bin/pddplan solve examples/agent_64k.yaml",
        start + '".[dev]" && .venv/bin/pytest',
    ]


def test_the_top_level_is_what_it_should_be() -> None:
    """A clone has these entries, dot files aside; what tools leave behind is ignored by git."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if not line.startswith("#")}
    entries = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")} - ignored
    expected = {
        "pddplan",
        "hardware",
        "examples",
        "docs",
        "tests",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
    }
    assert {e for e in entries if not e.endswith(".egg-info")} == {*expected, "pyproject.toml"}


def test_dependencies_have_lower_bounds_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert [d for d in named if not re.fullmatch(r"[A-Za-z0-9_-]+>=[0-9.]+", d)] == []


def test_changelog_names_the_version() -> None:
    assert f"## {pddplan.__version__}" in (ROOT / "CHANGELOG.md").read_text()
