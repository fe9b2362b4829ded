"""Checks of a whole request before any work; all faults are reported at once.

What only the tokenizer can tell (token limits of query and title) is checked while preparing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from numbers import Integral, Real
from typing import Any

from secateur.errors import (
    FieldViolation,
    InvalidRequestError,
    NotImplementedOptionError,
    UnsupportedByModelError,
)
from secateur.model.offsets import OffsetMap
from secateur.model.protect import compile_patterns
from secateur.model.splitter import SentenceSplitter
from secateur.types import (
    FragmentFormat,
    KeepRule,
    Limits,
    ModelInfo,
    OffsetUnit,
    Passage,
    PruneOptions,
    ResultOrder,
)

INT32_MAX = 2**31 - 1
MAX_TAG_CHARACTERS = 256
"""Largest ``pre_tag`` and ``post_tag`` of a highlight request: they repeat with every span."""

# Format, control and separator characters show nothing; so do these fillers of other categories.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
_INVISIBLE_CHARACTERS = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0" + "".join(map(chr, range(0xFE00, 0xFE10)))
)


def validate(
    query: str,
    passages: Sequence[Passage],
    options: PruneOptions,
    limits: Limits,
    info: ModelInfo,
) -> None:
    """Check a request.

    Raises InvalidRequestError with every violation; if there is none, then
    UnsupportedByModelError or NotImplementedOptionError for the first option that this model
    or this version cannot serve.
    """
    _raise_if_any(
        [
            *_query(query, limits),
            *_options(options, limits),
            *_passage_list(query, passages, limits),
            *(v for i, p in enumerate(passages) for v in _passage(p, i, options, limits)),
        ]
    )
    _require_support(options, info)


def validate_options(options: PruneOptions, info: ModelInfo, limits: Limits) -> None:
    """The part of :func:`validate` that looks at ``options`` alone."""
    _raise_if_any(_options(options, limits))
    _require_support(options, info)


def validate_passage(passage: Passage, index: int, options: PruneOptions, limits: Limits) -> None:
    """The part of :func:`validate` that looks at one passage."""
    _raise_if_any(_passage(passage, index, options, limits))


def validate_highlight(
    options: PruneOptions, pre_tag: str, post_tag: str, fragment_format: FragmentFormat
) -> None:
    """What only a highlight request has. Raises InvalidRequestError with every violation."""
    violations = [
        *_text("pre_tag", pre_tag, MAX_TAG_CHARACTERS),
        *_text("post_tag", post_tag, MAX_TAG_CHARACTERS),
        *_enum("fragment_format", fragment_format, FragmentFormat),
    ]
    violations.extend(
        FieldViolation(f"options.{name}", "has no place in a highlight answer; leave it unset")
        for name in ("include_tokens", "include_sentence_text")
        if getattr(options, name)
    )
    _raise_if_any(violations)


def is_blank_query(query: str) -> bool:
    """Whether a query shows nothing: only white space, zero-width and control characters."""
    return all(
        c.isspace()
        or c in _INVISIBLE_CHARACTERS
        or unicodedata.category(c) in _INVISIBLE_CATEGORIES
        for c in query
    )


def _raise_if_any(violations: Iterable[FieldViolation]) -> None:
    found = tuple(violations)
    if found:
        raise InvalidRequestError(found)


def _require_support(options: PruneOptions, info: ModelInfo) -> None:
    if not info.can_prune:
        raise UnsupportedByModelError(
            "model", f"{info.id} scores whole passages only and cannot prune; load another model"
        )
    rule = options.keep_rule
    if rule is not None and rule not in info.keep_rules:
        raise UnsupportedByModelError(
            "options.keep_rule",
            f"{info.id} does not support {KeepRule(rule).value}; "
            f"it supports {', '.join(known.value for known in info.keep_rules)}",
        )
    if options.max_context_tokens:
        raise NotImplementedOptionError("options.max_context_tokens")


def _query(query: str, limits: Limits) -> Iterator[FieldViolation]:
    faults = list(_text("query", query, limits.max_query_characters))
    yield from faults
    if not faults and is_blank_query(query):
        yield FieldViolation("query", "is blank; it must hold visible text", "BLANK")


def _options(options: PruneOptions, limits: Limits) -> Iterator[FieldViolation]:
    yield from _share("options.threshold", options.threshold)
    yield from _share("options.min_relevance_score", options.min_relevance_score)
    for name in ("top_k", "min_sentences", "neighbor_sentences", "max_context_tokens"):
        yield from _count(f"options.{name}", getattr(options, name))
    if options.keep_rule is not None:
        yield from _enum("options.keep_rule", options.keep_rule, KeepRule)
    yield from _enum("options.order", options.order, ResultOrder)
    yield from _enum("options.offset_unit", options.offset_unit, OffsetUnit)
    if options.language and options.language not in SentenceSplitter.languages:
        yield FieldViolation(
            "options.language",
            f"{options.language!r} is not supported; leave it empty to choose by script, "
            f"or use one of {', '.join(SentenceSplitter.languages)}",
            "UNKNOWN_LANGUAGE",
        )
    yield from _patterns(options.protected_patterns, limits)


def _patterns(patterns: Sequence[str], limits: Limits) -> Iterator[FieldViolation]:
    if isinstance(patterns, str):
        yield FieldViolation(
            "options.protected_patterns", "must be a sequence of patterns, not one text"
        )
        return
    if len(patterns) > limits.max_protected_patterns:
        yield FieldViolation(
            "options.protected_patterns",
            f"has {len(patterns)} patterns, the limit is {limits.max_protected_patterns}",
            "TOO_MANY",
        )
        return
    faulty = False
    for i, pattern in enumerate(patterns):
        path = f"options.protected_patterns[{i}]"
        faults = list(_text(path, pattern, limits.max_protected_pattern_characters))
        if not faults and not pattern:
            faults = [FieldViolation(path, "is empty; an empty pattern protects nothing", "BLANK")]
        faulty = faulty or bool(faults)
        yield from faults
    if not faulty:
        try:
            compile_patterns(patterns)
        except InvalidRequestError as error:
            yield from error.violations


def _passage_list(
    query: str, passages: Sequence[Passage], limits: Limits
) -> Iterator[FieldViolation]:
    if len(passages) > limits.max_passages:
        yield FieldViolation(
            "passages",
            f"has {len(passages)} passages, the limit is {limits.max_passages}",
            "TOO_MANY",
        )
    characters = len(query) + sum(len(p.text) + len(p.title) + len(p.id) for p in passages)
    if characters > limits.max_request_characters:
        yield FieldViolation(
            "passages",
            f"the request has {characters} characters, the limit is "
            f"{limits.max_request_characters}",
            "TOO_LONG",
        )


def _passage(
    passage: Passage, index: int, options: PruneOptions, limits: Limits
) -> Iterator[FieldViolation]:
    path = f"passages[{index}]"
    text_faults = list(_text(f"{path}.text", passage.text, limits.max_passage_characters))
    yield from text_faults
    yield from _text(f"{path}.title", passage.title, limits.max_title_characters)
    yield from _text(f"{path}.id", passage.id, limits.max_id_characters)
    unit_is_known = not list(_enum("", options.offset_unit, OffsetUnit))
    if passage.sentences and not text_faults and unit_is_known:
        yield from _sentences(passage, path, OffsetUnit(options.offset_unit))


def _sentences(passage: Passage, path: str, unit: OffsetUnit) -> Iterator[FieldViolation]:
    """Caller-given sentences obey the rules of the splitter's own."""
    text = passage.text
    offsets = OffsetMap(text, unit)
    previous_end: int | None = 0  # code points; None: the sentence before has no valid range
    for j, span in enumerate(passage.sentences):
        where = f"{path}.sentences[{j}]"
        shown = f"[{span.start_offset}, {span.end_offset})"
        start = offsets.to_code_point(span.start_offset)
        end = offsets.to_code_point(span.end_offset)
        if start is None or end is None:
            previous_end = None
            yield FieldViolation(
                where,
                f"{shown} must lie on character borders of the text, whose length is "
                f"{offsets.length} ({unit.value} offsets)",
                "BAD_OFFSET",
            )
            continue
        if end <= start:
            previous_end = None
            yield FieldViolation(where, f"{shown} must end after it starts", "BAD_OFFSET")
            continue
        if text[start].isspace() or text[end - 1].isspace():
            yield FieldViolation(
                where, f"{shown} must start and end on a character that is not white space", "BLANK"
            )
        if previous_end is not None and start < previous_end:
            yield FieldViolation(
                where,
                f"{shown} starts before an earlier sentence ends; sentences must be in order and "
                "must not overlap",
                "OVERLAP",
            )
        elif previous_end is not None and text[previous_end:start].strip():
            yield FieldViolation(
                where, f"only white space may lie before {shown}, but there is text", "GAP"
            )
        previous_end = max(previous_end or 0, end)
    if previous_end is not None and text[previous_end:].strip():
        yield FieldViolation(
            f"{path}.sentences[{len(passage.sentences) - 1}]",
            "only white space may lie after the last sentence, but there is text",
            "GAP",
        )


def _text(path: str, value: object, limit: int) -> Iterator[FieldViolation]:
    if not isinstance(value, str):
        yield FieldViolation(path, f"must be text, not {type(value).__name__}", "WRONG_TYPE")
        return
    if len(value) > limit:
        yield FieldViolation(path, f"has {len(value)} characters, the limit is {limit}", "TOO_LONG")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        yield FieldViolation(
            path,
            f"has a lone surrogate (U+{ord(value[error.start]):04X}) at code point "
            f"{error.start}; send valid Unicode",
            "INVALID_UNICODE",
        )


def _share(path: str, value: Any) -> Iterator[FieldViolation]:
    if value is None:
        return
    if not _is_number(value, Real):
        yield FieldViolation(path, f"must be a number, not {type(value).__name__}", "WRONG_TYPE")
    elif not 0 <= value <= 1:  # also false for NaN
        yield FieldViolation(path, f"is {value}, must be from 0 to 1", "OUT_OF_RANGE")


def _count(path: str, value: Any) -> Iterator[FieldViolation]:
    if not _is_number(value, Integral):
        yield FieldViolation(
            path, f"must be a whole number, not {type(value).__name__}", "WRONG_TYPE"
        )
    elif not 0 <= value <= INT32_MAX:
        yield FieldViolation(path, f"is {value}, must be from 0 to {INT32_MAX}", "OUT_OF_RANGE")


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _enum(path: str, value: object, kind: type[StrEnum]) -> Iterator[FieldViolation]:
    known = [member.value for member in kind]
    if value not in known:
        yield FieldViolation(
            path, f"{value!r} is not a known value; use one of {', '.join(known)}", "UNKNOWN_VALUE"
        )
