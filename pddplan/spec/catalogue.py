"""The chip catalogue: find, load and list the chips of ``hardware/chips`` (one file a chip).

Names are looked up in the head of each file, without parsing it: adding a chip is adding one file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path

from pddplan.errors import InputError, Problem
from pddplan.spec.chips import (
    chip_assumptions,
    chip_from_catalogue,
    chip_from_mapping,
    missing_problem,
)
from pddplan.spec.datafile import examples_dir, hardware_dir, read_data_file
from pddplan.spec.issues import LONGEST_NAME
from pddplan.spec.profiles import (
    LinkDefaults,
    TierOffer,
    engine_ids,
    link_defaults,
    load_engine,
)
from pddplan.spec.types import Chip

__all__ = [
    "LinkDefaults",
    "TierOffer",
    "catalogue_date",
    "chip_assumptions",
    "chip_from_mapping",
    "chip_ids",
    "chip_spellings",
    "closest_chips",
    "engine_ids",
    "examples_dir",
    "find_chip",
    "hardware_dir",
    "link_defaults",
    "load_chip",
    "load_engine",
    "missing_problem",
    "price_age_months",
    "unknown_chip",
]

_ALIASES = re.compile(r"^aliases: *\[(.*)\] *$", re.MULTILINE)
_CHECKED = re.compile(r"^checked: *\"?([0-9]{4}-[0-9]{2}-[0-9]{2})", re.MULTILINE)
_MEMORY = re.compile(r"^([0-9]+)(?:g|gb|gib)$")
_SXM = re.compile(r"sxm[0-9]?")
# Words that other tools put around a chip's name and that tell no chips of this catalogue apart; so does the first
# word of each id, the vendor.
_NOISE = {"instinct", "cloud", "geforce", "tesla", "oam", "hbm2", "hbm2e", "hbm3", "hbm3e", "hbm4"}
_NOISE |= {"gpu", "npu", "accelerator", "card", "dcu", "mtt", "moore", "threads", "alibaba"}
_FORM = {"sxm", "nvl72"}  # dropped only where the name isn't found with them
_NAMED = 8  # chips that the message for an ambiguous name lists
_RESEMBLES = 0.5  # of 1: how alike a spelling must be to be named
_MEMORY_TOLERANCE = 0.10  # B200 is sold as 180 and as 192 GB


@dataclass(frozen=True)
class _Head:
    id: str
    aliases: tuple[str, ...]
    checked: str


@lru_cache(maxsize=1)
def _heads() -> tuple[_Head, ...]:
    heads = []
    for path in sorted((hardware_dir() / "chips").glob("*.yaml"), key=lambda path: path.stem):
        text = path.read_text(encoding="utf-8")
        listed, checked = _ALIASES.search(text), _CHECKED.search(text)
        if listed is None:  # a list over several lines: parse the file
            aliases = tuple(str(a) for a in read_data_file(path).get("aliases") or ())
        else:
            aliases = tuple(a.strip().strip("\"'") for a in listed[1].split(",") if a.strip())
        heads.append(_Head(path.stem, aliases, checked[1] if checked else ""))
    return tuple(heads)


@lru_cache(maxsize=1)
def _noise() -> frozenset[str]:
    return frozenset(_NOISE | {h.id.split("-")[0] for h in _heads()})


def _words(name: str) -> list[str]:
    plain = _SXM.sub(" sxm ", name.lower())  # SXM4, H100SXM
    words = [w for w in re.split(r"[^a-z0-9]+", plain) if w and w not in _noise()]
    return [f"{m[1]}g" if (m := _MEMORY.match(w)) else w for w in words]


def _keys(words: list[str]) -> tuple[str, str]:
    """Two spellings that mean the same: without separators, and in any order."""
    return "".join(words), " ".join(sorted(words))


@lru_cache(maxsize=1)
def _names() -> Mapping[str, str]:
    """Normalised name -> id; a chip's own id goes before another's alias, an alias of two chips is nobody's."""
    names: dict[str, str] = {}
    shared: set[str] = set()
    for head in _heads():
        for key in {k for alias in head.aliases for k in _keys(_words(alias))}:
            if key in names:
                shared.add(key)
            names[key] = head.id
    for key in shared:
        del names[key]
    for head in _heads():
        for key in _keys(_words(head.id)):
            names[key] = head.id
    return names


def chip_ids() -> tuple[str, ...]:
    """All ids of the catalogue, sorted."""
    return tuple(h.id for h in _heads())


def chip_spellings() -> tuple[str, ...]:
    """All ids, then all aliases."""
    return (*chip_ids(), *(alias for head in _heads() for alias in head.aliases))


def find_chip(name: str) -> str | None:
    """The id for an id, an alias or another tool's spelling (``h100_sxm``, ``H200-SXM-141GB``); None if none.

    Case, separators, vendor names and memory types don't matter. A memory size that isn't part of a name
    in the catalogue must fit the chip's within a tenth: an A100 of 40 GB is not the one of 80 GB.
    """
    if _file(name).is_file():
        return name
    words = _words(name)
    sizes = [int(m[1]) for w in words if (m := _MEMORY.match(w))]
    without_size = [w for w in words if not _MEMORY.match(w)]
    for attempt in (words, without_size, [w for w in without_size if w not in _FORM]):
        found = next((_names()[k] for k in _keys(attempt) if attempt and k in _names()), None)
        if found is not None:
            return found if attempt is words or all(_fits(found, s) for s in sizes) else None
    return None


def _file(chip_id: str) -> Path:
    # no file can have a much longer name: the system would refuse it before it says that there is none
    plain = len(chip_id) <= LONGEST_NAME and re.fullmatch(r"[a-z0-9][a-z0-9.-]*", chip_id) is not None
    return hardware_dir() / "chips" / (f"{chip_id}.yaml" if plain else "no such file")


def _fits(chip_id: str, gigabytes: int) -> bool:
    nominal = load_chip(chip_id).memory_gb_nominal
    return nominal is None or abs(gigabytes - nominal) <= _MEMORY_TOLERANCE * nominal


def closest_chips(name: str, n: int = 3) -> tuple[str, ...]:
    """Up to n ids whose id or alias resembles the name, best first."""
    import difflib  # only where something is wrong

    asked = difflib.SequenceMatcher(b=name.lower().replace("_", "-"))
    near: list[tuple[float, str, str]] = []
    for head in _heads():
        for spelling in (*head.aliases, head.id):
            asked.set_seq1(spelling)
            if asked.real_quick_ratio() >= _RESEMBLES and (ratio := asked.ratio()) >= _RESEMBLES:
                near.append((-ratio, spelling, head.id))
    return tuple(dict.fromkeys(chip_id for _, _, chip_id in sorted(near)))[:n]


def _candidates(name: str) -> tuple[str, ...]:
    """Ids of the chips whose name holds each of these words, or begins so: ``ascend``, ``mi3``, ``trainium``."""
    asked = _words(name)
    joined = "".join(asked)
    found = []
    for head in _heads():
        spellings = [_words(s) for s in (head.id, *head.aliases)]
        if any(set(asked) <= set(w) or (len(joined) > 2 and "".join(w).startswith(joined)) for w in spellings):
            found.append(head.id)
    vendor = name.lower().strip()
    return tuple(found) if asked else tuple(h.id for h in _heads() if vendor and h.id.startswith(f"{vendor}-"))


def unknown_chip(name: str, key: str = "") -> Problem:
    """The message for a name that is no chip's, or more than one's, with the closest ones."""
    import difflib

    several = _candidates(name)
    if len(several) > 1:
        listed = ", ".join(several[:_NAMED]) + (", …" if len(several) > _NAMED else "")
        return Problem(f"chip {name!r} could be any of {len(several)}.", key, fix=f"Name one: {listed}.")
    others = _candidates(" ".join(w for w in _words(name) if not _MEMORY.match(w)))  # that name, another memory
    near = tuple(dict.fromkeys((*several, *others, *closest_chips(name))))[:3]
    if near and difflib.SequenceMatcher(None, name.lower(), near[0]).ratio() > 0.9:
        near = near[:1]
    aliases = {h.id: h.aliases for h in _heads()}
    listed = ", ".join(f"{c} (alias {aliases[c][0]})" if aliases[c] else c for c in near)
    fix = f"Closest: {listed}." if near else "`pddplan hardware list` shows them all."
    return Problem(f"no chip {name!r} in the catalogue.", key, fix=fix)


@lru_cache(maxsize=128)
def load_chip(name: str) -> Chip:
    """The chip for an id, an alias or another tool's spelling; InputError with the closest names otherwise.

    A chip with unpublished dimensions loads too: they are NaN and named in ``missing`` (see
    ``missing_problem``).
    """
    chip_id = find_chip(name)
    if chip_id is None:
        raise InputError(unknown_chip(name))
    chip = chip_from_catalogue(read_data_file(_file(chip_id)), chip_id)
    if isinstance(chip, list):
        raise InputError([Problem(p.message, p.key, str(_file(chip_id)), fix=p.fix) for p in chip])
    return chip


def catalogue_date() -> str:
    """The latest day on which a figure of the catalogue was checked, YYYY-MM-DD."""
    return max((h.checked for h in _heads()), default="")


def price_age_months(chip: Chip, today: date) -> int | None:
    """Whole months between the month of the chip's price and today's; None without a dated price."""
    match = re.match(r"^([0-9]{4})-([0-9]{2})", chip.price_date)
    if match is None or chip.usd_per_hour is None:
        return None
    return (today.year - int(match[1])) * 12 + today.month - int(match[2])
