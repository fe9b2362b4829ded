"""The result cache through a server: what may share a score, and what may not."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from fakes import FakeScorer
from server_harness import PATIENCE, Serving, error_of, serving

from secateur import Client
from secateur.cli import main
from secateur.model.prepared import EncodedWindow, WindowOutput
from secateur.server.cache import ENTRY_BYTES, MIN_BYTES
from secateur.server.settings import SettingsError, load_settings
from secateur.v1 import rerank_prune_pb2 as pb

CACHE = 1 << 20
QUERY = "what opens the valve"
RED = "The red handle opens the valve. Lunch is at noon."
LUNCH = "Lunch is at noon. Tea is at four."
LONG = " ".join(f"Item {number} is about the valve." for number in range(30))  # several windows


def without_cost(response: Any) -> Any:
    """An answer without what a cache may change: times, and the count of what came from it."""
    copy = type(response)()
    copy.CopyFrom(response)
    copy.ClearField("timing")
    copy.usage.cached_passage_count = 0
    return copy


async def cached_count(server: Serving, query: str, texts: Sequence[str], **options: Any) -> int:
    return int((await server.rerank(query, texts, **options)).usage.cached_passage_count)


def sample(server: Serving, name: str) -> float:
    value = server.app.metrics.registry.get_sample_value(f"secateur_cache_{name}")
    assert value is not None
    return value


async def test_the_same_request_runs_the_model_once() -> None:
    async with serving(cache_bytes=CACHE) as server:
        texts = [LUNCH, RED, "", LONG, RED]
        options = {"include_tokens": True, "include_sentence_text": True}
        first = await server.rerank(QUERY, texts, **options)
        server.scorer.batches.clear()
        second = await server.rerank(QUERY, texts, **options)
        assert server.scorer.batches == []
        assert without_cost(second) == without_cost(first)
        assert (first.usage.cached_passage_count, second.usage.cached_passage_count) == (0, 4)
        assert first.timing.inference_ms > 0
        assert second.timing.inference_ms == 0


@pytest.mark.parametrize(
    ("query", "passage"),
    [
        ("what opens a valve", {}),
        (QUERY, {"text": RED + " It rains."}),
        (QUERY, {"title": "Handles"}),
        (QUERY, {"sentences": [pb.TextSpan(start_offset=0, end_offset=len(RED))]}),
    ],
)
async def test_another_model_input_is_scored_anew(query: str, passage: dict[str, Any]) -> None:
    async with serving(cache_bytes=CACHE) as server, serving() as fresh:
        await server.rerank(QUERY, [RED])
        server.scorer.batches.clear()
        request = pb.RerankAndPruneRequest(
            query=query, passages=[pb.Passage(**{"text": RED, **passage})]
        )
        answer = await server.stub.RerankAndPrune(request, timeout=PATIENCE)
        assert len(server.scorer.batches) == 1
        assert answer.usage.cached_passage_count == 0
        expected = await fresh.stub.RerankAndPrune(request, timeout=PATIENCE)
        assert without_cost(answer) == without_cost(expected)


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0.0},
        {"threshold": 1.0},
        {"keep_rule": pb.KEEP_RULE_TOKEN_VOTE},
        {"top_k": 1},
        {"min_relevance_score": 0.6},
        {"order": pb.RESULT_ORDER_INPUT},
        {"offset_unit": pb.OFFSET_UNIT_UTF8_BYTE},
        {"min_sentences": 2},
        {"neighbor_sentences": 1},
        {"always_select_title": True},
        {"protected_patterns": ["noon"]},
        {"include_tokens": True},
    ],
)
async def test_options_that_shape_the_answer_cost_no_pass(options: dict[str, Any]) -> None:
    """Tuning a threshold is free, and its answer is what a server without a cache says."""
    texts = [LUNCH, RED, f"Été. {LONG}"]
    async with serving(cache_bytes=CACHE) as server, serving() as fresh:
        await server.rerank(QUERY, texts)
        server.scorer.batches.clear()
        answer = await server.rerank(QUERY, texts, **options)
        assert server.scorer.batches == []
        assert answer.usage.cached_passage_count == 3
        expected = await fresh.rerank(QUERY, texts, **options)
        assert without_cost(answer) == without_cost(expected)


async def test_hits_and_misses_of_one_request_keep_their_order() -> None:
    texts = [LUNCH, RED, LONG, "Noon.", "The valve."]
    async with serving(cache_bytes=CACHE) as server, serving() as fresh:
        await server.rerank(QUERY, [LONG, "Noon."])
        server.scorer.batches.clear()
        answer = await server.rerank(QUERY, texts, order=pb.RESULT_ORDER_INPUT)
        assert sum(map(len, server.scorer.batches)) == 3
        assert answer.usage.cached_passage_count == 2
        expected = await fresh.rerank(QUERY, texts, order=pb.RESULT_ORDER_INPUT)
        assert without_cost(answer) == without_cost(expected)


async def test_a_window_that_fails_is_not_kept_and_those_beside_it_are() -> None:
    """The passage is no hit; tried again, only the window that failed runs."""

    def poison(windows: Sequence[EncodedWindow]) -> None:
        if any(w.token_count == broken for w in windows):
            raise RuntimeError("no kernel")

    async with serving(cache_bytes=CACHE) as server, serving() as fresh:
        expected = await fresh.rerank(QUERY, [LONG])
        lengths = [length for part in fresh.scorer.batches for length in part]
        broken = min(lengths)
        assert lengths.count(broken) == 1 < len(lengths)
        server.scorer.fail = poison
        assert (await server.rerank(QUERY, [LONG])).results[0].HasField("error")
        server.scorer.fail = None
        server.scorer.batches.clear()
        answer = await server.rerank(QUERY, [LONG])
        assert server.scorer.batches == [[broken]]
        assert answer.usage.cached_passage_count == 0
        assert without_cost(answer) == without_cost(expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
async def test_a_score_that_is_not_finite_is_not_kept(bad: float) -> None:
    """A fault that passes must not stay."""

    class Sick(FakeScorer):
        sick = True

        def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
            outputs = super().run(windows)
            return [replace(o, relevance_logit=bad) for o in outputs] if self.sick else outputs

    scorer = Sick()
    scorer.sick = False
    async with serving(scorer=scorer, cache_bytes=CACHE) as server:
        scorer.sick = True
        assert (await server.rerank(QUERY, [RED])).results[0].HasField("error")
        scorer.sick = False
        answer = await server.rerank(QUERY, [RED])
        assert not answer.results[0].HasField("error")
        assert answer.usage.cached_passage_count == 0


async def test_what_a_cancelled_call_has_scored_is_kept() -> None:
    async with serving(cache_bytes=CACHE, max_batch_windows=1) as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        call = asyncio.create_task(server.rerank(QUERY, [RED, "Noon."]))
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.left.get(), PATIENCE)
        scorer.gate.set()
        await server.rerank(QUERY, [LUNCH])  # runs after the batch that was running
        assert await cached_count(server, QUERY, [RED]) == 1
        assert await cached_count(server, QUERY, ["Noon."]) == 0
        assert server.batcher.queued_tokens == 0


async def test_a_full_server_answers_what_it_has_cached() -> None:
    async with serving(cache_bytes=CACHE, max_queue_tokens=36) as server:
        await server.rerank(QUERY, [RED])
        scorer = server.scorer
        scorer.gate = threading.Event()
        scorer.started.clear()
        calls = [asyncio.create_task(server.rerank(QUERY, ["Noon."]))]
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        while not server.enqueued.empty():
            server.enqueued.get_nowait()
        calls += [asyncio.create_task(server.rerank(QUERY, [f"{LUNCH} {n}"])) for n in range(2)]
        for _ in range(2):
            await asyncio.wait_for(server.enqueued.get(), PATIENCE)
        assert not server.batcher.has_room(1)
        error = await error_of(server.rerank(QUERY, [RED, LUNCH]))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await cached_count(server, QUERY, [RED], threshold=0.9) == 1
        assert await cached_count_of_stream(server, [RED]) == 1
        error = await error_of(server.rerank(QUERY, [LUNCH]))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        scorer.gate.set()
        await asyncio.gather(*calls)


async def cached_count_of_stream(server: Serving, texts: Sequence[str]) -> int:
    def messages() -> Any:
        yield pb.RerankAndPruneStreamRequest(start=pb.StreamStart(query=QUERY))
        for text in texts:
            batch = pb.PassageBatch(passages=[pb.Passage(text=text)])
            yield pb.RerankAndPruneStreamRequest(passages=batch)

    call = server.stub.RerankAndPruneStream(messages(), timeout=PATIENCE)
    *results, last = [response async for response in call]
    assert sorted(response.result.index for response in results) == list(range(len(texts)))
    return int(last.summary.usage.cached_passage_count)


async def test_streams_and_highlights_use_and_count_it_too() -> None:
    async with serving(cache_bytes=CACHE, max_stream_in_flight=2) as server:
        assert await cached_count_of_stream(server, [RED, LONG, ""]) == 0
        server.scorer.batches.clear()
        assert await cached_count_of_stream(server, [LONG, RED, "", RED]) == 3
        request = pb.HighlightRequest(query=QUERY, passages=[pb.Passage(text=RED)])
        answer = await server.stub.Highlight(request, timeout=PATIENCE)
        assert answer.usage.cached_passage_count == 1
        assert len(answer.results[0].spans) == 1
        assert server.scorer.batches == []


async def test_turned_off_it_keeps_and_counts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "secateur"):
        async with serving(cache_bytes=0) as server:
            for _ in range(2):
                assert await cached_count(server, QUERY, [RED]) == 0
            assert len(server.scorer.batches) == 2
            names = ("hits_total", "misses_total", "evictions_total", "bytes", "entries")
            assert [sample(server, name) for name in names] == [0] * 5
    assert "result cache: off" in caplog.text


async def test_it_is_announced_and_counted_by_windows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "secateur"):
        async with serving(cache_bytes=CACHE) as server:
            warm_up = sample(server, "misses_total")
            await server.rerank(QUERY, [LONG])
            windows = sum(map(len, server.scorer.batches))
            await server.rerank(QUERY, [LONG, RED])
            assert sample(server, "hits_total") == windows > 1
            assert sample(server, "misses_total") == warm_up + windows + 1
            assert sample(server, "entries") >= windows + 1
            assert ENTRY_BYTES < sample(server, "bytes") <= CACHE
            assert sample(server, "evictions_total") == 0
    assert f"result cache: {CACHE} bytes" in caplog.text


async def test_more_than_fits_makes_room_for_the_newest() -> None:
    async with serving(cache_bytes=MIN_BYTES) as server:
        texts = [f"Item {number}." for number in range(2 * MIN_BYTES // ENTRY_BYTES)]
        await server.rerank(QUERY, texts)
        assert sample(server, "bytes") <= MIN_BYTES
        assert sample(server, "evictions_total") > len(texts) / 2 - 1
        await server.rerank(QUERY, [RED])
        assert await cached_count(server, QUERY, [RED]) == 1
        assert 0 < await cached_count(server, QUERY, texts) < len(texts)


def test_a_size_that_holds_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for size in (0, MIN_BYTES, 1 << 40):
        assert load_settings(cache_bytes=size).cache_bytes == size
    with pytest.raises(SettingsError, match="cache_bytes is 65535; it must be at least 65536, or"):
        load_settings(cache_bytes=MIN_BYTES - 1)
    with pytest.raises(SettingsError, match=r"^--cache-bytes: .* less than or equal to"):
        load_settings(cache_bytes=(1 << 40) + 1)
    assert main(["serve", "--cache-bytes", "-1"]) == 2
    assert "--cache-bytes: Input should be greater than or equal to 0" in capsys.readouterr().err


async def test_the_client_is_told() -> None:
    async with serving(cache_bytes=CACHE) as server:

        def ask() -> list[int]:
            with Client(f"127.0.0.1:{server.port}", timeout=PATIENCE) as client:
                answers = [client.rerank_and_prune(QUERY, [RED, LUNCH]) for _ in range(2)]
            return [answer.usage.cached_passage_count for answer in answers]

        assert await asyncio.to_thread(ask) == [0, 2]
