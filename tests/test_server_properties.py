"""What holds for any request and its answer, through a real in-process server.

The model is the fake one and the splitter the real one. Hypothesis and the synchronous stub run
in another thread, because this one serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from server_harness import PATIENCE, Serving, details_of, serving

from secateur.model.splitter import SentenceSplitter
from secateur.v1 import rerank_prune_pb2 as pb
from secateur.v1 import rerank_prune_pb2_grpc as pb_grpc

Ask = Callable[[pb.RerankAndPruneRequest], pb.RerankAndPruneResponse]

PIECES = [
    "red ", "valve", "A.", ". ", "! ", "。", "…", "\n\n", "  ", "\u3000", "\t", "👍", "👩\u200d🚒",
    "é", "e\u0301", "\u200b", "\x00", "終", "ﷺ", "\u2028", "\ufeff", "\U0010ffff", "...", '"',
    "\ufffe", "\u202e", "- item\n", "| a | b |\n", "Dr. ",
]  # fmt: skip
TEXTS = st.lists(
    st.sampled_from(PIECES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    max_size=16,
).map("".join)
UNITS: dict[int, tuple[str, int]] = {
    pb.OFFSET_UNIT_UNSPECIFIED: ("utf-32-le", 4),
    pb.OFFSET_UNIT_CODE_POINT: ("utf-32-le", 4),
    pb.OFFSET_UNIT_UTF8_BYTE: ("utf-8", 1),
    pb.OFFSET_UNIT_UTF16_CODE_UNIT: ("utf-16-le", 2),
}
OPTIONS = st.builds(
    pb.PruneOptions,
    threshold=st.none() | st.sampled_from([0.0, 0.02, 0.1, 0.3, 1.0]),
    keep_rule=st.sampled_from([0, 1, 2, 3]),
    top_k=st.integers(0, 6),
    min_relevance_score=st.none() | st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    order=st.sampled_from([0, 1, 2]),
    always_select_title=st.booleans(),
    min_sentences=st.integers(0, 3),
    neighbor_sentences=st.integers(0, 2),
    offset_unit=st.sampled_from([0, 1, 2, 3]),
    include_sentence_text=st.booleans(),
    include_tokens=st.booleans(),
)
REQUESTS = st.builds(
    pb.RerankAndPruneRequest,
    query=st.sampled_from(["red valve", "終 é", "what?"]),
    passages=st.lists(
        st.builds(pb.Passage, id=TEXTS, text=TEXTS, title=st.sampled_from(["", "Title 終"])),
        max_size=5,
    ),
    options=OPTIONS,
)
EXAMPLES = settings(max_examples=60)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(engine_parts={"splitter": SentenceSplitter(), "window_tokens": 24}) as it:
        yield it


async def check(server: Serving, property_of: Callable[[Any], None]) -> None:
    """Run a property with a synchronous stub in a thread."""

    def run() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            property_of(pb_grpc.RerankPruneServiceStub(channel))

    await asyncio.to_thread(run)


def cut(text: str, start: int, end: int, unit: int) -> str:
    """A slice in a unit, by way of its encoding; fails inside a character."""
    encoding, width = UNITS[unit]
    return text.encode(encoding)[start * width : end * width].decode(encoding)


def check_passage(text: str, result: pb.PrunedPassage, options: pb.PruneOptions) -> None:
    """Sentences and gaps give the text back; spans and pruned text follow from ``kept``."""
    unit = options.offset_unit
    position = 0
    rebuilt, gaps, sentences = "", [], []
    for sentence in result.sentences:
        gaps.append(cut(text, position, sentence.start_offset, unit))
        sentences.append(cut(text, sentence.start_offset, sentence.end_offset, unit))
        rebuilt += gaps[-1] + sentences[-1]
        position = sentence.end_offset
    gaps.append(cut(text, position, 1 << 40, unit))
    assert rebuilt + gaps[-1] == text
    assert not "".join(gaps).strip()
    assert all(s and not s[0].isspace() and not s[-1].isspace() for s in sentences)
    kept = [i for i, sentence in enumerate(result.sentences) if sentence.kept]
    assert result.pruned_text == "".join(
        sentences[i] + (gaps[i + 1] if i != kept[-1] else "") for i in kept
    )
    spans = [(span.start_offset, span.end_offset) for span in result.kept_spans]
    inside = [
        any(start <= s.start_offset and s.end_offset <= end for start, end in spans)
        for s in result.sentences
    ]
    assert inside == [sentence.kept for sentence in result.sentences]
    assert spans == sorted(spans)
    assert len(spans) == sum(i - 1 not in kept for i in kept)
    assert 0 <= result.compression_rate <= 1
    assert result.all_pruned == bool(text.strip() and not kept)
    assert result.HasField("relevance_score") == result.HasField("relevance_logit")
    assert [sentence.text for sentence in result.sentences] == (
        sentences if options.include_sentence_text else [""] * len(sentences)
    )


async def test_every_answer_fits_its_request(server: Serving) -> None:
    """Spans, gaps, order, and what was left out."""

    @EXAMPLES
    @given(REQUESTS)
    def holds(stub: Any, request: pb.RerankAndPruneRequest) -> None:
        answer = stub.RerankAndPrune(request, timeout=PATIENCE)
        options = request.options
        indices = [result.index for result in answer.results]
        assert len(set(indices)) == len(indices)
        assert len(indices) + answer.omitted_passage_count == len(request.passages)
        assert not options.top_k or len(indices) <= options.top_k
        for result in answer.results:
            passage = request.passages[result.index]
            assert result.id == passage.id
            assert not result.HasField("error")
            check_passage(passage.text, result, options)
        ranks = [
            (not r.HasField("relevance_logit"), -r.relevance_logit, r.index) for r in answer.results
        ]
        in_order = indices if options.order == pb.RESULT_ORDER_INPUT else ranks
        assert list(in_order) == sorted(in_order)

    await check(server, holds)


async def test_alone_together_or_streamed_the_same(server: Serving) -> None:
    """Neither the other passages nor the way of asking changes a passage's result."""

    @EXAMPLES
    @given(REQUESTS)
    def holds(stub: Any, request: pb.RerankAndPruneRequest) -> None:
        request.options.ClearField("top_k")
        request.options.ClearField("min_relevance_score")
        together = stub.RerankAndPrune(request, timeout=PATIENCE)
        by_index = {result.index: result for result in together.results}
        assert sorted(by_index) == list(range(len(request.passages)))
        calls = []
        for passage in request.passages:
            one = pb.RerankAndPruneRequest(
                query=request.query, passages=[passage], options=request.options
            )
            calls.append(stub.RerankAndPrune.future(one, timeout=PATIENCE))
        for index, call in enumerate(calls):
            (alone,) = call.result().results
            alone.index = index
            assert alone == by_index[index]
        *streamed, last = stub.RerankAndPruneStream(stream_of(request), timeout=PATIENCE)
        assert {item.result.index: item.result for item in streamed} == by_index
        assert [line.index for line in last.summary.ranking] == [
            result.index for result in together.results
        ]
        assert last.summary.usage == together.usage

    await check(server, holds)


def stream_of(request: pb.RerankAndPruneRequest) -> Any:
    """The same request as messages of a stream, two passages each."""
    start = pb.StreamStart(query=request.query, options=request.options)
    yield pb.RerankAndPruneStreamRequest(start=start)
    for first in range(0, len(request.passages), 2):
        part = pb.PassageBatch(passages=request.passages[first : first + 2])
        yield pb.RerankAndPruneStreamRequest(passages=part)


async def test_any_request_is_answered_or_refused_by_name(server: Serving) -> None:
    """Whatever it holds: OK, or an error that names a field; never INTERNAL."""
    numbers = st.sampled_from([-1, 0, 1, 7, 2**31 - 1, -(2**31)])
    shares = st.none() | st.floats(allow_nan=True, allow_infinity=True)

    @EXAMPLES
    @given(
        st.builds(
            pb.RerankAndPruneRequest,
            query=TEXTS,
            passages=st.lists(
                st.builds(
                    pb.Passage,
                    text=TEXTS,
                    title=TEXTS,
                    sentences=st.lists(
                        st.builds(pb.TextSpan, start_offset=numbers, end_offset=numbers),
                        max_size=2,
                    ),
                ),
                max_size=2,
            ),
            options=st.builds(
                pb.PruneOptions,
                threshold=shares,
                keep_rule=st.integers(0, 9),
                top_k=numbers,
                min_relevance_score=shares,
                order=st.integers(0, 9),
                min_sentences=numbers,
                neighbor_sentences=numbers,
                max_context_tokens=st.sampled_from([0, 0, 0, 5]),
                protected_patterns=st.lists(TEXTS | st.sampled_from(["(", "a*", ""]), max_size=2),
                offset_unit=st.integers(0, 9),
                language=st.sampled_from(["", "en", "xx"]),
                truncate_query=st.booleans(),
            ),
        )
    )
    def holds(stub: Any, request: pb.RerankAndPruneRequest) -> None:
        try:
            answer = stub.RerankAndPrune(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            found = details_of(error)
            code = error.code()
            if code is grpc.StatusCode.INVALID_ARGUMENT:
                assert all(v.field for v in found["BadRequest"].field_violations)
            else:
                assert code in {
                    grpc.StatusCode.UNIMPLEMENTED,
                    grpc.StatusCode.FAILED_PRECONDITION,
                }
                assert found["ErrorInfo"].metadata["field"]
        else:
            for result in answer.results:
                assert not result.HasField("error")
                check_passage(request.passages[result.index].text, result, request.options)

    await check(server, holds)
