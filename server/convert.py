"""Protobuf to domain types and back: the only module that knows both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

import grpc
from google.rpc import status_pb2

from secateur import types
from secateur._proto_enums import from_number, proto_prefix, to_number
from secateur.errors import FieldViolation
from secateur.v1 import rerank_prune_pb2 as pb

E = TypeVar("E", bound=StrEnum)
Faults = list[FieldViolation]

_INT32_MAX = 2**31 - 1
_STATUS_NUMBERS = {code.name: code.value[0] for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Highlighting:
    """What only a highlight request has. The defaults stand for unset or empty."""

    pre_tag: str = "<mark>"
    post_tag: str = "</mark>"
    fragment_format: types.FragmentFormat = types.FragmentFormat.NONE


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request in domain types, not yet validated.

    violations: what could not be expressed in domain types; to be reported together with the
    faults that validation finds.
    """

    query: str
    passages: tuple[types.Passage, ...]
    options: types.PruneOptions
    violations: tuple[FieldViolation, ...] = ()
    highlighting: Highlighting | None = None


def rerank_request(request: pb.RerankAndPruneRequest) -> ParsedRequest:
    """A unary request."""
    faults: Faults = []
    options = prune_options(request.options, faults)
    return ParsedRequest(request.query, passages(request.passages), options, tuple(faults))


def highlight_request(request: pb.HighlightRequest) -> ParsedRequest:
    """A highlight request."""
    faults: Faults = []
    options = prune_options(request.options, faults)
    form = member(types.FragmentFormat, request.fragment_format, "fragment_format", faults)
    default = Highlighting()
    highlighting = Highlighting(
        pre_tag=request.pre_tag or default.pre_tag,
        post_tag=request.post_tag or default.post_tag,
        fragment_format=form or default.fragment_format,
    )
    texts = passages(request.passages)
    return ParsedRequest(request.query, texts, options, tuple(faults), highlighting)


def stream_start(start: pb.StreamStart) -> ParsedRequest:
    """The opening of a stream, without passages."""
    faults: Faults = []
    options = prune_options(start.options, faults)
    return ParsedRequest(start.query, (), options, tuple(faults))


def passages(messages: Iterable[pb.Passage]) -> tuple[types.Passage, ...]:
    """Passages in order; nothing in them can fail to convert."""
    return tuple(
        types.Passage(
            text=message.text,
            id=message.id,
            title=message.title,
            sentences=tuple(
                types.TextSpan(span.start_offset, span.end_offset) for span in message.sentences
            ),
        )
        for message in messages
    )


def prune_options(message: pb.PruneOptions, faults: Faults) -> types.PruneOptions:
    """Options; an unset ``optional`` becomes ``None``, an unknown enum number a fault."""
    order = member(types.ResultOrder, message.order, "options.order", faults)
    unit = member(types.OffsetUnit, message.offset_unit, "options.offset_unit", faults)
    default = types.PruneOptions()
    return types.PruneOptions(
        threshold=message.threshold if message.HasField("threshold") else None,
        keep_rule=member(types.KeepRule, message.keep_rule, "options.keep_rule", faults),
        top_k=message.top_k,
        min_relevance_score=(
            message.min_relevance_score if message.HasField("min_relevance_score") else None
        ),
        order=order or default.order,
        always_select_title=message.always_select_title,
        min_sentences=message.min_sentences,
        neighbor_sentences=message.neighbor_sentences,
        max_context_tokens=message.max_context_tokens,
        protected_patterns=tuple(message.protected_patterns),
        offset_unit=unit or default.offset_unit,
        language=message.language,
        truncate_query=message.truncate_query,
        include_tokens=message.include_tokens,
        include_sentence_text=message.include_sentence_text,
    )


def rerank_response(ranked: types.RankedPassages) -> pb.RerankAndPruneResponse:
    """The answer to a unary request."""
    return pb.RerankAndPruneResponse(
        results=[pruned_passage(result) for result in ranked.results], **_envelope(ranked)
    )


def highlight_response(
    ranked: types.RankedPassages, highlighted: Sequence[types.HighlightedPassage]
) -> pb.HighlightResponse:
    """The answer to a highlight request; ``highlighted`` replaces the results of ``ranked``."""
    results = []
    for passage in highlighted:
        result = pb.HighlightedPassage(
            index=passage.index,
            id=passage.id,
            relevance_score=passage.relevance_score,
            relevance_logit=passage.relevance_logit,
            spans=[
                pb.HighlightSpan(
                    start_offset=span.start_offset,
                    end_offset=span.end_offset,
                    probability=span.probability,
                )
                for span in passage.spans
            ],
            fragments=passage.fragments,
            error=_passage_status(passage.error),
        )
        results.append(result)
    return pb.HighlightResponse(results=results, **_envelope(ranked))


def stream_result(result: types.PrunedPassage) -> pb.RerankAndPruneStreamResponse:
    """One answered passage of a stream."""
    return pb.RerankAndPruneStreamResponse(result=pruned_passage(result))


def stream_summary(ranked: types.RankedPassages) -> pb.RerankAndPruneStreamResponse:
    """The last message of a stream."""
    ranking = [
        pb.RankedPassage(
            index=result.index,
            id=result.id,
            relevance_score=result.relevance_score,
            relevance_logit=result.relevance_logit,
        )
        for result in ranked.results
    ]
    summary = pb.StreamSummary(ranking=ranking, **_envelope(ranked))
    return pb.RerankAndPruneStreamResponse(summary=summary)


def pruned_passage(result: types.PrunedPassage) -> pb.PrunedPassage:
    """One result; ``None`` becomes an unset field."""
    return pb.PrunedPassage(
        index=result.index,
        id=result.id,
        relevance_score=result.relevance_score,
        relevance_logit=result.relevance_logit,
        pruned_text=result.pruned_text,
        sentences=[
            pb.Sentence(
                start_offset=sentence.start_offset,
                end_offset=sentence.end_offset,
                probability=sentence.probability,
                vote_share=sentence.vote_share,
                kept=sentence.kept,
                reason=number(sentence.reason),
                text=sentence.text,
            )
            for sentence in result.sentences
        ],
        kept_spans=[
            pb.TextSpan(start_offset=span.start_offset, end_offset=span.end_offset)
            for span in result.kept_spans
        ],
        compression_rate=result.compression_rate,
        all_pruned=result.all_pruned,
        unscored_sentence_count=result.unscored_sentence_count,
        window_count=result.window_count,
        coarse_sentences=result.coarse_sentences,
        tokens=[
            pb.TokenScore(
                start_offset=token.start_offset,
                end_offset=token.end_offset,
                probability=token.probability,
                relevant=token.relevant,
            )
            for token in result.tokens
        ],
        error=_passage_status(result.error),
    )


def model_info(
    info: types.ModelInfo,
    *,
    max_request_bytes: int,
    max_response_bytes: int,
    max_concurrent_calls: int,
    max_queue_tokens: int,
) -> pb.GetModelInfoResponse:
    """What the loaded model is, and the limits in force."""
    limits = {item.name: getattr(info.limits, item.name) for item in fields(types.Limits)}
    return pb.GetModelInfoResponse(
        id=info.id,
        revision=info.revision,
        family=info.family,
        dtype=info.dtype,
        device=info.device,
        can_rerank=info.can_rerank,
        can_prune=info.can_prune,
        score_source=number(info.score_source),
        languages=info.languages,
        window_tokens=info.window_tokens,
        max_query_tokens=info.max_query_tokens,
        default_threshold=info.default_threshold,
        default_keep_rule=_optional_number(info.default_keep_rule),
        keep_rules=[number(rule) for rule in info.keep_rules],
        limits=pb.Limits(**limits),
        max_request_bytes=max_request_bytes,
        max_response_bytes=max_response_bytes,
        max_concurrent_calls=max_concurrent_calls,
        max_queue_tokens=max_queue_tokens,
    )


def member(enum: type[E], number: int, path: str, faults: Faults) -> E | None:
    """The domain value; ``None`` for 0, and for an unknown number, which is a fault."""
    member = from_number(enum, number)
    if member is None and number:
        known = ", ".join(f"{proto_prefix(enum)}{m.name} ({to_number(m)})" for m in enum)
        description = f"{number} is not a known value; known: {known}"
        faults.append(FieldViolation(path, description, "UNKNOWN_VALUE"))
    return member


def number(member: StrEnum) -> Any:  # each proto enum is its own type to the type checker
    return to_number(member)


def _optional_number(member: StrEnum | None) -> Any:
    return 0 if member is None else to_number(member)


def _envelope(ranked: types.RankedPassages) -> dict[str, Any]:
    """The fields that all three answers share."""
    timing, usage, model = ranked.timing, ranked.usage, ranked.model
    return {
        "applied_threshold": ranked.applied_threshold,
        "applied_keep_rule": _optional_number(ranked.applied_keep_rule),
        "score_source": number(ranked.score_source),
        "omitted_passage_count": ranked.omitted_passage_count,
        "query_truncated": ranked.query_truncated,
        "warnings": [number(warning) for warning in ranked.warnings],
        "model": pb.ModelRef(id=model.id, revision=model.revision, dtype=model.dtype),
        "usage": pb.Usage(
            query_tokens=min(usage.query_tokens, _INT32_MAX),
            input_tokens=min(usage.input_tokens, _INT32_MAX),  # a long stream may pass it
            kept_tokens=min(usage.kept_tokens, _INT32_MAX),
            cached_passage_count=min(usage.cached_passage_count, _INT32_MAX),
        ),
        "timing": pb.Timing(
            queue_ms=timing.queue_ms,
            tokenize_ms=timing.tokenize_ms,
            inference_ms=timing.inference_ms,
            total_ms=timing.total_ms,
        ),
    }


def _passage_status(error: types.PassageError | None) -> status_pb2.Status | None:
    if error is None:
        return None
    return status_pb2.Status(code=_STATUS_NUMBERS[error.code], message=error.message)
