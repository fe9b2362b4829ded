"""BM25 over a few or many texts: the lexical line to stand above, and hard negatives."""

from __future__ import annotations

import re
from collections.abc import Sequence

import bm25s
import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Runs of letters and digits in lower case; no stemming, no stop words."""
    return _WORD.findall(text.lower())


class Bm25:
    """BM25 with Lucene's weights (k1 1.5, b 0.75), which are positive for every word found."""

    def __init__(self, texts: Sequence[str]) -> None:
        """texts: the whole collection."""
        tokens = [words(text) for text in texts]
        self._count = len(tokens)
        self._index = bm25s.BM25(method="lucene", k1=1.5, b=0.75) if any(tokens) else None
        if self._index is not None:
            self._index.index(tokens, show_progress=False)

    def scores(self, question: str) -> NDArray[np.float64]:
        """One score for each text, >= 0: [texts]; all 0 when no word of the question occurs."""
        asked = words(question)
        if self._index is None or not asked:
            return np.zeros(self._count)
        return np.asarray(self._index.get_scores(asked), dtype=np.float64)
