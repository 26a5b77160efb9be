"""What a scenario file may hold about sites, chips and lines, as pydantic models (see ``input``)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pddplan.spec.fields import (
    PLAIN,
    Also,
    Count,
    CountOrZero,
    Counts,
    Flag,
    NonNegative,
    OpenShare,
    PerGb,
    Positive,
    PositiveShare,
    Strict,
    Text,
    TtftTable,
)

RoleName = Literal["prefill", "relay_decode", "main_decode", "aggregated"]
WeightFormat = Literal["native", "bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
KvFormat = Literal["bf16", "fp8"]


class ChipPrecisionInput(Strict):
    weights: WeightFormat | None = Field(
        None,
        description="Format of the weights on this chip; by default what it has nearest to the scenario's.",
    )
    kv_cache: KvFormat | None = Field(
        None,
        description="Format of the KV cache on this chip; by default the scenario's if it reads it, else bf16.",
    )


class ChipPriceInput(Strict):
    plain: NonNegative | None = Field(None, alias="=")
    capex_usd: NonNegative | None = Field(None, description="Price of one chip with its share of the node.")
    years: Positive | None = Field(None, description="Written off over so many years.")
    all_in_kw: Positive | None = Field(None, description="Power of one chip with its share of the node.")


class ParallelismInput(Strict):
    tp: Counts | None = Field(None, description="Tensor parallelism: one value or a list.")
    pp: Counts | None = Field(None, description="Pipeline parallelism.")
    dp: Counts | None = Field(None, description="Data-parallel attention ranks.")
    ep: Counts | None = Field(None, description="Expert parallelism.")


class InstancesInput(Strict):
    prefill: CountOrZero | None = None
    relay_decode: CountOrZero | None = None
    main_decode: CountOrZero | None = None
    aggregated: CountOrZero | None = None


class MeasuredInput(Strict):
    chips_per_instance: Count = Field(description="Chips of the instance that was measured.")
    tokens_per_s: Positive | None = Field(None, description="Per instance: prompt tokens (prefill) or output tokens.")
    cached_counted: Flag | None = Field(None, description="Whether prompt tokens from the cache are in the rate.")
    ttft_s: TtftTable | None = Field(None, description="Seconds by uncached tokens, {1K: 0.44, 8K: 0.72}.")
    batch: Positive | None = Field(None, description="Running requests at which the rate was measured.")
    tpot_ms: Positive | None = Field(None, description="Time per output token at that batch.")


class MeasuredRolesInput(Strict):
    prefill: MeasuredInput | None = None
    relay_decode: MeasuredInput | None = None
    main_decode: MeasuredInput | None = None
    aggregated: MeasuredInput | None = None


class ChipInput(Strict):
    chip: str | dict[str, Any] = Field(description="Id, alias, a YAML file beside the scenario, or the four numbers.")
    max: Count = Field(description="Most chips in use at once; whole nodes of them are paid, see buy_in.")
    owned: CountOrZero | None = Field(None, description="Part of max that is paid anyway; used first.")
    usd_per_hour: Annotated[ChipPriceInput, Also(PLAIN, {"type": "number", "minimum": 0})] | None = Field(
        None, description="Per chip, or {capex_usd, years, all_in_kw}."
    )
    capex_usd: NonNegative | None = Field(None, description="Instead of usd_per_hour, with years.")
    years: Positive | None = Field(None, description="Written off over so many years.")
    all_in_kw: Positive | None = Field(None, description="Power of one chip with its share of the node.")
    buy_in: Count | None = Field(
        None, description="Chips bought at a time, the chip's node by default; a part of it is paid as a whole."
    )
    precision: ChipPrecisionInput | None = None
    parallelism: ParallelismInput | None = Field(None, description="Narrows the candidates; one value pins it.")
    instances: InstancesInput | None = Field(None, description="Pins a count per role.")
    measured: MeasuredRolesInput | None = Field(None, description="Rates that replace the roofline for a role.")


class CacheInput(Strict):
    host_gb_per_chip: NonNegative | None = None
    host_gb_per_s: Positive | None = Field(None, description="Per chip, host memory to chip.")
    remote_tb: NonNegative | None = None
    remote_gb_per_s: Positive | None = None
    usd_per_tb_hour: NonNegative | None = None


class PowerInput(Strict):
    max_kw: Positive | None = None
    usd_per_kwh: NonNegative | None = None
    pue: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1, le=5)] | None = None


class SiteInput(Strict):
    name: Text
    roles: Annotated[list[RoleName], Field(min_length=1)] | None = Field(None, description="Absent: all roles.")
    chips: Annotated[list[ChipInput], Field(min_length=1)]
    cache: CacheInput | None = Field(None, description="Room for prefixes outside chip memory.")
    power: PowerInput | None = Field(None, description="Energy price and limit; absent: in the chip's price.")


class BurstInput(Strict):
    commit_gbit_per_s: NonNegative
    usd_per_gbit_month: NonNegative


class TierInput(Strict):
    gbit_per_s: Positive
    usd_per_hour: NonNegative | None = Field(None, description="Of one line.")
    usd_per_gb: PerGb | None = Field(None, description="Number, or {from_SITE: number} by the site traffic leaves.")
    burst_95: BurstInput | None = Field(None, description="95th-percentile billing above a commitment.")


class LinkInput(Strict):
    between: Annotated[list[Text], Field(min_length=2, max_length=2)] = Field(description="Names of two sites.")
    rtt_ms: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e5)] = Field(
        description="Round trip; usual ones by distance: pddplan hardware list --lines."
    )
    goodput: PositiveShare | None = Field(None, description="Share of the line that carries KV at best.")
    shared_with_others: OpenShare | None = Field(None, description="Share that is not ours.")
    streams: Count | None = Field(None, description="TCP streams that one transfer uses.")
    stream_gbit_per_s: Positive | None = Field(None, description="What one stream reaches.")
    max_lines: Count | None = Field(None, description="Of a tier, side by side.")
    tiers: Annotated[list[TierInput], Field(min_length=1)]
