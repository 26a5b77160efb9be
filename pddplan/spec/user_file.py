"""A file that a person names, or standard input: its text, or one clear problem."""

from __future__ import annotations

import sys
from pathlib import Path

from pddplan.errors import InputError, Problem

STDIN = "<stdin>"


def refusal(file: str, message: str, fix: str = "", line: int | None = None, key: str = "") -> InputError:
    return InputError(Problem(message, key=key, file=file, line=line, fix=fix))


def read_bytes(path: str | Path, most_bytes: int, *, missing: str, folder: str, size: str) -> tuple[bytes, str]:
    """(content, name for messages) of a file of at most ``most_bytes``, or of standard input for ``-``.

    ``missing``, ``folder``, ``size``: what to do where there is no such file, it is a folder, it is too large.
    Raises InputError.
    """
    stdin = str(path) == "-"
    name = STDIN if stdin else str(path)
    try:
        if stdin:
            raw = sys.stdin.buffer.read(most_bytes + 1)
        else:
            with open(path, "rb") as stream:
                raw = stream.read(most_bytes + 1)
    except FileNotFoundError:
        raise refusal(name, "no such file.", missing) from None
    except IsADirectoryError:
        raise refusal(name, "is a directory.", folder) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise refusal(name, f"can't be read: {reason}.", "Check the path and its permissions.") from None
    if len(raw) > most_bytes:
        raise refusal(name, f"is larger than {most_bytes // 2**20} MiB.", size)
    return raw, name


def decoded(raw: bytes, file: str, fix: str) -> str:
    """Content as text, a byte order mark aside. Raises InputError for what isn't UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise refusal(file, "is not text (UTF-8).", fix) from None
