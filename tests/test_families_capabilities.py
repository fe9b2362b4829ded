"""What each family can do is said, and what it cannot is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeScorer, StubTokenizer, WordScorer, make_engine
from families_originals import KINDS, build, save, state, write
from one_thread import one_thread  # noqa: F401 - a fixture

from secateur import UnsupportedByModelError
from secateur.model.adapter import Adapter
from secateur.model.assemble import NOT_FINITE
from secateur.model.checkpoints.families import FAMILIES, provence_query
from secateur.model.engine import Engine
from secateur.model.pruner import Pruner
from secateur.types import FragmentFormat, KeepReason, KeepRule, Passage, PruneOptions, ScoreSource

RANKING_ONLY = PruneOptions(threshold=0)
TEXTS = ["The red valve opens. Lunch was late.", "The hall is quiet.", "  "]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Pruner:
    folder = tmp_path_factory.mktemp("plain")
    write("plain-bert", folder)
    return Pruner.load(folder)


@pytest.fixture(scope="module")
def opensearch(tmp_path_factory: pytest.TempPathFactory) -> Pruner:
    folder = tmp_path_factory.mktemp("opensearch")
    write("opensearch_highlighter", folder)
    return Pruner.load(folder)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (PruneOptions(), "options.threshold"),
        (PruneOptions(threshold=0.1), "options.threshold"),
        (PruneOptions(keep_rule=KeepRule.MAJORITY), "options.keep_rule"),
        (PruneOptions(threshold=0, keep_rule=KeepRule.MAJORITY), "options.keep_rule"),
        (PruneOptions(threshold=0, include_tokens=True), "options.include_tokens"),
    ],
)
def test_plain_rerankers_refuse_to_prune(plain: Pruner, options: PruneOptions, field: str) -> None:
    """No silent fall-back: whoever does not say that all is to be kept, gets no answer."""
    with pytest.raises(UnsupportedByModelError, match="scores whole passages only and") as caught:
        plain.rerank_and_prune("valve", TEXTS, options)
    assert caught.value.field == field
    with pytest.raises(UnsupportedByModelError):
        plain.highlight("valve", TEXTS, options)


def test_plain_rerankers_rank(plain: Pruner) -> None:
    """With threshold 0 every sentence is kept, and says that it was not scored."""
    found = plain.rerank_and_prune("valve", TEXTS, RANKING_ONLY)
    assert (found.applied_threshold, found.applied_keep_rule) == (0.0, None)
    assert found.score_source is ScoreSource.PASSAGE_HEAD
    assert [r.relevance_logit is None for r in found.results] == [False, False, True]
    assert [r.index for r in found.results][2] == 2
    for result in found.results[:2]:
        assert result.pruned_text == TEXTS[result.index]
        assert result.unscored_sentence_count == len(result.sentences) > 0
        assert {s.reason for s in result.sentences} == {KeepReason.UNSCORED}
        assert all(s.probability is None and s.vote_share is None for s in result.sentences)
    shown = plain.highlight(
        "valve", TEXTS, RANKING_ONLY, fragment_format=FragmentFormat.HTML_ESCAPED
    )
    assert [r.relevance_logit for r in shown.results] == [r.relevance_logit for r in found.results]


def test_ranking_options_of_a_plain_reranker(plain: Pruner) -> None:
    options = replace(RANKING_ONLY, top_k=1, min_sentences=5, neighbor_sentences=1)
    found = plain.rerank_and_prune("valve", TEXTS, options)
    assert len(found.results) == 1
    assert found.omitted_passage_count == 2


def test_opensearch_ranks_by_the_best_sentence(opensearch: Pruner) -> None:
    """There is no passage score: that the best sentence stands in is named in the answer."""
    found = opensearch.rerank_and_prune("valve", TEXTS, PruneOptions(include_tokens=True))
    assert found.score_source is ScoreSource.BEST_SENTENCE
    assert found.applied_keep_rule is KeepRule.SENTENCE_HEAD
    scored = found.results[:2]
    for result in scored:
        assert result.relevance_logit is None
        best = max(s.probability or 0.0 for s in result.sentences)
        assert result.relevance_score == best
        assert all(s.vote_share is None for s in result.sentences)
        by_token = {token.probability for token in result.tokens}
        assert by_token == {s.probability for s in result.sentences}
    scores = [result.relevance_score or 0.0 for result in scored]
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(UnsupportedByModelError, match="it supports sentence_head"):
        opensearch.rerank_and_prune(
            "valve", TEXTS, PruneOptions(keep_rule=KeepRule.MEAN_PROBABILITY)
        )


@pytest.mark.parametrize(
    ("probabilities", "kept"),
    [((0.5, 0.49), [0]), ((0.2, 0.3), [1]), ((0.05, 0.01), [0]), ((0.0499, 0.01), [])],
)
def test_opensearch_falls_back_to_the_best_sentence(
    probabilities: tuple[float, float], kept: list[int]
) -> None:
    """Keep >= 0.5; if none passes, the best one when it reaches 0.05."""
    tokenizer = StubTokenizer()
    first, second = probabilities
    scorer = WordScorer(tokenizer, {"one": first, "two": second, ".": 0.0})
    family = FAMILIES["opensearch_highlighter"]
    engine = make_engine(
        tokenizer=tokenizer,
        scorer=scorer,
        keep_rules=family.keep_rules,
        default_keep_rule=family.default_keep_rule,
        default_threshold=family.default_threshold,
        score_source=ScoreSource.BEST_SENTENCE,
    )
    spans = PruneOptions()
    found = Pruner(engine).rerank_and_prune("red", ["one one two two"], spans)
    assert len(found.results[0].sentences) == 1
    found = Pruner(engine).rerank_and_prune("red", ["one。two"], spans)
    scorer.probabilities["。"] = first
    found = Pruner(engine).rerank_and_prune("red", ["one。two"], spans)
    result = found.results[0]
    assert [i for i, s in enumerate(result.sentences) if s.kept] == kept
    assert result.relevance_score == pytest.approx(max(probabilities))


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("What, is THE  Code?!", "what is the code"),
        (" U.S.A. don't\tstop\n", "usa dont stop"),
        ("「弁」は？ É", "「弁」は？ é"),
        ("...", ""),
    ],
)
def test_provences_query(query: str, seen: str) -> None:
    """Lower case, ASCII punctuation stripped, white space squeezed; nothing else."""
    assert provence_query(query) == seen


def test_limits_count_the_query_that_the_model_sees() -> None:
    """A query whose punctuation alone is over the limit is within it; one of nothing else is not
    answerable.
    """
    engine = Engine(
        StubTokenizer(),
        FakeScorer(),
        make_engine().splitter,
        make_engine().info,
        Adapter(normalize_query=provence_query),
    )
    pruner = Pruner(engine)
    query = "Red " + "! " * 40
    found = pruner.rerank_and_prune(query, ["Red valve."])
    assert (found.usage.query_tokens, found.query_truncated) == (1, False)
    assert engine.prepare_query(query, PruneOptions()).text == query
    with pytest.raises(ValueError, match="query: the model's tokenizer finds no token in it"):
        pruner.rerank_and_prune("?!", ["Red valve."])
    with pytest.raises(ValueError, match="query: has 40 tokens, the limit of this model is 30"):
        pruner.rerank_and_prune("Red " * 40, ["Red valve."])


@pytest.mark.parametrize("mean_of_pieces", [False, True])
def test_a_sentence_in_pieces(mean_of_pieces: bool) -> None:
    """Open Provence takes the mean of the pieces' means, the others pool all tokens."""
    tokenizer = StubTokenizer()
    scorer = WordScorer(tokenizer, {"high": 1.0, "low": 0.0})
    info = make_engine(window_tokens=16, max_query_tokens=6).info
    engine = Engine(
        tokenizer,
        scorer,
        make_engine().splitter,
        info,
        Adapter(mean_of_pieces=mean_of_pieces),
    )
    # 2 tokens beside a sentence of 25 in windows of 12: pieces of 8, 8 and 9.
    text = "low。 " + "high " * 8 + "low " * 17
    options = PruneOptions(threshold=0.3)
    result = Pruner(engine).rerank_and_prune("red", [text], options).results[0]
    assert result.window_count == 3
    pieces = (1.0 + 0.0 + 0.0) / 3
    tokens = 8 / 25
    assert result.sentences[0].probability == 0.0
    assert result.sentences[1].probability == pytest.approx(pieces if mean_of_pieces else tokens)
    assert result.sentences[1].vote_share == pytest.approx(tokens)


@pytest.mark.parametrize(
    "kind", ["provence", "open_provence", "opensearch_highlighter", "plain-bert"]
)
def test_passages_without_finite_logits_fail_alone_and_are_counted(
    tmp_path: Path, kind: str
) -> None:
    """A broken embedding row: whoever holds that token fails, the rest is ranked."""
    model, tokenizer, config = build(KINDS[kind])
    tensors: dict[str, Any] = state(model)
    name = next(
        key for key in tensors if key.endswith(("word_embeddings.weight", "tok_embeddings.weight"))
    )
    token = tokenizer.encode("7", add_special_tokens=False).ids[-1]
    tensors[name] = tensors[name].clone()
    tensors[name][token] = float("nan")
    pruner = Pruner.load(save(tmp_path, tensors, tokenizer, config))
    options = PruneOptions(threshold=None if pruner.info.can_prune else 0)
    texts = ["The red valve.", "Code 7 is it. Lunch was late.", "The hall."]
    assert pruner.engine.not_finite_count == 0
    found = pruner.rerank_and_prune("valve", texts, options)
    assert [result.index for result in found.results][2] == 1
    assert [result.error for result in found.results] == [None, None, NOT_FINITE]
    assert found.results[2].relevance_score is None
    assert found.results[2].sentences == ()
    assert pruner.engine.not_finite_count == 1
    pruner.rerank_and_prune("valve", texts[1:2] * 2, options)
    assert pruner.engine.not_finite_count == 3


def test_infinite_token_logits_fail_the_passage() -> None:
    """Outputs that are NaN or infinite are never compared with anything."""
    tokenizer = StubTokenizer()
    broken: dict[str, Any]
    for broken in (
        {"probabilities": {"valve": np.nan}},
        {"logits": (np.inf,), "probabilities": {}},
    ):
        scorer = WordScorer(tokenizer, **broken)
        engine = make_engine(tokenizer=tokenizer, scorer=scorer)
        (result,) = Pruner(engine).rerank_and_prune("red", ["Red valve."]).results
        assert result.error == NOT_FINITE
        assert engine.not_finite_count == 1


@pytest.mark.parametrize("kind", ["provence", "xprovence", "open_provence", "plain-modernbert"])
def test_bfloat16_is_close_and_its_heads_are_float32(tmp_path: Path, kind: str) -> None:
    """Positions stay exact too: ModernBERT's rotary frequencies must not be rounded."""
    write(kind, tmp_path)
    exact, rough = Pruner.load(tmp_path), Pruner.load(tmp_path, dtype="bfloat16")
    assert rough.info.dtype == "bfloat16"
    model = rough.engine._scorer._model  # type: ignore[attr-defined]
    for name, parameter in model.named_parameters():
        encoder = name.startswith("encoder.")
        assert parameter.dtype == (torch.bfloat16 if encoder else torch.float32), name
    assert not [n for n, b in model.named_buffers() if b.dtype == torch.bfloat16]
    options = PruneOptions(threshold=None if exact.info.can_prune else 0)
    passages = [Passage("The red valve opens. Lunch was late.")]
    a, b = (p.rerank_and_prune("valve", passages, options).results[0] for p in (exact, rough))
    assert b.relevance_score == pytest.approx(a.relevance_score, abs=0.05)


def test_a_tokenizer_file_without_a_pair(tmp_path: Path) -> None:
    """Then the encoder's stock pair is taken: two separators for XLM-R."""
    model, tokenizer, config = build(KINDS["plain-xlm-roberta"])
    answers = []
    for name in ("with", "without"):
        pruner = Pruner.load(save(tmp_path / name, state(model), tokenizer, config))
        answers.append(pruner.rerank_and_prune("valve", TEXTS, RANKING_ONLY).results)
        tokenizer.post_processor = None
    assert answers[0] == answers[1]


def test_float16_is_refused(tmp_path: Path) -> None:
    write("provence", tmp_path)
    with pytest.raises(ValueError, match="'float16' is not served"):
        Pruner.load(tmp_path, dtype="float16")
