"""Small random scenarios, and every integer plan that one of them lets a person buy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from pddplan.economics.cost import bill
from pddplan.errors import Excuse
from pddplan.perf.candidates import candidate_instances
from pddplan.perf.service import aggregated_service, decode_service, prefill_service
from pddplan.plan.options import build_shop
from pddplan.plan.solve import prepare
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, LineChoice, Pool
from pddplan.serve.evaluate import evaluate
from pddplan.serve.records import Evaluation
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import ROLES, Role, Scenario
from tests.host import HOST

# four numbers each: one that computes, one that remembers, one in between
CHIPS = (
    {"name": "counter", "bf16_tflops": 400, "memory_gb": 40, "memory_gb_per_s": 1500, "interconnect_gb_per_s": 200},
    {"name": "keeper", "bf16_tflops": 150, "memory_gb": 64, "memory_gb_per_s": 3000, "interconnect_gb_per_s": 200},
    {"name": "middle", "bf16_tflops": 250, "memory_gb": 32, "memory_gb_per_s": 2000, "interconnect_gb_per_s": 100},
)


@dataclass(frozen=True)
class Plan:
    """A deployment with what it costs before any byte is on the line [USD/h]."""

    usd_per_hour: float
    deployment: Deployment


def world(seed: int, *, mixed_formats: bool = False) -> Scenario:
    """A scenario drawn from ``seed``; its latency limits lie around what one of its own plans reaches.

    ``mixed_formats``: an fp8 KV cache (or bf16, with chips that are stated to hold fp8), which only some chips read.
    """
    return load_world(world_data(seed, mixed_formats=mixed_formats))


def world_data(seed: int, *, mixed_formats: bool = False) -> dict[str, Any]:
    """The same as a person would write it."""
    rng = np.random.default_rng(seed)
    data = _without_limits(rng)
    if mixed_formats:
        _mix_formats(rng, data)
    scenario = load_world(data)
    context = prepare(scenario)
    data["workload"]["request_rate_per_s"] = float(f"{_rate(rng, context):.3g}")
    data["slo"] = {"tpot_ms": {_pick(rng, ["p50", "p90", "p99"]): float(f"{_tpot_ms(rng, context):.3g}")}}
    if rng.random() < 0.15:
        del data["slo"]
    context = prepare(load_world(data))
    limits = _ttft_limits(rng, context)
    if limits:
        data.setdefault("slo", {})["ttft_s"] = limits
    return data


def mixed_world(seed: int) -> Scenario:
    """Two workloads on the same chips, each with limits around what one of the plans reaches for it."""
    rng = np.random.default_rng(seed)
    data = _without_limits(rng)
    first = {"name": "first", **data.pop("workload")}
    second = {"name": "second", **_workload(rng)}
    for key in ("prefix_cache", "first_token", "output_forecast"):  # of the deployment: the same in both
        second.pop(key, None)
        if key in first:
            second[key] = first[key]
    pinned = "decode_prefix_hit_rate"
    if (pinned in first) != (pinned in second):
        first.pop(pinned, None)
        second.pop(pinned, None)
    data["workloads"] = [first, second]
    part = float(rng.uniform(0.1, 0.9))
    first["request_rate_per_s"], second["request_rate_per_s"] = part, 1.0 - part
    rate = _rate(rng, prepare(load_world(data)))
    for work in data["workloads"]:
        work["request_rate_per_s"] = float(f"{work['request_rate_per_s'] * rate:.3g}")
    tightest = 1.5 * _tpot_ms(rng, prepare(load_world(data)))
    for work in data["workloads"]:
        if rng.random() < 0.8:
            limit = float(f"{tightest * rng.uniform(1.0, 2.0):.3g}")
            work["slo"] = {"tpot_ms": {_pick(rng, ["p50", "p90", "p99"]): limit}}
    reached = _reached(rng, prepare(load_world(data)))
    for work in data["workloads"]:
        if reached and rng.random() < 0.9:
            limits = {key: 1.3 * limit for key, limit in _limits_around(rng, reached[work["name"]]).items()}
            work.setdefault("slo", {})["ttft_s"] = limits
    return load_world(data)


def load_world(data: dict[str, Any]) -> Scenario:
    return load_scenario_text(yaml.safe_dump(data, sort_keys=False), "world.yaml")


def _pick(rng: np.random.Generator, values: list[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def _without_limits(rng: np.random.Generator) -> dict[str, Any]:
    shape = _pick(rng, ["two", "two", "two", "two", "both", "one"])  # sites, and whether either runs every role
    sites = _sites(rng, shape)
    data: dict[str, Any] = {
        "name": "small",
        "model": "llama-3.1-8b",
        "precision": {"weights": "bf16", "kv_cache": "bf16"},
        "engine": {"name": "generic", "max_batch": _pick(rng, [4, 8, 16, 32]), "chunk_tokens": 4096, **HOST},
        "workload": _workload(rng),
        "sites": sites,
    }
    if shape != "one":
        data["links"] = [_link(rng)]
    if rng.random() < 0.2:
        data["spares"] = {_pick(rng, ["prefill", "relay_decode", "main_decode"]): 1}
    if shape != "one" and rng.random() < 0.1:
        data["workload"]["output_forecast"] = {"precision": 0.9, "recall": 0.8}
    if rng.random() < 0.25:
        role = _pick(rng, ["prefill", "relay_decode", "main_decode"])
        data["max_utilization"] = {role: float(_pick(rng, [0.5, 0.7, 0.9]))}
    return data


def _mix_formats(rng: np.random.Generator, data: dict[str, Any]) -> None:
    """Two chips at the first site for half of the worlds; fp8 for some chips and not for others; some caches stated."""
    data["precision"]["kv_cache"] = _pick(rng, ["fp8", "fp8", "fp8", "bf16"])
    first = data["sites"][0]["chips"]
    if rng.random() < 0.5:
        first.append(_offer(rng, 3, exclude=first[0]["chip"]["name"]))
    offers = [offer for site in data["sites"] for offer in site["chips"]]
    has = [rng.random() < 0.5 for _ in offers]
    if len(set(has)) == 1:
        has[0] = not has[0]
    for offer, reads in zip(offers, has, strict=True):
        if reads:
            offer["chip"]["fp8_tflops"] = 2 * offer["chip"]["bf16_tflops"]
        if rng.random() < (0.2 if data["precision"]["kv_cache"] == "fp8" else 0.6):
            offer["precision"] = {"kv_cache": _pick(rng, ["bf16", "fp8"])}


def _workload(rng: np.random.Generator) -> dict[str, Any]:
    work: dict[str, Any] = {"request_rate_per_s": 1.0}
    work["prompt_tokens"] = _pick(rng, [2048, 8192, 8192, 16384, {"histogram": {2048: 0.6, 16384: 0.4}}])
    work["output_tokens"] = _pick(rng, [64, 128, 256, {"histogram": {32: 0.5, 400: 0.5}}])
    hits = [
        {"histogram": {0.95: 0.8, 0.3: 0.2}},
        {"histogram": {0.97: 0.6, 0.8: 0.3, 0.0: 0.1}},
        {"histogram": {0.9: 1.0}},
        {"histogram": {0.5: 0.5, 0.0: 0.5}},
    ]
    if rng.random() < 0.9:
        work["prefix_hit_rate"] = _pick(rng, hits)
    work["prefix_cache"] = _pick(rng, ["shared", "sticky", "affine"])
    if rng.random() < 0.5:
        gaps = _pick(rng, [{"p50": 2, "p90": 20}, {"p50": 10, "p90": 30}, {"p50": 60, "p90": 400}])
        work["sessions"] = {"turns": _pick(rng, [3, 10, 40]), "seconds_between_turns": gaps}
    if rng.random() < 0.2:
        work["first_token"] = "on_prefill"
    if rng.random() < 0.15:
        work["burstiness"] = float(_pick(rng, [2.0, 4.0]))
    if rng.random() < 0.15:
        work["decode_prefix_hit_rate"] = float(_pick(rng, [0.0, 0.2, 0.4]))
    return work


def _sites(rng: np.random.Generator, shape: str) -> list[dict[str, Any]]:
    split = [["prefill", "relay_decode"], ["main_decode"]]
    roles: list[list[str] | None] = {
        "two": split,
        "both": [["prefill", "relay_decode", "main_decode"], ["main_decode"]],
        "one": [_pick(rng, [["prefill", "main_decode"], ["prefill", "main_decode", "aggregated"]])],
    }[shape]
    sites = []
    for name, allowed in zip(["north", "west"], roles, strict=False):
        site: dict[str, Any] = {"name": name, "roles": allowed, "chips": [_offer(rng, 4 if name == "north" else 5)]}
        if name == "west" and rng.random() < 0.25:
            site["chips"].append(_offer(rng, 3, exclude=site["chips"][0]["chip"]["name"]))
        if rng.random() < 0.15:
            site["cache"] = {"host_gb_per_chip": _pick(rng, [4, 32]), "usd_per_tb_hour": 0.5}
        sites.append(site)
    return sites


def _offer(rng: np.random.Generator, largest: int, exclude: str = "") -> dict[str, Any]:
    chip = _pick(rng, [c for c in CHIPS if c["name"] != exclude])
    parallelism: dict[str, Any] = {"tp": [1], "pp": [1]}
    most = int(rng.integers(2, largest + 1))
    if rng.random() < 0.2:
        parallelism["tp"], most = [1, 2], most + 1
    offer: dict[str, Any] = {"chip": dict(chip), "max": most, "parallelism": parallelism}
    offer["usd_per_hour"] = float(f"{rng.uniform(0.5, 4.0):.3g}")
    offer["buy_in"] = _pick(rng, [1, 1, 1, 2])
    if rng.random() < 0.2:
        offer["owned"] = int(rng.integers(1, most + 1))
    return offer


def _link(rng: np.random.Generator) -> dict[str, Any]:
    tiers = []
    for gbit in sorted(rng.choice([2.0, 5.0, 10.0, 25.0, 100.0], size=int(rng.integers(1, 3)), replace=False).tolist()):
        tier: dict[str, Any] = {"gbit_per_s": gbit, "usd_per_hour": float(f"{gbit * rng.uniform(0.02, 0.3):.3g}")}
        if rng.random() < 0.3:
            tier["usd_per_gb"] = float(f"{rng.uniform(0.0002, 0.002):.3g}")
        tiers.append(tier)
    link: dict[str, Any] = {"between": ["north", "west"], "rtt_ms": _pick(rng, [1, 8, 30]), "tiers": tiers}
    link["streams"] = _pick(rng, [1, 2, 8, 16])
    link["max_lines"] = 1 if len(tiers) > 1 else _pick(rng, [1, 2])
    return link


def _rate(rng: np.random.Generator, context: Context) -> float:
    """A rate that keeps a random share of the scarcest of prefill chips, decode chips and line busy."""
    atoms = context.demand.atoms
    prefill, decode = [0.0], [0.0]
    for option in options(context, "prefill"):
        times = context.prefill_times(option.pool(1)).shared
        prefill.append(option.most * option.pool(1).prefill.servers_per_instance / atoms.mean(times))
    held = atoms.mean(atoms.prompt) + atoms.mean(atoms.output)
    for option in options(context, "main_decode"):
        kv = float(context.demand.kv_at(np.asarray(held)))
        batch = min(option.service.max_batch, option.service.kv_pool_bytes / kv)
        step = float(option.service.step_time_s(np.asarray(max(batch, 1.0)), np.asarray(held)))
        decode.append(option.most * 0.5 * batch / step / atoms.mean(atoms.output))
    scarce = min(max(prefill), max(decode))
    if context.scenario.links:
        link = context.scenario.links[0]
        widest = max(line.capacity_bytes_per_s for line in lines(context, *link.between))
        scarce = min(scarce, widest / atoms.mean(context.demand.delta_held))
    return float(max(rng.uniform(0.1, 0.9) * scarce, 1e-3))


def _tpot_ms(rng: np.random.Generator, context: Context) -> float:
    """A limit above the step time of an empty batch."""
    floors = [float(context.step_surface(o.pool(1)).table(4096.0).seconds[0]) for o in options(context, "main_decode")]
    return 1e3 * min(floors, default=0.02) * float(rng.uniform(1.15, 3.0))


def _ttft_limits(rng: np.random.Generator, context: Context) -> dict[str, float]:
    """Limits at, below or above what a random plan reaches; none for some scenarios."""
    if rng.random() < 0.1:
        return {}
    values = _reached(rng, context)
    return _limits_around(rng, values[None]) if values else {"p99": float(f"{rng.uniform(0.5, 5.0):.3g}")}


def _reached(rng: np.random.Generator, context: Context) -> dict[str | None, dict[float, float]]:
    """First-token quantiles of a random plan, of each workload, if there are several; empty where nothing is known."""
    plans = every_plan(context)
    for k in range(16 if plans else 0):
        deployment = plans[int(rng.integers(len(plans)))].deployment
        if k < 12 and not evaluate(context, deployment, detail=False).feasible:
            continue
        values: dict[str | None, dict[float, float]] = {}
        for s in evaluate(context, deployment).slo:
            if s.metric == "ttft" and np.isfinite(s.value_s):
                values.setdefault(s.workload, {})[s.quantile] = s.value_s
        if values:
            return values
    return {}


def _limits_around(rng: np.random.Generator, values: dict[float, float]) -> dict[str, float]:
    limits = {"p99": float(f"{values[0.99] * rng.uniform(0.5, 1.2):.3g}")}
    if rng.random() < 0.3:
        limits["p50"] = float(f"{min(values[0.5] * rng.uniform(0.8, 2.0), limits['p99']):.3g}")
    if rng.random() < 0.2:
        limits["p90"] = float(f"{min(values[0.9] * rng.uniform(0.9, 1.5), limits['p99']):.3g}")
    return dict(sorted(limits.items()))


# ---------------------------------------------------------------- every plan


@dataclass(frozen=True, eq=False)
class Option:
    """A kind of instance and the most of it that the offer has chips for; nothing dominated is dropped."""

    role: Role
    site: Any
    offer: Any
    service: Any
    most: int

    def pool(self, count: int) -> Pool:
        return Pool(self.role, self.site, self.offer, self.service, count)


def options(context: Context, role: Role) -> list[Option]:
    """All instances that fit, of all sites, without the planner's own short list."""
    scenario = context.scenario
    make = {"prefill": prefill_service, "aggregated": aggregated_service}.get(role, decode_service)
    found = []
    for site in scenario.sites:
        for offer in site.offers:
            if role not in site.roles:
                continue
            candidates, _ = candidate_instances(offer, context.model, scenario.engine, scenario.precision, role)
            for instance in candidates:
                service: Any = make(instance)
                if isinstance(service, Excuse):
                    continue
                most = offer.max_chips // service.chips_per_instance - scenario.spares.get(role, 0)
                if most >= 1:
                    found.append(Option(role, site, offer, service, most))
    return found


def lines(context: Context, source: str, target: str) -> list[LineChoice]:
    """Every tier x number of lines between two sites, dominated ones too."""
    return [
        LineChoice(link, tier, count, source, target)
        for link in context.scenario.links
        if set(link.between) == {source, target}
        for tier in range(len(link.tiers))
        for count in range(1, link.max_lines + 1)
    ]


def every_plan(context: Context) -> list[Plan]:
    """All integer plans within the inventory, cheapest first by what stands there (chips, ports, caches)."""
    by_role = {role: options(context, role) for role in ROLES}
    plans = [
        Plan(bill(context.scenario, d, (0.0,) * len(d.lines)).usd_per_hour, d)
        for d in _deployments(context, by_role)
        if _in_stock(context.scenario, d)
    ]
    return sorted(plans, key=lambda plan: plan.usd_per_hour)


def _deployments(context: Context, by_role: dict[Role, list[Option]]) -> Iterator[Deployment]:
    for option in by_role["aggregated"]:
        for count in range(1, option.most + 1):
            yield Deployment(aggregated=option.pool(count))
    cache = context.scenario.engine.decode_prefix_sharing
    filters = (False, True) if context.scenario.traffic.output_forecast is not None else (False,)
    for prefill in by_role["prefill"]:
        for main in by_role["main_decode"]:
            same = prefill.site.name == main.site.name
            ways: list[LineChoice | None] = [None] if same else list(lines(context, prefill.site.name, main.site.name))
            relays: list[Pool | None] = [None]
            if not same:
                beside = [o for o in by_role["relay_decode"] if o.site.name == prefill.site.name]
                relays += [o.pool(k) for o in beside for k in range(1, o.most + 1)]
            for p in range(1, prefill.most + 1):
                for m in range(1, main.most + 1):
                    for line in ways:
                        for relay in relays:
                            for use_filter in filters if relay is not None else (False,):
                                yield Deployment(prefill.pool(p), relay, main.pool(m), None, line, cache, use_filter)


def _in_stock(scenario: Scenario, deployment: Deployment) -> bool:
    used: dict[str, int] = {}
    for pool in deployment.pools:
        spare = scenario.spares.get(pool.role, 0) * pool.service.chips_per_instance
        used[pool.offer.key] = used.get(pool.offer.key, 0) + pool.chips + spare
    return all(used.get(o.key, 0) <= o.max_chips for site in scenario.sites for o in site.offers)


@dataclass(frozen=True)
class Answer:
    """What trying everything found: the least cost, its plan, the least cost with instances on the planner's own short
    list, and whether p99 of the first token is what costs."""

    usd_per_hour: float
    plan: Deployment | None
    listed_usd_per_hour: float
    p99_binds: bool
    tried: int
    plans: int


def brute_force(context: Context, below_usd_per_hour: float = float("inf")) -> Answer:
    """Evaluate every plan that could cost less than ``below_usd_per_hour`` with the full model.

    What stands there costs at least ``Plan.usd_per_hour`` (bytes on the line only add to it), so the plans from there
    on can't be cheaper, and are left out.
    """
    plans, listed = every_plan(context), _listed(context)
    best, best_listed, chosen, late, tried = float("inf"), float("inf"), None, float("inf"), 0
    for plan in plans:
        short = all(_kind(p.role, p.offer, p.service) in listed for p in plan.deployment.pools)
        if plan.usd_per_hour >= min(best_listed if short else best, below_usd_per_hour):
            if plan.usd_per_hour >= min(best_listed, below_usd_per_hour):
                break
            continue
        seen = evaluate(context, plan.deployment, detail=False)
        tried += 1
        cost = cost_of(context.scenario, plan.deployment, seen)
        if seen.feasible and cost < best:
            best, chosen = cost, plan.deployment
        if seen.feasible and short:
            best_listed = min(best_listed, cost)
        if {e.constraint for e in seen.excuses} == {"ttft_p99"}:
            late = min(late, cost)
    return Answer(best, chosen, best_listed, late < min(best, below_usd_per_hour) * (1 - 1e-9), tried, len(plans))


def _listed(context: Context) -> set[tuple[object, ...]]:
    """Kinds of instances that the planner doesn't take for dominated."""
    return {_kind(o.role, o.offer, o.service) for pools in build_shop(context).pools.values() for o in pools}


def _kind(role: Role, offer: Any, service: Any) -> tuple[object, ...]:
    return role, offer.key, service.parallelism


def cost_of(scenario: Scenario, deployment: Deployment, seen: Evaluation) -> float:
    """The bill with the bytes that this evaluation puts on the line [USD/h]."""
    return bill(scenario, deployment, seen.line_bytes_per_s or (0.0,) * len(deployment.lines)).usd_per_hour
