"""A plan that ``solve -o`` wrote, back to what is evaluated and simulated: its pools and line under the scenario as it
is now."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from pddplan.errors import Excuse
from pddplan.perf.candidates import candidate_instances
from pddplan.perf.service import aggregated_service, decode_service, prefill_service
from pddplan.plan.records import Solved
from pddplan.plan.solve import prepare
from pddplan.serve.context import Context
from pddplan.serve.deployment import Deployment, LineChoice, Pool
from pddplan.spec.types import ROLES, ChipOffer, Role, Scenario, Site
from pddplan.spec.user_file import decoded, read_bytes, refusal

MOST_BYTES = 8 * 2**20
SCHEMA = "pddplan.plan/1"
WRITE = "pddplan solve SCENARIO -o FILE writes one."
UNCACHED = ("pd_cross_site",)
MOST_INSTANCES = 100_000
SAME_GBIT = 1e-6
SERVICES: Mapping[Role, Callable[..., Any]] = {
    "prefill": prefill_service,
    "relay_decode": decode_service,
    "main_decode": decode_service,
    "aggregated": aggregated_service,
}


@dataclass(frozen=True)
class Wanted:
    """A role's entry of the file."""

    role: Role
    site: str
    chip: str
    instances: int
    layout: tuple[int, int, int, int]  # tp, pp, dp, ep


def read_plan(path: str, scenario: Scenario) -> Solved:
    """The plan of a file in the scenario's context. Raises InputError where the file is no plan of one pool per role,
    or names what the scenario doesn't have."""
    data, file = _loaded(path)
    if data.get("status") == "infeasible" or not data.get("roles"):
        raise refusal(file, "has no plan: its scenario was infeasible.", WRITE)
    wanted = [_wanted(entry, f"roles[{n}]", file) for n, entry in enumerate(_items(data, "roles", file))]
    roles = [one.role for one in wanted]
    if len(set(roles)) < len(roles):
        fix = "Simulate the scenario itself, without --plan."
        raise refusal(file, "has several pools of a role: such a plan can't be read back.", fix, key="roles")
    context = prepare(scenario)
    pools = {one.role: _pool(context, one, f"roles[{n}]", file) for n, one in enumerate(wanted)}
    if "aggregated" in pools:
        return Solved(context, Deployment(aggregated=pools["aggregated"]))
    for role in ("prefill", "main_decode"):
        if role not in pools:
            raise refusal(file, f"has no pool of {role}.", WRITE, key="roles")
    line = _line(context, data, pools, file)
    name = str(data.get("architecture"))
    deployment = Deployment(
        prefill=pools["prefill"],
        relay=pools.get("relay_decode"),
        main=pools["main_decode"],
        line=line,
        decode_cache=name not in UNCACHED,
        use_filter=name == "pdd_filter",
    )
    return Solved(context, deployment)


# ---------------------------------------------------------------- the file


def _loaded(path: str) -> tuple[dict[str, Any], str]:
    raw, file = read_bytes(path, MOST_BYTES, missing=WRITE, folder=WRITE, size="A plan is smaller than that.")
    try:
        data = json.loads(decoded(raw, file, WRITE), parse_constant=lambda _: None)
    except json.JSONDecodeError as error:
        raise refusal(file, f"is not JSON: {error.msg.lower()}.", WRITE, line=error.lineno) from None
    except (RecursionError, ValueError):
        raise refusal(file, "is not a plan: it is nested too deep or has a number too long.", WRITE) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        says = f"has the schema {found!r}" if isinstance(found, str) else "says no schema"
        raise refusal(file, f"is not a plan: it {says}, not {SCHEMA!r}.", WRITE, key="schema")
    return data, file


def _items(data: Mapping[str, Any], key: str, file: str) -> list[Mapping[str, Any]]:
    found = data.get(key)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise refusal(file, "is not a list of objects.", WRITE, key=key)
    return found


def _wanted(entry: Mapping[str, Any], key: str, file: str) -> Wanted:
    role = entry.get("role")
    if role not in ROLES:
        raise refusal(file, f"no role {role!r}.", f"One of {', '.join(ROLES)}.", key=f"{key}.role")
    ranks = entry.get("parallelism")
    if not isinstance(ranks, dict):
        raise refusal(file, "is no object.", WRITE, key=f"{key}.parallelism")
    layout = tuple(_whole(ranks, name, f"{key}.parallelism.{name}", file, 4096) for name in ("tp", "pp", "dp", "ep"))
    count = _whole(entry, "instances", f"{key}.instances", file, MOST_INSTANCES)
    return Wanted(cast(Role, role), str(entry.get("site")), str(entry.get("chip")), count, cast(Any, layout))


def _whole(entry: Mapping[str, Any], name: str, key: str, file: str, most: int) -> int:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise refusal(file, f"is no whole number from 1 to {most:,}.", WRITE, key=key)
    return value


# ---------------------------------------------------------------- pools and lines


def _pool(context: Context, wanted: Wanted, key: str, file: str) -> Pool:
    """The pool, whatever ``max`` the scenario has for its chip: a plan that exists exists."""
    site, offer = _offer(context.scenario, wanted, key, file)
    if wanted.role in offer.measured:
        from pddplan.plan.options import pool_options

        options, _ = pool_options(context, site, replace(offer, max_chips=10**6), wanted.role)
        for option in options:
            return replace(option.pool(wanted.instances), offer=offer)
    many = replace(offer, max_chips=10**6)
    scenario = context.scenario
    candidates, _ = candidate_instances(many, context.model, scenario.engine, scenario.precision, wanted.role)
    for instance in candidates:
        own = instance.parallelism
        if (own.tp, own.pp, own.dp, own.ep) != wanted.layout:
            continue
        service = SERVICES[wanted.role](instance)
        if not isinstance(service, Excuse):
            return Pool(wanted.role, site, offer, service, wanted.instances)
    layout = "tp {} pp {} dp {} ep {}".format(*wanted.layout)
    raise refusal(
        file,
        f"no instance of {wanted.chip} with {layout} can run the scenario's model as {wanted.role}.",
        "Solve the scenario anew.",
        key=key,
    )


def _offer(scenario: Scenario, wanted: Wanted, key: str, file: str) -> tuple[Site, ChipOffer]:
    sites = {site.name: site for site in scenario.sites}
    if wanted.site not in sites:
        raise refusal(
            file, f"no site {wanted.site!r} in the scenario.", f"It has {', '.join(sites)}.", key=f"{key}.site"
        )
    site = sites[wanted.site]
    for offer in site.offers:
        if offer.chip.id == wanted.chip:
            return site, offer
    known = ", ".join(offer.chip.id for offer in site.offers)
    raise refusal(file, f"no chip {wanted.chip!r} at site {site.name}.", f"It has {known}.", key=f"{key}.chip")


def _line(context: Context, data: Mapping[str, Any], pools: Mapping[Role, Pool], file: str) -> LineChoice | None:
    """The line between the sites of prefill and of main decode; None where they are one."""
    source, target = pools["prefill"].site.name, pools["main_decode"].site.name
    if source == target:
        return None
    entries = [e for e in _items(data, "links", file) if (e.get("from"), e.get("to")) == (source, target)]
    link = next((x for x in context.scenario.links if set(x.between) == {source, target}), None)
    if link is None or len(entries) != 1:
        what = "the scenario has no link" if link is None else "the plan has no line"
        raise refusal(file, f"{what} from {source} to {target}.", "Solve the scenario anew.", key="links")
    lines = _whole(entries[0], "lines", "links[0].lines", file, 10_000)
    bought = entries[0].get("gbit_per_s")
    each = float(bought) / lines if isinstance(bought, (int, float)) else math.nan
    for tier, offer in enumerate(link.tiers):
        if abs(offer.gbit_per_s - each) <= SAME_GBIT * offer.gbit_per_s:
            return LineChoice(link, tier, lines, source, target)
    known = ", ".join(f"{offer.gbit_per_s:g}" for offer in link.tiers)
    raise refusal(
        file, f"no tier of {each:g} Gbit/s between {source} and {target}.", f"It has {known}.", key="links[0]"
    )
