"""``pddplan calibrate``: factors fitted to a user's own measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pddplan.cli.completion import chip_names, measurement_files, model_names
from pddplan.cli.options import Json, Quiet, Version, quiet_of
from pddplan.cli.output import emit, emit_json, note, text_width, write_atomically
from pddplan.cli.progress import ProgressBar

if TYPE_CHECKING:
    from pddplan.accuracy.calibrate import Calibrated

NOT_WRITTEN = 1
_OF_RESULT = "where the files don't say it"
Layout = Annotated[int | None, typer.Option(metavar="N", min=1, help=f"Of an instance, {_OF_RESULT}.")]


def register(app: typer.Typer) -> None:
    app.command(
        "calibrate",
        short_help="Fit the model to your own measurements; a scenario then names the file.",
        epilog="Example: pddplan calibrate bench/*.json --chip h200 --tp 8 -o calibration.yaml",
    )(calibrate)


def calibrate(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Measurements, or - for standard input.", autocompletion=measurement_files
        ),
    ],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the factors here (YAML).")
    ] = None,
    chip: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"The chip, {_OF_RESULT}.", autocompletion=chip_names)
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"The model, {_OF_RESULT}.", autocompletion=model_names)
    ] = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help=f"vllm, sglang or trtllm, {_OF_RESULT}.")] = None,
    weights: Annotated[str | None, typer.Option(metavar="FORMAT", help="Format of the weights, likewise.")] = None,
    kv_cache: Annotated[str | None, typer.Option(metavar="FORMAT", help="Format of the KV cache, likewise.")] = None,
    tp: Layout = None,
    pp: Layout = None,
    dp: Layout = None,
    ep: Layout = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="COLUMN=VALUE", help="Any other column of validate's tables. Repeatable."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write even where rows held out got no better.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """Fit few named factors to measured serving, and say what that gains on rows that the fit had not seen.

    Files: tables as validate reads them, results of vllm bench serve and sglang.bench_serving, InferenceX rows, the
    profile.json of AMD Infera's planner. What a file doesn't say (a benchmark knows no chip) comes from options.

    Per chip: compute, memory, communication, on its efficiency curves. Per engine: step_overhead_ms,
    request_overhead_us, first_output_ms, prompt_factor, handoff_ms. All are drawn to the shipped values; those that
    the rows don't determine stay there. Measurements that no chip could reach are refused.

    Exit code 1: -o was given and nothing was written, since rows held out got no better.
    """
    from pddplan.accuracy.calibrate import calibrate as fit
    from pddplan.accuracy.files import read_file, stated_columns
    from pddplan.report.calibration_json import calibration_payload
    from pddplan.report.calibration_text import render_calibration

    layout = {"tp": tp, "pp": pp, "dp": dp, "ep": ep}
    names = {"chip": chip, "model": model, "engine": engine, "weights": weights, "kv_cache": kv_cache}
    stated = stated_columns(with_ or [], {**names, **{k: str(v) if v else None for k, v in layout.items()}})
    sources = [read_file(file, stated) for file in files]
    silent = quiet_of(context, quiet)
    with ProgressBar("Calibrating", quiet=silent) as progress:
        found = fit(sources, progress)
    for text in found.notes:
        note(f"note: {text}", quiet=silent or as_json)
    written = _write(found, output) if output is not None and found.moved and (found.better or force) else None
    if as_json:
        emit_json(calibration_payload(found, written))
    else:
        emit(render_calibration(found, written, text_width()))
    if output is not None and written is None:
        raise typer.Exit(NOT_WRITTEN)


def _write(found: Calibrated, output: str) -> str:
    from datetime import date

    import pddplan
    from pddplan.accuracy.overlay import overlay_text

    write_atomically(output, overlay_text(found, date.today().isoformat(), pddplan.__version__))
    return output
