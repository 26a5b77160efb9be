"""One instance, or one deployment of prefill and decode workers, at one operating point: times, rates, memory, ops.

``pddplan.estimate(point)`` is ``pddplan.estimate.estimate.estimate(point)``: as the folder has the function's name, the
folder's module answers the call.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pddplan.errors import Excuse
    from pddplan.estimate.records import Estimate, OperatingPoint


class _Callable(ModuleType):
    def __call__(self, point: OperatingPoint) -> Estimate | Excuse:
        from pddplan.estimate.estimate import estimate

        return estimate(point)


sys.modules[__name__].__class__ = _Callable
