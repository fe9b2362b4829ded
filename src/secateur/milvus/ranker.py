"""A ranker for searches without a server: a Pruner, or a Client of another server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from secateur.types import Passage, PruneOptions, RankedPassages


class RerankAndPrune(Protocol):
    """What ``secateur.Pruner`` and ``secateur.Client`` have in common here."""

    def rerank_and_prune(
        self, query: str, passages: Sequence[Passage | str], options: PruneOptions | None = None, /
    ) -> RankedPassages: ...


class ThreadRanker:
    """Runs a blocking pruner in a thread. It cannot be stopped: a time limit is not kept."""

    def __init__(self, pruner: RerankAndPrune) -> None:
        self._pruner = pruner

    async def check(self, query: str, options: PruneOptions, /) -> None:
        """Raise what is wrong with query and options."""
        await asyncio.to_thread(self._pruner.rerank_and_prune, query, (), options)

    async def rank(
        self,
        query: str,
        passages: Sequence[Passage],
        options: PruneOptions,
        /,
        *,
        remaining: float | None,  # noqa: ARG002
    ) -> RankedPassages:
        """Rank and prune passages."""
        return await asyncio.to_thread(self._pruner.rerank_and_prune, query, passages, options)
