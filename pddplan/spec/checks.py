"""What a scenario says across its parts: names, lines between sites, roles, keys this version can't serve.

These checks read the plain data and step over what is malformed, so that they run beside the models and one run
tells all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from pddplan.errors import Problem
from pddplan.spec.issues import LONGEST_NAME, KeyPath, closest, format_key, shown
from pddplan.spec.types import ROLES
from pddplan.spec.yaml_source import Document

ModelCheck = Callable[[str, str], Sequence[Problem]]
MAX_SITES = 2


def structure_problems(document: Document, base_dir: str, check_model: ModelCheck | None) -> list[Problem]:
    """All problems across parts of one document."""
    return [
        *_model(document, base_dir, check_model),
        *_workloads(document),
        *_unsupported(document),
        *_sites(document),
        *_links(document),
        *_roles(document),
    ]


def _mappings(value: Any) -> list[tuple[int, dict[str, Any]]]:
    items = value if isinstance(value, list) else []
    return [(i, item) for i, item in enumerate(items) if isinstance(item, dict)]


def _model(document: Document, base_dir: str, check_model: ModelCheck | None) -> list[Problem]:
    name = document.data.get("model")
    if check_model is None or not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        return []  # the models say what is wrong with it; no file can have a longer name
    wrong = check_model(name, base_dir)  # what is wrong inside a card has its own place
    return [p if p.file else document.problem(("model",), p.message, p.fix) for p in wrong]


def workload_path(data: dict[str, Any]) -> KeyPath:
    """Where the one workload stands: ``workload``, or the single entry of ``workloads``."""
    return ("workload",) if data.get("workload") is not None else ("workloads", 0)


def _workloads(document: Document) -> list[Problem]:
    data = document.data
    one, many = data.get("workload"), data.get("workloads")
    if one is None and many is None:
        return [document.problem(("workload",), "is missing.", "Write workload: {request_rate_per_s: 10, …}.")]
    problems: list[Problem] = []
    if one is not None and many is not None:
        problems.append(document.problem(("workloads",), "stands beside workload.", "Keep one of them."))
    if isinstance(many, list) and len(many) > 1:
        fix = "Plan for one at a time."
        problems.append(document.problem(("workloads",), "more than one workload is not supported yet.", fix))
    if isinstance(many, list) and not many:
        problems.append(document.problem(("workloads",), "holds no entries.", "Write one workload."))
    path = workload_path(data)
    workload = one if one is not None else next((w for _, w in _mappings(many)), None)
    if not isinstance(workload, dict):
        return problems
    for key, example in (("prompt_tokens", "64K"), ("output_tokens", "1K")):
        if workload.get(key) is None and workload.get("trace") is None:
            file, line = document.place(path)
            where = format_key((*path, key))
            problems.append(Problem("is missing.", where, file, line, f"Write {key}: {example}."))
    load = workload.get("hourly_load")
    if isinstance(load, list) and load and all(_is_number(h) and h == 0 for h in load):
        problems.append(document.problem((*path, "hourly_load"), "all hours are 0.", "Write at least one above 0."))
    if workload.get("slo") is not None and data.get("slo") is not None:
        problems.append(document.problem((*path, "slo"), "an SLO stands here and at top level.", "Keep one of them."))
    return problems


def _unsupported(document: Document) -> list[Problem]:
    data = document.data
    problems: list[Problem] = []
    path = workload_path(data)
    workload = data.get("workload") if path == ("workload",) else None
    for _, entry in _mappings(data.get("workloads"))[:1]:
        workload = workload if workload is not None else entry
    if isinstance(workload, dict) and workload.get("trace") is not None:
        fix = "Write prompt_tokens, output_tokens and prefix_hit_rate."
        problems.append(document.problem((*path, "trace"), "a trace as workload is not supported yet.", fix))
    if data.get("objective") == "profit":
        fix = "Use cost, or goodput."
        problems.append(document.problem(("objective",), "the objective profit is not supported yet.", fix))
    sites = data.get("sites")
    if isinstance(sites, list) and len(sites) > MAX_SITES:
        fix = "Keep the two that matter most."
        problems.append(document.problem(("sites",), "more than two sites are not supported yet.", fix))
    return problems


def site_names(data: dict[str, Any]) -> list[str]:
    return [s["name"] for _, s in _mappings(data.get("sites")) if isinstance(s.get("name"), str)]


def _sites(document: Document) -> list[Problem]:
    problems: list[Problem] = []
    seen: set[str] = set()
    for i, site in _mappings(document.data.get("sites")):
        name = site.get("name")
        if isinstance(name, str) and name in seen:
            where: KeyPath = ("sites", i, "name")
            problems.append(document.problem(where, f"two sites are named '{name}'.", "Give each its own name."))
        elif isinstance(name, str):
            seen.add(name)
        roles = site.get("roles")
        used = {r for r in roles if isinstance(r, str)} if isinstance(roles, list) else set[str](ROLES)
        for j, offer in _mappings(site.get("chips")):
            problems += _offer(document, ("sites", i, "chips", j), offer, used)
    return problems


def _offer(document: Document, path: KeyPath, offer: dict[str, Any], roles: set[str]) -> list[Problem]:
    problems: list[Problem] = []
    for key in ("instances", "measured"):
        block = offer.get(key)
        for role in block if isinstance(block, dict) else ():
            if role in ROLES and role not in roles:
                fix = f"Add {role} to the site's roles, or remove it here."
                problems.append(document.problem((*path, key, role), f"the site has no role {role}.", fix))
    most, owned = offer.get("max"), offer.get("owned")
    if _is_number(most) and _is_number(owned) and owned > most:
        fix = f"At most {shown(most)}, or raise max."
        problems.append(document.problem((*path, "owned"), f"{shown(owned)} is more than max, {shown(most)}.", fix))
    return problems


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _links(document: Document) -> list[Problem]:
    problems: list[Problem] = []
    names = site_names(document.data)
    all_named = len(set(names)) == len(_mappings(document.data.get("sites")))  # else that is what is wrong
    pairs: set[frozenset[str]] = set()
    for i, link in _mappings(document.data.get("links")):
        ends = link.get("between")
        if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(e, str) for e in ends):
            continue
        for k, end in enumerate(ends):
            if end not in names and all_named:
                near = closest(end, names)
                fix = f"Did you mean '{near}'?" if near else f"Sites are: {', '.join(names)}."
                problems.append(document.problem(("links", i, "between", k), f"no site is named '{end}'.", fix))
        pair = frozenset(ends)
        if len(pair) == 1:
            problems.append(document.problem(("links", i, "between"), "a link joins two sites.", "Name two."))
        elif pair in pairs:
            fix = "Write its tiers into one link."
            problems.append(document.problem(("links", i), "a second link between the same sites.", fix))
        pairs.add(pair)
        problems += _traffic_prices(document, i, link, ends)
    return problems


def _traffic_prices(document: Document, i: int, link: dict[str, Any], ends: list[str]) -> list[Problem]:
    problems: list[Problem] = []
    for j, tier in _mappings(link.get("tiers")):
        path: KeyPath = ("links", i, "tiers", j)
        for key in ("usd_per_gb", "cny_per_gb"):
            by_site = tier.get(key)
            for name in by_site if isinstance(by_site, dict) else ():
                if name.startswith("from_") and name.removeprefix("from_") not in ends:
                    fix = f"Write from_{ends[0]} or from_{ends[1]}."
                    problems.append(document.problem((*path, key, name), "is not an end of this link.", fix))
        priced = any("usd" in k or "cny" in k or k == "burst_95" for k in tier)
        if not priced:
            fix = "Write usd_per_hour or usd_per_month (0 if it is free)."
            problems.append(document.problem(path, "a tier without a price.", fix))
    return problems


def _roles(document: Document) -> list[Problem]:
    """Somebody must prefill and somebody decode, and where no site can do both they need a line."""
    sites = _mappings(document.data.get("sites"))
    if not sites or len(sites) > MAX_SITES:
        return []
    roles: list[set[str]] = []
    for _, site in sites:
        listed = site.get("roles")
        if listed is not None and not (isinstance(listed, list) and set(map(str, listed)) <= set(ROLES) and listed):
            return []  # the models say what is wrong with it
        roles.append(set(listed) if listed is not None else set(ROLES))
    everything = set().union(*roles)
    if "aggregated" not in everything:
        for role in ("prefill", "main_decode"):
            if role not in everything:
                fix = f"Add {role} (or aggregated) to the roles of a site."
                return [document.problem(("sites",), f"no site has the role {role}.", fix)]
    alone = [{"prefill", "main_decode"} <= r or "aggregated" in r for r in roles]
    if all(alone) or len(sites) == 1:
        return []
    return _missing_line(document, sites, roles)


def _missing_line(document: Document, sites: list[tuple[int, dict[str, Any]]], roles: list[set[str]]) -> list[Problem]:
    names = [site.get("name") for _, site in sites]
    if not all(isinstance(n, str) for n in names):
        return []
    links = document.data.get("links")
    if links is not None and not isinstance(links, list):
        return []
    for _, link in _mappings(links):
        ends = link.get("between")
        # a link whose ends are wrong has its own message
        if not isinstance(ends, list) or set(map(str, ends)) == set(names) or not set(map(str, ends)) <= set(names):
            return []
        if len(set(map(str, ends))) < 2:
            return []
    left, right = (
        f"{name} ({', '.join(r for r in ROLES if r in have)})" for name, have in zip(names, roles, strict=True)
    )
    message = f"no link between {left} and {right}, which the roles connect."
    tiers = "tiers: [{gbit_per_s: 10, usd_per_hour: 2.3}]"
    fix = f"Add links: [{{between: [{names[0]}, {names[1]}], rtt_ms: 8, {tiers}}}]."
    file, line = document.place(("sites", sites[1][0]))
    return [Problem(message, "links", file, line, fix)]
