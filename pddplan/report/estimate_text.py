"""``estimate`` as text: the answer, where the first token's time goes, memory, ops, what was assumed."""

from __future__ import annotations

from collections.abc import Sequence

from pddplan.errors import Excuse
from pddplan.estimate.op_table import PassOps
from pddplan.estimate.question import Question
from pddplan.estimate.records import Estimate, OperatingPoint, PoolMemory, TtftParts, Workers, pool_roles
from pddplan.report.excuses import excuse_text
from pddplan.report.figures import UNKNOWN, exact, figure, percent, seconds, words
from pddplan.report.layout import paragraph, table
from pddplan.report.marks import WEAK, explain_lines, mark, times_are_weak, value_text
from pddplan.spec.types import Assumption
from pddplan.units import GB, MS

LEGEND = "~ rests on a default or an estimate; --explain lists all assumptions with their source."
BOTTLENECKS = {
    "prefill": "A further request waits for prefill.",
    "kv_memory": "A further request waits for KV memory.",
    "engine": "A further request waits: the engine runs no more at once (max_batch).",
    "concurrency": "There is room for more requests.",
    "rate": "It keeps up with the rate.",
}
_PARTS = (("queue", "queue"), ("prefill", "prefill"), ("transfer", "KV transfer"), ("first_step", "first output"))


def render_estimate(
    question: Question,
    answer: Estimate | Excuse,
    tables: Sequence[PassOps],
    remedy: str,
    width: int,
    *,
    ops: int,
    explain: bool,
) -> str:
    """First line: the answer, or that it can't run and why."""
    point, assumed = question.point, question.assumptions
    if isinstance(answer, Excuse):
        lines = paragraph(f"can't run: {excuse_text(answer)}. {remedy}".rstrip(), width, hanging=2)
        lines += [*_deployment(point, width)]
    else:
        weak = times_are_weak(assumed)
        lines = [*_headline(answer, width, weak), *_deployment(point, width)]
        lines += paragraph(_found(answer), width)
        lines += [*_ttft(answer.ttft, width, weak), *_memory(answer, point, width)]
        for one in tables if ops else ():
            lines += _ops(one, width, ops)
    lines += ["", "assumed", *(explain_lines(assumed, width) if explain else _assumed(assumed, width))]
    return "\n".join([*lines, *paragraph(LEGEND, width)] if not explain else lines)


def _headline(answer: Estimate, width: int, weak: bool) -> list[str]:
    asked = f" of {exact(answer.asked_concurrency)}" if answer.asked_concurrency is not None else ""
    parts = [
        f"TTFT {mark(seconds(answer.ttft.mean), weak)}" if answer.ttft is not None else "",
        f"TPOT {mark(seconds(answer.tpot_s), weak)}" if answer.tpot_s is not None else "",
        f"{mark(figure(answer.total_tokens_per_s_per_chip), weak)} tokens/s per chip",
        f"{figure(answer.effective_concurrency)}{asked} running",
    ]
    return paragraph("  ".join(p for p in parts if p), width, hanging=2)


def _deployment(point: OperatingPoint, width: int) -> list[str]:
    lengths = point.lengths
    pools = [_pool(role, w) for role, w in zip(pool_roles(point), point.pools, strict=True)]
    load = f"{exact(point.concurrency)} users" if point.concurrency is not None else ""
    load = "1 user" if point.concurrency == 1 else load
    load = load or f"{exact(point.request_rate_per_s or 0.0)} requests/s"
    told = [f"{exact(lengths.input_tokens)} tokens in"]
    told += [f"{percent(lengths.prefix_hit)} of them cached"] if lengths.prefix_hit else []
    told += [f"{exact(lengths.output_tokens)} out"] if point.mode != "prefill" else []
    told += [f"drawn between {percent(lengths.shortest)} and all of these"] if lengths.shortest < 1 else []
    text = f"{point.model.name}, {point.mode}, {point.engine.name}: {' + '.join(pools)}; {', '.join(told)}; {load}."
    return paragraph(text, width)


def _pool(role: str, workers: Workers) -> str:
    layout = str(workers.parallelism)
    count = f"{workers.count} x " if workers.count > 1 else ""
    role = f"{role} " if role in ("prefill", "decode") else ""
    formats = f"{workers.weights} weights, {workers.kv_cache} KV"
    return f"{role}{count}{workers.parallelism.chips} {workers.chip.id} ({layout}, {formats})"


def _found(answer: Estimate) -> str:
    rates = [f"{figure(answer.request_rate_per_s)} requests/s"]
    if answer.prefill_tokens_per_s_per_chip is not None:
        rates.append(f"prefill {figure(answer.prefill_tokens_per_s_per_chip)} tokens/s per chip")
    if answer.decode_tokens_per_s_per_chip is not None:
        rates.append(f"decode {figure(answer.decode_tokens_per_s_per_chip)}")
    return f"{BOTTLENECKS.get(answer.bottleneck, '')} {', '.join(rates)}."


def _ttft(parts: TtftParts | None, width: int, weak: bool) -> list[str]:
    if parts is None:
        return []
    rows = [(name, mark(figure(getattr(parts, key) / MS), weak)) for key, name in _PARTS]
    return ["", *table(("first token, mean", "ms"), rows, width, right=(1,))]


def _memory(answer: Estimate, point: OperatingPoint, width: int) -> list[str]:
    """A column a pool: what stands on a chip, then what a worker holds."""
    pools = answer.memory
    header = ["memory of a chip, GB", *(pool.role for pool in pools)]
    rows = [
        ["weights", *_gb(pools, "weight_bytes")],
        ["activations", *(mark(text, True) for text in _gb(pools, "activation_bytes"))],
        ["reserve", *_gb(pools, "reserve_bytes")],
        ["KV pool", *_gb(pools, "kv_bytes_per_chip")],
        ["chip", *_gb(pools, "chip_bytes")],
    ]
    held = ["of a worker", *("" for _ in pools)]
    worker = [
        ["KV pool, GB", *_gb(pools, "kv_pool_bytes")],
        ["KV held, GB", *(figure(pool.kv_held_bytes / GB) for pool in pools)],
        ["requests that fit", *(figure(pool.most_requests) for pool in pools)],
        ["running", *(_running(answer, pool, w) for pool, w in zip(pools, point.pools, strict=True))],
    ]
    right = tuple(range(1, len(pools) + 1))
    return ["", *table(header, [*rows, held, *worker], width, right=right, flexible=0)]


def _gb(pools: Sequence[PoolMemory], field: str) -> list[str]:
    return [figure(getattr(pool.memory, field) / GB) for pool in pools]


def _running(answer: Estimate, pool: PoolMemory, workers: Workers) -> str:
    decodes = pool.role != "prefill"
    return figure(answer.effective_concurrency / workers.count) if decodes else UNKNOWN


def _ops(one: PassOps, width: int, most: int) -> list[str]:
    shown, rest = one.ops[:most], one.ops[most:]
    body = [
        [op.name, figure(op.time_s / MS), percent(op.share), words(op.bound), _of_peak(op.fraction_of_peak)]
        for op in shown
    ]
    if rest:
        body.append([f"{len(rest)} more", figure(sum(op.time_s for op in rest) / MS), _share(one, len(shown)), "", ""])
    title = [*paragraph(_title(one), width)]
    return ["", *title, *table(("op", "ms", "share", "bound by", "of peak"), body, width, right=(1, 2, 4), flexible=0)]


def _share(one: PassOps, first: int) -> str:
    return percent(sum(op.share for op in one.ops[first:]))


def _of_peak(fraction: float) -> str:
    return percent(fraction) if fraction > 0 else UNKNOWN


def _title(one: PassOps) -> str:
    prompt = f"{figure(one.new_tokens)} new tokens of a prompt"
    prompt += f" after {figure(one.cached_tokens)}" if one.cached_tokens >= 1 else ""
    if one.phase == "prefill":
        return f"a prefill pass: {seconds(one.time_s)}, {prompt}"
    if one.phase == "decode":
        return f"a decode step: {seconds(one.time_s)}, {figure(one.requests)} requests"
    return f"a step with a prompt: {seconds(one.time_s)}, {figure(one.requests)} requests and {prompt}"


def _assumed(assumptions: Sequence[Assumption], width: int) -> list[str]:
    """Efficiencies with their error, then what nobody said, then how many of the engine's numbers are estimates."""
    lines: list[str] = []
    for a in assumptions:
        if a.name.startswith("efficiency."):
            text = f"efficiency of {a.name.partition('.')[2]}: {value_text(a)}, {a.source}, {a.note}"
            lines += paragraph(mark(text, a.source == "estimate"), width, indent=2, hanging=4)
    engine = [a for a in assumptions if a.name.startswith("engine.")]
    guessed = [a for a in engine if a.source == "estimate"]
    left = [a for a in assumptions if a.source in WEAK and a not in engine and not a.name.startswith("efficiency.")]
    if left:
        text = "; ".join(f"{words(a.name)} {value_text(a)}" for a in left)
        lines += paragraph(f"default: {text}~", width, indent=2, hanging=4)
    if guessed:
        names = ", ".join(words(a.name.partition(".")[2]) for a in guessed)
        text = f"engine: {len(engine) - len(guessed)} numbers documented or fitted, {len(guessed)} estimates~: {names}"
        lines += paragraph(text, width, indent=2, hanging=4)
    return lines
