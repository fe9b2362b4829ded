"""The server's pipeline as the ranker of searches, and limits of messages."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message

from secateur.model.validation import validate
from secateur.server.errors import MessageTooLargeError
from secateur.server.pipeline import Pipeline
from secateur.types import Passage, PruneOptions, RankedPassages


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
