"""Fragments of highlighted text in the shape that pymilvus gives them."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from secateur.errors import FieldViolation
from secateur.milvus.types import FieldHighlight, HighlightOptions
from secateur.types import FragmentFormat, HighlightSpan, Sentence

MAX_TAGS = 64
MAX_TAG_CHARACTERS = 256
"""As of HighlightRequest."""


def highlight_field(
    text: str, spans: Sequence[HighlightSpan], options: HighlightOptions
) -> FieldHighlight:
    """The fragments of one text and their scores.

    spans: sorted, not overlapping, in code points of ``text``. A span without a probability (all
    its sentences are unscored) is listed but gives no fragment. Tags are added last, around the
    escaped text, and take turns. With no span to show, there are no fragments.
    """
    shown = [(span, span.probability) for span in spans]
    scored = [(span, score) for span, score in shown if score is not None]
    escape: Callable[[str], str] = (
        str if options.fragment_format == FragmentFormat.RAW else html.escape
    )
    tagged = [
        options.pre_tags[turn % len(options.pre_tags)]
        + escape(text[span.start_offset : span.end_offset])
        + options.post_tags[turn % len(options.post_tags)]
        for turn, (span, _) in enumerate(scored)
    ]
    scores = [score for _, score in scored]
    if tagged and not options.highlight_only:
        whole, position = "", 0
        for (span, _), fragment in zip(scored, tagged, strict=True):
            whole += escape(text[position : span.start_offset]) + fragment
            position = span.end_offset
        tagged, scores = [whole + escape(text[position:])], [max(scores)]
    return FieldHighlight(tuple(tagged), tuple(scores), tuple(spans))


def spans_of(sentences: Iterable[Sentence], threshold: float | None) -> tuple[HighlightSpan, ...]:
    """Maximal runs of the sentences to highlight: above ``threshold``, or else the kept ones.

    A threshold of 0 takes every scored sentence. Offsets are in the sentences' own unit.
    """

    def is_shown(sentence: Sentence) -> bool:
        if threshold is None:
            return sentence.kept
        return sentence.probability is not None and (
            sentence.probability > threshold or threshold == 0  # p may underflow to 0
        )

    spans = []
    for shown, run in groupby(sentences, key=is_shown):
        if shown:
            together = list(run)
            scores = [s.probability for s in together if s.probability is not None]
            spans.append(
                HighlightSpan(
                    together[0].start_offset, together[-1].end_offset, max(scores, default=None)
                )
            )
    return tuple(spans)


def faults_of(options: HighlightOptions, path: str) -> list[FieldViolation]:
    """What is wrong with the options; ``path`` goes before each field's name."""
    faults = []
    counts = {"pre_tags": options.pre_tags, "post_tags": options.post_tags}
    for name, tags in counts.items():
        if not 1 <= len(tags) <= MAX_TAGS:
            faults.append(FieldViolation(f"{path}{name}", f"must be 1 to {MAX_TAGS} tags"))
        faults += [
            FieldViolation(
                f"{path}{name}[{i}]", f"must be at most {MAX_TAG_CHARACTERS:,} characters"
            )
            for i, tag in enumerate(tags)
            if len(tag) > MAX_TAG_CHARACTERS
        ]
    if len(options.pre_tags) != len(options.post_tags):
        faults.append(FieldViolation(f"{path}post_tags", "must be as many as pre_tags"))
    if options.threshold is not None and not 0 <= options.threshold <= 1:
        faults.append(
            FieldViolation(f"{path}threshold", f"must be from 0 to 1, not {options.threshold}")
        )
    if options.fragment_format not in {FragmentFormat.HTML_ESCAPED, FragmentFormat.RAW}:
        faults.append(FieldViolation(f"{path}fragment_format", "must be html_escaped or raw"))
    return faults
