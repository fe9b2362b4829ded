"""Checks of single values. Each yields the faults it finds, at the path it is given."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from numbers import Integral, Real
from typing import Any

from secateur.errors import FieldViolation

INT32_MAX = 2**31 - 1


def text_faults(path: str, value: object, limit: int) -> Iterator[FieldViolation]:
    if not isinstance(value, str):
        yield FieldViolation(path, f"must be text, not {type(value).__name__}", "WRONG_TYPE")
        return
    if len(value) > limit:
        description = f"has {len(value)} characters, the limit is {limit}"
        yield FieldViolation(path, description, "TOO_LONG", limit)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        yield FieldViolation(
            path,
            f"has a lone surrogate (U+{ord(value[error.start]):04X}) at code point "
            f"{error.start}; send valid Unicode",
            "INVALID_UNICODE",
        )


def share_faults(path: str, value: Any) -> Iterator[FieldViolation]:
    if value is None:
        return
    if not _is_number(value, Real):
        yield FieldViolation(path, f"must be a number, not {type(value).__name__}", "WRONG_TYPE")
    elif not 0 <= value <= 1:  # also false for NaN
        yield FieldViolation(path, f"is {value}, must be from 0 to 1", "OUT_OF_RANGE")


def count_faults(path: str, value: Any) -> Iterator[FieldViolation]:
    if not _is_number(value, Integral):
        yield FieldViolation(
            path, f"must be a whole number, not {type(value).__name__}", "WRONG_TYPE"
        )
    elif not 0 <= value <= INT32_MAX:
        yield FieldViolation(path, f"is {value}, must be from 0 to {INT32_MAX}", "OUT_OF_RANGE")


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def enum_faults(path: str, value: object, kind: type[StrEnum]) -> Iterator[FieldViolation]:
    known = [member.value for member in kind]
    if value not in known:
        yield FieldViolation(
            path, f"{value!r} is not a known value; use one of {', '.join(known)}", "UNKNOWN_VALUE"
        )
