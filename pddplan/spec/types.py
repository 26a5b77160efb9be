"""A scenario as typed records, SI units inside: what every layer above reads.

The loader (``spec.load``) turns a file into a ``Scenario``; nothing here reads files or knows YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pddplan.spec.workload import Traffic, Workload

Role = Literal["prefill", "relay_decode", "main_decode", "aggregated"]
ROLES: tuple[Role, ...] = ("prefill", "relay_decode", "main_decode", "aggregated")
Source = Literal["input", "catalogue", "fitted", "default", "estimate"]
Metric = Literal["ttft", "tpot", "pause", "e2e"]
TailMerge = Literal["never", "whole_fit", "cut"]


@dataclass(frozen=True)
class Assumption:
    """A number the answer rests on that isn't a plain input: its value and where it comes from."""

    name: str
    value: float | str
    source: Source
    note: str = ""


# ---------------------------------------------------------------- chips


@dataclass(frozen=True)
class Provenance:
    """Where a number comes from: URL or reference, and ``datasheet | secondary | estimate | input``."""

    source: str
    confidence: str


MAX_EFFICIENCY = 1.05  # of a share that was measured: noise above the physical limit that is still believed


@dataclass(frozen=True)
class Calibration:
    """Factors on the shares of a chip's efficiency curves, from a user's measurements; 1 leaves them as shipped."""

    compute: float = 1.0  # of the compute roof: GEMM, grouped GEMM, attention
    memory: float = 1.0  # of the memory bandwidth
    communication: float = 1.0  # of the bandwidth between chips
    file: str = field(default="", compare=False)  # where they stand, for messages
    line: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Chip:
    """A chip in four dimensions (compute per dtype, memory, memory bandwidth, interconnect) plus its node."""

    id: str
    name: str
    vendor: str
    chip_class: str  # gpu | npu | tpu | custom: decides the default efficiencies
    aliases: tuple[str, ...]
    peak_flops: Mapping[str, float]  # dtype (bf16, fp8, int8, fp4) -> dense FLOP/s; absent = unsupported
    memory_bytes: float
    memory_bytes_per_s: float
    scale_up_bytes_per_s: float  # one direction, per chip
    scale_up_domain: int  # chips reachable at scale-up speed
    scale_out_bytes_per_s: float  # NIC, one direction, per chip
    chips_per_node: int
    all_in_watts: float | None
    usd_per_hour: float | None  # list price, None where unknown
    price_kind: str
    price_date: str  # YYYY-MM, "" where unknown
    efficiency: str | None  # id of the fitted efficiency family in hardware/efficiency, None: class default
    provenance: Mapping[str, Provenance]  # per key of the chip file
    missing: tuple[str, ...] = ()  # dimensions not known: not plannable if not empty
    scale_up_pair_bytes_per_s: float | None = None  # mesh, torus: one pair; n chips have min(all, (n-1) x this)
    memory_gb_nominal: float | None = None  # as marketed; memory_bytes is what the device reports where known
    released: int | None = None  # year
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # of a user's chip: numbers implausible for the class
    defaulted: tuple[str, ...] = ()  # keys nobody gave: class defaults, bf16 from another format
    tdp_watts: float | None = None  # of the chip alone
    status: str = ""  # shipping | announced | discontinued
    usable_bytes: float | None = None  # of memory_bytes, what the driver leaves to programs; None: not known, all
    calibration: Calibration = Calibration()


# ---------------------------------------------------------------- sites, links


@dataclass(frozen=True)
class Precision:
    """Formats: weights (bf16, fp8, int8, int4, mxfp4, nvfp4, native) and KV cache (bf16, fp8)."""

    weights: str
    kv_cache: str


@dataclass(frozen=True)
class ChipPrecision:
    """What an offer states of its chip's formats; None: not stated, see ``perf.precision`` for what it runs then."""

    weights: str | None = None
    kv_cache: str | None = None


MemoryCovers = Literal["all", "static", "free"]


@dataclass(frozen=True)
class OutsideMemory:
    """What an engine that is given no fraction sets aside for activations and graphs, per chip."""

    bytes: float = 0.0
    bytes_per_token: float = 0.0  # of chunk_tokens
    bytes_per_request: float = 0.0  # of max_batch
    bytes_per_chip: float = 0.0  # of tp x pp


@dataclass(frozen=True)
class Engine:
    """Serving engine profile; every number has one meaning."""

    name: str
    chunk_tokens: int
    tail_merge: TailMerge
    step_overhead_s: float  # per decode step or prefill pass
    layer_overhead_s: float  # per layer: launches that are not hidden
    router_delay_s: float
    memory_fraction: float | None  # of chip memory; what it covers: memory_covers. None: what ``outside`` leaves
    reserve_bytes: float  # per chip, outside the engine's allocator: CUDA, NCCL of one chip
    max_batch: int  # running requests per scheduling unit
    mtp_accepted_tokens: float  # tokens per step, 1 = off
    decode_prefix_sharing: bool
    overlap_expert_communication: bool
    expert_imbalance: float = 1.0  # rows of the busiest expert rank over the mean, 1 = balanced
    context_sigma: float = 0.8  # sigma of ln(tokens held) over running requests: what DP ranks differ by
    overlap_compute_share: float = 0.15  # of compute, held by hidden exchange (20 of 132 SMs, arXiv 2412.19437)
    launch_share: float = 1.0  # of the kernels' launch latency: what a captured graph leaves of it
    expert_kernel: str = ""  # name of the engine's own kernel for block-scaled experts, where a family has its curve
    expert_layer_overhead_s: float = 0.0  # per layer with experts: routing, sorting, quantising kernels
    request_overhead_s: float = 0.0  # per running request of a scheduling unit and step: scheduler and sampler
    poll_steps: float = 0.0  # steps between two looks of a busy scheduler at what has arrived
    batch_wait_steps: float = 0.0  # steps for which prompts are held back, from the first one on, for others to join
    first_output_s: float = 0.0  # from the end of prefill to the first output at the client: sampler, detokeniser, HTTP
    first_output_steps: float = 0.0  # the same, in decode steps
    prompt_factor: float = 1.0  # kernels of a pass with prompts, launched one by one, over what the curves say
    handoff_s: float = 0.0  # prefill to decode in separate workers, beside the bytes: router, registration
    handoff_steps: float = 0.0  # the same, in decode steps: what a scheduler does between two of them
    expert_first_output_s: float = 0.0  # further per layer with experts: a prompt's pass is launched kernel by kernel
    # all: reserve, weights, activations and KV; static: weights and KV; free: KV, of what the others leave
    memory_covers: MemoryCovers = "all"
    exchange_bytes: float = 0.0  # reserve beside ``reserve_bytes`` where chips exchange
    sampler_bytes_per_logit: float = 14.5  # peak of sampling per row and vocabulary entry
    workspace_bytes: float = 0.0  # constant part of the activations
    outside: OutsideMemory = OutsideMemory()
    equal_pages: bool = False  # layers of all kinds share blocks of one size: windows and states are padded to it


@dataclass(frozen=True)
class Measured:
    """Rates measured for a role; replace the roofline."""

    chips_per_instance: int
    tokens_per_s: float | None
    cached_counted: bool = False
    ttft_s: tuple[tuple[float, float], ...] = ()  # (uncached tokens, seconds), ascending
    batch: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True)
class ParallelismChoice:
    """Allowed values, None = all."""

    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ChipOffer:
    """Chips of one kind that a site has or can rent."""

    chip: Chip
    max_chips: int
    owned_chips: int
    usd_per_hour: float  # per chip, energy not included
    buy_in: int
    precision: ChipPrecision | None  # stated formats, which replace the scenario's
    parallelism: ParallelismChoice
    instances: Mapping[Role, int]  # pinned counts
    measured: Mapping[Role, Measured]
    key: str = ""  # "sites[0].chips[0]", for messages


@dataclass(frozen=True)
class CacheTier:
    host_bytes_per_chip: float
    host_bytes_per_s: float
    remote_bytes: float
    remote_bytes_per_s: float
    usd_per_byte_hour: float


@dataclass(frozen=True)
class Power:
    max_watts: float | None
    usd_per_kwh: float
    pue: float


@dataclass(frozen=True)
class Site:
    name: str
    roles: tuple[Role, ...]
    offers: tuple[ChipOffer, ...]
    cache: CacheTier | None
    power: Power | None


@dataclass(frozen=True)
class Burst95:
    """95th-percentile billing: what lies above the commitment is paid."""

    commit_bytes_per_s: float
    usd_per_byte_per_s_hour: float


@dataclass(frozen=True)
class LineTier:
    gbit_per_s: float
    usd_per_hour: float
    usd_per_byte: Mapping[str, float]  # by the site the traffic leaves
    burst_95: Burst95 | None = None


@dataclass(frozen=True)
class Link:
    between: tuple[str, str]
    rtt_s: float
    goodput: float
    shared_with_others: float
    streams: int
    stream_bytes_per_s: float
    max_lines: int
    tiers: tuple[LineTier, ...]
    key: str = ""


# ---------------------------------------------------------------- goals


@dataclass(frozen=True)
class SloLimit:
    """A quantile's limit over the requests of one workload; ``workload`` None: of the only one.

    ``key`` is where the ``slo:`` stands that says so.
    """

    metric: Metric
    quantile: float
    limit_s: float
    workload: str | None = None
    key: str = field(default="slo", compare=False)


@dataclass(frozen=True)
class WithinLimit:
    """Share of a workload's requests that must keep its TTFT and TPOT limits."""

    share: float
    workload: str | None = None


@dataclass(frozen=True)
class Prices:
    input_usd_per_mtok: float
    cached_input_usd_per_mtok: float
    output_usd_per_mtok: float


@dataclass(frozen=True)
class Objective:
    name: Literal["cost", "goodput", "profit"]
    max_usd_per_hour: float | None = None


@dataclass(frozen=True)
class Scenario:
    name: str
    model: str  # id of a card; resolve with llm.catalogue.load_model(scenario.model, base_dir)
    precision: Precision
    engine: Engine
    traffic: Traffic
    sites: tuple[Site, ...]
    links: tuple[Link, ...]
    slo: tuple[SloLimit, ...]
    slo_within: tuple[WithinLimit, ...]  # shares that goodput must hold
    prices: Prices | None
    objective: Objective
    spares: Mapping[Role, int]
    max_utilization: Mapping[Role, float]
    cny_per_usd: float | None
    assumptions: tuple[Assumption, ...]
    base_dir: str = "."
    file: str = "<scenario>"
    sha256: str = ""
    warnings: tuple[str, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)  # key path -> line of the file

    @property
    def workload(self) -> Workload:
        """The only workload. Raises ValueError where there are several: ``traffic`` has them."""
        if self.traffic.several:
            raise ValueError(f"the scenario has {len(self.traffic.workloads)} workloads")
        return self.traffic.workloads[0]
