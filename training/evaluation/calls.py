"""Cuts the passages of one question into calls that stay far below a request's limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from secateur.errors import InvalidRequestError

MAX_CALL_CHARACTERS = 50_000
MAX_CALL_PASSAGES = 100
"""Larger calls would not be faster: the model's batches are far smaller."""


def calls(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indexes of the passages of each call, in order; a longer passage goes alone.

    lengths: characters of each passage.
    """
    group: list[int] = []
    characters = 0
    for index, length in enumerate(lengths):
        full = len(group) == MAX_CALL_PASSAGES or characters + length > MAX_CALL_CHARACTERS
        if group and full:
            yield group
            group, characters = [], 0
        group.append(index)
        characters += length
    if group:
        yield group


def refusal(error: InvalidRequestError, names: Sequence[str]) -> InvalidRequestError:
    """The same faults in the caller's words: ``passages[i]`` of the call is ``names[i]``.

    A fault of the whole call, such as its query's, is one of ``names[0]``.
    """

    def named(field: str) -> str:
        match = re.match(r"passages\[(\d+)\]\.?", field)
        name, rest = (names[int(match[1])], field[match.end() :]) if match else (names[0], field)
        return f"{name}: {rest}" if rest else name

    return InvalidRequestError([replace(v, field=named(v.field)) for v in error.violations])
