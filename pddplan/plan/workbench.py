"""What the searches of one comparison have in common, made once: pools, their services, and what is known of these.

The variants of a scenario differ in roles, sites, directions, prices and limits, not in the traffic nor in the chips.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pddplan.errors import Excuse
from pddplan.plan.options import PoolOption, Shop, build_shop, pool_options
from pddplan.serve.context import Context
from pddplan.spec.types import ChipOffer, Role, Scenario, Site

Found = tuple[list[PoolOption], list[Excuse]]


@dataclass
class Workbench:
    """Contexts by chunk budget; the options of a role on an offer, and the services inside, whatever they are for.

    For variants of one scenario only: workload, model, formats, SLO and engine are the same but for the chunk budget,
    the forecast and the sharing of prefixes on decode, none of which a service or the caches of a context depend on.
    """

    prepare: Callable[[Scenario], Context]
    contexts: dict[int, Context] = field(default_factory=dict)
    options: dict[tuple[object, ...], Found] = field(default_factory=dict)
    services: dict[tuple[object, ...], PoolOption] = field(default_factory=dict)

    def set_up(self, scenario: Scenario) -> tuple[Context, Shop]:
        """Context and shop of a variant; equal to those made from nothing."""
        chunk = scenario.engine.chunk_tokens
        if chunk not in self.contexts:
            self.contexts[chunk] = self.prepare(scenario)
        context = replace(self.contexts[chunk], scenario=scenario)
        return context, build_shop(context, self._options)

    def _options(self, context: Context, site: Site, offer: ChipOffer, role: Role) -> Found:
        """``pool_options``, without its work where only prices or the other roles of the site are new."""
        key = _key(context, site, offer, role)
        if key not in self.options:
            found, excuses = pool_options(context, site, offer, role)
            self.options[key] = [self._known(option, context) for option in found], excuses
        found, excuses = self.options[key]
        return [replace(option, site=site, offer=offer) for option in found], list(excuses)

    def _known(self, option: PoolOption, context: Context) -> PoolOption:
        """The option with the service of an equal one seen before: the caches of a context know it by identity."""
        kind = "decode" if option.role in ("relay_decode", "main_decode") else option.role
        if option.offer.measured:
            kind = option.role  # rates stand by role
        chunk = context.scenario.engine.chunk_tokens
        key = (kind, option.offer.key, chunk, option.service.parallelism, option.chips)
        return replace(option, service=self.services.setdefault(key, option).service)


def _key(context: Context, site: Site, offer: ChipOffer, role: Role) -> tuple[object, ...]:
    """All that the options of a role depend on and that variants change; prices aren't among it."""
    scenario = context.scenario
    links = tuple(link.key for link in scenario.links) if role == "main_decode" else ()
    watts = site.power.max_watts if site.power is not None else None
    return (role, site.name, offer.key, offer.max_chips, watts, scenario.engine.chunk_tokens, links)
