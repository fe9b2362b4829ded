"""One stream of passages: taken in order, answered as soon as known, bounded in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from secateur.errors import FieldViolation, InvalidRequestError
from secateur.model.prepared import PreparedPassage, PreparedQuery
from secateur.server.cache import PassageWindows
from secateur.server.errors import MessageTooLargeError, passage_error_of
from secateur.server.pipeline import Pipeline, Stopwatch, chunks, scored_tokens
from secateur.server.ranking import Ranking
from secateur.server.window_queue import Outcome
from secateur.types import (
    Limits,
    Passage,
    PrunedPassage,
    RankedPassages,
    Usage,
    WarningCode,
)

_END: Final = None


class PassageStream:
    """An async context manager; leaving it drops whatever has not been answered.

    One task calls :meth:`put` and then :meth:`end`; another one iterates :meth:`results` and
    then takes :meth:`summary`. An invalid passage is answered by a result with an error.
    max_in_flight: passages taken and not yet handed over; at the bound ``put`` waits. It also
        waits while the stream has tokens in the queue and more of them would be above
        ``Limits.max_request_tokens`` or what the queue holds.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        query: PreparedQuery,
        *,
        watch: Stopwatch,
        deadline: float | None,
        max_in_flight: int,
        max_summary_bytes: int,
    ) -> None:
        self._pipeline = pipeline
        self._query = query
        self._watch = watch
        self._call = pipeline.batcher.call(deadline)
        self._limits = pipeline.engine.info.limits
        self._slots = asyncio.Semaphore(max_in_flight)
        self._ready: asyncio.Queue[PrunedPassage | Exception | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False
        self._taken = 0
        self._given = 0
        self._ranking = Ranking(pipeline.engine, query, max_bytes=max_summary_bytes)
        self._usage = Usage(query_tokens=len(query.token_ids))
        self._scored_tokens = 0
        self._waiting_tokens = 0
        self._scored_some = asyncio.Event()
        self._warnings: dict[WarningCode, None] = {}

    async def put(self, passages: Sequence[Passage]) -> None:
        """Take one message's passages; returns once all of them are under way.

        Raises InvalidRequestError when the message as a whole is over a limit, and what
        ``BatchedCall.submit`` raises.
        """
        _check_batch(passages, self._limits)
        for chunk in chunks(list(enumerate(passages, self._taken))):
            rest = chunk
            while rest:
                count = await self._acquire(len(rest))
                self._taken += count
                await self._start(rest[:count])
                rest = rest[count:]

    def end(self) -> None:
        """No more passages will come."""
        self._ended = True
        self._ready.put_nowait(_END)

    def fail(self, error: Exception) -> None:
        """Make :meth:`results` raise."""
        self._ready.put_nowait(error)

    async def results(self) -> AsyncIterator[PrunedPassage]:
        """Each passage's result once, as soon as it is known, until the end of the stream.

        The next ``put`` may take one more passage when the result has been dealt with. Raises
        what makes the whole stream fail.
        """
        while not (self._ended and self._given == self._taken):
            item = await self._ready.get()
            if isinstance(item, Exception):
                raise item
            if item is _END:
                continue
            self._given += 1
            yield item
            self._slots.release()

    def summary(self) -> RankedPassages:
        """The ranking over the whole stream; its results carry index, id and score only."""
        timing = self._watch.timing(self._call, self._pipeline.batcher.clock())
        self._pipeline.metrics.answered(
            input_tokens=self._usage.input_tokens,
            passage_tokens=self._scored_tokens,
            kept_tokens=self._usage.kept_tokens,
            queue_seconds=timing.queue_ms / 1_000,
        )
        ranked = self._pipeline.ranked(
            self._query,
            self._ranking.results,
            usage=self._usage,
            warnings=tuple(self._warnings),
            timing=timing,
        )
        omitted = ranked.omitted_passage_count + self._ranking.omitted
        return replace(ranked, omitted_passage_count=omitted)

    async def __aenter__(self) -> Self:
        self._call.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call.__exit__(kind, error, trace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _acquire(self, wanted: int) -> int:
        """Wait for one free place, and take up to ``wanted`` of those that are free by then."""
        count = 0
        while count < wanted and (not count or not self._slots.locked()):
            await self._slots.acquire()
            count += 1
        return count

    async def _start(self, passages: Sequence[tuple[int, Passage]]) -> None:
        """Prepare and queue some passages; each is answered by a task of its own."""
        chunk = await self._pipeline.prepare(self._watch, self._query, passages, self._limits)
        texts = dict(passages)
        for result in chunk.failed:
            self._answer(result)
        for index, violations in chunk.violations.items():
            error = passage_error_of(InvalidRequestError(violations))
            self._pipeline.metrics.passage_error(error.code)
            self._answer(self._pipeline.engine.failed(index, texts[index], error))
        await self._wait_for_room(sum(passage.missing_tokens for passage in chunk.windows))
        futures = self._call.submit(chunk.windows)
        for prepared, windows, future in zip(chunk.ready, chunk.windows, futures, strict=True):
            task = asyncio.create_task(self._finish(prepared, windows, future))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _wait_for_room(self, tokens: int) -> None:
        """Wait until so many tokens may join the queue, and count them; none need not wait.

        With nothing of its own in the queue it goes on, so that a stream always gets somewhere.
        """
        most = self._limits.max_request_tokens
        has_room = self._pipeline.batcher.has_room
        while (
            tokens
            and self._waiting_tokens
            and (self._waiting_tokens + tokens > most or not has_room(tokens))
        ):
            self._scored_some.clear()
            await self._scored_some.wait()
        self._waiting_tokens += tokens

    async def _finish(
        self,
        prepared: PreparedPassage,
        windows: PassageWindows,
        future: asyncio.Future[Outcome],
    ) -> None:
        """Turn the model's outcome for one passage into its answer."""
        try:
            try:
                outcome = await future
            finally:
                self._waiting_tokens -= windows.missing_tokens
                self._scored_some.set()
            pipeline = self._pipeline
            results = await pipeline.off_loop(pipeline.assemble, self._query, [prepared], [outcome])
        except Exception as error:  # noqa: BLE001 - the writer must learn of it, or it waits for ever
            self.fail(error)
            return
        usage = pipeline.usage(self._query, [prepared], [windows], results)
        self._scored_tokens += scored_tokens([prepared], results)
        self._usage = replace(
            self._usage,
            input_tokens=self._usage.input_tokens + usage.input_tokens,
            kept_tokens=self._usage.kept_tokens + usage.kept_tokens,
            cached_passage_count=self._usage.cached_passage_count + usage.cached_passage_count,
        )
        self._warnings.update(dict.fromkeys(pipeline.engine.warnings([prepared])))
        self._answer(results[0])

    def _answer(self, result: PrunedPassage) -> None:
        try:
            self._ranking.add(result)
        except MessageTooLargeError as error:
            self.fail(error)
        self._ready.put_nowait(result)


def _check_batch(passages: Sequence[Passage], limits: Limits) -> None:
    """The limits of one message as a whole, under the names that a unary request has."""
    violations = []
    if len(passages) > limits.max_passages:
        description = f"has {len(passages)} passages, the limit is {limits.max_passages}"
        violations.append(FieldViolation("passages", description, "TOO_MANY", limits.max_passages))
    characters = sum(len(p.text) + len(p.title) + len(p.id) for p in passages)
    if characters > limits.max_request_characters:
        limit = limits.max_request_characters
        description = f"has {characters} characters, the limit is {limit}"
        violations.append(FieldViolation("passages", description, "TOO_LONG", limit))
    if violations:
        raise InvalidRequestError(violations)
