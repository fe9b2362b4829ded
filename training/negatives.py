"""Passages that do not answer: the same article's, BM25's best, or any other of the set."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from secateur.training.bm25 import Bm25
from secateur.training.data import Example


class NegativeSource:
    """Draws non-answering passages for the questions of one set.

    A candidate is a passage that no row pairs with the question and that contains none of the
    question's answer texts. A hard one is a passage of the same article (title), or, where
    the article has no other or by the toss of a coin, one of BM25's first ``depth``.
    """

    def __init__(self, examples: Sequence[Example], rng: random.Random, depth: int = 10) -> None:
        passages: dict[str, Example] = {}
        self._asked: dict[str, set[str]] = defaultdict(set)  # passage → questions it stands with
        for example in examples:
            passages.setdefault(example.passage, example)
            self._asked[example.passage].add(_key(example))
        self._pool = list(passages.values())
        self._rng = rng
        self._depth = depth
        self._by_title: dict[str, list[Example]] = defaultdict(list)
        for example in self._pool:
            if example.title:
                self._by_title[example.title].append(example)
        self._index: Bm25 | None = None

    def draw(self, example: Example, count: int, hard_share: float) -> list[Example]:
        """Up to ``count`` different negatives for the example's question, all targets 0."""
        chosen: dict[str, Example] = {}
        for _ in range(count):
            hard = self._rng.random() < hard_share
            pool = self._hard(example) if hard else self._rng.sample(self._pool, 1)
            usable = [other for other in pool if self._allowed(example, other)]
            usable = [other for other in usable if other.passage not in chosen]
            if usable:
                other = self._rng.choice(usable)
                chosen[other.passage] = as_negative(example, other)
        return list(chosen.values())

    def _hard(self, example: Example) -> list[Example]:
        siblings = self._by_title[example.title] if example.title else []
        if len(siblings) > 1 and self._rng.random() < 0.5:
            return siblings
        if self._index is None:
            self._index = Bm25([f"{other.title} {other.passage}" for other in self._pool])
        scores = self._index.scores(example.query)
        depth = min(self._depth, len(scores))
        return [self._pool[i] for i in np.argpartition(-scores, depth - 1)[:depth]]

    def _allowed(self, example: Example, other: Example) -> bool:
        if other.passage == example.passage or _key(example) in self._asked[other.passage]:
            return False
        text = other.passage.lower()
        return not any(answer in text for answer in example.answers)


def _key(example: Example) -> str:
    """What rows about one question share."""
    return example.question or example.query


def as_negative(example: Example, other: Example) -> Example:
    """The example's question with another's passage, which does not answer it."""
    return replace(
        other,
        query=example.query,
        targets=(0.0,) * len(other.targets),
        relevant=False,
        answers=example.answers,
        question=example.question,
        teacher_score=None,
    )


def join(parts: Sequence[Example], owner: int, separator: str = "\n\n") -> Example:
    """One document of several passages, for the question of ``parts[owner]``.

    Sentences of the other passages have target 0.
    """
    passage = ""
    sentences: list[tuple[int, int]] = []
    targets: list[float] = []
    for index, part in enumerate(parts):
        if index:
            passage += separator
        shift = len(passage)
        sentences += [(start + shift, end + shift) for start, end in part.sentences]
        targets += part.targets if index == owner else (0.0,) * len(part.targets)
        passage += part.passage
    return replace(
        parts[owner], passage=passage, sentences=tuple(sentences), targets=tuple(targets)
    )
