"""A two-site scenario and plans for it, small enough to be evaluated many times in a test."""

from __future__ import annotations

from functools import lru_cache

from pddplan.llm.catalogue import load_model
from pddplan.perf.candidates import candidate_instances
from pddplan.perf.service import decode_service, prefill_service
from pddplan.serve.context import Context, build_context
from pddplan.serve.deployment import Deployment, LineChoice, Pool
from pddplan.spec.load import load_scenario_text
from pddplan.spec.types import Role

SCENARIO = """
name: two-sites
model: deepseek-v3.2
precision: {weights: fp8, kv_cache: fp8}
workload:
  request_rate_per_s: 10
  prompt_tokens: 64K
  output_tokens: 1K
  prefix_hit_rate: {mean: 0.90, share_above_95: 0.75}
sites:
  - name: north
    roles: [prefill, relay_decode, main_decode]
    chips: [{chip: nvidia-h800-sxm, max: 960, usd_per_hour: 2.00}]
  - name: west
    roles: [main_decode]
    chips: [{chip: nvidia-h20-96g, max: 1280, usd_per_hour: 1.20}]
links:
  - between: [north, west]
    rtt_ms: 8
    streams: 1
    max_lines: 64
    tiers: [{gbit_per_s: 10, usd_per_hour: 2.3}]
slo:
  ttft_s: {p50: 3, p90: 8, p99: 20}
  tpot_ms: {p90: 50}
"""
NIC_GOODPUT = 0.8
LAYOUTS: dict[Role, tuple[int, int]] = {"prefill": (4, 16), "relay_decode": (1, 16), "main_decode": (1, 32)}


@lru_cache(maxsize=32)
def world(*overrides: str) -> Context:
    """Context of the scenario with ``key=value`` overrides."""
    scenario = load_scenario_text(SCENARIO, overrides=overrides)
    return build_context(scenario, load_model(scenario.model), NIC_GOODPUT)


@lru_cache(maxsize=64)
def _pool(context_id: int, overrides: tuple[str, ...], site: str, role: Role) -> Pool:
    context = world(*overrides)
    where = next(s for s in context.scenario.sites if s.name == site)
    offer = where.offers[0]
    found, _ = candidate_instances(offer, context.model, context.scenario.engine, context.scenario.precision, role)
    tp, ep = LAYOUTS[role]
    instance = next(i for i in found if (i.parallelism.tp, i.parallelism.ep, i.parallelism.pp) == (tp, ep, 1))
    service = prefill_service(instance) if role == "prefill" else decode_service(instance)
    return Pool(role, where, offer, service, 1)


def plan(
    *overrides: str, prefill: int = 4, relay: int = 1, main: int = 5, lines: int = 4, main_site: str = "west"
) -> tuple[Context, Deployment]:
    """A plan of so many instances of each role and lines of 10 Gbit/s; no line where all stands in the north."""
    context = world(*overrides)

    def pool(site: str, role: Role, count: int) -> Pool | None:
        made = _pool(id(context), overrides, site, role)
        return Pool(role, made.site, made.offer, made.service, count) if count else None

    link = context.scenario.links[0]
    deployment = Deployment(
        prefill=pool("north", "prefill", prefill),
        relay=pool("north", "relay_decode", relay),
        main=pool(main_site, "main_decode", main),
        line=LineChoice(link, 0, lines, "north", "west") if main_site == "west" else None,
        use_filter=context.scenario.traffic.output_forecast is not None and relay > 0,
    )
    return context, deployment


AGENTS = (
    "{name: agents, request_rate_per_s: 6, prompt_tokens: 64K, output_tokens: 1K, "
    "prefix_hit_rate: {mean: 0.90, share_above_95: 0.75}}"
)
CHAT = (
    "{name: chat, request_rate_per_s: 18, prompt_tokens: {p50: 2K, p95: 8K}, output_tokens: {p50: 300, p95: 900}, "
    "prefix_hit_rate: 0.4, sessions: {turns: 6, seconds_between_turns: {p50: 60, p90: 400}}}"
)


def two_workloads(
    *overrides: str, prefill: int = 4, relay: int = 1, main: int = 5, lines: int = 4, main_site: str = "west"
) -> tuple[Context, Deployment]:
    """The same plan for agents and chat on the same chips."""
    mix = ("workload=", f"workloads=[{AGENTS}, {CHAT}]")
    return plan(*mix, *overrides, prefill=prefill, relay=relay, main=main, lines=lines, main_site=main_site)
