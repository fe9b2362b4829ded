"""RerankAndPruneStream through a real in-process server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from server_harness import PATIENCE, Serving, details_of, fields_of, serving

from secateur.v1 import rerank_prune_pb2 as pb
from secateur.v1 import rerank_prune_pb2_grpc as pb_grpc

QUERY = "what opens the valve"
RED = "The red handle opens the valve. Lunch is at noon."
LUNCH = "Lunch is at noon. Tea is at four."
VALVE = "Ask for the valve. It is blue."


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running


def start(query: str = QUERY, **options: Any) -> pb.RerankAndPruneStreamRequest:
    """The opening message."""
    opening = pb.StreamStart(query=query, options=pb.PruneOptions(**options))
    return pb.RerankAndPruneStreamRequest(start=opening)


def batch(*texts: str, **fields: Any) -> pb.RerankAndPruneStreamRequest:
    """A message of passages."""
    passages = [pb.Passage(text=text, **fields) for text in texts]
    return pb.RerankAndPruneStreamRequest(passages=pb.PassageBatch(passages=passages))


async def talk(
    server: Serving, *messages: pb.RerankAndPruneStreamRequest
) -> tuple[list[pb.PrunedPassage], pb.StreamSummary]:
    """A whole stream: its results in the order of arrival, and its summary."""
    call = server.stub.RerankAndPruneStream(iter(messages), timeout=PATIENCE)
    return split([response async for response in call])


async def refusal(server: Serving, *messages: pb.RerankAndPruneStreamRequest) -> Any:
    """The error of a stream that must fail.

    Asked by a synchronous client: an asyncio one that is still writing when the server ends a
    stream may report INTERNAL instead of the server's status (grpc/grpc issue 36066).
    """

    def ask() -> grpc.RpcError:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = pb_grpc.RerankPruneServiceStub(channel)
            try:
                list(stub.RerankAndPruneStream(iter(messages), timeout=PATIENCE))
            except grpc.RpcError as error:
                return error
        raise AssertionError("the stream did not fail")

    return await asyncio.to_thread(ask)


def split(
    responses: Iterable[pb.RerankAndPruneStreamResponse],
) -> tuple[list[pb.PrunedPassage], pb.StreamSummary]:
    """The results and the one summary, which is last."""
    *results, last = responses
    assert [response.WhichOneof("message") for response in results] == ["result"] * len(results)
    assert last.WhichOneof("message") == "summary"
    return [response.result for response in results], last.summary


async def test_each_passage_is_answered_once_and_the_summary_ranks_all(server: Serving) -> None:
    results, summary = await talk(
        server, start(), batch(LUNCH, RED, id="same"), batch(), batch(VALVE, ""), batch(LUNCH)
    )
    assert sorted(result.index for result in results) == [0, 1, 2, 3, 4]
    assert [line.index for line in summary.ranking] == [1, 2, 0, 4, 3]
    assert [line.id for line in summary.ranking] == ["same", "", "same", "", ""]
    by_index = {result.index: result for result in results}
    assert by_index[1].pruned_text == "The red handle opens the valve."
    for line in summary.ranking:
        result = by_index[line.index]
        assert line.HasField("relevance_score") == result.HasField("relevance_score")
        assert line.relevance_logit == result.relevance_logit
    assert summary.applied_threshold == 0.1
    assert summary.model.id == "fake"
    assert summary.usage.query_tokens == 4
    assert summary.usage.input_tokens == sum(sum(part) for part in server.scorer.batches)
    assert summary.timing.total_ms >= summary.timing.tokenize_ms > 0
    assert summary.timing.inference_ms > 0


async def test_a_stream_gives_what_a_unary_call_gives(server: Serving) -> None:
    texts = [LUNCH, RED, VALVE]
    options: dict[str, Any] = {"top_k": 2, "min_sentences": 1, "include_sentence_text": True}
    results, summary = await talk(server, start(**options), batch(*texts))
    unary = await server.rerank(QUERY, texts, **options)
    everything = await server.rerank(QUERY, texts, **{**options, "top_k": 0})
    by_index = {result.index: result for result in results}
    assert len(by_index) == 3
    assert [line.index for line in summary.ranking] == [result.index for result in unary.results]
    assert summary.omitted_passage_count == unary.omitted_passage_count == 1
    assert {result.index: result for result in everything.results} == by_index
    assert summary.usage == unary.usage


async def test_score_limit_and_order_shape_only_the_summary(server: Serving) -> None:
    options: dict[str, Any] = {"min_relevance_score": 0.4, "order": pb.RESULT_ORDER_INPUT}
    results, summary = await talk(server, start(**options), batch(VALVE, LUNCH, RED))
    assert len(results) == 3
    assert [line.index for line in summary.ranking] == [0, 2]
    assert summary.omitted_passage_count == 1


async def test_a_stream_without_passages_has_a_summary(server: Serving) -> None:
    results, summary = await talk(server, start())
    assert not results
    assert not summary.ranking
    assert summary.model.id == "fake"


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (batch(RED),),
        (pb.RerankAndPruneStreamRequest(),),
        (start(), start()),
        (start(), batch(RED), start()),
        (start(), pb.RerankAndPruneStreamRequest()),
    ],
)
async def test_messages_out_of_order_end_the_stream(server: Serving, messages: Any) -> None:
    error = await refusal(server, *messages)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fields_of(error) == ["message"]


async def test_a_bad_start_ends_the_stream_with_all_faults(server: Serving) -> None:
    error = await refusal(server, start(" ", threshold=7.0, order=9))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert set(fields_of(error)) == {"query", "options.threshold", "options.order"}
    error = await refusal(server, start(max_context_tokens=3))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    error = await refusal(server, start("valve " * 31))
    assert fields_of(error) == ["query"]


async def test_an_invalid_passage_fails_alone(server: Serving) -> None:
    wrong = batch("ab")
    wrong.passages.passages[0].sentences.add(start_offset=0, end_offset=9)
    titled = batch(VALVE, title="word " * 40)
    results, summary = await talk(server, start(), batch(LUNCH), wrong, titled, batch(RED))
    by_index = {result.index: result for result in results}
    assert sorted(by_index) == [0, 1, 2, 3]
    for index, path in ((1, "passages[1].sentences[0]"), (2, "passages[2].title")):
        error = by_index[index].error
        assert error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert path in error.message
        assert not by_index[index].HasField("relevance_score")
    assert not by_index[3].HasField("error")
    assert [line.index for line in summary.ranking] == [3, 0, 1, 2]


async def test_limits_of_a_message_end_the_stream() -> None:
    async with serving(max_passages=2, max_request_characters=1_000) as server:
        results, _ = await talk(server, start(), *[batch(RED, RED)] * 5)
        assert len(results) == 10
        error = await refusal(server, start(), batch(RED, RED, RED))
        assert fields_of(error) == ["passages"]
        error = await refusal(server, start(), batch("Valve. " * 200))
        assert fields_of(error) == ["passages"]


async def test_the_server_stops_reading_when_answers_are_outstanding() -> None:
    """The bound is on passages taken and not yet answered, whatever the size of a message."""
    async with serving(max_stream_in_flight=3) as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        call = server.stub.RerankAndPruneStream(timeout=PATIENCE)
        await call.write(start())
        await call.write(batch(*[RED] * 10))
        # The first three join the queue and no more while the model is held.
        await asyncio.wait_for(server.enqueued.get(), PATIENCE)
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        for _ in range(3):
            await server.health()  # rounds of the loop in which the server could read on
        assert server.enqueued.empty()
        assert [len(part) for part in scorer.batches] == [3]
        scorer.gate.set()
        await call.write(batch(*[LUNCH] * 4))
        await call.done_writing()
        results, summary = split([response async for response in call])
        assert len(results) == len(summary.ranking) == 14
        assert max(len(part) for part in scorer.batches) <= 3


async def test_the_server_stops_reading_when_too_many_tokens_wait() -> None:
    """Passages of any length count alike, but a stream of long ones must not fill the memory."""
    async with serving(max_request_tokens=1_000) as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        call = server.stub.RerankAndPruneStream(timeout=PATIENCE)
        await call.write(start())
        for _ in range(8):
            await call.write(batch("Tea. " * 130))  # 260 tokens, 295 with 5 queries
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        for _ in range(3):
            await asyncio.wait_for(server.enqueued.get(), PATIENCE)
        for _ in range(5):
            await server.health()  # rounds of the loop in which the server could read on
        assert server.enqueued.empty()
        scorer.gate.set()
        await call.done_writing()
        results, _ = split([response async for response in call])
        assert len(results) == 8


async def test_a_passage_of_too_many_tokens_fails_alone() -> None:
    async with serving(max_request_tokens=1_000) as server:
        results, summary = await talk(server, start(), batch(RED), batch("Tea. " * 600))
        by_index = {result.index: result for result in results}
        assert "passages[1].text: takes" in by_index[1].error.message
        assert not by_index[0].HasField("error")
        assert [line.index for line in summary.ranking] == [0, 1]


async def test_answers_come_before_the_stream_ends(server: Serving) -> None:
    call = server.stub.RerankAndPruneStream(timeout=PATIENCE)
    await call.write(start())
    for index, text in enumerate((RED, LUNCH, "")):
        await call.write(batch(text))
        response = await call.read()
        assert response.result.index == index
    await call.done_writing()
    response = await call.read()
    assert [line.index for line in response.summary.ranking] == [0, 1, 2]
    assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]


async def test_a_cancelled_stream_leaves_nothing_behind(server: Serving) -> None:
    scorer = server.scorer
    scorer.gate = threading.Event()
    before = asyncio.all_tasks()
    call = server.stub.RerankAndPruneStream()
    await call.write(start())
    await call.write(batch(*[RED] * 20))
    await asyncio.wait_for(server.enqueued.get(), PATIENCE)
    await asyncio.to_thread(scorer.started.wait, PATIENCE)
    call.cancel()
    await asyncio.wait_for(server.left.get(), PATIENCE)
    scorer.gate.set()
    await server.rerank(QUERY, [LUNCH])
    assert len(scorer.batches) == 2
    assert server.batcher.queued_tokens == 0
    leaked = {task for task in asyncio.all_tasks() - before if "secateur" in repr(task.get_coro())}
    assert not leaked


async def test_a_stream_is_refused_when_the_queue_is_full() -> None:
    async with serving(max_queue_tokens=20) as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        accepted = [asyncio.create_task(server.rerank(QUERY, ["Valve."]))]
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        accepted += [asyncio.create_task(server.rerank(QUERY, [RED])) for _ in range(2)]
        for _ in accepted:
            await asyncio.wait_for(server.enqueued.get(), PATIENCE)
        error = await refusal(server, start(), batch(RED))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(error)["ErrorInfo"].reason == "OVERLOADED"
        scorer.gate.set()
        await asyncio.gather(*accepted)


async def test_an_admitted_stream_is_not_refused_later() -> None:
    async with serving(max_queue_tokens=20, max_stream_in_flight=2) as server:
        results, _ = await talk(server, start(), *[batch(RED, LUNCH, VALVE)] * 10)
        assert len(results) == 30
        assert not any(result.HasField("error") for result in results)


async def test_a_summary_over_the_size_limit_says_what_to_do() -> None:
    async with serving(max_send_message_bytes=2_000) as server:
        error = await refusal(server, start(), *[batch(*["Valve."] * 10, id="x" * 50)] * 5)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "top_k" in str(error.details())
