"""``pddplan estimate``: one deployment at one operating point."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pddplan.cli.completion import chip_names, model_names
from pddplan.cli.options import Json, Quiet, Version
from pddplan.cli.output import emit, emit_json, text_width
from pddplan.errors import InputError, Problem

if TYPE_CHECKING:
    from pddplan.estimate.question import Asked, AskedPool, Question

COMMAND = "pddplan estimate"
OPS = 8
# What the question calls by another name than the option.
_OPTIONS = {"input_tokens": "isl", "output_tokens": "osl", "request_rate_per_s": "rate"}
_POOL = ("chip", "tp", "pp", "dp", "ep", "workers")
_SPLIT = re.compile(r"([0-9]{1,6})[pP]([0-9]{1,6})[dD]")


class ModeName(StrEnum):
    aggregated = "aggregated"
    disaggregated = "disaggregated"
    prefill = "prefill"
    decode = "decode"


def _count(name: str, text: str) -> Any:
    return typer.Option(name, metavar="N", help=text)


def _text(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


Model = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="Id, name or path.", autocompletion=model_names)
]  # fmt: skip
Isl = Annotated[str, _text("--isl", "TOKENS", "Tokens of a prompt, as 8192 or 8K.")]
Chip = Annotated[
    str | None, typer.Option("--chip", metavar="CHIP", help="Id, alias, or a chip's file.", autocompletion=chip_names)
]
Osl = Annotated[str | None, _text("--osl", "TOKENS", "Tokens of an answer.")]
Users = Annotated[
    float | None, _text("--concurrency", "N", "Users; each asks again when answered, all start at once. Default 1.")
]
Rate = Annotated[float | None, _text("--rate", "PER_S", "Instead: requests/s that come at random.")]
Mode = Annotated[
    ModeName | None,
    typer.Option("--mode", help="Default aggregated; disaggregated with options of its pools.", show_default=False),
]
Tp = Annotated[int | None, _count("--tp", "Tensor-parallel ranks. Default: the fewest that hold the model.")]
Pp = Annotated[int | None, _count("--pp", "Pipeline stages.")]
Dp = Annotated[int | None, _count("--dp", "Data-parallel attention ranks.")]
Ep = Annotated[int | None, _count("--ep", "Expert-parallel ranks.")]
Workers = Annotated[int | None, _count("--workers", "Such instances.")]
Xpyd = Annotated[str | None, _text("--xpyd", "2P1D", "Prefill and decode workers.")]
PoolChip = Annotated[str | None, typer.Option(metavar="CHIP", help="Instead of --chip.", autocompletion=chip_names)]
PoolCount = Annotated[int | None, typer.Option(metavar="N", help="Instead of the option without prefix.")]
EngineName = Annotated[str | None, _text("--engine", "NAME", "vllm, sglang, trtllm or generic (default).")]
Weights = Annotated[str | None, _text("--weights", "FORMAT", "Default native: as published.")]
KvCache = Annotated[str | None, _text("--kv-cache", "FORMAT", "bf16 (default) or fp8.")]
PrefixHit = Annotated[float, _text("--prefix-hit", "SHARE", "Of a prompt, cached where prefill runs, 0 to 1.")]
Shortest = Annotated[float, _text("--shortest", "SHARE", "Lengths are drawn from this share of the nominal one to 1.")]
Chunk = Annotated[int | None, _count("--chunk-tokens", "Most prompt tokens of a pass.")]
Mtp = Annotated[float | None, _text("--mtp", "TOKENS", "Accepted a step with speculative decoding.")]
Settings = Annotated[
    list[str] | None, _text("--set", "KEY=VALUE", "Of the engine, as engine.memory_fraction=0.8. Repeatable.")
]
Calibration = Annotated[str | None, _text("--calibration", "FILE", "Factors that pddplan calibrate has fitted.")]
Ops = Annotated[int, typer.Option("--ops", min=0, metavar="N", help="Ops shown of each pass; 0: none.")]
Explain = Annotated[bool, typer.Option("--explain", help="List every assumption with its source.")]


def register(app: typer.Typer) -> None:
    app.command(
        "estimate",
        short_help="TTFT, TPOT, memory and ops of one deployment at one operating point.",
        epilog="Example: pddplan estimate --model deepseek-v3 --chip h200 --tp 8 --isl 8K --osl 1K --concurrency 64",
    )(estimate)


def estimate(
    context: typer.Context,
    model: Model,
    isl: Isl,
    chip: Chip = None,
    osl: Osl = None,
    concurrency: Users = None,
    rate: Rate = None,
    mode: Mode = None,
    tp: Tp = None,
    pp: Pp = None,
    dp: Dp = None,
    ep: Ep = None,
    workers: Workers = None,
    xpyd: Xpyd = None,
    prefill_chip: PoolChip = None,
    prefill_tp: PoolCount = None,
    prefill_pp: PoolCount = None,
    prefill_dp: PoolCount = None,
    prefill_ep: PoolCount = None,
    prefill_workers: PoolCount = None,
    decode_chip: PoolChip = None,
    decode_tp: PoolCount = None,
    decode_pp: PoolCount = None,
    decode_dp: PoolCount = None,
    decode_ep: PoolCount = None,
    decode_workers: PoolCount = None,
    engine: EngineName = None,
    weights: Weights = None,
    kv_cache: KvCache = None,
    prefix_hit: PrefixHit = 0.0,
    shortest: Shortest = 1.0,
    chunk_tokens: Chunk = None,
    mtp: Mtp = None,
    overrides: Settings = None,
    calibration: Calibration = None,
    ops: Ops = OPS,
    explain: Explain = False,
    as_json: Json = False,
    quiet: Quiet = False,
    version: Version = False,
) -> None:
    """TTFT, TPOT, tokens/s, memory and where the time goes, of one deployment at one operating point.

    Exit code 0 whatever it finds, also where the deployment can't run; 2: bad input.
    """
    from pddplan.estimate.question import question

    try:
        found = question(_asked(context.params))
    except InputError as error:
        raise InputError([_of_option(problem) for problem in error.problems]) from None
    _print(found, as_json=as_json, ops=ops, explain=explain)


def _print(found: Question, *, as_json: bool, ops: int, explain: bool) -> None:
    from pddplan.errors import Excuse
    from pddplan.estimate.estimate import estimate as answer_of
    from pddplan.estimate.op_table import op_tables
    from pddplan.estimate.question import remedy

    answer = answer_of(found.point)
    fix = remedy(found.point, answer) if isinstance(answer, Excuse) else ""
    tables = () if isinstance(answer, Excuse) else op_tables(found.point, answer)
    if as_json:
        from pddplan.report.estimate_json import estimate_payload

        emit_json(estimate_payload(found, answer, tables, fix))
    else:
        from pddplan.report.estimate_text import render_estimate

        emit(render_estimate(found, answer, tables, fix, text_width(), ops=ops, explain=explain))


def _asked(given: Mapping[str, Any]) -> Asked:
    """The question in the options' words. Raises InputError for what isn't written as a number or a split."""
    from pddplan.estimate.question import Asked, AskedPool

    problems: list[Problem] = []
    split = _split(given["xpyd"], problems)
    settings = list(given["overrides"] or ())
    for key, value in (("chunk_tokens", given["chunk_tokens"]), ("mtp_accepted_tokens", given["mtp"])):
        settings += [f"engine.{key}={value}"] if value is not None else []
    pools = {p: AskedPool(**{key: given[f"{p}{key}"] for key in _POOL}) for p in ("", "prefill_", "decode_")}
    asked = Asked(
        model=given["model"],
        input_tokens=_tokens(given["isl"], "isl", problems) or 0.0,
        output_tokens=_tokens(given["osl"], "osl", problems),
        mode=given["mode"].value if given["mode"] is not None else None,
        engine=given["engine"],
        weights=given["weights"],
        kv_cache=given["kv_cache"],
        prefix_hit=given["prefix_hit"],
        shortest=given["shortest"],
        concurrency=given["concurrency"],
        request_rate_per_s=given["rate"],
        pool=pools[""],
        prefill=_counted(pools["prefill_"], split, 0),
        decode=_counted(pools["decode_"], split, 1),
        overrides=tuple(settings),
        calibration=given["calibration"],
    )
    if problems:
        raise InputError(problems)
    return asked


def _tokens(text: str | None, option: str, problems: list[Problem]) -> float | None:
    from pddplan.units import parse_tokens

    if text is None:
        return None
    try:
        return parse_tokens(text)
    except ValueError:
        problems.append(Problem(f"{text!r} is no number of tokens.", f"--{option}", COMMAND, fix="Write 8192 or 8K."))
        return None


def _split(xpyd: str | None, problems: list[Problem]) -> tuple[int, int] | None:
    """``2P1D`` -> (2, 1)."""
    if xpyd is None:
        return None
    match = _SPLIT.fullmatch(xpyd.strip())
    if match is None:
        problems.append(Problem(f"{xpyd!r} is no split.", "--xpyd", COMMAND, fix="Write 2P1D for two and one."))
        return None
    return int(match[1]), int(match[2])


def _counted(pool: AskedPool, split: tuple[int, int] | None, index: int) -> AskedPool:
    """With the number of workers of ``--xpyd`` where the pool's own option leaves it."""
    return pool if split is None or pool.workers is not None else replace(pool, workers=split[index])


def _of_option(problem: Problem) -> Problem:
    """A problem of the question as one of the command line."""
    if problem.file:
        return problem
    option = _OPTIONS.get(problem.key, problem.key).replace("_", "-")
    return replace(problem, file=COMMAND, key=f"--{option}" if option else "")
