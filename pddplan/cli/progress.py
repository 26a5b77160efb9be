"""A bar on stderr for work that takes longer than a second, on a terminal only.

The search ends when its bound meets its best plan, which nobody can time: the bar says what is known so far.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from pddplan.cli.output import is_rich_terminal

if TYPE_CHECKING:
    from rich.progress import Progress

SILENT_S = 1.0  # quick answers come without a flicker


class ProgressBar:
    """Call it with what is known so far; shows a bar once ``SILENT_S`` have passed."""

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        self._label = label
        self._enabled = not quiet and is_rich_terminal(sys.stderr)
        self._began = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, message: str) -> None:
        if not self._enabled or time.monotonic() - self._began < SILENT_S:
            return
        if self._bar is None:
            self._bar = _start_bar(self._label)
        self._bar.update(self._bar.task_ids[0], state=message)

    def share(self, done: float, message: str) -> None:
        """The same of work whose share that is done is known."""
        self(f"{done:.0%}, {message}")


def _start_bar(label: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn(label),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(label, total=None, state="")
    bar.start()
    return bar
