"""A failed gRPC call as the exception that the same fault raises in process."""

from __future__ import annotations

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from secateur.errors import (
    CollectionNotFoundError,
    DeadlineExceededError,
    FieldViolation,
    InvalidRequestError,
    InvariantError,
    NotImplementedOptionError,
    OverloadedError,
    SecateurError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedByMilvusError,
    UnsupportedByModelError,
)

DETAILS_KEY = "grpc-status-details-bin"
"""Trailing metadata with the call's google.rpc.Status."""

_DEFAULT_RETRY_SECONDS = 1.0


def error_from_rpc(call: grpc.RpcError, *, target: str) -> SecateurError:
    """The exception for a failed call.

    The server's google.rpc details decide: all violations of a BadRequest, the field of an
    ErrorInfo, the delay of a RetryInfo. Without them (a proxy, another server, gRPC itself) the
    status code alone does. ``target`` names the server in messages about reaching it.
    """
    code = call.code() if isinstance(call, grpc.Call) else grpc.StatusCode.UNKNOWN
    text = (call.details() if isinstance(call, grpc.Call) else None) or code.name
    status = _status_of(call)
    info, bad_request, retry = _details_of(status)
    message = status.message or text
    error: SecateurError
    match code:
        case grpc.StatusCode.INVALID_ARGUMENT:
            error = InvalidRequestError(_violations(bad_request, message))
        case grpc.StatusCode.FAILED_PRECONDITION if field := info.metadata.get("field"):
            milvus = info.reason == UnsupportedByMilvusError.reason
            kind = UnsupportedByMilvusError if milvus else UnsupportedByModelError
            error = kind(field, message.removeprefix(f"{field}: "))
        case grpc.StatusCode.NOT_FOUND if info.reason == CollectionNotFoundError.reason:
            error = CollectionNotFoundError(message)
        case grpc.StatusCode.UNIMPLEMENTED if field := info.metadata.get("field"):
            error = NotImplementedOptionError(field)
        case grpc.StatusCode.UNIMPLEMENTED:
            error = SecateurError(f"the server at {target} does not offer this call: {text}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if _is_message_limit(info, text):
            error = InvalidRequestError([FieldViolation("passages", message, "MESSAGE_TOO_LARGE")])
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            delay = retry.retry_delay.ToNanoseconds() / 1e9 or _DEFAULT_RETRY_SECONDS
            limit = info.metadata.get("limit", "")
            error = OverloadedError(
                message, retry_after_seconds=delay, limit=int(limit) if limit.isdigit() else None
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            error = DeadlineExceededError(
                message if info.reason else f"no answer from {target} within the deadline"
            )
        case grpc.StatusCode.UNAUTHENTICATED:
            error = UnauthenticatedError(message)
        case grpc.StatusCode.UNAVAILABLE:
            error = UnavailableError(
                message if info.reason else f"cannot reach a server at {target}: {text}"
            )
        case grpc.StatusCode.INTERNAL if info.reason == InvariantError.reason:
            error_id = info.metadata.get("error_id")
            error = InvariantError(f"{message} (error_id {error_id})" if error_id else message)
        case _:
            error = SecateurError(f"{code.name}: {message}")
    return error


def _status_of(call: grpc.RpcError) -> status_pb2.Status:
    """The google.rpc.Status in the trailing metadata; empty when there is none."""
    trailers = call.trailing_metadata() if isinstance(call, grpc.Call) else None
    key: str
    value: str | bytes
    for key, value in trailers or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status()


def _details_of(
    status: status_pb2.Status,
) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo]:
    """The three kinds of detail that Secateur's server sends; empty ones when missing."""
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        for message in (info, bad_request, retry):
            if detail.TypeName() == message.DESCRIPTOR.full_name:
                detail.Unpack(message)
    return info, bad_request, retry


def _violations(bad_request: error_details_pb2.BadRequest, message: str) -> list[FieldViolation]:
    violations = [
        FieldViolation(v.field, v.description, v.reason or "INVALID_VALUE")
        for v in bad_request.field_violations
    ]
    return violations or [FieldViolation("request", message)]


def _is_message_limit(info: error_details_pb2.ErrorInfo, text: str) -> bool:
    """Whether a size limit refused the message: the server's own check, or gRPC's."""
    return info.reason == "MESSAGE_TOO_LARGE" or "message larger than max" in text.lower()
