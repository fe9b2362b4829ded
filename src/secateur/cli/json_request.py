"""Passages and options out of parsed JSON, by the field names of ``secateur.v1``.

Names are accepted as in proto JSON: ``top_k`` and ``topK``; enum values in the short form
(``token_vote``) and the long one (``KEEP_RULE_TOKEN_VOTE``); ``null`` is unset. An unknown name
is an error, because a misspelt one would silently do nothing.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from secateur.cli.exits import BadInputError
from secateur.types import Passage, PruneOptions, TextSpan

_PASSAGE_NAMES = ("text", "id", "title", "sentences")
_SPAN_NAMES = ("start_offset", "end_offset")
_REQUEST_NAMES = ("query", "passages", "options")


def request_from_json(
    value: Any, where: str
) -> tuple[str | None, tuple[Passage, ...], PruneOptions]:
    """Query, passages and options of an array of passages or a request object.

    Raises BadInputError, which starts with ``where`` and the path inside the value.
    """
    if isinstance(value, list):
        return None, _passages(value, where), PruneOptions()
    if not isinstance(value, dict) or "passages" not in value:
        raise BadInputError(
            f"{where}: expected an array of passages, or an object with 'passages' in it"
        )
    given = _named(value, _REQUEST_NAMES, where)
    query = given.get("query")
    if query is not None:
        query = _text(query, f"{where}: query")
    options = given.get("options")
    return (
        query,
        _passages(given.get("passages", []), where),
        PruneOptions() if options is None else options_from_json(options, f"{where}: options"),
    )


def passage_from_json(value: Any, where: str) -> Passage:
    """A passage out of a string or an object. Raises BadInputError."""
    if isinstance(value, str):
        return Passage(_text(value, where))
    if not isinstance(value, dict):
        raise BadInputError(f"{where}: expected a string or an object, found {_kind(value)}")
    given = _named(value, _PASSAGE_NAMES, where)
    if "text" not in given:
        raise BadInputError(f"{where}: 'text' is missing")
    sentences = given.pop("sentences", [])
    if not isinstance(sentences, list):
        raise BadInputError(f"{where}: sentences: expected an array, found {_kind(sentences)}")
    return Passage(
        **{name: _text(text, f"{where}: {name}") for name, text in given.items()},
        sentences=tuple(
            _span(span, f"{where}: sentences[{position}]")
            for position, span in enumerate(sentences)
        ),
    )


def options_from_json(value: Any, where: str) -> PruneOptions:
    """Options out of an object; ranges are checked later. Raises BadInputError."""
    if not isinstance(value, dict):
        raise BadInputError(f"{where}: expected an object, found {_kind(value)}")
    hints = typing.get_type_hints(PruneOptions)
    given = {
        name: _option(item, hints[name], f"{where}.{name}")
        for name, item in _named(value, hints, where).items()
    }
    return PruneOptions(**{name: item for name, item in given.items() if item is not None})


def _passages(values: Any, where: str) -> tuple[Passage, ...]:
    if not isinstance(values, list):
        raise BadInputError(f"{where}: passages: expected an array, found {_kind(values)}")
    return tuple(
        passage_from_json(value, f"{where}: passages[{index}]")
        for index, value in enumerate(values)
    )


def _span(value: Any, where: str) -> TextSpan:
    if not isinstance(value, dict):
        raise BadInputError(f"{where}: expected an object, found {_kind(value)}")
    given = _named(value, _SPAN_NAMES, where)
    # proto JSON leaves out a zero.
    return TextSpan(*(_option(given.get(name, 0), int, f"{where}.{name}") for name in _SPAN_NAMES))


def _option(value: Any, kind: Any, where: str) -> Any:
    """``value`` checked and converted to the type ``kind`` of a field."""
    if typing.get_origin(kind) is types.UnionType:
        kind = typing.get_args(kind)[0]  # float | None, KeepRule | None
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise BadInputError(f"{where}: expected an array, found {_kind(value)}")
        return tuple(_text(item, f"{where}[{index}]") for index, item in enumerate(value))
    if kind is str:
        return _text(value, where)
    if issubclass(kind, StrEnum):
        return _member(kind, _text(value, where), where)
    allowed = (int, float) if kind is float else (kind,)
    # A bool is an int to isinstance.
    if not isinstance(value, allowed) or isinstance(value, bool) is not (kind is bool):
        name = {float: "a number", int: "an integer", bool: "true or false"}[kind]
        raise BadInputError(f"{where}: expected {name}, found {_kind(value)}")
    return float(value) if kind is float else value


def _member(kind: type[StrEnum], value: str, where: str) -> StrEnum | None:
    from secateur._proto_enums import proto_prefix

    name = value.upper().removeprefix(proto_prefix(kind))
    if name == "UNSPECIFIED":
        return None
    if name not in kind.__members__:
        allowed = ", ".join(kind)
        raise BadInputError(f"{where}: {value!r} is none of {allowed}")
    return kind[name]


def _named(value: Mapping[str, Any], names: Iterable[str], where: str) -> dict[str, Any]:
    """The set fields of an object, by their snake_case names."""
    allowed = list(names)
    given = {}
    for key, item in value.items():
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
        if name not in allowed:
            raise BadInputError(f"{where}: unknown name {key!r}; known: {', '.join(allowed)}")
        if item is not None:
            given[name] = item
    return given


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise BadInputError(f"{where}: expected a string, found {_kind(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise BadInputError(f"{where}: holds a lone surrogate, which is not valid Unicode")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
