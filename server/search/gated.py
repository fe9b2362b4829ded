"""What the search services have in common: the gate, the pipeline, limits of messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from secateur.errors import UnavailableError
from secateur.model.validation import validate
from secateur.server.calls import Calls, Context
from secateur.server.errors import MessageTooLargeError
from secateur.server.gate import Gate
from secateur.server.pipeline import Pipeline
from secateur.types import Passage, PruneOptions, RankedPassages

T = TypeVar("T")


class Gated:
    """Calls answer UNAVAILABLE until ``pipeline`` is set and the gate lets calls in."""

    def __init__(self, gate: Gate, calls: Calls) -> None:
        self.pipeline: Pipeline | None = None
        self._gate = gate
        self._calls = calls

    async def run(
        self, method: str, context: Context, answer: Callable[[Pipeline], Awaitable[T]]
    ) -> T:
        """Run one call inside the gate; its errors become statuses."""

        async def work() -> T:
            with self._gate.enter():
                if self.pipeline is None:
                    raise UnavailableError("the server is starting: no model is loaded yet")
                return await answer(self.pipeline)

        return await self._calls.run(method, context, work)


class PipelineRanker:
    """The ranker of a server: validates, then sends passages through the pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def check(self, query: str, options: PruneOptions, /) -> None:
        """Raise what is wrong with query and options."""
        await self._validate(query, (), options)

    async def rank(
        self,
        query: str,
        passages: Sequence[Passage],
        options: PruneOptions,
        /,
        *,
        remaining: float | None,
    ) -> RankedPassages:
        """Rank and prune passages; see :meth:`Pipeline.rerank_and_prune` for the errors."""
        await self._validate(query, passages, options)
        now = self._pipeline.batcher.clock()
        return await self._pipeline.rerank_and_prune(
            query,
            passages,
            options,
            started=now,
            deadline=None if remaining is None else now + remaining,
        )

    async def _validate(
        self, query: str, passages: Sequence[Passage], options: PruneOptions
    ) -> None:
        engine = self._pipeline.engine
        await self._pipeline.off_loop(
            validate,
            query,
            passages,
            options,
            engine.info.limits,
            engine.info,
            engine.count_tokens,
            engine.count_query_tokens,
        )


def check_size(message: Message, limit: int, advice: str) -> None:
    """Raise MessageTooLargeError for a message of more than ``limit`` bytes."""
    size = message.ByteSize()
    if size > limit:
        raise MessageTooLargeError(
            f"the message has {size} bytes, the limit is {limit}; {advice}", limit=limit
        )
