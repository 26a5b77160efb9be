"""What the shell offers at TAB: files, ids of chips and models, keys of a scenario. Nothing heavy is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable

SCENARIOS = (".yaml", ".yml", ".json")


def scenario_files(incomplete: str) -> list[str]:
    """Scenario files, and folders that may hold some."""
    return files_that_end(incomplete, SCENARIOS)


def config_files(incomplete: str) -> list[str]:
    """A model's config.json, or its folder."""
    return files_that_end(incomplete, (".json",))


def measurement_files(incomplete: str) -> list[str]:
    """Tables of measurements."""
    return files_that_end(incomplete, (".csv", ".tsv", ".json", ".jsonl"))


def files_that_end(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    """Files with one of these endings and folders, by the beginning of their path as it is typed.

    A single folder gives way to what is in it: the shell would otherwise end the word there. Names with blanks are
    left to the shell's own completion, which knows how to quote them.
    """
    folder, name = os.path.split(incomplete)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            seen = sorted((e.name, e.is_dir()) for e in entries)
    except OSError:
        return []
    shown = [
        (entry, is_folder)
        for entry, is_folder in seen
        if entry.startswith(name) and (is_folder or entry.lower().endswith(endings))
        if (name.startswith(".") or not entry.startswith(".")) and not any(c.isspace() for c in entry)
    ]
    if len(shown) == 1 and shown[0][1]:
        inside = os.path.join(folder, shown[0][0], "")
        return files_that_end(inside, endings) or [inside]
    return [os.path.join(folder, entry, "") if is_folder else os.path.join(folder, entry) for entry, is_folder in shown]


def chip_names(incomplete: str) -> list[str]:
    """Ids and aliases of chips."""
    from pddplan.spec.catalogue import chip_spellings

    return beginning_so(chip_spellings(), incomplete)


def model_names(incomplete: str) -> list[str]:
    """Ids of models, and files of the user's own."""
    from pddplan.llm.catalogue import model_ids

    own = files_that_end(incomplete, SCENARIOS) if incomplete else []
    return [*beginning_so(model_ids(), incomplete), *own]


def scenario_keys(incomplete: str) -> list[str]:
    """Keys for ``--set``; its value is nobody's to guess."""
    if "=" in incomplete:
        return []
    from pddplan.spec.key_paths import key_paths

    return key_paths(incomplete)


def beginning_so(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
