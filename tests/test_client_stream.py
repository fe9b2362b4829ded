"""The client's stream, against a real gRPC server with canned answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from fake_service import (
    MODEL,
    FakeService,
    error_info,
    served,
    status,
)

from secateur import errors, types, v1
from secateur.client import Client
from secateur.types import Passage, StreamSummary

Code = grpc.StatusCode


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with served(service) as target, Client(target) as client:
        yield client


def _echo_stream(request_iterator: Any, _: Any) -> Iterator[v1.RerankAndPruneStreamResponse]:
    """Answers each passage at once, then sums up."""
    start = next(request_iterator)
    assert start.start.query == "q"
    ids: list[str] = []
    for message in request_iterator:
        for passage in message.passages.passages:
            yield v1.RerankAndPruneStreamResponse(
                result=v1.PrunedPassage(index=len(ids), id=passage.id)
            )
            ids.append(passage.id)
    yield v1.RerankAndPruneStreamResponse(
        summary=v1.StreamSummary(
            ranking=[
                v1.RankedPassage(index=index, id=id_, relevance_logit=1.0)
                for index, id_ in enumerate(ids)
            ],
            applied_keep_rule=v1.KeepRule.KEEP_RULE_MEAN_PROBABILITY,
            score_source=v1.ScoreSource.SCORE_SOURCE_PASSAGE_HEAD,
            model=MODEL,
        )
    )


def test_stream_answers_each_passage_and_sums_up(service: FakeService, client: Client) -> None:
    service.answers["RerankAndPruneStream"] = _echo_stream
    passages = (Passage("a", id=str(number)) for number in range(40))
    *results, summary = client.rerank_and_prune_stream("q", passages, batch_size=16)
    assert [result.id for result in results if isinstance(result, types.PrunedPassage)] == [
        str(number) for number in range(40)
    ]
    assert isinstance(summary, StreamSummary)
    assert [line.index for line in summary.ranking] == list(range(40))
    assert summary.ranking[0] == types.RankedPassage(0, "0", None, 1.0)


def test_stream_is_read_while_it_is_answered(service: FakeService, client: Client) -> None:
    service.answers["RerankAndPruneStream"] = _echo_stream
    answered = threading.Event()

    def passages() -> Iterator[str]:
        yield "first"
        assert answered.wait(30), "the first answer never came"
        yield "second"

    stream = client.rerank_and_prune_stream("q", passages(), batch_size=1)
    first = next(stream)
    answered.set()
    assert isinstance(first, types.PrunedPassage)
    assert len(list(stream)) == 2


def test_stream_packs_by_size_too(service: FakeService) -> None:
    sizes: list[int] = []

    def count(request_iterator: Any, context: Any) -> Any:
        next(request_iterator)
        sizes.extend(len(message.passages.passages) for message in request_iterator)
        return iter(())

    service.answers["RerankAndPruneStream"] = count
    with served(service) as target, Client(target, max_message_bytes=1_000) as client:
        assert list(client.rerank_and_prune_stream("q", ["a" * 300] * 7)) == []
    assert sizes == [3, 3, 1]


def test_stream_raises_the_failure_of_the_passages(service: FakeService, client: Client) -> None:
    service.answers["RerankAndPruneStream"] = _echo_stream

    def passages() -> Iterator[str]:
        yield "first"
        raise LookupError("the index is gone")

    with pytest.raises(LookupError, match="the index is gone"):
        list(client.rerank_and_prune_stream("q", passages(), batch_size=1))


def test_stream_refuses_what_cannot_be_sent_by_its_index(
    service: FakeService, client: Client
) -> None:
    service.answers["RerankAndPruneStream"] = _echo_stream
    with pytest.raises(errors.InvalidRequestError, match=r"passages\[2\]\.text"):
        list(client.rerank_and_prune_stream("q", ["a", "b", "\ud800"]))


def test_stream_maps_errors(service: FakeService, client: Client) -> None:
    service.answers["RerankAndPruneStream"] = status(
        Code.INVALID_ARGUMENT, "bad", error_info("INVALID_REQUEST")
    )
    with pytest.raises(errors.InvalidRequestError, match="bad"):
        list(client.rerank_and_prune_stream("q", ["a"]))


def test_closing_the_stream_early_cancels_the_call(service: FakeService, client: Client) -> None:
    cancelled = threading.Event()

    def endless(request_iterator: Any, context: Any) -> Iterator[Any]:
        context.add_callback(cancelled.set)
        yield v1.RerankAndPruneStreamResponse(result=v1.PrunedPassage())
        cancelled.wait(30)

    service.answers["RerankAndPruneStream"] = endless
    stream: Any = client.rerank_and_prune_stream("q", ["a"])
    next(stream)
    stream.close()
    assert cancelled.wait(30)
