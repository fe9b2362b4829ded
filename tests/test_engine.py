"""Prepare, run, assemble and rank on fakes: the semantics that must never drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes import HIT, MISS, FakeScorer, StubTokenizer, WordScorer, make_engine, make_info

from secateur.errors import InvalidRequestError, InvariantError
from secateur.model.assemble import NOT_FINITE, sigmoid
from secateur.model.engine import Engine, WindowOutput
from secateur.types import (
    KeepReason,
    KeepRule,
    OffsetUnit,
    Passage,
    PassageError,
    PrunedPassage,
    PruneOptions,
    ResultOrder,
    ScoreSource,
    TextSpan,
    WarningCode,
)


def answer(
    engine: Engine, passage: str | Passage, query: str = "red valve", **options: Any
) -> PrunedPassage:
    """One passage alone, each window in its own pass."""
    prepared_query = engine.prepare_query(query, PruneOptions(**options))
    passage = Passage(passage) if isinstance(passage, str) else passage
    prepared = engine.prepare_passage(prepared_query, 0, passage)
    outputs = [output for window in prepared.windows for output in engine.run([window])]
    return engine.assemble(prepared_query, prepared, outputs)


def pairs(spans: Any) -> list[tuple[int, int]]:
    return [(span.start_offset, span.end_offset) for span in spans]


def kept(result: PrunedPassage) -> list[bool]:
    return [sentence.kept for sentence in result.sentences]


def one_token_engine(word: str, style: str) -> Engine:
    tokenizer = StubTokenizer(style)
    return make_engine(tokenizer=tokenizer, scorer=WordScorer(tokenizer, {word: 1.0}))


# Tokens and offsets ------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["word", "leading_space", "marker"])
@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("No.  Yes.", "yes", [False, True]),
        ("No.  Yes.", "no", [True, False]),
        ("A.\n\nB.", "b", [False, True]),
        ("A.\n\nB.", "a", [True, False]),
        ("A.B. C.", "c", [False, True]),
        ("A.B. C.", "b", [True, False]),
    ],
)
def test_one_relevant_token_keeps_its_own_sentence(
    style: str, text: str, word: str, expected: list[bool]
) -> None:
    """F7: a token that begins with the space before it kept the sentence before."""
    assert kept(answer(one_token_engine(word, style), text)) == expected


def test_marker_tokens_are_not_counted() -> None:
    """F6: empty and white-space-only tokens would thin out a sentence's mean."""
    result = answer(one_token_engine("yes", "marker"), "No.  Yes.", include_tokens=True)
    assert [s.probability for s in result.sentences] == [0.0, 0.5]
    assert pairs(result.tokens) == [(0, 2), (2, 3), (5, 8), (8, 9)]


def test_a_character_of_two_tokens_counts_twice() -> None:
    """F6: byte fall-back gives both tokens the character's offsets; both are reported."""
    result = answer(one_token_engine("👍", "marker"), "👍 ok.", include_tokens=True)
    assert result.sentences[0].probability == 0.5
    assert pairs(result.tokens) == [(0, 1), (0, 1), (2, 4), (4, 5)]


def test_tokens_start_on_visible_text() -> None:
    """A token's characters are its own, not the space that its vocabulary writes into it."""
    engine = one_token_engine("yes", "leading_space")
    result = answer(engine, "No.  Yes.", include_tokens=True, threshold=0.5)
    assert pairs(result.tokens) == [(0, 2), (2, 3), (5, 8), (8, 9)]
    assert [t.probability for t in result.tokens] == [0.0, 0.0, 1.0, 0.0]
    assert [t.relevant for t in result.tokens] == [False, False, True, False]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (OffsetUnit.CODE_POINT, [(0, 5), (6, 13), (14, 16)]),
        (OffsetUnit.UTF8_BYTE, [(0, 8), (9, 18), (19, 25)]),
        (OffsetUnit.UTF16_CODE_UNIT, [(0, 6), (7, 14), (15, 17)]),
    ],
)
def test_offset_units(unit: OffsetUnit, expected: list[tuple[int, int]]) -> None:
    """F8: sentences, spans and tokens leave in the unit asked for; given ones come back equal."""
    text = "👍 ok. Café é. 終。"
    engine = make_engine()
    options: dict[str, Any] = {"offset_unit": unit, "threshold": 0.0, "include_tokens": True}
    result = answer(engine, text, **options)
    assert pairs(result.sentences) == expected
    assert pairs(result.kept_spans) == [(expected[0][0], expected[-1][1])]
    assert result.tokens[-1].end_offset == expected[-1][1]
    given = Passage(text, sentences=tuple(TextSpan(*pair) for pair in expected))
    assert answer(engine, given, **options) == result


def test_given_sentences_replace_the_splitter() -> None:
    """Results are reported for exactly the caller's sentences, gapless ones included."""
    passage = Passage("Red valve.Blue pump.", sentences=(TextSpan(0, 10), TextSpan(10, 20)))
    result = answer(make_engine(), passage)
    assert pairs(result.sentences) == [(0, 10), (10, 20)]
    assert kept(result) == [True, False]
    assert result.pruned_text == "Red valve."


# Pruned text ---------------------------------------------------------------------------------


def test_pruned_text_is_the_source_with_its_own_gaps() -> None:
    """Joined with one space, the text would show white space that the source lacks."""
    text = "\n Red one.  Blue two.\n\nRed three.\tRed four.   Pump five. \n"
    result = answer(make_engine(), text, query="red", include_sentence_text=True)
    assert kept(result) == [True, False, True, True, False]
    assert result.pruned_text == "Red one.  Red three.\tRed four."
    assert pairs(result.kept_spans) == [(2, 10), (23, 43)]
    assert text[23:43] == "Red three.\tRed four."
    assert result.compression_rate == 1 - 30 / 58
    assert [s.text for s in result.sentences] == [
        text[start:end] for start, end in pairs(result.sentences)
    ]


def test_sentence_text_and_tokens_only_when_asked() -> None:
    """They would double the answer's size."""
    result = answer(make_engine(), "Red valve.")
    assert result.tokens == ()
    assert result.sentences[0].text == ""


def test_a_pruned_away_passage_keeps_its_score() -> None:
    """Dropping all sentences is no reason to lose the ranking."""
    result = answer(make_engine(), "Blue pump. Red lid.", threshold=0.9)
    assert result.all_pruned
    assert result.pruned_text == ""
    assert result.kept_spans == ()
    assert result.compression_rate == 1.0
    assert result.relevance_logit == 0.0
    assert result.relevance_score == 0.5


def test_reported_numbers() -> None:
    """`probability` is the mean whatever the rule; `vote_share` is the share above t."""
    mean = float(np.float32(HIT)) / 3 + 2 * float(np.float32(MISS)) / 3
    for rule in (KeepRule.MEAN_PROBABILITY, KeepRule.TOKEN_VOTE, KeepRule.MAJORITY):
        result = answer(make_engine(), "Red pump.", query="red", keep_rule=rule)
        assert result.sentences[0].probability == pytest.approx(mean, abs=1e-12)
        assert result.sentences[0].vote_share == 1 / 3
        assert result.sentences[0].kept == (rule != KeepRule.MAJORITY)


# Long passages -------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 37, 98, 99, 100, 199])
def test_the_answer_is_found_wherever_it_stands(position: int) -> None:
    """F10: truncation at the window's end lost the tail of long passages silently."""
    sentences = ["The hall is quiet today."] * 200
    sentences[position] = "The code is 7781."
    result = answer(make_engine(), " ".join(sentences), query="code 7781", threshold=0.2)
    assert result.window_count > 20
    assert np.flatnonzero(kept(result)).tolist() == [position]
    assert result.relevance_logit == 4.0
    assert result.unscored_sentence_count == 0
    assert result.pruned_text == "The code is 7781."


def test_a_sentence_on_the_seam_is_not_cut() -> None:
    """The sentence that does not fit any more goes whole into the next window."""
    engine = make_engine(window_tokens=16)  # 11 passage tokens beside a query of two
    query = engine.prepare_query("red valve", PruneOptions())
    prepared = engine.prepare_passage(query, 0, Passage("a b c d e f. The red valve is shut. g."))
    sizes = [window.passage_token_count for window in prepared.windows]
    assert sizes == [7, 8]


def test_a_sentence_longer_than_a_window_is_pooled_over_its_pieces() -> None:
    """Scored in pieces, each token once: mean and share are those of all its tokens."""
    engine = make_engine(window_tokens=16)
    words = ["pump"] * 30
    words[3] = words[17] = words[29] = "red"
    result = answer(engine, " ".join(words), query="red", include_tokens=True)
    assert result.window_count == 3
    assert len(result.tokens) == 30
    assert result.sentences[0].vote_share == 0.1
    assert result.sentences[0].probability == pytest.approx((3 * HIT + 27 * MISS) / 30, abs=1e-6)


def test_the_title_is_context_only() -> None:
    """It is in every window, but never in sentences, spans, tokens or text."""
    engine = make_engine(window_tokens=24)
    query = engine.prepare_query("red valve", PruneOptions())
    passage = Passage("Shut the lid now. " * 10, title="Red valve")
    prepared = engine.prepare_passage(query, 0, passage)
    bare = engine.prepare_passage(query, 0, Passage(passage.text))
    assert len(prepared.windows) >= len(bare.windows) > 1
    title = engine.prepare_query("Red valve", PruneOptions()).token_ids.tolist()
    for window in prepared.windows:
        assert window.input_ids[4:6].tolist() == title
        assert window.passage_tokens.start == 6
        assert window.token_count <= 24
    result = answer(engine, passage, include_tokens=True)
    assert result.pruned_text == ""
    assert len(result.tokens) == 50


def test_long_titles_are_refused_together() -> None:
    """All of them at once, each with both numbers."""
    engine = make_engine(window_tokens=64)  # title at most 15 tokens
    query = engine.prepare_query("red", PruneOptions())
    passages = [
        Passage("Ok.", title="word " * 16),
        Passage("Ok.", title="word " * 15),
        Passage("Ok.", title="word " * 20),
    ]
    with pytest.raises(InvalidRequestError) as caught:
        engine.prepare_passages(query, passages)
    assert [(v.field, v.description) for v in caught.value.violations] == [
        ("passages[0].title", "has 16 tokens, the limit of this model is 15"),
        ("passages[2].title", "has 20 tokens, the limit of this model is 15"),
    ]


def test_long_queries_are_refused_or_cut() -> None:
    """A query that fills the window leaves the passage no token."""
    engine = make_engine()
    with pytest.raises(InvalidRequestError, match=r"query: has 31 tokens, .* is 30"):
        engine.prepare_query("red " * 31, PruneOptions())
    assert not engine.prepare_query("red " * 30, PruneOptions(truncate_query=True)).truncated
    query = engine.prepare_query("red " * 31, PruneOptions(truncate_query=True))
    assert query.truncated
    assert len(query.token_ids) == 30


def test_a_query_without_tokens_is_refused() -> None:
    """Visible, yet nothing that the tokenizer knows: the model would see an empty query."""
    with pytest.raises(InvalidRequestError, match="query: the model's tokenizer finds no token"):
        make_engine().prepare_query("\u200b", PruneOptions())


# Blank and odd input -------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  \n", "\u3000"])
def test_blank_passages_need_no_model(text: str) -> None:
    """F13: no sentences, no score, nothing pruned away, and no forward pass."""
    scorer = FakeScorer()
    result = answer(make_engine(scorer=scorer), Passage(text, id="b", title="Red"))
    assert scorer.batches == []
    assert result == PrunedPassage(
        index=0,
        id="b",
        relevance_score=None,
        relevance_logit=None,
        pruned_text="",
        sentences=(),
        kept_spans=(),
        compression_rate=0.0,
        all_pruned=False,
    )


@pytest.mark.parametrize("text", ["...", "🙂", "Red valve."])
def test_odd_passages_look_like_all_others(text: str) -> None:
    """F13: one punctuation mark or emoji is scored like any sentence."""
    result = answer(make_engine(), text)
    assert pairs(result.sentences) == [(0, len(text))]
    assert result.sentences[0].probability is not None
    assert result.relevance_score is not None
    assert result.window_count == 1


def test_a_sentence_without_tokens_is_unscored_and_kept() -> None:
    """F6: `None` is not 0.0; what was not scored is kept, counted and marked."""
    result = answer(make_engine(), "Blue pump. \u200b. Red lid.".replace("\u200b.", "\u200b"))
    assert pairs(result.sentences) == [(0, 10), (11, 21)]  # the zero-width space is text
    passage = Passage(
        "Pump. \u200b Red lid.", sentences=(TextSpan(0, 5), TextSpan(6, 7), TextSpan(8, 16))
    )
    result = answer(make_engine(), passage)
    unscored = result.sentences[1]
    assert (unscored.probability, unscored.vote_share) == (None, None)
    assert unscored.kept
    assert unscored.reason is KeepReason.UNSCORED
    assert result.unscored_sentence_count == 1
    assert result.pruned_text == "\u200b Red lid."


def test_a_passage_without_tokens_is_kept_without_a_score() -> None:
    """There is no model input for it; it comes last, but its text is not lost."""
    scorer = FakeScorer()
    result = answer(make_engine(scorer=scorer), "\u200b")
    assert scorer.batches == []
    assert result.relevance_score is None
    assert result.pruned_text == "\u200b"
    assert not result.all_pruned
    assert result.unscored_sentence_count == 1


def test_coarse_splits_are_marked() -> None:
    """The caller learns that a bounded fall-back cut the sentences."""

    class Coarse:
        languages = ("en",)

        def split(self, text: str, language: str = "") -> Any:
            return type("Split", (), {"spans": ((0, len(text)),), "coarse": True})()

    assert answer(make_engine(splitter=Coarse()), "Red.").coarse_sentences


def test_protected_sentences_are_kept() -> None:
    """With the reason, so that the caller can tell them from relevant ones."""
    result = answer(
        make_engine(), "Pump. Part 7-b. Lid.", query="x", protected_patterns=(r"\d-\w",)
    )
    assert [s.reason for s in result.sentences] == [
        KeepReason.BELOW_THRESHOLD,
        KeepReason.PROTECTED,
        KeepReason.BELOW_THRESHOLD,
    ]
    assert result.pruned_text == "Part 7-b."


def test_reasons_are_enum_members() -> None:
    """NumPy turns members of a string enum into plain text when it fills an array."""
    result = answer(make_engine(), "Red. Pump.")
    assert all(isinstance(s.reason, KeepReason) for s in result.sentences)


# Scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logit", "expected"),
    [(-8, 0.000335), (0, 0.5), (6, 0.9975), (-800, 0.0), (800, 1.0), (3.4e38, 1.0)],
)
def test_sigmoid(logit: float, expected: float) -> None:
    """F15: exp(800) overflows; NumPy's warning is an error here."""
    with np.errstate(over="raise"):
        assert sigmoid(logit) == pytest.approx(expected, abs=5e-5)


def results(*logits: float | None, **changes: Any) -> list[PrunedPassage]:
    base: dict[str, Any] = {
        "pruned_text": "",
        "sentences": (),
        "kept_spans": (),
        "compression_rate": 0.0,
        "all_pruned": False,
    }
    return [
        PrunedPassage(
            index=i,
            id="same",
            relevance_logit=logit,
            relevance_score=None if logit is None else sigmoid(logit),
            **(base | changes),
        )
        for i, logit in enumerate(logits)
    ]


def ranked(given: list[PrunedPassage], **options: Any) -> tuple[list[int], int]:
    engine = make_engine()
    query = engine.prepare_query("red", PruneOptions(**options))
    ordered, omitted = engine.rank(query, given)
    return [result.index for result in ordered], omitted


def test_order_is_by_logit_and_stable() -> None:
    """F16: float32's sigmoid is 1.0 from logit 18; by score the order of these would be lost."""
    given = results(18.5, None, 25.0, 20.0, None, 25.0)
    assert {r.relevance_score for r in given} == {1.0, None}
    assert ranked(given) == ([2, 5, 3, 0, 1, 4], 0)
    assert ranked(given[::-1]) == ([2, 5, 3, 0, 1, 4], 0)


@pytest.mark.parametrize(("top_k", "count"), [(0, 3), (1, 1), (3, 3), (10, 3), (2**31 - 1, 3)])
def test_top_k(top_k: int, count: int) -> None:
    """F14: 0 is all, more than there are is all."""
    assert ranked(results(0, 2, 1), top_k=top_k) == ([1, 2, 0][:count], 3 - count)


def test_cuts_come_before_the_order_of_input() -> None:
    """Input order shows the best k in request order, not the first k."""
    assert ranked(results(0, 2, 1), top_k=2, order=ResultOrder.INPUT) == ([1, 2], 1)


def test_min_relevance_score() -> None:
    """Drops lower ones, keeps equal ones; a failed passage has no score and must not vanish."""
    given = results(-1.0, 0.0, None, 3.0)
    assert ranked(given, min_relevance_score=0.5) == ([3, 1, 2], 1)
    assert ranked(given, min_relevance_score=0.5, top_k=1) == ([3], 3)
    assert ranked(given, min_relevance_score=0.0) == ([3, 1, 0, 2], 0)
    assert ranked(given, min_relevance_score=1.0) == ([2], 3)


def test_the_score_is_the_best_windows() -> None:
    """One relevant page makes a long passage relevant."""
    tokenizer = StubTokenizer()
    scorer = WordScorer(tokenizer, {}, logits=(-3.0, 2.0, -8.0))
    result = answer(make_engine(tokenizer=tokenizer, scorer=scorer, window_tokens=16), "a. " * 15)
    assert result.window_count == 3
    assert result.relevance_logit == 2.0


@pytest.mark.parametrize(
    ("logit", "probability"),
    [
        (float("nan"), 0.5),
        (float("inf"), 0.5),
        (float("-inf"), 0.5),
        (1.0, float("nan")),
        (1.0, float("inf")),
    ],
)
def test_not_finite_outputs_fail_their_passage_alone(logit: float, probability: float) -> None:
    """NaN sorts anywhere and compares false: it must become an error before either."""
    tokenizer = StubTokenizer()
    scorer = WordScorer(tokenizer, {"red": probability}, logits=(logit,))
    result = answer(make_engine(tokenizer=tokenizer, scorer=scorer), Passage("Red.", id="r"))
    assert result.error == NOT_FINITE
    assert (result.id, result.relevance_score, result.relevance_logit) == ("r", None, None)
    assert result.sentences == ()


def test_not_finite_in_any_window() -> None:
    """A maximum over windows can hide a NaN, and an infinite one that is not the highest."""
    tokenizer = StubTokenizer()
    for bad in (float("nan"), float("-inf")):
        scorer = WordScorer(tokenizer, {}, logits=(1.0, bad, 2.0))
        engine = make_engine(tokenizer=tokenizer, scorer=scorer, window_tokens=16)
        assert answer(engine, "a. " * 15).error == NOT_FINITE


def test_models_without_passage_head_score_by_their_best_sentence() -> None:
    """Their score is a probability; there is no raw logit to report."""
    engine = make_engine(score_source=ScoreSource.BEST_SENTENCE)
    first = answer(engine, "Pump. Red.", query="red")
    assert first.relevance_logit is None
    assert first.relevance_score == first.sentences[1].probability
    assert answer(engine, "\u200b", query="red").relevance_score is None
    given = [
        PrunedPassage(i, "", score, None, "", (), (), 0.0, False)
        for i, score in enumerate([0.2, None, 0.9, 0.2])
    ]
    assert ranked(given) == ([2, 0, 3, 1], 0)


# Defaults, counts and broken invariants ------------------------------------------------------


def test_unset_options_take_the_models_defaults() -> None:
    """F17: and both are echoed, so the caller knows what applied."""
    engine = make_engine(default_threshold=0.3, default_keep_rule=KeepRule.MAJORITY)
    query = engine.prepare_query("red", PruneOptions())
    assert (query.threshold, query.keep_rule) == (0.3, KeepRule.MAJORITY)
    query = engine.prepare_query("red", PruneOptions(threshold=0.0, keep_rule=KeepRule.TOKEN_VOTE))
    assert (query.threshold, query.keep_rule) == (0.0, KeepRule.TOKEN_VOTE)


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (None, [True, False, False]),
        (0.0, [True, True, True]),
        (0.1, [True, False, False]),
        (1.0, [False, False, False]),
    ],
)
@pytest.mark.parametrize("rule", make_info().keep_rules)
def test_thresholds(threshold: float | None, expected: list[bool], rule: KeepRule) -> None:
    """F17: 0 keeps every scored sentence although p is exactly 0; 1 keeps none."""
    tokenizer = StubTokenizer()
    engine = make_engine(tokenizer=tokenizer, scorer=WordScorer(tokenizer, {"red": 1.0, "é": 1.0}))
    result = answer(engine, "Red é. Pump. Lid.", threshold=threshold, keep_rule=rule)
    assert kept(result) == expected


def test_usage() -> None:
    """Input tokens are what the model saw; kept tokens are those of kept sentences."""
    engine = make_engine()
    query = engine.prepare_query("red", PruneOptions())
    prepared = engine.prepare_passages(
        query, [Passage("Red one. Pump two."), Passage(""), Passage("Lid.", title="Red")]
    )
    found = [engine.assemble(query, passage, engine.run(passage.windows)) for passage in prepared]
    usage = engine.usage(query, prepared, found)
    assert usage.query_tokens == 1
    assert usage.input_tokens == (1 + 3 + 6) + (1 + 3 + 1 + 2)
    assert usage.kept_tokens == 3
    found[0] = engine.failed(prepared[0], prepared[0].passage, PassageError("INTERNAL", "x"))
    assert engine.usage(query, prepared, found).kept_tokens == 0


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("終 終 a b c d e f g h", False),
        ("終 終 終 a b c d e f g h", True),
        ("終", True),
        ("", False),
    ],
)
def test_unsupported_script(text: str, warned: bool) -> None:
    """More than 20 % unknown tokens: the scores mean little, the caller should know."""
    engine = make_engine(tokenizer=StubTokenizer(unknown=["終"]))
    query = engine.prepare_query("red", PruneOptions())
    prepared = engine.prepare_passages(query, [Passage("Red."), Passage(text)])
    expected = (WarningCode.UNSUPPORTED_SCRIPT,) if warned else ()
    assert engine.warnings(prepared) == expected


def test_failed_by_index() -> None:
    """A passage that could not be prepared has a result too."""
    result = make_engine().failed(7, Passage("a", id="x"), PassageError("INTERNAL", "No."))
    assert (result.index, result.id, result.error) == (7, "x", PassageError("INTERNAL", "No."))


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [WindowOutput(1.0, None)],
        [WindowOutput(1.0, np.zeros(3, np.float32))],
        [WindowOutput(None, np.zeros(2, np.float32))],
        [WindowOutput(1.0, np.zeros(2, np.float32))] * 2,
    ],
)
def test_outputs_that_do_not_fit_are_a_bug(outputs: list[WindowOutput]) -> None:
    """Probabilities of another window's tokens would prune the wrong text."""
    engine = make_engine()
    query = engine.prepare_query("red", PruneOptions())
    prepared = engine.prepare_passage(query, 0, Passage("Red."))
    with pytest.raises(InvariantError, match="this is a bug"):
        engine.assemble(query, prepared, outputs)


def test_a_scorer_that_loses_a_window_is_a_bug() -> None:
    """Zipped silently, later passages would get their neighbours' scores."""

    class Losing(FakeScorer):
        def run(self, windows: Any) -> Any:
            return super().run(windows)[:-1]

    engine = make_engine(scorer=Losing())
    query = engine.prepare_query("red", PruneOptions())
    with pytest.raises(InvariantError, match="lost a window"):
        engine.run(engine.prepare_passage(query, 0, Passage("Red.")).windows)
