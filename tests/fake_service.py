"""A real gRPC server on port 0 whose answers are canned: for tests of whoever calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from secateur import v1

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

MODEL = v1.ModelRef(id="fake", revision="r1", dtype="float32")


class FakeService(v1.RerankPruneServiceServicer):
    """Answers with ``answers``, by method name: a message, an error to abort with, or a function
    of the request (the request iterator for the stream) and the context.

    requests: what arrived. Without an answer for it, ``RerankAndPrune`` answers as ``answer``.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.time_remaining: list[float | None] = []
        self.health = health.HealthServicer()

    def RerankAndPrune(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._reply("RerankAndPrune", request, context, answer)

    def Highlight(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._reply("Highlight", request, context, None)

    def GetModelInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._reply("GetModelInfo", request, context, None)

    def RerankAndPruneStream(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        yield from self._reply("RerankAndPruneStream", request_iterator, context, None)

    def _reply(
        self, name: str, request: Any, context: Any, default: Callable[[Any], Any] | None
    ) -> Any:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.time_remaining.append(context.time_remaining())
        reply = self.answers.get(name)
        if reply is None:
            assert default is not None, f"no answer for {name}"
            return default(request)
        if isinstance(reply, status_pb2.Status):
            fail(context, reply)
        return reply(request, context) if callable(reply) else reply


def answer(request: v1.RerankAndPruneRequest) -> v1.RerankAndPruneResponse:
    """A plausible answer: keeps the first half of each text, split at the first ``". "``."""
    response = v1.RerankAndPruneResponse(
        applied_threshold=0.1,
        applied_keep_rule=v1.KeepRule.KEEP_RULE_MEAN_PROBABILITY,
        score_source=v1.ScoreSource.SCORE_SOURCE_PASSAGE_HEAD,
        model=MODEL,
        usage=v1.Usage(query_tokens=2, input_tokens=20, kept_tokens=4),
        timing=v1.Timing(queue_ms=0.5, tokenize_ms=1.5, inference_ms=7, total_ms=9),
    )
    for index, passage in enumerate(request.passages):
        result = response.results.add(index=index, id=passage.id)
        head, dot, tail = passage.text.partition(". ")
        if not passage.text.strip():
            continue
        cut = len(head + dot.strip())
        result.relevance_logit, result.relevance_score = 2.0, 0.8808
        result.pruned_text = passage.text[:cut]
        result.kept_spans.add(start_offset=0, end_offset=cut)
        result.sentences.add(
            start_offset=0,
            end_offset=cut,
            probability=0.9,
            vote_share=1.0,
            kept=True,
            reason=v1.KeepReason.KEEP_REASON_ABOVE_THRESHOLD,
        )
        if tail:
            result.sentences.add(
                start_offset=cut + 1,
                end_offset=len(passage.text),
                probability=0.01,
                vote_share=0.0,
                reason=v1.KeepReason.KEEP_REASON_BELOW_THRESHOLD,
            )
        result.compression_rate = 1 - cut / len(passage.text)
        if request.options.include_tokens:
            result.tokens.add(start_offset=0, end_offset=cut, probability=0.9, relevant=True)
            if tail:
                result.tokens.add(start_offset=cut, end_offset=len(passage.text), probability=0.01)
    return response


def status(code: grpc.StatusCode, message: str, *details: Message) -> status_pb2.Status:
    """A google.rpc.Status with details."""
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    return status_pb2.Status(code=code.value[0], message=message, details=packed)


def error_info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    """An ErrorInfo of Secateur's domain."""
    return error_details_pb2.ErrorInfo(reason=reason, domain="secateur", metadata=metadata)


def fail(context: grpc.ServicerContext, failure: status_pb2.Status) -> None:
    """Abort the call with a google.rpc.Status, in the way of every gRPC server."""
    [code] = [code for code in grpc.StatusCode if code.value[0] == failure.code]
    context.set_trailing_metadata((("grpc-status-details-bin", failure.SerializeToString()),))
    context.abort(code, failure.message)


@contextmanager
def served(
    service: FakeService, *, health_status: Any = SERVING, options: Sequence[tuple[str, Any]] = ()
) -> Iterator[str]:
    """Serve on a free port; yields ``host:port``."""
    service.health.set("", health_status)
    with ThreadPoolExecutor(max_workers=4) as pool:
        server = grpc.server(pool, options=options)
        v1.add_RerankPruneServiceServicer_to_server(service, server)
        health_pb2_grpc.add_HealthServicer_to_server(service.health, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@contextmanager
def closed_port() -> Iterator[str]:
    """An address where nothing listens: the port is held, but not listened on."""
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
