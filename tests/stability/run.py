"""``python -m tests.stability.run FOLDER [--write]``: docs/stability.md and its figure; FOLDER holds the sessions."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from pddplan.plan.drills import with_share
from pddplan.plan.solve import solve
from pddplan.plan.stability import LONGEST_S, Stability, stability
from pddplan.serve.evaluate import evaluate
from pddplan.spec.load import load_scenario
from tests.stability.sessions import main_agents, replayed
from tests.stability.trap import ABOVE_TOKENS, MANY, ONE, RATE, Array, Followed, followed, study

DOCS = Path(__file__).parents[2] / "docs"
PAGE, FIGURE, LOSSES = DOCS / "stability.md", DOCS / "stability.svg", DOCS / "line_loss.svg"
PLANS, POINTS = ("agent_64k", "910c_h20_metro"), 30
REQUESTS, BREAKS = 1_000_000, 300_000
TRAP, BOTH, ALONE = "#c2571a", "#1f5a99", "#8a8a8a"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stability.run", description=__doc__)
    parser.add_argument("folder", type=Path, help="with traces/kvct_requests_all.csv.gz")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    atoms, script = main_agents(asked.folder)
    roomy = followed(study(asked.folder, MANY), only=True, requests=REQUESTS)
    broken = followed(study(asked.folder, ONE), only=True, requests=BREAKS)
    both = followed(study(asked.folder, ONE), only=False, requests=REQUESTS)
    plans = [survival(name) for name in PLANS]
    alone = replayed(atoms, script, ABOVE_TOKENS, only=True)
    text = page(roomy, broken, both, alone, float((atoms.uncached > ABOVE_TOKENS).mean())) + survived(plans)
    print(text)
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")
        FIGURE.write_bytes(drawn(roomy, broken, both, alone))
        LOSSES.write_bytes(drawn_losses(plans[0]))


def page(roomy: Followed, broken: Followed, both: Followed, alone: float, above: float) -> str:
    grown = (broken.in_system[-1] - broken.in_system[len(broken.in_system) // 2]) / (
        broken.hours[-1] - broken.hours[len(broken.hours) // 2]
    )
    return TEXT.format(
        rate=RATE,
        above=100 * above,
        alone=100 * alone,
        kept=100 * roomy.kept,
        grown=grown,
        waiting=broken.waiting[-1],
        hours=broken.hours[-1],
        both=100 * both.kept,
        relayed=100 * both.relayed,
        held=100 * both.held,
        most=both.in_system[both.in_system.size // 2 :].max(),
    )


TEXT = """# When a relay is a trap

Written by `python -m tests.stability.run FOLDER --write`; the sessions are the main agents of
[kv-cache-tester](https://github.com/callanjfox/kv-cache-tester) (48,658 requests of 710 Claude Code sessions),
simulated on the sites of examples/agent_64k.yaml at {rate:g} requests/s.

"What would send more than 20,000 tokens over the line, the relay answers by itself" sounds harmless:
{above:.2f} % of the requests are so large. But then main decode doesn't get that turn's KV cache. The next turn
has to send it too, so it is above the limit again, and so are all that follow: the session is caught.

| | on the relay to the end |
|---|---|
| requests above the limit by themselves | {above:.2f} % |
| the sessions by themselves, no queue, no line | {alone:.1f} % |
| simulated, a relay with room for all of them | {kept:.1f} % |
| simulated, both routes end at main decode | {both:.1f} % |

![Requests kept on the relay, and requests in the system, over time](stability.svg)

A relay of the size that both routes need doesn't survive it: {grown:,.0f} requests an hour more are in the
system at the end of the run, {waiting:,.0f} wait for a slot after {hours:.1f} hours. With both routes, direct
or by the relay and then handed over, {relayed:.1f} % are relayed, main decode holds {held:.1f} % of the
prefixes that prefill has, and no more than {most:,.0f} requests are in the system. `pddplan` plans these two
routes only; its filter, which leaves a last turn on the relay, counts what a session then owes.
"""


def drawn(roomy: Followed, broken: Followed, both: Followed, alone: float, kind: str = "svg") -> bytes:
    """The figure."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "pddplan"
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _shares(left, roomy, both, alone)
    _numbers(right, broken, both)
    made = BytesIO()
    figure.savefig(made, format=kind, dpi=110, metadata={"Date": None} if kind == "svg" else None)
    return made.getvalue()


def _shares(axes: Any, roomy: Followed, both: Followed, alone: float) -> None:
    axes.set_title("Answered by the relay alone, % of requests", fontsize=10, loc="left")
    axes.axhline(100 * alone, color=ALONE, lw=1.2, ls="--", label=f"sessions by themselves: {100 * alone:.1f} %")
    axes.plot(roomy.kept_hours, 100 * roomy.kept_share, color=TRAP, label="relay alone above 20K tokens")
    axes.plot(both.kept_hours, 100 * both.kept_share, color=BOTH, label="both routes end at main decode")
    axes.set_ylim(-3, 100)
    axes.set_xlim(0, roomy.kept_hours[-1])
    axes.set_xlabel("hours")
    axes.legend(fontsize=8, loc="center right")
    axes.grid(alpha=0.25)


def _numbers(axes: Any, broken: Followed, both: Followed) -> None:
    axes.set_title("Requests in the system, one relay instance", fontsize=10, loc="left")
    shown = both.hours <= broken.hours[-1]
    axes.plot(broken.hours, broken.in_system, color=TRAP, label="relay alone above 20K tokens")
    axes.plot(both.hours[shown], both.in_system[shown], color=BOTH, label="both routes end at main decode")
    axes.set_xlim(0, broken.hours[-1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hours")
    axes.legend(fontsize=8, loc="upper left")
    axes.grid(alpha=0.25)


# ---------------------------------------------------------------- the most that a plan survives


@dataclass(frozen=True)
class Survival:
    """An example's plan: what it survives, and its loop gain as its line shrinks, (points,)."""

    name: str
    found: Stability
    lost: Array
    gain: Array


def survival(name: str) -> Survival:
    result = solve(load_scenario(DOCS.parent / "examples" / f"{name}.yaml"))
    assert result.solved is not None and result.evaluation is not None
    context, plan, routing = result.solved.context, result.solved.deployment, result.evaluation.routing
    found = stability(context, plan, routing)
    lost = np.linspace(0.0, found.limits[0].formula, POINTS)
    left = [with_share(plan.lines[0], 1.0 - share)(plan) for share in lost]
    gain = [evaluate(context, less, routing=routing).loop_gain for less in left if less is not None]
    return Survival(name, found, lost, np.array(gain))


def survived(plans: list[Survival]) -> str:
    rows = []
    for plan in plans:
        line, burst = plan.found.limits
        rows += [
            f"| {plan.name} | {plan.found.loop_gain:.3f} | line lost | {100 * line.formula:.1f} % | "
            f"{100 * line.survives:.1f} to {100 * line.breaks:.1f} % | {line.gives_out} |",
            f"| | | times the requests | {burst.formula:.3f} | {burst.survives:.3f} to {burst.breaks:.3f} | "
            f"{burst.gives_out} |",
        ]
    return SURVIVED + "\n".join(rows) + "\n\n" + LOSS.format(seconds=LONGEST_S)


SURVIVED = """
## The most that a plan survives

`pddplan simulate SCENARIO --drill` says what a plan survives if it lasts: how much of a line may be lost, and how
many more requests may come, before no steady state is left. The SLO is broken long before.

| plan | loop gain | | formula | simulation | then gives out |
|---|---|---|---|---|---|
"""
LOSS = """![Loop gain by share of the line lost](line_loss.svg)

Loop gain: by how much a small loss of hits at main decode comes back as a further loss, for what is missed is
sent, keeps the line busy and main decode's memory full. At 1 it doesn't die out any more, while the line still
has room. That is about small losses. A plan near the edge can also be thrown over by chance: some long
transfers in a row, answers that end before their KV cache has arrived, next turns that have to send all of it.
Near the edge the simulation's figure is therefore that of a run of {seconds:,.0f} s at most and of its seed; a
longer run may break earlier than the formula. Between the two figures it broke.
"""


def drawn_losses(plan: Survival, kind: str = "svg") -> bytes:
    """Loop gain over the share of the line that is lost, and where the simulation breaks."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "pddplan"
    figure = Figure(figsize=(6.5, 3.6), layout="constrained")
    axes = figure.subplots()
    line = plan.found.limits[0]
    axes.set_title(f"Loop gain of the plan of {plan.name} as its line shrinks", fontsize=10, loc="left")
    axes.axhline(1.0, color=ALONE, lw=1.0)
    axes.axvspan(100 * line.survives, 100 * line.breaks, color=BOTH, alpha=0.3, label="simulation: breaks in here")
    axes.axvline(100 * line.formula, color=TRAP, ls="--", label=f"formula: breaks at {100 * line.formula:.1f} %")
    axes.plot(100 * plan.lost, plan.gain, color=TRAP, label="loop gain, formula")
    axes.set_xlim(0, 100 * max(line.breaks, line.formula) * 1.15)
    axes.set_ylim(0, 1.15)
    axes.set_xlabel("share of the line lost, %")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0.01, 0.82))
    axes.grid(alpha=0.25)
    made = BytesIO()
    figure.savefig(made, format=kind, dpi=110, metadata={"Date": None} if kind == "svg" else None)
    return made.getvalue()


if __name__ == "__main__":
    main()
