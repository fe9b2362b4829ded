"""The services that Milvus asks of a provider of models: its highlighter and its reranker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from secateur.errors import (
    FieldViolation,
    InvalidRequestError,
    OverloadedError,
    SecateurError,
    UnsupportedByModelError,
)
from secateur.milvus.fragments import faults_of, highlight_field, spans_of
from secateur.milvus.types import HighlightOptions
from secateur.modelservice import milvus_model_service_pb2 as pb
from secateur.modelservice import milvus_model_service_pb2_grpc as pb_grpc
from secateur.server.calls import Calls, Context
from secateur.server.gate import Gate
from secateur.server.gated import Gated
from secateur.server.pipeline import Pipeline
from secateur.server.search.ranker import PipelineRanker, check_size
from secateur.server.settings import ServerSettings
from secateur.types import (
    FragmentFormat,
    Passage,
    PrunedPassage,
    PruneOptions,
    RankedPassages,
    ResultOrder,
)

_FEWER: Final = "send fewer documents a call (max_client_batch_size)"

_LOWEST: Final = -3.4e38
"""Raw score of a document without one, near the lowest number that a float holds."""

_RETRY_SECONDS: Final = 1.0
_TRUE, _FALSE = frozenset({"true", "1", "t"}), frozenset({"false", "0", "f"})


class ModelProvider(Gated, pb_grpc.RerankServiceServicer, pb_grpc.HighlightServiceServicer):
    """One result per document, in order; a document that fails ends the whole call."""

    def __init__(self, settings: ServerSettings, gate: Gate, calls: Calls) -> None:
        super().__init__(gate, calls)
        self._settings = settings

    async def Rerank(  # noqa: N802 - Milvus's name
        self, request: pb.TextRerankRequest, context: Context
    ) -> pb.TextRerankResponse:
        """Score documents."""

        async def answer(pipeline: Pipeline) -> pb.TextRerankResponse:
            check_size(request, self._settings.max_receive_message_bytes, _FEWER)
            _check_model(request.model, pipeline)
            faults: list[FieldViolation] = []
            raw = _bool(request.params, "raw_scores", False, faults)
            if faults:
                raise InvalidRequestError(faults)
            # Nothing is pruned, so that models that only rerank can do it, too.
            results = await _rank(pipeline, request, PruneOptions(threshold=0.0), context)
            return pb.TextRerankResponse(
                status=pb.Status(), scores=[_score(result, raw) for result in results]
            )

        return await self.run("MilvusRerank", context, answer)

    async def Highlight(  # noqa: N802 - Milvus's name
        self, request: pb.HighlightRequest, context: Context
    ) -> pb.HighlightResponse:
        """Tag what matters in documents."""

        async def answer(pipeline: Pipeline) -> pb.HighlightResponse:
            check_size(request, self._settings.max_receive_message_bytes, _FEWER)
            _check_model(request.model, pipeline)
            options, threshold = _highlighting(request.params)
            results = await _rank(pipeline, request, PruneOptions(threshold=threshold), context)
            highlights = await pipeline.off_loop(_highlights, request.documents, results, options)
            response = pb.HighlightResponse(status=pb.Status(), results=highlights)
            check_size(response, self._settings.max_send_message_bytes, _FEWER)
            return response

        return await self.run("MilvusHighlight", context, answer)


async def _rank(
    pipeline: Pipeline,
    request: pb.TextRerankRequest | pb.HighlightRequest,
    options: PruneOptions,
    context: Context,
) -> Sequence[PrunedPassage]:
    """A result for each document, in their order."""
    ranked: RankedPassages = await _ranked(pipeline, request, options, context)
    for result in ranked.results:
        if result.error is not None:
            message = f"documents[{result.index}]: {result.error.message}"
            if result.error.code == "RESOURCE_EXHAUSTED":
                raise OverloadedError(message, retry_after_seconds=_RETRY_SECONDS)
            raise SecateurError(message)
    return ranked.results


async def _ranked(
    pipeline: Pipeline,
    request: pb.TextRerankRequest | pb.HighlightRequest,
    options: PruneOptions,
    context: Context,
) -> RankedPassages:
    passages = [Passage(text) for text in request.documents]
    in_order = PruneOptions(threshold=options.threshold, order=ResultOrder.INPUT)
    try:
        return await PipelineRanker(pipeline).rank(
            request.query, passages, in_order, remaining=context.time_remaining()
        )
    except InvalidRequestError as error:
        raise InvalidRequestError([_of_milvus(v) for v in error.violations]) from None


def _highlights(
    documents: Sequence[str], results: Sequence[PrunedPassage], options: HighlightOptions
) -> list[pb.HighlightResult]:
    highlights = []
    for document, result in zip(documents, results, strict=True):
        shown = highlight_field(document, spans_of(result.sentences, None), options)
        highlights.append(pb.HighlightResult(sentences=shown.fragments, scores=shown.scores))
    return highlights


def _score(result: PrunedPassage, raw: bool) -> float:
    if raw:
        return _LOWEST if result.relevance_logit is None else result.relevance_logit
    return result.relevance_score or 0.0


def _check_model(name: str, pipeline: Pipeline) -> None:
    loaded = pipeline.engine.info.id
    if name and name != loaded:
        raise UnsupportedByModelError("model", f"{name!r} is not loaded here; {loaded!r} is")


def _highlighting(params: Mapping[str, str]) -> tuple[HighlightOptions, float | None]:
    """Options and threshold of the parameters, which are all strings.

    Raises InvalidRequestError with all that are wrong. Other parameters are Milvus's own.
    """
    faults: list[FieldViolation] = []
    default = HighlightOptions()
    escape = _bool(params, "escape_html", True, faults)
    options = HighlightOptions(
        pre_tags=_tags(params, "pre_tags", default.pre_tags, faults),
        post_tags=_tags(params, "post_tags", default.post_tags, faults),
        threshold=_number(params, "threshold", faults),
        highlight_only=_bool(params, "highlight_only", default.highlight_only, faults),
        fragment_format=FragmentFormat.HTML_ESCAPED if escape else FragmentFormat.RAW,
    )
    if not faults:
        faults = [
            FieldViolation(f"params[{v.field}]", v.description, v.reason)
            for v in faults_of(options, "")
        ]
    if faults:
        raise InvalidRequestError(faults)
    return options, options.threshold


def _bool(
    params: Mapping[str, str], name: str, default: bool, faults: list[FieldViolation]
) -> bool:
    text = params.get(name, str(default)).strip().lower()
    if text not in _TRUE | _FALSE:
        faults.append(FieldViolation(f"params[{name}]", f"must be true or false, not {text!r}"))
    return text in _TRUE


def _number(params: Mapping[str, str], name: str, faults: list[FieldViolation]) -> float | None:
    text = params.get(name, "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        faults.append(FieldViolation(f"params[{name}]", f"must be a number, not {text[:50]!r}"))
        return None


def _tags(
    params: Mapping[str, str],
    name: str,
    default: tuple[str, ...],
    faults: list[FieldViolation],
) -> tuple[str, ...]:
    """A JSON array of strings, as pymilvus sends it, or one tag as it is."""
    text = params.get(name, "")
    if not text:
        return default
    if not text.lstrip().startswith("["):
        return (text,)
    try:
        tags = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)  # such as "[" for "[…]"
    if not all(isinstance(tag, str) for tag in tags):
        faults.append(FieldViolation(f"params[{name}]", "must be a JSON array of strings"))
        return default
    return tuple(tags)


def _of_milvus(violation: FieldViolation) -> FieldViolation:
    """A fault of reranking in the names of Milvus's messages."""
    field = violation.field
    if field.startswith("passages"):
        field = "documents" + field.removeprefix("passages").removesuffix(".text")
    elif field.startswith("options."):
        field = f"params[{field.removeprefix('options.')}]"
    return FieldViolation(field, violation.description, violation.reason, violation.limit)
