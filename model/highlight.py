"""Highlighted spans of a pruned passage, and tagged fragments for a search page."""

from __future__ import annotations

import html
from collections.abc import Callable
from itertools import groupby

from secateur.errors import InvariantError
from secateur.model.offsets import OffsetMap
from secateur.types import (
    FragmentFormat,
    HighlightedPassage,
    HighlightSpan,
    OffsetUnit,
    PrunedPassage,
    Sentence,
)


def highlight(
    text: str,
    pruned: PrunedPassage,
    *,
    offset_unit: OffsetUnit,
    pre_tag: str,
    post_tag: str,
    fragment_format: FragmentFormat,
) -> HighlightedPassage:
    """The spans of a passage's kept sentences, and one fragment for each span if asked.

    text: the passage's own text; ``pruned`` is its result, with offsets in ``offset_unit``.
    A span is a maximal run of kept sentences, as in ``kept_spans``; its probability is the
    highest of its scored sentences, ``None`` when it has none.
    A fragment is ``pre_tag``, the span's text, ``post_tag``: HTML_ESCAPED escapes the text
    (``& < > " '``) and adds the tags last, as given; RAW escapes nothing and is unsafe to show
    as HTML; NONE gives no fragments. Offsets always count in the unescaped text.
    """
    spans = tuple(
        _span(list(run))
        for kept, run in groupby(pruned.sentences, key=lambda sentence: sentence.kept)
        if kept
    )
    return HighlightedPassage(
        index=pruned.index,
        id=pruned.id,
        relevance_score=pruned.relevance_score,
        relevance_logit=pruned.relevance_logit,
        spans=spans,
        fragments=tuple(
            pre_tag + shown + post_tag
            for shown in _shown_texts(text, spans, offset_unit, fragment_format)
        ),
        error=pruned.error,
    )


def _span(run: list[Sentence]) -> HighlightSpan:
    return HighlightSpan(
        start_offset=run[0].start_offset,
        end_offset=run[-1].end_offset,
        probability=max(
            (sentence.probability for sentence in run if sentence.probability is not None),
            default=None,
        ),
    )


def _shown_texts(
    text: str,
    spans: tuple[HighlightSpan, ...],
    offset_unit: OffsetUnit,
    fragment_format: FragmentFormat,
) -> list[str]:
    """The text of each span as a fragment shows it; none without fragments."""
    if fragment_format == FragmentFormat.NONE or not spans:
        return []
    escape: Callable[[str], str] = (
        html.escape if fragment_format == FragmentFormat.HTML_ESCAPED else str
    )
    offsets = OffsetMap(text, offset_unit)
    shown = []
    for span in spans:
        start = offsets.to_code_point(span.start_offset)
        end = offsets.to_code_point(span.end_offset)
        if start is None or end is None:
            raise InvariantError("a span off character borders; this is a bug")
        shown.append(escape(text[start:end]))
    return shown
