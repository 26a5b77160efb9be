"""A file that a person names, or standard input: its text, or one clear problem; and one that is written whole."""

from __future__ import annotations

import os
import sys
import tempfile
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


def write_whole(target: Path, content: bytes) -> None:
    """Writes beside ``target``, then renames: a reader sees the old file or the new one, never half of one.

    Raises OSError, with nothing left beside it.
    """
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(temporary, _mode_of(target))
        os.replace(temporary, target)
    except OSError:
        os.unlink(temporary)
        raise


def _mode_of(target: Path) -> int:
    """Permissions that a plainly opened file would get; mkstemp alone makes it private."""
    if target.exists():
        return target.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
