"""Words of the tests on Milvus: documents, an embedder, and a server with faults."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from secateur.milvus.indexing import Indexer
from secateur.milvus.store import MilvusStore
from secateur.milvus.types import ChunkOptions, Document

DIMENSION = 32


class WordEmbedder:
    """Texts are near when they share words: one direction a word, by its bytes."""

    name = "words"
    dimension = DIMENSION

    async def embed_query(self, query: str) -> list[float]:
        """The vector of a query."""
        return vector_of(query)

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of passages."""
        return [vector_of(text) for text in texts]


def vector_of(text: str) -> list[float]:
    """Counts of words by the sum of their bytes; never all zero."""
    vector = [0.01] * DIMENSION
    for word in re.findall(r"\w+", text.lower()):
        vector[sum(word.encode()) % DIMENSION] += 1
    return vector


def sentences(text: str, _language: str = "") -> list[tuple[int, int]]:
    """Sentences end at a full stop."""
    return [match.span() for match in re.finditer(r"\S[^.]*\.?", text)]


DOCUMENTS = [
    Document("valve", "The red handle opens the valve. The valve is in the cellar.", "Valve"),
    Document("lunch", "Lunch is at noon. Soup is served on Monday.", "Canteen"),
    Document("pump", "The pump fills the tank. A green lamp shows that the pump runs.", "Pump"),
]


def indexer(store: MilvusStore, collection: str, **options: Any) -> Indexer:
    """An indexer with small passages."""
    options.setdefault("chunking", ChunkOptions(max_characters=50))
    return Indexer(store, collection, split=sentences, **options)


async def fill(store: MilvusStore, collection: str, **options: Any) -> None:
    """Store DOCUMENTS."""
    made = indexer(store, collection, **options)
    await made.prepare()
    await made.add(DOCUMENTS)
    await made.settle()


@asynccontextmanager
async def opened(uri: str | Path, **options: Any) -> AsyncIterator[MilvusStore]:
    """A store that is closed at the end."""
    async with MilvusStore(str(uri), **{"timeout": 60, **options}) as store:
        yield store


@asynccontextmanager
async def faulty_milvus(answer: Any) -> AsyncIterator[str]:
    """A server that gives every call of Milvus to ``answer``, a coroutine of (method, context)."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            method = details.method.rpartition("/")[2]

            async def call(_request: bytes, context: Any) -> bytes:
                return bytes(await answer(method, context))

            return grpc.unary_unary_rpc_method_handler(call)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def connects(method: str) -> bytes | None:
    """What a healthy server says to the calls that only look at it; ``None`` for the others."""
    from pymilvus.grpc_gen import common_pb2, milvus_pb2

    status = common_pb2.Status()
    if method == "Connect":
        return bytes(milvus_pb2.ConnectResponse(status=status, identifier=1).SerializeToString())
    if method == "GetVersion":
        return bytes(
            milvus_pb2.GetVersionResponse(status=status, version="v2.6.0").SerializeToString()
        )
    return None


async def forever() -> None:
    """Never returns."""
    await asyncio.Event().wait()
