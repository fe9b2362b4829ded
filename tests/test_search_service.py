"""SearchService over gRPC, with a fake model and a real milvus-lite file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode
from grpc_health.v1.health_pb2 import HealthCheckResponse
from milvus_harness import (
    DOCUMENTS,
    WordEmbedder,
    connects,
    faulty_milvus,
    forever,
    vector_of,
)
from server_harness import (
    PATIENCE,
    Serving,
    details_of,
    error_of,
    fields_of,
    serving,
    settings_for_test,
)

from secateur.errors import CheckpointError
from secateur.milvus.types import Document
from secateur.server.search.convert import from_value, to_value
from secateur.server.search.services import NAMES
from secateur.server.settings import SettingsError
from secateur.v1 import rerank_prune_pb2 as ranking
from secateur.v1 import search_pb2 as pb
from secateur.v1 import search_pb2_grpc as pb_grpc

SERVING = HealthCheckResponse.SERVING
QUERY = "What opens the valve?"


class Search:
    """A server with a milvus-lite file, seen from a client."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        self.stub: Any = pb_grpc.SearchServiceStub(server.channel)

    async def search(self, query: str = QUERY, **fields: Any) -> pb.SearchResponse:
        request = pb.SearchRequest(query=query, **{"collection": "c", **fields})
        response: pb.SearchResponse = await self.stub.Search(request, timeout=PATIENCE)
        return response

    async def index(
        self, documents: Iterable[Document] = DOCUMENTS, **start: Any
    ) -> pb.IndexResponse:
        messages = [
            pb.IndexRequest(start=pb.IndexStart(**{"collection": "c", **start})),
            pb.IndexRequest(
                documents=pb.DocumentBatch(
                    documents=[pb.Document(id=d.id, text=d.text, title=d.title) for d in documents]
                )
            ),
        ]
        response: pb.IndexResponse = await self.stub.Index(iter(messages), timeout=PATIENCE)
        return response


@asynccontextmanager
async def searching(
    folder: Path, *, embedder: bool = False, embedder_folder: str | None = None, **settings: Any
) -> AsyncIterator[Search]:
    settings.setdefault("milvus_uri", str(folder / "search.db"))
    settings.setdefault("milvus_timeout_seconds", 60)
    parts = {"window_tokens": 128}
    async with serving(engine_parts=parts, embedder=embedder_folder, **settings) as server:
        if embedder:
            server.app.search.service.embedder = WordEmbedder()
        yield Search(server)


async def test_index_then_search(tmp_path: Path) -> None:
    async with searching(tmp_path) as search:
        counts = await search.index()
        assert (counts.document_count, counts.passage_count) == (3, 3)
        answer = await search.search(output_fields=["document_id", "start_offset"])
        assert answer.applied_mode == pb.SEARCH_MODE_BM25
        best = answer.hits[0]
        assert best.fields["document_id"] == "valve"
        assert best.fields["start_offset"] == 0
        assert best.passage.pruned_text == DOCUMENTS[0].text
        assert best.passage.relevance_logit > answer.hits[-1].passage.relevance_logit
        assert best.passage.id == best.id
        assert best.vector_score > 0
        assert answer.timing.retrieve_ms > 0
        assert answer.model.id == "fake"


async def test_highlights_have_pymilvus_shape_and_exact_spans(tmp_path: Path) -> None:
    text = "Use <b>valves</b> & more. What opens the valve? The red handle opens the valve."
    async with searching(tmp_path) as search:
        await search.index([Document("d", text)])
        answer = await search.search(
            highlight=pb.HighlightOptions(pre_tags=["<em>"], post_tags=["</em>"])
        )
        found = answer.hits[0].highlight["text"]
        (span,) = found.spans
        assert text[span.start_offset : span.end_offset] == text[text.index("What") :]
        assert list(found.fragments) == [f"<em>{text[span.start_offset :]}</em>"]
        assert list(found.scores) == [span.probability]

        whole = await search.search(highlight=pb.HighlightOptions(highlight_only=False))
        (fragment,) = whole.hits[0].highlight["text"].fragments
        assert fragment.startswith("Use &lt;b&gt;valves&lt;/b&gt; &amp; more. <mark>What")

        none = await search.search(highlight=pb.HighlightOptions(threshold=1.0))
        assert none.hits[0].highlight["text"] == pb.FieldHighlight()
        assert none.hits[0].passage.pruned_text  # its own threshold


async def test_offsets_in_another_unit(tmp_path: Path) -> None:
    text = "👍 ok. What opens the valve."
    async with searching(tmp_path) as search:
        await search.index([Document("d", text)])
        options = ranking.PruneOptions(offset_unit=ranking.OFFSET_UNIT_UTF8_BYTE)
        answer = await search.search(options=options, highlight=pb.HighlightOptions())
        found = answer.hits[0].highlight["text"]
        assert found.spans[0].start_offset == text.encode().index(b"What")
        assert list(found.fragments) == ["<mark>What opens the valve.</mark>"]


async def test_all_modes_on_lite(tmp_path: Path) -> None:
    vector = vector_of(QUERY)
    async with searching(tmp_path, embedder=True) as search:
        await search.index()
        for mode in (pb.SEARCH_MODE_DENSE, pb.SEARCH_MODE_BM25, pb.SEARCH_MODE_HYBRID):
            answer = await search.search(mode=mode)
            assert answer.applied_mode == mode
            assert answer.hits[0].text == DOCUMENTS[0].text, mode
        assert (await search.search()).applied_mode == pb.SEARCH_MODE_HYBRID
        # The caller's own vector, with and without a query.
        dense = await search.search(mode=pb.SEARCH_MODE_DENSE, vector=vector)
        assert dense.timing.embed_ms == 0
        assert dense.hits[0].HasField("passage")
        alone = await search.search("", vector=vector, candidate_count=2)
        assert [hit.text for hit in alone.hits] == [hit.text for hit in dense.hits][:2]
        assert alone.applied_mode == pb.SEARCH_MODE_DENSE
        assert not alone.hits[0].HasField("passage")
        assert not alone.HasField("model")


async def test_modes_of_an_old_server(tmp_path: Path, real_milvus: str) -> None:
    async with searching(tmp_path, embedder=True, milvus_uri=real_milvus) as search:
        await search.index(collection="modes")
        dense = await search.search(collection="modes", title_field="title")
        assert dense.applied_mode == pb.SEARCH_MODE_DENSE
        assert dense.hits[0].text == DOCUMENTS[0].text
        for mode in (pb.SEARCH_MODE_BM25, pb.SEARCH_MODE_HYBRID):
            error = await error_of(search.search(collection="modes", mode=mode))
            assert error.code() is StatusCode.FAILED_PRECONDITION
            assert "Milvus 2.5 or newer" in (error.details() or "")
            assert details_of(error)["ErrorInfo"].metadata["field"] == "mode"


@pytest.mark.parametrize("mode", [pb.SEARCH_MODE_DENSE, pb.SEARCH_MODE_HYBRID])
async def test_dense_without_an_embedder(tmp_path: Path, mode: int) -> None:
    async with searching(tmp_path, embedder=True) as search:
        await search.index()
        search.server.app.search.service.embedder = None
        error = await error_of(search.search(mode=mode))
        assert error.code() is StatusCode.FAILED_PRECONDITION
        assert "embedder" in (error.details() or "")
        assert (await search.search()).applied_mode == pb.SEARCH_MODE_BM25


async def test_filters_with_values(tmp_path: Path) -> None:
    async with searching(tmp_path) as search:
        hostile = '") or true or ("'
        await search.index([*DOCUMENTS, Document(hostile, "A valve opens.")])

        async def ids(expression: str, **params: Any) -> list[str]:
            answer = await search.search(
                "valve pump lunch",
                filter=expression,
                filter_params=params,
                output_fields=["document_id"],
            )
            return sorted(str(hit.fields["document_id"]) for hit in answer.hits)

        assert await ids("document_id == {d}", d=hostile) == [hostile]
        assert await ids("document_id in {d}", d=["pump", "valve"]) == ["pump", "valve"]
        assert await ids("document_id == {d}", d="nobody") == []
        assert len(await ids("start_offset >= {n}", n=0)) >= 3


async def test_empty_collection_and_no_hits(tmp_path: Path) -> None:
    async with searching(tmp_path) as search:
        counts = await search.index([])
        assert counts == pb.IndexResponse()
        empty = await search.search(highlight=pb.HighlightOptions())
        assert not empty.hits
        assert empty.candidate_count == 0
        assert empty.model.id == "fake"
        assert empty.applied_threshold == pytest.approx(0.1)
        await search.index()
        none = await search.search("xyzzy")
        assert not none.hits
        assert none.applied_mode == pb.SEARCH_MODE_BM25


async def test_ranking_options_shape_the_hits(tmp_path: Path) -> None:
    async with searching(tmp_path) as search:
        await search.index()
        options = ranking.PruneOptions(top_k=1, include_sentence_text=True)
        answer = await search.search("valve pump lunch is", options=options)
        assert len(answer.hits) == 1
        assert answer.omitted_hit_count == 2
        assert answer.hits[0].passage.sentences[0].text
        order = ranking.PruneOptions(order=ranking.RESULT_ORDER_INPUT)
        answer = await search.search("valve pump lunch is", options=order)
        scores = [hit.vector_score for hit in answer.hits]
        assert scores == sorted(scores, reverse=True)
        assert [hit.passage.index for hit in answer.hits] == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({"collection": ""}, ["collection"]),
        ({"collection": "no-name"}, ["collection"]),
        ({"query": ""}, ["query"]),
        ({"query": " "}, ["query"]),
        ({"candidate_count": 1_001}, ["candidate_count"]),
        ({"candidate_count": -1}, ["candidate_count"]),
        ({"mode": 9}, ["mode"]),
        ({"vector": [float("nan")]}, ["vector"]),
        ({"vector": [1.0], "mode": pb.SEARCH_MODE_BM25}, ["vector"]),
        ({"filter": "id == {x}"}, ["filter"]),
        ({"filter": "id ==== 3"}, ["filter"]),
        ({"text_field": "body"}, ["text_field"]),
        ({"title_field": "sparse"}, ["title_field"]),
        ({"vector_field": "text"}, ["vector_field"]),
        ({"output_fields": ["id", "sparse"]}, ["output_fields[1]"]),
        ({"highlight": pb.HighlightOptions(pre_tags=["a", "b"])}, ["highlight.post_tags"]),
        ({"highlight": pb.HighlightOptions(threshold=2)}, ["highlight.threshold"]),
        ({"options": ranking.PruneOptions(threshold=2)}, ["options.threshold"]),
        (
            {"query": "", "vector": [1.0], "options": ranking.PruneOptions(top_k=1)},
            ["options"],
        ),
        (
            {
                "query": " ",
                "candidate_count": -1,
                "filter": "{x}",
                "options": ranking.PruneOptions(top_k=-1),
            },
            ["candidate_count", "filter", "query", "options.top_k"],
        ),
    ],
    ids=str,
)
async def test_faults_of_a_search(tmp_path: Path, fields: dict[str, Any], paths: list[str]) -> None:
    async with searching(tmp_path) as search:
        await search.index()
        error = await error_of(search.search(**fields))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert fields_of(error) == paths


async def test_a_vector_of_another_dimension(tmp_path: Path) -> None:
    async with searching(tmp_path, embedder=True) as search:
        await search.index()
        error = await error_of(search.search(vector=[1.0, 2.0]))
        assert fields_of(error) == ["vector"]


async def test_candidates_beyond_the_limits_of_a_request(tmp_path: Path) -> None:
    async with searching(tmp_path, max_request_tokens=1_000) as search:
        text = "valve " * 100
        await search.index(Document(str(i), text) for i in range(15))
        error = await error_of(search.search("valve"))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert fields_of(error) == ["candidate_count"]
        assert len((await search.search("valve", candidate_count=5)).hits) == 5


async def test_no_such_collection(tmp_path: Path) -> None:
    async with searching(tmp_path) as search:
        error = await error_of(search.search(collection="nothing"))
        assert error.code() is StatusCode.NOT_FOUND
        assert details_of(error)["ErrorInfo"].reason == "COLLECTION_NOT_FOUND"


async def test_a_server_without_milvus() -> None:
    async with serving() as server:
        search = Search(server)
        for call in (search.search(), search.index()):
            error = await error_of(call)
            assert error.code() is StatusCode.FAILED_PRECONDITION
            assert "milvus_uri" in (error.details() or "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embedder": "folder"}, "embedder needs milvus_uri"),
        ({"milvus_uri": "http://me:secret@host:1"}, "milvus_uri holds credentials"),
        ({"milvus_uri": ""}, "milvus-uri"),
        ({"milvus_uri": "m.db", "milvus_timeout_seconds": 0}, "milvus-timeout-seconds"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        settings_for_test(**settings)
    assert "secret" not in str(caught.value)


async def test_a_bad_embedder_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        async with searching(tmp_path, embedder_folder=str(tmp_path)):
            pass


async def test_milvus_out_of_reach(tmp_path: Path) -> None:
    async with searching(tmp_path, milvus_uri="http://127.0.0.1:9") as search:
        error = await error_of(search.search())
        assert error.code() is StatusCode.UNAVAILABLE
        answer = await search.server.rerank("valve", ["The valve."])
        assert answer.results[0].pruned_text == "The valve."  # the rest goes on


async def test_the_loop_goes_on_and_the_deadline_holds_while_milvus_hangs(tmp_path: Path) -> None:
    async def answer(method: str, _context: Any) -> bytes:
        if healthy := await connects(method):
            return healthy
        hanging.set()
        await forever()
        raise AssertionError

    hanging = asyncio.Event()
    async with (
        faulty_milvus(answer) as uri,
        searching(tmp_path, milvus_uri=uri) as search,
    ):
        request = pb.SearchRequest(query=QUERY, collection="c")
        slow = asyncio.ensure_future(search.stub.Search(request, timeout=3))
        await asyncio.wait_for(hanging.wait(), PATIENCE)
        assert (await search.server.rerank("valve", ["The valve."])).results
        error = await error_of(slow)
        assert error.code() is StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([], "message"),
        ([pb.IndexRequest()], "message"),
        ([pb.IndexRequest(documents=pb.DocumentBatch())], "message"),
        ([pb.IndexRequest(start=pb.IndexStart(collection="c"))] * 2, "message"),
        ([pb.IndexRequest(start=pb.IndexStart(collection="1c"))], "collection"),
        (
            [
                pb.IndexRequest(
                    start=pb.IndexStart(collection="c", chunking=pb.ChunkOptions(max_characters=10))
                )
            ],
            "start.chunking.max_characters",
        ),
    ],
    ids=str,
)
async def test_faults_of_an_index_stream(
    tmp_path: Path, messages: list[pb.IndexRequest], path: str
) -> None:
    async with searching(tmp_path) as search:
        error = await error_of(search.stub.Index(iter(messages), timeout=PATIENCE))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert fields_of(error) == [path]


async def test_documents_beyond_the_limits(tmp_path: Path) -> None:
    async with searching(tmp_path, max_passages=2, max_passage_characters=100) as search:
        long = Document("long", "word " * 100)
        error = await error_of(search.index([DOCUMENTS[0], DOCUMENTS[1], long, long]))
        assert fields_of(error) == ["documents", "documents[2].text", "documents[3].text"]


async def test_health_and_reflection_name_the_services(tmp_path: Path) -> None:
    async with searching(tmp_path) as search:
        for name in NAMES:
            assert await search.server.health(name) == SERVING


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (2**53, 2**53),
        (2**53 + 1, str(2**53 + 1)),
        (0.5, 0.5),
        (float("inf"), "inf"),
        (True, True),
        (None, None),
        ({"a": [1, "x"]}, {"a": [1, "x"]}),
    ],
)
def test_values_of_fields(value: Any, field: Any) -> None:
    assert from_value(to_value(value)) == field
