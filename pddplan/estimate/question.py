"""An operating point from what a person says: names, numbers and what is left open, with every default said."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pddplan.errors import Excuse, InputError, Problem
from pddplan.estimate.pools import pool_service
from pddplan.estimate.records import MODES, Lengths, Mode, OperatingPoint, Workers, pool_roles
from pddplan.llm.catalogue import load_model
from pddplan.llm.formats import KV_FORMATS, formats
from pddplan.llm.types import LanguageModel
from pddplan.perf.candidates import tensor_ranks
from pddplan.perf.curves import load_curves
from pddplan.perf.instance import Parallelism, attention_groups
from pddplan.perf.precision import kv_on, weights_on
from pddplan.spec.calibration import Overlay, load_overlay
from pddplan.spec.catalogue import chip_assumptions, load_chip, missing_problem
from pddplan.spec.engine_overrides import engine_with
from pddplan.spec.issues import closest
from pddplan.spec.notes import Notes
from pddplan.spec.types import Assumption, Chip, ChipOffer, Engine, ParallelismChoice

T = TypeVar("T")
NATIVE = "native"
WITHOUT_EFFECT = ("all_in_kw", "tdp_watts", "usd_per_hour")  # on times and memory
FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class AskedPool:
    """Workers as asked for; None: not said."""

    chip: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    workers: int | None = None

    @property
    def said(self) -> bool:
        return self != AskedPool()

    def over(self, other: AskedPool) -> AskedPool:
        """What is said here, else there."""
        mine, theirs = vars(self), vars(other)
        return AskedPool(**{key: theirs[key] if value is None else value for key, value in mine.items()})


@dataclass(frozen=True)
class Asked:
    """A question; ``pool`` holds for all pools, ``prefill`` and ``decode`` for one of a disaggregated deployment."""

    model: str
    input_tokens: float
    output_tokens: float | None = None
    mode: str | None = None
    engine: str | None = None
    weights: str | None = None
    kv_cache: str | None = None
    prefix_hit: float = 0.0
    shortest: float = 1.0
    concurrency: float | None = None
    request_rate_per_s: float | None = None
    pool: AskedPool = AskedPool()
    prefill: AskedPool = AskedPool()
    decode: AskedPool = AskedPool()
    overrides: tuple[str, ...] = ()  # "engine.key=value"
    calibration: str | None = None  # a file of fitted factors


@dataclass(frozen=True)
class Question:
    """The operating point, and what it rests on beside what was said."""

    point: OperatingPoint
    assumptions: tuple[Assumption, ...]


def question(asked: Asked) -> Question:
    """Reads names and checks numbers. Raises InputError with all problems at once; their keys are the fields of
    ``Asked``, those of a pool as ``tp`` or ``prefill_tp``."""
    notes = Notes()
    problems = _number_problems(asked)
    mode = _mode(asked, problems)
    file = asked.calibration
    overlay = _named(problems, "calibration", lambda: load_overlay(file)) if file is not None else None
    model = _named(problems, "model", lambda: load_model(asked.model))
    engine = _named(problems, "engine", lambda: engine_with(asked.engine, asked.overrides, notes, overlay))
    pools = _asked_pools(asked, mode)
    chips = _calibrated([_chip(pool.chip, key, problems) for key, pool in pools], overlay, notes)
    _format_problems(asked, problems)
    if model is not None:
        for key, pool in pools:
            problems += _layout_problems(model, key, pool)
    if problems or model is None or engine is None:
        raise InputError(_once(problems))
    lengths = _lengths(asked, mode)
    built: list[Workers] = []
    roles: tuple[Mode, ...] = ("prefill", "decode") if mode == "disaggregated" else (mode,)
    for role, (key, pool), chip in zip(roles, pools, chips, strict=True):
        assert chip is not None
        built.append(_workers(role, key, pool, chip, model, engine, asked, notes))
    rate, users = asked.request_rate_per_s, asked.concurrency
    if rate is None:
        users = notes.default(users, "concurrency", 1.0, "one user at a time: neither users nor a rate are given")
    point = OperatingPoint(mode, model, engine, tuple(built), lengths, users, rate)
    return Question(point, notes.assumptions)


# ---------------------------------------------------------------- what is wrong


def _number_problems(asked: Asked) -> list[Problem]:
    problems: list[Problem] = []

    def check(key: str, value: float | None, low: float, high: float, what: str) -> None:
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            problems.append(Problem(f"{value:g} is not possible.", key, fix=f"It must be {what}."))

    most = 1e8
    check("input_tokens", asked.input_tokens, 1, most, "from 1 to 1e8 tokens")
    check("output_tokens", asked.output_tokens, 1, most, "from 1 to 1e8 tokens")
    check("prefix_hit", asked.prefix_hit, 0, 1, "a share from 0 to 1")
    check("shortest", asked.shortest, 0.01, 1, "a share of the nominal length, up to 1")
    check("concurrency", asked.concurrency, 1, 1e6, "from 1 to 1e6 requests")
    check("request_rate_per_s", asked.request_rate_per_s, 1e-9, 1e6, "above 0 requests/s")
    for prefix, pool in (("", asked.pool), ("prefill_", asked.prefill), ("decode_", asked.decode)):
        for key in ("tp", "pp", "dp", "ep", "workers"):
            check(f"{prefix}{key}", getattr(pool, key), 1, 100_000, "a whole number, 1 or more")
    users = asked.concurrency
    if users is not None and math.isfinite(users) and users != math.floor(users):
        problems.append(Problem(f"{users:g} is not possible.", "concurrency", fix="It must be a whole number."))
    if asked.concurrency is not None and asked.request_rate_per_s is not None:
        fix = "Give the users of a closed loop, or the rate of an open one."
        problems.append(Problem("a rate is given, too.", "concurrency", fix=fix))
    return problems


def _mode(asked: Asked, problems: list[Problem]) -> Mode:
    """As said, else disaggregated where a pool of it is described."""
    split = asked.prefill.said or asked.decode.said
    named = asked.mode.lower() if asked.mode is not None else "disaggregated" if split else "aggregated"
    mode = next((m for m in MODES if m == named), None)
    if mode is None:
        near = closest(named, MODES)
        fix = f"Did you mean {near}?" if near else f"One of {', '.join(MODES)}."
        problems.append(Problem(f"no mode {asked.mode!r}.", "mode", fix=fix))
        return "aggregated"
    if split and mode != "disaggregated":
        fix = "Leave the prefill and decode options out, or say disaggregated."
        problems.append(Problem(f"{mode} has one pool of workers.", "mode", fix=fix))
    if mode != "prefill" and asked.output_tokens is None:
        problems.append(Problem("is missing.", "output_tokens", fix="Give the tokens of an answer."))
    return mode


def _asked_pools(asked: Asked, mode: Mode) -> list[tuple[str, AskedPool]]:
    """(prefix of its keys, pool) of each pool."""
    if mode != "disaggregated":
        return [("", asked.pool)]
    return [("prefill_", asked.prefill.over(asked.pool)), ("decode_", asked.decode.over(asked.pool))]


def _named(problems: list[Problem], key: str, load: Callable[[], T]) -> T | None:
    """What ``load`` gives; its problems, if they have no place of their own, are about ``key``."""
    try:
        return load()
    except InputError as error:
        problems += [p if p.file else replace(p, key=key) for p in error.problems]
        return None


def _chip(name: str | None, key: str, problems: list[Problem]) -> Chip | None:
    """A chip of the catalogue, or of a file."""
    here = f"{key}chip"
    if name is None:
        fix = "Name one; `pddplan hardware list` shows them all."
        problems.append(Problem("is missing.", "chip", fix=fix))
        return None
    chip = _named(problems, here, lambda: _load_chip(name))
    unplannable = missing_problem(chip, here) if chip is not None else None
    problems += [unplannable] if unplannable is not None else []
    return chip


def _calibrated(chips: Sequence[Chip | None], overlay: Overlay | None, notes: Notes) -> list[Chip | None]:
    """The chips with what was fitted to them, which is noted; the same record for the same chip."""
    if overlay is None:
        return list(chips)
    changed = {chip.id: overlay.chip(chip) for chip in chips if chip is not None}
    for chip in changed.values():
        overlay.note_chip(chip, notes)
    return [chip and changed[chip.id] for chip in chips]


def _load_chip(name: str) -> Chip:
    if not name.lower().endswith(FILES) and not Path(name).is_file():
        return load_chip(name)
    from pddplan.spec.chip_check import check_chip_file  # reads a user's file, which few do

    found = check_chip_file(name)
    if found.missing:
        raise InputError([Problem("isn't given.", key, found.file, fix="A chip needs it.") for key in found.missing])
    return found.chip


def _format_problems(asked: Asked, problems: list[Problem]) -> None:
    for key, value, known in (
        ("weights", asked.weights, (NATIVE, *formats().recipes)),
        ("kv_cache", asked.kv_cache, KV_FORMATS),
    ):
        if value is not None and value not in known:
            problems.append(Problem(f"no format {value!r}.", key, fix=f"One of {', '.join(known)}."))


def _layout_problems(model: LanguageModel, prefix: str, pool: AskedPool) -> list[Problem]:
    """Heads that tp doesn't divide, more stages than layers, more expert ranks than experts or chips."""
    problems: list[Problem] = []
    tp, pp, dp, ep = (max(getattr(pool, key) or 1, 1) for key in ("tp", "pp", "dp", "ep"))
    heads = {a.q_heads or a.v_heads for a in attention_groups(model)} - {0}
    bad = sorted(h for h in heads if h % tp)
    if bad:
        fix = f"Take one of {', '.join(str(n) for n in _divisors(math.gcd(*heads)))}."
        problems.append(Problem(f"{tp} doesn't divide the {bad[0]} heads of {model.id}.", f"{prefix}tp", fix=fix))
    if pp > model.layers:
        problems.append(Problem(f"{model.id} has {model.layers} layers.", f"{prefix}pp", fix="Take fewer stages."))
    experts = max((g.feed_forward.experts for g in model.groups if g.feed_forward.kind == "moe"), default=0)
    if ep > 1 and not experts:
        problems.append(Problem(f"{model.id} has no experts.", f"{prefix}ep", fix="Leave it out."))
    elif ep > experts > 0:
        problems.append(Problem(f"{ep} ranks for {experts} experts of {model.id}.", f"{prefix}ep", fix="Take fewer."))
    elif pool.tp is not None and (tp * dp) % ep:
        fix = f"Take a divisor, up to {tp * dp}."
        problems.append(Problem(f"{ep} doesn't divide tp x dp = {tp * dp}.", f"{prefix}ep", fix=fix))
    return problems


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, 64) + 1) if number % n == 0]


def _once(problems: Sequence[Problem]) -> list[Problem]:
    """Without repetitions: two pools may be wrong alike."""
    once: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        once.setdefault((problem.message, problem.key.removeprefix("prefill_").removeprefix("decode_")), problem)
    return list(once.values())


# ---------------------------------------------------------------- what is taken


def _lengths(asked: Asked, mode: Mode) -> Lengths:
    outputs = 1.0 if mode == "prefill" or asked.output_tokens is None else asked.output_tokens
    inputs = asked.input_tokens
    return Lengths(inputs, outputs, asked.prefix_hit, asked.shortest)


def _workers(
    role: Mode,
    prefix: str,
    pool: AskedPool,
    chip: Chip,
    model: LanguageModel,
    engine: Engine,
    asked: Asked,
    notes: Notes,
) -> Workers:
    weights, kv_cache = _formats(chip, model, asked, notes)
    for assumption in chip_assumptions(chip):
        if assumption.name.rpartition(".")[2] not in WITHOUT_EFFECT:
            notes.add(assumption)
    curves = load_curves(chip)
    note = f"typical error of an op {curves.band:.0%}"
    notes.assume(f"efficiency.{chip.id}", curves.id, "fitted" if curves.confidence == "fitted" else "estimate", note)
    rest = Parallelism(1, pool.pp or 1, pool.dp or 1, pool.ep or 1)
    draft = Workers(chip, rest, pool.workers or 1, weights, kv_cache)
    if pool.tp is not None:
        return replace(draft, parallelism=replace(rest, tp=pool.tp))
    fitting = fewest_ranks(role, model, engine, draft)
    note = "the fewest chips that hold the weights" if fitting else "the most that divide its heads: it doesn't fit"
    ranks = fitting or tensor_ranks(chip, model)[-1]
    notes.assume(f"{prefix}tp", float(ranks), "default", note)
    return replace(draft, parallelism=replace(rest, tp=ranks))


def fewest_ranks(role: Mode, model: LanguageModel, engine: Engine, workers: Workers) -> int | None:
    """Fewest tensor-parallel ranks with which a worker of this layout holds the model; None if none does."""
    for tp in tensor_ranks(workers.chip, model):
        layout = replace(workers.parallelism, tp=tp)
        if layout.stage_chips % layout.ep:
            continue
        if not isinstance(pool_service(role, model, engine, replace(workers, parallelism=layout)), Excuse):
            return tp
    return None


def _formats(chip: Chip, model: LanguageModel, asked: Asked, notes: Notes) -> tuple[str, str]:
    """Formats that the chip runs: as said, or by the rules of ``perf.precision`` where it lacks them."""
    offer = ChipOffer(chip, 1, 0, 0.0, 1, None, ParallelismChoice(), {}, {})
    wanted = notes.default(asked.weights, "precision.weights", NATIVE, "as the checkpoint is published")
    cache = notes.default(asked.kv_cache, "precision.kv_cache", "bf16", "the engines' default")
    weights, kv_cache = weights_on(offer, model, wanted), kv_on(offer, cache)
    if weights.note:
        notes.assume(f"{chip.id}.weights", weights.weights, "default", weights.note)
    if kv_cache != cache:
        notes.assume(f"{chip.id}.kv_cache", kv_cache, "default", f"{chip.id} has no {cache}")
    return weights.weights, kv_cache


# ---------------------------------------------------------------- where it can't run


def remedy(point: OperatingPoint, excuse: Excuse) -> str:
    """The nearest change with which a point that can't run would; "" where none is known."""
    if excuse.constraint == "memory":
        for role, workers in zip(pool_roles(point), point.pools, strict=True):
            if not isinstance(pool_service(role, point.model, point.engine, workers), Excuse):
                continue
            tp = fewest_ranks(role, point.model, point.engine, workers)
            return f"tp {tp} holds it." if tp is not None else "Take more stages or narrower weights."
    if excuse.constraint == "prefill_utilization" and point.request_rate_per_s is not None:
        count = math.floor(point.pools[0].count * excuse.value) + 1
        what = "prefill workers" if point.mode == "disaggregated" else "workers"
        rate = point.request_rate_per_s / excuse.value
        return f"Below {rate:.3g} requests/s these keep up; this rate needs {count} {what} at least."
    if excuse.constraint == "kv_of_a_request":
        return "Take more chips a worker, or narrower weights or KV."
    if excuse.constraint in ("kv_memory", "engine"):
        return "Take more workers that decode, or a lower rate."
    return ""
