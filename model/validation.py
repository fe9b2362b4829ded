"""Checks of a whole request before any work; all faults are reported at once.

Token limits of query and titles are among them, with a tokenizer at hand. What only the windows
can tell, the tokens of the whole request, is checked between preparing and the model.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from secateur.errors import (
    FieldViolation,
    InvalidRequestError,
    NotImplementedOptionError,
    UnsupportedByModelError,
)
from secateur.model.checks import count_faults, enum_faults, share_faults, text_faults
from secateur.model.offsets import OffsetMap
from secateur.model.protect import compile_patterns
from secateur.model.splitter import SentenceSplitter
from secateur.model.token_limits import query_token_faults, title_token_faults
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
    count_tokens: Callable[[str], int] | None = None,
    count_query_tokens: Callable[[str], int] | None = None,
) -> None:
    """Check a request; with ``count_tokens`` also the tokens of query and titles.

    count_query_tokens: for models that see another form of the query than was sent.
    Raises InvalidRequestError with every violation; if there is none, then
    UnsupportedByModelError or NotImplementedOptionError for the first option that this model
    or this version cannot serve.
    """
    # Tokenising titles without number would be work.
    count_title_tokens = count_tokens if len(passages) <= limits.max_passages else None
    _raise_if_any(
        [
            *_query(query, options, limits, info, count_query_tokens or count_tokens),
            *_options(options, limits),
            *_passage_list(query, passages, limits),
            *(
                v
                for i, p in enumerate(passages)
                for v in _passage(p, i, options, limits, info, count_title_tokens)
            ),
        ]
    )
    _require_support(options, info)


def validate_options(options: PruneOptions, info: ModelInfo, limits: Limits) -> None:
    """The part of :func:`validate` that looks at ``options`` alone."""
    _raise_if_any(_options(options, limits))
    _require_support(options, info)


def validate_passage(
    passage: Passage,
    index: int,
    options: PruneOptions,
    limits: Limits,
    info: ModelInfo,
    count_tokens: Callable[[str], int] | None = None,
) -> None:
    """The part of :func:`validate` that looks at one passage."""
    _raise_if_any(_passage(passage, index, options, limits, info, count_tokens))


def validate_highlight(
    options: PruneOptions, pre_tag: str, post_tag: str, fragment_format: FragmentFormat
) -> None:
    """What only a highlight request has. Raises InvalidRequestError with every violation."""
    violations = [
        *text_faults("pre_tag", pre_tag, MAX_TAG_CHARACTERS),
        *text_faults("post_tag", post_tag, MAX_TAG_CHARACTERS),
        *enum_faults("fragment_format", fragment_format, FragmentFormat),
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
        _require_ranking_only(options, info)
    rule = options.keep_rule
    if rule is not None and rule not in info.keep_rules:
        raise UnsupportedByModelError(
            "options.keep_rule",
            f"{info.id} does not support {KeepRule(rule).value}; "
            f"it supports {', '.join(known.value for known in info.keep_rules)}",
        )
    if options.max_context_tokens:
        raise NotImplementedOptionError("options.max_context_tokens")


def _require_ranking_only(options: PruneOptions, info: ModelInfo) -> None:
    """A model that scores no sentences serves only who says that all are to be kept."""
    cannot = f"{info.id} scores whole passages only and cannot prune"
    if options.keep_rule is not None:
        raise UnsupportedByModelError("options.keep_rule", f"{cannot}; leave it unset")
    if options.include_tokens:
        raise UnsupportedByModelError("options.include_tokens", f"{cannot}; leave it unset")
    if options.threshold != 0:
        raise UnsupportedByModelError(
            "options.threshold",
            f"{cannot}; set it to 0 to rank passages and keep all their sentences, or load "
            "another model",
        )


def _query(
    query: str,
    options: PruneOptions,
    limits: Limits,
    info: ModelInfo,
    count_tokens: Callable[[str], int] | None,
) -> Iterator[FieldViolation]:
    faults = list(text_faults("query", query, limits.max_query_characters))
    if not faults and is_blank_query(query):
        faults = [FieldViolation("query", "is blank; it must hold visible text", "BLANK")]
    yield from faults
    if not faults and count_tokens is not None:
        yield from query_token_faults(count_tokens(query), options, info)


def _options(options: PruneOptions, limits: Limits) -> Iterator[FieldViolation]:
    yield from share_faults("options.threshold", options.threshold)
    yield from share_faults("options.min_relevance_score", options.min_relevance_score)
    for name in ("top_k", "min_sentences", "neighbor_sentences", "max_context_tokens"):
        yield from count_faults(f"options.{name}", getattr(options, name))
    if options.keep_rule is not None:
        yield from enum_faults("options.keep_rule", options.keep_rule, KeepRule)
    yield from enum_faults("options.order", options.order, ResultOrder)
    yield from enum_faults("options.offset_unit", options.offset_unit, OffsetUnit)
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
            limits.max_protected_patterns,
        )
        return
    sound = []  # an empty one in a faulty one's place: it compiles, and keeps the numbers
    for i, pattern in enumerate(patterns):
        path = f"options.protected_patterns[{i}]"
        faults = list(text_faults(path, pattern, limits.max_protected_pattern_characters))
        if not faults and not pattern:
            faults = [FieldViolation(path, "is empty; an empty pattern protects nothing", "BLANK")]
        sound.append("" if faults else pattern)
        yield from faults
    try:
        compile_patterns(sound)
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
            limits.max_passages,
        )
    characters = len(query) + sum(len(p.text) + len(p.title) + len(p.id) for p in passages)
    if characters > limits.max_request_characters:
        yield FieldViolation(
            "passages",
            f"the request has {characters} characters, the limit is "
            f"{limits.max_request_characters}",
            "TOO_LONG",
            limits.max_request_characters,
        )


def _passage(
    passage: Passage,
    index: int,
    options: PruneOptions,
    limits: Limits,
    info: ModelInfo,
    count_tokens: Callable[[str], int] | None,
) -> Iterator[FieldViolation]:
    path = f"passages[{index}]"
    faulty_text = list(text_faults(f"{path}.text", passage.text, limits.max_passage_characters))
    yield from faulty_text
    title_faults = list(text_faults(f"{path}.title", passage.title, limits.max_title_characters))
    if not title_faults and passage.title and count_tokens is not None:
        title_faults = list(title_token_faults(count_tokens(passage.title), index, info))
    yield from title_faults
    yield from text_faults(f"{path}.id", passage.id, limits.max_id_characters)
    unit_is_known = not list(enum_faults("", options.offset_unit, OffsetUnit))
    if passage.sentences and not faulty_text and unit_is_known:
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
