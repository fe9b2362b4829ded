"""What is measured: queries, each with its passages, from a file or built in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from secateur.cli.demo import demo_request
from secateur.training.data import read_rows
from secateur.types import Limits

QUERIES = (
    "Why do leaves turn yellow and red in autumn?",
    "How does photosynthesis make sugar?",
    "When are fruit trees pruned?",
    "What is maple syrup made from?",
)
"""Of the built-in workload."""

SHARE = 2
"""A round measures every second query, so that slow opponents leave time for many rounds."""

_MAX_PASSAGES = Limits().max_passages
_SENTENCES = (3, 5, 8, 12, 2, 6, 4, 10, 30, 7)


@dataclass(frozen=True, slots=True)
class Query:
    """A question and its passages. where: what messages call it, such as ``FILE:3``."""

    text: str
    passages: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Workload:
    """Queries in order, at least one. name: of the file, or "built in"."""

    name: str
    queries: tuple[Query, ...]

    @property
    def passage_count(self) -> int:
        """Passages of all queries."""
        return sum(len(query.passages) for query in self.queries)

    def of_round(self, number: int) -> tuple[int, ...]:
        """The queries of round ``number`` (from 0): every second one, in turn the other half."""
        step = min(SHARE, len(self.queries))
        return tuple(range(number % step, len(self.queries), step))


def read_workload(path: Path, limit: int | None = None) -> Workload:
    """The rows of a JSON Lines file (``.xz`` too) of {"query", "passages": [text, …]}.

    limit: the first so many rows only. Raises ValueError with file, line and field for what is
    no such row, or without any; OSError.
    """
    rows = islice(enumerate(read_rows(path), 1), limit)
    queries = tuple(_query(row, f"{path}:{number}") for number, row in rows)
    if not queries:
        raise ValueError(f"{path}: no row to measure")
    return Workload(path.name, queries)


def builtin_workload(limit: int | None = None) -> Workload:
    """A small workload of mixed lengths, made of the demo's sentences; the same every time."""
    random_ = random.Random(0)  # noqa: S311 - not for secrets
    sentences = demo_sentences()
    queries = [
        Query(
            text,
            tuple(" ".join(random_.choices(sentences, k=count)) for count in _SENTENCES),
            f"built-in query {number}",
        )
        for number, text in enumerate(QUERIES, 1)
    ]
    return Workload("built in", tuple(queries[:limit]))


def demo_sentences() -> list[str]:
    """The sentences of the demo's passages."""
    _, passages = demo_request()
    return [part for p in passages for part in p.text.replace(". ", ".\n").split("\n")]


def passages_of_words(count: int, words: int) -> list[str]:
    """``count`` different passages of exactly so many words each."""
    sentences = demo_sentences()
    return [
        " ".join(islice(_words_from(sentences, start), words - 1)) + " end."
        for start in range(count)
    ]


def _words_from(sentences: list[str], start: int) -> Iterator[str]:
    """The words of the sentences for ever, beginning with sentence ``start``."""
    first = start % len(sentences)
    turned = sentences[first:] + sentences[:first]
    return (word for sentence in cycle(turned) for word in sentence.split())


def _query(row: Any, where: str) -> Query:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object, found {type(row).__name__}")
    text, passages = row.get("query"), row.get("passages")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: query: must be a text that is not blank")
    if not isinstance(passages, list) or not 1 <= len(passages) <= _MAX_PASSAGES:
        raise ValueError(f"{where}: passages: must be a list of 1 to {_MAX_PASSAGES:,} texts")
    for index, passage in enumerate(passages):
        if not isinstance(passage, str) or not passage.strip():
            raise ValueError(f"{where}: passages[{index}]: must be a text that is not blank")
    return Query(text, tuple(passages), where)
