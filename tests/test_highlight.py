"""Spans and fragments for a search page."""

from __future__ import annotations

import html
import re

import pytest
from fakes import make_engine
from hypothesis import given
from hypothesis import strategies as st

from secateur.model.highlight import highlight
from secateur.types import (
    FragmentFormat,
    HighlightedPassage,
    OffsetUnit,
    Passage,
    PassageError,
    PruneOptions,
)

HOSTILE = (
    "Use <script>alert(1)</script> & <mark>fake</mark>. "
    'The valve\'s "on" is <b>red</b>. Pump off. Red too.'
)
FIRST = HOSTILE.removesuffix(" Pump off. Red too.")


def highlighted(
    text: str,
    query: str = "red script",
    unit: OffsetUnit = OffsetUnit.CODE_POINT,
    form: FragmentFormat = FragmentFormat.HTML_ESCAPED,
    tags: tuple[str, str] = ("<mark>", "</mark>"),
) -> HighlightedPassage:
    engine = make_engine()
    prepared_query = engine.prepare_query(query, PruneOptions(offset_unit=unit, threshold=0.03))
    prepared = engine.prepare_passage(prepared_query, 0, Passage(text, id="h"))
    pruned = engine.assemble(prepared_query, prepared, engine.run(prepared.windows))
    return highlight(
        text, pruned, offset_unit=unit, pre_tag=tags[0], post_tag=tags[1], fragment_format=form
    )


def test_source_text_is_escaped_and_tags_come_last() -> None:
    """F27: a passage with markup of its own must show it, not run it, nor fake a highlight."""
    found = highlighted(HOSTILE)
    shown = (
        "Use &lt;script&gt;alert(1)&lt;/script&gt; &amp; &lt;mark&gt;fake&lt;/mark&gt;. "
        "The valve&#x27;s &quot;on&quot; is &lt;b&gt;red&lt;/b&gt;."
    )
    assert found.fragments == (f"<mark>{shown}</mark>", "<mark>Red too.</mark>")
    assert [HOSTILE[s.start_offset : s.end_offset] for s in found.spans] == [
        FIRST,
        "Red too.",
    ]


def test_raw_fragments_and_own_tags() -> None:
    """RAW escapes nothing; the caller's tags are taken as they are."""
    found = highlighted(HOSTILE, form=FragmentFormat.RAW, tags=("**", "&"))
    assert found.fragments == (f"**{FIRST}&", "**Red too.&")


def test_no_fragments_by_default() -> None:
    """Spans are enough for callers that hold the text."""
    found = highlighted(HOSTILE, form=FragmentFormat.NONE)
    assert found.fragments == ()
    assert len(found.spans) == 2


def test_span_probability_is_that_of_its_best_sentence() -> None:
    """`Red red.` and `Red it is.` are one span."""
    (span,) = highlighted("Red red. Red it is.", query="red").spans
    assert (span.start_offset, span.end_offset) == (0, 19)
    assert span.probability == pytest.approx((0.95 * 2 + 0.02) / 3, abs=1e-6)
    (unscored,) = highlighted("\u200b").spans
    assert unscored.probability is None


@pytest.mark.parametrize("unit", list(OffsetUnit))
def test_fragments_do_not_depend_on_the_unit(unit: OffsetUnit) -> None:
    """F8: spans leave in the unit; sliced with it, fragments would start inside a word."""
    found = highlighted("👍 é. Red 終.  Red é. No.", query="red", unit=unit)
    assert found.fragments == ("<mark>Red 終.  Red é.</mark>",)


def test_a_failed_passage_stays_failed() -> None:
    """Its error is passed on, with nothing to show."""
    engine = make_engine()
    failed = engine.failed(3, Passage("Red.", id="x"), PassageError("INTERNAL", "No."))
    found = highlight(
        "Red.",
        failed,
        offset_unit=OffsetUnit.CODE_POINT,
        pre_tag="",
        post_tag="",
        fragment_format=FragmentFormat.RAW,
    )
    assert found == HighlightedPassage(
        index=3,
        id="x",
        relevance_score=None,
        relevance_logit=None,
        spans=(),
        fragments=(),
        error=PassageError("INTERNAL", "No."),
    )


@given(st.lists(st.sampled_from(["red ", "<b>", "&amp;", '"', "'", "</mark>", ". ", "👍"])))
def test_no_markup_of_the_source_survives(parts: list[str]) -> None:
    """Whatever the passage says, the only tags are ours, and unescaping gives the source."""
    text = "".join(parts)
    found = highlighted(text, query="red", tags=("<em>", "</em>"))
    for fragment, span in zip(found.fragments, found.spans, strict=True):
        assert re.findall("<[^>]*>|[<>\"']", fragment) == ["<em>", "</em>"]
        inner = fragment.removeprefix("<em>").removesuffix("</em>")
        assert html.unescape(inner) == text[span.start_offset : span.end_offset]
