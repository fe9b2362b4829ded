"""The passes that a server makes before it says that it is ready."""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

from secateur.errors import CheckpointError, InvariantError
from secateur.model.assemble import NOT_FINITE
from secateur.model.batching import BatchBudget
from secateur.model.engine import Engine
from secateur.model.prepared import EncodedWindow
from secateur.server.cache import PassageWindows
from secateur.server.pipeline import Pipeline
from secateur.types import Passage, PassageError, PrunedPassage, PruneOptions

logger = logging.getLogger(__name__)

SHORTEST: Final = 32
"""Tokens of the shortest windows that a device's kernels are tried on."""

_QUERY: Final = "what opens the valve?"
_TEXTS: Final = (
    "The red handle opens the valve. Lunch is at noon.",
    "The hall is quiet today. " * 40,
)
_OPTIONS: Final = PruneOptions(truncate_query=True)


async def run_passages(pipeline: Pipeline) -> None:
    """Send real passages the whole way; on a CPU this compiles every kernel.

    Raises CheckpointError when the model's scores are not finite, and InvariantError when a
    passage gets no score for another reason.
    """
    for text in _TEXTS:
        started = pipeline.batcher.clock()
        ranked = await pipeline.rerank_and_prune(_QUERY, [Passage(text)], _OPTIONS, started=started)
        if any(result.error == NOT_FINITE for result in ranked.results):
            raise CheckpointError(
                f"{pipeline.engine.info.id}: its scores are not finite; the weights are broken"
            )
        if [_is_scored(result) for result in ranked.results] != [True]:
            raise InvariantError("the warm-up passage was not scored; this is a bug")
        logger.info("warm-up pass: %.1f ms", ranked.timing.total_ms)


async def run_lengths(pipeline: Pipeline, budget: BatchBudget) -> None:
    """Run a full batch of the model's longest windows, and of shorter ones by halves.

    For devices that choose kernels by shape and keep the memory that they once took. A length
    that does not fit into the device's memory is logged.
    """
    like = await pipeline.off_loop(_window, pipeline.engine)
    clock = pipeline.batcher.clock
    for length in lengths(pipeline.engine.info.window_tokens):
        count = max(1, min(budget.windows, budget.tokens // length))
        started = clock()
        with pipeline.batcher.call() as call:
            (done,) = call.submit([PassageWindows([_resized(like, length)] * count)])
            outcome = await done
        milliseconds = (clock() - started) * 1_000
        logger.info("warm-up: %d windows of %d tokens, %.1f ms", count, length, milliseconds)
        if isinstance(outcome, PassageError):
            logger.warning("windows of %d tokens cannot be run: %s", length, outcome.message)


def lengths(window_tokens: int) -> list[int]:
    """The longest window's tokens, and powers of 2 below it down to 32, the largest first."""
    found = [window_tokens]
    length = SHORTEST
    while length < window_tokens:
        found.insert(1, length)
        length *= 2
    return found


def _window(engine: Engine) -> EncodedWindow:
    query = engine.prepare_query(_QUERY, _OPTIONS)
    return engine.prepare_passage(query, 0, Passage(_TEXTS[-1])).windows[0]


def _resized(window: EncodedWindow, length: int) -> EncodedWindow:
    """The window cut, or repeated, to so many tokens; all after the query are of one sentence."""
    first = min(window.passage_tokens.start, length - 1)
    return EncodedWindow(
        np.resize(window.input_ids, length),
        np.resize(window.token_type_ids, length),
        slice(first, length),
        np.zeros(length - first, dtype=np.int64),
    )


def _is_scored(result: PrunedPassage) -> bool:
    return result.error is None and result.relevance_score is not None
