"""What the model said of its newest inputs, so that the same input need not run again.

docs/decisions/0006-result-cache.md says why windows are kept, and not answers.
"""

from __future__ import annotations

import hashlib
import math
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from cachetools import LRUCache

from secateur.model.prepared import EncodedWindow, WindowOutput
from secateur.server.metrics import Metrics
from secateur.types import ModelRef

MIN_BYTES: Final = 1 << 16
"""The smallest cache. A window of 16,000 tokens still fits; no model here has longer ones."""

ENTRY_BYTES: Final = 600
"""What an entry takes beside its probabilities: its key, its objects and its share of the hash
tables, just after these have doubled. Measured: at most 520."""

_KEY_BYTES: Final = 32


def _forget(position: int, output: WindowOutput) -> None:
    """Where there is no cache."""


@dataclass(frozen=True, slots=True, eq=False)
class PassageWindows:
    """The windows of one passage, in order, and what was known of them beforehand.

    outputs: those of the windows that need not run, by position.
    learn: to be told the position and the output of each window that has run.
    """

    windows: Sequence[EncodedWindow]
    outputs: Mapping[int, WindowOutput] = field(default_factory=dict)
    learn: Callable[[int, WindowOutput], None] = _forget

    @property
    def missing(self) -> list[int]:
        """The positions of the windows that must run."""
        return [i for i in range(len(self.windows)) if i not in self.outputs]

    @property
    def missing_tokens(self) -> int:
        """Tokens of the windows that must run."""
        return sum(self.windows[i].token_count for i in self.missing)

    @property
    def cached(self) -> bool:
        """Whether there are windows and none of them must run."""
        return 0 < len(self.windows) == len(self.outputs)


class WindowCache:
    """The outputs of one model by its exact input, the least recently used ones dropped first.

    Thread-safe; no operation takes longer the more is kept. Outputs are kept as copies that
    nobody can write to; one that is not finite is not kept, nor one above the bound.
    max_bytes: of memory, all told; 0 turns the cache off.
    model: whose outputs these are; its id, revision and dtype are part of every key.
    """

    def __init__(self, max_bytes: int, model: ModelRef, metrics: Metrics | None = None) -> None:
        self.max_bytes = max_bytes
        self._metrics = metrics or Metrics()
        self._lock = threading.Lock()
        self._entries: LRUCache[bytes, WindowOutput] = LRUCache(max_bytes, getsizeof=entry_bytes)
        texts = [
            t.encode("utf-8", "surrogatepass") for t in (model.id, model.revision, model.dtype)
        ]
        named = hashlib.blake2b(struct.pack("<3q", *map(len, texts)) + b"".join(texts))
        self._hash = hashlib.blake2b(digest_size=_KEY_BYTES, key=named.digest())
        self._metrics.watch_cache(size=lambda: self.size, entries=lambda: self.entry_count)

    @property
    def size(self) -> int:
        """Bytes that the entries take, never above ``max_bytes``."""
        return int(self._entries.currsize)

    @property
    def entry_count(self) -> int:
        """How many outputs are kept."""
        return len(self._entries)

    def look_up(self, windows: Sequence[EncodedWindow]) -> PassageWindows:
        """What is known of a passage's windows; what it learns of the others is kept."""
        if not self.max_bytes:
            return PassageWindows(windows)
        keys = [self.key(window) for window in windows]
        with self._lock:
            found = {i: self._entries[key] for i, key in enumerate(keys) if key in self._entries}
        self._metrics.cache_looked_up(hits=len(found), misses=len(keys) - len(found))
        return PassageWindows(
            windows, found, lambda position, output: self._keep(keys[position], output)
        )

    def key(self, window: EncodedWindow) -> bytes:
        """A digest of the model and everything that it is given of a window.

        All lengths come first, so that two different inputs never are the same bytes.
        """
        span = window.passage_tokens
        arrays = (window.input_ids, window.token_type_ids, window.sentences)
        lengths = (-1 if array is None else len(array) for array in arrays)
        digest = self._hash.copy()
        digest.update(struct.pack("<5q", span.start, span.stop, *lengths))
        for array in arrays:
            if array is not None:
                digest.update(np.ascontiguousarray(array, dtype=np.int64).data)
        return digest.digest()

    def _keep(self, key: bytes, output: WindowOutput) -> None:
        if not _is_finite(output) or entry_bytes(output) > self.max_bytes:
            return
        probabilities = output.keep_probabilities
        if probabilities is not None:  # a view, which would hold its whole batch
            probabilities = np.array(probabilities, dtype=np.float32)
            probabilities.flags.writeable = False
        with self._lock:
            before = len(self._entries) + (key not in self._entries)
            self._entries[key] = WindowOutput(output.relevance_logit, probabilities)
            evicted = before - len(self._entries)
        self._metrics.cache_evicted(evicted)


def entry_bytes(output: WindowOutput) -> int:
    """Bytes of memory that keeping an output takes."""
    probabilities = output.keep_probabilities
    return ENTRY_BYTES + (0 if probabilities is None else 4 * len(probabilities))


def _is_finite(output: WindowOutput) -> bool:
    logit, probabilities = output.relevance_logit, output.keep_probabilities
    return (logit is None or math.isfinite(logit)) and (
        probabilities is None or bool(np.isfinite(probabilities).all())
    )
