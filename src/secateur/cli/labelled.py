"""What the commands share that read a file of rows and write one of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateur.cli.exits import BadInputError, extra_needed

if TYPE_CHECKING:
    from secateur import Pruner

Data = Annotated[
    Path, typer.Option(metavar="FILE", help="Labelled rows, .jsonl or .jsonl.xz: see the docs.")
]


@contextmanager
def faults_of(file: Path) -> Iterator[None]:
    """Turn what is wrong with a file of the user into BadInputError."""
    try:
        yield
    except UnicodeDecodeError:
        raise BadInputError(f"{file}: not valid UTF-8") from None
    except ValueError as error:
        raise BadInputError(str(error)) from None
    except OSError as error:
        raise BadInputError(f"cannot read {file}: {error.strerror or error}") from None


def check_output(option: str, file: Path) -> None:
    """Raises BadInputError, before any work, for a file that cannot be written there."""
    if not file.parent.is_dir():
        raise BadInputError(f"{option} {file}: there is no folder {file.parent}")
    if file.is_dir():
        raise BadInputError(f"{option} {file}: is a folder, must be a file")


def load_pruner(model: str | None, dtype: str | None = None) -> Pruner:
    """The model to measure. Raises CheckpointError, MissingExtraError, or BadInputError."""
    with extra_needed("train"):
        from secateur import Pruner
        from secateur.model.modes import AUTO, check_mode
    mode = AUTO if dtype is None else dtype
    try:
        check_mode(mode)
    except ValueError as error:
        raise BadInputError(f"--dtype: {error}") from None
    return Pruner.load(model, dtype=mode)
