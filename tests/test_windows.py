"""Packing tokens into windows."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.errors import InvariantError
from secateur.model.adapter import PairTemplate
from secateur.model.windows import (
    encode_windows,
    max_query_tokens,
    max_title_tokens,
    pack,
    packing_groups,
)


def owners(*sizes: int) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)


def test_whole_sentences_are_packed_greedily() -> None:
    """A sentence that does not fit any more opens the next window."""
    assert pack(owners(3, 4, 3, 9, 1), capacity=10) == [(0, 10), (10, 20)]
    assert pack(owners(6, 5, 6), capacity=10) == [(0, 6), (6, 11), (11, 17)]
    assert pack(owners(2, 12, 3), capacity=10) == [(0, 8), (8, 17)]


def test_a_sentence_above_capacity_becomes_even_pieces() -> None:
    """Cut at the capacity, 21 tokens would leave a last piece of one token without context."""
    assert pack(owners(21), capacity=10) == [(0, 7), (7, 14), (14, 21)]
    assert pack(owners(10), capacity=10) == [(0, 10)]


def test_white_space_tokens_travel_with_the_next_sentence() -> None:
    """They are input of the model, so each must lie in exactly one window."""
    found = packing_groups(np.array([-1, 0, 0, -1, 1, -1, -1, 2, -1]))
    assert found.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert packing_groups(np.array([-1, -1])).tolist() == [-1, -1]


def test_offsets_out_of_order_do_not_tear_sentences() -> None:
    """F6: a token that points back to an earlier sentence must not end the later one."""
    assert packing_groups(np.array([0, 1, 0, 1, 2])).tolist() == [0, 1, 1, 1, 2]


def test_no_room_is_a_bug() -> None:
    """Query and title limits leave room; without it packing would loop for ever."""
    with pytest.raises(InvariantError, match="this is a bug"):
        pack(owners(3), capacity=0)


@given(st.lists(st.integers(-1, 6), max_size=60), st.integers(1, 12))
def test_every_token_lies_in_exactly_one_window(found: list[int], capacity: int) -> None:
    """Windows are a partition, none above capacity; sentences that fit are never cut."""
    token_sentences = np.array(found, dtype=np.int64)
    ranges = pack(token_sentences, capacity)
    covered = [i for start, end in ranges for i in range(start, end)]
    assert covered == list(range(len(found)))
    assert all(0 < end - start <= capacity for start, end in ranges)
    borders = {start for start, _ in ranges}
    position = 0
    for _, group in groupby(packing_groups(token_sentences).tolist()):
        size = len(list(group))
        if size <= capacity:
            assert not borders & set(range(position + 1, position + size))
        position += size


def test_layout_of_a_window() -> None:
    """`[CLS] query [SEP] title passage [SEP]`; types 0 to the first separator, then 1."""
    windows = encode_windows(
        np.array([11, 12]),
        np.array([21]),
        np.array([31, 32, 33]),
        owners(2, 1),
        template=PairTemplate(head=(2,), middle=(3,), tail=(3,)),
        window_tokens=8,
    )
    assert [window.input_ids.tolist() for window in windows] == [
        [2, 11, 12, 3, 21, 31, 32, 3],
        [2, 11, 12, 3, 21, 33, 3],
    ]
    assert windows[0].token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert windows[1].input_ids[windows[1].passage_tokens].tolist() == [33]
    assert [window.token_count for window in windows] == [8, 7]
    assert [window.passage_token_count for window in windows] == [2, 1]
    assert windows[0].input_ids.dtype == windows[0].token_type_ids.dtype == np.int64
    assert [w.sentences.tolist() for w in windows if w.sentences is not None] == [[0, 0], [1]]


def test_other_templates() -> None:
    """XLM-R's stock pair has two separators, which take their room and are of the first type."""
    template = PairTemplate(head=(0,), middle=(2, 2), tail=(2,))
    (window,) = encode_windows(
        np.array([11]),
        np.array([21]),
        np.array([31, 32]),
        owners(2),
        template=template,
        window_tokens=8,
    )
    assert window.input_ids.tolist() == [0, 11, 2, 2, 21, 31, 32, 2]
    assert window.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert max_query_tokens(64, template.special_tokens) == 30


@pytest.mark.parametrize("window_tokens", [7, 64, 512, 8192])
def test_limits_leave_room_for_the_passage(window_tokens: int) -> None:
    """The longest query leaves half of the window, the longest title beside it a quarter."""
    room = window_tokens - 3
    assert room - max_query_tokens(window_tokens) >= room / 2
    assert room - max_query_tokens(window_tokens) - max_title_tokens(window_tokens) >= room / 4
