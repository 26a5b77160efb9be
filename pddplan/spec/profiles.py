"""Engine profiles and link defaults: what a scenario that doesn't say gets, each number with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from pddplan.errors import InputError, Problem
from pddplan.spec.datafile import Figure, hardware_dir, read_data_file, read_figure
from pddplan.spec.types import Assumption, Engine, LineTier, MemoryCovers, OutsideMemory, Provenance, Source, TailMerge
from pddplan.units import GB, GBIT_PER_S_IN_BYTES_PER_S, HOURS_PER_MONTH, MIB, MS, US

DEFAULT_ENGINE = "generic"  # where none is named
ENGINE_NUMBERS: Mapping[str, tuple[str, float]] = {  # key of a profile and of `engine:` -> (field of Engine, factor)
    "chunk_tokens": ("chunk_tokens", 1.0),
    "max_batch": ("max_batch", 1.0),
    "reserve_gb": ("reserve_bytes", GB),
    "exchange_gb": ("exchange_bytes", GB),
    "sampler_bytes_per_logit": ("sampler_bytes_per_logit", 1.0),
    "workspace_gb": ("workspace_bytes", GB),
    "step_overhead_ms": ("step_overhead_s", MS),
    "layer_overhead_us": ("layer_overhead_s", US),
    "router_delay_ms": ("router_delay_s", MS),
    "mtp_accepted_tokens": ("mtp_accepted_tokens", 1.0),
    "expert_imbalance": ("expert_imbalance", 1.0),
    "context_sigma": ("context_sigma", 1.0),
    "launch_share": ("launch_share", 1.0),
    "expert_layer_overhead_us": ("expert_layer_overhead_s", US),
    "request_overhead_us": ("request_overhead_s", US),
    "poll_steps": ("poll_steps", 1.0),
    "batch_wait_steps": ("batch_wait_steps", 1.0),
    "first_output_ms": ("first_output_s", MS),
    "first_output_steps": ("first_output_steps", 1.0),
    "expert_first_output_us": ("expert_first_output_s", US),
    "prompt_factor": ("prompt_factor", 1.0),
    "handoff_ms": ("handoff_s", MS),
    "handoff_steps": ("handoff_steps", 1.0),
}
_WHOLE = ("chunk_tokens", "max_batch")
_OUTSIDE = {  # of a profile whose memory_fraction is auto
    "outside_mib": MIB,
    "outside_mib_per_token": MIB,
    "outside_mib_per_request": MIB,
    "outside_mib_per_chip": MIB,
}
AUTO = "auto"
_FLAGS = ("decode_prefix_sharing", "overlap_expert_communication", "equal_pages")
ENGINE_KEYS = (*ENGINE_NUMBERS, "memory_fraction", "memory_covers", "tail_merge", "expert_kernel", *_FLAGS)


def engine_ids() -> tuple[str, ...]:
    """Names of the engine profiles."""
    return tuple(sorted(p.stem for p in (hardware_dir() / "engines").glob("*.yaml")))


def load_engine(name: str) -> tuple[Engine, tuple[Assumption, ...]]:
    """An engine profile with an assumption per number (``engine.<key>``, in the key's unit).

    InputError for a name that isn't there.
    """
    if name not in engine_ids():
        import difflib  # only where something is wrong

        near = difflib.get_close_matches(name.lower(), engine_ids(), n=1)
        fix = f"Did you mean {near[0]}?" if near else f"One of {', '.join(engine_ids())}."
        raise InputError(Problem(f"no engine {name!r}.", fix=fix))
    profile = _profile(name)
    return _engine(name, {k: raw["value"] for k, raw in profile.items()}), _assumptions(profile)


@lru_cache(maxsize=8)
def _profile(name: str) -> dict[str, dict[str, Any]]:
    data = read_data_file(hardware_dir() / "engines" / f"{name}.yaml")
    outside = _OUTSIDE if data["memory_fraction"]["value"] == AUTO else ()
    return {k: data[k] for k in (*ENGINE_KEYS, *outside)}


def engine_number(key: str, value: float) -> tuple[str, float]:
    """(field of Engine, value in SI) of a number in the unit of its key."""
    field, factor = ENGINE_NUMBERS[key]
    return field, round(value) if key in _WHOLE else value * factor


def _engine(name: str, values: Mapping[str, Any]) -> Engine:
    numbers: dict[str, Any] = dict(engine_number(key, float(values[key])) for key in ENGINE_NUMBERS)
    fraction = values["memory_fraction"]
    return Engine(
        name=name,
        **numbers,
        tail_merge=cast(TailMerge, values["tail_merge"]),
        memory_fraction=None if fraction == AUTO else float(fraction),
        memory_covers=cast(MemoryCovers, values["memory_covers"]),
        expert_kernel=str(values["expert_kernel"]),
        outside=OutsideMemory(*(float(values[k]) * factor for k, factor in _OUTSIDE.items() if k in values)),
        **{flag: bool(values[flag]) for flag in _FLAGS},
    )


def _assumptions(profile: Mapping[str, Mapping[str, Any]]) -> tuple[Assumption, ...]:
    found = []
    for k, raw in profile.items():
        source: Source = "estimate" if raw["confidence"] == "estimate" else "default"
        value = raw["value"] if isinstance(raw["value"], str) else float(raw["value"])
        found.append(Assumption(f"engine.{k}", value, source, str(raw["source"])))
    return tuple(found)


# ---------------------------------------------------------------- links


@dataclass(frozen=True)
class TierOffer:
    """A line one can rent, per end: price of the port, price per GB by direction as its provider sees it."""

    id: str
    provider: str
    gbit_per_s: float
    usd_per_hour: float
    usd_per_month: float  # 730 hours
    usd_per_gb_out: float | None  # None: the provider's table doesn't say
    usd_per_gb_in: float | None
    kind: str
    date: str  # YYYY-MM, or the year alone
    provenance: Provenance

    def line_tier(self, site: str) -> LineTier:
        """As a tier of a link whose end ``site`` is the provider's; unknown prices per GB count as 0 [USD/B]."""
        return LineTier(self.gbit_per_s, self.usd_per_hour, {site: (self.usd_per_gb_out or 0.0) / GB})


@dataclass(frozen=True)
class LinkDefaults:
    """Defaults of a line and of the NICs inside a site, SI units."""

    goodput: float  # share of a line that carries KV at best
    goodput_by_kind: Mapping[str, float]  # dedicated_wave_rdma, dedicated_wave_tcp, shared_wan, single_stream
    streams: int
    stream_bytes_per_s: float
    max_lines: int
    initial_window_bytes: float
    nic_goodput: float  # share of the NIC's nominal rate that KV reaches, measured
    nic_latency_s: float
    fibre_s_per_km: float  # one way
    route_factor: float
    rtt_s: Mapping[str, float]  # same_rack, same_dc, same_metro, km_100, ...
    tiers: tuple[TierOffer, ...]  # ascending by provider and speed
    assumptions: tuple[Assumption, ...]

    def rtt_of_km(self, km: float) -> float:
        """``2 * km * 5 us * route_factor`` [s]: equipment not included, public clouds measured up to twice."""
        return 2.0 * km * self.fibre_s_per_km * self.route_factor


@lru_cache(maxsize=1)
def link_defaults() -> LinkDefaults:
    """Goodput, streams, RTTs and NIC share of ``hardware/links/defaults.yaml`` and all tiers beside it."""
    data = read_data_file(hardware_dir() / "links" / "defaults.yaml")
    figures = {k: _own_figure(raw) for k, raw in data.items() if isinstance(raw, Mapping) and "value" in raw}
    value = {k: f.value for k, f in figures.items()}
    return LinkDefaults(
        goodput=value["goodput"],
        goodput_by_kind={k: _own_figure(raw).value for k, raw in data["goodput_by_kind"].items()},
        streams=int(value["streams"]),
        stream_bytes_per_s=value["stream_gbit_per_s"] * GBIT_PER_S_IN_BYTES_PER_S,
        max_lines=int(value["max_lines"]),
        initial_window_bytes=value["initial_window_bytes"],
        nic_goodput=value["nic_goodput"],
        nic_latency_s=value["nic_latency_ms"] * MS,
        fibre_s_per_km=value["fibre_us_per_km"] * US,
        route_factor=value["route_factor"],
        rtt_s={k: _own_figure(raw).value * MS for k, raw in data["rtt_ms"].items()},
        tiers=_tiers(),
        assumptions=tuple(
            Assumption(f"link.{k}", f.value, cast(Literal["estimate", "default"], _source(f)), f.source)
            for k, f in figures.items()
        ),
    )


def _source(figure: Figure) -> str:
    return "estimate" if figure.confidence == "estimate" else "default"


def _own_figure(raw: object) -> Figure:
    figure = read_figure(raw, {})
    if isinstance(figure, str):
        raise ValueError(f"hardware/links: {figure}")
    return figure


def _tiers() -> tuple[TierOffer, ...]:
    files = sorted(p for p in (hardware_dir() / "links").glob("*.yaml") if p.stem != "defaults")
    return tuple(offer for path in files for offer in _tiers_of(path))


def _tiers_of(path: Path) -> list[TierOffer]:
    data = read_data_file(path)
    offers = []
    for tier in data["tiers"]:
        per_gb = tier.get("usd_per_gb", {})
        by_hour = "usd_per_hour" in tier
        hourly = tier["usd_per_hour"] if by_hour else tier["usd_per_month"] / HOURS_PER_MONTH
        offers.append(
            TierOffer(
                id=tier["id"],
                provider=data["provider"],
                gbit_per_s=float(tier["gbit_per_s"]),
                usd_per_hour=float(hourly),
                usd_per_month=float(hourly * HOURS_PER_MONTH if by_hour else tier["usd_per_month"]),
                usd_per_gb_out=per_gb.get("out"),
                usd_per_gb_in=per_gb.get("in"),
                kind=tier.get("kind", data["kind"]),
                date=tier.get("date", data["date"]),
                provenance=Provenance(data["source"], data["confidence"]),
            )
        )
    return offers
