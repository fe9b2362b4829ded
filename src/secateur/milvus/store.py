"""One Milvus, by asyncio: every call has a time limit and few retries, and errors are ours."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import grpc
from pymilvus import AnnSearchRequest, AsyncMilvusClient, MilvusClient, RRFRanker
from pymilvus.client.types import LoadState
from pymilvus.exceptions import MilvusException

from secateur.errors import DeadlineExceededError, SecateurError, UnavailableError
from secateur.milvus import lite
from secateur.milvus.collection import Collection
from secateur.milvus.faults import error_of

T = TypeVar("T")

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
MOST_ROWS: Final = 16_384
"""The most rows that one query of Milvus returns."""

_RETRIES: Final = 3  # with pauses of 0.01, 0.03 and 0.09 s; a longer outage is the caller's
_READ_ALL: Final = {"consistency_level": "Strong"}


@dataclass(frozen=True, slots=True)
class Version:
    """A Milvus version. ``lite``: milvus-lite 3, which has all modes."""

    text: str
    number: tuple[int, int]
    lite: bool

    @classmethod
    def parse(cls, text: str) -> Version:
        """From what the server says, such as ``v2.3.5`` or ``milvus_lite-3.2.2``."""
        found = re.search(r"(\d+)\.(\d+)", text)
        number = (int(found[1]), int(found[2])) if found else (0, 0)
        return cls(text, number, text.startswith("milvus_lite"))

    def at_least(self, major: int, minor: int) -> bool:
        """Whether what came with Milvus ``major.minor`` is there."""
        return self.lite or self.number >= (major, minor)


class MilvusStore:
    """A Milvus server, or a milvus-lite file in this process. Use it in one event loop.

    uri: ``http://host:port`` or another address of pymilvus, or the path of a milvus-lite file,
        which ends in ``.db``.
    timeout: seconds that each call may take in all, retries included.

    It connects on the first call, and again after a failure. ``remaining`` of each method is the
    time that the caller has left, in seconds, or ``None``. All methods raise UnavailableError
    when Milvus cannot be reached or takes longer than ``timeout``, DeadlineExceededError when
    ``remaining`` runs out, and the other errors of ``secateur.milvus.faults``.
    """

    def __init__(
        self,
        uri: str,
        *,
        token: str = "",
        database: str = "",
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._uri = uri
        self._connection = {"token": token, "db_name": database}
        self._timeout = timeout
        self._client: AsyncMilvusClient | None = None
        self._version: Version | None = None
        self._loaded: set[str] = set()
        self._opening: asyncio.Task[str] | None = None
        self._connecting = asyncio.Lock()
        self._creating = asyncio.Lock()
        # They print each failed call with its filter and a stack trace; the error says enough.
        for name in ("pymilvus", "pymilvus.milvus_client", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger("faiss").setLevel(logging.WARNING)

    @property
    def where(self) -> str:
        """The address for sentences, without credentials."""
        parts = urlsplit(self._uri)
        return parts.netloc.rpartition("@")[2] if parts.netloc else self._uri

    async def version(self, *, remaining: float | None = None) -> Version:
        """The server's version, asked once for each connection."""
        if self._version is None:
            text = await self._call("get_server_version", remaining=remaining)
            self._version = Version.parse(text)
        return self._version

    async def describe(self, collection: str, *, remaining: float | None = None) -> Collection:
        """The collection's fields. Raises CollectionNotFoundError.

        A collection of a milvus-lite file is loaded, too: in a file that was just opened none is.
        """
        found = await self._call("describe_collection", collection, remaining=remaining)
        if lite.is_file(self._uri) and collection not in self._loaded:
            await self._call("load_collection", collection, remaining=remaining)
            self._loaded.add(collection)
        return Collection.from_description(found)

    async def is_loaded(self, collection: str, *, remaining: float | None = None) -> bool:
        """Whether the collection can be searched, or soon can."""
        found = await self._call("get_load_state", collection, remaining=remaining)
        return found["state"] in {LoadState.Loaded, LoadState.Loading}

    async def search(
        self,
        collection: str,
        field: str,
        query: str | Sequence[float],
        *,
        limit: int,
        filter: str,  # noqa: A002 - pymilvus's name
        output_fields: Sequence[str],
        remaining: float | None = None,
    ) -> Sequence[Mapping[str, Any]]:
        """The best hits of one field, by text for a BM25 field and else by vector."""
        found = await self._call(
            "search",
            collection,
            data=[query],
            anns_field=field,
            limit=limit,
            filter=filter,
            output_fields=list(output_fields),
            remaining=remaining,
        )
        return list(found[0])

    async def hybrid_search(
        self,
        collection: str,
        queries: Mapping[str, str | Sequence[float]],
        *,
        limit: int,
        filter: str,  # noqa: A002 - pymilvus's name
        output_fields: Sequence[str],
        remaining: float | None = None,
    ) -> Sequence[Mapping[str, Any]]:
        """The best hits of several fields, merged by reciprocal ranks."""
        requests = [
            AnnSearchRequest([query], field, {}, limit, expr=filter or None)
            for field, query in queries.items()
        ]
        found = await self._call(
            "hybrid_search",
            collection,
            requests,
            RRFRanker(),
            limit=limit,
            output_fields=list(output_fields),
            remaining=remaining,
        )
        return list(found[0])

    async def query(
        self,
        collection: str,
        filter: str,  # noqa: A002 - pymilvus's name
        output_fields: Sequence[str],
        *,
        remaining: float | None = None,
    ) -> list[Mapping[str, Any]]:
        """At most ``MOST_ROWS`` rows that the filter lets pass, the newest writes included."""
        rows = await self._call(
            "query",
            collection,
            filter=filter,
            output_fields=list(output_fields),
            limit=MOST_ROWS,
            remaining=remaining,
            **_READ_ALL,
        )
        return list(rows)

    async def upsert(
        self,
        collection: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        remaining: float | None = None,
    ) -> None:
        """Write rows, in place of those with the same primary keys."""
        await self._call("upsert", collection, [dict(row) for row in rows], remaining=remaining)

    async def delete(
        self, collection: str, ids: Sequence[str], *, remaining: float | None = None
    ) -> None:
        """Delete rows by primary key."""
        await self._call("delete", collection, ids=list(ids), remaining=remaining)

    async def create(
        self,
        collection: str,
        schema: Any,
        indexes: Any,
        *,
        remaining: float | None = None,
        properties: Mapping[str, str],
    ) -> None:
        """Make a collection with its indexes, and load it; what is there already is left.

        So it also completes a collection whose making was stopped half-way.
        """

        def work() -> None:
            # Not the asyncio client, and no waiting for the indexes, which are of nothing yet:
            # both ask for a time stamp, which milvus-lite does not give.
            client = MilvusClient(
                address, dedicated=True, timeout=self._timeout, **self._connection
            )
            try:
                limit = {"timeout": self._timeout}
                if not client.has_collection(collection, **limit):
                    client.create_collection(
                        collection, schema=schema, properties=dict(properties), **limit
                    )
                missing = client.prepare_index_params()
                for index in indexes:
                    if not client.list_indexes(collection, index.field_name, **limit):
                        missing.append(index)
                if missing:
                    client.create_index(collection, missing, sync=False, **limit)
                client.load_collection(collection, **limit)
            finally:
                client.close()

        address = await self._run(self._opened, collection, remaining)

        async def in_a_thread() -> None:
            async with self._creating:  # milvus-lite fails when two make the same one at once
                await asyncio.to_thread(work)

        await self._run(in_a_thread, collection, remaining)

    async def close(self) -> None:
        """Disconnect, and close a milvus-lite file. May be called twice."""
        async with self._connecting:
            client, self._client = self._client, None
            if client is not None:
                await client.close()
            self._loaded.clear()
            opening, self._opening = self._opening, None
            if opening is not None:
                with suppress(SecateurError):  # then there is nothing to close
                    await opening
                    await asyncio.to_thread(lite.close_file, self._uri)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(
        self, method: str, *arguments: Any, remaining: float | None, **options: Any
    ) -> Any:
        """Call a method of the client; its first argument, if any, is the collection."""

        async def call() -> Any:
            client = await self._connected()
            return await getattr(client, method)(*arguments, retry_times=_RETRIES, **options)

        return await self._run(call, str(arguments[0]) if arguments else "", remaining)

    async def _run(
        self, work: Callable[[], Awaitable[T]], collection: str, remaining: float | None
    ) -> T:
        """Run ``work`` within the time limit, at whose end it is cancelled."""
        seconds = self._timeout if remaining is None else min(self._timeout, remaining)
        try:
            async with asyncio.timeout(seconds):
                return await work()
        except TimeoutError:
            self._version = None
            if remaining is not None and remaining <= self._timeout:
                raise DeadlineExceededError("the deadline passed while Milvus worked") from None
            raise UnavailableError(
                f"Milvus at {self.where} gave no answer within {self._timeout:g} s"
            ) from None
        except (MilvusException, grpc.RpcError) as error:
            self._version = None  # it may be another one when it is back
            raise error_of(error, where=self.where, collection=collection) from error

    async def _connected(self) -> AsyncMilvusClient:
        async with self._connecting:
            if self._client is None:
                # Of its own: a shared one could belong to another event loop.
                address = await self._opened()
                self._client = AsyncMilvusClient(address, dedicated=True, **self._connection)
            return self._client

    async def _opened(self) -> str:
        """The address to connect to, once a milvus-lite file is open."""
        if not lite.is_file(self._uri):
            return self._uri
        if self._opening is None:
            self._opening = asyncio.create_task(asyncio.to_thread(lite.open_file, self._uri))
        try:
            # A thread cannot be cancelled: whoever is next takes up where it is.
            return await asyncio.shield(self._opening)
        except SecateurError:
            self._opening = None
            raise
