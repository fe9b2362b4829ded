"""Exit codes, and how errors become one sentence on stderr and a code.

0    done; for ``health``: serving
1    it failed: server not reachable or not serving, deadline, overload, missing extra, a model
     that does not load, output that cannot be written
2    the command line or the input is wrong: usage, files, JSON, a request that is refused
130  interrupted (Ctrl-C)
141  whoever read the output closed it (broken pipe); nothing is printed
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import typer

from secateur.errors import (
    CollectionNotFoundError,
    InvalidRequestError,
    InvariantError,
    MissingExtraError,
    NotImplementedOptionError,
    SecateurError,
    UnsupportedByMilvusError,
    UnsupportedByModelError,
)

OK = 0
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

_REFUSED = (
    CollectionNotFoundError,
    InvalidRequestError,
    NotImplementedOptionError,
    UnsupportedByMilvusError,
    UnsupportedByModelError,
)


class BadInputError(Exception):
    """The command line or its input is wrong; ``str(error)`` says what and where."""


@contextmanager
def errors_reported() -> Iterator[None]:
    """Turn the errors of a command into a message on stderr and ``typer.Exit``.

    What is no deliberate error passes through: its traceback is for a bug report.
    """
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _discard_stdout()
        raise typer.Exit(BROKEN_PIPE) from None
    except OSError as error:  # such as a full disk; files of the user are read elsewhere
        _discard_stdout()
        _fail(str(error), FAILED)
    except BadInputError as error:
        _fail(str(error), BAD_INPUT)
    except InvalidRequestError as error:
        lines = [
            f"{v.field}: {v.description}" if v.field else v.description for v in error.violations
        ]
        _fail("\n  ".join(["the request is refused:", *lines]), BAD_INPUT)
    except InvariantError as error:
        _fail(f"{error}\nThis is a bug in Secateur; please report it.", FAILED)
    except SecateurError as error:
        _fail(str(error), BAD_INPUT if isinstance(error, _REFUSED) else FAILED)


@contextmanager
def extra_needed(extra: str) -> Iterator[None]:
    """Around imports that need an extra: a missing module becomes MissingExtraError."""
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "secateur"}:
            raise
        raise MissingExtraError(extra, missing) from error


def exit_code_of(run: Callable[[], object]) -> int:
    """Run the application and return the code that it exits with."""
    try:
        run()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"secateur: {message}", err=True)
    raise typer.Exit(code) from None


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot fail again."""
    with suppress(OSError):  # a stdout that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
