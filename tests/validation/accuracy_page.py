"""docs/accuracy.md from the committed figures: ``python -m tests.validation.accuracy_page`` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pddplan.accuracy.published import recorded
from pddplan.spec.datafile import hardware_dir, read_data_file

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
METRICS = {"tpot_ms": "TPOT", "ttft_ms": "TTFT", "prefill_tok_s_per_chip": "prefill", "decode_tok_s_per_chip": "decode"}
PEER = {
    ("tpot_ms", "aggregated"): "28.4 / 16.9",
    ("tpot_ms", "disaggregated"): "26.9 / 18.6",
    ("ttft_ms", "aggregated"): "– / 45.0",
    ("ttft_ms", "disaggregated"): "– / 72.8",
}
SERVED = """\
# How right it is

Written by `python -m tests.validation.accuracy_page` from what fits and tests recorded; change those.
Errors are percent: MAPE is the mean of |predicted / measured − 1|, median its median, bias the median signed error.

## Served rows

TTFT and TPOT of 979 closed-loop runs (InferenceX and NVIDIA's validation runs, as collected by AIConfigurator). The
engine profiles were fitted to whole groups (model family × chip × engine): every second one of each engine. The other
groups check it. Kernel curves were fitted to none of these rows. AIConfigurator 0.12 on the rows that it answers is
beside it (MAPE / median; all groups; of the disaggregated rows it answers half).
"""
FAMILIES = """
TPOT of each model family, predicted by profiles that were fitted to the others:
"""
SHIPPED = """
## Points that ship

`pddplan validate` without a file: MAPE of the points in the package, by mode and tier of confidence (A measured and
complete, B with an input that was inferred). `worst` are points kept for their error: they aren't averaged with others.
"""
KERNELS = """
## Kernels

Every op's curve against the measured kernels of its chip family. Rows of class-gpu are of families left out of the fit
of their class: what a chip without measurements must expect. Excluded are rows faster than the chip's peak.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(str(x) for x in row) + " |" for row in rows)]) + "\n"


def served() -> str:
    said = read_data_file(hardware_dir() / "fitted_groups.yaml")
    rows: list[Sequence[object]] = []
    for metric in ("tpot_ms", "ttft_ms"):
        for mode in ("aggregated", "disaggregated"):
            for half in ("unfitted", "fitted"):
                e = said["errors_percent"][half][mode][metric]
                peer = PEER[metric, mode] if half == "unfitted" else ""
                rows.append([METRICS[metric], mode, half, e["n"], e["mape"], e["median_ape"], f"{e['bias']:+}", peer])
    errors = table(["metric", "mode", "groups", "rows", "MAPE", "median", "bias", "AIConfigurator"], rows)
    families = said["left_out_tpot_percent"]
    left_out = table(
        ["left out", "rows", "MAPE", "median", "bias"],
        [[name, e["n"], e["mape"], e["median_ape"], f"{e['bias']:+}"] for name, e in families.items()],
    )
    return SERVED + "\n" + errors + FAMILIES + "\n" + left_out


def shipped() -> str:
    figures = recorded()
    rows = []
    for key in sorted(figures):
        group, metric, tier = key.split(" ", 2)
        if group == "all" or group.startswith("mode="):
            rows.append([group.removeprefix("mode="), METRICS[metric], tier, figures[key]])
    return SHIPPED + "\n" + table(["mode", "metric", "tier", "MAPE"], rows)


def kernels() -> str:
    rows: list[Sequence[object]] = []
    for path in sorted((hardware_dir() / "efficiency").glob("*.yaml")):
        said: dict[str, Any] = read_data_file(path)
        for e in said.get("evidence", ()):
            kind = "left out" if e["confidence"] == "left-out" else e["confidence"]
            rows.append([path.stem, e["op"], kind, e["rows"], e["excluded"], e["median_ape"], e["p90_ape"]])
    return KERNELS + "\n" + table(["family", "op", "rows are", "rows", "excluded", "median", "p90"], rows)


def page() -> str:
    return served() + shipped() + kernels()


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), "utf-8")
