"""The one place that turns errors into gRPC statuses. docs/errors.md is its table for people."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn
from urllib.parse import quote

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from secateur.errors import (
    CheckpointError,
    CollectionNotFoundError,
    DeadlineExceededError,
    FieldViolation,
    InvalidRequestError,
    InvariantError,
    MissingExtraError,
    NotImplementedOptionError,
    OverloadedError,
    SecateurError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedByMilvusError,
    UnsupportedByModelError,
)
from secateur.types import PassageError

logger = logging.getLogger(__name__)

DOMAIN: Final = "secateur"
"""``google.rpc.ErrorInfo.domain`` of every error."""

INTERNAL_MESSAGE: Final = "internal error; the server's log has the details"
"""The only sentence that a caller sees of an unexpected failure; the error id is beside it."""

# A gRPC peer refuses metadata above 8 KiB by default. The status travels in it twice: the
# message percent-encoded, and the whole with its details in base64.
_METADATA_BUDGET: Final = 6_500
_MAX_MESSAGE_BYTES: Final = 1_200  # percent-encoded
_MAX_DESCRIPTION_CHARACTERS: Final = 300
_MAX_FIELD_CHARACTERS: Final = 120
_MAX_PASSAGE_MESSAGE_CHARACTERS: Final = 2_000


class MessageTooLargeError(SecateurError):
    """A request or response message is over ``limit`` bytes; it cannot pass by waiting."""

    reason = "MESSAGE_TOO_LARGE"

    def __init__(self, message: str, *, limit: int) -> None:
        self.limit = limit
        super().__init__(message)


CODES: Final[Mapping[type[SecateurError], grpc.StatusCode]] = MappingProxyType(
    {
        InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
        UnsupportedByModelError: grpc.StatusCode.FAILED_PRECONDITION,
        UnsupportedByMilvusError: grpc.StatusCode.FAILED_PRECONDITION,
        CollectionNotFoundError: grpc.StatusCode.NOT_FOUND,
        NotImplementedOptionError: grpc.StatusCode.UNIMPLEMENTED,
        OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
        MessageTooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
        DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
        UnavailableError: grpc.StatusCode.UNAVAILABLE,
        UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
        MissingExtraError: grpc.StatusCode.FAILED_PRECONDITION,
        # Their texts speak of the inside of the server, so only the fixed sentence goes out.
        CheckpointError: grpc.StatusCode.INTERNAL,
        InvariantError: grpc.StatusCode.INTERNAL,
        SecateurError: grpc.StatusCode.INTERNAL,
    }
)
"""Status code of each error class. An error of any other class is INTERNAL."""


def status_of(error: Exception) -> status_pb2.Status:
    """The google.rpc.Status of an error: code, sentence, ErrorInfo and further details.

    InvalidRequestError adds BadRequest with all violations; OverloadedError adds RetryInfo.
    Whatever maps to INTERNAL is logged with a new error id and gets the fixed sentence. The
    result fits into a peer's default metadata limit: where the violations do not, the last
    entry says how many were left out, and ``violation_count`` has the full number.
    Not for asyncio.CancelledError, which is no ``Exception`` and must be raised on.
    """
    code = code_of(error)
    if code is grpc.StatusCode.INTERNAL:
        return _internal(error)
    info = error_details_pb2.ErrorInfo(reason=reason_of(error), domain=DOMAIN)
    message = _shorten_message(str(error))
    if isinstance(error, SecateurError) and error.limit is not None:
        info.metadata["limit"] = str(error.limit)
    if isinstance(error, InvalidRequestError):
        info.metadata["violation_count"] = str(len(error.violations))
        info.metadata["field"] = _shorten(error.violations[0].field, _MAX_FIELD_CHARACTERS)
        info.metadata["violation_reason"] = error.violations[0].reason
        bare = _status(code, message, info)
        room = _METADATA_BUDGET - _size_on_wire(bare)
        return _status(code, message, info, _bad_request(error.violations, room))
    if isinstance(
        error, UnsupportedByModelError | UnsupportedByMilvusError | NotImplementedOptionError
    ):
        info.metadata["field"] = _shorten(error.field, _MAX_FIELD_CHARACTERS)
    if isinstance(error, MissingExtraError):
        info.metadata["extra"] = error.extra
    if isinstance(error, OverloadedError):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(max(1, round(error.retry_after_seconds * 1_000)))
        return _status(code, message, info, error_details_pb2.RetryInfo(retry_delay=delay))
    return _status(code, message, info)


def code_of(error: Exception) -> grpc.StatusCode:
    """The status code of an error."""
    for ancestor in type(error).__mro__:
        if ancestor in CODES:
            return CODES[ancestor]
    return grpc.StatusCode.INTERNAL


def reason_of(error: Exception) -> str:
    """The reason in the ErrorInfo of an error."""
    internal = code_of(error) is grpc.StatusCode.INTERNAL
    return "INTERNAL" if internal else str(getattr(error, "reason", "INTERNAL"))


def internal_error_id(error: BaseException) -> str:
    """Log an unexpected failure with its trace and return the id that finds it in the log."""
    error_id = uuid.uuid4().hex[:16]
    logger.error("internal error %s", error_id, exc_info=error)
    return error_id


def passage_error_of(error: Exception) -> PassageError:
    """The error of one passage that fails alone while its call goes on."""
    code = code_of(error)
    if code is grpc.StatusCode.INTERNAL:
        message = f"{INTERNAL_MESSAGE} under error id {internal_error_id(error)}"
        return PassageError(code.name, message)
    return PassageError(code.name, _shorten(str(error), _MAX_PASSAGE_MESSAGE_CHARACTERS))


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    error: Exception,
    trailer: tuple[tuple[str, str], ...] = (),
) -> NoReturn:
    """End the call with the status of ``error``; raises grpc.aio.AbortError.

    trailer: trailing metadata to go with it.
    """
    status = rpc_status.to_status(status_of(error))
    await context.abort(status.code, status.details, (*status.trailing_metadata, *trailer))
    raise InvariantError("abort returned; this is a bug")


def _internal(error: Exception) -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason="INTERNAL", domain=DOMAIN)
    info.metadata["error_id"] = internal_error_id(error)
    return _status(grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE, info)


def _bad_request(violations: tuple[FieldViolation, ...], room: int) -> error_details_pb2.BadRequest:
    """As many violations as fit into ``room`` bytes on the wire, at least one."""
    bad = error_details_pb2.BadRequest()
    room -= 400  # the closing entry and the wrapping
    for position, violation in enumerate(violations):
        entry = error_details_pb2.BadRequest.FieldViolation(
            field=_shorten(violation.field, _MAX_FIELD_CHARACTERS),
            description=_shorten(violation.description, _MAX_DESCRIPTION_CHARACTERS),
            reason=violation.reason,
        )
        room -= _base64_size(entry.ByteSize() + 4)
        if room < 0 and position:
            bad.field_violations.add(
                field="",
                description=f"{len(violations) - position} more violations are not listed",
                reason="MORE_VIOLATIONS",
            )
            break
        bad.field_violations.append(entry)
    return bad


def _status(code: grpc.StatusCode, message: str, *details: Message) -> status_pb2.Status:
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _size_on_wire(status: status_pb2.Status) -> int:
    return len(quote(status.message)) + _base64_size(status.ByteSize())


def _base64_size(count: int) -> int:
    return -(-count // 3) * 4


def _shorten_message(text: str) -> str:
    """Cut so that the percent-encoded form stays within its share of the metadata."""
    limit = _MAX_MESSAGE_BYTES
    shortened = _shorten(text, limit)
    while len(quote(shortened)) > _MAX_MESSAGE_BYTES:
        limit = limit * 3 // 4
        shortened = _shorten(text, limit)
    return shortened


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
