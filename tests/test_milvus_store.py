"""The store on milvus-lite and on a real Milvus: writes, searches, faults, time limits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from milvus_harness import (
    DIMENSION,
    DOCUMENTS,
    WordEmbedder,
    connects,
    faulty_milvus,
    fill,
    forever,
    indexer,
    opened,
    vector_of,
)
from pymilvus import MilvusClient

from secateur.errors import (
    CollectionNotFoundError,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
    SecateurError,
    UnavailableError,
    UnsupportedByMilvusError,
)
from secateur.milvus import lite, render_filter
from secateur.milvus.collection import new_schema
from secateur.milvus.store import MilvusStore, Version
from secateur.milvus.types import ChunkOptions, Document

ODD_IDS = ['a"b', "a\\", '") or true or ("', "a\nb", "it's", "a\tb\r", "終", "{x}", "\u2028"]


@pytest.fixture(params=["lite", "real"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MilvusStore]:
    """Each of both."""
    real = request.param == "real"
    uri = request.getfixturevalue("real_milvus") if real else str(tmp_path / "m.db")
    async with opened(uri) as made:
        yield made


async def ids(store: MilvusStore, collection: str, expression: str = 'id != ""') -> set[str]:
    rows = await store.query(collection, expression, ["document_id"])
    return {str(row["document_id"]) for row in rows}


async def test_index_is_idempotent_and_replaces(store: MilvusStore) -> None:
    first = indexer(store, "replaced", embedder=WordEmbedder())
    await first.prepare()
    counts = await first.add(DOCUMENTS)
    assert (counts.document_count, counts.passage_count) == (3, 5)
    assert (counts.added_passage_count, counts.removed_passage_count) == (5, 0)

    again = indexer(store, "replaced", embedder=WordEmbedder())
    await again.prepare()
    counts = await again.add(DOCUMENTS)
    assert (counts.added_passage_count, counts.removed_passage_count) == (0, 0)

    changed = indexer(store, "replaced", embedder=WordEmbedder())
    await changed.prepare()
    text = DOCUMENTS[0].text.replace("in the cellar", "on the roof")
    counts = await changed.add([Document("valve", text, "Valve"), Document("lunch", " ")])
    assert (counts.added_passage_count, counts.removed_passage_count) == (1, 2)
    assert await ids(store, "replaced") == {"valve", "pump"}
    rows = await store.query("replaced", 'document_id == "valve"', ["text", "start_offset"])
    assert all(text[row["start_offset"] :].startswith(row["text"]) for row in rows)


async def test_a_run_that_stopped_goes_on(store: MilvusStore) -> None:
    """What was written before the failure is not written again."""

    class Failing(WordEmbedder):
        async def embed_passages(self, texts: Any) -> list[list[float]]:
            if any("tank" in text for text in texts):
                raise SecateurError("out of power")
            return await super().embed_passages(texts)

    stopped = indexer(store, "resumed", embedder=Failing())
    await stopped.prepare()
    await stopped.add(DOCUMENTS[:2])
    with pytest.raises(SecateurError, match="power"):
        await stopped.add(DOCUMENTS[2:])
    resumed = indexer(store, "resumed", embedder=WordEmbedder())
    await resumed.prepare()
    counts = await resumed.add(DOCUMENTS)
    assert (counts.passage_count, counts.added_passage_count) == (5, 2)


async def test_two_that_make_the_same_collection(store: MilvusStore) -> None:
    await asyncio.gather(*(fill(store, "raced", embedder=WordEmbedder()) for _ in range(4)))
    assert await ids(store, "raced") == {d.id for d in DOCUMENTS}


@pytest.mark.parametrize("indexed", [False, True])
async def test_a_half_made_collection_is_completed(real_milvus: str, indexed: bool) -> None:
    client = MilvusClient(real_milvus)
    schema, indexes = new_schema(bm25=False, dimension=DIMENSION)
    name = f"half_made_{indexed}"
    client.create_collection(name, schema=schema)
    if indexed:
        client.create_index(name, indexes)
    client.close()
    async with opened(real_milvus) as store:
        await fill(store, name, embedder=WordEmbedder())
        assert await ids(store, name) == {d.id for d in DOCUMENTS}
        found = await store.search(
            name, "dense", vector_of("valve"), limit=1, filter="", output_fields=["document_id"]
        )
        assert found[0]["entity"]["document_id"] == "valve"


async def test_odd_ids_are_stored_and_found(store: MilvusStore) -> None:
    made = indexer(store, "odd", embedder=WordEmbedder())
    await made.prepare()
    await made.add([Document(id_, f"Text {i}.") for i, id_ in enumerate(ODD_IDS)])
    assert await ids(store, "odd") == set(ODD_IDS)
    for odd in ODD_IDS:
        assert await ids(store, "odd", render_filter("document_id == {d}", {"d": odd})) == {odd}
    some = ODD_IDS[:3]
    assert await ids(store, "odd", render_filter("document_id in {d}", {"d": some})) == set(some)
    assert await ids(store, "odd", render_filter("document_id in {d}", {"d": []})) == set()


async def test_the_longest_texts_fit(store: MilvusStore) -> None:
    """In bytes, which the real server counts: four for each of these characters."""
    text = "👍" * 16_000
    made = indexer(
        store, "long", embedder=WordEmbedder(), chunking=ChunkOptions(max_characters=16_000)
    )
    await made.prepare()
    counts = await made.add([Document("👍" * 1_024, text, "👍" * 2_000)])
    assert counts.added_passage_count == 1
    (row,) = await store.query("long", 'id != ""', ["text", "title", "document_id"])
    assert (row["text"], row["title"]) == (text, "👍" * 2_000)


async def test_dense_search_with_a_filter(store: MilvusStore) -> None:
    await fill(store, "dense", embedder=WordEmbedder())
    found = await store.search(
        "dense",
        "dense",
        vector_of("the red handle opens the valve"),
        limit=2,
        filter='document_id != "valve"',
        output_fields=["document_id"],
    )
    assert len(found) == 2
    assert "valve" not in {hit["entity"]["document_id"] for hit in found}


async def test_a_collection_that_is_not_there(store: MilvusStore) -> None:
    with pytest.raises(CollectionNotFoundError, match="'nothing'"):
        await store.describe("nothing")


async def test_a_filter_that_milvus_cannot_read(store: MilvusStore) -> None:
    await fill(store, "filtered", embedder=WordEmbedder())
    with pytest.raises(InvalidRequestError, match="filter: Milvus cannot read it") as caught:
        await store.query("filtered", "id ==== 3", ["id"])
    assert caught.value.violations[0].reason == "BAD_FILTER"


async def test_a_collection_that_is_not_loaded(real_milvus: str) -> None:
    async with opened(real_milvus) as store:
        await fill(store, "released", embedder=WordEmbedder())
        assert store._client is not None
        await store._client.release_collection("released")
        with pytest.raises(UnsupportedByMilvusError, match="released is not loaded"):
            await store.search(
                "released", "dense", vector_of("x"), limit=1, filter="", output_fields=[]
            )


async def test_index_refuses_what_it_did_not_make(store: MilvusStore) -> None:
    schema, indexes = new_schema(bm25=False, dimension=8)
    schema.add_field("extra", schema.fields[0].dtype, max_length=8)
    await store.create("foreign", schema, indexes, properties={})
    with pytest.raises(UnsupportedByMilvusError, match="was not made by indexing"):
        await indexer(store, "foreign", embedder=WordEmbedder()).prepare()


async def test_embedders_do_not_mix(store: MilvusStore) -> None:
    await fill(store, "embedded", embedder=WordEmbedder())
    other = WordEmbedder()
    other.name = "others"
    with pytest.raises(UnsupportedByMilvusError, match=f"vectors of words with {DIMENSION}"):
        await indexer(store, "embedded", embedder=other).prepare()
    with pytest.raises(UnsupportedByMilvusError, match="embedder words, which is not configured"):
        await indexer(store, "embedded").prepare()


async def test_an_old_server_needs_an_embedder(real_milvus: str) -> None:
    async with opened(real_milvus) as store:
        assert (await store.version()).number == (2, 3)
        with pytest.raises(UnsupportedByMilvusError, match=r"BM25 needs Milvus 2\.5 .* v2\.3\.5"):
            await indexer(store, "textonly").prepare()


async def test_lite_without_an_embedder_takes_none_later(tmp_path: Path) -> None:
    async with opened(tmp_path / "m.db") as store:
        await fill(store, "c")
        with pytest.raises(UnsupportedByMilvusError, match="made without an embedder"):
            await indexer(store, "c", embedder=WordEmbedder()).prepare()


async def test_faults_of_documents(tmp_path: Path) -> None:
    async with opened(tmp_path / "m.db") as store:
        made = indexer(store, "c")
        await made.prepare()
        bad = [
            Document("", "text"),
            Document("a" * 1_025, "text"),
            Document("b", "text", "t" * 2_001),
            Document("b", "text"),
            Document("c\x00", "text"),
        ]
        with pytest.raises(InvalidRequestError) as caught:
            await made.add(bad)
        assert [v.field for v in caught.value.violations] == [
            "documents[0].id",
            "documents[1].id",
            "documents[2].title",
            "documents[3].id",
            "documents[4].id",
        ]
        assert await ids(store, "c") == set()
        with pytest.raises(InvalidRequestError, match="letters, digits"):
            await indexer(store, "no-name").prepare()


async def test_a_closed_file_opens_again(tmp_path: Path) -> None:
    for _ in range(2):
        async with opened(tmp_path / "m.db") as store:
            await fill(store, "c")
            await store.describe("c")  # loads it
            found = await store.search(
                "c", "sparse", "pump", limit=5, filter="", output_fields=["text"]
            )
            assert "pump" in found[0]["entity"]["text"]


async def test_two_stores_of_a_process_share_a_file(tmp_path: Path) -> None:
    async with opened(tmp_path / "m.db") as first:
        await fill(first, "c")
        async with opened(tmp_path / "m.db") as second:
            assert await ids(second, "c") == {"valve", "lunch", "pump"}
        assert await ids(first, "c") == {"valve", "lunch", "pump"}


@contextmanager
def held_open(file: Path) -> Iterator[Callable[[], object]]:
    """The file is open in another process, until what this yields is called."""
    hold = (
        "import sys; from secateur.milvus import lite\n"
        f"lite.open_file({str(file)!r}); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield lambda: process.communicate("")


async def test_a_second_process_gets_one_clear_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "m.db"
    with held_open(file) as let_go:
        async with opened(file) as store:
            for _ in range(2):
                with pytest.raises(UnavailableError, match="is open in another process"):
                    await store.describe("c")
            let_go()
            with pytest.raises(CollectionNotFoundError):
                await store.describe("c")
    assert not [record for record in caplog.records if record.exc_info]


def test_a_file_of_milvus_lite_2(tmp_path: Path) -> None:
    (tmp_path / "old.db").write_bytes(b"SQLite format 3\x00")
    with pytest.raises(SecateurError, match="milvus-lite 2"):
        lite.open_file(str(tmp_path / "old.db"))


@pytest.mark.parametrize(
    ("uri", "is_file"),
    [("m.db", True), ("/a/m.db", True), ("http://h:1", False), ("https://h/m.db", False)],
)
def test_which_addresses_are_files(uri: str, is_file: bool) -> None:
    assert lite.is_file(uri) is is_file


@pytest.mark.parametrize(
    ("text", "number", "has_bm25"),
    [
        ("v2.3.5-lite", (2, 3), False),
        ("v2.5.0", (2, 5), True),
        ("2.6.9", (2, 6), True),
        ("v3.0.1", (3, 0), True),
        ("milvus_lite-3.2.2", (3, 2), True),
        ("odd", (0, 0), False),
    ],
)
def test_versions(text: str, number: tuple[int, int], has_bm25: bool) -> None:
    version = Version.parse(text)
    assert version.number == number
    assert version.at_least(2, 5) is has_bm25


async def test_a_dead_milvus_is_unavailable_after_few_tries() -> None:
    tries: list[str] = []

    async def answer(method: str, context: Any) -> bytes:
        if healthy := await connects(method):
            return healthy
        tries.append(method)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        raise AssertionError

    async with faulty_milvus(answer) as uri, opened(uri) as store:
        with pytest.raises(UnavailableError, match=r"Milvus at 127\.0\.0\.1:\d+ cannot be reached"):
            await store.describe("c")
        assert 2 <= len(tries) <= 5


async def test_nobody_listens() -> None:
    async with faulty_milvus(connects) as uri:
        pass
    async with opened(uri.replace("//", "//user:secret@")) as store:
        with pytest.raises(UnavailableError) as caught:
            await store.describe("c")
        assert "secret" not in str(caught.value)


async def test_a_slow_milvus_is_unavailable_and_its_call_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def answer(method: str, _context: Any) -> bytes:
        if healthy := await connects(method):
            return healthy
        try:
            await forever()
        finally:
            cancelled.set()
        raise AssertionError

    async with faulty_milvus(answer) as uri, opened(uri, timeout=0.5) as store:
        assert (await store.version()).number == (2, 6)
        with pytest.raises(UnavailableError, match=r"no answer within 0\.5 s"):
            await store.describe("c")
        await asyncio.wait_for(cancelled.wait(), 60)


async def test_the_callers_deadline_comes_first() -> None:
    async def answer(method: str, _context: Any) -> bytes:
        return await connects(method) or b"" if method != "DescribeCollection" else await never()

    async def never() -> bytes:
        await forever()
        raise AssertionError

    async with faulty_milvus(answer) as uri, opened(uri) as store:
        with pytest.raises(DeadlineExceededError):
            await store.describe("c", remaining=0.2)
        with pytest.raises(DeadlineExceededError):
            await store.describe("c", remaining=-1)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, UnsupportedByMilvusError),
        (grpc.StatusCode.UNAUTHENTICATED, UnsupportedByMilvusError),
        (grpc.StatusCode.PERMISSION_DENIED, UnsupportedByMilvusError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, UnavailableError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, SecateurError),
    ],
)
async def test_statuses_of_milvus(code: grpc.StatusCode, expected: type[Exception]) -> None:
    async def answer(method: str, context: Any) -> bytes:
        if healthy := await connects(method):
            return healthy
        await context.abort(code, "detail")
        raise AssertionError

    async with faulty_milvus(answer) as uri, opened(uri) as store:
        with pytest.raises(expected):
            await store.describe("c")


async def test_a_milvus_with_too_many_calls() -> None:
    from pymilvus.grpc_gen import common_pb2, milvus_pb2

    async def answer(method: str, _context: Any) -> bytes:
        if healthy := await connects(method):
            return healthy
        status = common_pb2.Status(code=8, reason="rate limit exceeded")
        response = milvus_pb2.DescribeCollectionResponse(status=status)
        return bytes(response.SerializeToString())

    async with faulty_milvus(answer) as uri, opened(uri, timeout=1) as store:
        with pytest.raises((OverloadedError, UnavailableError)):
            await store.describe("c")
