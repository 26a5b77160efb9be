"""``pddplan validate``: measured serving against the model."""

from __future__ import annotations

from typing import Annotated

import typer

from pddplan.cli.completion import measurement_files
from pddplan.cli.options import Json, Quiet, Version, quiet_of
from pddplan.cli.output import emit, emit_json, note, text_width


def register(app: typer.Typer) -> None:
    app.command(
        "validate",
        short_help="Predicted against measured: TTFT, TPOT, tokens/s, by mode, chip, model, engine.",
        epilog="Example: pddplan validate measurements.csv --worst 10",
    )(validate)


def validate(
    context: typer.Context,
    csv: Annotated[
        str | None,
        typer.Argument(
            metavar="CSV",
            help="Measured operating points, or - for standard input; none: the published points that ship with it.",
            autocompletion=measurement_files,
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="FILE", help="Predict with factors that pddplan calibrate has fitted."),
    ] = None,
    as_json: Json = False,
    worst: Annotated[int, typer.Option("--worst", metavar="N", min=0, help="Show the N largest errors.")] = 0,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """Predict measured operating points from their configuration, and show how far off.

    A row: model, chip, mode (aggregated, disaggregated, prefill, decode), engine, weights, kv_cache, isl, osl,
    prefix_hit, concurrency or request_rate_per_s, tp, pp, dp, ep (disaggregated: p_workers, p_tp, ... d_workers,
    d_tp, ...), and what was measured: ttft_ms, tpot_ms, prefill_tok_s_per_chip, decode_tok_s_per_chip. Empty cells
    are fine. A row that can't be predicted stays in the answer with the reason.
    """
    from pddplan.accuracy.published import published
    from pddplan.accuracy.rows import read_measurements
    from pddplan.accuracy.score import worst as largest
    from pddplan.accuracy.validation import validate as run
    from pddplan.report.validation_json import validation_payload
    from pddplan.report.validation_text import render_validation

    measurements = published() if csv is None else read_measurements(csv)
    if calibration is not None:
        from pddplan.accuracy.overlay import calibrated_measurements, load_overlay

        measurements = calibrated_measurements(measurements, load_overlay(calibration))
    found = run(measurements)
    misses = largest(found.rows, worst)
    for text in measurements.notes:
        note(f"note: {text}", quiet=quiet_of(context, quiet) or as_json)
    if as_json:
        emit_json(validation_payload(found, misses))
    else:
        emit(render_validation(found, misses, text_width()))
