"""Examples → windows of token ids, packed as the engine packs them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from secateur.training.data import Example


@dataclass(frozen=True, slots=True)
class Window:
    """One model input, 1-D arrays of equal length L.

    sentence: index of the sentence that a passage token belongs to, -1 on other tokens.
    targets: float32, one for each sentence index that occurs. teacher_score: NaN without one.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    sentence: np.ndarray
    targets: np.ndarray
    teacher_score: float = float("nan")

    @property
    def relevant(self) -> bool:
        """Whether a sentence of this window is to be kept."""
        return bool((self.targets >= 0.5).any())

    def __len__(self) -> int:
        return len(self.input_ids)


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
        rest too). A teacher's score stands only where one window holds everything.
        """
        limit = (self._max_length - 3) // 2
        query = self._tokenizer.encode(example.query, add_special_tokens=False).ids[:limit]
        title: list[int] = []
        if with_title and example.title:
            room = min(32, (self._max_length - 3 - len(query)) // 2)
            title = self._tokenizer.encode(example.title, add_special_tokens=False).ids[:room]
        encoding = self._tokenizer.encode(example.passage, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.int64)
        starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
        borders = np.array([start for start, _ in example.sentences], dtype=np.int64)
        owner = np.searchsorted(borders, starts, side="right") - 1  # [tokens]
        capacity = self._max_length - 3 - len(query) - len(title)
        counts = np.bincount(owner[owner >= 0], minlength=len(borders))
        groups = pack_sentences(counts.tolist(), capacity)
        score = example.teacher_score if len(groups) == 1 else None
        result = []
        for first, last in groups:
            member = np.flatnonzero((owner >= first) & (owner <= last))[:capacity]
            if len(member) == 0:
                continue
            head = [self._cls, *query, self._sep]
            fill = len(head) + len(title)
            sentence = np.full(fill + len(member) + 1, -1, dtype=np.int64)
            sentence[fill:-1] = owner[member] - first
            types = np.ones(len(sentence), dtype=np.int64)
            types[: len(head)] = 0
            targets = np.array(example.targets[first : last + 1], dtype=np.float32)
            input_ids = np.array([*head, *title, *ids[member].tolist(), self._sep])
            result.append(
                Window(
                    input_ids, types, sentence, targets, float("nan") if score is None else score
                )
            )
        return result


def pack_sentences(counts: list[int], capacity: int) -> list[tuple[int, int]]:
    """Greedy runs of sentences, (first, last) inclusive, of at most ``capacity`` tokens each.

    counts: tokens of each sentence. One that exceeds the capacity has a run of its own.
    """
    groups: list[tuple[int, int]] = []
    room = 0
    for index, count in enumerate(counts):
        if groups and count <= room:
            groups[-1] = (groups[-1][0], index)
        else:
            groups.append((index, index))
            room = capacity
        room -= count
    return groups
