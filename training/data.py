"""Rows of question/passage sets → training examples → encoded windows → batches.

Row format, one JSON object a line (``.jsonl`` or ``.jsonl.xz``): ``question``, ``title``
(or null), ``passage``, ``relevant``, and either ``sentences`` ([[start, end], …] half-open
code points) with ``labels`` (0 or 1 each), or ``answers`` ([{"text", "start"}]), from which
labels are made: a sentence is 1 when it overlaps an answer.
"""

from __future__ import annotations

import json
import lzma
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

Splitter = Callable[[str, str], Sequence[tuple[int, int]]]
"""(text, language) → sentence spans."""


@dataclass(frozen=True, slots=True)
class Example:
    """One (query, passage) pair. ``labels[i]`` is 1 when ``sentences[i]`` should be kept."""

    query: str
    title: str
    passage: str
    sentences: tuple[tuple[int, int], ...]
    labels: tuple[int, ...]

    @property
    def relevant(self) -> bool:
        return any(self.labels)


@dataclass(frozen=True, slots=True)
class Window:
    """One model input, 1-D arrays of equal length L.

    sentence: index of the sentence that a passage token belongs to, -1 on other tokens.
    labels: 0 or 1 for each sentence index that occurs.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    sentence: np.ndarray
    labels: np.ndarray

    @property
    def relevant(self) -> bool:
        return bool(self.labels.any())

    def __len__(self) -> int:
        return len(self.input_ids)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file, xz-compressed when its name ends in ``.xz``."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from error


def example_from_row(row: dict[str, Any], split: Splitter) -> Example | None:
    """Turn a row into an example; None for a row that cannot be used.

    Unusable: a blank question, a relevant row without a positive label, or an answer that
    is not in the passage. Underscores of a title become spaces.
    """
    question, passage = row["question"].strip(), row["passage"]
    if not question or not passage.strip():
        return None
    if row.get("labels") is not None and row.get("sentences") is not None:
        sentences = tuple((int(start), int(end)) for start, end in row["sentences"])
        labels = tuple(int(label) for label in row["labels"])
    else:
        sentences = tuple(split(passage, row.get("lang", "")))
        spans = []
        for answer in row.get("answers") or ():
            start = answer["start"] if answer["start"] is not None else passage.find(answer["text"])
            if start < 0:
                return None
            spans.append((start, start + len(answer["text"])))
        labels = tuple(
            int(any(start < b and a < end for a, b in spans)) for start, end in sentences
        )
    if not row["relevant"]:
        labels = (0,) * len(labels)
    elif not any(labels):
        return None
    title = (row.get("title") or "").replace("_", " ").strip()
    return Example(question, title, passage, sentences, labels)


def load_examples(path: Path, split: Splitter) -> list[Example]:
    """All usable examples of a file, in file order."""
    made = (example_from_row(row, split) for row in read_rows(path))
    return [example for example in made if example is not None]


def add_negatives(examples: Sequence[Example], share: float, rng: random.Random) -> list[Example]:
    """Pair ``share * len(examples)`` questions with a passage that does not answer them.

    The passage is another one of the same article (title) half of the time when there is
    one, else any other of the set; all its labels are 0.
    """
    by_title: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        by_title[example.title].append(example)
    negatives = []
    for example in rng.sample(list(examples), int(share * len(examples))):
        siblings = [e for e in by_title[example.title] if e.passage != example.passage]
        pool = siblings if siblings and rng.random() < 0.5 else examples
        other = rng.choice(pool)
        if other.passage == example.passage:
            continue
        negatives.append(replace(other, query=example.query, labels=(0,) * len(other.labels)))
    return negatives


class WindowEncoder:
    """Packs an example as the engine does: ``[CLS] query [SEP] title passage [SEP]``."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        """max_length: tokens of a window, special tokens included."""
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._cls = tokenizer.token_to_id("[CLS]")
        self._sep = tokenizer.token_to_id("[SEP]")

    def windows(self, example: Example, *, with_title: bool = True) -> list[Window]:
        """Cut an example at sentence borders into windows of at most ``max_length`` tokens.

        A sentence longer than a window is cut to it (training only: the engine scores the
        rest too).
        """
        limit = (self._max_length - 3) // 2
        query = self._tokenizer.encode(example.query, add_special_tokens=False).ids[:limit]
        title: list[int] = []
        if with_title and example.title:
            title = self._tokenizer.encode(example.title, add_special_tokens=False).ids[:32]
        encoding = self._tokenizer.encode(example.passage, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.int64)
        starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
        borders = np.array([start for start, _ in example.sentences], dtype=np.int64)
        owner = np.searchsorted(borders, starts, side="right") - 1  # [tokens]
        capacity = self._max_length - 3 - len(query) - len(title)
        packed: list[list[int]] = [[]]
        room = capacity
        counts = np.bincount(owner[owner >= 0], minlength=len(borders))
        for index, count in enumerate(counts.tolist()):
            if count > room and packed[-1]:
                packed.append([])
                room = capacity
            packed[-1].append(index)
            room -= count
        result = []
        for group in packed:
            if not group:
                continue
            member = np.flatnonzero((owner >= group[0]) & (owner <= group[-1]))[:capacity]
            if len(member) == 0:
                continue
            head = [self._cls, *query, self._sep]
            fill = len(head) + len(title)
            sentence = np.full(fill + len(member) + 1, -1, dtype=np.int64)
            sentence[fill:-1] = owner[member] - group[0]
            types = np.ones(len(sentence), dtype=np.int64)
            types[: len(head)] = 0
            labels = np.array(example.labels[group[0] : group[-1] + 1], dtype=np.int64)
            input_ids = np.array([*head, *title, *ids[member].tolist(), self._sep])
            result.append(Window(input_ids, types, sentence, labels))
        return result


def length_bucketed_batches(
    lengths: Sequence[int], max_tokens: int, rng: random.Random, pool: int = 1024
) -> list[list[int]]:
    """Shuffle, sort by length within pools, and cut into batches of <= max_tokens padded."""
    order = list(range(len(lengths)))
    rng.shuffle(order)
    batches: list[list[int]] = []
    for first in range(0, len(order), pool):
        batch: list[int] = []
        for index in sorted(order[first : first + pool], key=lambda i: lengths[i]):
            if batch and lengths[index] * (len(batch) + 1) > max_tokens:
                batches.append(batch)
                batch = []
            batch.append(index)
        if batch:
            batches.append(batch)
    rng.shuffle(batches)
    return batches
