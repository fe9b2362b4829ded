"""Limits in tokens: told with all other faults where they can be, and before the model runs."""

from __future__ import annotations

import pytest
from fakes import FakeScorer, make_engine, make_info

from secateur.errors import FieldViolation, InvalidRequestError
from secateur.model.pruner import Pruner
from secateur.model.token_limits import (
    check_passage_tokens,
    check_request_tokens,
    query_token_faults,
    title_token_faults,
)
from secateur.types import Limits, Passage, PruneOptions

INFO = make_info(window_tokens=64, max_query_tokens=30)
LIMITS = Limits(max_request_tokens=100)


@pytest.mark.parametrize(("count", "reason"), [(0, "NO_TOKENS"), (30, None), (31, "TOO_LONG")])
def test_query(count: int, reason: str | None) -> None:
    faults = list(query_token_faults(count, PruneOptions(), INFO))
    assert [fault.reason for fault in faults] == ([reason] if reason else [])
    assert [fault.limit for fault in faults if fault.reason == "TOO_LONG"] in ([], [30])


def test_a_query_that_may_be_cut_is_no_fault() -> None:
    assert not list(query_token_faults(31, PruneOptions(truncate_query=True), INFO))


@pytest.mark.parametrize(("count", "faulty"), [(0, False), (15, False), (16, True)])
def test_title_takes_a_quarter_of_the_window(count: int, faulty: bool) -> None:
    faults = list(title_token_faults(count, 3, INFO))
    assert [(fault.field, fault.limit) for fault in faults] == (
        [("passages[3].title", 15)] if faulty else []
    )


def test_passage_and_request() -> None:
    check_passage_tokens(100, 0, LIMITS)
    check_request_tokens(100, 5, LIMITS)
    with pytest.raises(InvalidRequestError) as caught:
        check_passage_tokens(101, 7, LIMITS)
    assert violation(caught) == ("passages[7].text", "TOO_MANY_TOKENS", 100)
    with pytest.raises(InvalidRequestError, match="the first 5 take 101 tokens") as caught:
        check_request_tokens(101, 5, LIMITS)
    assert violation(caught) == ("passages", "TOO_MANY_TOKENS", 100)
    assert caught.value.limit == 100


def test_token_faults_come_with_all_others() -> None:
    """Faults of query and titles used to come in a second answer, after the others."""
    scorer = FakeScorer()
    pruner = Pruner(make_engine(scorer=scorer))
    passages = [Passage("a", title="word " * 40), Passage("b", id="x" * 2_000)]
    with pytest.raises(InvalidRequestError) as caught:
        pruner.rerank_and_prune("valve " * 31, passages, PruneOptions(top_k=-1))
    assert [v.field for v in caught.value.violations] == [
        "query",
        "options.top_k",
        "passages[0].title",
        "passages[1].id",
    ]
    assert not scorer.batches


def test_a_request_of_too_many_tokens_never_reaches_the_model() -> None:
    """A hostile passage of 600,000 characters used to cost minutes of inference."""
    scorer = FakeScorer()
    pruner = Pruner(make_engine(scorer=scorer))
    with pytest.raises(InvalidRequestError, match="the limit is 100000") as caught:
        pruner.rerank_and_prune("valve", ["n. " * 60_000])
    assert violation(caught)[:2] == ("passages", "TOO_MANY_TOKENS")
    with pytest.raises(InvalidRequestError, match="the limit is 500000") as caught:
        pruner.rerank_and_prune("valve", ["n. " * 200_000])
    assert violation(caught)[:2] == ("passages[0].text", "TOO_LONG")
    assert not scorer.batches


def test_the_limit_counts_what_usage_counts() -> None:
    """Each window repeats the query and the title, and the model reads them each time."""
    passages = [Passage("Red valve. " * 40, title="a title"), Passage("Shut it.")]
    used = Pruner(make_engine()).rerank_and_prune("what valve", passages).usage.input_tokens
    exact = Pruner(make_engine(limits=Limits(max_request_tokens=used)))
    assert exact.rerank_and_prune("what valve", passages).results
    tight = Pruner(make_engine(limits=Limits(max_request_tokens=used - 1)))
    with pytest.raises(InvalidRequestError, match=f"take {used} tokens"):
        tight.rerank_and_prune("what valve", passages)


def violation(caught: pytest.ExceptionInfo[InvalidRequestError]) -> tuple[str, str, int | None]:
    """Field, reason and limit of the only violation."""
    found: tuple[FieldViolation, ...] = caught.value.violations
    assert len(found) == 1
    return found[0].field, found[0].reason, found[0].limit
