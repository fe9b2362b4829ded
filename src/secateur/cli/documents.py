"""Reads files into documents to index: text, Markdown, JSON Lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secateur.cli.exits import BadInputError
from secateur.cli.json_request import passage_from_json
from secateur.milvus.types import Document

ENDINGS: Final = (".txt", ".md", ".jsonl")

_HEADING: Final = re.compile(r"\s*#[ \t]+(.+?)[ \t#]*(?:\n|$)")


@dataclass(frozen=True, slots=True)
class Source:
    """A document, the file and line that it is from, and the bytes that it takes there."""

    document: Document
    place: str
    size: int


def check_files(files: Sequence[Path]) -> None:
    """Raise BadInputError unless all are readable files of a known kind, each given once."""
    for file in files:
        if file.suffix.lower() not in ENDINGS:
            raise BadInputError(f"{file}: the name must end in {', '.join(ENDINGS)}")
        if not file.is_file():
            raise BadInputError(f"{file}: there is no such file")
    repeated = {file for file in files if files.count(file) > 1}
    if repeated:
        raise BadInputError(f"{min(repeated)} is given twice")


def read_documents(file: Path) -> Iterator[Source]:
    """The documents of a file.

    A text or Markdown file is one document, named by its path; Markdown's first heading, when
    the text begins with it, is the title. A line of JSON Lines is one: an object with ``text``
    and, if wanted, ``id`` and ``title``, or a string that is the text; without an id it is
    named by path and line. Raises BadInputError with file and line.
    """
    try:
        if file.suffix.lower() == ".jsonl":
            yield from _lines(file)
            return
        content = file.read_bytes()
    except OSError as error:
        raise BadInputError(f"cannot read {file}: {error.strerror}") from None
    text = _decoded(content, str(file))
    heading = _HEADING.match(text) if file.suffix.lower() == ".md" else None
    title = heading[1] if heading else ""
    yield Source(Document(file.as_posix(), text, title), str(file), len(content))


def _lines(file: Path) -> Iterator[Source]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file}, line {number}"
            content = _decoded(line, where)
            if not content.strip():
                continue
            try:
                value = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise BadInputError(f"{where}: not valid JSON: {error}") from None
            passage = passage_from_json(value, where)
            if passage.sentences:
                raise BadInputError(f"{where}: sentences are found when searching; leave them out")
            id_ = passage.id or f"{file.as_posix()}#{number}"
            yield Source(Document(id_, passage.text, passage.title), where, len(line))


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start)
        place = f"{where}, line {line + 1}" if line else where
        raise BadInputError(f"{place}: not valid UTF-8") from None
