"""Typed values of a Hugging Face config.json, by the names that families give them; what is wrong is noted by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pddplan.llm.architectures import known_names
from pddplan.spec.issues import Issue, KeyPath, closest, shown

MAX_LAYERS = 10_000
MAX_SIZE = 10**6  # widths, heads, experts, vocabulary
MAX_TOKENS = 10**9
REQUIRED = object()

Layer = tuple[Mapping[str, Any], KeyPath]


class ConfigReader:
    """A view on one or more mappings of a file: a key is looked up in the first that has it."""

    def __init__(self, mappings: Sequence[Layer], issues: list[Issue], prefix: str = "", home: KeyPath = ()) -> None:
        self.mappings = tuple(mappings)
        self.issues = issues
        self.prefix = prefix
        self.home = home  # where a key that is nowhere should be

    def inside(self, key: str, is_home: bool = True) -> ConfigReader:
        """The view in which the keys of the mapping at ``key`` come first; as it is where there is no such key.

        ``is_home``: keys that are missing belong there, else where they belonged before.
        """
        found, where = self.find((key,))
        if found is None:
            return self
        if not isinstance(found, Mapping):
            self.wrong(where, f"must be a mapping, not {shown(found)}.")
            return self
        home = where if is_home else self.home
        return ConfigReader(((found, where), *self.mappings), self.issues, self.prefix, home)

    def prefixed(self, prefix: str) -> ConfigReader:
        return ConfigReader(self.mappings, self.issues, prefix, self.home) if prefix else self

    def wrong(self, where: KeyPath, message: str, fix: str = "") -> None:
        issue = Issue(message, fix, where)
        if issue not in self.issues:
            self.issues.append(issue)

    def find(self, names: Sequence[str]) -> tuple[Any, KeyPath]:
        """(value, path) of the first name that is there and not null; (None, where it should be) else."""
        every = [self.prefix + n for n in names] + list(names) if self.prefix else names
        for mapping, path in self.mappings:
            for name in every:
                if mapping.get(name) is not None:
                    return mapping[name], (*path, name)
        return None, (*self.home, names[0])

    def has(self, name: str) -> bool:
        return self.find((name,))[0] is not None

    def missing(self, names: Sequence[str]) -> None:
        """Notes that none of the names is there, with what the file has instead."""
        unread = [str(key) for mapping, _ in self.mappings for key in mapping if key not in known_names()]
        near = closest(names[0], unread, 0.8)
        others = f"It may also be called {', '.join(names[1:])}." if len(names) > 1 else ""
        fix = f"Did you mean {near}?" if near else others or "Take the config.json that lies beside the weights."
        self.wrong((*self.home, names[0]), "is missing.", fix)

    def count(self, names: Sequence[str], default: Any = REQUIRED, least: int = 1, most: int = MAX_SIZE) -> Any:
        """A whole number within its limits; ``default`` where no name is there. 0 after a problem was noted."""
        found, where = self.find(names)
        if found is None:
            if default is REQUIRED:
                self.missing(names)
                return 0
            return default
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool):
            self.wrong(where, f"must be a whole number, not {shown(found)}.", "As in the released config.json.")
        elif not least <= found <= most:
            self.wrong(where, f"must be from {least} to {most:,}, not {shown(found)}.", "Is a digit wrong?")
        else:
            return found
        return 0

    def flag(self, names: Sequence[str], default: bool = False) -> bool:
        found, where = self.find(names)
        if found is None:
            return default
        if not isinstance(found, bool):
            self.wrong(where, f"must be true or false, not {shown(found)}.")
            return default
        return found

    def text(self, name: str, default: str = "") -> str:
        found, where = self.find((name,))
        if found is None:
            return default
        if not isinstance(found, str):
            self.wrong(where, f"must be text, not {shown(found)}.")
            return default
        return found

    def per_layer(self, name: str, layers: int, allowed: Mapping[Any, str]) -> list[str]:
        """Labels of ``layers`` layers from a list of at least as many (rest: prediction modules); [] if wrong."""
        found, where = self.find((name,))
        if not isinstance(found, (list, str)):
            self.wrong(where, f"must be a list with one entry a layer, not {shown(found)}.")
            return []
        if len(found) < layers:
            self.wrong(where, f"has {len(found)} entries, but there are {layers} layers.", "One entry a layer.")
            return []
        for i, entry in enumerate(found[:layers]):
            if isinstance(entry, (list, Mapping)) or entry not in allowed:
                words = ", ".join(str(a) for a in allowed)
                self.wrong((*where, i), f"no layer is called {shown(entry)}.", f"Known here: {words}.")
                return []
        return [allowed[entry] for entry in found[:layers]]
