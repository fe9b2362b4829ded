"""A thin synchronous client of a running Secateur server.

    with Client("localhost:50051") as client:
        answer = client.rerank_and_prune("Who feeds the boiler?", passages)

It takes and gives the same types as ``secateur.Pruner`` and raises the same errors, so that one
can stand in for the other. Needs the base install only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from secateur import _convert, _defaults, v1
from secateur._channel import bearer, channel_options, open_channel, pauses
from secateur._client_stream import RequestStream
from secateur._proto_enums import to_number
from secateur._rpc_errors import error_from_rpc
from secateur._tls import Tls
from secateur.errors import FieldViolation, InvalidRequestError, UnavailableError
from secateur.types import (
    FragmentFormat,
    HighlightedPassages,
    ModelInfo,
    Passage,
    PrunedPassage,
    PruneOptions,
    RankedPassages,
    StreamSummary,
)

DEFAULT_MAX_MESSAGE_BYTES = 64 << 20
STREAM_BATCH_PASSAGES = 16

_DEFAULT_OPTIONS = PruneOptions()


class Client:
    """Calls one Secateur server. Thread-safe; close it, or use it as a context manager.

    target: gRPC target, such as ``localhost:50051`` or ``dns:///secateur:50051``.
    timeout: seconds that each call may take in all, retries included, > 0 and finite; every
        method takes its own to override it.
    max_message_bytes: largest message either way, > 0. A larger request is refused before it is
        sent; the server has its own limits.
    max_attempts: tries of a call that fails with UNAVAILABLE, >= 1, with pauses that grow from
        0.1 to 2 s; ``None`` is as many as its timeout allows, which outlasts a server's restart.
        A stream is tried up to 5 times, and only while it has had no answer. Nothing else is
        tried again.
    tls: how to trust the server, and what to show it; ``None`` is plain text.
    token: sent with every call as ``authorization: Bearer TOKEN``. In plain text everyone on
        the way can read it.
    credentials: of the channel, in place of ``tls``, for what that has no words for.
    metadata: (key, value) pairs sent with every call.

    Raises ValueError for arguments outside these ranges and TLS files that cannot be read.
    Every method raises the errors of ``secateur.errors``: InvalidRequestError with all
    violations, UnsupportedByModelError, NotImplementedOptionError, OverloadedError,
    DeadlineExceededError, UnavailableError (the server cannot be reached, or is not ready),
    UnauthenticatedError, InvariantError; SecateurError for any other status.
    """

    def __init__(
        self,
        target: str = _defaults.TARGET,
        *,
        timeout: float = _defaults.TIMEOUT_SECONDS,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        max_attempts: int | None = _defaults.MAX_ATTEMPTS,
        tls: Tls | None = None,
        token: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> None:
        if max_message_bytes < 1:
            raise ValueError(f"max_message_bytes must be at least 1, not {max_message_bytes}")
        if max_attempts is not None and max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {max_attempts}")
        self.target = target
        self._timeout = _checked_timeout(timeout)
        self._max_message_bytes = max_message_bytes
        self._max_attempts = max_attempts
        self._metadata = (*metadata, *([] if token is None else [bearer(token)]))
        options = channel_options(max_message_bytes, max_attempts)
        self._channel = open_channel(target, options, tls=tls, credentials=credentials)
        self._stub = v1.RerankPruneServiceStub(self._channel)

    def rerank_and_prune(
        self,
        query: str,
        passages: Sequence[Passage | str],
        options: PruneOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> RankedPassages:
        """Rank the passages for the query and prune each to its relevant sentences."""
        request = v1.RerankAndPruneRequest(
            query=_convert.query_to_proto(query),
            passages=_convert.passages_to_proto(passages),
            options=_convert.options_to_proto(options or _DEFAULT_OPTIONS),
        )
        response = self._call(self._stub.RerankAndPrune, request, timeout)
        return _convert.ranked_from_proto(response)

    def highlight(
        self,
        query: str,
        passages: Sequence[Passage | str],
        options: PruneOptions | None = None,
        *,
        pre_tag: str = "",
        post_tag: str = "",
        fragment_format: FragmentFormat = FragmentFormat.NONE,
        timeout: float | None = None,
    ) -> HighlightedPassages:
        """Find the spans to highlight, and tagged fragments when ``fragment_format`` asks.

        Empty tags take the server's defaults, ``<mark>`` and ``</mark>``.
        """
        request = v1.HighlightRequest(
            query=_convert.query_to_proto(query),
            passages=_convert.passages_to_proto(passages),
            options=_convert.options_to_proto(options or _DEFAULT_OPTIONS),
            pre_tag=pre_tag,
            post_tag=post_tag,
        )
        # Assigned by name, because the stubs give each enum's numbers a type of their own.
        setattr(request, "fragment_format", to_number(fragment_format))  # noqa: B010
        response = self._call(self._stub.Highlight, request, timeout)
        return _convert.highlighted_from_proto(response)

    def rerank_and_prune_stream(
        self,
        query: str,
        passages: Iterable[Passage | str],
        options: PruneOptions | None = None,
        *,
        batch_size: int = STREAM_BATCH_PASSAGES,
        timeout: float | None = None,
    ) -> Iterator[PrunedPassage | StreamSummary]:
        """Do the same for candidate sets beyond one message.

        Yields each passage's result as soon as it is known, in no fixed order, then one
        StreamSummary with the ranking. ``passages`` is read in another thread while results
        arrive, up to ``batch_size`` a message and only as fast as the server takes them; an
        exception of its own ends the call and is raised here. Closing the iterator early
        cancels the call. ``timeout`` is for the whole stream.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        start = v1.StreamStart(
            query=_convert.query_to_proto(query),
            options=_convert.options_to_proto(options or _DEFAULT_OPTIONS),
        )
        requests = RequestStream(
            start, passages, batch_size=batch_size, max_message_bytes=self._max_message_bytes
        )
        return self._stream(requests, self._seconds(timeout))

    def model_info(self, *, timeout: float | None = None) -> ModelInfo:
        """The loaded model: identity, capabilities, defaults and the limits in force."""
        response = self._call(self._stub.GetModelInfo, v1.GetModelInfoRequest(), timeout)
        return _convert.model_info_from_proto(response)

    def health(self, *, timeout: float | None = None) -> str:
        """One grpc.health.v1 check of the whole server: ``SERVING``, ``NOT_SERVING`` …"""
        stub = health_pb2_grpc.HealthStub(self._channel)
        response = self._call(stub.Check, health_pb2.HealthCheckRequest(), timeout)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Return once the server is reached and says SERVING.

        Raises UnavailableError when the watch ends before that, or DeadlineExceededError after
        ``timeout`` seconds (the client's own when ``None``).
        """
        stub = health_pb2_grpc.HealthStub(self._channel)
        updates = stub.Watch(
            health_pb2.HealthCheckRequest(),
            timeout=self._seconds(timeout),
            metadata=self._metadata,
            wait_for_ready=True,
        )
        try:
            for update in updates:
                if update.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        except grpc.RpcError as error:
            raise error_from_rpc(error, target=self.target) from error
        finally:
            updates.cancel()
        raise UnavailableError(f"the server at {self.target} closed its health watch")

    def close(self) -> None:
        """Close the channel; calls in flight are cancelled. May be called twice."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Any, request: Any, timeout: float | None) -> Any:
        """One unary call: size check, deadline, metadata, further tries, and errors as ours."""
        size = request.ByteSize()
        if size > self._max_message_bytes:
            description = (
                f"the request has {size:,} bytes, over max_message_bytes = "
                f"{self._max_message_bytes:,}; send fewer passages, or use the stream"
            )
            raise InvalidRequestError([FieldViolation("passages", description, _TOO_LARGE)])
        left = self._seconds(timeout)
        until = time.monotonic() + left
        waits = pauses(self._max_attempts)
        while True:
            try:
                return method(request, timeout=left, metadata=self._metadata)
            except grpc.RpcError as error:
                pause = next(waits, math.inf) if _is_unavailable(error) else math.inf
                left = until - time.monotonic() - pause
                if left <= 0:
                    raise error_from_rpc(error, target=self.target) from error
            time.sleep(pause)

    def _stream(
        self, requests: RequestStream, seconds: float
    ) -> Iterator[PrunedPassage | StreamSummary]:
        call: Any = self._stub.RerankAndPruneStream(
            iter(requests), timeout=seconds, metadata=self._metadata
        )
        requests.on_failure(call.cancel)
        try:
            for message in call:
                if message.HasField("summary"):
                    yield _convert.summary_from_proto(message.summary)
                else:
                    yield _convert.pruned_from_proto(message.result)
        except grpc.RpcError as error:
            requests.raise_failure()
            raise error_from_rpc(error, target=self.target) from error
        finally:
            call.cancel()

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else _checked_timeout(timeout)


_TOO_LARGE = "MESSAGE_TOO_LARGE"


def _is_unavailable(error: grpc.RpcError) -> bool:
    return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE


def _checked_timeout(seconds: float) -> float:
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"timeout must be seconds > 0 and finite, not {seconds}")
    return seconds
