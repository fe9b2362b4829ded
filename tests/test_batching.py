"""Batches under a budget of padded tokens, and batches that do not fit into memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.errors import InvariantError
from secateur.model.batching import run_within_memory, token_budget_batches
from secateur.model.engine import EncodedWindow, WindowOutput


def windows(*lengths: int) -> list[EncodedWindow]:
    return [
        EncodedWindow(np.full(n, i), np.zeros(n, np.int64), slice(0, n))
        for i, n in enumerate(lengths)
    ]


def test_an_item_above_the_budget_goes_alone() -> None:
    """F11: waiting for room that never comes, it looped for ever and stalled the others."""
    assert token_budget_batches([5, 100, 4, 5], 10, 64) == [[1], [0, 3], [2]]


def test_like_lengths_share_a_batch() -> None:
    """The budget counts padding: one long item makes every short one as long."""
    assert token_budget_batches([1, 9, 2, 8, 1], 18, 64) == [[1, 3], [2, 0, 4]]
    assert token_budget_batches([3, 3, 3], 1_000, 2) == [[0, 1], [2]]
    assert token_budget_batches([], 10, 10) == []


@pytest.mark.parametrize("budget", [(0, 1), (1, 0)])
def test_a_budget_below_one_is_a_bug(budget: tuple[int, int]) -> None:
    """Settings are checked where they are read."""
    with pytest.raises(InvariantError):
        token_budget_batches([1], *budget)


@given(st.lists(st.integers(1, 600), max_size=80), st.integers(1, 2_000), st.integers(1, 20))
def test_batches_are_a_partition_within_the_budget(
    lengths: list[int], tokens: int, count: int
) -> None:
    """Each index once; padded size within the budget unless alone; never too many."""
    batches = token_budget_batches(lengths, tokens, count)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= count
        padded = len(batch) * max(lengths[i] for i in batch)
        assert padded <= tokens or len(batch) == 1


class SmallDevice:
    """Runs out of memory above a number of padded tokens."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.sizes: list[int] = []

    def run(self, batch: Sequence[EncodedWindow]) -> list[WindowOutput]:
        self.sizes.append(len(batch))
        if len(batch) * max(window.token_count for window in batch) > self.memory:
            raise MemoryError
        return [WindowOutput(float(window.input_ids[0]), None) for window in batch]


def test_out_of_memory_is_retried_at_half_size() -> None:
    """F11: one batch too large must not fail windows that fit in smaller ones."""
    device = SmallDevice(memory=20)
    found = run_within_memory(device.run, windows(*[10] * 5))
    assert [output.relevance_logit for output in found if isinstance(output, WindowOutput)] == [
        0.0, 1.0, 2.0, 3.0, 4.0,
    ]  # fmt: skip
    assert device.sizes == [5, 2, 3, 1, 2]


def test_only_a_window_that_never_fits_fails() -> None:
    """F11: its neighbours in the batch get their results."""
    found = run_within_memory(SmallDevice(memory=20).run, windows(10, 30, 10))
    assert [isinstance(output, MemoryError) for output in found] == [False, True, False]
    assert run_within_memory(SmallDevice(0).run, []) == []


def test_other_errors_are_raised() -> None:
    """A bug in the model is no reason to try smaller batches."""

    def broken(_: Sequence[EncodedWindow]) -> list[WindowOutput]:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        run_within_memory(broken, windows(1, 2))
