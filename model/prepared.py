"""What travels between the steps of the engine: encoded windows, their outputs, prepared input.

``prepare`` makes :class:`PreparedQuery` and :class:`PreparedPassage`, ``run`` turns each
:class:`EncodedWindow` into a :class:`WindowOutput`, ``assemble`` reads both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from secateur.model.offsets import OffsetMap
from secateur.model.protect import ProtectedPatterns
from secateur.types import KeepRule, Passage, PruneOptions

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedWindow:
    """One unpadded model input, such as ``[CLS] query [SEP] title passage-tokens [SEP]``.

    input_ids, token_type_ids: int64 [token_count].
    passage_tokens: the positions of ``input_ids`` that are passage tokens (to be scored).
    sentences: int64 [passage tokens], the sentence of each, -1 for none; only models that score
        whole sentences look at it.
    """

    input_ids: IntArray
    token_type_ids: IntArray
    passage_tokens: slice
    sentences: IntArray | None = None

    @property
    def token_count(self) -> int:
        """Length of the input, special tokens included."""
        return len(self.input_ids)

    @property
    def passage_token_count(self) -> int:
        """Number of passage tokens that this window scores."""
        return int(self.passage_tokens.stop - self.passage_tokens.start)


@dataclass(frozen=True, slots=True, eq=False)
class WindowOutput:
    """What the model says of one window.

    relevance_logit: raw output of the passage head; ``None`` when the model has none.
    keep_probabilities: float32 [passage tokens of the window], each in [0, 1]; ``None`` when
        the model has no token head.
    """

    relevance_logit: float | None
    keep_probabilities: FloatArray | None


class Scorer(Protocol):
    """The only step that knows the device."""

    def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
        """Score the windows in one padded forward pass, in the order given.

        Blocking; one thread at a time. Raises MemoryError when the device has too little
        memory for the batch: the same windows may pass in smaller batches.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PreparedQuery:
    """A checked query with everything that all passages of the request share.

    text: the query as it was sent. token_ids: int64 [query tokens] of what the model sees of
        it, without special tokens, cut when ``truncated``.
    threshold, keep_rule: what applies, defaults of the model filled in; 0 and ``None`` for a
        model that cannot prune.
    mean_of_pieces: see :class:`secateur.model.adapter.Adapter`.
    """

    text: str
    token_ids: IntArray
    truncated: bool
    options: PruneOptions
    threshold: float
    keep_rule: KeepRule | None
    patterns: ProtectedPatterns
    mean_of_pieces: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPassage:
    """One passage, split, tokenised and packed. Everything in code points.

    sentences: int64 [sentences, 2], half-open spans of ``passage.text``.
    token_starts, token_ends: int64 [tokens]; a start is the first non-space character that
        the token covers.
    token_sentences: int64 [tokens], the sentence of each token; -1 for tokens that cover
        white space only (they are model input, but never scored nor counted). Where sentences
        are tokenised one by one, each owns all its tokens.
    protected: bool [sentences], true where a protected pattern matches.
    windows: the passage tokens of all windows, in order, are exactly the tokens above.
    """

    index: int
    passage: Passage
    offsets: OffsetMap
    sentences: IntArray
    token_starts: IntArray
    token_ends: IntArray
    token_sentences: IntArray
    protected: BoolArray
    windows: tuple[EncodedWindow, ...]
    coarse: bool
    unknown_token_count: int

    @property
    def input_token_count(self) -> int:
        """Tokens of all windows, special tokens included."""
        return sum(window.token_count for window in self.windows)

    @property
    def scored_token_count(self) -> int:
        """Passage tokens that belong to a sentence."""
        return int(np.count_nonzero(self.token_sentences >= 0))
