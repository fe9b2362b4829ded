"""Merges the windows of concurrent calls into batches and runs them on one worker thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from secateur.errors import (
    DeadlineExceededError,
    InvariantError,
    OverloadedError,
    UnavailableError,
)
from secateur.model.prepared import EncodedWindow, WindowOutput
from secateur.server.cache import PassageWindows
from secateur.server.errors import internal_error_id, passage_error_of
from secateur.server.metrics import Metrics
from secateur.server.speed import Speed
from secateur.server.window_queue import Entry, Outcome, QueuedCall, WindowGroup, WindowQueue
from secateur.types import PassageError

logger = logging.getLogger(__name__)

THREADS: Final = "secateur-"
"""What the names of the server's threads begin with."""

OUT_OF_MEMORY: Final = PassageError(
    "RESOURCE_EXHAUSTED", "the model ran out of memory on this passage alone"
)

_DEFAULT_RETRY_SECONDS: Final = 1.0
_SHORTEST_RETRY_SECONDS: Final = 0.1
_LONGEST_RETRY_SECONDS: Final = 30.0


class BatchedCall(QueuedCall):
    """One caller's work. A context manager: leaving it drops whatever has not run.

    After a cancel at most the batch that is running goes on; no later one holds this call.
    """

    def __init__(self, batcher: Batcher, deadline: float | None) -> None:
        super().__init__(deadline)
        self._batcher = batcher
        self._admitted = False
        self._busy_since = 0.0
        self._busy_seconds = 0.0

    @property
    def queue_seconds(self) -> float:
        """Wall time with work submitted and none of it in the model; exact once all is done."""
        return max(0.0, self._busy_seconds - self.inference_seconds)

    def submit(self, passages: Sequence[PassageWindows]) -> list[asyncio.Future[Outcome]]:
        """Queue the missing windows of some passages; one future a passage, in order.

        A passage without missing windows has its outcome at once, whatever the queue holds. A
        future raises DeadlineExceededError or UnavailableError when the whole call fails.
        Raises UnavailableError when the worker is dead and, for a call that has not been let in
        yet (later it keeps its place and bounds itself), what ``Batcher.admit`` raises.
        """
        tokens = sum(passage.missing_tokens for passage in passages)
        if tokens:
            self._batcher.check_alive()
            if not self._admitted:
                self._batcher.admit(tokens, self.deadline)
            self._admitted = True
        loop = asyncio.get_running_loop()
        queued = []
        futures = []
        for passage in passages:
            future: asyncio.Future[Outcome] = loop.create_future()
            futures.append(future)
            group = WindowGroup(passage, future)
            if future.done():
                continue
            if not self.futures:
                self._busy_since = self._batcher.clock()
            self.futures.add(future)
            future.add_done_callback(self._finished)
            queued.append(group)
        self._batcher.enqueue(self, queued)
        return futures

    def _finished(self, future: asyncio.Future[Outcome]) -> None:
        self.futures.discard(future)
        if not self.futures:
            self._busy_seconds += self._batcher.clock() - self._busy_since
        if not future.cancelled():
            future.exception()  # seen: a caller that left early must not cause a log line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._batcher.forget(self)
        for future in list(self.futures):
            future.cancel()


class Batcher:
    """Feeds ``run`` with batches from all calls, one batch at a time, on its own thread.

    run: blocking forward pass; one output a window, in order. When it raises, the batch is
        halved and tried again down to single windows, and only the passages of windows that
        fail alone fail. An error that is no ``Exception`` kills the worker: all pending and
        later calls fail with UnavailableError and ``on_death`` is called once.
    max_queue_tokens: above it ``submit`` refuses new calls. One call counts for at most half of
        it, so that a giant call neither is refused for ever nor keeps all others out.
    metrics: told of every batch and of what waits. clock: seconds; deadlines are on it.
    """

    def __init__(
        self,
        run: Callable[[Sequence[EncodedWindow]], list[WindowOutput]],
        *,
        max_batch_tokens: int,
        max_batch_windows: int,
        max_queue_tokens: int,
        on_death: Callable[[], None] = lambda: None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._run = run
        self._queue = WindowQueue(
            max_batch_tokens=max_batch_tokens, max_batch_windows=max_batch_windows
        )
        self._max_queue_tokens = max_queue_tokens
        self._on_death = on_death
        self._metrics = metrics or Metrics()
        self._speed = Speed(full_tokens=max_batch_tokens // 2)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{THREADS}model")
        self._wake = asyncio.Event()
        self._running: list[Entry] = []
        self._closed: UnavailableError | None = None
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the worker; needs a running event loop."""
        self._worker = asyncio.create_task(self._work(), name="secateur-batcher")

    async def close(self) -> None:
        """Stop: what waits or runs fails with UnavailableError.

        A running pass is not waited for.
        """
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._fail_all(UnavailableError("the server is shutting down"))
        self._thread.shutdown(wait=False, cancel_futures=True)

    def call(self, deadline: float | None = None) -> BatchedCall:
        """A new caller. deadline: on ``clock``; its waiting work is dropped when it passes."""
        return BatchedCall(self, deadline)

    @property
    def queued_tokens(self) -> int:
        """Waiting tokens, with no call counted above half of the queue."""
        return sum(min(call.tokens, self._share) for call in self._queue)

    def check_alive(self) -> None:
        """Raise UnavailableError when the worker is dead or closed."""
        if self._closed is not None:
            raise self._closed

    def has_room(self, tokens: int) -> bool:
        """Whether so many tokens of a new call may wait, too; any may, where none waits."""
        waiting = self.queued_tokens
        return not waiting or waiting + min(tokens, self._share) <= self._max_queue_tokens

    def check_room(self, deadline: float | None = None) -> None:
        """Refuse early, before any work: raises as ``submit`` surely would."""
        self.check_alive()
        self.admit(1, deadline)

    def admit(self, tokens: int, deadline: float | None) -> None:
        """Refuse a new call that there is no room or no time for; nothing of it has run then.

        Raises OverloadedError when the queue is full, or when what runs before this call leaves
        it too little time; DeadlineExceededError when its tokens alone take longer than it has.
        Time is judged by the measured speed only, and not at all while there is none.
        """
        if not self.has_room(tokens):
            waiting = self.queued_tokens
            raise OverloadedError(
                f"the queue is full: {waiting} of {self._max_queue_tokens} tokens are waiting",
                retry_after_seconds=self._retry_after(waiting),
                limit=self._max_queue_tokens,
            )
        if deadline is None:
            return
        now = self.clock()
        before = self._queue.tokens_before(tokens)
        alone = self._speed.seconds_for(tokens, now)
        queued = self._speed.seconds_for(before + tokens, now)
        if alone is None or queued is None:
            return
        left = deadline - now
        if alone > left:
            raise DeadlineExceededError(
                f"{tokens} tokens take at least {alone:.2g} s, the deadline leaves {left:.2g} s"
            )
        if queued > left:
            raise OverloadedError(
                f"with {before} tokens to run before it, this call takes at least {queued:.2g} s; "
                f"the deadline leaves {left:.2g} s",
                retry_after_seconds=self._retry_after(before),
            )

    def enqueue(self, call: QueuedCall, groups: Sequence[WindowGroup]) -> None:
        """Put an admitted call's windows in line."""
        self._queue.put(call, groups)
        self._wake.set()
        self._tell_queue()

    def forget(self, call: QueuedCall) -> None:
        """Drop what a call has waiting."""
        self._queue.remove(call)
        self._tell_queue()

    @property
    def _share(self) -> int:
        return max(1, self._max_queue_tokens // 2)

    def _retry_after(self, waiting: int) -> float:
        """Seconds until about half of the waiting tokens have run."""
        seconds = self._speed.seconds_for(waiting // 2, self.clock())
        if seconds is None:
            return _DEFAULT_RETRY_SECONDS
        return min(max(seconds, _SHORTEST_RETRY_SECONDS), _LONGEST_RETRY_SECONDS)

    def _tell_queue(self) -> None:
        self._metrics.queue(tokens=self._queue.tokens, windows=self._queue.windows)

    async def _work(self) -> None:
        try:
            while True:
                batch = self._queue.take_batch(self.clock())
                self._tell_queue()
                if batch:
                    await self._run_batch(batch)
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            internal_error_id(error)
            self._fail_all(UnavailableError("the model's worker died; the server must restart"))
            self._on_death()

    async def _run_batch(self, batch: list[Entry]) -> None:
        """Run a batch; where it fails, its halves, first half first."""
        parts = [batch]
        while parts:
            now = self.clock()
            part = [
                entry
                for entry in parts.pop()
                if entry.wanted and not self._queue.drop_late(entry.call, now)
            ]
            if not part:
                continue
            self._running = [*part, *(entry for rest in parts for entry in rest)]
            try:
                outputs = await self._forward(part)
            except Exception as error:  # noqa: BLE001 - isolated: each entry is tried alone
                if len(part) == 1:
                    part[0].group.fail(_alone(error))
                    continue
                logger.warning("a batch of %d windows failed, halving: %r", len(part), type(error))
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            for entry, output in zip(part, outputs, strict=True):
                entry.group.deliver(entry.position, output)
        self._running = []

    async def _forward(self, part: Sequence[Entry]) -> list[WindowOutput]:
        windows = [entry.window for entry in part]
        started = self.clock()
        try:
            loop = asyncio.get_running_loop()
            outputs = await loop.run_in_executor(self._thread, self._run, windows)
        finally:
            seconds = self.clock() - started
            for call in {entry.call for entry in part}:
                call.inference_seconds += seconds
        if len(outputs) != len(windows):
            raise InvariantError("a forward pass lost a window; this is a bug")
        lengths = [window.token_count for window in windows]
        self._speed.measured(sum(lengths), seconds, started + seconds)
        self._metrics.batch(lengths, seconds)
        return outputs

    def _fail_all(self, error: UnavailableError) -> None:
        self._closed = self._closed or error
        for call in {*self._queue, *(entry.call for entry in self._running)}:
            self._queue.remove(call)
            call.fail(error)
        self._running = []


def _alone(error: Exception) -> PassageError:
    return OUT_OF_MEMORY if isinstance(error, MemoryError) else passage_error_of(error)
