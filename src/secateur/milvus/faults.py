"""What goes wrong in Milvus, as our errors: the one place that knows Milvus's codes."""

from __future__ import annotations

from typing import Any, Final

import grpc
from pymilvus.exceptions import MilvusException

from secateur.errors import (
    CollectionNotFoundError,
    FieldViolation,
    InvalidRequestError,
    OverloadedError,
    SecateurError,
    UnavailableError,
    UnsupportedByMilvusError,
)

# Milvus's own codes; where a number has two meanings, these calls can give only this one.
_NOT_CONNECTED: Final = 2
_ILLEGAL_ARGUMENT: Final = 6  # milvus-lite's code of a filter that it cannot read
_RATE_LIMIT: Final = 8
_NO_COLLECTION: Final = (4, 100)
_NOT_LOADED: Final = 101
_BAD_FILTER: Final = ("cannot parse expression", "failed to create query plan")

_UNREACHABLE: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

_RETRY_SECONDS: Final = 1.0
_MOST_CHARACTERS: Final = 300


def error_of(error: MilvusException | grpc.RpcError, *, where: str, collection: str) -> Exception:
    """The error to raise for what a call to Milvus raised.

    where: names the Milvus in sentences. A filter that Milvus cannot read is the caller's fault;
    whatever is in no list is an error of ours, whose text goes to the log of a server.
    """
    code = _code_of(error)
    message = str(getattr(error, "message", "") or error)
    if code in _UNREACHABLE or code == _NOT_CONNECTED:
        return UnavailableError(f"Milvus at {where} cannot be reached")
    if code in _REFUSED:
        return UnsupportedByMilvusError(
            "collection", f"Milvus at {where} refuses the token that it is given"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedByMilvusError("mode", f"Milvus at {where} is too old for this call")
    if code in _NO_COLLECTION:
        return CollectionNotFoundError(f"there is no collection {collection!r}")
    if code == _NOT_LOADED:
        return UnsupportedByMilvusError("collection", f"{collection} is not loaded in Milvus")
    if code == _RATE_LIMIT:
        return OverloadedError(
            f"Milvus at {where} has too many calls", retry_after_seconds=_RETRY_SECONDS
        )
    if code == _ILLEGAL_ARGUMENT or any(text in message for text in _BAD_FILTER):
        lines = " ".join(message.split())[:_MOST_CHARACTERS]
        fault = FieldViolation("filter", f"Milvus cannot read it: {lines}", "BAD_FILTER")
        return InvalidRequestError([fault])
    return SecateurError(f"Milvus at {where}: {message}")


def _code_of(error: MilvusException | grpc.RpcError) -> Any:
    code: Any = getattr(error, "code", None)
    return code() if callable(code) else code
