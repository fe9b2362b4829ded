"""What the summary of a stream needs of its results, kept small: a stream may be endless."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from secateur.model.engine import Engine
from secateur.model.prepared import PreparedQuery
from secateur.server.errors import MessageTooLargeError
from secateur.types import PrunedPassage

_FIRST_CHECK: Final = 1_000
_LINE_BYTES: Final = 28  # of a RankedPassage without its id: tags, lengths, index, two doubles


class Ranking:
    """Results without their texts; those that ``top_k`` or the score leave out are forgotten.

    max_bytes: of the summary. What surely has no room in it ends the stream when that shows, not
    when all the work is done.
    """

    def __init__(self, engine: Engine, query: PreparedQuery, *, max_bytes: int) -> None:
        self._engine = engine
        self._query = query
        self._max_bytes = max_bytes
        self._check_at = _FIRST_CHECK
        self.results: list[PrunedPassage] = []
        self.omitted = 0

    def add(self, result: PrunedPassage) -> None:
        """Take one more. Raises MessageTooLargeError."""
        bare = replace(result, pruned_text="", sentences=(), kept_spans=(), tokens=(), error=None)
        self.results.append(bare)
        if len(self.results) < self._check_at:
            return
        kept, omitted = self._engine.rank(self._query, self.results)
        self.results = list(kept)
        self.omitted += omitted
        self._check_at = max(_FIRST_CHECK, 2 * len(kept))
        size = sum(_LINE_BYTES + len(line.id.encode()) for line in kept)
        if size > self._max_bytes:
            raise MessageTooLargeError(
                f"the ranking of {len(kept)} passages has about {size} bytes, the limit of the "
                f"summary is {self._max_bytes}; set top_k or use several streams",
                limit=self._max_bytes,
            )
