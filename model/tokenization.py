"""Text to token ids with code-point offsets, and which sentence each token belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tokenizers
from numpy.typing import NDArray

from secateur.errors import CheckpointError, InvariantError
from secateur.model.adapter import PairTemplate

# str.isspace() as a sorted table, so that a whole text is classified in one call.
_WHITE_SPACE = np.array([c for c in range(0x3001) if chr(c).isspace()], dtype=np.uint32)

_CLS_NAMES = ("[CLS]", "<s>")
_SEP_NAMES = ("[SEP]", "</s>")
_UNK_NAMES = ("[UNK]", "<unk>")
_PAD_NAMES = ("[PAD]", "<pad>")


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """Tokens of one text without special tokens.

    ids, starts, ends: int64 [tokens]; half-open code-point offsets as the tokenizer gives
    them: they may overlap, repeat, be empty or begin with white space.
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class TextTokenizer(Protocol):
    """What the engine needs of a tokenizer. Safe to share between threads."""

    @property
    def cls_id(self) -> int:
        """Opens every input."""
        ...

    @property
    def sep_id(self) -> int:
        """Ends the query and the passage."""
        ...

    @property
    def pad_id(self) -> int:
        """Fills a row of a batch; masked out."""
        ...

    @property
    def unk_id(self) -> int | None:
        """Stands for what the vocabulary lacks; ``None`` when nothing is lacking."""
        ...

    def encode(self, text: str) -> TokenizedText:
        """Tokenise a text whole: no special tokens, no truncation, no padding."""
        ...


class FastTokenizer:
    """A ``tokenizers.Tokenizer`` with its settings fixed once, here.

    A fast tokenizer that is reconfigured per call fails with "Already borrowed" when threads
    share it; this one is only read after construction. Truncation and padding are switched
    off whatever the file says, and text that spells a special token (``[SEP]``) is plain text.

    Raises CheckpointError when the vocabulary lacks the special tokens.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.cls_id = _required_id(tokenizer, _CLS_NAMES)
        self.sep_id = _required_id(tokenizer, _SEP_NAMES)
        self.pad_id = _required_id(tokenizer, _PAD_NAMES)
        self.unk_id = _find_id(tokenizer, _UNK_NAMES)

    def stock_pair(self) -> PairTemplate | None:
        """What the file's own post-processor puts around a pair; ``None`` when it separates
        nothing.
        """
        encoding = self._tokenizer.encode("a", "a")
        sequences = np.array([-1 if s is None else s for s in encoding.sequence_ids])
        first, second = np.flatnonzero(sequences == 0), np.flatnonzero(sequences == 1)
        if not len(first) or not len(second) or second[0] - first[-1] < 2:
            return None
        ids = tuple(encoding.ids)
        return PairTemplate(ids[: first[0]], ids[first[-1] + 1 : second[0]], ids[second[-1] + 1 :])

    def encode(self, text: str) -> TokenizedText:
        """Tokenise a text whole; offsets count its code points."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)  # [tokens, 2]
        ids = np.array(encoding.ids, dtype=np.int64)  # [tokens]
        return TokenizedText(ids=ids, starts=offsets[:, 0], ends=offsets[:, 1])


def _find_id(tokenizer: tokenizers.Tokenizer, names: tuple[str, ...]) -> int | None:
    for name in names:
        token_id = tokenizer.token_to_id(name)
        if token_id is not None:
            return int(token_id)
    return None


def _required_id(tokenizer: tokenizers.Tokenizer, names: tuple[str, ...]) -> int:
    token_id = _find_id(tokenizer, names)
    if token_id is None:
        raise CheckpointError(f"tokenizer.json: expected a token {' or '.join(names)}, found none")
    return token_id


def first_visible_characters(text: str, tokens: TokenizedText) -> NDArray[np.int64]:
    """For each token the first non-space character that it covers, or -1: int64 [tokens]."""
    length = len(text)
    characters = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)  # [characters]
    positions = np.where(np.isin(characters, _WHITE_SPACE), length, np.arange(length))
    # next_visible[i]: the first non-space position >= i; `length` when there is none.
    next_visible = np.append(np.minimum.accumulate(positions[::-1])[::-1], length)
    if tokens.starts.size and not (tokens.starts.min() >= 0 and tokens.ends.max() <= length):
        raise InvariantError("a token offset lies outside its text; this is a bug")
    first = next_visible[tokens.starts]
    return np.where(first < tokens.ends, first, -1).astype(np.int64)


def assign_sentences(
    first_visible: NDArray[np.int64], sentences: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The sentence of each token, by the first non-space character that it covers.

    first_visible: int64 [tokens], -1 for tokens of white space only.
    sentences: int64 [sentences, 2], sorted; with the white space between them, the whole text.
    Returns int64 [tokens]; -1 exactly where ``first_visible`` is. Raises InvariantError when
    a visible character lies in no sentence.
    """
    visible = first_visible >= 0
    if not len(sentences):
        if visible.any():
            raise InvariantError("tokens without any sentence; this is a bug")
        return np.full(len(first_visible), -1, dtype=np.int64)
    found = np.searchsorted(sentences[:, 0], first_visible, side="right") - 1
    inside = (found >= 0) & (first_visible < sentences[found, 1])
    if not bool(inside[visible].all()):
        raise InvariantError("a token lies outside all sentences; this is a bug")
    return np.where(visible, found, -1).astype(np.int64)
