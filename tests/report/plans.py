"""Hand-made plans: one feasible over two sites, one infeasible, for the tests of report and cli."""

from __future__ import annotations

from dataclasses import replace

from pddplan.errors import Excuse
from pddplan.perf.utilization import Utilization
from pddplan.plan.records import (
    Alternative,
    Binding,
    CostSplit,
    Fix,
    LinkPlan,
    PlanResult,
    Revenue,
    RolePlan,
)
from pddplan.serve.records import Evaluation, LineLoad, PoolLoad, Routing, SloValue
from pddplan.spec.types import (
    Assumption,
    Chip,
    ChipOffer,
    Engine,
    LineTier,
    Link,
    Objective,
    ParallelismChoice,
    Precision,
    Provenance,
    Scenario,
    Site,
    SloLimit,
    WithinLimit,
)
from pddplan.spec.workload import HitRate, Sessions, TokenDistribution, Traffic, Workload

SHA = "8c2f0a6d51e94b7fa3b0c9d8e7f60514233241506f7e8d9cab0c1d2e3f405162"


def chip(name: str, alias: str, price: float, priced: str) -> Chip:
    source = Provenance("https://example.org/datasheet", "datasheet")
    return Chip(
        id=name,
        name=name.upper(),
        vendor="nvidia",
        chip_class="gpu",
        aliases=(alias, f"{alias}-sxm"),
        peak_flops={"bf16": 989e12, "fp8": 1979e12},
        memory_bytes=80e9,
        memory_bytes_per_s=3.35e12,
        scale_up_bytes_per_s=200e9,
        scale_up_domain=8,
        scale_out_bytes_per_s=50e9,
        chips_per_node=8,
        all_in_watts=1300.0,
        usd_per_hour=price,
        price_kind="list",
        price_date=priced,
        efficiency=None,
        provenance={"memory_bytes": source},
    )


def offer(kind: Chip, most: int, key: str) -> ChipOffer:
    return ChipOffer(
        chip=kind,
        max_chips=most,
        owned_chips=0,
        usd_per_hour=kind.usd_per_hour or 0.0,
        buy_in=8,
        precision=None,
        parallelism=ParallelismChoice(),
        instances={},
        measured={},
        key=key,
    )


ASSUMPTIONS = (
    Assumption("sites[1].chips[0].usd_per_hour", 1.2, "catalogue", "rental list price of 2026-06"),
    Assumption("links[0].goodput", 0.9, "default", "share of the line that carries KV at best"),
    Assumption("links[0].streams", 1.0, "input"),
    Assumption("workload.prefix_cache", "affine", "default", "sticky with overflow"),
    Assumption("workload.sessions.turns", 30.0, "default", "published traces of coding agents"),
    Assumption("sites[0].chips[0].efficiency", "class-gpu", "estimate", "no measurements of this chip"),
    Assumption("kernel efficiency of nvidia-h800-sxm", 0.71, "fitted", "measured GEMMs"),
)


def scenario() -> Scenario:
    north = Site(
        "north",
        ("prefill", "relay_decode"),
        (offer(chip("nvidia-h800-sxm", "h800", 2.0, "2026-10"), 96, "sites[0].chips[0]"),),
        None,
        None,
    )
    west = Site(
        "west",
        ("main_decode",),
        (offer(chip("nvidia-h20-96g", "h20", 1.2, "2026-06"), 128, "sites[1].chips[0]"),),
        None,
        None,
    )
    tiers = (LineTier(10, 2.3, {}), LineTier(100, 23, {}))
    return Scenario(
        name="agent-64k",
        model="deepseek-v3.2",
        precision=Precision("fp8", "fp8"),
        engine=Engine("generic", 8192, "whole_fit", 0.004, 1e-5, 0.001, 0.9, 2e9, 256, 1.0, True, False),
        traffic=Traffic(
            (
                Workload(
                    name="agent",
                    request_rate_per_s=10.0,
                    prompt_tokens=TokenDistribution(fixed=65536.0),
                    output_tokens=TokenDistribution(fixed=1024.0),
                    prefix_hit_rate=HitRate(0.9, share_above_95=0.75),
                    decode_prefix_hit_rate=None,
                    burstiness=1.0,
                    prefix_cache="affine",
                    first_token="after_transfer",
                    hourly_load=None,
                    sessions=Sessions(30, 17, 129),
                    output_forecast=(0.9, 0.8),
                ),
            )
        ),
        sites=(north, west),
        links=(Link(("north", "west"), 0.008, 0.9, 0.0, 1, 125e6, 4, tiers, "links[0]"),),
        slo=(SloLimit("ttft", 0.5, 3.0), SloLimit("ttft", 0.99, 20.0), SloLimit("tpot", 0.9, 0.05)),
        slo_within=(WithinLimit(0.99),),
        prices=None,
        objective=Objective("cost"),
        spares={},
        max_utilization={},
        cny_per_usd=None,
        assumptions=ASSUMPTIONS,
        sha256=SHA,
    )


def evaluation() -> Evaluation:
    busy = Utilization(0.54, 0.81, 0.31, 0.12)
    return Evaluation(
        slo=(
            SloValue("ttft", 0.5, 0.812, 3.0, "prefill"),
            SloValue("ttft", 0.99, 12.04, 20.0, "line"),
            SloValue("tpot", 0.9, 0.0496, 0.05, "main_decode"),
            SloValue("pause", 0.99, 0.412, None, "hand_over"),
        ),
        loads=(
            PoolLoad("prefill", 0.713, 1.0, 0.32, busy),
            PoolLoad("relay_decode", 0.402, 41.0, 0.031, busy),
            PoolLoad("main_decode", 0.886, 212.0, 0.044, busy),
        ),
        lines=(LineLoad(4.1e9, 11.2e9, 0.366, 410e6),),
        routing=Routing(0.958, 0.042, 0.0, 0.0213, 0.4),
        prefill_hit_rate=0.9,
        decode_hit_rate=0.861,
        loop_gain=0.072,
        excuses=(),
        within_slo_share=0.993,
    )


def feasible() -> PlanResult:
    used = Utilization(0.54, 0.81, 0.31, None)
    north, west = "north", "west"
    return PlanResult(
        status="feasible",
        architecture="pdd",
        objective="cost",
        value=163.8,
        unit="USD/h",
        bound=163.75,
        gap=0.000305,
        roles=(
            RolePlan("prefill", north, "nvidia-h800-sxm", 3, 8, 8, 1, 1, 8, 1, 48.0, used, 0.713),
            RolePlan("relay_decode", north, "nvidia-h800-sxm", 1, 8, 4, 1, 2, 8, 64, 16.0, used, 0.402),
            RolePlan("main_decode", west, "nvidia-h20-96g", 4, 16, 1, 1, 16, 16, 256, 76.8, used, 0.886),
        ),
        links=(LinkPlan(north, west, 1, 100.0, 32.8, 0.366, 23.0, 0.0),),
        evaluation=evaluation(),
        goodput_rps=10.0,
        within_slo_rps=9.93,
        headroom_rps=11.37,
        cost=CostSplit(
            usd_per_hour=163.8,
            roles_usd_per_hour=140.8,
            links_usd_per_hour=23.0,
            other_usd_per_hour=0.0,
            link_share=23.0 / 163.8,
            input_usd_per_mtok=0.2413,
            cached_input_usd_per_mtok=0.00714,
            output_usd_per_mtok=1.873,
            blended_usd_per_mtok=0.0684,
            tokens_per_hour={"input": 2.36e8, "cached_input": 2.12e9, "output": 3.69e7},
        ),
        revenue=Revenue(320.0, 129.8, 116.6, 73.6, 156.2),
        binding=(Binding("tpot_p90", 0.008, "Allow 55 ms to save one main-decode instance ($19.2/h)."),),
        alternatives=(Alternative(171.0, "pdd", "4 prefill instances, line of 10 Gbit/s x 4"),),
        assumptions=ASSUMPTIONS,
        recommendation="Split: saves 11 % against one site; the line is 14 % of it; TTFT p99 12 s, limit 20.",
        timing_s={"load": 0.04, "solve": 1.2, "evaluate": 0.3},
        scenario_name="agent-64k",
        scenario_sha256=SHA,
        catalogue_date="2026-11-12",
        bcr=0.061,
    )


def infeasible() -> PlanResult:
    return replace(
        feasible(),
        status="infeasible",
        architecture=None,
        value=None,
        bound=None,
        gap=None,
        roles=(),
        links=(),
        evaluation=None,
        goodput_rps=None,
        within_slo_rps=None,
        headroom_rps=None,
        cost=None,
        revenue=None,
        binding=(),
        alternatives=(),
        recommendation="The line between north and west is too small for the misses of this traffic.",
        excuses=(Excuse("line_capacity", 32.8, 9.0, "Gbit/s", "north to west"),),
        fixes=(Fix("Offer the 100 Gbit/s tier.", ("links[0].tiers=[{gbit_per_s: 100, usd_per_hour: 23}]",), 163.8),),
    )


def unknown() -> PlanResult:
    return replace(feasible(), status="unknown", bound=151.0, gap=0.078)
