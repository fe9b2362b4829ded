"""The way of a call in domain types: prepare, batch and run, assemble, rank.

Everything slow happens off the event loop: preparing and assembling in a small thread pool, a
chunk of passages at a time so that calls take turns, and the model on the batcher's thread.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, ParamSpec, TypeVar

from secateur.errors import FieldViolation, InvalidRequestError
from secateur.model.assemble import NOT_FINITE
from secateur.model.engine import Engine
from secateur.model.prepared import PreparedPassage, PreparedQuery
from secateur.model.token_limits import check_passage_tokens, check_request_tokens
from secateur.model.validation import validate_passage
from secateur.server.batcher import BatchedCall, Batcher
from secateur.server.cache import PassageWindows, WindowCache
from secateur.server.errors import passage_error_of
from secateur.server.metrics import Metrics
from secateur.server.window_queue import Outcome
from secateur.types import (
    Limits,
    ModelRef,
    Passage,
    PassageError,
    PrunedPassage,
    PruneOptions,
    RankedPassages,
    Timing,
    Usage,
    WarningCode,
)

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK_PASSAGES: Final = 32
_CHUNK_CHARACTERS: Final = 100_000


@dataclass
class Stopwatch:
    """Seconds of one call by stage; ``started`` is on the batcher's clock."""

    started: float
    waiting: float = 0.0
    tokenizing: float = 0.0

    def timing(self, call: BatchedCall, now: float) -> Timing:
        """All stages of a call whose work is done, in milliseconds."""
        return Timing(
            queue_ms=(self.waiting + call.queue_seconds) * 1_000,
            tokenize_ms=self.tokenizing * 1_000,
            inference_ms=call.inference_seconds * 1_000,
            total_ms=(now - self.started) * 1_000,
        )


@dataclass
class PreparedChunk:
    """Some passages after ``prepare``.

    ready: the passages to be scored. windows: of each of them, what the cache knows of its
    windows. failed: results of passages that failed alone.
    violations: faults of the request that only the tokenizer could tell, by passage index.
    """

    ready: list[PreparedPassage] = field(default_factory=list)
    windows: list[PassageWindows] = field(default_factory=list)
    failed: list[PrunedPassage] = field(default_factory=list)
    violations: dict[int, tuple[FieldViolation, ...]] = field(default_factory=dict)


class Pipeline:
    """One engine behind a cache, a batcher and a pool. One instance serves all calls."""

    def __init__(
        self,
        engine: Engine,
        batcher: Batcher,
        cache: WindowCache,
        pool: Executor,
        metrics: Metrics | None = None,
    ) -> None:
        self.engine = engine
        self.batcher = batcher
        self.cache = cache
        self.metrics = metrics or Metrics()
        self._pool = pool

    async def off_loop(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in the pool, in the context of the call."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        return await loop.run_in_executor(
            self._pool, lambda: context.run(_contained, lambda: work(*args, **kwargs))
        )

    def check_room(self, deadline: float | None) -> None:
        """Refuse early, before any work, what is refused anyway: raises as ``submit`` would.

        With a cache that is a call to a dead worker only: all of a call may be in the cache.
        """
        if self.cache.max_bytes:
            self.batcher.check_alive()
        else:
            self.batcher.check_room(deadline)

    async def rerank_and_prune(
        self,
        query: str,
        passages: Sequence[Passage],
        options: PruneOptions,
        *,
        started: float,
        deadline: float | None = None,
    ) -> RankedPassages:
        """Answer a whole validated request. Times are on the batcher's clock.

        Raises InvalidRequestError for faults that only preparing can tell, such as the tokens
        of the whole request; OverloadedError when the queue is full, as soon as something is
        not in the cache; DeadlineExceededError, UnavailableError.
        """
        watch = Stopwatch(started)
        self.check_room(deadline)
        prepared_query = await self.prepare_query(watch, query, options)
        ready: list[PreparedPassage] = []
        windows: list[PassageWindows] = []
        results: list[PrunedPassage] = []
        violations: list[FieldViolation] = []
        input_tokens = 0
        for chunk in chunks(list(enumerate(passages))):
            prepared = await self.prepare(watch, prepared_query, chunk)
            ready += prepared.ready
            windows += prepared.windows
            results += prepared.failed
            violations += [v for faults in prepared.violations.values() for v in faults]
            input_tokens += sum(passage.input_token_count for passage in prepared.ready)
            if not violations:  # checked at each step, so that what is too much stops soon
                check_request_tokens(input_tokens, chunk[-1][0] + 1, self.engine.info.limits)
            if any(passage.missing for passage in prepared.windows):
                self.batcher.check_room(deadline)
        if violations:
            raise InvalidRequestError(violations)
        with self.batcher.call(deadline) as call:
            outcomes = await asyncio.gather(*call.submit(windows))
        assembled: list[PrunedPassage] = []
        for start in range(0, len(ready), _CHUNK_PASSAGES):
            part = slice(start, start + _CHUNK_PASSAGES)
            assembled += await self.off_loop(
                self.assemble, prepared_query, ready[part], outcomes[part]
            )
        usage = self.usage(prepared_query, ready, windows, assembled)
        timing = watch.timing(call, self.batcher.clock())
        self.metrics.answered(
            input_tokens=usage.input_tokens,
            passage_tokens=scored_tokens(ready, assembled),
            kept_tokens=usage.kept_tokens,
            queue_seconds=timing.queue_ms / 1_000,
        )
        return self.ranked(
            prepared_query,
            [*results, *assembled],
            usage=usage,
            warnings=self.engine.warnings(ready),
            timing=timing,
        )

    async def prepare_query(
        self, watch: Stopwatch, query: str, options: PruneOptions
    ) -> PreparedQuery:
        """The engine's step of that name, in the pool."""
        return await self._timed(watch, lambda: self.engine.prepare_query(query, options))

    async def prepare(
        self,
        watch: Stopwatch,
        query: PreparedQuery,
        passages: Sequence[tuple[int, Passage]],
        limits: Limits | None = None,
    ) -> PreparedChunk:
        """Prepare passages, each with its index; with ``limits`` each is validated."""
        return await self._timed(watch, lambda: self._prepare(query, passages, limits))

    def assemble(
        self,
        query: PreparedQuery,
        prepared: Sequence[PreparedPassage],
        outcomes: Sequence[Outcome],
    ) -> list[PrunedPassage]:
        """Results of passages, in order; one that cannot be assembled fails alone. Blocking."""
        results = []
        for passage, outcome in zip(prepared, outcomes, strict=True):
            try:
                if isinstance(outcome, PassageError):
                    result = self.engine.failed(passage, passage.passage, outcome)
                else:
                    result = self.engine.assemble(query, passage, outcome)
            except Exception as error:  # noqa: BLE001 - isolated to its passage
                result = self.engine.failed(passage, passage.passage, passage_error_of(error))
            if result.error is not None:
                self.metrics.passage_error(result.error.code)
            if result.error == NOT_FINITE:
                self.metrics.not_finite()
            results.append(result)
        return results

    def usage(
        self,
        query: PreparedQuery,
        prepared: Sequence[PreparedPassage],
        windows: Sequence[PassageWindows],
        results: Sequence[PrunedPassage],
    ) -> Usage:
        """Counts over some passages: their windows as looked up, their results uncut."""
        usage = self.engine.usage(query, prepared, results)
        return replace(usage, cached_passage_count=sum(passage.cached for passage in windows))

    def ranked(
        self,
        query: PreparedQuery,
        results: Sequence[PrunedPassage],
        *,
        usage: Usage,
        warnings: tuple[WarningCode, ...],
        timing: Timing,
    ) -> RankedPassages:
        """The answer of a call from the results of all its passages, in any order."""
        info = self.engine.info
        kept, omitted = self.engine.rank(query, results)
        return RankedPassages(
            results=kept,
            applied_threshold=query.threshold,
            applied_keep_rule=query.keep_rule,
            score_source=info.score_source,
            omitted_passage_count=omitted,
            query_truncated=query.truncated,
            warnings=warnings,
            model=ModelRef(id=info.id, revision=info.revision, dtype=info.dtype),
            usage=usage,
            timing=timing,
        )

    def _prepare(
        self,
        query: PreparedQuery,
        passages: Sequence[tuple[int, Passage]],
        limits: Limits | None,
    ) -> PreparedChunk:
        chunk = PreparedChunk()
        engine = self.engine

        def prepare_one(index: int, passage: Passage) -> PreparedPassage:
            if limits is None:
                return engine.prepare_passage(query, index, passage)
            validate_passage(
                passage, index, query.options, limits, engine.info, engine.count_tokens
            )
            prepared = engine.prepare_passage(query, index, passage)
            check_passage_tokens(prepared.input_token_count, index, limits)
            return prepared

        for index, passage in passages:
            try:
                prepared = _contained(partial(prepare_one, index, passage))
            except InvalidRequestError as error:
                chunk.violations[index] = error.violations
            except Exception as error:  # noqa: BLE001 - isolated to its passage
                failure = passage_error_of(error)
                self.metrics.passage_error(failure.code)
                chunk.failed.append(engine.failed(index, passage, failure))
            else:
                chunk.ready.append(prepared)
                chunk.windows.append(self.cache.look_up(prepared.windows))
        return chunk

    async def _timed(self, watch: Stopwatch, work: Callable[[], T]) -> T:
        """Run in the pool; waiting for a free thread counts as queue, the work as tokenising."""
        clock = self.batcher.clock
        asked = clock()

        def measured() -> T:
            began = clock()
            watch.waiting += began - asked
            try:
                return work()
            finally:
                watch.tokenizing += clock() - began

        return await self.off_loop(measured)


def scored_tokens(prepared: Sequence[PreparedPassage], results: Sequence[PrunedPassage]) -> int:
    """Passage tokens of the passages that did not fail; ``results[i]`` is of ``prepared[i]``."""
    return sum(
        passage.scored_token_count
        for passage, result in zip(prepared, results, strict=True)
        if result.error is None
    )


def _contained(work: Callable[[], T]) -> T:
    """Run it; a panic of native code, which is no ``Exception``, becomes one."""
    try:
        return work()
    except Exception:
        raise
    except BaseException as panic:
        raise RuntimeError("native code panicked") from panic


def chunks(
    passages: Sequence[tuple[int, Passage]],
) -> Iterator[Sequence[tuple[int, Passage]]]:
    """Cut into pieces of limited work, in order; a huge passage ends its piece."""
    first = characters = 0
    for position, (_, passage) in enumerate(passages):
        characters += len(passage.text)
        if position + 1 - first == _CHUNK_PASSAGES or characters >= _CHUNK_CHARACTERS:
            yield passages[first : position + 1]
            first, characters = position + 1, 0
    if first < len(passages):
        yield passages[first:]
