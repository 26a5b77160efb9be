"""One way from a row's words to an operating point, whatever the columns are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pddplan.accuracy.layouts import Layout
from pddplan.accuracy.names import chip_named, engine_label, engine_named, family_of, model_named, weights_named
from pddplan.accuracy.recipes import Deployment, decode_batch, layouts_named
from pddplan.accuracy.records import Labels
from pddplan.accuracy.settings import FALLBACK_KV, UNBOUNDED_USERS, Run, engine_with, settings_of
from pddplan.estimate.records import Lengths, Mode, OperatingPoint, Workers

# A closed loop with more users than any memory holds: what "offline" and "as fast as it goes" mean.


@dataclass(frozen=True)
class Named:
    """Names of a row as written; resolved by ``labels_of`` and ``point_of``."""

    model: str
    chip: str
    engine: str
    version: str = ""
    weights: str = ""
    runs: str = ""  # inferencex, nvidia or the source: whose rules of runs.yaml hold
    dump: str = ""


@dataclass(frozen=True)
class Load:
    """Lengths and load of a row; exactly one of users and rate. ``settings`` are those that the row states itself."""

    input_tokens: float
    output_tokens: float
    prefix_hit: float = 0.0
    users: float | None = None
    rate_per_s: float | None = None
    requests_per_user: float = 10.0
    settings: Mapping[str, Any] = field(default_factory=dict)


def point_of(named: Named, mode: Mode, layouts: tuple[Layout, ...], load: Load) -> OperatingPoint:
    """The operating point of a row; NoPoint where a name or a format isn't known.

    Formats and engine settings that the row doesn't state come from the rules of ``runs.yaml``.
    """
    model, chip = model_named(named.model), chip_named(named.chip)
    weights = weights_named(named.weights, named.model, chip)
    profile = engine_named(named.engine)
    run = Run(
        engine=profile,
        version=named.version,
        runs=named.runs,
        dump=named.dump,
        family=family_of(model.id),
        weights=weights,
        chips=chip.efficiency or "",
        mode=mode,
        users=load.users or 0.0,
        lengths=f"{load.input_tokens:.0f}/{load.output_tokens:.0f}",
        tp=str(layouts[-1].parallelism.tp),
        attention="dp" if layouts[-1].parallelism.dp > 1 else "tp",
    )
    settings = {**settings_of(run), **_recipe(run, chip.id, layouts), **load.settings}
    kv_cache = settings.get("kv_cache", FALLBACK_KV)
    lengths = Lengths(load.input_tokens, load.output_tokens, load.prefix_hit, settings.get("length_range", 1.0))
    requests = settings.get("requests") if load.users == UNBOUNDED_USERS else None
    return OperatingPoint(
        mode=mode,
        model=model,
        engine=engine_with(profile, settings, load.input_tokens, load.users or 0.0),
        pools=tuple(Workers(chip, x.parallelism, x.replicas, weights, kv_cache) for x in layouts),
        lengths=lengths,
        concurrency=float(requests) if requests else load.users,
        request_rate_per_s=load.rate_per_s,
        requests_per_user=1.0 if requests else load.requests_per_user,
    )


def _recipe(run: Run, chip: str, layouts: tuple[Layout, ...]) -> dict[str, Any]:
    """The decode batch of InferenceX's recipe for a deployment, where it has one."""
    if run.runs != "inferencex" or run.mode != "disaggregated":
        return {}
    deployment = Deployment(run.engine, chip, run.weights, run.lengths, layouts_named(*layouts))
    batch = decode_batch(deployment, run.users)
    return {} if batch is None else {"max_batch": float(batch)}


def labels_of(mode: str, named: Named) -> Labels:
    """Group labels, as far as the names are known: a row without a prediction still belongs somewhere."""
    labels = Labels(mode=mode, engine=engine_label(named.engine))
    try:
        labels = replace(labels, chip=chip_named(named.chip).id)
    except ValueError:
        labels = replace(labels, chip=named.chip)
    try:
        model = model_named(named.model).id
    except ValueError:
        return replace(labels, model=named.model, family=named.model)
    return replace(labels, model=model, family=family_of(model))


def sweep_of(labels: Labels, weights: str, isl: str, osl: str) -> str:
    """What rows ranked against each other share: chip, model, weights, lengths, engine and mode."""
    return "|".join((labels.mode, labels.chip, labels.model, weights, isl, osl, labels.engine))
