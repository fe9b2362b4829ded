"""A passage's tokens: with its title before it, whole or sentence by sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secateur.model.tokenization import (
    TextTokenizer,
    TokenizedText,
    assign_sentences,
    first_visible_characters,
)
from secateur.types import Passage

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PassageTokens:
    """title_ids: int64 [title tokens]. The rest int64 [tokens], as in PreparedPassage."""

    title_ids: NDArray[np.int64]
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    sentences: NDArray[np.int64]


def tokenize_passage(
    tokenizer: TextTokenizer,
    passage: Passage,
    sentences: NDArray[np.int64],
    *,
    by_sentence: bool,
) -> PassageTokens:
    """Tokenise title and text; see :class:`secateur.model.adapter.Adapter` for ``by_sentence``.

    sentences: int64 [sentences, 2], half-open spans of the text in code points.
    """
    title, text = passage.title, passage.text
    if not len(sentences):  # blank, whatever the tokenizer makes of white space
        return PassageTokens(_title(tokenizer, title), _NOTHING, _NOTHING, _NOTHING, _NOTHING)
    if by_sentence:
        title_ids = _title(tokenizer, title)
        tokens, owners = _one_by_one(tokenizer, text, sentences, spaced=bool(len(title_ids)))
        visible = first_visible_characters(text, tokens)
        starts = np.where(visible < 0, tokens.starts, visible)
    else:
        if title:
            title_ids, tokens = _after(tokenizer, title, text)
        else:
            title_ids, tokens = _NOTHING, tokenizer.encode(text)
        starts = first_visible_characters(text, tokens)
        owners = assign_sentences(starts, sentences)
    return PassageTokens(title_ids, tokens.ids, starts, tokens.ends, owners)


def _title(tokenizer: TextTokenizer, title: str) -> NDArray[np.int64]:
    return tokenizer.encode(title).ids if title else _NOTHING


def _after(
    tokenizer: TextTokenizer, before: str, text: str
) -> tuple[NDArray[np.int64], TokenizedText]:
    """Tokens of ``before``, and of a text that stands after it and a space, tokenised together.

    Returns the ids of the tokens that begin in ``before``, and the others with offsets into
    ``text``; one of nothing but the space has the empty span (0, 0).
    """
    tokens = tokenizer.encode(f"{before} {text}")
    shift = len(before) + 1
    inside = tokens.starts >= len(before)
    return tokens.ids[~inside], TokenizedText(
        ids=tokens.ids[inside],
        starts=np.maximum(tokens.starts[inside] - shift, 0),
        ends=np.maximum(tokens.ends[inside] - shift, 0),
    )


def _one_by_one(
    tokenizer: TextTokenizer, text: str, sentences: NDArray[np.int64], *, spaced: bool
) -> tuple[TokenizedText, NDArray[np.int64]]:
    """Tokens of each sentence after a space, with offsets into ``text``, and their sentences.

    spaced: whether the first one stands after a space too.
    """
    ids, starts, ends, owners = [_NOTHING], [_NOTHING], [_NOTHING], [_NOTHING]
    for index, (start, end) in enumerate(sentences.tolist()):
        part = text[start:end]
        alone = index == 0 and not spaced
        tokens = tokenizer.encode(part) if alone else _after(tokenizer, "", part)[1]
        ids.append(tokens.ids)
        starts.append(tokens.starts + start)
        ends.append(tokens.ends + start)
        owners.append(np.full(len(tokens.ids), index, dtype=np.int64))
    whole = TokenizedText(np.concatenate(ids), np.concatenate(starts), np.concatenate(ends))
    return whole, np.concatenate(owners)
