"""Stores documents as passages; what is stored already costs nothing, so a stopped run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from secateur.errors import (
    CollectionNotFoundError,
    FieldViolation,
    InvalidRequestError,
    SecateurError,
    UnsupportedByMilvusError,
)
from secateur.milvus import collection as fields
from secateur.milvus.chunks import Chunk, cut
from secateur.milvus.collection import NAME_RULE, Collection, is_name, new_schema
from secateur.milvus.embedder import Embedder, check_embedder
from secateur.milvus.filters import render_filter
from secateur.milvus.store import MOST_ROWS, MilvusStore
from secateur.milvus.types import ChunkOptions, Document, IndexCounts

_GROUP_PASSAGES: Final = 256
"""Passages above which documents are stored before more are read, and of one write at most."""

_DELETED_AT_ONCE: Final = 1_000
MOST_ID_CHARACTERS: Final = 1_024
MOST_TITLE_CHARACTERS: Final = 2_000


class Split(Protocol):
    """Sentences of a text in a language ("" for by script), as sorted code-point ranges."""

    def __call__(self, text: str, language: str, /) -> Sequence[tuple[int, int]]: ...


class Indexer:
    """Stores documents in one collection, which is made on first use if it does not exist.

    split: blocking; called in a thread.
    embedder: fills the dense field; ``None`` makes a collection for BM25 only.
    remaining: the seconds that the caller has left, or ``None``; asked before each step.
    """

    def __init__(
        self,
        store: MilvusStore,
        collection: str,
        *,
        split: Split,
        embedder: Embedder | None = None,
        chunking: ChunkOptions | None = None,
        remaining: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._store = store
        self._name = collection
        self._split = split
        self._embedder = embedder
        self._chunking = chunking or ChunkOptions()
        self._remaining = remaining
        self._seen: set[str] = set()

    async def prepare(self) -> None:
        """Find the collection or make it; one that is half-made or not loaded is completed.

        Raises InvalidRequestError for a bad name, UnsupportedByMilvusError when the collection
        is none that Index made, or was made with another embedder, or when Milvus has no BM25
        and there is no embedder either.
        """
        if not is_name(self._name):
            raise InvalidRequestError([FieldViolation("collection", NAME_RULE)])
        try:
            found = await self._describe()
        except CollectionNotFoundError:
            await self._create(bm25=await self._has_bm25())
            found = await self._describe()
        self._check(found)
        if not await self._store.is_loaded(self._name, remaining=self._remaining()):
            await self._create(bm25=bool(found.bm25))

    async def add(self, documents: Sequence[Document]) -> IndexCounts:
        """Store documents, in place of what is stored under the same ids.

        Raises InvalidRequestError, before anything is stored, with every fault: an id that is
        empty, too long or a repetition, a title that is too long.
        """
        faults = [v for i, document in enumerate(documents) for v in self._faults(document, i)]
        if faults:
            raise InvalidRequestError(faults)
        counts = IndexCounts()
        for group in await asyncio.to_thread(lambda: list(self._groups(documents))):
            counts += await self._store_group(*group)
        return counts

    async def settle(self) -> None:
        """Return once searches find what was stored: to be called at the end.

        A Milvus server answers searches from what its nodes have taken in so far; a read of all
        makes it wait for them.
        """
        nothing = render_filter(f"{fields.ID} == {{id}}", {"id": ""})
        await self._store.query(self._name, nothing, [fields.ID], remaining=self._remaining())

    def _faults(self, document: Document, index: int) -> Iterator[FieldViolation]:
        path = f"documents[{index}]"
        if not document.id:
            yield FieldViolation(f"{path}.id", "is required")
        if document.id in self._seen:
            yield FieldViolation(f"{path}.id", f"repeats {document.id[:100]!r}", "REPEATED")
        self._seen.add(document.id)
        for name, most in (("id", MOST_ID_CHARACTERS), ("title", MOST_TITLE_CHARACTERS)):
            length = len(getattr(document, name))
            if length > most:
                description = f"has {length:,} characters, the limit is {most:,}"
                yield FieldViolation(f"{path}.{name}", description, "TOO_LONG", most)
        try:
            render_filter("{id}", {"id": document.id})
        except InvalidRequestError as error:
            yield FieldViolation(f"{path}.id", error.violations[0].description)

    def _groups(
        self, documents: Sequence[Document]
    ) -> Iterator[tuple[Sequence[Document], Sequence[Chunk]]]:
        """Documents with their passages, a limited number of passages at a time. Blocking."""
        group: list[Document] = []
        chunks: list[Chunk] = []
        for document in documents:
            sentences = self._split(document.text, self._chunking.language)
            group.append(document)
            chunks += cut(document, sentences, self._chunking.max_characters)
            if len(chunks) >= _GROUP_PASSAGES or len(group) >= _GROUP_PASSAGES:
                yield group, chunks
                group, chunks = [], []
        if group:
            yield group, chunks

    async def _store_group(
        self, documents: Sequence[Document], chunks: Sequence[Chunk]
    ) -> IndexCounts:
        stored = await self._stored([document.id for document in documents])
        wanted = {chunk.id: chunk for chunk in chunks}
        missing = [chunk for id_, chunk in wanted.items() if id_ not in stored]
        for start in range(0, len(missing), _GROUP_PASSAGES):
            await self._write(missing[start : start + _GROUP_PASSAGES])
        # Only now, so that a run that stops between both has lost nothing.
        stale = sorted(stored - wanted.keys())
        for start in range(0, len(stale), _DELETED_AT_ONCE):
            ids = stale[start : start + _DELETED_AT_ONCE]
            await self._store.delete(self._name, ids, remaining=self._remaining())
        return IndexCounts(len(documents), len(chunks), len(missing), len(stale))

    async def _stored(self, ids: Sequence[str]) -> set[str]:
        """Keys of all passages that are stored for these documents."""
        rows = await self._store.query(
            self._name,
            render_filter(f"{fields.DOCUMENT_ID} in {{ids}}", {"ids": list(ids)}),
            [fields.ID],
            remaining=self._remaining(),
        )
        if len(rows) < MOST_ROWS:
            return {row[fields.ID] for row in rows}
        if len(ids) == 1:
            raise SecateurError(f"document {ids[0]!r} has {MOST_ROWS:,} passages or more")
        half = len(ids) // 2
        return await self._stored(ids[:half]) | await self._stored(ids[half:])

    async def _write(self, chunks: Sequence[Chunk]) -> None:
        rows = [
            {
                fields.ID: chunk.id,
                fields.DOCUMENT_ID: chunk.document.id,
                fields.TITLE: chunk.document.title,
                fields.TEXT: chunk.text,
                fields.START_OFFSET: chunk.start_offset,
            }
            for chunk in chunks
        ]
        if self._embedder is not None:
            vectors = await self._embedder.embed_passages([embedded_text(c) for c in chunks])
            for row, vector in zip(rows, vectors, strict=True):
                row[fields.DENSE] = vector
        await self._store.upsert(self._name, rows, remaining=self._remaining())

    async def _describe(self) -> Collection:
        return await self._store.describe(self._name, remaining=self._remaining())

    async def _has_bm25(self) -> bool:
        """Whether Milvus has it. Raises UnsupportedByMilvusError when nothing else is left."""
        version = await self._store.version(remaining=self._remaining())
        bm25 = version.at_least(2, 5)
        if not bm25 and self._embedder is None:
            raise UnsupportedByMilvusError(
                "collection",
                "cannot be made without an embedder: BM25 needs Milvus 2.5 or newer, or "
                f"milvus-lite, and this one is {version.text}",
            )
        return bm25

    async def _create(self, *, bm25: bool) -> None:
        schema, indexes = new_schema(
            bm25=bm25, dimension=None if self._embedder is None else self._embedder.dimension
        )
        properties = (
            {} if self._embedder is None else {fields.EMBEDDER_PROPERTY: self._embedder.name}
        )
        await self._store.create(
            self._name, schema, indexes, properties=properties, remaining=self._remaining()
        )

    def _check(self, found: Collection) -> None:
        if not found.is_ours:
            raise UnsupportedByMilvusError(
                "collection", f"{self._name} is there already, and was not made by indexing"
            )
        own = self._embedder
        if own is None and found.dense:
            raise UnsupportedByMilvusError(
                "collection",
                f"{self._name} has vectors of the embedder {found.embedder}, which is not "
                "configured here",
            )
        if own is not None and not found.dense:
            raise UnsupportedByMilvusError(
                "collection", f"{self._name} was made without an embedder; use another collection"
            )
        if own is not None:
            check_embedder(found, fields.DENSE, own)


def embedded_text(chunk: Chunk) -> str:
    """What the dense vector of a passage is made of."""
    title = chunk.document.title
    return f"{title}\n{chunk.text}" if title.strip() else chunk.text
