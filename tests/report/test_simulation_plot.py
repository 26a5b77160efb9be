"""What a picture of a simulation says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pddplan.errors import InputError
from pddplan.report.simulation_plot import _either_way, check_plot, plot_simulation
from pddplan.simulate.records import Interval, Simulated, Simulation
from tests.simulated import overloaded, simulation

pytest.importorskip("matplotlib", reason="matplotlib (extra `plot`) isn't installed")


def by_workload() -> Simulation:
    """Limits, and so quantiles, of workloads only, as with examples/two_workloads.yaml."""
    rows = tuple(
        Simulated("ttft", q, "all", base, Interval(base, 0.9 * base, 1.1 * base), name, 2 * base)
        for name, base in (("chat", 1.0), ("agents", 3.0))
        for q in (0.5, 0.99)
    )
    return replace(simulation(), quantiles=rows)


def drawn(found: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The words of the SVG."""
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    plot_simulation(found, "agent-64k", str(tmp_path / "run.svg"))
    return (tmp_path / "run.svg").read_text()


def test_quantiles_of_workloads_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = drawn(by_workload(), tmp_path, monkeypatch)
    assert "no steady state" not in words
    for name in ("chat", "agents", "p50", "p99", "formula", "limit", "seconds", "requests", "hours"):
        assert f">{name}<" in words


def test_only_overload_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no steady state" in drawn(overloaded(), tmp_path, monkeypatch)
    assert "no steady state" not in drawn(replace(simulation(), quantiles=()), tmp_path, monkeypatch)


def test_checked_before_a_run(tmp_path: Path) -> None:
    for suffix in (".png", ".SVG", ".pdf"):
        check_plot(str(tmp_path / f"run{suffix}"))
    with pytest.raises(InputError, match="no such folder"):
        check_plot(str(tmp_path / "none" / "run.png"))


def test_an_interval_that_isnt_known_has_no_bar() -> None:
    assert _either_way(Interval(5.0, 4.5, 6.0)) == (0.5, 1.0)
    assert _either_way(Interval(5.0, 0.0, float("inf"))) == (0.0, 0.0)


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A folder stands where the picture should: it stays, and nothing is left beside it."""
    (tmp_path / "run.png").mkdir()
    with pytest.raises(InputError, match="can't be written"):
        plot_simulation(simulation(), "agent-64k", str(tmp_path / "run.png"))
    assert [path.name for path in tmp_path.iterdir()] == ["run.png"]
