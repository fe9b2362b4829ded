"""Patterns whose sentences are never dropped, in RE2 syntax (no catastrophic backtracking)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import re2
from numpy.typing import NDArray

from secateur.errors import FieldViolation, InvalidRequestError

# One search may read the text to its end, and there is one for each match: without bounds on
# both, "a.*z|a" over a long text takes quadratic time in any engine.
_SPARE_MATCHES = 1_000
_READS_PER_CHARACTER = 20_000

# RE2 is linear, but a program that fits no automaton takes up to 5 ns a character and
# instruction, and one search cannot be stopped: 12 s at most.
_MAX_INSTRUCTION_READS = 2_500_000_000

# Between searches the time really taken is looked at: no count tells a cheap "\d+" from a dear
# "[ab]*a[ab]{999}c". CPU time of the thread, so that a busy machine refuses nothing more.
_SPARE_SECONDS = 2.0
_SECONDS_PER_CHARACTER = 2e-6


class _Meter:
    """CPU time that the patterns of one request have taken, and may take. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = _SPARE_SECONDS

    def allow(self, characters: int) -> None:
        """Some more text is to be searched."""
        self._add(characters * _SECONDS_PER_CHARACTER)

    def is_over(self, seconds: float) -> bool:
        """Note that a search took so long; whether that was too much."""
        return self._add(-seconds) < 0

    def _add(self, seconds: float) -> float:
        with self._lock:
            self._left += seconds
            return self._left


@dataclass(frozen=True, slots=True)
class ProtectedPatterns:
    """Compiled patterns of one request, in the request's order. Safe to share."""

    compiled: tuple[Any, ...] = ()
    _meter: _Meter = field(default_factory=_Meter, repr=False, compare=False)

    def mask(
        self, text: str, sentences: NDArray[np.int64], passage_index: int
    ) -> NDArray[np.bool_]:
        """Which sentences a non-empty match overlaps: bool [sentences].

        text: the whole passage, in which each pattern is searched from left to right, so that
            a match may cross a sentence border; valid Unicode.
        sentences: int64 [sentences, 2], sorted code-point spans.

        Raises InvalidRequestError for patterns that together match more often than the text
        has characters, or so often in a very long text (every 25 characters in a million)
        that the work would not stay linear in its length; for one that is too complex for so
        long a text; and when the patterns have taken too much time over all texts so far.
        """
        found = np.zeros(len(sentences), dtype=np.bool_)
        if not len(sentences):
            return found
        starts, ends = sentences[:, 0], sentences[:, 1]
        matches_left = len(text) + _SPARE_MATCHES
        reads_left = matches_left * _READS_PER_CHARACTER
        self._meter.allow(len(text))
        for i, pattern in enumerate(self.compiled):
            if found.all():
                break
            if pattern.programsize * len(text) > _MAX_INSTRUCTION_READS:
                raise InvalidRequestError([_too_complex(i, passage_index, len(text))])
            spans: list[tuple[int, int]] = []
            searches = pattern.finditer(text)
            while True:
                began = time.thread_time()
                match = next(searches, None)
                if self._meter.is_over(time.thread_time() - began):
                    raise InvalidRequestError([_too_slow(i, passage_index)])
                if match is None:
                    break
                matches_left -= 1
                reads_left -= len(text) - match.start()
                if matches_left < 0 or reads_left < 0:
                    raise InvalidRequestError([_too_many_matches(i, passage_index, len(text))])
                spans.append(match.span())
            matches = np.array(spans, dtype=np.int64).reshape(-1, 2)
            matches = matches[matches[:, 1] > matches[:, 0]]
            # Matches don't overlap each other, so their starts and ends are both sorted.
            first = np.searchsorted(matches[:, 1], starts, side="right")  # first that ends inside
            found |= first < np.searchsorted(matches[:, 0], ends, side="left")
        return found


def compile_patterns(patterns: Sequence[str]) -> ProtectedPatterns:
    """Compile RE2 patterns.

    Raises InvalidRequestError with every invalid one as ``options.protected_patterns[i]``.
    """
    compiled = []
    violations = []
    for i, pattern in enumerate(patterns):
        try:
            compiled.append(re2.compile(pattern, _quiet()))
        except re2.error as error:
            detail = error.args[0] if error.args else ""
            message = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
            violations.append(
                FieldViolation(
                    f"options.protected_patterns[{i}]",
                    f"is not a valid RE2 pattern: {message}",
                    "INVALID_PATTERN",
                )
            )
    if violations:
        raise InvalidRequestError(violations)
    return ProtectedPatterns(tuple(compiled))


def _quiet() -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # the caller is told; a hostile caller must not fill the log
    return options


def _too_many_matches(pattern: int, passage: int, characters: int) -> FieldViolation:
    return FieldViolation(
        f"options.protected_patterns[{pattern}]",
        f"the patterns up to this one match too often in passages[{passage}], which has "
        f"{characters} characters; use more specific patterns or shorter passages",
        "TOO_MANY_MATCHES",
    )


def _too_complex(pattern: int, passage: int, characters: int) -> FieldViolation:
    return FieldViolation(
        f"options.protected_patterns[{pattern}]",
        f"is too complex to search passages[{passage}], which has {characters} characters; "
        "use a simpler pattern or shorter passages",
        "TOO_COMPLEX",
    )


def _too_slow(pattern: int, passage: int) -> FieldViolation:
    return FieldViolation(
        f"options.protected_patterns[{pattern}]",
        f"the patterns up to this one take too long, at the latest in passages[{passage}]; "
        "use simpler patterns",
        "TOO_SLOW",
    )
