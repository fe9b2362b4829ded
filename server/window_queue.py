"""The waiting windows of all calls, and which of them form the next batch. No asyncio tasks here.

Fair: calls take turns. The oldest entry of the call whose turn it is opens the batch; the turn
lasts until the call has nothing waiting or has had half a batch's tokens. So small calls are done
in order of arrival, and a giant one cannot starve others. Length-aware: the batch is filled with
entries of like length from any call, because a batch is padded to its longest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from secateur.errors import DeadlineExceededError
from secateur.model.prepared import EncodedWindow, WindowOutput
from secateur.server.cache import PassageWindows
from secateur.types import PassageError

MAX_PADDED_RATIO: Final = 2.0
"""A batch is not filled further where padding would be more than half of it."""

_LOOKAHEAD_BATCHES: Final = 4

Outcome = list[WindowOutput] | PassageError
"""What one passage's windows gave: an output each, or why this passage failed alone."""


class WindowGroup:
    """The windows of one passage; ``future`` gets their outcome, at once when none is missing."""

    def __init__(self, passage: PassageWindows, future: asyncio.Future[Outcome]) -> None:
        self.windows = tuple(passage.windows)
        self.missing = passage.missing
        self.future = future
        self._learn = passage.learn
        self._outputs = dict(passage.outputs)
        self._resolve_when_whole()

    def deliver(self, position: int, output: WindowOutput) -> None:
        """Store one output; the last one resolves the future."""
        self._learn(position, output)
        self._outputs[position] = output
        self._resolve_when_whole()

    def _resolve_when_whole(self) -> None:
        if len(self._outputs) == len(self.windows) and not self.future.done():
            self.future.set_result([self._outputs[i] for i in range(len(self.windows))])

    def fail(self, error: PassageError) -> None:
        """Give this passage up; the others of its call go on."""
        if not self.future.done():
            self.future.set_result(error)


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One waiting window."""

    call: QueuedCall
    group: WindowGroup
    position: int

    @property
    def window(self) -> EncodedWindow:
        """The model input."""
        return self.group.windows[self.position]

    @property
    def token_count(self) -> int:
        """Tokens without padding."""
        return self.window.token_count

    @property
    def wanted(self) -> bool:
        """False once nobody waits for it: the caller is gone or the passage has failed."""
        return not self.group.future.done()


class QueuedCall:
    """The waiting entries of one call, first in, first out.

    deadline: on the queue's clock; ``None`` is none.
    inference_seconds: wall time of the batches that held entries of this call.
    """

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.entries: deque[Entry] = deque()
        self.futures: set[asyncio.Future[Outcome]] = set()
        self.tokens = 0
        self.turn_tokens = 0
        self.inference_seconds = 0.0

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and self.deadline <= now

    def fail(self, error: Exception) -> None:
        """Forget what waits and fail everything of this call that is not done."""
        self.entries.clear()
        self.tokens = 0
        for future in list(self.futures):
            if not future.done():
                future.set_exception(error)


class WindowQueue:
    """All calls with waiting entries, in turn order."""

    def __init__(self, *, max_batch_tokens: int, max_batch_windows: int) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._max_batch_windows = max_batch_windows
        self._ring: deque[QueuedCall] = deque()

    def __iter__(self) -> Iterator[QueuedCall]:
        return iter(tuple(self._ring))

    @property
    def tokens(self) -> int:
        """All waiting tokens."""
        return sum(call.tokens for call in self._ring)

    @property
    def windows(self) -> int:
        """All waiting windows."""
        return sum(len(call.entries) for call in self._ring)

    def tokens_before(self, tokens: int) -> int:
        """Waiting tokens that run before a new call of so many tokens is done.

        Calls take turns: each other call gets at most about as much as the new one, and at
        least one turn.
        """
        return sum(min(call.tokens, max(tokens, self._turn_tokens)) for call in self._ring)

    def put(self, call: QueuedCall, groups: Sequence[WindowGroup]) -> None:
        """Add the missing windows to the call, the longest first so that like lengths meet."""
        entries = [Entry(call, group, position) for group in groups for position in group.missing]
        entries.sort(key=lambda entry: -entry.token_count)
        call.entries.extend(entries)
        call.tokens += sum(entry.token_count for entry in entries)
        if entries and call not in self._ring:
            self._ring.append(call)

    def remove(self, call: QueuedCall) -> None:
        """Drop everything of a call."""
        call.entries.clear()
        call.tokens = 0
        if call in self._ring:
            self._ring.remove(call)

    def take_batch(self, now: float) -> list[Entry]:
        """Remove and return the next batch; empty when nothing waits.

        Calls past their deadline fail with DeadlineExceededError instead of joining. The padded
        size (longest times count) stays within the budget, except that an entry above it goes
        alone.
        """
        self._drop_dead(now)
        candidates = self._candidates()
        if not candidates:
            return []
        head = candidates[0]
        candidates.sort(key=lambda entry: abs(entry.token_count - head.token_count))
        batch: list[Entry] = []
        longest = total = 0
        for entry in candidates:
            padded = max(longest, entry.token_count) * (len(batch) + 1)
            tokens = total + entry.token_count
            fits = padded <= self._max_batch_tokens and padded <= MAX_PADDED_RATIO * tokens
            if batch and not fits:
                continue
            batch.append(entry)
            longest, total = max(longest, entry.token_count), tokens
            if len(batch) == self._max_batch_windows:
                break
        self._forget(batch)
        return batch

    def drop_late(self, call: QueuedCall, now: float) -> bool:
        """Fail a call that is past its deadline; whether it is."""
        if not call.is_late(now):
            return False
        self.remove(call)
        call.fail(DeadlineExceededError("the deadline passed before the call's work was done"))
        return True

    @property
    def _turn_tokens(self) -> int:
        return self._max_batch_tokens // 2

    def _drop_dead(self, now: float) -> None:
        for call in self:
            if not self.drop_late(call, now) and not all(entry.wanted for entry in call.entries):
                self._keep(call, [entry for entry in call.entries if entry.wanted])

    def _candidates(self) -> list[Entry]:
        """The first entries of the call whose turn it is, then of each other call one in turn."""
        wanted = self._max_batch_windows * _LOOKAHEAD_BATCHES
        if not self._ring:
            return []
        found = list(islice(self._ring[0].entries, wanted))
        turns = [iter(call.entries) for call in islice(self._ring, 1, None)]
        while turns and len(found) < wanted:
            still = []
            for turn in turns:
                entry = next(turn, None)
                if entry is not None:
                    found.append(entry)
                    still.append(turn)
            turns = still
        return found

    def _forget(self, batch: Sequence[Entry]) -> None:
        head = self._ring[0]
        head.turn_tokens += sum(entry.token_count for entry in batch if entry.call is head)
        if head.turn_tokens >= self._turn_tokens:
            head.turn_tokens = 0
            self._ring.rotate(-1)
        taken = set(batch)
        for call in {entry.call for entry in batch}:
            self._keep(call, [entry for entry in call.entries if entry not in taken])

    def _keep(self, call: QueuedCall, entries: Sequence[Entry]) -> None:
        call.entries = deque(entries)
        call.tokens = sum(entry.token_count for entry in entries)
        if not entries:
            call.turn_tokens = 0
            self._ring.remove(call)
