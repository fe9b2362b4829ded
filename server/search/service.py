"""SearchService: protobuf in, protobuf out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from secateur.errors import FieldViolation, InvalidRequestError, UnsupportedByMilvusError
from secateur.milvus.chunks import faults_of
from secateur.milvus.types import ChunkOptions, Document, IndexCounts
from secateur.server.calls import Calls, Context
from secateur.server.gate import Gate
from secateur.server.gated import Gated
from secateur.server.pipeline import Pipeline
from secateur.server.search import convert
from secateur.server.search.ranker import PipelineRanker, check_size
from secateur.server.settings import ServerSettings
from secateur.types import Limits
from secateur.v1 import search_pb2 as pb
from secateur.v1 import search_pb2_grpc as pb_grpc

if TYPE_CHECKING:  # with pymilvus, which only a server with a Milvus needs
    from secateur.milvus.embedder import Embedder
    from secateur.milvus.store import MilvusStore

_SMALLER_ANSWER = "ask for fewer candidates, or set options.top_k"
_SMALLER_REQUEST = "send fewer documents a message"


class SearchService(Gated, pb_grpc.SearchServiceServicer):
    """Searches and fills ``store``. Without one, every call gets FAILED_PRECONDITION."""

    def __init__(self, settings: ServerSettings, gate: Gate, calls: Calls) -> None:
        super().__init__(gate, calls)
        self.store: MilvusStore | None = None
        self.embedder: Embedder | None = None
        self._settings = settings

    async def Search(  # noqa: N802 - the contract's name
        self, request: pb.SearchRequest, context: Context
    ) -> pb.SearchResponse:
        """Find candidates, rerank, prune and highlight them."""

        async def answer(pipeline: Pipeline) -> pb.SearchResponse:
            started = pipeline.batcher.clock()
            store = self._store()
            from secateur.milvus.searching import Searcher

            check_size(request, self._settings.max_receive_message_bytes, "send less")
            faults: list[FieldViolation] = []
            parsed = convert.search_request(request, faults)
            if faults:
                raise InvalidRequestError(faults)
            searcher = Searcher(
                store,
                ranker=PipelineRanker(pipeline),
                embedder=self.embedder,
                most_candidates=pipeline.engine.info.limits.max_passages,
            )
            found = await searcher.search(parsed, remaining=context.time_remaining())
            response = await pipeline.off_loop(convert.search_response, found)
            check_size(response, self._settings.max_send_message_bytes, _SMALLER_ANSWER)
            response.timing.total_ms = (pipeline.batcher.clock() - started) * 1_000
            return response

        return await self.run("Search", context, answer)

    async def Index(  # noqa: N802 - the contract's name
        self, request_iterator: AsyncIterator[pb.IndexRequest], context: Context
    ) -> pb.IndexResponse:
        """Cut documents into passages and store them."""

        async def answer(pipeline: Pipeline) -> pb.IndexResponse:
            store = self._store()
            from secateur.milvus.indexing import Indexer

            requests = aiter(request_iterator)
            start = await self._opening(requests, pipeline.engine.splitter.languages)
            splitter = pipeline.engine.splitter
            indexer = Indexer(
                store,
                start.collection,
                split=lambda text, language: splitter.split(text, language).spans,
                embedder=self.embedder,
                chunking=convert.chunk_options(start.chunking),
                remaining=context.time_remaining,
            )
            await indexer.prepare()
            counts = IndexCounts()
            async for request in requests:
                check_size(request, self._settings.max_receive_message_bytes, _SMALLER_REQUEST)
                kind = request.WhichOneof("message")
                if kind != "documents":
                    _refuse("start may come only once" if kind else "must be start or documents")
                documents = convert.documents(request.documents)
                _check_limits(documents, pipeline.engine.info.limits)
                counts += await indexer.add(documents)
            await indexer.settle()
            return convert.index_response(counts)

        return await self.run("Index", context, answer)

    def _store(self) -> MilvusStore:
        if self.store is None:
            raise UnsupportedByMilvusError(
                "collection", "this server has no Milvus; its operator sets milvus_uri"
            )
        return self.store

    async def _opening(
        self, requests: AsyncIterator[pb.IndexRequest], languages: Sequence[str]
    ) -> pb.IndexStart:
        first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "start":
            _refuse("the first message of a stream must be start")
        chunking: ChunkOptions = convert.chunk_options(first.start.chunking)
        if faults := faults_of(chunking, languages, "start.chunking."):
            raise InvalidRequestError(faults)
        return first.start


def _check_limits(documents: Sequence[Document], limits: Limits) -> None:
    """Raise InvalidRequestError for documents beyond the limits that passages have, too."""
    faults = []

    def check(path: str, count: int, limit: int, unit: str) -> None:
        if count > limit:
            description = f"has {count:,} {unit}, the limit is {limit:,}"
            faults.append(FieldViolation(path, description, "TOO_LARGE", limit))

    check("documents", len(documents), limits.max_passages, "documents")
    total = sum(len(d.id) + len(d.text) + len(d.title) for d in documents)
    check("documents", total, limits.max_request_characters, "characters")
    for i, document in enumerate(documents):
        path = f"documents[{i}]"
        check(f"{path}.text", len(document.text), limits.max_passage_characters, "characters")
        check(f"{path}.id", len(document.id), limits.max_id_characters, "characters")
        check(f"{path}.title", len(document.title), limits.max_title_characters, "characters")
    if faults:
        raise InvalidRequestError(faults)


def _refuse(description: str) -> NoReturn:
    raise InvalidRequestError([FieldViolation("message", description, "UNEXPECTED_MESSAGE")])
