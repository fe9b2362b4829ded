"""The caller's side of RerankAndPruneStream: passages of any iterable, packed into messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from secateur import v1
from secateur._convert import passages_to_proto
from secateur.errors import FieldViolation, InvalidRequestError
from secateur.types import Passage

_TARGET_BYTES = 1 << 20
"""A message is closed near this size, so that one call's buffers stay small."""

_ENVELOPE_BYTES = 16
"""More than the tags and lengths around one passage take."""


class RequestStream:
    """Iterates over a stream's messages: ``start``, then batches of passages.

    start: the first message. passages: read lazily, as messages are sent.
    batch_size: passages a message. max_message_bytes: a passage over it is InvalidRequestError.

    gRPC iterates in a thread of its own, and would log a failure there and lose it: the failure
    is stored instead, the call is cancelled, and ``raise_failure`` raises it in the caller's.
    """

    def __init__(
        self,
        start: v1.StreamStart,
        passages: Iterable[Passage | str],
        *,
        batch_size: int,
        max_message_bytes: int,
    ) -> None:
        self._start = start
        self._passages = passages
        self._batch_size = batch_size
        self._max_bytes = max_message_bytes
        self._failure: BaseException | None = None
        self._cancel: Callable[[], object] = _nothing
        self._cancel_known = threading.Event()

    def on_failure(self, cancel: Callable[[], object]) -> None:
        """Say how to cancel the call; must be called once, right after the call was made."""
        self._cancel = cancel
        self._cancel_known.set()

    def raise_failure(self) -> None:
        """Raise what stopped the iteration, if anything did."""
        if self._failure is not None:
            raise self._failure from None

    def __iter__(self) -> Iterator[v1.RerankAndPruneStreamRequest]:
        try:
            yield v1.RerankAndPruneStreamRequest(start=self._start)
            for batch in self._batches():
                message = v1.RerankAndPruneStreamRequest()
                message.passages.passages.extend(batch)
                yield message
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failure = error
            self._cancel_known.wait()
            self._cancel()

    def _batches(self) -> Iterator[list[v1.Passage]]:
        batch: list[v1.Passage] = []
        batch_bytes = 0
        limit = min(_TARGET_BYTES, self._max_bytes)
        for index, passage in enumerate(self._passages):
            [message] = passages_to_proto([passage], first_index=index)
            size = message.ByteSize() + _ENVELOPE_BYTES
            if size > self._max_bytes:
                description = f"has {size:,} bytes, over max_message_bytes = {self._max_bytes:,}"
                raise InvalidRequestError(
                    [FieldViolation(f"passages[{index}]", description, "MESSAGE_TOO_LARGE")]
                )
            if batch and batch_bytes + size > limit:
                yield batch
                batch, batch_bytes = [], 0
            batch.append(message)
            batch_bytes += size
            if len(batch) == self._batch_size:  # not with the next passage, which may be slow
                yield batch
                batch, batch_bytes = [], 0
        if batch:
            yield batch


def _nothing() -> None:
    """Stands in until the call is known."""
