"""A log replayed: its requests at its times, turns after the answers before them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from pddplan.plan.simulated import lanes_of
from pddplan.plan.solve import cheapest, prepare
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment
from pddplan.serve.evaluate import evaluate
from pddplan.simulate import world as wd
from pddplan.simulate.build import turns_of
from pddplan.simulate.records import Asked, Change
from pddplan.simulate.replay import first_of, script_of
from pddplan.simulate.run import Run, simulate_lanes
from pddplan.spec.load import load_scenario_text
from pddplan.traces.requests import RequestLog
from tests.compiled import needs_numba

SMALL = """
name: replayed
model: llama-3.1-8b
workload: {request_rate_per_s: 2, prompt_tokens: 4096, output_tokens: 128, prefix_hit_rate: 0.5}
sites:
  - {name: north, roles: [prefill], chips: [{chip: nvidia-h100-sxm, max: 8, usd_per_hour: 2}]}
  - {name: west, roles: [main_decode], chips: [{chip: nvidia-h20-96g, max: 8, usd_per_hour: 1}]}
links: [{between: [north, west], rtt_ms: 5, tiers: [{gbit_per_s: 100, usd_per_hour: 10}]}]
slo: {ttft_s: {p90: 5}, tpot_ms: {p90: 50}}
"""


def log_of(time_s: list[float], session: list[int]) -> RequestLog:
    count = len(time_s)
    tokens = np.arange(count, dtype=float)
    return RequestLog(np.array(time_s), 1000 + tokens, 10 + tokens, tokens, np.array(session), 0)


def test_sessions_in_the_order_in_which_they_begin() -> None:
    """Session 5 begins before 2; lone requests stand by themselves."""
    atoms, script = script_of(log_of([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [5, -1, 2, 5, -1, 2]))
    assert script.first.tolist() == [0, 2, 3, 5, 6]
    assert script.atom.tolist() == [0, 3, 1, 2, 5, 4]
    assert script.at_s is not None and script.at_s.tolist() == [0.0, 3.0, 1.0, 2.0, 5.0, 4.0]
    assert atoms.output.tolist() == [10, 11, 12, 13, 14, 15] and atoms.weight.sum() == pytest.approx(1.0)
    first, turns, starts = turns_of(script)
    assert starts.tolist() == [0.0, 1.0, 2.0, 4.0] and turns["kind"].tolist() == script.atom.tolist()
    assert first.tolist() == script.first.tolist()


def test_all_of_a_prompt_cached() -> None:
    """The last token is computed."""
    log = replace(log_of([0.0, 1.0], [-1, -1]), cached=np.array([1000.0, 1001.0]))
    assert script_of(log)[0].uncached.tolist() == [1.0, 1.0]


def test_the_first_requests() -> None:
    part = first_of(log_of([0.0, 1.0, 2.0], [-1, 0, 0]), 2)
    assert (part.time_s.tolist(), part.session.tolist()) == ([0.0, 1.0], [-1, 0])
    assert first_of(part, 10).time_s.size == 2


@lru_cache(1)
def plan() -> tuple[Context, Deployment]:
    context = prepare(load_scenario_text(SMALL))
    best = cheapest(context).best
    assert best is not None and isinstance(best.deployment, Deployment)
    return context, best.deployment


def replayed(log: RequestLog, asked: int = 10**6) -> Run:
    context, deployment = plan()
    atoms, script = script_of(log)
    made = context.with_atoms(atoms).at_rate(log.rate_rps)
    lanes = lanes_of(made, deployment, evaluate(made, deployment).routing)
    return simulate_lanes(made, lanes, Asked(asked), script=script)


def poisson(count: int, rate: float, session: np.ndarray) -> RequestLog:
    rng = np.random.default_rng(7)
    time = np.cumsum(rng.exponential(size=count)) / rate
    return RequestLog(
        time - time[0], np.full(count, 4096.0), rng.integers(64, 192, count) * 1.0, np.full(count, 2048.0), session, 0
    )


@needs_numba
def test_every_request_once() -> None:
    """As many tokens as the log has, Little's law, and the last answer after the last request."""
    log = poisson(3000, 2.0, np.full(3000, -1))
    run = replayed(log)
    assert run.world.total[wd.COUNT] == 3000
    assert run.world.batch_sums[:, wd.BATCH_TOKENS].sum() == pytest.approx(log.output.sum())
    assert log.time_s[-1] < run.world.now[wd.SEEN_AT] < log.time_s[-1] + 60
    assert run.world.total[wd.AREA] == pytest.approx(run.world.total[wd.SPENT], rel=1e-9)
    half = replayed(log, 1500)
    assert half.world.total[wd.COUNT] == 1500


@needs_numba
def test_a_turn_waits_for_the_answer_before_it() -> None:
    """All requests of one session asked at once come one after the other."""
    count = 1000
    log = replace(poisson(count, 2.0, np.zeros(count, dtype=int)), time_s=np.linspace(0.0, 1e-3, count))
    context, deployment = plan()
    atoms, script = script_of(log)
    made = context.with_atoms(atoms).at_rate(0.5)
    run = simulate_lanes(
        made, lanes_of(made, deployment, evaluate(made, deployment).routing), Asked(10**6), script=script
    )
    assert run.world.total[wd.COUNT] == count
    assert run.world.series[:, wd.NUMBER].max() == 1.0


def test_a_log_has_its_own_rate() -> None:
    context, deployment = plan()
    atoms, script = script_of(poisson(50, 2.0, np.full(50, -1)))
    made = context.with_atoms(atoms)
    lanes = lanes_of(made, deployment, evaluate(made, deployment).routing)
    with pytest.raises(ValueError, match="rate"):
        simulate_lanes(made, lanes, Asked(100, changes=(Change(1.0, "rate", 2.0),)), script=script)
