"""Offsets are right for every kind of tokenizer: which characters a token covers, and whose it is.

F6, F7, F8: a scorer gives 1.0 to exactly one token, so exactly one sentence may notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import families_tokenizers as kinds
import numpy as np
import pytest
from fakes import StubSplitter, make_info
from tokenizers import Tokenizer

from secateur.model.adapter import Adapter
from secateur.model.engine import EncodedWindow, Engine, WindowOutput
from secateur.model.tokenization import FastTokenizer
from secateur.types import OffsetUnit, Passage, PrunedPassage, PruneOptions, TextSpan

TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "deberta-v3": kinds.deberta_v3,
    "xlm-roberta": kinds.xlm_roberta,
    "modernbert": kinds.modernbert,
    "roberta": kinds.roberta,
    "bert": kinds.bert,
}

# Texts, and their sentences in code points.
TEXTS: dict[str, tuple[tuple[int, int], ...]] = {
    "No.  Yes.": ((0, 3), (5, 9)),
    "A.\n\nB.": ((0, 2), (4, 6)),
    "A.B. C.": ((0, 4), (5, 7)),
    "👍 ok. Café é. 終。": ((0, 5), (6, 13), (14, 16)),
    "ポンプは赤い。弁は青い。": ((0, 7), (7, 12)),
    "  Cafe\u0301 is open.\u3000👩‍🔬 e\u0301\u0323.  ": ((2, 16), (17, 25)),
    "The red valve. The red valve.": ((0, 14), (15, 29)),
}


# Characters that a normaliser joins with the one before them, which then stands for both.
NORMALISED_AWAY = {
    "deberta-v3": "\u0301\u0323",
    "xlm-roberta": "\u0301\u0323",
    "modernbert": "\u0301\u0323",
    "roberta": "",
    "bert": "\u0301\u0323\u200d",
}


@dataclass
class OneToken:
    """1.0 to the token at one position of the passage, 0.0 to all others."""

    position: int = 0

    def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
        outputs = []
        before = 0
        for window in windows:
            count = window.passage_token_count
            keep = np.zeros(count, dtype=np.float32)
            if before <= self.position < before + count:
                keep[self.position - before] = 1.0
            before += count
            outputs.append(WindowOutput(0.0, keep))
        return outputs


def answer(
    engine: Engine, scorer: OneToken, text: str, position: int, options: PruneOptions, title: str
) -> PrunedPassage:
    scorer.position = position
    query = engine.prepare_query("valve", options)
    sentences = tuple(TextSpan(start, end) for start, end in TEXTS[text])
    prepared = engine.prepare_passage(query, 0, Passage(text, title=title, sentences=sentences))
    return engine.assemble(query, prepared, engine.run(prepared.windows))


@pytest.mark.parametrize("title", ["", "The"])
@pytest.mark.parametrize("by_sentence", [False, True], ids=["whole", "by sentence"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_each_token_counts_for_the_sentence_that_it_shows(
    kind: str, text: str, by_sentence: bool, title: str
) -> None:
    scorer = OneToken()
    tokenizer = FastTokenizer(TOKENIZERS[kind]())
    engine = Engine(
        tokenizer,
        scorer,
        StubSplitter(),
        make_info(window_tokens=24, max_query_tokens=10),
        Adapter(by_sentence=by_sentence),
    )
    options = PruneOptions(include_tokens=True, threshold=0.5)
    query = engine.prepare_query("valve", options)
    sentences = tuple(TextSpan(start, end) for start, end in TEXTS[text])
    prepared = engine.prepare_passage(query, 0, Passage(text, title=title, sentences=sentences))
    noticed = set()
    for position, owner in enumerate(prepared.token_sentences.tolist()):
        result = answer(engine, scorer, text, position, options, title)
        hit = [i for i, s in enumerate(result.sentences) if s.probability]
        relevant = [token for token in result.tokens if token.relevant]
        if owner < 0:
            assert not hit
            assert not relevant
            continue
        assert hit == [owner]
        (token,) = relevant
        start, end = TEXTS[text][owner]
        assert start <= token.start_offset <= token.end_offset <= end
        if not by_sentence:
            assert not text[token.start_offset].isspace()
        noticed.add(owner)
    assert noticed == set(range(len(TEXTS[text])))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_cover_every_visible_character(kind: str) -> None:
    """No character of a text is lost between tokens, emoji and marks included."""
    tokenizer = FastTokenizer(TOKENIZERS[kind]())
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        covered = {i for a, b in zip(tokens.starts, tokens.ends, strict=True) for i in range(a, b)}
        unseen = {i for i, character in enumerate(text) if not character.isspace()} - covered
        assert {text[i] for i in unseen} <= set(NORMALISED_AWAY[kind])


@pytest.mark.parametrize("by_sentence", [False, True])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_units_of_other_languages(kind: str, by_sentence: bool) -> None:
    """F8: spans in UTF-8 bytes and UTF-16 units, whatever the tokenizer counts in."""
    text = "👍 ok. Café é. 終。"
    expected = {
        OffsetUnit.CODE_POINT: [(0, 5), (6, 13), (14, 16)],
        OffsetUnit.UTF8_BYTE: [(0, 8), (9, 18), (19, 25)],
        OffsetUnit.UTF16_CODE_UNIT: [(0, 6), (7, 14), (15, 17)],
    }
    engine = Engine(
        FastTokenizer(TOKENIZERS[kind]()),
        OneToken(),
        StubSplitter(),
        make_info(),
        Adapter(by_sentence=by_sentence),
    )
    for unit, spans in expected.items():
        options = PruneOptions(offset_unit=unit, include_tokens=True, threshold=0)
        query = engine.prepare_query("valve", options)
        prepared = engine.prepare_passage(query, 0, Passage(text))
        result = engine.assemble(query, prepared, engine.run(prepared.windows))
        assert [(s.start_offset, s.end_offset) for s in result.sentences] == spans
        assert all(token.end_offset <= spans[-1][1] for token in result.tokens)
        assert max(token.end_offset for token in result.tokens) == spans[-1][1]


@pytest.mark.parametrize("kind", ["xlm-roberta", "roberta"])
def test_the_stock_pair_is_the_files_own(kind: str) -> None:
    tokenizer = FastTokenizer(TOKENIZERS[kind]())
    template = tokenizer.stock_pair()
    assert template is not None
    cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id
    assert (template.head, template.middle, template.tail) == (
        (cls_id,),
        (sep_id, sep_id),
        (sep_id,),
    )


def test_a_file_without_a_pair() -> None:
    """Then the encoder's usual pair is taken."""
    bare = kinds.bert()
    bare.post_processor = None
    assert FastTokenizer(bare).stock_pair() is None
