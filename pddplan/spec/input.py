"""What a scenario file may hold, as pydantic models: the edge where YAML comes in; also the JSON Schema's source.

Money is USD per hour here: ``money.normalise`` has already turned CNY, months and years into that.
``Input`` of a name says that it is as written; ``spec.types`` holds what the layers above read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pddplan.spec.fields import (
    PLAIN,
    SMALLEST,
    Also,
    Count,
    CountOrZero,
    Flag,
    Gap,
    HitRateField,
    NonNegative,
    Positive,
    PositiveShare,
    Quantiles,
    Share,
    Strict,
    Text,
    TokenCount,
    Tokens,
)
from pddplan.spec.input_sites import KvFormat, LinkInput, SiteInput, WeightFormat


class PrecisionInput(Strict):
    weights: WeightFormat | None = Field(None, description="Format of the weights; native is that of the checkpoint.")
    kv_cache: KvFormat | None = Field(None, description="Format of the KV cache, in memory and on the line.")


Steps = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1000)]


class EngineInput(Strict):
    name: Text | None = Field(None, description="vllm, sglang, trtllm or generic.")
    chunk_tokens: TokenCount | None = Field(None, description="Most tokens of one prefill pass.")
    tail_merge: Literal["never", "whole_fit", "cut"] | None = Field(
        None, description="How a prompt's last chunk is filled."
    )
    step_overhead_ms: NonNegative | None = Field(None, description="Per decode step or prefill pass.")
    layer_overhead_us: NonNegative | None = Field(None, description="Per layer: launches that are not hidden.")
    router_delay_ms: NonNegative | None = Field(None, description="Gateway and router, per request.")
    memory_fraction: PositiveShare | None = Field(
        None, description="Share of chip memory the engine may use; see memory_covers."
    )
    memory_covers: Literal["all", "static", "free"] | None = Field(
        None, description="Of which memory_fraction is a share: all; static, weights and KV; free, what KV may take."
    )
    reserve_gb: NonNegative | None = Field(
        None, description="Per chip, outside the engine's allocator: context and communication buffers together."
    )
    exchange_gb: NonNegative | None = Field(None, description="Beside reserve_gb where chips exchange.")
    sampler_bytes_per_logit: NonNegative | None = Field(
        None, description="Peak of sampling, per row and vocabulary entry."
    )
    workspace_gb: NonNegative | None = Field(None, description="Constant part of the activations, per chip.")
    max_batch: Count | None = Field(None, description="Most running requests per scheduling unit.")
    mtp_accepted_tokens: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1, le=16)] | None = Field(
        None, description="Tokens per step with speculative decoding; 1 is off."
    )
    expert_imbalance: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1, le=64)] | None = Field(
        None, description="Rows of the busiest expert rank over the mean; 1 is balanced."
    )
    context_sigma: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=4)] | None = Field(
        None, description="Sigma of ln(tokens held) over running requests."
    )
    launch_share: PositiveShare | None = Field(None, description="Share of launch latency left by a captured graph.")
    expert_kernel: Text | None = Field(None, description="Kernel of block-scaled experts, where its curve is known.")
    expert_layer_overhead_us: NonNegative | None = Field(None, description="Per layer with experts: routing kernels.")
    request_overhead_us: NonNegative | None = Field(None, description="Per running request and step: the scheduler.")
    poll_steps: Steps | None = Field(None, description="Steps between two looks of a busy scheduler at new requests.")
    batch_wait_steps: Steps | None = Field(None, description="Steps for which prompts are held back to be joined.")
    first_output_ms: NonNegative | None = Field(None, description="From the end of prefill to the first output.")
    first_output_steps: Steps | None = Field(None, description="The same, in decode steps.")
    expert_first_output_us: NonNegative | None = Field(None, description="Further, per layer with experts.")
    prompt_factor: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.5, le=10)] | None = Field(
        None, description="Kernels of a pass with prompts over what the efficiency curves say."
    )
    handoff_ms: NonNegative | None = Field(None, description="From prefill to decode workers, beside the bytes.")
    handoff_steps: Steps | None = Field(None, description="The same, in decode steps.")
    decode_prefix_sharing: Flag | None = Field(None, description="Whether decode holds a shared prefix once.")
    overlap_expert_communication: Flag | None = Field(None, description="Two-batch overlap of expert communication.")
    equal_pages: Flag | None = Field(
        None, description="Whether layers of all kinds share KV blocks of one size, which pads windows and states."
    )


class ExchangeInput(Strict):
    cny_per_usd: Positive = Field(description="Then any usd key may be written with cny.")


class BudgetInput(Strict):
    max_usd_per_hour: Positive | None = Field(None, description="Budget; without it the chips are the limit.")


class ObjectiveInput(Strict):
    plain: Literal["cost", "goodput", "profit"] | None = Field(None, alias="=")
    goodput: BudgetInput | None = Field(None, description="Most requests per second for a budget.")
    profit: BudgetInput | None = Field(None, description="Most revenue less cost within a budget.")


class RoleCounts(Strict):
    plain: CountOrZero | None = Field(None, alias="=")
    prefill: CountOrZero | None = None
    relay_decode: CountOrZero | None = None
    main_decode: CountOrZero | None = None
    aggregated: CountOrZero | None = None


class RoleShares(Strict):
    plain: PositiveShare | None = Field(None, alias="=")
    prefill: PositiveShare | None = None
    relay_decode: PositiveShare | None = None
    main_decode: PositiveShare | None = None
    aggregated: PositiveShare | None = None


class SessionsInput(Strict):
    turns: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1, le=1e6)] | None = Field(
        None, description="Requests of one session."
    )
    seconds_between_turns: Gap | None = Field(None, description="{p50: 17, p90: 129} or a number.")


class ForecastInput(Strict):
    precision: PositiveShare | None = None
    recall: Share | None = None


class SloInput(Strict):
    ttft_s: Quantiles | None = Field(None, description="Time to first token, {p50: 3, p99: 20}.")
    tpot_ms: Quantiles | None = Field(None, description="Time per output token.")
    pause_ms: Quantiles | None = Field(None, description="Longest gap between two tokens.")
    e2e_s: Quantiles | None = Field(None, description="Whole request.")
    within: PositiveShare | None = Field(None, description="Share of requests that goodput must hold.")


class WorkloadInput(Strict):
    name: Text | None = None
    request_rate_per_s: Annotated[float, Field(ge=SMALLEST, le=1e9, strict=True, allow_inf_nan=False)] = Field(
        description="The rate to plan for."
    )
    prompt_tokens: Tokens | None = Field(None, description="Number, {p50, p95}, {mean, cv} or {histogram: {8K: 0.3}}.")
    output_tokens: Tokens | None = Field(None, description="The same forms as prompt_tokens.")
    prefix_hit_rate: HitRateField | None = Field(
        None, description="Prefill's own: number, {mean, share_above_95, zero_share} or {histogram: {0.97: 0.7}}."
    )
    decode_prefix_hit_rate: Share | None = Field(None, description="Pins main decode's hit rate.")
    trace: Text | None = Field(None, description="Request log instead of the distributions.")
    burstiness: Annotated[float, Field(ge=SMALLEST, le=1e4, strict=True, allow_inf_nan=False)] | None = Field(
        None, description="Squared CV of the gaps between requests; 1 is Poisson."
    )
    prefix_cache: Literal["shared", "sticky", "affine"] | None = Field(None, description="Where a prefix can be found.")
    first_token: Literal["after_transfer", "on_prefill"] | None = Field(None, description="When token 1 is sent.")
    hourly_load: Annotated[list[NonNegative], Field(min_length=24, max_length=24)] | None = Field(
        None, description="24 relative values; sized for the peak."
    )
    sessions: SessionsInput | None = None
    output_forecast: ForecastInput | None = Field(None, description="Quality of the filter's forecast.")
    slo: SloInput | None = None


class PricesInput(Strict):
    plain: Text | None = Field(None, alias="=")
    input_usd_per_mtok: NonNegative | None = Field(None, description="Per million uncached input tokens.")
    cached_input_usd_per_mtok: NonNegative | None = Field(None, description="Per million cached input tokens.")
    output_usd_per_mtok: NonNegative | None = Field(None, description="Per million output tokens.")


class ScenarioInput(Strict):
    name: Text | None = None
    model: Text = Field(description="Id of a model, or a path to a card or config.json.")
    precision: PrecisionInput | None = None
    engine: Annotated[EngineInput, Also("name", {"type": "string"})] | None = Field(
        None, description="vllm, sglang, trtllm, generic, or a mapping that changes one of them."
    )
    calibration: Text | None = Field(
        None, description="File of factors fitted to own measurements, as pddplan calibrate writes it."
    )
    exchange: ExchangeInput | None = None
    objective: Annotated[ObjectiveInput, Also(PLAIN, {"enum": ["cost", "goodput", "profit"]})] | None = Field(
        None, description="cost, goodput or profit."
    )
    spares: Annotated[RoleCounts, Also(PLAIN, {"type": "integer", "minimum": 0})] | None = Field(
        None, description="Instances beyond need, per role and site."
    )
    max_utilization: (
        Annotated[RoleShares, Also(PLAIN, {"type": "number", "exclusiveMinimum": 0, "maximum": 1})] | None
    ) = Field(None, description="Cap on utilisation beside the SLO, one number or per role.")
    workload: WorkloadInput | None = Field(None, description="The traffic to plan for.")
    workloads: list[WorkloadInput] | None = Field(None, description="Several workloads, each with a name.")
    sites: Annotated[list[SiteInput], Field(min_length=1)] = Field(description="Where the chips are.")
    links: list[LinkInput] | None = Field(None, description="Lines between sites.")
    slo: SloInput | None = None
    prices: Annotated[PricesInput, Also(PLAIN, {"type": "string"})] | None = Field(
        None, description="What tokens sell at: by value, or the name of a listed model."
    )
