"""The file that silver labels are appended to, so that a run can be stopped and taken up again."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from secateur.training.data import read_rows

logger = logging.getLogger(__name__)


class SilverFile:
    """A JSON Lines file of rows with an ``id``, open for appending. A context manager.

    ids: of the rows that are in the file.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file. A last line that a crash cut short is taken off.

        Raises ValueError when another line is no JSON or the name does not end in ``.jsonl``;
        OSError.
        """
        if path.suffix != ".jsonl":
            raise ValueError(f"{path}: the name must end in .jsonl (compress it afterwards)")
        if path.exists():
            _repair(path)
        self._file = path.open("ab")
        self.ids = {str(row.get("id")) for row in read_rows(path)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add the rows whose id is new, and hand them to the operating system at once."""
        new = [row for row in rows if row["id"] not in self.ids]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in new)
        self._file.write(lines.encode())
        self._file.flush()
        self.ids |= {row["id"] for row in new}


def _repair(path: Path) -> None:
    """Take off a torn last line; a whole one that lacks only its line break gets it."""
    with path.open("r+b") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end == len(content):
            return
        try:
            json.loads(content[end:])
        except ValueError:
            file.truncate(end)
            logger.warning("%s: the last line was cut short and is taken off", path)
        else:
            file.write(b"\n")
