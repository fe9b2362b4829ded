"""Patterns whose sentences are never dropped, in RE2 syntax (no catastrophic backtracking)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import re2
from numpy.typing import NDArray

from secateur.errors import FieldViolation, InvalidRequestError

# One search may read the text to its end, and there is one for each match: without bounds on
# both, "a.*z|a" over a long text takes quadratic time in any engine.
_SPARE_MATCHES = 1_000
_READS_PER_CHARACTER = 20_000


@dataclass(frozen=True, slots=True)
class ProtectedPatterns:
    """Compiled patterns of one request, in the request's order. Safe to share."""

    compiled: tuple[Any, ...] = ()

    def mask(
        self, text: str, sentences: NDArray[np.int64], passage_index: int
    ) -> NDArray[np.bool_]:
        """Which sentences a non-empty match overlaps: bool [sentences].

        text: the whole passage, in which each pattern is searched from left to right, so that
            a match may cross a sentence border; valid Unicode.
        sentences: int64 [sentences, 2], sorted code-point spans.

        Raises InvalidRequestError for patterns that together match more often than the text
        has characters, or so often in a very long text (every 25 characters in a million)
        that the work would not stay linear in its length.
        """
        found = np.zeros(len(sentences), dtype=np.bool_)
        if not len(sentences):
            return found
        starts, ends = sentences[:, 0], sentences[:, 1]
        matches_left = len(text) + _SPARE_MATCHES
        reads_left = matches_left * _READS_PER_CHARACTER
        for i, pattern in enumerate(self.compiled):
            if found.all():
                break
            spans: list[tuple[int, int]] = []
            for match in pattern.finditer(text):
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
