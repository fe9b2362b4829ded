"""The ranking of an endless stream: as of all results, with the memory of few."""

from __future__ import annotations

import random

import pytest
from fakes import make_engine

from secateur.model.prepared import PreparedQuery
from secateur.server.errors import MessageTooLargeError
from secateur.server.ranking import Ranking
from secateur.types import PassageError, PrunedPassage, PruneOptions, ResultOrder, Sentence

ENGINE = make_engine()


def result(index: int, logit: float | None, **changes: object) -> PrunedPassage:
    """A result of a stream."""
    values: dict[str, object] = {
        "index": index,
        "id": f"id {index}",
        "relevance_score": None if logit is None else 0.5 + logit / 20,
        "relevance_logit": logit,
        "pruned_text": "long " * 100,
        "sentences": (),
        "kept_spans": (),
        "compression_rate": 0.0,
        "all_pruned": False,
    }
    return PrunedPassage(**{**values, **changes})  # type: ignore[arg-type]


def query(**options: object) -> PreparedQuery:
    """A prepared query with some options."""
    return ENGINE.prepare_query("red", PruneOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 7},
        {"top_k": 3_000},
        {"min_relevance_score": 0.9},
        {"top_k": 50, "order": ResultOrder.INPUT},
        {"top_k": 950, "min_relevance_score": 0.8},
    ],
)
def test_the_ranking_is_that_of_all_results(options: dict[str, object]) -> None:
    random_ = random.Random(3)
    results = [
        result(index, None if random_.random() < 0.1 else round(random_.uniform(-8, 8), 1))
        for index in range(5_000)
    ]
    random_.shuffle(results)
    ranking = Ranking(ENGINE, query(**options), max_bytes=1 << 20)
    for one in results:
        ranking.add(one)
    kept, omitted = ENGINE.rank(query(**options), ranking.results)
    expected, left_out = ENGINE.rank(query(**options), results)
    assert [line.index for line in kept] == [line.index for line in expected]
    assert omitted + ranking.omitted == left_out


def test_it_remembers_neither_texts_nor_what_is_left_out() -> None:
    ranking = Ranking(ENGINE, query(top_k=10), max_bytes=1 << 20)
    sentence = Sentence(0, 1, 0.5, 0.5, True, "above_threshold")  # type: ignore[arg-type]
    for index in range(20_000):
        error = PassageError("INTERNAL", "x" * 2_000) if index % 2 else None
        ranking.add(result(index, None if error else 1.0, error=error, sentences=(sentence,)))
        assert len(ranking.results) <= 1_000
    assert {(r.pruned_text, r.sentences, r.error) for r in ranking.results} == {("", (), None)}


def test_a_ranking_that_cannot_be_sent_ends_the_stream_early() -> None:
    """It used to fail at the very end, when all passages had been scored."""
    ranking = Ranking(ENGINE, query(), max_bytes=30_000)
    for index in range(999):
        ranking.add(result(index, 1.0))
    with pytest.raises(MessageTooLargeError, match="set top_k or use several streams") as caught:
        ranking.add(result(999, 1.0))
    assert caught.value.limit == 30_000
