"""A network in one sentence: who serves what."""

from __future__ import annotations

import numpy as np

from pddplan.serve.context import Context
from pddplan.serve.deployment import Network, Pool, band_of, share_of
from pddplan.serve.records import Evaluation

WHOLE = 1 - 1e-9


def network_words(context: Context, network: Network, evaluation: Evaluation) -> str:
    """``Share the load: prefill on h200 in a (requests above 19,400 uncached tokens, 50 %) and …; relay …``."""
    parts = [_role_words(context, network, "prefill", "prefill")]
    parts.append(_role_words(context, network, "main_decode", "main decode"))
    parts.append(_role_words(context, network, "aggregated", "one pool for both"))
    routing = evaluation.routing
    if routing.relay_share > 0:
        parts.append(f"relay {routing.relay_share:.0%} of the requests ({routing.relay_token_share:.1%} of the tokens)")
    return "Share the load: " + "; ".join(part for part in parts if part)


def _role_words(context: Context, network: Network, role: str, name: str) -> str:
    pools = [pool for pool in network.pools if pool.role == role]
    if not pools:
        return ""
    if len(pools) == 1 and share_of(network, pools[0]) > WHOLE:
        return f"{name} on {pools[0].offer.chip.id} in {pools[0].site.name}"
    return f"{name} on " + " and ".join(_pool_words(context, network, pool) for pool in pools)


def _pool_words(context: Context, network: Network, pool: Pool) -> str:
    where = f"{pool.offer.chip.id} in {pool.site.name}"
    share = f"{share_of(network, pool):.0%} of the requests"
    band = band_of(network, pool)
    if pool.role != "prefill" or band[1] - band[0] > WHOLE:
        return f"{where} ({share})"
    low, high = (edge_tokens(context, edge) for edge in band)
    if band[1] > WHOLE:
        return f"{where} (above {low:,.0f} uncached tokens, {share})"
    if band[0] <= 0.0:
        return f"{where} (up to {high:,.0f} uncached tokens, {share})"
    return f"{where} ({low:,.0f} to {high:,.0f} uncached tokens, {share})"


def edge_tokens(context: Context, quantile: float) -> float:
    """Uncached tokens at a quantile of the requests, interpolated between the middles of the atoms [tokens]."""
    atoms = context.demand.atoms
    order = atoms.by_uncached
    weight = atoms.weight[order] / atoms.weight.sum()
    return float(np.interp(quantile, np.cumsum(weight) - weight / 2, atoms.uncached[order]))
