"""The unary methods through a real in-process server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio
from fakes import FakeScorer, StubSplitter
from server_harness import (
    PATIENCE,
    Serving,
    details_of,
    error_of,
    fields_of,
    rerank_request,
    serving,
)

from secateur.model.prepared import EncodedWindow
from secateur.model.splitter import Split
from secateur.v1 import rerank_prune_pb2 as pb

QUERY = "what opens the valve"
RED = "The red handle opens the valve. Lunch is at noon."
LUNCH = "Lunch is at noon. Tea is at four."
VALVE = "Ask for the valve. It is blue."


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running


async def test_passages_are_ranked_and_pruned(server: Serving) -> None:
    answer = await server.rerank(QUERY, [LUNCH, RED, VALVE])
    assert [result.index for result in answer.results] == [1, 2, 0]
    best = answer.results[0]
    assert best.pruned_text == "The red handle opens the valve."
    assert [(span.start_offset, span.end_offset) for span in best.kept_spans] == [(0, 31)]
    assert [sentence.kept for sentence in best.sentences] == [True, False]
    assert best.sentences[1].reason == pb.KEEP_REASON_BELOW_THRESHOLD
    assert answer.results[-1].all_pruned
    logits = [result.relevance_logit for result in answer.results]
    assert logits == sorted(logits, reverse=True)
    assert (answer.applied_threshold, answer.applied_keep_rule) == (
        0.1,
        pb.KEEP_RULE_MEAN_PROBABILITY,
    )
    assert answer.score_source == pb.SCORE_SOURCE_PASSAGE_HEAD
    assert (answer.model.id, answer.model.dtype) == ("fake", "float32")
    assert answer.usage.query_tokens == 4
    assert answer.usage.input_tokens == sum(sum(batch) for batch in server.scorer.batches)
    assert answer.usage.kept_tokens > 0
    timing = answer.timing
    assert timing.tokenize_ms > 0
    assert timing.inference_ms > 0
    assert timing.queue_ms >= 0
    assert timing.total_ms >= timing.tokenize_ms + timing.inference_ms


async def test_no_passages_is_ok_and_empty(server: Serving) -> None:
    answer = await server.rerank(QUERY, [])
    assert not answer.results
    assert answer.model.id == "fake"
    assert server.scorer.batches == []


@pytest.mark.parametrize("query", ["", "  \n", "\u3000\u200b"])
async def test_a_blank_query_is_refused(server: Serving, query: str) -> None:
    """F13."""
    error = await error_of(server.rerank(query, [RED]))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fields_of(error) == ["query"]


async def test_blank_passages_are_answered_without_the_model(server: Serving) -> None:
    """F13: a result without sentences, spans or score, not pruned, in request order at the end."""
    answer = await server.rerank(QUERY, ["", "  \n", "Red valve."])
    assert [result.index for result in answer.results] == [2, 0, 1]
    assert [len(batch) for batch in server.scorer.batches] == [1]
    for blank in answer.results[1:]:
        assert not blank.HasField("relevance_score")
        assert not blank.HasField("relevance_logit")
        assert not blank.sentences
        assert not blank.kept_spans
        assert (blank.pruned_text, blank.compression_rate, blank.all_pruned) == ("", 0.0, False)


@pytest.mark.parametrize("text", ["...", "\U0001f642", "Red valve."])
async def test_one_odd_passage_has_the_shape_of_many(server: Serving, text: str) -> None:
    """F13."""
    one = await server.rerank(QUERY, [text], threshold=0.0)
    many = await server.rerank(QUERY, [LUNCH, text, RED], threshold=0.0)
    (same,) = [result for result in many.results if result.index == 1]
    same.index = 0
    assert one.results[0] == same
    assert same.pruned_text == text


@pytest.mark.parametrize(("top_k", "count"), [(0, 3), (1, 1), (3, 3), (10, 3), (2**31 - 1, 3)])
async def test_top_k(server: Serving, top_k: int, count: int) -> None:
    """F14."""
    answer = await server.rerank(QUERY, [LUNCH, RED, VALVE], top_k=top_k)
    assert len(answer.results) == count
    assert answer.omitted_passage_count == 3 - count


async def test_a_negative_top_k_is_refused(server: Serving) -> None:
    """F14."""
    assert fields_of(await error_of(server.rerank(QUERY, [RED], top_k=-1))) == ["options.top_k"]


@pytest.mark.parametrize(("threshold", "kept"), [(None, 1), (0.0, 2), (0.1, 1), (1.0, 0)])
async def test_threshold(server: Serving, threshold: float | None, kept: int) -> None:
    """F17: unset is the model's default, echoed; 0 keeps all; 1 keeps none."""
    answer = await server.rerank(QUERY, [RED], threshold=threshold)
    assert answer.applied_threshold == (0.1 if threshold is None else threshold)
    assert sum(sentence.kept for sentence in answer.results[0].sentences) == kept


@pytest.mark.parametrize("threshold", [1.5, -1.0, float("nan"), float("inf"), float("-inf")])
async def test_a_threshold_outside_its_range_is_refused(server: Serving, threshold: float) -> None:
    """F17."""
    error = await error_of(server.rerank(QUERY, [RED], threshold=threshold))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fields_of(error) == ["options.threshold"]


async def test_min_relevance_score_and_order(server: Serving) -> None:
    answer = await server.rerank(
        QUERY,
        [LUNCH, RED, VALVE],
        min_relevance_score=0.4,
        order=pb.RESULT_ORDER_INPUT,
    )
    assert [result.index for result in answer.results] == [1, 2]
    assert answer.omitted_passage_count == 1


async def test_all_faults_are_reported_at_once(server: Serving) -> None:
    request = rerank_request(" ", [RED], threshold=2.0, keep_rule=77, top_k=-1)
    request.passages.add(text="ab", sentences=[pb.TextSpan(start_offset=0, end_offset=9)])
    error = await error_of(server.stub.RerankAndPrune(request, timeout=PATIENCE))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert set(fields_of(error)) == {
        "options.keep_rule",
        "query",
        "options.threshold",
        "options.top_k",
        "passages[1].sentences[0]",
    }
    info = details_of(error)["ErrorInfo"]
    assert (info.reason, info.metadata["violation_count"]) == ("INVALID_REQUEST", "5")
    assert server.scorer.batches == []


async def test_a_thousand_faults_still_reach_the_caller(server: Serving) -> None:
    """Metadata above a peer's limit used to replace the whole status."""
    request = rerank_request(QUERY, [])
    for _ in range(1_000):
        request.passages.add(text="ab", id="x" * 1_100)
    error = await error_of(server.stub.RerankAndPrune(request, timeout=PATIENCE))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(error)["ErrorInfo"].metadata["violation_count"] == "1000"
    assert fields_of(error)[:2] == ["passages[0].id", "passages[1].id"]


async def test_faults_that_only_the_tokenizer_sees_come_at_once(server: Serving) -> None:
    request = rerank_request(QUERY, [RED, RED, RED])
    request.passages[0].title = request.passages[2].title = "word " * 40
    error = await error_of(server.stub.RerankAndPrune(request, timeout=PATIENCE))
    assert fields_of(error) == ["passages[0].title", "passages[2].title"]


async def test_faults_of_every_kind_come_in_one_answer(server: Serving) -> None:
    """Tokens of query and titles used to be told in a second answer, once the rest was right."""
    request = rerank_request("valve " * 31, [RED, RED], top_k=-1)
    request.passages[0].title = "word " * 40
    request.passages[1].id = "x" * 2_000
    error = await error_of(server.stub.RerankAndPrune(request, timeout=PATIENCE))
    assert fields_of(error) == [
        "query",
        "options.top_k",
        "passages[0].title",
        "passages[1].id",
    ]
    info = details_of(error)["ErrorInfo"]
    assert (info.metadata["field"], info.metadata["limit"]) == ("query", "30")


async def test_a_request_of_too_many_tokens_never_reaches_the_model() -> None:
    """A hostile passage of 600,000 characters used to cost minutes of inference."""
    async with serving(max_request_tokens=1_000) as server:
        assert (await server.rerank(QUERY, [RED] * 52)).usage.input_tokens == 988
        server.scorer.batches.clear()
        error = await error_of(server.rerank(QUERY, [RED] * 53))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        (violation,) = details_of(error)["BadRequest"].field_violations
        assert (violation.field, violation.reason) == ("passages", "TOO_MANY_TOKENS")
        assert details_of(error)["ErrorInfo"].metadata["limit"] == "1000"
        assert server.scorer.batches == []
    async with serving() as server:
        error = await error_of(server.rerank(QUERY, ["n. " * 200_000]))
        assert fields_of(error) == ["passages[0].text"]


async def test_the_operator_may_lower_the_query_limit() -> None:
    async with serving(max_query_tokens=3) as server:
        error = await error_of(server.rerank(QUERY, [RED]))
        assert fields_of(error) == ["query"]
        assert "4 tokens, the limit of this model is 3" in str(error.details())
    async with serving(max_query_tokens=500) as server:
        info = await server.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=PATIENCE)
        assert info.max_query_tokens == 30  # the model's own


async def test_a_long_query_is_refused_or_cut(server: Serving) -> None:
    query = "valve " * 31
    error = await error_of(server.rerank(query, [RED]))
    assert fields_of(error) == ["query"]
    assert "31" in details_of(error)["BadRequest"].field_violations[0].description
    answer = await server.rerank(query, [RED], truncate_query=True)
    assert answer.query_truncated
    assert answer.usage.query_tokens == 30


async def test_an_option_without_work_behind_it_is_unimplemented(server: Serving) -> None:
    error = await error_of(server.rerank(QUERY, [RED], max_context_tokens=5))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    info = details_of(error)["ErrorInfo"]
    assert (info.reason, info.metadata["field"]) == (
        "OPTION_NOT_IMPLEMENTED",
        "options.max_context_tokens",
    )


async def test_what_the_model_cannot_do_is_a_failed_precondition(server: Serving) -> None:
    error = await error_of(server.rerank(QUERY, [RED], keep_rule=pb.KEEP_RULE_SENTENCE_HEAD))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert details_of(error)["ErrorInfo"].metadata["field"] == "options.keep_rule"


async def test_offsets_in_the_unit_asked_for(server: Serving) -> None:
    """F8."""
    text = "\U0001f44d ok. Caf\u00e9 \u00e9. \u7d42\u3002"
    expected = {
        pb.OFFSET_UNIT_CODE_POINT: [(0, 5), (6, 13), (14, 16)],
        pb.OFFSET_UNIT_UTF8_BYTE: [(0, 8), (9, 18), (19, 25)],
        pb.OFFSET_UNIT_UTF16_CODE_UNIT: [(0, 6), (7, 14), (15, 17)],
    }
    for unit, spans in expected.items():
        answer = await server.rerank(QUERY, [text], offset_unit=unit)
        found = [(s.start_offset, s.end_offset) for s in answer.results[0].sentences]
        assert found == spans


async def test_alone_or_together_the_same(server: Serving) -> None:
    """F12, through the server: batch neighbours, of other calls too, change nothing."""
    texts = [RED, "The valve is shut. " * 20, "Noon. " * 60, "The hall opens late. " * 5]
    together = await server.rerank(QUERY, texts, include_tokens=True, order=pb.RESULT_ORDER_INPUT)
    reverse = await server.rerank(
        QUERY, texts[::-1], include_tokens=True, order=pb.RESULT_ORDER_INPUT
    )
    alone = await asyncio.gather(
        *(server.rerank(QUERY, [text], include_tokens=True) for text in texts),
        *(server.rerank("strangers ask", [LUNCH]) for _ in texts),
    )
    for index, (joint, other) in enumerate(
        zip(together.results, reversed(reverse.results), strict=True)
    ):
        single = alone[index].results[0]
        joint.index = other.index = 0
        assert joint == single == other


async def test_concurrent_calls_share_forward_passes(server: Serving) -> None:
    scorer = server.scorer
    scorer.gate = threading.Event()
    first = asyncio.create_task(server.rerank(QUERY, ["Valve."]))
    await asyncio.to_thread(scorer.started.wait, PATIENCE)
    await server.enqueued.get()
    calls = [asyncio.create_task(server.rerank(QUERY, [RED, LUNCH])) for _ in range(8)]
    for _ in calls:
        await asyncio.wait_for(server.enqueued.get(), PATIENCE)
    scorer.gate.set()
    answers = await asyncio.gather(first, *calls)
    assert [len(answer.results) for answer in answers] == [1] + [2] * 8
    assert [len(batch) for batch in scorer.batches] == [1, 16]


async def test_a_cancelled_call_leaves_the_queue(server: Serving) -> None:
    """F19: a cancel reaches the queue; at most the batch that runs goes on."""
    scorer = server.scorer
    scorer.gate = threading.Event()
    first = asyncio.create_task(server.rerank(QUERY, ["Valve."]))
    await asyncio.to_thread(scorer.started.wait, PATIENCE)
    await server.enqueued.get()
    gone = server.stub.RerankAndPrune(rerank_request(QUERY, [LUNCH] * 50))
    waiting = asyncio.ensure_future(gone)
    await asyncio.wait_for(server.enqueued.get(), PATIENCE)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(server.left.get(), PATIENCE)
    scorer.gate.set()
    await first
    await server.rerank(QUERY, [RED])
    assert [len(batch) for batch in scorer.batches] == [1, 1]


async def test_a_call_past_its_deadline_never_reaches_the_model(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F19: the deadline travels with the queue's entries."""
    scorer = server.scorer
    scorer.gate = threading.Event()
    first = asyncio.create_task(server.rerank(QUERY, ["Valve."]))
    await asyncio.to_thread(scorer.started.wait, PATIENCE)
    await server.enqueued.get()
    late = asyncio.create_task(server.rerank(QUERY, [LUNCH] * 50))
    await asyncio.wait_for(server.enqueued.get(), PATIENCE)
    clock = server.batcher.clock
    monkeypatch.setattr(server.batcher, "clock", lambda: clock() + 2 * PATIENCE)
    scorer.gate.set()
    error = await error_of(late)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert details_of(error)["ErrorInfo"].reason == "DEADLINE_EXCEEDED"
    await first
    await server.rerank(QUERY, [RED])
    assert [len(batch) for batch in scorer.batches] == [1, 1]


async def test_overload_is_refused_at_once_with_a_time_to_retry() -> None:
    async with serving(max_queue_tokens=20) as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        accepted = [asyncio.create_task(server.rerank(QUERY, ["Valve."]))]
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        accepted += [asyncio.create_task(server.rerank(QUERY, [RED])) for _ in range(2)]
        for _ in accepted:
            await asyncio.wait_for(server.enqueued.get(), PATIENCE)
        error = await error_of(server.rerank(QUERY, [RED]))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        found = details_of(error)
        assert found["ErrorInfo"].reason == "OVERLOADED"
        assert found["RetryInfo"].retry_delay.ToMilliseconds() > 0
        scorer.gate.set()
        answers = await asyncio.gather(*accepted)
        assert all(answer.results for answer in answers)


async def test_too_many_calls_are_refused() -> None:
    async with serving(max_concurrent_calls=1) as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        accepted = asyncio.create_task(server.rerank(QUERY, ["Valve."]))
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        error = await error_of(server.rerank(QUERY, [RED]))
        assert details_of(error)["ErrorInfo"].reason == "OVERLOADED"
        scorer.gate.set()
        await accepted


async def test_messages_above_the_grpc_default_pass(server: Serving) -> None:
    """F18: gRPC's own limit is 4 MB."""
    texts = ["Valve. " + "\u7d42" * 490_000] * 3
    assert rerank_request(QUERY, texts).ByteSize() > 4 << 20
    answer = await server.rerank(QUERY, texts, threshold=0.0)
    assert [result.pruned_text for result in answer.results] == texts
    assert answer.ByteSize() > 4 << 20


async def test_a_request_over_the_size_limit_is_told_kindly() -> None:
    """F18."""
    async with serving(max_receive_message_bytes=10_000) as server:
        error = await error_of(server.rerank(QUERY, [RED * 300]))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(error)["ErrorInfo"].reason == "MESSAGE_TOO_LARGE"
        assert "the limit is 10000" in str(error.details())
        error = await error_of(server.rerank(QUERY, [RED * 3_000]))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_answer_over_the_size_limit_is_told_kindly() -> None:
    """F18."""
    async with serving(max_send_message_bytes=2_000) as server:
        error = await error_of(server.rerank(QUERY, [RED * 30], include_tokens=True))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(error)["ErrorInfo"].reason == "MESSAGE_TOO_LARGE"
        assert "include_tokens" in str(error.details())


async def test_a_model_failure_shows_no_inside(caplog: pytest.LogCaptureFixture) -> None:
    """F23: raw exception text reaching the client; one bad passage does not fail the others."""

    def poison(windows: Sequence[EncodedWindow]) -> None:
        if any(len(window.input_ids[window.passage_tokens]) == 2 for window in windows):
            raise RuntimeError("CUDA error at 0xdeadbeef")

    async with serving(scorer=FakeScorer()) as server:
        server.scorer.fail = poison
        answer = await server.rerank(QUERY, [RED, "Bad."])
        assert [result.index for result in answer.results] == [0, 1]
        assert not answer.results[0].HasField("error")
        failed = answer.results[1].error
        assert failed.code == grpc.StatusCode.INTERNAL.value[0]
        assert "0xdeadbeef" not in str(answer)
    assert "0xdeadbeef" in caplog.text
    assert "Bad." not in caplog.text


async def test_a_splitter_failure_fails_its_passage_alone() -> None:
    class Brittle(StubSplitter):
        def split(self, text: str, language: str = "") -> Split:
            if "crash" in text:
                raise RuntimeError("secret")
            return super().split(text, language)

    async with serving(engine_parts={"splitter": Brittle()}) as server:
        answer = await server.rerank(QUERY, ["A crash.", RED])
        assert [result.index for result in answer.results] == [1, 0]
        assert answer.results[1].error.code == grpc.StatusCode.INTERNAL.value[0]
        assert "secret" not in str(answer)


async def test_an_unexpected_failure_is_the_fixed_sentence(
    server: Serving, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F23."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("secret")

    pipeline = server.app.service.pipeline
    assert pipeline is not None
    monkeypatch.setattr(pipeline.engine, "rank", broken)
    error = await error_of(server.rerank(QUERY, [RED]))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "internal error; the server's log has the details"
    assert details_of(error)["ErrorInfo"].metadata["error_id"] in caplog.text
    assert RED not in caplog.text


async def test_highlight_escapes_every_part(server: Serving) -> None:
    """F27: the passage's own markup is text; our tags are added last; offsets are unescaped."""
    text = 'Use <script>alert(1)</script> & <mark>fake</mark>. The valve\'s "on" is <b>red</b>.'
    request = pb.HighlightRequest(
        query=QUERY,
        passages=[pb.Passage(text=text, id="p")],
        options=pb.PruneOptions(threshold=0.0),
        fragment_format=pb.FRAGMENT_FORMAT_HTML_ESCAPED,
    )
    answer = await server.stub.Highlight(request, timeout=PATIENCE)
    (result,) = answer.results
    (fragment,) = result.fragments
    assert fragment == (
        "<mark>Use &lt;script&gt;alert(1)&lt;/script&gt; &amp; &lt;mark&gt;fake&lt;/mark&gt;. "
        "The valve&#x27;s &quot;on&quot; is &lt;b&gt;red&lt;/b&gt;.</mark>"
    )
    assert (result.spans[0].start_offset, result.spans[0].end_offset) == (0, len(text))
    assert result.HasField("relevance_score")
    assert (answer.applied_threshold, answer.model.id) == (0.0, "fake")
    assert answer.timing.total_ms > 0


async def test_highlight_tags_and_formats(server: Serving) -> None:
    request = pb.HighlightRequest(
        query=QUERY,
        passages=[pb.Passage(text=f"{LUNCH} <i>The valve.</i>"), pb.Passage(text=LUNCH)],
    )
    plain = await server.stub.Highlight(request, timeout=PATIENCE)
    assert [(r.index, len(r.spans), len(r.fragments)) for r in plain.results] == [
        (0, 1, 0),
        (1, 0, 0),
    ]
    request.fragment_format = pb.FRAGMENT_FORMAT_RAW
    request.pre_tag, request.post_tag = "[", "]"
    raw = await server.stub.Highlight(request, timeout=PATIENCE)
    assert raw.results[0].fragments == ["[<i>The valve.</i>]"]


async def test_highlight_refuses_what_it_cannot_answer(server: Serving) -> None:
    request = pb.HighlightRequest(
        query="",
        options=pb.PruneOptions(include_tokens=True, include_sentence_text=True),
        pre_tag="x" * 10_000,
        fragment_format=9,  # type: ignore[arg-type]
    )
    error = await error_of(server.stub.Highlight(request, timeout=PATIENCE))
    assert set(fields_of(error)) == {
        "query",
        "options.include_tokens",
        "options.include_sentence_text",
        "pre_tag",
        "fragment_format",
    }


async def test_model_info() -> None:
    async with serving(
        max_passages=5,
        max_send_message_bytes=123_456,
        max_request_tokens=1_077,
        max_concurrent_calls=8,
        max_queue_tokens=999,
    ) as server:
        info = await server.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=PATIENCE)
        assert (info.id, info.window_tokens, info.default_threshold) == ("fake", 64, 0.1)
        assert (info.limits.max_passages, info.limits.max_request_tokens) == (5, 1_077)
        assert (info.max_concurrent_calls, info.max_queue_tokens) == (8, 999)
        assert (info.max_request_bytes, info.max_response_bytes) == (16 << 20, 123_456)
        error = await error_of(server.rerank(QUERY, [RED] * 6))
        assert fields_of(error) == ["passages"]
