"""Requests that are no message of the contract get an answer of ours, not gRPC's raw exception."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from secateur.errors import FieldViolation, InvalidRequestError
from secateur.server.calls import Calls

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class DecodingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns bytes that do not decode into an InvalidRequestError of field ``message``.

    A unary call ends with it before its method runs; in a stream of requests the iteration
    raises it.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def intercept_service(  # type: ignore[override]  # None: no such method
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's own handler behind a deserializer that raises nothing into gRPC."""
        found = await continuation(handler_call_details)
        if found is None or (found.response_streaming and not found.request_streaming):
            return found  # unknown, or a health watch
        handler: Any = found
        decode = handler.request_deserializer
        if handler.request_streaming:
            kind = "stream_stream" if handler.response_streaming else "stream_unary"
            make: Any = getattr(grpc, f"{kind}_rpc_method_handler")
            streamed: Handler = make(
                getattr(handler, kind), lambda data: _raise(_decoded(decode, data)),
                handler.response_serializer,
            )  # fmt: skip
            return streamed
        method = handler_call_details.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(
            self._behind_check(method, handler.unary_unary),
            lambda data: _decoded(decode, data),
            handler.response_serializer,
        )

    def _behind_check(
        self, method: str, behavior: Callable[[Any, Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def checked(request: Any, context: Any) -> Any:
            async def refuse() -> Any:
                return _raise(request)

            if isinstance(request, InvalidRequestError):
                return await self._calls.run(method, context, refuse)
            return await behavior(request, context)

        return checked


def _decoded(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """The message, or the error in its place: gRPC would tell the caller what is raised here."""
    try:
        return decode(data)
    except DecodeError:
        description = "is no message of this method: not protobuf, or a string that is not UTF-8"
        return InvalidRequestError([FieldViolation("message", description, "MALFORMED")])


def _raise(decoded: Any) -> Any:
    if isinstance(decoded, InvalidRequestError):
        raise decoded
    return decoded
