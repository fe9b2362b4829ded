"""The in-process engine as users call it, on fakes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from fakes import FakeScorer, StubTokenizer, WordScorer, make_engine

from secateur.errors import InvalidRequestError, NotImplementedOptionError
from secateur.model.pruner import OUT_OF_MEMORY, Pruner
from secateur.types import (
    FragmentFormat,
    KeepRule,
    Limits,
    Passage,
    PruneOptions,
    ScoreSource,
)

PASSAGES = [
    Passage("The pump is blue. Lunch was late.", id="a"),
    Passage("The red valve is shut. Lunch was late.", id="b"),
    Passage("  ", id="c"),
    Passage("Red paint. Blue paint.", id="b"),
]


def pruner(scorer: Any = None, **changes: Any) -> Pruner:
    return Pruner(make_engine(scorer=scorer, **changes))


def test_a_whole_answer() -> None:
    """Ranking, defaults, model and counts; repeated ids are told apart by their index."""
    found = pruner().rerank_and_prune("red valve", PASSAGES)
    assert [(r.index, r.id, r.relevance_logit) for r in found.results] == [
        (1, "b", 4.0),
        (3, "b", 0.0),
        (0, "a", -4.0),
        (2, "c", None),
    ]
    assert [r.pruned_text for r in found.results] == [
        "The red valve is shut.",
        "Red paint.",
        "",
        "",
    ]
    assert [r.all_pruned for r in found.results] == [False, False, True, False]
    assert found.applied_threshold == 0.1
    assert found.applied_keep_rule is KeepRule.MEAN_PROBABILITY
    assert found.score_source is ScoreSource.PASSAGE_HEAD
    assert (found.model.id, found.model.revision, found.model.dtype) == ("fake", "1", "float32")
    assert found.usage.query_tokens == 2
    assert found.usage.kept_tokens == 9
    assert (found.omitted_passage_count, found.query_truncated, found.warnings) == (0, False, ())
    timing = found.timing
    assert timing.queue_ms == 0
    assert timing.total_ms >= timing.tokenize_ms + timing.inference_ms > 0


def test_no_passages() -> None:
    """F13: OK and empty, with the shape of every other answer; the query is still checked."""
    found = pruner().rerank_and_prune("red", [])
    assert found.results == ()
    assert found.applied_threshold == 0.1
    assert found.usage.input_tokens == 0
    with pytest.raises(InvalidRequestError, match="query: is blank"):
        pruner().rerank_and_prune("\u3000\u200b", [])


def test_blank_passages_among_others() -> None:
    """F13: `["", "  \\n", "Red valve."]` has three results, two without a score, at the end."""
    found = pruner().rerank_and_prune("red", ["", "  \n", "Red valve."])
    assert [r.index for r in found.results] == [2, 0, 1]
    assert [r.relevance_score is None for r in found.results] == [False, True, True]
    assert not any(r.all_pruned for r in found.results)


def test_text_stands_for_a_passage() -> None:
    """A list of strings is the shortest call; one string is a mistake."""
    assert pruner().rerank_and_prune("red", ["Red."]).results[0].pruned_text == "Red."
    with pytest.raises(InvalidRequestError, match="not one text"):
        pruner().rerank_and_prune("red", "Red.")
    with pytest.raises(InvalidRequestError, match=r"passages\[1\]: must be a Passage"):
        pruner().rerank_and_prune("red", ["Red.", None])  # type: ignore[list-item]


def test_scores_are_absolute() -> None:
    """F15: a min-max over the batch gives 1.0 to the best of any batch, and to one alone."""
    tokenizer = StubTokenizer()
    expected = [0.000335, 0.5, 0.9975]
    scorer = WordScorer(tokenizer, {}, logits=(-8, 0, 6))
    found = Pruner(make_engine(tokenizer=tokenizer, scorer=scorer)).rerank_and_prune(
        "red", ["A.", "B.", "C."]
    )
    assert [r.index for r in found.results] == [2, 1, 0]
    scores = [r.relevance_score for r in found.results]
    assert scores == pytest.approx(expected[::-1], abs=5e-5)
    scorer = WordScorer(tokenizer, {}, logits=(6,))
    alone = Pruner(make_engine(tokenizer=tokenizer, scorer=scorer)).rerank_and_prune("red", ["C."])
    assert alone.results[0].relevance_score == scores[0]


@pytest.mark.parametrize(("top_k", "count"), [(0, 3), (1, 1), (3, 3), (10, 3), (2**31 - 1, 3)])
def test_top_k(top_k: int, count: int) -> None:
    """F14: and -1 is refused."""
    found = pruner().rerank_and_prune("red", ["A.", "B.", "C."], PruneOptions(top_k=top_k))
    assert len(found.results) == count
    assert found.omitted_passage_count == 3 - count
    with pytest.raises(InvalidRequestError, match="top_k"):
        pruner().rerank_and_prune("red", ["A."], PruneOptions(top_k=-1))


def test_alone_or_together() -> None:
    """F12: passages of 3, 40 and 300 tokens, alone, together, reversed, beside strangers."""
    texts = [("red " + "pump " * (n - 3) + "end. ").strip() for n in (3, 40, 300)]
    engine = pruner()

    def by_text(given: list[str]) -> dict[str, Any]:
        found = engine.rerank_and_prune("red", given, PruneOptions(include_tokens=True))
        return {given[r.index]: replace(r, index=0) for r in found.results}

    alone = {text: by_text([text])[text] for text in texts}
    for together in (texts, texts[::-1], ["Stranger.", *texts, "Red stranger. " * 30]):
        found = by_text(together)
        assert {text: found[text] for text in texts} == alone


def test_batches_stay_within_the_budget() -> None:
    """Windows of all passages share batches; an oversized one goes alone (F11)."""
    scorer = FakeScorer()
    small = Pruner(make_engine(scorer=scorer), max_batch_tokens=40, max_batch_windows=3)
    found = small.rerank_and_prune("red", ["Red."] * 7 + ["red " * 50])
    assert len(found.results) == 8
    assert scorer.batches == [[54], [6, 6, 6], [6, 6, 6], [6]]


@pytest.mark.parametrize(("device", "batches"), [("cpu", [64, 6]), ("cuda:0", [70])])
def test_the_budget_suits_the_device(device: str, batches: list[int]) -> None:
    scorer = FakeScorer()
    pruner = Pruner(make_engine(scorer=scorer, device=device))
    pruner.rerank_and_prune("red", ["Red."] * 70)
    assert [len(batch) for batch in scorer.batches] == batches


def test_one_passage_too_large_for_memory() -> None:
    """F11: it fails alone, named by its index; the others have their results."""

    def out_of_memory(windows: Any) -> None:
        if max(window.token_count for window in windows) > 30:
            raise MemoryError

    found = pruner(FakeScorer(fail=out_of_memory)).rerank_and_prune(
        "red", ["Red one.", "red " * 40, "Red two."]
    )
    assert [(r.index, r.error) for r in found.results] == [
        (0, None),
        (2, None),
        (1, OUT_OF_MEMORY),
    ]


def test_everything_wrong_at_once() -> None:
    """Highlight's own fields are reported with the rest; before any pass of the model."""
    scorer = FakeScorer()
    with pytest.raises(InvalidRequestError) as caught:
        pruner(scorer).highlight(
            " ",
            [Passage("a", title="x" * 2_001)],
            PruneOptions(threshold=3, include_tokens=True),
            pre_tag="\ud800",
        )
    assert [v.field for v in caught.value.violations] == [
        "pre_tag",
        "options.include_tokens",
        "query",
        "options.threshold",
        "passages[0].title",
    ]
    with pytest.raises(NotImplementedOptionError):
        pruner(scorer).rerank_and_prune("red", ["Red."], PruneOptions(max_context_tokens=9))
    assert scorer.batches == []


def test_limits_are_the_models() -> None:
    """The limits given at loading are the ones that apply."""
    with pytest.raises(InvalidRequestError, match="has 2 passages, the limit is 1"):
        pruner(limits=Limits(max_passages=1)).rerank_and_prune("red", ["A.", "B."])


def test_truncated_queries_are_flagged() -> None:
    """Cut only when asked for, and said so."""
    found = pruner().rerank_and_prune("red " * 99, ["Red."], PruneOptions(truncate_query=True))
    assert found.query_truncated
    assert found.usage.query_tokens == 30


def test_highlight() -> None:
    """Same ranking as rerank_and_prune; fragments in the order of the results."""
    found = pruner().highlight(
        "red valve",
        PASSAGES,
        PruneOptions(top_k=2),
        fragment_format=FragmentFormat.HTML_ESCAPED,
    )
    assert [(r.index, r.fragments) for r in found.results] == [
        (1, ("<mark>The red valve is shut.</mark>",)),
        (3, ("<mark>Red paint.</mark>",)),
    ]
    assert found.omitted_passage_count == 2
    assert found.applied_threshold == 0.1


def test_calls_may_overlap() -> None:
    """F21: threads share one pruner; forward passes take turns, results don't mix."""

    class OneAtATime(FakeScorer):
        def run(self, windows: Any) -> Any:
            assert busy.acquire(blocking=False)
            try:
                return super().run(windows)
            finally:
                busy.release()

    busy = threading.Lock()
    shared = pruner(OneAtATime())

    def call(n: int) -> str:
        return shared.rerank_and_prune("red", [f"Red {n}. Pump. " * 9]).results[0].pruned_text

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(call, range(32)))
    assert found == [" ".join([f"Red {n}."] * 9) for n in range(32)]
