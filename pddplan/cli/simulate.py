"""``pddplan simulate``: a plan event by event, beside what the formulas say of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pddplan.cli.options import Json, Overrides, Quiet, ScenarioFile, Version, quiet_of
from pddplan.cli.output import emit, emit_json, note, text_width
from pddplan.errors import InputError, Problem

if TYPE_CHECKING:
    from pddplan.plan.drills import Drill
    from pddplan.plan.simulated import SimulatedPlan
    from pddplan.plan.stability import Stability
    from pddplan.simulate.records import Asked, Simulation
    from pddplan.spec.types import Scenario

COMMAND = "pddplan simulate"
LEAST, MOST = 1_000, 20_000_000
_COUNT = re.compile(r"([0-9]{1,12})(\.[0-9]{1,6})?([kKmM]?)")
NO_DRILLS = "Drills are of split plans: this one is aggregated."
_TIMES = {"": 1, "k": 1_000, "m": 1_000_000}


def register(app: typer.Typer) -> None:
    app.command(
        "simulate",
        short_help="A plan event by event: do the formulas hold in the tail, and what if something breaks.",
        epilog="Example: pddplan simulate scenario.yaml --requests 1M --plot simulation.png",
    )(simulate)


def simulate(
    context: typer.Context,
    scenario: ScenarioFile = None,
    overrides: Overrides = None,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="FILE", help="Of this plan, as `solve -o` wrote it.")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="On the requests of this log, at their own times: see below."),
    ] = None,
    requests: Annotated[
        str, typer.Option("--requests", metavar="N", help="To answer, as 200000, 200k or 1M.")
    ] = "200k",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")] = 1,
    drill: Annotated[
        bool, typer.Option("--drill", help="Break one thing after the other: what would hold it, how much is survived.")
    ] = False,
    as_json: Json = False,
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """Simulate a plan, solved or given, request by request, and compare with the formulas.

    A log is a CSV with the columns timestamp (seconds), input_tokens, output_tokens, cached_tokens and, where requests
    belong to some, session.

    Exit code 0: it ran, whatever it found; 1: there is no plan; 2: bad input.
    """
    from pddplan.cli.scenario import read_scenario, required_path
    from pddplan.simulate.records import Asked

    quiet = quiet_of(context, quiet)
    if trace is not None and drill:
        raise InputError(Problem("--drill and --trace don't go together.", file=COMMAND, fix="Leave one of them out."))
    count = _requests(requests)
    if plot is not None:
        from pddplan.report.simulation_plot import check_plot

        check_plot(plot)
    loaded, _ = read_scenario(required_path(scenario, "simulate"), list(overrides or ()))
    tell_speed(quiet or as_json)
    found = _run(loaded, plan, trace, Asked(count, seed), quiet or as_json)
    warnings = _warnings(loaded, found, drill)
    for warning in warnings:
        note(f"note: {warning}", quiet=quiet or as_json)
    if found.simulation is None:
        _no_plan(loaded, found, as_json)
        raise typer.Exit(1)
    drills: tuple[Drill, ...] = ()
    survives: Stability | None = None
    if drill and not _aggregated(found):
        drills, survives = _drills(found, seed, quiet or as_json)
    if plot is not None:
        from pddplan.report.simulation_plot import plot_simulation

        plot_simulation(found.simulation, f"{loaded.name}: {_words(found)}", plot)
    if as_json:
        emit_json(_payload(loaded, found, drills, warnings, survives))
        return
    _print(found.simulation, drills, survives)


def _print(found: Simulation, drills: tuple[Drill, ...], survives: Stability | None) -> None:
    from pddplan.report.drills_text import render_drills, render_stability
    from pddplan.report.simulation_text import render_simulation

    emit(render_simulation(found, text_width()))
    if survives is not None:
        emit("\n" + render_drills(drills, text_width()))
        emit("\n" + render_stability(survives, text_width()))


def _requests(text: str) -> int:
    """A number of requests. Raises InputError."""
    match = _COUNT.fullmatch(text.strip())
    value = 0.0
    if match is not None:
        value = float(match[1] + (match[2] or "")) * _TIMES[match[3].lower()]
    if not LEAST <= value <= MOST:
        fix = f"A number from {LEAST:,} to {MOST:,}, as 200000, 200k or 1M."
        raise InputError(Problem(f"--requests {text!r} is none that can be simulated.", file=COMMAND, fix=fix))
    return round(value)


def tell_speed(quiet: bool) -> None:
    """What a first run, and one without numba, should know."""
    from pddplan.simulate.compiled import COMPILED, is_cached

    if not COMPILED:
        note(
            "note: without numba a request takes 2 ms, not 9 us. Install it with: "
            "python3 -m pip install 'pddplan[fast]'",
            quiet=quiet,
        )
    elif not is_cached():
        note("note: the simulation is compiled once, which takes one or two minutes.", quiet=quiet)


def _run(scenario: Scenario, plan: str | None, trace: str | None, asked: Asked, quiet: bool) -> SimulatedPlan:
    from pddplan.cli.progress import ProgressBar
    from pddplan.plan.simulated import simulate_plan

    with ProgressBar("Simulating", quiet=quiet) as bar:
        return simulate_plan(scenario, asked, plan, bar.share, trace)


def _drills(found: SimulatedPlan, seed: int, quiet: bool) -> tuple[tuple[Drill, ...], Stability]:
    from pddplan.cli.progress import ProgressBar
    from pddplan.plan.drills import run_drills
    from pddplan.plan.stability import stability

    assert found.solved is not None and found.evaluation is not None
    plan, routing = (found.solved.context, found.solved.deployment), found.evaluation.routing
    with ProgressBar("Drills", quiet=quiet) as bar:
        drills = run_drills(*plan, routing, seed, lambda share, text: bar(text))
        return drills, stability(*plan, routing, seed, lambda share, text: bar(text))


def _warnings(scenario: Scenario, found: SimulatedPlan, drill: bool) -> tuple[str, ...]:
    """Of the file and of the plan, each once, and drills that can't be."""
    of_plan = found.result.warnings if found.result is not None else ()
    of_drills = (NO_DRILLS,) if drill and _aggregated(found) else ()
    return tuple(dict.fromkeys((*scenario.warnings, *of_plan, *of_drills)))


def _aggregated(found: SimulatedPlan) -> bool:
    return found.solved is not None and any(pool.role == "aggregated" for pool in found.solved.deployment.pools)


def _no_plan(scenario: Scenario, found: SimulatedPlan, as_json: bool) -> None:
    """What ``solve`` says where nothing holds."""
    assert found.result is not None
    if as_json:
        from pddplan.report.plan_json import plan_payload

        emit_json(plan_payload(found.result))
        return
    from pddplan.cli.solve import print_plan

    print_plan(scenario, found.result, explain=False)


def _pools(found: SimulatedPlan) -> list[dict[str, Any]]:
    assert found.solved is not None
    return [
        {"role": pool.role, "site": pool.site.name, "chip": pool.offer.chip.id, "instances": pool.instances}
        for pool in found.solved.deployment.pools
    ]


def _words(found: SimulatedPlan) -> str:
    """ "3 prefill, 1 relay decode, 4 main decode"."""
    return ", ".join(f"{pool['instances']} {pool['role'].replace('_', ' ')}" for pool in _pools(found))


def _payload(
    scenario: Scenario,
    found: SimulatedPlan,
    drills: tuple[Drill, ...],
    warnings: tuple[str, ...],
    survives: Stability | None,
) -> dict[str, Any]:
    from pddplan.report.simulation_json import simulation_payload

    assert found.simulation is not None
    return simulation_payload(
        found.simulation,
        scenario.name,
        scenario.sha256,
        _pools(found),
        drills,
        found.result,
        warnings,
        survives,
    )
