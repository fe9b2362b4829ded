"""The batcher with a made-up model and a clock that tests move."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secateur.model.prepared import EncodedWindow, WindowOutput
from secateur.server.batcher import Batcher
from secateur.server.cache import PassageWindows

PATIENCE = 60


def window(tokens: int, mark: int = 0) -> EncodedWindow:
    """A window of some length; ``mark`` comes back as its logit."""
    ids = np.full(tokens, mark, dtype=np.int64)
    return EncodedWindow(ids, np.zeros(tokens, dtype=np.int64), slice(0, tokens))


def passages(windows: Sequence[Sequence[EncodedWindow]]) -> list[PassageWindows]:
    """Passages of which nothing is known."""
    return [PassageWindows(part) for part in windows]


@dataclass
class Model:
    """Runs windows; notes the lengths of every batch; can be held and can fail."""

    batches: list[list[int]] = field(default_factory=list)
    fail: Callable[[Sequence[EncodedWindow]], None] = lambda windows: None
    during: Callable[[], None] = lambda: None
    gate: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
        """One forward pass."""
        self.batches.append([w.token_count for w in windows])
        self.started.set()
        assert self.gate.wait(PATIENCE)
        self.during()
        self.fail(windows)
        return [WindowOutput(float(w.input_ids[0]), None) for w in windows]


@dataclass
class Clock:
    """A clock that tests move."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def batching(model: Model, **changes: Any) -> AsyncIterator[Batcher]:
    """A started batcher."""
    sizes = {"max_batch_tokens": 100, "max_batch_windows": 8, "max_queue_tokens": 10_000}
    batcher = Batcher(model.run, **{**sizes, **changes})
    batcher.start()
    try:
        async with asyncio.timeout(PATIENCE):
            yield batcher
    finally:
        model.gate.set()
        await batcher.close()


async def held(model: Model, batcher: Batcher) -> asyncio.Task[object]:
    """Occupy the worker with a batch of one window of a token; ``model.gate`` lets go."""
    model.gate.clear()
    task = asyncio.create_task(ask(batcher, [1]))
    await asyncio.to_thread(model.started.wait, PATIENCE)
    model.batches.clear()
    return task


async def ask(batcher: Batcher, lengths: Sequence[int], **call: Any) -> list[object]:
    """One call with a passage of one window for each length; the outcomes."""
    with batcher.call(**call) as mine:
        return list(await asyncio.gather(*mine.submit(passages([[window(n, n)] for n in lengths]))))


def logits(outcomes: Sequence[object]) -> list[object]:
    """The logits of single-window passages, and errors as they are."""
    return [o[0].relevance_logit if isinstance(o, list) else o for o in outcomes]


async def tasks_of(*calls: Any) -> list[asyncio.Task[Any]]:
    """Start calls so far that their windows are queued."""
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    return tasks
