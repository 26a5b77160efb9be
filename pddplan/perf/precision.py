"""Which formats a chip runs: of the weights, where it lacks the type they compute in, and of the KV cache.

What an offer states is never changed. The rules for what it leaves open:

- weights: an 8-bit format whose type the chip lacks becomes the other 8-bit one (fp8 <-> int8, the same bytes) where
  the chip has that; else, and for 4-bit formats always, they stay as they are in memory and are widened in each
  operation to the next type that the chip has (``ops.compute_dtype``);
- KV cache: every chip reads bf16; an 8-bit cache only a chip that computes in that type. Where it doesn't read the
  scenario's format, it holds bf16.
"""

from __future__ import annotations

from dataclasses import dataclass

from pddplan.llm.formats import formats
from pddplan.llm.parameters import parameters
from pddplan.llm.types import LanguageModel
from pddplan.llm.weights import experts_dtype, linear_dtype, weight_recipe
from pddplan.perf.ops import compute_dtype
from pddplan.spec.types import Assumption, ChipOffer, Scenario

OTHER_EIGHT_BIT = {"fp8": "int8", "int8": "fp8"}
READ_BY_ALL = "bf16"  # KV format


@dataclass(frozen=True)
class WeightsOnChip:
    """Format of the weights on a chip; ``note`` says why where it isn't what was asked for, or is widened."""

    weights: str
    note: str = ""


def weights_on(offer: ChipOffer, model: LanguageModel, wanted: str) -> WeightsOnChip:
    """Format of ``model``'s weights on an offer's chip: as stated there, else ``wanted`` by the rule above."""
    stated = offer.precision.weights if offer.precision is not None else None
    if stated is not None:
        return WeightsOnChip(stated)
    chip = offer.chip
    missing = [t for t in _compute_types(model, wanted) if t not in chip.peak_flops]
    if not missing:
        return WeightsOnChip(wanted)
    lacks = f"{chip.id} has no {' and no '.join(missing)}"
    other = OTHER_EIGHT_BIT.get(missing[0], "")
    if other in chip.peak_flops and _all_stored_for(model, wanted, missing[0]):
        return WeightsOnChip(other, f"{lacks}: it computes in {other}, from weights of as many bytes")
    run = " and ".join(dict.fromkeys(compute_dtype(chip, t) for t in missing))
    return WeightsOnChip(wanted, f"{lacks}: the weights stay so in memory and are widened to {run} in each operation")


def _compute_types(model: LanguageModel, weights: str) -> tuple[str, ...]:
    """Types that products with the linears run in, routed experts' first."""
    linear = linear_dtype(model, weights)
    both = (experts_dtype(model, weights), linear) if parameters(model).routed_experts else (linear,)
    return tuple(dict.fromkeys(both))


def _all_stored_for(model: LanguageModel, weights: str, compute: str) -> bool:
    """Whether all linears are stored in formats of this compute type, so that the other 8-bit recipe has their bytes;
    not so of 4-bit experts beside 8-bit linears, nor where some linears are left in bf16."""
    recipe, known = weight_recipe(model, weights), formats().weights
    classes = (recipe.experts, recipe.linear) if parameters(model).routed_experts else (recipe.linear,)
    return all(known[name].compute == compute for name in classes)


def reads_kv(offer: ChipOffer, kv_format: str) -> bool:
    """Whether an offer's chip reads a KV cache in a format: bf16, a type it computes in, what it is stated to hold."""
    stated = offer.precision.kv_cache if offer.precision is not None else None
    return kv_format in (READ_BY_ALL, stated) or kv_format in offer.chip.peak_flops


def kv_on(offer: ChipOffer, wanted: str) -> str:
    """KV format that pools on an offer hold: as stated there, else ``wanted`` if the chip reads it, else bf16."""
    if offer.precision is not None and offer.precision.kv_cache is not None:
        return offer.precision.kv_cache
    return wanted if reads_kv(offer, wanted) else READ_BY_ALL


def kv_between(sender: ChipOffer, receiver: ChipOffer, wanted: str) -> str:
    """KV format that crosses from one offer's pool to another's: what both hold if that is the same, else ``wanted`` if
    both read it, else bf16. An end that holds another converts: the sender before, the receiver after."""
    held = kv_on(sender, wanted)
    if held == kv_on(receiver, wanted):
        return held
    return wanted if reads_kv(sender, wanted) and reads_kv(receiver, wanted) else READ_BY_ALL


def format_assumptions(scenario: Scenario, model: LanguageModel) -> tuple[Assumption, ...]:
    """Formats that chips run by the rules above instead of the scenario's, one entry per offer and kind."""
    found: list[Assumption] = []
    for offer in (offer for site in scenario.sites for offer in site.offers):
        weights = weights_on(offer, model, scenario.precision.weights)
        if weights.note:
            found.append(Assumption(f"{offer.key}.precision.weights", weights.weights, "default", weights.note))
        wanted = scenario.precision.kv_cache
        held = kv_on(offer, wanted)
        if held != wanted and (offer.precision is None or offer.precision.kv_cache is None):
            note = f"{offer.chip.id} has no {wanted}: its KV cache is {held}, and what it sends and receives too"
            found.append(Assumption(f"{offer.key}.precision.kv_cache", held, "default", note))
    return tuple(found)
