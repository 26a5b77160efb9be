"""How the shipped points were chosen: ``python -m tests.validation.published_set`` writes them again.

The rule looks at configurations only, never at errors. Of every kind (mode, chip, model family, engine, weights; for
prefill and decode alone also the layout), with the kind's points in the order of their lengths and load: the first,
the middle and the last. Points of tier C are left out, and those whose inputs aren't known. Beside them stand the ten
points that the model misses most in the whole collection, marked ``worst``: see ``tests.validation.worst_points``.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pddplan.accuracy.contract_rows import COLUMNS, LAYOUT_COLUMNS, MEASURED, UNBOUNDED
from pddplan.accuracy.points import UNBOUNDED_USERS
from pddplan.accuracy.published import published_file
from pddplan.accuracy.records import MeasuredRow, Part
from pddplan.accuracy.rows import read_measurements
from pddplan.estimate.records import OperatingPoint, Workers
from pddplan.spec.catalogue import load_engine
from tests.reference import reference_dir

AIC_URL = (
    "https://github.com/ai-dynamo/aiconfigurator/blob/main/aic-core/src/aiconfigurator_core/systems/silicon_sample.csv"
)
HEAD = """\
# Published operating points of LLM serving, one a row, each with its source: none was measured by this project.
# Rows whose url is silicon_sample.csv are single facts from ai-dynamo/aiconfigurator at 095f58a5 (Apache-2.0,
# Copyright 2025-2026 NVIDIA CORPORATION & AFFILIATES), of them those with ids ix-* measured by InferenceX
# (https://github.com/SemiAnalysisAI/InferenceX); the other rows are single facts from the linked pages.
# Chosen by tests/validation/published_set.py, which doesn't look at errors; worst: yes, among the ten
# that the model misses most; added, here for that alone.
# confidence: A, number and inputs printed in the source; B, statistic not stated or one input inferred. Don't mix them.
"""
INFERSIM_URL = "https://github.com/alibaba/InferSim/blob/main/README.md"
# The README's own table; the collection has them with one layout and batch for both phases, which they hadn't.
INFERSIM = (
    {"model": "qwen3-30b-a3b", "weights": "bf16", "mode": "prefill", "prefill_tok_s_per_chip": "16594"},
    {"model": "qwen3-30b-a3b", "weights": "bf16", "mode": "decode", "decode_tok_s_per_chip": "2749", "dp": "4"}
    | {"ep": "4", "concurrency": "400"},
    {"model": "qwen3-8b", "weights": "fp8", "mode": "prefill", "prefill_tok_s_per_chip": "15061"},
    {"model": "qwen3-8b", "weights": "fp8", "mode": "decode", "decode_tok_s_per_chip": "2682", "concurrency": "64"},
)
_INFERSIM = "infersim"
PROFILE_COLUMNS = ("chunk_tokens", "max_batch", "mtp_accepted_tokens", "overlap_expert_communication")


def lines_of(row: MeasuredRow, url: str, date: str, *, worst: bool = False) -> list[dict[str, str]]:
    """A measured row in the columns of our own table: one line a part."""
    suffix = len(row.parts) > 1
    return [_line(row, part, url, date, suffix, worst) for part in row.parts]


def _line(row: MeasuredRow, part: Part, url: str, date: str, suffix: bool, worst: bool) -> dict[str, str]:
    point, pool = part.point, part.point.pools[0]
    users = point.concurrency
    line = {
        "model": point.model.id,
        "chip": pool.chip.id,
        "mode": point.mode,
        "engine": row.labels.engine,
        "weights": pool.weights,
        "kv_cache": pool.kv_cache,
        "isl": _text(point.lengths.input_tokens),
        "osl": _text(point.lengths.output_tokens),
        "prefix_hit": _text(point.lengths.prefix_hit) if point.lengths.prefix_hit else "",
        "concurrency": "" if users is None else UNBOUNDED if users == UNBOUNDED_USERS else _text(users),
        "request_rate_per_s": "" if point.request_rate_per_s is None else _text(point.request_rate_per_s),
        "requests_per_user": "" if point.requests_per_user == 10 else _text(point.requests_per_user),
        "length_range": "" if point.lengths.shortest == 1 else _text(point.lengths.shortest),
        **_layout_cells(point),
        **_engine_cells(point),
        **{column: _text(row.measured[m]) for m, column in MEASURED.items() if m in part.metrics and m in row.measured},
        "id": f"{row.id}-{point.mode}" if suffix else row.id,
        "source": row.source,
        "url": url,
        "date": date,
        "confidence": row.confidence,
        "worst": "yes" if worst else "",
    }
    return line


def _layout_cells(point: OperatingPoint) -> dict[str, str]:
    prefixes = ("p_", "d_") if point.mode == "disaggregated" else ("",)
    return {
        f"{prefix}{key}": str(value)
        for prefix, pool in zip(prefixes, point.pools, strict=True)
        for key, value in (("workers", pool.count), *_sizes(pool))
    }


def _sizes(pool: Workers) -> list[tuple[str, int]]:
    return [(key, getattr(pool.parallelism, key)) for key in LAYOUT_COLUMNS]


def _engine_cells(point: OperatingPoint) -> dict[str, str]:
    """Settings that differ from the engine's profile."""
    profile = load_engine(point.engine.name)[0]
    return {
        key: str(value).lower() if isinstance(value, bool) else _text(value)
        for key in PROFILE_COLUMNS
        if (value := getattr(point.engine, key)) != getattr(profile, key)
    }


def _text(value: float) -> str:
    return f"{value:.10g}"


def infersim_lines() -> list[dict[str, str]]:
    common = {"chip": "nvidia-h20-96g", "engine": "sglang", "kv_cache": "bf16", "isl": "4096", "confidence": "B"}
    common |= {"source": "InferSim README (SGLang on H20)", "url": INFERSIM_URL, "date": "2025-10"}
    return [
        common
        | {"osl": "1" if line["mode"] == "prefill" else "2048", "id": f"{_INFERSIM}-{line['model']}-{line['mode']}"}
        | line
        for line in INFERSIM
    ]


def kind_of(point: OperatingPoint, row: MeasuredRow) -> tuple[str, ...]:
    pool = point.pools[0]
    layout = str(pool.parallelism) if point.mode in ("prefill", "decode") else ""
    return (point.mode, pool.chip.id, row.labels.family, row.labels.engine, pool.weights, layout)


def order_of(point: OperatingPoint, row: MeasuredRow) -> tuple[float, float, float, str]:
    load = point.concurrency or point.request_rate_per_s or 0.0
    return (point.lengths.input_tokens, point.lengths.output_tokens, load, row.id)


def candidates() -> list[tuple[MeasuredRow, str, str]]:
    """Rows of the collection with url and date; of the end-to-end table the chip that the collection lacks."""
    folder = reference_dir() / "measurements"
    points = folder / "serving_points.csv"
    with points.open(encoding="utf-8", newline="") as stream:
        origins = [(r["url"], r["date"]) for r in csv.DictReader(stream)]
    found = [(row, *origin) for row, origin in zip(read_measurements(str(points)).rows, origins, strict=True)]
    found = [(row, url, date) for row, url, date in found if row.confidence in ("A", "B")]
    found = [entry for entry in found if not entry[0].id.startswith(_INFERSIM)]
    return found + [(row, AIC_URL, "") for row in end_to_end("disagg") if "gb300" in row.labels.chip]


def end_to_end(kind: str) -> list[MeasuredRow]:
    """Rows of ``e2e_agg…`` or ``e2e_disagg…`` as points of tier B, with ids by row number."""
    rows = read_measurements(str(reference_dir() / "measurements" / f"e2e_{kind}_measured_vs_aic.csv")).rows
    name = {"db": "ix", "csv": "ix"}
    return [
        replace(row, id=f"{name.get(row.source[:3].strip('-'), 'aic')}-e2e-{kind}-{row.number}", confidence="B")
        for row in rows
    ]


def selected() -> list[dict[str, str]]:
    """The points of the rule, sorted by mode, chip, model, engine, lengths and load."""
    kinds: dict[tuple[str, ...], list[tuple[tuple[float, float, float, str], dict[str, str]]]] = {}
    for row, url, date in candidates():
        lines = lines_of(row, url, date)
        for part, line in zip(row.parts, lines, strict=True):
            if any(line.get(column) for column in MEASURED.values()):
                key = kind_of(part.point, row)
                kinds.setdefault(key, []).append((order_of(part.point, row), line))
    chosen = []
    for _, members in sorted(kinds.items()):
        members.sort(key=lambda x: x[0])
        picks = sorted({0, len(members) // 2, len(members) - 1})
        chosen += [members[i][1] for i in picks]
    return chosen + infersim_lines()


def as_csv(lines: Iterable[dict[str, str]], columns: Sequence[str] = COLUMNS) -> str:
    used = [c for c in columns if not c.startswith("aic_")]
    out = io.StringIO()
    writer = csv.DictWriter(out, used, lineterminator="\n", restval="", extrasaction="raise")
    writer.writeheader()
    writer.writerows(lines)
    return HEAD + out.getvalue()


def shipped(path: Path | None = None) -> list[dict[str, str]]:
    """Lines of the shipped file as they stand."""
    text = (path or published_file()).read_text("utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def main() -> None:
    kept = [line for line in shipped() if line["worst"]] if published_file().is_file() else []
    lines = selected()
    ids = {line["id"] for line in lines}
    published_file().write_text(as_csv([*lines, *(k for k in kept if k["id"] not in ids)]), "utf-8")
    print(f"{len(lines)} points and {len(kept)} worst ones written to {published_file()}", file=sys.stderr)


if __name__ == "__main__":
    main()
