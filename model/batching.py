"""Grouping windows into batches under a budget of padded tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secateur.errors import InvariantError
from secateur.model.prepared import EncodedWindow, WindowOutput


@dataclass(frozen=True, slots=True)
class BatchBudget:
    """The most that a batch holds: tokens with its padding, and windows; each at least 1."""

    tokens: int
    windows: int


def default_budget(device: str) -> BatchBudget:
    """The budget where none is given. device: a torch device name.

    Small batches stay in a CPU's caches and pad less. CUDA wants thousands of rows in a matrix,
    and pays for every batch anew.
    """
    if device.startswith("cuda"):
        return BatchBudget(tokens=32_768, windows=1_024)
    return BatchBudget(tokens=2_048, windows=64)


def token_budget_batches(
    lengths: Sequence[int], max_batch_tokens: int, max_batch_windows: int
) -> list[list[int]]:
    """Group items so that a padded batch stays within a budget.

    lengths: tokens of each item. A batch costs its longest item times its size, which is at
    most ``max_batch_tokens``; an item above the budget goes alone.
    Returns lists of indices, longest items first (ties in the order given), so that items of
    like length share a batch; each index appears exactly once.
    """
    if max_batch_tokens < 1 or max_batch_windows < 1:
        raise InvariantError("a batch budget below one; this is a bug")
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches:
            size = len(batches[-1]) + 1
            if size <= max_batch_windows and size * longest <= max_batch_tokens:
                batches[-1].append(index)
                continue
        batches.append([index])
        longest = lengths[index]
    return batches


def run_within_memory(
    run: Callable[[Sequence[EncodedWindow]], list[WindowOutput]],
    windows: Sequence[EncodedWindow],
) -> list[WindowOutput | MemoryError]:
    """Run a batch; where memory runs out, try its halves, down to single windows.

    Returns one entry for each window, in order: its output, or the MemoryError of a window
    that does not fit even alone. Other errors are raised.
    """
    if not windows:
        return []
    try:
        return list(run(windows))
    except MemoryError as error:
        if len(windows) == 1:
            return [error]
    half = len(windows) // 2
    return run_within_memory(run, windows[:half]) + run_within_memory(run, windows[half:])
