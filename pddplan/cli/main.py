"""The command line: commands put together, and the one boundary where exceptions become exit codes.

0 done or feasible, 1 infeasible, 2 bad input or usage, 3 internal error or limit hit, 130 Ctrl-C.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.main import get_command

from pddplan.cli.options import Quiet, Version
from pddplan.cli.problems import report_problems
from pddplan.errors import InputError, Problem

# The arrays are small: BLAS threads would only spin beside them. A user's own setting stands.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The models of the scenario need no plugin: looking for one reads the metadata of every installed package.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
# Few cycles are made and the process is short: looking for them at every 700 objects costs more than it frees.
gc.set_threshold(200_000, 20, 20)

INTERRUPTED = 130
# modules here, in the order of the help
COMMANDS = (
    "solve",
    "compare",
    "check",
    "simulate",
    "estimate",
    "init",
    "hardware",
    "model",
    "validate",
    "calibrate",
    "schema",
)
COMPLETION = ("--install-completion", "--show-completion")
REPORT_AT = "the issue tracker of pddplan, with the command, the scenario and PDDPLAN_DEBUG=1"


def root(context: typer.Context, version: Version = False, quiet: Quiet = False) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# Every usage error of the command-line library derives from the base of BadParameter.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@cache
def command(only: str | None = None) -> Callable[..., Any]:
    """The commands as the command-line library runs them, or just one of them; put together once a process."""
    # Rich's help would cost half of the start-up time; plain help is also what a pipe and TERM=dumb ask for.
    app = typer.Typer(
        name="pddplan",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Plan LLM serving that is split over sites: which chips, how many instances, which line, at what cost, "
        "and whether it holds the SLO.",
        epilog="Start with: pddplan init && pddplan solve scenario.yaml",
    )
    app.callback(invoke_without_command=True)(root)
    for name in COMMANDS if only is None else (only,):
        import_module(f"pddplan.cli.{name}").register(app)
    return get_command(app)


def _asked_for(arguments: Sequence[str]) -> str | None:
    """The command that the line begins with: the others needn't be put together. None where it doesn't begin so."""
    return arguments[0] if arguments and arguments[0] in COMMANDS else None


def main(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    as_json = "--json" in arguments
    _keep_stderr_clean()
    try:
        code = command(_asked_for(arguments))(list(arguments), prog_name="pddplan", standalone_mode=False)
    except InputError as error:
        report_problems([_placed(problem, arguments) for problem in error.problems], as_json=as_json)
        return 2
    except _UsageError as error:
        report_problems([_usage_problem(error, arguments)], as_json=as_json)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if not _asks_for_completion(arguments):
            return _internal_error(error, as_json)
        fix = "Put what pddplan --show-completion prints where your shell reads it."
        message = f"the completion can't be installed: {_reason(error)}."
        report_problems([Problem(message, file="pddplan --install-completion", fix=fix)], as_json=as_json)
        return 2
    except Exception as error:  # the boundary: a person gets one line, never a traceback
        return _internal_error(error, as_json)
    if code == INTERRUPTED:  # the library has turned Ctrl-C into this code already
        print("Interrupted.", file=sys.stderr)
    if code and _asks_for_completion(arguments):
        return 2  # a shell that isn't supported, said by the library
    return code if isinstance(code, int) else 0


def _asks_for_completion(arguments: Sequence[str]) -> bool:
    return any(a.partition("=")[0] in COMPLETION for a in arguments)


def _internal_error(error: Exception, as_json: bool) -> int:
    if os.environ.get("PDDPLAN_DEBUG"):
        traceback.print_exc()
    message = f"internal error: {type(error).__name__}: {' '.join(str(error).split())}."
    report_problems([Problem(message, file="pddplan", fix=f"Please report it at {REPORT_AT}.")], as_json=as_json)
    return 3


def _reason(error: OSError) -> str:
    """``/home/x/.bashrc: Permission denied``, without the number."""
    reason = error.strerror or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


def _keep_stderr_clean() -> None:
    """A library's RuntimeWarning is for developers; with --json it would even spoil what a program reads."""
    if not os.environ.get("PDDPLAN_DEBUG") and not sys.warnoptions:
        warnings.simplefilter("ignore", RuntimeWarning)


def _placed(problem: Problem, arguments: Sequence[str]) -> Problem:
    """What isn't about a file is about an argument: the command stands in the file's place."""
    if problem.file:
        return problem
    return replace(problem, file=" ".join(["pddplan", *_command_words(arguments)]), key="")


def _command_words(arguments: Sequence[str]) -> list[str]:
    """The names of the command in a command line, without its own arguments: ``hardware show``."""
    words: list[str] = []
    known = getattr(command(), "commands", {})
    for word in arguments:
        if word in known:
            words.append(word)
            known = getattr(known[word], "commands", {})
        elif not word.startswith("-"):
            break
    return words


def _usage_problem(error: Exception, arguments: Sequence[str]) -> Problem:
    """The library's message as a problem of the command line, with the help that answers it."""
    formatted = getattr(error, "format_message", None)
    message = " ".join(str(formatted() if callable(formatted) else error).split())
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "pddplan"
    return Problem(message if message.endswith((".", "?")) else f"{message}.", file=path, fix=f"See: {path} --help")


def run() -> NoReturn:
    """Entry point of the console script."""
    code = main(sys.argv[1:])
    # The process gives all its memory back at once: the interpreter's last two hunts for cycles would only cost time.
    gc.freeze()
    sys.exit(code)
