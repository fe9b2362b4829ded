"""A real grpc.aio server on a free port with the fake model, and words to talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from fakes import FakeScorer, make_engine
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from secateur.model.engine import Engine
from secateur.server.app import App
from secateur.server.batcher import Batcher
from secateur.server.settings import ServerSettings, load_settings
from secateur.v1 import rerank_prune_pb2 as pb
from secateur.v1 import rerank_prune_pb2_grpc as pb_grpc

PATIENCE = 60
"""Seconds after which a test that waits for an event has failed; no test waits for time."""


@dataclass
class Serving:
    """A running server seen from a client, and what a test may look at inside."""

    app: App
    port: int
    channel: grpc.aio.Channel
    scorer: FakeScorer
    enqueued: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    left: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    @property
    def stub(self) -> Any:
        """The service's asyncio stub."""
        return pb_grpc.RerankPruneServiceStub(self.channel)

    @property
    def batcher(self) -> Batcher:
        """The server's batcher."""
        assert self.app.batcher is not None
        return self.app.batcher

    async def health(self, service: str = "") -> int:
        """The health status of a service."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        request = health_pb2.HealthCheckRequest(service=service)
        response = await stub.Check(request, timeout=PATIENCE)
        return int(response.status)

    async def rerank(
        self, query: str, texts: Sequence[str], **options: Any
    ) -> pb.RerankAndPruneResponse:
        """One unary call."""
        response: pb.RerankAndPruneResponse = await self.stub.RerankAndPrune(
            rerank_request(query, texts, **options), timeout=PATIENCE
        )
        return response

    def watch(self) -> None:
        """Note each time a call's windows join the queue, and each time a call is over."""
        put, enter = self.batcher.enqueue, self.app.gate.enter

        def enqueue(*args: Any) -> None:
            put(*args)
            self.enqueued.put_nowait(None)

        @contextmanager
        def inside() -> Iterator[None]:
            try:
                with enter():
                    yield
            finally:
                self.left.put_nowait(None)

        self.batcher.enqueue = enqueue  # type: ignore[method-assign,assignment]
        self.app.gate.enter = inside  # type: ignore[method-assign]


def rerank_request(query: str, texts: Sequence[str], **options: Any) -> pb.RerankAndPruneRequest:
    """A request whose passages have only text."""
    return pb.RerankAndPruneRequest(
        query=query,
        passages=[pb.Passage(text=text) for text in texts],
        options=pb.PruneOptions(**options),
    )


def settings_for_test(**flags: Any) -> ServerSettings:
    """Settings on a free port, with a drain that no passing test waits out, and no cache."""
    quiet = {"port": 0, "threads": 2, "drain_seconds": PATIENCE, "cache_bytes": 0}
    return load_settings(**{**quiet, **flags})


@asynccontextmanager
async def serving(
    *,
    scorer: FakeScorer | None = None,
    warm: bool = True,
    load: Callable[[ServerSettings], Engine] | None = None,
    engine_parts: dict[str, Any] | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    **flags: Any,
) -> AsyncIterator[Serving]:
    """A server with the fake model; with ``warm`` it serves, else it only listens.

    flags: settings. engine_parts: for ``make_engine``. credentials: of the channel. The scorer's
    ``batches`` start empty.
    """
    scorer = scorer or FakeScorer()
    settings = settings_for_test(**flags)

    def load_fake(given: ServerSettings) -> Engine:
        return make_engine(scorer=scorer, limits=given.limits, **(engine_parts or {}))

    app = App(settings, load or load_fake)
    port = await app.start()
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    target = f"127.0.0.1:{port}"
    async with (
        grpc.aio.insecure_channel(target, options=options)
        if credentials is None
        else grpc.aio.secure_channel(target, credentials, options=options)
    ) as channel:
        server = Serving(app=app, port=port, channel=channel, scorer=scorer)
        try:
            if warm:
                await app.warm_up()
                server.watch()
            scorer.batches.clear()
            scorer.started.clear()
            yield server
        finally:
            if scorer.gate is not None:
                scorer.gate.set()
            hurry = asyncio.Event()
            hurry.set()
            await app.drain(hurry)


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    """The error of a call that must fail."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call did not fail")


def details_of(error: Any) -> dict[str, Any]:
    """The google.rpc details of an error by type name; ErrorInfo is always there."""
    status = rpc_status.from_call(error)
    assert status is not None
    found: dict[str, Any] = {}
    kinds: tuple[type[Message], ...] = (
        error_details_pb2.ErrorInfo,
        error_details_pb2.BadRequest,
        error_details_pb2.RetryInfo,
    )
    for detail in status.details:
        for kind in kinds:
            if detail.Is(kind.DESCRIPTOR):
                message = kind()
                detail.Unpack(message)
                found[kind.DESCRIPTOR.name] = message
    assert found["ErrorInfo"].domain == "secateur"
    return found


def fields_of(error: Any) -> list[str]:
    """The paths of an invalid request's violations."""
    return [v.field for v in details_of(error)["BadRequest"].field_violations]
