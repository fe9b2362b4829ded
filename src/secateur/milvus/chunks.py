"""Cuts documents into passages: whole sentences up to a length, and nothing lost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from secateur.errors import FieldViolation
from secateur.milvus.types import ChunkOptions, Document

LEAST_CHARACTERS: Final = 50
MOST_CHARACTERS: Final = 16_000
"""In UTF-8 at most 64,000 bytes, which a VARCHAR of Milvus (65,535 bytes) always holds."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage of a document: ``document.text[start_offset:][:len(text)] == text``."""

    document: Document
    start_offset: int
    text: str

    @property
    def id(self) -> str:
        """Hash of all that is stored with it, so that the same content has the same id."""
        parts = (self.document.id, self.document.title, str(self.start_offset), self.text)
        content = "".join(f"{len(part)}:{part}" for part in parts)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()


def cut(
    document: Document, sentences: Sequence[tuple[int, int]], max_characters: int
) -> list[Chunk]:
    """The passages of a document, in order.

    sentences: sorted, not overlapping ranges of ``document.text`` with only white space between
    them. A passage runs from its first sentence's start to its last one's end and has at most
    ``max_characters``; a longer sentence is cut into pieces at white space or, where there is
    none, between characters. Only white space lies outside of passages.
    """
    text = document.text
    chunks: list[Chunk] = []
    start = end = -1
    for piece_start, piece_end in _pieces(text, sentences, max_characters):
        if start >= 0 and piece_end - start > max_characters:
            chunks.append(Chunk(document, start, text[start:end]))
            start = -1
        if start < 0:
            start = piece_start
        end = piece_end
    if start >= 0:
        chunks.append(Chunk(document, start, text[start:end]))
    return chunks


def faults_of(options: ChunkOptions, languages: Sequence[str], path: str) -> list[FieldViolation]:
    """What is wrong with the options; ``path`` goes before each field's name."""
    faults = []
    if not LEAST_CHARACTERS <= options.max_characters <= MOST_CHARACTERS:
        faults.append(
            FieldViolation(
                f"{path}max_characters",
                f"must be {LEAST_CHARACTERS} to {MOST_CHARACTERS:,}, not {options.max_characters}",
                limit=MOST_CHARACTERS,
            )
        )
    if options.language and options.language not in languages:
        known = ", ".join(languages)
        faults.append(FieldViolation(f"{path}language", f"must be one of {known}, or empty"))
    return faults


def _pieces(
    text: str, sentences: Sequence[tuple[int, int]], longest: int
) -> Iterator[tuple[int, int]]:
    for first, end in sentences:
        start = first
        while end - start > longest:
            stop = _border(text, start, start + longest)
            yield start, _trimmed(text, start, stop)
            start = stop
            while start < end and text[start].isspace():
                start += 1
        if start < end:
            yield start, end


def _border(text: str, start: int, limit: int) -> int:
    """The last white space in the second half of the range, else its end."""
    for position in range(limit, (start + limit) // 2, -1):
        if text[position].isspace():
            return position
    return limit


def _trimmed(text: str, start: int, end: int) -> int:
    while end > start + 1 and text[end - 1].isspace():
        end -= 1
    return end
