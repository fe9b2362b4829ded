"""Search messages to domain types and back: with ``server.convert``, all that knows both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf import struct_pb2

from secateur.errors import FieldViolation
from secateur.milvus.types import (
    ChunkOptions,
    Document,
    FieldHighlight,
    HighlightOptions,
    IndexCounts,
    SearchAnswer,
    SearchHit,
    SearchMode,
    SearchRequest,
)
from secateur.server import convert
from secateur.types import FragmentFormat
from secateur.v1 import rerank_prune_pb2 as ranking
from secateur.v1 import search_pb2 as pb

Faults = list[FieldViolation]

_EXACT: Final = 2**53
"""The largest integer up to which a double holds all."""


def search_request(message: pb.SearchRequest, faults: Faults) -> SearchRequest:
    """A search; what domain types cannot hold is added to ``faults``."""
    default = SearchRequest(collection="")
    highlight = None
    if message.HasField("highlight"):
        highlight = highlight_options(message.highlight, faults)
    return SearchRequest(
        collection=message.collection,
        query=message.query,
        vector=tuple(message.vector),
        mode=convert.member(SearchMode, message.mode, "mode", faults),
        candidate_count=message.candidate_count or default.candidate_count,
        filter=message.filter,
        filter_params={name: from_value(v) for name, v in message.filter_params.fields.items()},
        output_fields=tuple(message.output_fields),
        text_field=message.text_field or default.text_field,
        title_field=message.title_field,
        vector_field=message.vector_field,
        options=convert.prune_options(message.options, faults),
        highlight=highlight,
    )


def highlight_options(message: pb.HighlightOptions, faults: Faults) -> HighlightOptions:
    """How to highlight; unset fields take the defaults."""
    options = HighlightOptions()
    form = convert.member(
        FragmentFormat, message.fragment_format, "highlight.fragment_format", faults
    )
    return replace(
        options,
        pre_tags=tuple(message.pre_tags) or options.pre_tags,
        post_tags=tuple(message.post_tags) or options.post_tags,
        threshold=message.threshold if message.HasField("threshold") else None,
        highlight_only=message.highlight_only if message.HasField("highlight_only") else True,
        fragment_format=form or options.fragment_format,
    )


def chunk_options(message: pb.ChunkOptions) -> ChunkOptions:
    """How to cut; unset fields take the defaults."""
    return ChunkOptions(
        max_characters=message.max_characters or ChunkOptions().max_characters,
        language=message.language,
    )


def documents(message: pb.DocumentBatch) -> list[Document]:
    """Documents in order."""
    return [Document(id=d.id, text=d.text, title=d.title) for d in message.documents]


def index_response(counts: IndexCounts) -> pb.IndexResponse:
    """What was stored."""
    return pb.IndexResponse(
        document_count=counts.document_count,
        passage_count=counts.passage_count,
        added_passage_count=counts.added_passage_count,
        removed_passage_count=counts.removed_passage_count,
    )


def search_response(answer: SearchAnswer) -> pb.SearchResponse:
    """The answer to a search; ``timing.total_ms`` is the caller's to set."""
    response = pb.SearchResponse(
        hits=[_hit(hit) for hit in answer.hits],
        applied_mode=convert.number(answer.applied_mode),
        candidate_count=answer.candidate_count,
        timing=pb.SearchTiming(embed_ms=answer.embed_ms, retrieve_ms=answer.retrieve_ms),
    )
    if answer.ranked is not None:
        ranked = convert.rerank_response(answer.ranked)
        response.applied_threshold = ranked.applied_threshold
        response.applied_keep_rule = ranked.applied_keep_rule
        response.score_source = ranked.score_source
        response.omitted_hit_count = ranked.omitted_passage_count
        response.query_truncated = ranked.query_truncated
        response.warnings.extend(ranked.warnings)
        response.model.CopyFrom(ranked.model)
        response.usage.CopyFrom(ranked.usage)
        response.timing.rerank.CopyFrom(ranked.timing)
    return response


def to_value(value: Any) -> struct_pb2.Value:
    """A field's value; an integer beyond 2^53 and a number that is not finite become text."""
    if value is None:
        return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
    if isinstance(value, bool):
        return struct_pb2.Value(bool_value=value)
    if isinstance(value, int | float):
        exact = math.isfinite(value) if isinstance(value, float) else abs(value) <= _EXACT
        if exact:
            return struct_pb2.Value(number_value=value)
        return struct_pb2.Value(string_value=str(value))
    if isinstance(value, Mapping):
        fields = {str(name): to_value(item) for name, item in value.items()}
        return struct_pb2.Value(struct_value=struct_pb2.Struct(fields=fields))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = [to_value(item) for item in value]
        return struct_pb2.Value(list_value=struct_pb2.ListValue(values=items))
    return struct_pb2.Value(string_value=str(value))


def from_value(value: struct_pb2.Value) -> Any:
    """A filter's value; whole numbers become integers, which Milvus tells from floats."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= _EXACT else number
    if kind == "list_value":
        return [from_value(item) for item in value.list_value.values]
    if kind == "struct_value":
        return {name: from_value(item) for name, item in value.struct_value.fields.items()}
    return getattr(value, kind) if kind in {"string_value", "bool_value"} else None


def _hit(hit: SearchHit) -> pb.SearchHit:
    candidate = hit.candidate
    passage: ranking.PrunedPassage | None = None
    if hit.passage is not None:
        passage = convert.pruned_passage(hit.passage)
    return pb.SearchHit(
        id=candidate.id,
        vector_score=candidate.vector_score,
        text=candidate.text,
        fields=struct_pb2.Struct(
            fields={name: to_value(value) for name, value in candidate.fields.items()}
        ),
        passage=passage,
        highlight={name: _highlight(value) for name, value in hit.highlight.items()},
    )


def _highlight(highlight: FieldHighlight) -> pb.FieldHighlight:
    return pb.FieldHighlight(
        fragments=highlight.fragments,
        scores=highlight.scores,
        spans=[
            ranking.HighlightSpan(
                start_offset=span.start_offset,
                end_offset=span.end_offset,
                probability=span.probability,
            )
            for span in highlight.spans
        ],
    )
