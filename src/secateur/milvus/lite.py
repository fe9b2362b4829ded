"""Milvus-lite: which addresses mean a file of it, and one server in this process for each file.

A file (a folder in truth) can be open in one process at a time. Blocking.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Final, Self

from secateur.errors import MissingExtraError, SecateurError, UnavailableError

SUFFIX: Final = ".db"

_lock = threading.Lock()
_users: Counter[str] = Counter()


def is_file(uri: str) -> bool:
    """Whether a Milvus address is a milvus-lite file's path; only these end in ``.db``."""
    return uri.endswith(SUFFIX) and "://" not in uri


def open_file(path: str) -> str:
    """Open the file, made if it is missing, and return the address of its server.

    Opened again in the same process, it is shared; each open needs its own :func:`close_file`.
    Raises UnavailableError when another process has it open, SecateurError when it cannot be
    opened, MissingExtraError without milvus-lite.
    """
    try:
        from milvus_lite.server_manager import server_manager_instance as manager
    except ImportError as error:
        raise MissingExtraError("milvus", "milvus-lite") from error
    file = Path(path).absolute()
    if file.is_file():
        raise SecateurError(f"{path}: written by milvus-lite 2, which version 3 cannot read")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SecateurError(f"{path}: cannot be made: {error.strerror}") from None
    with _lock, _Causes() as causes:
        address = manager.start_and_get_uri(str(file))
        if address is not None:
            _users[str(file)] += 1
            return str(address)
    raise _failure(path, causes.seen)


def close_file(path: str) -> None:
    """Give up one opening of the file; the last one closes it."""
    from milvus_lite.server_manager import server_manager_instance as manager

    file = str(Path(path).absolute())
    with _lock:
        _users[file] -= 1
        if _users[file] <= 0:
            del _users[file]
            manager.release_server(file)


def _failure(path: str, cause: BaseException | None) -> SecateurError:
    from milvus_lite import DataDirLockedError

    if isinstance(cause, DataDirLockedError):
        return UnavailableError(
            f"{path} is open in another process, and milvus-lite allows only one; stop that "
            "process, or use a Milvus server"
        )
    return SecateurError(f"{path}: milvus-lite cannot open it: {cause}")


class _Causes(logging.Handler):
    """Catches what milvus-lite logs in place of raising it, and keeps it off the terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: BaseException | None = None
        self._logger = logging.getLogger("milvus_lite.server_manager")

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen = record.exc_info[1]

    def __enter__(self) -> Self:
        self._before = self._logger.propagate, self._logger.level
        self._logger.setLevel(logging.ERROR)
        self._logger.addHandler(self)
        self._logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate, level = self._before
        self._logger.setLevel(level)
