"""RerankPruneService: protobuf in, protobuf out, every error as a status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NoReturn, TypeVar

from google.protobuf.message import Message

from secateur.errors import FieldViolation, InvalidRequestError
from secateur.model.highlight import highlight
from secateur.model.validation import validate, validate_highlight
from secateur.server import convert
from secateur.server.calls import Calls, Context
from secateur.server.errors import MessageTooLargeError
from secateur.server.gate import Gate
from secateur.server.gated import Gated
from secateur.server.pipeline import Pipeline, Stopwatch
from secateur.server.settings import ServerSettings
from secateur.server.stream import PassageStream
from secateur.types import HighlightedPassage, RankedPassages
from secateur.v1 import rerank_prune_pb2 as pb
from secateur.v1 import rerank_prune_pb2_grpc as pb_grpc

T = TypeVar("T")

_SMALLER_ANSWER = (
    "ask for fewer passages a call, leave include_tokens and include_sentence_text unset, "
    "or use RerankAndPruneStream"
)


class RerankPruneService(Gated, pb_grpc.RerankPruneServiceServicer):
    """Ranks, prunes and highlights with the pipeline."""

    def __init__(self, settings: ServerSettings, gate: Gate, calls: Calls) -> None:
        super().__init__(gate, calls)
        self._settings = settings

    async def RerankAndPrune(  # noqa: N802 - the contract's name
        self, request: pb.RerankAndPruneRequest, context: Context
    ) -> pb.RerankAndPruneResponse:
        """Rank and prune the passages of one request."""

        async def answer(pipeline: Pipeline) -> pb.RerankAndPruneResponse:
            started = pipeline.batcher.clock()
            self._check_request_size(request)
            parsed = await pipeline.off_loop(convert.rerank_request, request)
            ranked = await self._rank(pipeline, parsed, context, started)
            response = await pipeline.off_loop(convert.rerank_response, ranked)
            self._check_response_size(response, _SMALLER_ANSWER)
            response.timing.total_ms = (pipeline.batcher.clock() - started) * 1_000
            return response

        return await self.run("RerankAndPrune", context, answer)

    async def Highlight(  # noqa: N802 - the contract's name
        self, request: pb.HighlightRequest, context: Context
    ) -> pb.HighlightResponse:
        """Find the spans to highlight in each passage."""

        async def answer(pipeline: Pipeline) -> pb.HighlightResponse:
            started = pipeline.batcher.clock()
            self._check_request_size(request)
            parsed = await pipeline.off_loop(convert.highlight_request, request)
            ranked = await self._rank(pipeline, parsed, context, started)
            response = await pipeline.off_loop(_highlighted, parsed, ranked)
            self._check_response_size(response, "ask for fewer passages a call")
            response.timing.total_ms = (pipeline.batcher.clock() - started) * 1_000
            return response

        return await self.run("Highlight", context, answer)

    async def GetModelInfo(  # noqa: N802 - the contract's name
        self, _request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        """Tell what is loaded and which limits are in force."""

        async def answer(pipeline: Pipeline) -> pb.GetModelInfoResponse:
            return convert.model_info(
                pipeline.engine.info,
                max_request_bytes=self._settings.max_receive_message_bytes,
                max_response_bytes=self._settings.max_send_message_bytes,
                max_concurrent_calls=self._settings.max_concurrent_calls,
                max_queue_tokens=self._settings.max_queue_tokens,
            )

        return await self.run("GetModelInfo", context, answer)

    # A coroutine that writes, not a generator: a cancelled one is cleaned up at once.
    async def RerankAndPruneStream(  # type: ignore[override]  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.RerankAndPruneStreamRequest],
        context: Context,
    ) -> None:
        """Answer each passage once, as soon as it is known; then the summary."""

        async def answer(pipeline: Pipeline) -> None:
            started = pipeline.batcher.clock()
            watch = Stopwatch(started)
            pipeline.check_room(_deadline(pipeline, context))
            parsed = await self._opening(pipeline, request_iterator)
            query = await pipeline.prepare_query(watch, parsed.query, parsed.options)
            stream = PassageStream(
                pipeline,
                query,
                watch=watch,
                deadline=_deadline(pipeline, context),
                max_in_flight=self._settings.max_stream_in_flight,
                max_summary_bytes=self._settings.max_send_message_bytes,
            )
            async with stream:
                reader = asyncio.create_task(self._read(request_iterator, stream))
                try:
                    async for result in stream.results():
                        response = await pipeline.off_loop(convert.stream_result, result)
                        self._check_response_size(response, "send shorter passages")
                        await context.write(response)
                finally:
                    reader.cancel()
                    await asyncio.gather(reader, return_exceptions=True)
                response = await pipeline.off_loop(convert.stream_summary, stream.summary())
                self._check_response_size(response, "set top_k or use several streams")
                response.summary.timing.total_ms = (pipeline.batcher.clock() - started) * 1_000
                await context.write(response)

        await self.run("RerankAndPruneStream", context, answer)

    async def _rank(
        self,
        pipeline: Pipeline,
        parsed: convert.ParsedRequest,
        context: Context,
        started: float,
    ) -> RankedPassages:
        await pipeline.off_loop(_check, parsed, pipeline)
        return await pipeline.rerank_and_prune(
            parsed.query,
            parsed.passages,
            parsed.options,
            started=started,
            deadline=_deadline(pipeline, context),
        )

    async def _opening(
        self,
        pipeline: Pipeline,
        requests: AsyncIterator[pb.RerankAndPruneStreamRequest],
    ) -> convert.ParsedRequest:
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("message") != "start":
            _refuse_message("the first message of a stream must be start")
        self._check_request_size(first)
        parsed = convert.stream_start(first.start)
        await pipeline.off_loop(_check, parsed, pipeline)
        return parsed

    async def _read(
        self, requests: AsyncIterator[pb.RerankAndPruneStreamRequest], stream: PassageStream
    ) -> None:
        """Read on as far as the stream has room; tell it of the end or of a failure."""
        try:
            async for request in requests:
                self._check_request_size(request)
                kind = request.WhichOneof("message")
                if kind != "passages":
                    _refuse_message(
                        "start may come only once" if kind else "must be start or passages"
                    )
                await stream.put(convert.passages(request.passages.passages))
            stream.end()
        except Exception as error:  # noqa: BLE001 - the writer raises it
            stream.fail(error)

    def _check_request_size(self, request: Message) -> None:
        size, limit = request.ByteSize(), self._settings.max_receive_message_bytes
        if size > limit:
            raise MessageTooLargeError(
                f"the request has {size} bytes, the limit is {limit}; "
                "send fewer passages a message or use RerankAndPruneStream",
                limit=limit,
            )

    def _check_response_size(self, response: Message, advice: str) -> None:
        size, limit = response.ByteSize(), self._settings.max_send_message_bytes
        if size > limit:
            raise MessageTooLargeError(
                f"the response would have {size} bytes, the limit is {limit}; {advice}",
                limit=limit,
            )


def _check(parsed: convert.ParsedRequest, pipeline: Pipeline) -> None:
    """Validate a request; every fault, of conversion too, comes in one InvalidRequestError."""
    info = pipeline.engine.info
    tags = parsed.highlighting
    violations = list(parsed.violations)
    refusal: Exception | None = None

    def check_request() -> None:
        engine = pipeline.engine
        validate(
            parsed.query,
            parsed.passages,
            parsed.options,
            info.limits,
            info,
            engine.count_tokens,
            engine.count_query_tokens,
        )

    def check_highlighting() -> None:
        if tags is not None:
            validate_highlight(parsed.options, tags.pre_tag, tags.post_tag, tags.fragment_format)

    for check in (check_request, check_highlighting):
        try:
            check()
        except InvalidRequestError as error:
            violations += error.violations
        except Exception as error:  # noqa: BLE001 - raised below, unless the request is invalid
            refusal = error
    if violations:
        raise InvalidRequestError(violations)
    if refusal is not None:
        raise refusal


def _highlighted(parsed: convert.ParsedRequest, ranked: RankedPassages) -> pb.HighlightResponse:
    tags = parsed.highlighting or convert.Highlighting()
    results: list[HighlightedPassage] = [
        highlight(
            parsed.passages[result.index].text,
            result,
            offset_unit=parsed.options.offset_unit,
            pre_tag=tags.pre_tag,
            post_tag=tags.post_tag,
            fragment_format=tags.fragment_format,
        )
        for result in ranked.results
    ]
    return convert.highlight_response(ranked, results)


def _deadline(pipeline: Pipeline, context: Context) -> float | None:
    """The call's deadline on the batcher's clock."""
    remaining = context.time_remaining()
    return None if remaining is None else pipeline.batcher.clock() + remaining


def _refuse_message(description: str) -> NoReturn:
    raise InvalidRequestError([FieldViolation("message", description, "UNEXPECTED_MESSAGE")])
