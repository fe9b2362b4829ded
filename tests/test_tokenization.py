"""Tokens, their offsets, and the sentences they belong to."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from secateur.errors import CheckpointError, InvariantError
from secateur.model import tokenization
from secateur.model.tokenization import (
    FastTokenizer,
    TokenizedText,
    assign_sentences,
    first_visible_characters,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "valve", "[", "]", "SEP", "CLS", "終"]


def tokens(*offsets: tuple[int, int]) -> TokenizedText:
    columns = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    return TokenizedText(np.zeros(len(columns), np.int64), columns[:, 0], columns[:, 1])


def sentence_of_each(
    text: str, sentences: list[tuple[int, int]], *offsets: tuple[int, int]
) -> list[int]:
    first = first_visible_characters(text, tokens(*offsets))
    spans = np.array(sentences, dtype=np.int64).reshape(-1, 2)
    return [int(owner) for owner in assign_sentences(first, spans)]


def word_tokenizer() -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def test_white_space_table_is_str_isspace() -> None:
    """The table ends at U+3000; a white-space character above it would be taken for text."""
    spaces = [c for c in range(sys.maxunicode + 1) if chr(c).isspace()]
    assert tokenization._WHITE_SPACE.tolist() == spaces


def test_leading_space_does_not_move_a_token_to_the_sentence_before() -> None:
    """F7: by its start, the token "  Yes" of `No.  Yes.` would count for `No.`."""
    offsets = [(0, 2), (2, 3), (3, 8), (8, 9)]
    assert sentence_of_each("No.  Yes.", [(0, 3), (5, 9)], *offsets) == [0, 0, 1, 1]


def test_overlapping_repeated_and_empty_offsets() -> None:
    """F6: a lone marker shares the space with the next piece; one character is two tokens."""
    text = "A 👍. B."
    offsets = [(0, 0), (0, 1), (1, 2), (1, 3), (2, 3), (2, 3), (3, 4), (4, 5), (4, 6), (6, 7)]
    found = sentence_of_each(text, [(0, 4), (5, 7)], *offsets)
    assert found == [-1, 0, -1, 0, 0, 0, 0, -1, 1, 1]


def test_white_space_tokens_belong_to_no_sentence() -> None:
    """A newline token of a byte-level vocabulary is no word of either sentence."""
    assert sentence_of_each("A.\n\nB.", [(0, 2), (4, 6)], (0, 2), (2, 4), (4, 6)) == [0, -1, 1]


def test_a_token_across_a_border_goes_to_its_first_character() -> None:
    """A piece that ends one sentence and begins the next is counted once, for the first."""
    assert sentence_of_each("a。b。", [(0, 2), (2, 4)], (0, 1), (1, 3), (3, 4)) == [0, 0, 1]


def test_no_tokens_and_blank_text() -> None:
    """Empty arrays pass through every step."""
    assert sentence_of_each("", []) == []
    assert sentence_of_each(" \n", [], (0, 1), (1, 2)) == [-1, -1]
    assert sentence_of_each("\u200b", [(0, 1)]) == []


@pytest.mark.parametrize("sentences", [[], [(0, 1)], [(2, 3)]])
def test_visible_text_outside_all_sentences_is_a_bug(sentences: list[tuple[int, int]]) -> None:
    """A splitter that loses text must not lose tokens silently."""
    with pytest.raises(InvariantError, match="this is a bug"):
        sentence_of_each("A.B", sentences, (0, 1), (1, 2), (2, 3))


def test_offsets_outside_the_text_are_a_bug() -> None:
    """Byte offsets where code points are expected would score the wrong characters."""
    with pytest.raises(InvariantError, match="this is a bug"):
        first_visible_characters("é", tokens((0, 2)))


def test_encode_has_no_special_tokens_and_counts_code_points() -> None:
    """Offsets are code points of the text as sent, also behind an emoji."""
    encoded = FastTokenizer(word_tokenizer()).encode("👍 red 終")
    assert encoded.ids.tolist() == [1, 4, 10]
    assert encoded.starts.tolist() == [0, 2, 6]
    assert encoded.ends.tolist() == [1, 5, 7]


def test_text_that_spells_a_special_token_is_text() -> None:
    """A passage with `[SEP]` in it must not end the model's input early."""
    encoded = FastTokenizer(word_tokenizer()).encode("red [SEP] [CLS]")
    assert encoded.ids.tolist() == [4, 6, 8, 7, 6, 9, 7]


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    """F9: a tokenizer file that truncates would lose the tail of every long passage."""
    tokenizer = word_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    assert len(FastTokenizer(tokenizer).encode("red " * 5).ids) == 5
    assert len(FastTokenizer(tokenizer).encode("").ids) == 0


def test_a_vocabulary_without_separator_is_refused() -> None:
    """The message says which token was expected."""
    with pytest.raises(CheckpointError, match=r"\[CLS\] or <s>"):
        FastTokenizer(Tokenizer(models.WordLevel({"red": 0}, unk_token="red")))


def test_threads_share_one_tokenizer() -> None:
    """F21: reconfiguring a shared fast tokenizer per call raises "Already borrowed"."""
    tokenizer = FastTokenizer(word_tokenizer())
    texts = ["red " * n + "valve" for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        lengths = [len(encoded.ids) for encoded in pool.map(tokenizer.encode, texts)]
    assert lengths == [n + 1 for n in range(64)]
