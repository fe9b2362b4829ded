"""What a checkpoint family changes in the way of a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """Special tokens of one model input: ``head query middle title passage tail``.

    Token types, where the encoder has them, are 0 up to the end of ``middle`` and 1 after it.
    """

    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]

    @property
    def special_tokens(self) -> int:
        """How many tokens of a window are neither query, title nor passage."""
        return len(self.head) + len(self.middle) + len(self.tail)


def unchanged(query: str) -> str:
    """The query as it was sent."""
    return query


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How a loaded checkpoint wants its input, and how its output is pooled.

    template: ``None`` is ``[CLS] query [SEP] title passage [SEP]`` of the tokenizer.
    normalize_query: what the model sees of a query; answers speak of the query as sent.
    by_sentence: each sentence is tokenised on its own, all but the first unit of the input
        (title or sentence) after a space, and owns every token of it; else the passage is
        tokenised whole and a token belongs where its first visible character lies.
    mean_of_pieces: a sentence's probability is the mean over windows of the mean over its
        tokens there; else the mean over all its tokens.
    """

    template: PairTemplate | None = None
    normalize_query: Callable[[str], str] = unchanged
    by_sentence: bool = False
    mean_of_pieces: bool = False
