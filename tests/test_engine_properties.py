"""What holds for any text: spans, gaps, pruned text, windows, order, independence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import FakeScorer, StubSplitter, StubTokenizer, make_engine
from hypothesis import given
from hypothesis import strategies as st

from secateur.model.pruner import Pruner
from secateur.model.splitter import SentenceSplitter
from secateur.types import (
    KeepReason,
    KeepRule,
    OffsetUnit,
    Passage,
    PrunedPassage,
    PruneOptions,
    ResultOrder,
    TextSpan,
)

PIECES = [
    "red ", "valve", "A.", ". ", "! ", "。", "…", "\n\n", "  ", "\u3000", "\t", "👍", "👩\u200d🚒",
    "é", "e\u0301", "\u200b", "\x00", "終", "ﷺ", "\u2028", "\ufeff", "\U0010ffff", "...", '"',
]  # fmt: skip
TEXTS = st.lists(
    st.sampled_from(PIECES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    max_size=24,
).map("".join)
OPTIONS = st.builds(
    PruneOptions,
    threshold=st.none() | st.sampled_from([0.0, 0.02, 0.1, 0.3, 1.0]),
    keep_rule=st.none()
    | st.sampled_from([KeepRule.MEAN_PROBABILITY, KeepRule.TOKEN_VOTE, KeepRule.MAJORITY]),
    always_select_title=st.booleans(),
    min_sentences=st.integers(0, 3),
    neighbor_sentences=st.integers(0, 2),
    protected_patterns=st.sampled_from([(), ("👍",), ("red|終", r"\.")]),
    offset_unit=st.sampled_from(list(OffsetUnit)),
    include_tokens=st.booleans(),
    include_sentence_text=st.booleans(),
)
STYLES = st.sampled_from(["word", "leading_space", "marker"])
ENCODINGS = {
    OffsetUnit.CODE_POINT: ("utf-32-le", 4),
    OffsetUnit.UTF8_BYTE: ("utf-8", 1),
    OffsetUnit.UTF16_CODE_UNIT: ("utf-16-le", 2),
}


def cut(text: str, start: int, end: int, unit: OffsetUnit) -> str:
    """A slice of the text in a unit, by way of its encoding; fails inside a character."""
    encoding, width = ENCODINGS[unit]
    return text.encode(encoding)[start * width : end * width].decode(encoding)


def small_pruner(style: str, splitter: StubSplitter | SentenceSplitter | None = None) -> Pruner:
    tokenizer = StubTokenizer(style)
    return Pruner(make_engine(tokenizer=tokenizer, splitter=splitter, window_tokens=16))


def check_result(text: str, result: PrunedPassage, options: PruneOptions) -> None:
    unit = options.offset_unit
    whole = cut(text, 0, 1 << 40, unit)
    assert whole == text
    sentences = [cut(text, s.start_offset, s.end_offset, unit) for s in result.sentences]
    gaps = []
    position = 0
    for sentence in result.sentences:
        gaps.append(cut(text, position, sentence.start_offset, unit))
        position = sentence.end_offset
    gaps.append(cut(text, position, 1 << 40, unit))

    assert all(s and not s[0].isspace() and not s[-1].isspace() for s in sentences)
    assert not "".join(gaps).strip()
    kept = [i for i, sentence in enumerate(result.sentences) if sentence.kept]
    simple = "".join(sentences[i] + (gaps[i + 1] if i != kept[-1] else "") for i in kept)
    assert result.pruned_text == simple
    runs = [
        TextSpan(result.sentences[i].start_offset, result.sentences[j].end_offset)
        for i in kept
        if i - 1 not in kept
        for j in [next(j for j in kept if j >= i and j + 1 not in kept)]
    ]
    assert list(result.kept_spans) == runs
    assert 0.0 <= result.compression_rate <= 1.0
    assert result.all_pruned == bool(text.strip() and not kept)
    if text.strip():
        assert result.compression_rate == 1 - len(simple) / len(text)
    else:
        assert (result.compression_rate, result.sentences) == (0.0, ())
    for sentence, source in zip(result.sentences, sentences, strict=True):
        assert sentence.text == (source if options.include_sentence_text else "")
        assert (sentence.probability is None) == (sentence.vote_share is None)
        assert sentence.probability is None or 0.0 <= sentence.probability <= 1.0
        assert sentence.kept == (sentence.reason is not KeepReason.BELOW_THRESHOLD)
        assert sentence.kept or sentence.probability is not None
    assert result.unscored_sentence_count == sum(s.probability is None for s in result.sentences)
    for token in result.tokens:
        source = cut(text, token.start_offset, token.end_offset, unit)
        assert source
        assert not source[0].isspace()


@pytest.mark.parametrize("splitter", [StubSplitter(), SentenceSplitter()], ids=["stub", "real"])
@given(text=TEXTS, options=OPTIONS, style=STYLES, title=st.sampled_from(["", "Title"]))
def test_any_text(
    splitter: StubSplitter | SentenceSplitter,
    text: str,
    options: PruneOptions,
    style: str,
    title: str,
) -> None:
    """Sentences and gaps give the text back; pruned text and spans follow from `kept` alone."""
    pruner = small_pruner(style, splitter)
    found = pruner.rerank_and_prune("red valve", [Passage(text, title=title)], options)
    (result,) = found.results
    check_result(text, result, options)


@given(TEXTS, STYLES)
def test_every_token_is_scored_once(text: str, style: str) -> None:
    """The windows' passage tokens, in order, are the text's tokens; none exceeds the window."""
    tokenizer = StubTokenizer(style)
    engine = make_engine(tokenizer=tokenizer, window_tokens=16)
    query = engine.prepare_query("red", PruneOptions())
    prepared = engine.prepare_passage(query, 0, Passage(text))
    parts = [window.input_ids[window.passage_tokens] for window in prepared.windows]
    expected = tokenizer.encode(text).ids if text.strip() else np.zeros(0, np.int64)
    assert np.concatenate([np.zeros(0, np.int64), *parts]).tolist() == expected.tolist()
    assert all(len(part) for part in parts)
    assert all(window.token_count <= 16 for window in prepared.windows)


@given(st.lists(TEXTS, min_size=1, max_size=5), OPTIONS, STYLES)
def test_alone_or_together(texts: list[str], options: PruneOptions, style: str) -> None:
    """A passage's result doesn't depend on the other passages of its call."""
    pruner = small_pruner(style)
    together = pruner.rerank_and_prune("red valve", texts, options)
    for result in together.results:
        alone = pruner.rerank_and_prune("red valve", [texts[result.index]], options)
        assert replace(result, index=0) == alone.results[0]


@given(TEXTS, OPTIONS, STYLES)
def test_results_come_back_as_given_sentences(text: str, options: PruneOptions, style: str) -> None:
    """A result's own sentences are valid input in its own unit and give the same result."""
    pruner = small_pruner(style)
    (first,) = pruner.rerank_and_prune("red", [text], options).results
    given = tuple(TextSpan(s.start_offset, s.end_offset) for s in first.sentences)
    (second,) = pruner.rerank_and_prune("red", [Passage(text, sentences=given)], options).results
    assert second == first


@given(
    st.lists(TEXTS, max_size=6),
    st.integers(0, 7),
    st.none() | st.floats(0, 1),
    st.sampled_from(list(ResultOrder)),
)
def test_ranking(texts: list[str], top_k: int, minimum: float | None, order: ResultOrder) -> None:
    """The simple way: sort pairs by falling logit and index, drop, cut, then order."""
    pruner = small_pruner("word")
    options: dict[str, Any] = {"top_k": top_k, "min_relevance_score": minimum, "order": order}
    found = pruner.rerank_and_prune("red valve", texts, PruneOptions(**options))
    every = pruner.rerank_and_prune("red valve", texts, PruneOptions(order=ResultOrder.INPUT))
    assert [r.index for r in every.results] == list(range(len(texts)))
    scored = [r for r in every.results if r.relevance_logit is not None]
    unscored = [r.index for r in every.results if r.relevance_logit is None]
    passing = [(-(r.relevance_logit or 0.0), r.index) for r in scored
               if minimum is None or (r.relevance_score or 0.0) >= minimum]  # fmt: skip
    expected = [index for _, index in sorted(passing)] + unscored
    expected = expected[:top_k] if top_k else expected
    expected = sorted(expected) if order == ResultOrder.INPUT else expected
    assert [r.index for r in found.results] == expected
    assert found.omitted_passage_count == len(texts) - len(expected)


@pytest.mark.parametrize("style", ["word", "leading_space", "marker"])
def test_blank_text_never_reaches_the_model(style: str) -> None:
    """Not even when a tokenizer makes tokens of white space."""
    scorer = FakeScorer()
    pruner = Pruner(make_engine(tokenizer=StubTokenizer(style), scorer=scorer))
    found = pruner.rerank_and_prune("red", ["", " ", "\n\u3000"])
    assert scorer.batches == []
    assert [r.window_count for r in found.results] == [0, 0, 0]
