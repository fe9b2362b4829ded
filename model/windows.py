"""Packing a passage's tokens into model inputs at sentence borders."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from secateur.errors import InvariantError
from secateur.model.adapter import PairTemplate
from secateur.model.prepared import EncodedWindow

SPECIAL_TOKENS = 3
"""``[CLS] query [SEP] title passage [SEP]``"""


def max_query_tokens(window_tokens: int, special_tokens: int = SPECIAL_TOKENS) -> int:
    """The most query tokens: leaves the passage (with its title) at least half of the window."""
    return (window_tokens - special_tokens) // 2


def max_title_tokens(window_tokens: int) -> int:
    """The most title tokens: beside the longest query a quarter is left for the passage."""
    return (window_tokens - SPECIAL_TOKENS) // 4


def packing_groups(token_sentences: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sentence that each token is packed with: int64 [tokens], never falling.

    A token of white space only travels with the next sentence's tokens (SentencePiece puts a
    lone ``▁`` before a word), a trailing one with the last. Offsets out of order cannot tear
    a sentence apart: the group never falls.
    """
    count = len(token_sentences)
    if not count:
        return token_sentences
    owned = np.where(token_sentences >= 0, np.arange(count), count)
    following = np.minimum.accumulate(owned[::-1])[::-1]  # index of the next owned token
    padded = np.append(token_sentences, token_sentences.max())
    return np.maximum.accumulate(padded[following])


def pack(token_sentences: NDArray[np.int64], capacity: int) -> list[tuple[int, int]]:
    """Cut the tokens into windows: half-open token ranges that together cover all tokens.

    token_sentences: int64 [tokens], -1 for tokens of no sentence.
    capacity: passage tokens of one window, > 0.
    Whole sentences are packed greedily. A sentence above the capacity becomes the fewest
    pieces that fit, as equal as can be.
    """
    if capacity <= 0:
        raise InvariantError("a window without room for passage tokens; this is a bug")
    groups = packing_groups(token_sentences)
    count = len(groups)
    if not count:
        return []
    borders = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), count]
    ranges: list[tuple[int, int]] = []
    window_start = 0
    window_end = 0
    for unit_start, unit_end in pairwise(borders):
        size = unit_end - unit_start
        pieces = -(-size // capacity)
        for piece in range(1, pieces + 1):
            piece_end = unit_start + size * piece // pieces
            if piece_end - window_start > capacity:
                ranges.append((window_start, window_end))
                window_start = window_end
            window_end = piece_end
    ranges.append((window_start, window_end))
    return ranges


def encode_windows(
    query_ids: NDArray[np.int64],
    title_ids: NDArray[np.int64],
    passage_ids: NDArray[np.int64],
    token_sentences: NDArray[np.int64],
    *,
    template: PairTemplate,
    window_tokens: int,
) -> tuple[EncodedWindow, ...]:
    """The model inputs of one passage; none when it has no tokens.

    Each is the template filled with the query, the title and passage tokens, at most
    ``window_tokens`` long.
    """
    capacity = window_tokens - template.special_tokens - len(query_ids) - len(title_ids)
    first = np.concatenate([template.head, query_ids, template.middle])
    head = np.concatenate([first, title_ids]).astype(np.int64)
    windows = []
    for start, end in pack(token_sentences, capacity):
        input_ids = np.concatenate([head, passage_ids[start:end], template.tail]).astype(np.int64)
        token_type_ids = np.ones(len(input_ids), dtype=np.int64)
        token_type_ids[: len(first)] = 0
        passage_tokens = slice(len(head), len(head) + end - start)
        windows.append(
            EncodedWindow(input_ids, token_type_ids, passage_tokens, token_sentences[start:end])
        )
    return tuple(windows)
