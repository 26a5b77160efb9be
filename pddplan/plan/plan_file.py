"""A plan file that ``solve -o`` wrote, as typed entries: read and checked by itself, no scenario needed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Never, cast, get_args

from pddplan.plan.records import Architecture
from pddplan.serve.records import Routing
from pddplan.spec.issues import shown
from pddplan.spec.types import ROLES, Role
from pddplan.spec.user_file import decoded, read_bytes, refusal

MOST_BYTES = 8 * 2**20
SCHEMA = "pddplan.plan/1"
WRITE = "pddplan solve SCENARIO -o FILE writes one."
AGAIN = "Solve the scenario anew."
MOST_INSTANCES = 100_000
MOST_LINES = 10_000
MOST_RANKS = 4096
MOST_ENTRIES = 1000
LEAST_BAND = 0.5e-4  # of the requests; ``network_build`` makes none below twice that
WHOLE = 1e-6  # by which the routes' shares may miss all of the requests


@dataclass(frozen=True)
class RoleEntry:
    role: Role
    site: str
    chip: str
    instances: int
    layout: tuple[int, int, int, int]  # tp, pp, dp, ep
    offer: int  # of the offers of that chip at that site


@dataclass(frozen=True)
class LinkEntry:
    from_site: str
    to_site: str
    lines: int
    gbit_per_s: float  # of all lines
    tier: int | None  # where several tiers are as fast


@dataclass(frozen=True)
class RouteEntry:
    """Part of the requests and the way they take: places of its pools in ``roles`` and of its line in ``links``."""

    roles: Mapping[Role, int]
    link: int | None
    band: tuple[float, float]
    share: float


@dataclass(frozen=True)
class PlanFile:
    file: str
    architecture: Architecture
    roles: tuple[RoleEntry, ...]
    links: tuple[LinkEntry, ...]
    routes: tuple[RouteEntry, ...]  # empty: a single way
    routing: Routing | None
    goodput_rps: float | None


def load_plan_file(path: str) -> PlanFile:
    """The entries of a file. Raises InputError where it is no plan."""
    data, file = _loaded(path)
    reader = Reader(file)
    if data.get("status") == "infeasible":
        reader.refuse("has no plan: its scenario was infeasible.", "status", WRITE)
    if not data.get("roles"):
        reader.refuse("has no plan.", "roles", WRITE)
    names = get_args(Architecture)
    if data.get("architecture") not in names:
        found = shown(data.get("architecture"))
        reader.refuse(f"no architecture {found}.", "architecture", f"One of {', '.join(names)}.")
    routes = reader.items(data, "routes") if "routes" in data else []
    rate = data.get("goodput_rps")
    return PlanFile(
        file=file,
        architecture=cast(Architecture, data["architecture"]),
        roles=tuple(reader.role(entry, f"roles[{n}]") for n, entry in enumerate(reader.items(data, "roles"))),
        links=tuple(reader.link(entry, f"links[{n}]") for n, entry in enumerate(reader.items(data, "links"))),
        routes=tuple(reader.route(entry, f"routes[{n}]") for n, entry in enumerate(routes)),
        routing=reader.routing(data.get("routing")),
        goodput_rps=None if rate is None else reader.number(data, "goodput_rps", "goodput_rps", 0.0),
    )


def _loaded(path: str) -> tuple[dict[str, Any], str]:
    raw, file = read_bytes(path, MOST_BYTES, missing=WRITE, folder=WRITE, size="A plan is smaller than that.")
    try:
        data = json.loads(decoded(raw, file, WRITE))
    except json.JSONDecodeError as error:
        raise refusal(file, f"is not JSON: {error.msg.lower()}.", WRITE, line=error.lineno) from None
    except (RecursionError, ValueError):
        raise refusal(file, "is not a plan: it is nested too deep or has a number too long.", WRITE) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        says = f"has the schema {shown(found)}" if isinstance(found, str) else "says no schema"
        raise refusal(file, f"is not a plan: it {says}, not {SCHEMA!r}.", WRITE, key="schema")
    return data, file


@dataclass(frozen=True)
class Reader:
    """Values of a file's entries, each checked; ``key`` is where they stand."""

    file: str

    def refuse(self, message: str, key: str, fix: str = WRITE) -> Never:
        raise refusal(self.file, message, fix, key=key)

    def items(self, data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        found = data.get(key)
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            self.refuse("is not a list of objects.", key)
        if len(found) > MOST_ENTRIES:
            self.refuse(f"has more than {MOST_ENTRIES:,} entries.", key)
        return found

    def whole(self, entry: Mapping[str, Any], name: str, key: str, most: int, least: int = 1) -> int:
        value = entry.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(f"{shown(value)} is no whole number from {least} to {most:,}.", key)
        return value

    def number(
        self, entry: Mapping[str, Any], name: str, key: str, least: float = -math.inf, most: float = math.inf
    ) -> float:
        """A finite number from ``least`` to ``most``."""
        value = entry.get(name)
        try:
            found = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
        except OverflowError:
            found = math.inf
        if not (math.isfinite(found) and least <= found <= most):
            beside = f" from {least:g} to {most:g}" if math.isfinite(most) else f" of at least {least:g}"
            self.refuse(f"{shown(value)} is no number{beside}.", key)
        return found

    def text(self, entry: Mapping[str, Any], name: str, key: str) -> str:
        value = entry.get(name)
        if not isinstance(value, str):
            self.refuse(f"{shown(value)} is no text.", key)
        return value

    def role(self, entry: Mapping[str, Any], key: str) -> RoleEntry:
        role = entry.get("role")
        if role not in ROLES:
            self.refuse(f"no role {shown(role)}.", f"{key}.role", f"One of {', '.join(ROLES)}.")
        ranks = entry.get("parallelism")
        if not isinstance(ranks, dict):
            self.refuse("is no object.", f"{key}.parallelism")
        tp, pp, dp, ep = (
            self.whole(ranks, name, f"{key}.parallelism.{name}", MOST_RANKS) for name in ("tp", "pp", "dp", "ep")
        )
        return RoleEntry(
            role=cast(Role, role),
            site=self.text(entry, "site", f"{key}.site"),
            chip=self.text(entry, "chip", f"{key}.chip"),
            instances=self.whole(entry, "instances", f"{key}.instances", MOST_INSTANCES),
            layout=(tp, pp, dp, ep),
            offer=self.whole(entry, "offer", f"{key}.offer", MOST_ENTRIES, 0) if "offer" in entry else 0,
        )

    def link(self, entry: Mapping[str, Any], key: str) -> LinkEntry:
        return LinkEntry(
            from_site=self.text(entry, "from", f"{key}.from"),
            to_site=self.text(entry, "to", f"{key}.to"),
            lines=self.whole(entry, "lines", f"{key}.lines", MOST_LINES),
            gbit_per_s=self.number(entry, "gbit_per_s", f"{key}.gbit_per_s", 0.0),
            tier=self.whole(entry, "tier", f"{key}.tier", MOST_ENTRIES, 0) if "tier" in entry else None,
        )

    def route(self, entry: Mapping[str, Any], key: str) -> RouteEntry:
        places = {r: self.whole(entry, r, f"{key}.{r}", MOST_ENTRIES, 0) for r in ROLES if entry.get(r) is not None}
        low = self.number(entry, "from", f"{key}.from", 0.0, 1.0)
        high = self.number(entry, "to", f"{key}.to", 0.0, 1.0)
        if high - low < LEAST_BAND:
            self.refuse("ends where it begins.", f"{key}.to")
        share = self.number(entry, "share", f"{key}.share", LEAST_BAND, 1.0)
        link = None
        if entry.get("link") is not None:
            link = self.whole(entry, "link", f"{key}.link", MOST_ENTRIES, 0)
        return RouteEntry(places, link, (low, high), share)

    def routing(self, entry: object) -> Routing | None:
        """The rule for the relay that the plan was found with; None where the file has none."""
        if entry is None:
            return None
        if not isinstance(entry, dict):
            self.refuse("is no object.", "routing")

        def share(name: str) -> float:
            return self.number(entry, name, f"routing.{name}", 0.0, 1.0 + WHOLE)

        def seconds(name: str) -> float | None:
            return None if entry.get(name) is None else self.number(entry, name, f"routing.{name}", 0.0)

        stay = seconds("stay_s") if "stay_s" in entry else 0.0
        return Routing(
            direct_share=share("direct_share"),
            relay_share=share("relay_share"),
            filtered_share=share("filtered_share"),
            relay_token_share=share("relay_token_share"),
            threshold_s=seconds("threshold_s"),
            stay_s=math.inf if stay is None else stay,
        )
