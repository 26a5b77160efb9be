"""Writes fitted curves as the files of ``hardware/efficiency``; fitted, borrowed and estimated are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pddplan.perf.curves import CollectiveCurve, Evidence
from pddplan.spec.datafile import hardware_dir, read_data_file

DONOR = "nvidia-hopper"  # whose kernels stand in for those a family has no rows of
RINGS = ("all_reduce", "all_reduce_custom", "all_gather", "reduce_scatter", "all_to_all")
EXCHANGES = ("dispatch_low_latency", "combine_low_latency", "dispatch_normal", "combine_normal")
ATTENTION_KINDS = ("gqa", "mla", "sparse", "indexer")


@dataclass(frozen=True)
class Fitted:
    """One family's curves by (op, key), what they rest on, and the 68 % quantile of their relative error."""

    family: str
    curves: Mapping[tuple[str, str], Any]
    evidence: tuple[Evidence, ...]
    band: float


def write_families(fitted: Sequence[Fitted], folder: Path, date: str) -> list[Path]:
    """One YAML a family, then the classes derived from class-gpu; each is written beside and renamed."""
    estimates = read_data_file(hardware_dir() / "efficiency" / "estimates.yaml")
    donor = next(f for f in fitted if f.family == DONOR)
    documents = [family_document(f, donor, estimates["shared"], date) for f in fitted]
    base = documents[-1]
    documents += [class_document(base, name, change, date) for name, change in estimates["classes"].items()]
    return [_write(document, folder) for document in documents]


def family_document(fitted: Fitted, donor: Fitted, shared: Mapping[str, Any], date: str) -> dict[str, Any]:
    """A family's file as nested dicts: own curves, the donor's where it has none, estimates where nobody measured."""
    evidence, own = list(fitted.evidence), dict(fitted.curves)
    needed = [("gemm", "bf16"), ("grouped_gemm", "bf16"), *((r, "") for r in (*RINGS, *EXCHANGES, "send"))]
    needed += [(op, kind) for op in ("prefill_attention", "decode_attention") for kind in ATTENTION_KINDS]
    for op, key in needed:
        if (op, key) in own or _has_relative(own, op, key):
            continue
        own[op, key] = donor.curves[op, key]
        evidence.append(Evidence(f"{op} {key}".strip(), 0, 0.0, 0.0, donor.family, "borrowed"))
    sources = shared["sources"]
    for op, name in (("stream", "stream"), ("prefill_attention linear", "linear"), ("across nodes", "out")):
        evidence.append(Evidence(op, 0, 0.0, 0.0, sources[name], "estimate"))
    if ("decode_attention", "linear") not in own:
        evidence.append(Evidence("decode_attention linear", 0, 0.0, 0.0, sources["linear"], "borrowed"))
    return {
        "id": fitted.family,
        "confidence": "estimate" if fitted.family.startswith("class-") else "fitted",
        "date": date,
        "band": fitted.band,
        "op_overhead_s": shared["op_overhead_s"],
        "roof_exponent": shared["roof_exponent"],
        "gemm": _keyed(own, "gemm"),
        "grouped_gemm": _keyed(own, "grouped_gemm"),
        "stream": shared["stream"],
        "prefill_attention": {**_keyed(own, "prefill_attention"), "linear": shared["prefill_linear"]},
        "decode_attention": {"linear": shared["decode_linear"], **_keyed(own, "decode_attention")},
        "collectives": _collectives(own, shared),
        "evidence": [asdict(row) for row in evidence],
    }


def _has_relative(own: Mapping[tuple[str, str], Any], op: str, key: str) -> bool:
    """Whether the family's own fp8 curve or gqa curve stands in, as look-up does (H20: bf16 GEMM, MLA prefill)."""
    return (op in ("gemm", "grouped_gemm") and (op, "fp8") in own) or (
        op == "prefill_attention" and key == "mla" and (op, "gqa") in own
    )


def _keyed(own: Mapping[tuple[str, str], Any], op: str) -> dict[str, dict[str, float]]:
    return {key: asdict(curve) for (name, key), curve in own.items() if name == op}


def _collectives(own: Mapping[tuple[str, str], Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    send: CollectiveCurve = own["send", ""]
    return {
        **{name: asdict(own[name, ""]) for name in (*RINGS, *EXCHANGES)},
        "send_alpha_s": float(f"{send.alpha_s + send.fill_s:.4g}"),
        "send_eta": send.eta,
        "out_alpha_s": shared["out_alpha_s"],
        "out_eta": shared["out_eta"],
    }


def class_document(base: Mapping[str, Any], name: str, change: Mapping[str, Any], date: str) -> dict[str, Any]:
    """A class without measurements: class-gpu with its shares and latencies multiplied, capped at 1."""
    document = {
        k: _scaled(v, change["shares"][k], change["latencies"]) if k in change["shares"] else v for k, v in base.items()
    }
    source = "class-gpu times " + ", ".join(f"{k} {v}" for k, v in change["shares"].items())
    rows = [Evidence("all", 0, 0.0, 0.0, text, "estimate") for text in (source, *change["sources"])]
    return {
        **document,
        "id": name,
        "date": date,
        "band": change["band"],
        "op_overhead_s": base["op_overhead_s"] * change["latencies"],
        "evidence": [asdict(row) for row in rows],
    }


def _scaled(tree: Any, share: float, latency: float) -> Any:
    """Every eta times ``share`` (at most 1), every overhead and alpha times ``latency``."""

    def scale(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: scale(k, v) for k, v in value.items()}
        if key.startswith("eta") or key.endswith("_eta"):
            return float(f"{np.clip(value * share, 0.02, 1.0):.4g}")
        if key == "overhead_s" or "alpha" in key:
            return float(f"{value * latency:.4g}")
        return value

    return scale("", tree)


def _write(document: Mapping[str, Any], folder: Path) -> Path:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    head = "# Written by `python -m pddplan.perf.fit KERNELS_DIR --write FOLDER`; change the fit, not this file.\n"
    path = folder / f"{document['id']}.yaml"
    beside = path.with_suffix(".yaml.new")
    text = yaml.dump(dict(document), Dumper=Dumper, sort_keys=False, width=120, default_flow_style=None)
    beside.write_text(head + text, encoding="utf-8")
    beside.replace(path)
    return path
