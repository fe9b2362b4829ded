"""Domain requests to protobuf, and protobuf answers to domain results: the client's half.

The server's half, the opposite direction, is ``server/convert.py``. Offsets, scores and text
pass through unchanged; an unset ``optional`` is ``None``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import TypedDict, TypeVar

from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2

from secateur import types, v1
from secateur._proto_enums import from_number, to_number
from secateur.errors import FieldViolation, InvalidRequestError, SecateurError

_Enum = TypeVar("_Enum", bound=StrEnum)


# --- requests ---


def options_to_proto(options: types.PruneOptions) -> v1.PruneOptions:
    """The options as a message.

    Raises InvalidRequestError naming every value that the contract's types cannot hold, such as
    an integer beyond 32 bits; ranges are the server's to check.
    """
    message = v1.PruneOptions()
    faults: list[FieldViolation] = []
    for item in fields(options):
        value = getattr(options, item.name)
        if value is not None:
            _set(message, item.name, value, "options", faults)
    if faults:
        raise InvalidRequestError(faults)
    return message


def passages_to_proto(
    passages: Iterable[types.Passage | str], *, first_index: int = 0
) -> list[v1.Passage]:
    """The passages as messages; a plain string is a passage without id or title.

    Raises InvalidRequestError naming every value that cannot be sent, such as a text with a
    lone surrogate. ``first_index`` is the first passage's position in these names. One string
    in place of the sequence is a TypeError.
    """
    if isinstance(passages, str):
        raise TypeError("passages must be a sequence of passages, not one string")
    messages = []
    faults: list[FieldViolation] = []
    for index, given in enumerate(passages, first_index):
        path = f"passages[{index}]"
        passage = types.Passage(given) if isinstance(given, str) else given
        message = v1.Passage()
        messages.append(message)
        if not isinstance(passage, types.Passage):
            description = f"must be a Passage or a string, not {type(passage).__name__}"
            faults.append(FieldViolation(path, description))
            continue
        for name in ("id", "text", "title"):
            _set(message, name, getattr(passage, name), path, faults)
        for position, span in enumerate(passage.sentences):
            entry = message.sentences.add()
            for name in ("start_offset", "end_offset"):
                where = f"{path}.sentences[{position}]"
                _set(entry, name, getattr(span, name), where, faults)
    if faults:
        raise InvalidRequestError(faults)
    return messages


def query_to_proto(query: str) -> str:
    """The query, when it can be sent; else InvalidRequestError."""
    faults: list[FieldViolation] = []
    _set(v1.StreamStart(), "query", query, "", faults)
    if faults:
        raise InvalidRequestError(faults)
    return query


def _set(
    message: Message, name: str, value: object, path: str, faults: list[FieldViolation]
) -> None:
    """Set one field, or add the reason why the contract's type cannot hold the value."""
    try:
        if isinstance(value, StrEnum):
            setattr(message, name, to_number(value))
        elif isinstance(value, tuple | list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    except UnicodeEncodeError as error:
        description = f"character {error.start} is a lone surrogate, which is not valid Unicode"
        faults.append(FieldViolation(f"{path}.{name}".lstrip("."), description))
    except (TypeError, ValueError, KeyError) as error:
        faults.append(FieldViolation(f"{path}.{name}".lstrip("."), str(error)))


# --- answers ---


def ranked_from_proto(message: v1.RerankAndPruneResponse) -> types.RankedPassages:
    """The answer to RerankAndPrune."""
    return types.RankedPassages(
        results=tuple(pruned_from_proto(result) for result in message.results),
        **_applied_from_proto(message),
    )


def summary_from_proto(message: v1.StreamSummary) -> types.StreamSummary:
    """The last message of a stream."""
    return types.StreamSummary(
        ranking=tuple(
            types.RankedPassage(
                index=line.index,
                id=line.id,
                relevance_score=_number(line, "relevance_score"),
                relevance_logit=_number(line, "relevance_logit"),
            )
            for line in message.ranking
        ),
        **_applied_from_proto(message),
    )


def highlighted_from_proto(message: v1.HighlightResponse) -> types.HighlightedPassages:
    """The answer to Highlight."""
    return types.HighlightedPassages(
        results=tuple(
            types.HighlightedPassage(
                index=result.index,
                id=result.id,
                relevance_score=_number(result, "relevance_score"),
                relevance_logit=_number(result, "relevance_logit"),
                spans=tuple(
                    types.HighlightSpan(
                        span.start_offset, span.end_offset, _number(span, "probability")
                    )
                    for span in result.spans
                ),
                fragments=tuple(result.fragments),
                error=_error(result.error) if result.HasField("error") else None,
            )
            for result in message.results
        ),
        **_applied_from_proto(message),
    )


def pruned_from_proto(message: v1.PrunedPassage) -> types.PrunedPassage:
    """One passage's result."""
    return types.PrunedPassage(
        index=message.index,
        id=message.id,
        relevance_score=_number(message, "relevance_score"),
        relevance_logit=_number(message, "relevance_logit"),
        pruned_text=message.pruned_text,
        sentences=tuple(_sentence(sentence) for sentence in message.sentences),
        kept_spans=tuple(
            types.TextSpan(span.start_offset, span.end_offset) for span in message.kept_spans
        ),
        compression_rate=message.compression_rate,
        all_pruned=message.all_pruned,
        unscored_sentence_count=message.unscored_sentence_count,
        window_count=message.window_count,
        coarse_sentences=message.coarse_sentences,
        tokens=tuple(
            types.TokenScore(
                token.start_offset, token.end_offset, token.probability, token.relevant
            )
            for token in message.tokens
        ),
        error=_error(message.error) if message.HasField("error") else None,
    )


def model_info_from_proto(message: v1.GetModelInfoResponse) -> types.ModelInfo:
    """The answer to GetModelInfo."""
    limits = {item.name: getattr(message.limits, item.name) for item in fields(types.Limits)}
    return types.ModelInfo(
        id=message.id,
        revision=message.revision,
        family=message.family,
        dtype=message.dtype,
        device=message.device,
        can_rerank=message.can_rerank,
        can_prune=message.can_prune,
        score_source=_member(types.ScoreSource, message.score_source),
        languages=tuple(message.languages),
        window_tokens=message.window_tokens,
        max_query_tokens=message.max_query_tokens,
        default_threshold=_number(message, "default_threshold"),
        default_keep_rule=_keep_rule(message.default_keep_rule),
        keep_rules=_members(types.KeepRule, message.keep_rules),
        limits=types.Limits(**limits),
    )


class _Applied(TypedDict):
    """The fields that every kind of answer shares."""

    applied_threshold: float
    applied_keep_rule: types.KeepRule | None
    score_source: types.ScoreSource
    omitted_passage_count: int
    query_truncated: bool
    warnings: tuple[types.WarningCode, ...]
    model: types.ModelRef
    usage: types.Usage
    timing: types.Timing


def _applied_from_proto(
    message: v1.RerankAndPruneResponse | v1.StreamSummary | v1.HighlightResponse,
) -> _Applied:
    usage, timing = message.usage, message.timing
    return _Applied(
        applied_threshold=message.applied_threshold,
        applied_keep_rule=_keep_rule(message.applied_keep_rule),
        score_source=_member(types.ScoreSource, message.score_source),
        omitted_passage_count=message.omitted_passage_count,
        query_truncated=message.query_truncated,
        warnings=_members(types.WarningCode, message.warnings),
        model=types.ModelRef(message.model.id, message.model.revision, message.model.dtype),
        usage=types.Usage(**{f.name: getattr(usage, f.name) for f in fields(types.Usage)}),
        timing=types.Timing(**{f.name: getattr(timing, f.name) for f in fields(types.Timing)}),
    )


def _sentence(message: v1.Sentence) -> types.Sentence:
    return types.Sentence(
        start_offset=message.start_offset,
        end_offset=message.end_offset,
        probability=_number(message, "probability"),
        vote_share=_number(message, "vote_share"),
        kept=message.kept,
        reason=_member(types.KeepReason, message.reason),
        text=message.text,
    )


def _error(status: status_pb2.Status) -> types.PassageError:
    known = status.code in code_pb2.Code.values()
    code = code_pb2.Code.Name(status.code) if known else "UNKNOWN"
    return types.PassageError(code=code, message=status.message)


def _number(message: Message, name: str) -> float | None:
    return getattr(message, name) if message.HasField(name) else None


def _member(enum: type[_Enum], number: int) -> _Enum:
    member = from_number(enum, number)
    if member is None:
        raise SecateurError(
            f"the server sent {enum.__name__} number {number}, which this version of secateur "
            "does not know; is the client older than the server?"
        )
    return member


def _keep_rule(number: int) -> types.KeepRule | None:
    """``None`` from a model that scores whole passages only."""
    return _member(types.KeepRule, number) if number else None


def _members(enum: type[_Enum], numbers: Sequence[int]) -> tuple[_Enum, ...]:
    return tuple(_member(enum, number) for number in numbers)
