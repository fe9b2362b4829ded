"""Reads FILE or standard input into a request: text, JSON Lines, or JSON."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from secateur.cli.exits import BadInputError
from secateur.cli.json_request import passage_from_json, request_from_json
from secateur.cli.options import InputFormat, RequestArguments
from secateur.types import OffsetUnit, Passage, PruneOptions

_FORMATS_BY_ENDING = {
    ".txt": InputFormat.TEXT,
    ".text": InputFormat.TEXT,
    ".md": InputFormat.TEXT,
    ".jsonl": InputFormat.JSONL,
    ".ndjson": InputFormat.JSONL,
    ".json": InputFormat.JSON,
}

_BLANK_LINES = re.compile(r"(?:\r?\n[^\S\n]*)+\r?\n")


@dataclass(frozen=True, slots=True)
class Request:
    """What to send: the file's content with the command line's options over it."""

    query: str
    passages: tuple[Passage, ...]
    options: PruneOptions


def read_request(arguments: RequestArguments) -> Request:
    """Read the file and lay the options that were given over its own.

    Raises BadInputError with the file's name, and the line or path of the fault.
    """
    name = "standard input" if arguments.file == "-" else arguments.file
    content = _decode(_read(arguments.file), name)
    query, passages, options = _parse(content, name, _format_of(arguments, content))
    query = arguments.query if arguments.query is not None else query
    if query is None:
        raise BadInputError("no query: give --query, or a JSON request that has one")
    given = {f.name: getattr(arguments, f.name) for f in fields(PruneOptions)}
    if given["protected_patterns"] is not None:
        given["protected_patterns"] = tuple(given["protected_patterns"])
    options = replace(options, **{n: value for n, value in given.items() if value is not None})
    if not arguments.json_output:
        _refuse_json_only(options)
    return Request(query, passages, options)


def text_passages(content: str) -> tuple[Passage, ...]:
    """One passage a block of lines between blank lines, its text exactly as it stands."""
    blocks = _BLANK_LINES.split(content)
    texts = (block.strip("\r\n") for block in blocks)
    return tuple(Passage(text) for text in texts if text.strip())


def _refuse_json_only(options: PruneOptions) -> None:
    if options.offset_unit is not OffsetUnit.CODE_POINT:
        raise BadInputError("offset_unit changes nothing that is shown; it needs --json")
    for name in ("include_tokens", "include_sentence_text"):
        if getattr(options, name):
            raise BadInputError(f"{name} changes nothing that is shown; it needs --json")


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise BadInputError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the name
        raise BadInputError(f"cannot read {file!r}: {error}") from None


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInputError(f"{name}, line {line}: not valid UTF-8") from None


def _format_of(arguments: RequestArguments, content: str) -> InputFormat:
    if arguments.format is not InputFormat.AUTO:
        return arguments.format
    by_ending = _FORMATS_BY_ENDING.get(Path(arguments.file).suffix.lower())
    if by_ending is not None:
        return by_ending
    start = content.lstrip()
    if not start.startswith(("{", "[")):
        return InputFormat.TEXT
    first_line = start.partition("\n")[0]
    try:
        first = json.loads(first_line)
    except ValueError:
        return InputFormat.JSON  # an array or object over several lines
    whole = isinstance(first, list) or "passages" in first
    return InputFormat.JSON if whole else InputFormat.JSONL


def _parse(
    content: str, name: str, form: InputFormat
) -> tuple[str | None, tuple[Passage, ...], PruneOptions]:
    if form is InputFormat.TEXT:
        return None, text_passages(content), PruneOptions()
    if form is InputFormat.JSON:
        return request_from_json(_load(content, name, 1), name)
    passages = [
        passage_from_json(_load(line, name, number), f"{name}, line {number}")
        for number, line in enumerate(content.split("\n"), 1)
        if line.strip()
    ]
    return None, tuple(passages), PruneOptions()


def _load(text: str, name: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise BadInputError(
            f"{name}, line {line}, column {error.colno}: not valid JSON: {error.msg}"
        ) from None
    except RecursionError:
        raise BadInputError(f"{name}, line {first_line}: JSON is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise BadInputError(f"{name}, line {first_line}: {error}") from None
