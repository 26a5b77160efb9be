"""Where output goes: answers to stdout, everything else to stderr, files whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any, TextIO

from pddplan.errors import InputError, Problem
from pddplan.spec.user_file import write_whole

NARROWEST, WIDEST = 60, 100
HANGING = "    "  # before the later lines of a message
# For a stream whose encoding lacks these signs; each as wide as what it stands for, so that columns stay aligned.
_PLAIN = str.maketrans({"█": "#", "–": "-", "…": "~", "×": "x", "·": "-", "≥": ">", "≤": "<", "→": ">", "’": "'"})


def emit(text: str, stream: TextIO | None = None) -> None:
    """Write ``text`` and a newline to stdout (or ``stream``).

    A reader that went away (``| head``) is no error: the rest goes nowhere and the command keeps its exit code.
    """
    out = sys.stdout if stream is None else stream
    try:
        out.write(text + "\n")
        out.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; a closed pipe would then print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except UnicodeEncodeError:
        encoding = out.encoding or "ascii"
        out.write(text.translate(_PLAIN).encode(encoding, "replace").decode(encoding) + "\n")
        out.flush()


def emit_json(payload: dict[str, Any], stream: TextIO | None = None) -> None:
    """One JSON object; NaN and infinity are refused, they are not JSON."""
    emit(to_json(payload), stream)


def to_json(payload: dict[str, Any]) -> str:
    return json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False)


def note(text: str, *, quiet: bool = False) -> None:
    """A remark to the person, on stderr."""
    if not quiet:
        tell(text)


def tell(text: str) -> None:
    """One message on stderr: wrapped at words on a terminal; one line anywhere else, for what reads ``file:line:``."""
    if sys.stderr.isatty():
        # a path or a command is left whole, to be copied
        lines = textwrap.wrap(
            text, _stderr_width(), subsequent_indent=HANGING, break_long_words=False, break_on_hyphens=False
        )
        text = "\n".join(lines)
    emit(text, sys.stderr)


def text_width() -> int:
    """Columns to write for: the terminal's within 60…100; 100 where there is none."""
    return _readable(shutil.get_terminal_size((WIDEST, 24)).columns)


def _stderr_width() -> int:
    """The same for stderr, which may be a terminal where stdout isn't."""
    if os.environ.get("COLUMNS"):
        return text_width()
    try:
        return _readable(os.get_terminal_size(sys.stderr.fileno()).columns or WIDEST)
    except (OSError, ValueError):
        return WIDEST


def _readable(columns: int) -> int:
    return max(NARROWEST, min(WIDEST, columns))


def is_rich_terminal(stream: TextIO) -> bool:
    """True on a terminal that wants colour: no pipe, no NO_COLOR, no TERM=dumb."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") == "dumb":
        return False
    return stream.isatty()


def write_atomically(path: str, text: str) -> None:
    """Write beside ``path``, then rename: a reader sees the old file or the new one, never half of one.

    Raises InputError where the folder is missing or can't be written.
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise InputError(Problem("is a folder.", file=path, fix="Give the name of a file."))
        write_whole(target, text.encode("utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        fix = "Make the folder first." if not target.parent.is_dir() else ""
        raise InputError(Problem(f"can't be written: {reason}.", file=path, fix=fix)) from error
