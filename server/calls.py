"""What holds for every call: a request id, errors as statuses, metrics, one log line."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import grpc

from secateur.server.errors import abort, code_of, reason_of
from secateur.server.logs import FIELDS, REQUEST_ID
from secateur.server.metrics import Metrics

logger = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]

REQUEST_ID_KEY: Final = "x-request-id"
"""Metadata key of the request id, in the request and in the trailing metadata of its answer."""

# Whatever else a caller sends is not written into the log.
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Calls:
    """Runs calls. ``clock`` gives seconds."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock

    async def run(self, method: str, context: Context, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` as the call's answer; an error of it ends the call with its status.

        method: the bare name, such as ``Highlight``. The request id is the caller's, or a new
        one where that is missing or odd. It goes out at the call's end, not before: with a first
        answer sent, gRPC clients do not retry. CancelledError passes through.
        """
        started = self._clock()
        request_id = request_id_of(context.invocation_metadata() or ())
        trailer = ((REQUEST_ID_KEY, request_id),)
        context.set_trailing_metadata(trailer)
        outside = REQUEST_ID.set(request_id)
        code, reason = grpc.StatusCode.OK, ""
        try:
            return await work()
        except asyncio.CancelledError:
            code = _cancel_code(context)
            raise
        except Exception as error:  # noqa: BLE001 - the one place where errors become statuses
            code, reason = code_of(error), reason_of(error)
            await abort(context, error, trailer)
        finally:
            seconds = self._clock() - started
            self._metrics.request(method, code.name, seconds)
            if reason:
                self._metrics.error(reason)
            fields = {"method": method, "code": code.name, "seconds": round(seconds, 4)}
            if reason:
                fields["reason"] = reason
            logger.info("call ended", extra={FIELDS: fields})
            REQUEST_ID.reset(outside)


def request_id_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The caller's request id when it is a plain one, else a new one."""
    for key, value in metadata:
        if key == REQUEST_ID_KEY and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex


def _cancel_code(context: Context) -> grpc.StatusCode:
    """gRPC cancels a call at its deadline as it does when the caller leaves."""
    remaining = context.time_remaining()
    if remaining is not None and remaining <= 0:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.CANCELLED
