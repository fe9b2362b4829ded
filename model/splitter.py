"""Cuts a passage into sentences, exactly and in bounded time, with no download.

Layout gives segments (splitter_layout), full-stop rules and Punkt give the ends inside them
(splitter_rules, punkt_data), and limits turn what is no prose into coarse units.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

from secateur.model.punkt_data import PUNKT_MODELS
from secateur.model.splitter_judge import RULES_ONLY, Judge, LimitError
from secateur.model.splitter_language import guess_latin_language
from secateur.model.splitter_layout import Segment, segments
from secateur.model.splitter_rules import sentence_ends

_log = logging.getLogger(__name__)

MAX_SENTENCE_CHARACTERS = 4_000
"""A longer sentence is no prose: it is cut into coarse units."""
MAX_BLOCK_CHARACTERS = 20_000
"""The same for a code block, table row or heading, which is otherwise never cut inside."""
COARSE_UNIT_CHARACTERS = 1_000
"""The longest coarse unit."""
_CHARACTERS_PER_UNIT = 16
_LEAST_UNITS = 2_000

_NOT_WHITE = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class Split:
    """The sentences of one text.

    spans: half-open code-point ranges: sorted, not overlapping, starting and ending on
        non-white-space, with only white space before, between and after them.
    coarse: a limit was hit (or Punkt failed), and some spans are pieces of at most
        ``COARSE_UNIT_CHARACTERS`` characters instead of sentences.
    """

    spans: tuple[tuple[int, int], ...]
    coarse: bool


class SentenceSplitter:
    """Splits texts into sentences. Thread-safe; loads a language's model on first use.

    Time is linear in the text. With m = max(2000, n / 16) for n characters, at most m
    sentences are found, 2 m full stops judged and m of these put to Punkt; what comes after
    is cut coarsely.
    """

    version: str = "1"
    """Changes whenever the same text may be cut in another way."""

    languages: tuple[str, ...] = tuple(sorted({*PUNKT_MODELS, *RULES_ONLY}))
    """ISO 639-1 codes with a Punkt model or rules of their own."""

    def split(self, text: str, language: str = "") -> Split:
        """Return the sentences of ``text``.

        language: chooses abbreviations and the Punkt model; empty: by script, and among
        languages in Latin script by their little words. The rules for full stops of other
        scripts apply always. Raises ValueError on a code that is not in ``languages``.
        """
        if language and language not in self.languages:
            known = ", ".join(self.languages)
            raise ValueError(
                f"unknown language {language!r}: use one of {known}, or leave it empty"
            )
        budget = max(_LEAST_UNITS, len(text) // _CHARACTERS_PER_UNIT)
        judge = Judge(language or guess_latin_language(text), budget)
        spans: list[tuple[int, int]] = []
        coarse = False
        position = 0
        try:
            for start, end, longest in _units(text, judge):
                if len(spans) >= budget:
                    raise LimitError
                position = end
                if end - start <= longest:
                    spans.append((start, end))
                else:
                    spans.extend(_coarse_units(text, start, end))
                    coarse = True
        except Exception as error:  # noqa: BLE001 - nltk may raise anything
            if not isinstance(error, LimitError):
                _log.warning("sentence splitting failed; cutting coarsely", exc_info=error)
            spans.extend(_coarse_units(text, position, len(text)))
            coarse = True
        return Split(tuple(spans), coarse)


def _units(text: str, judge: Judge) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, longest allowed length) of each sentence, ascending."""
    for segment in segments(text):
        if segment.atomic:
            yield *_trim(text, segment.start, segment.end), MAX_BLOCK_CHARACTERS
            continue
        for start, end in _sentences(text, segment, judge):
            yield start, end, MAX_SENTENCE_CHARACTERS


def _sentences(text: str, segment: Segment, judge: Judge) -> Iterator[tuple[int, int]]:
    start = segment.start
    for end in sentence_ends(text, segment.scan_from, segment.end, judge):
        yield _trim(text, start, end)
        start = end
    if _NOT_WHITE.search(text, start, segment.end):
        yield _trim(text, start, segment.end)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Narrow a range that is not blank to its first and last non-white characters."""
    while text[start].isspace():
        start += 1
    while text[end - 1].isspace():
        end -= 1
    return start, end


def _coarse_units(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a range at line ends, else white space, else commas, else anywhere."""
    while found := _NOT_WHITE.search(text, start, end):
        start = found.start()
        limit = start + COARSE_UNIT_CHARACTERS
        stop = end if limit >= end else _cut(text, start + COARSE_UNIT_CHARACTERS // 2, limit)
        yield _trim(text, start, stop)
        start = stop


def _cut(text: str, low: int, high: int) -> int:
    """The best place to cut in (low, high]."""
    newline = text.rfind("\n", low, high)
    if newline > 0:
        return newline
    for position in range(high, low, -1):
        if text[position].isspace():
            return position
    for position in range(high, low, -1):
        if text[position - 1] in ",;、，；،":
            return position
    return high
