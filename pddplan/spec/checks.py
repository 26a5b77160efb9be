"""What a scenario says across its parts: names, lines between sites, roles, keys this version can't serve.

These checks read the plain data and step over what is malformed, so that they run beside the models and one run
tells all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from pddplan.errors import Problem
from pddplan.spec.issues import LONGEST_NAME, KeyPath, closest, shown
from pddplan.spec.types import ROLES
from pddplan.spec.workload_checks import workload_problems
from pddplan.spec.yaml_source import Document

ModelCheck = Callable[[str, str], Sequence[Problem]]


def structure_problems(document: Document, base_dir: str, check_model: ModelCheck | None) -> list[Problem]:
    """All problems across parts of one document."""
    return [
        *_model(document, base_dir, check_model),
        *workload_problems(document),
        *_objective(document),
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


def _objective(document: Document) -> list[Problem]:
    """One objective; without prices nobody knows what is earned."""
    objective = document.data.get("objective")
    named = list(objective) if isinstance(objective, dict) else [objective]
    if len(named) > 1:
        return [document.problem(("objective",), "more than one objective.", "Keep one of them.")]
    if named != ["profit"] or document.data.get("prices") is not None:
        return []
    fix = "Add prices: {input_usd_per_mtok: 0.55, output_usd_per_mtok: 2.19}, or use cost or goodput."
    return [document.problem(("objective",), "profit needs prices, and there are none.", fix)]


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
    if not sites:
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
    return _missing_lines(document, sites, roles, alone)


def _missing_lines(
    document: Document, sites: list[tuple[int, dict[str, Any]]], roles: list[set[str]], alone: list[bool]
) -> list[Problem]:
    """Sites that can't serve by themselves and have no line to one that does what they lack."""
    names = [site.get("name") for _, site in sites]
    if not all(isinstance(n, str) for n in names):
        return []
    links = document.data.get("links")
    if links is not None and not isinstance(links, list):
        return []
    linked: set[frozenset[str]] = set()
    for _, link in _mappings(links):
        ends = link.get("between")
        # a link whose ends are wrong has its own message
        if not isinstance(ends, list) or not set(map(str, ends)) <= set(names) or len(set(map(str, ends))) < 2:
            return []
        linked.add(frozenset(map(str, ends)))
    problems: list[Problem] = []
    told: set[frozenset[str]] = set()
    for i, (place, _) in enumerate(sites):
        partners = [] if alone[i] else [j for j in range(len(sites)) if j != i and _complete(roles[i], roles[j])]
        pairs = [frozenset((str(names[i]), str(names[j]))) for j in partners]
        if not partners or any(pair in linked for pair in pairs) or any(pair in told for pair in pairs):
            continue
        told.add(pairs[0])
        first, second = sorted((i, partners[0]))
        left, right = (f"{names[k]} ({', '.join(r for r in ROLES if r in roles[k])})" for k in (first, second))
        message = f"no link between {left} and {right}, which the roles connect."
        tiers = "tiers: [{gbit_per_s: 10, usd_per_hour: 2.3}]"
        fix = f"Add links: [{{between: [{names[first]}, {names[second]}], rtt_ms: 8, {tiers}}}]."
        file, line = document.place(("sites", sites[second][0] if len(sites) == 2 else place))
        problems.append(Problem(message, "links", file, line, fix))
    return problems


def _complete(roles: set[str], others: set[str]) -> bool:
    """Whether one of two sites can prefill and the other decode."""
    return bool(("prefill" in roles and "main_decode" in others) or ("main_decode" in roles and "prefill" in others))
