"""Simulations and drills as text, JSON and pictures."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pddplan.errors import InputError
from pddplan.plan.drills import Addition, Drill
from pddplan.report.drills_text import render_drills
from pddplan.report.schemas import SCHEMAS
from pddplan.report.simulation_json import simulation_payload
from pddplan.report.simulation_plot import plot_simulation
from pddplan.report.simulation_text import render_simulation
from pddplan.simulate.records import Simulation
from tests.simulated import broken, overloaded, simulation

PLAN = [{"role": "prefill", "site": "north", "chip": "nvidia-h800-sxm", "instances": 3}]
DRILLS = (
    Drill("one prefill lost", 300.0, ("ttft_p50", "ttft_p99"), 360.0, 0.42, True, Addition({"prefill": 1}, 0, 32.0)),
    Drill("line at half", 300.0, ("line_utilization",), 1935.0, 1.0, False, Addition({}, 3, 6.9)),
    Drill("site north down", 300.0, ("all",), 1972.5, 1.0, False, None, "No more instances of this plan hold it."),
    Drill("hit rate 10 points down", math.inf, (), 0.0, 0.0, True, None),
)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("found", [simulation(), broken(), overloaded()], ids=["holds", "breaks", "overloaded"])
def test_text_keeps_to_its_width(width: int, found: Simulation) -> None:
    text = render_simulation(found, width) + "\n" + render_drills(DRILLS, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "nan" not in text.lower() and "inf" not in text.replace("infeasible", "")


def test_the_answer_comes_first() -> None:
    assert render_simulation(simulation(), 80).startswith("HOLDS  all 3 limits; nearest: TPOT p90")
    assert render_simulation(broken(), 80).startswith("BREAKS  TTFT p99 23.1 s, limit 20.0 s")


def test_overload_has_no_latency() -> None:
    text = render_simulation(overloaded(), 80)
    assert text.startswith("OVERLOADED  no steady state: grows by 1.70 requests/s at main decode; 20 % more")
    assert not re.search(r"TTFT|TPOT|E2E", text)


@pytest.mark.parametrize("found", [simulation(), broken(), overloaded()], ids=["holds", "breaks", "overloaded"])
def test_json_keeps_the_contract(found: Simulation) -> None:
    payload = simulation_payload(found, "agent", "0" * 64, PLAN, DRILLS)
    Draft202012Validator(SCHEMAS["simulation"]).validate(json.loads(json.dumps(payload, allow_nan=False)))
    assert payload["holds"] is (found.growth is None and found.quantiles[1].met)
    if found.growth is None:
        first = payload["quantiles"][0]
        assert (first["metric"], first["quantile"], first["stage"], first["analytic"]) == ("ttft", 0.5, "all", 2.07)
        assert first["low"] < first["simulated"] < first["high"]
    else:
        assert payload["quantiles"] == [] and payload["growth"]["stage"] == "main_decode"


def test_drills_say_what_to_paste() -> None:
    text = render_drills(DRILLS, 80)
    assert "spares: {prefill: 1}, $32.0/h" in text and "3 more lines of the tier, $6.90/h" in text
    assert "site north down: No more instances" in text and "hit rate 10 points down:" not in text


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
@pytest.mark.parametrize("found", [simulation(), overloaded()], ids=["holds", "overloaded"])
def test_pictures(tmp_path: Path, suffix: str, magic: bytes, found: Simulation) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (extra `plot`) isn't installed")
    path = tmp_path / f"simulation{suffix}"
    plot_simulation(found, "agent-64k", str(path))
    assert path.read_bytes().startswith(magic) and path.stat().st_size > 5_000


def test_pictures_that_cant_be() -> None:
    for path, says in (("run.txt", "can't draw .txt"), ("run", "without suffix"), ("/no/such/folder/a.png", "written")):
        with pytest.raises(InputError, match=says):
            plot_simulation(simulation(), "agent-64k", path)
