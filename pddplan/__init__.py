"""Capacity planner for LLM serving split over sites: ``load_scenario``, ``solve``, ``evaluate``, ``estimate``.

Names are looked up on first use (PEP 562), so that ``import pddplan`` costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pddplan.errors import Excuse, InputError, Problem
    from pddplan.estimate.estimate import estimate, estimate_many
    from pddplan.estimate.records import Estimate, Lengths, OperatingPoint, Workers
    from pddplan.llm.catalogue import load_model
    from pddplan.perf.instance import Parallelism
    from pddplan.plan.records import PlanResult
    from pddplan.plan.solve import solve
    from pddplan.serve.evaluate import evaluate
    from pddplan.spec.catalogue import load_chip
    from pddplan.spec.types import Engine, Scenario

__version__ = "0.1.0"

__all__ = [
    "Estimate",
    "Excuse",
    "InputError",
    "Lengths",
    "OperatingPoint",
    "Parallelism",
    "PlanResult",
    "Problem",
    "Scenario",
    "Workers",
    "__version__",
    "compare",
    "estimate",
    "estimate_many",
    "evaluate",
    "load_chip",
    "load_engine",
    "load_model",
    "load_scenario",
    "load_scenario_text",
    "solve",
]

_HOME = {
    "Estimate": "pddplan.estimate.records",
    "Excuse": "pddplan.errors",
    "InputError": "pddplan.errors",
    "Lengths": "pddplan.estimate.records",
    "OperatingPoint": "pddplan.estimate.records",
    "Parallelism": "pddplan.perf.instance",
    "PlanResult": "pddplan.plan.records",
    "Problem": "pddplan.errors",
    "Scenario": "pddplan.spec.types",
    "Workers": "pddplan.estimate.records",
    "compare": "pddplan.plan.compare",
    "estimate": "pddplan.estimate",
    "estimate_many": "pddplan.estimate.estimate",
    "evaluate": "pddplan.serve.evaluate",
    "load_chip": "pddplan.spec.catalogue",
    "load_model": "pddplan.llm.catalogue",
    "solve": "pddplan.plan.solve",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pddplan' has no attribute {name!r}")
    if name == "estimate":  # the folder of this name, which can be called
        return import_module("pddplan.estimate")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def load_scenario(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in a YAML or JSON file, checked whole, its model included.

    ``overrides`` are ``key.path=value`` texts. Raises InputError with every problem of the file at once.
    """
    from pddplan.spec.load import load_scenario as load

    return load(path, overrides=overrides, check_model=_model_problems)


def load_scenario_text(text: str, file: str = "<text>", base_dir: str = ".", overrides: Sequence[str] = ()) -> Scenario:
    """The same from text; paths in it are relative to ``base_dir``, problems name ``file``."""
    from pddplan.spec.load import load_scenario_text as load

    return load(text, file, base_dir, overrides=overrides, check_model=_model_problems)


def load_engine(name: str = "generic") -> Engine:
    """An engine profile: vllm, sglang, trtllm or generic. Raises InputError for another name."""
    from pddplan.spec.profiles import load_engine as load

    return load(name)[0]


def _model_problems(model: str, base_dir: str) -> Sequence[Problem]:
    """All that is wrong with a model's name or card; ``spec`` lies below ``llm`` and can't ask itself."""
    from pddplan.errors import InputError
    from pddplan.llm.catalogue import load_model

    try:
        load_model(model, base_dir)
    except InputError as error:
        return error.problems
    return ()
