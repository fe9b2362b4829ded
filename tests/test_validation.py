"""Requests that break the contract, and how they are told so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import make_info

from secateur.errors import (
    InvalidRequestError,
    NotImplementedOptionError,
    SecateurError,
    UnsupportedByModelError,
)
from secateur.model.validation import (
    validate,
    validate_highlight,
    validate_options,
    validate_passage,
)
from secateur.types import (
    FragmentFormat,
    KeepRule,
    Limits,
    OffsetUnit,
    Passage,
    PruneOptions,
    TextSpan,
)

LIMITS = Limits()
INFO = make_info()


def check(
    query: str = "valve",
    passages: tuple[Passage, ...] = (),
    options: PruneOptions | None = None,
    limits: Limits = LIMITS,
) -> None:
    validate(query, passages, options or PruneOptions(), limits, INFO)


def faults(**request: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRequestError) as caught:
        check(**request)
    return [(v.field, v.description) for v in caught.value.violations]


def fields(**request: Any) -> list[str]:
    return [field for field, _ in faults(**request)]


def spans(*pairs: tuple[int, int]) -> tuple[TextSpan, ...]:
    return tuple(TextSpan(*pair) for pair in pairs)


@pytest.mark.parametrize(
    "query", ["", " ", "\n\t", "\u3000\u200b", "\ufeff", "\u200d\ufe0f", "\x00\x1b", "\u3164"]
)
def test_blank_query(query: str) -> None:
    """F13: zero-width characters pass a `strip()` test and reach the model as nothing."""
    assert faults(query=query) == [("query", "is blank; it must hold visible text")]


@pytest.mark.parametrize("query", [".", "🙂", "終", "\u200bvalve", "\u0301"])
def test_visible_query(query: str) -> None:
    """Anything that shows is a query."""
    check(query=query)


@pytest.mark.parametrize("name", ["threshold", "min_relevance_score"])
@pytest.mark.parametrize(
    "value",
    [1.5, -1, -1e-9, float("nan"), float("inf"), float("-inf"), 10**400, np.float32(1.5)],
)
def test_shares_out_of_range(name: str, value: Any) -> None:
    """F17: NaN passes `value < 0 or value > 1`, and then no comparison with it is true."""
    found = faults(options=PruneOptions(**{name: value}))
    assert found == [(f"options.{name}", f"is {value}, must be from 0 to 1")]


@pytest.mark.parametrize("name", ["threshold", "min_relevance_score"])
@pytest.mark.parametrize("value", [0, 1, 0.0, 0.1, 1.0, np.float32(0.5), np.float64(0.5)])
def test_shares_in_range(name: str, value: Any) -> None:
    """Both ends belong to the range; NumPy's numbers are numbers."""
    check(options=PruneOptions(**{name: value}))


@pytest.mark.parametrize(
    "name", ["top_k", "min_sentences", "neighbor_sentences", "max_context_tokens"]
)
@pytest.mark.parametrize("value", [-1, 2**31, 10**400])
def test_counts_out_of_range(name: str, value: Any) -> None:
    """F14: a negative top_k would cut from the end."""
    found = faults(options=PruneOptions(**{name: value}))
    assert found == [(f"options.{name}", f"is {value}, must be from 0 to 2147483647")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", "0.1"),
        ("threshold", True),
        ("top_k", 1.0),
        ("top_k", "3"),
        ("min_sentences", None),
        ("keep_rule", "best"),
        ("order", "random"),
        ("offset_unit", "bytes"),
        ("protected_patterns", "one"),
        ("language", "xx"),
        ("language", "english"),
    ],
)
def test_wrong_types_and_unknown_names(name: str, value: Any) -> None:
    """A value that would be ignored or fail deep inside is refused by its name."""
    assert fields(options=PruneOptions(**{name: value})) == [f"options.{name}"]


def test_enum_values_may_be_plain_text() -> None:
    """The short names of the command line are accepted in process too."""
    check(options=PruneOptions(keep_rule="majority", order="input"))  # type: ignore[arg-type]


def test_language_is_checked_against_the_splitter() -> None:
    """A model's training languages don't limit the languages that can be split."""
    check(options=PruneOptions(language="de"))


def test_patterns() -> None:
    """Number, length, emptiness and syntax, each by its index."""
    assert fields(options=PruneOptions(protected_patterns=("a",) * 65)) == [
        "options.protected_patterns"
    ]
    bad = PruneOptions(protected_patterns=("a" * 1_001, "", "ok", "\ud800"))
    assert fields(options=bad) == [f"options.protected_patterns[{i}]" for i in (0, 1, 3)]
    bad = PruneOptions(protected_patterns=("ok", "("))
    assert fields(options=bad) == ["options.protected_patterns[1]"]
    bad = PruneOptions(protected_patterns=("(", "", "ok", "*"))
    assert sorted(fields(options=bad)) == [f"options.protected_patterns[{i}]" for i in (0, 1, 3)]


def test_everything_at_once() -> None:
    """A caller who fixes one fault at a time needs as many calls as there are faults."""
    found = fields(
        query="  ",
        passages=(
            Passage("ok"),
            Passage("Ab. Cd.", sentences=spans((0, 3))),
            Passage("x" * 11, title="y" * 4, id="z" * 4),
        ),
        options=PruneOptions(threshold=2, top_k=-1, language="xx", protected_patterns=("(",)),
        limits=Limits(
            max_passage_characters=10,
            max_title_characters=3,
            max_id_characters=3,
            max_passages=2,
            max_request_characters=20,
        ),
    )
    assert found == [
        "query",
        "options.threshold",
        "options.top_k",
        "options.language",
        "options.protected_patterns[0]",
        "passages",
        "passages",
        "passages[1].sentences[0]",
        "passages[2].text",
        "passages[2].title",
        "passages[2].id",
    ]


def test_limits_tell_both_numbers() -> None:
    """A message without the numbers leaves the caller guessing."""
    assert faults(query="x" * 20_001) == [("query", "has 20001 characters, the limit is 20000")]
    passages = (Passage("a"),) * 3
    assert faults(passages=passages, limits=Limits(max_passages=2)) == [
        ("passages", "has 3 passages, the limit is 2")
    ]
    assert faults(passages=passages, limits=Limits(max_request_characters=7)) == [
        ("passages", "the request has 8 characters, the limit is 7")
    ]


def test_limits_are_inclusive() -> None:
    """A limit is the largest allowed value."""
    limits = Limits(
        max_passages=2,
        max_passage_characters=3,
        max_title_characters=3,
        max_id_characters=3,
        max_query_characters=5,
        max_request_characters=23,
    )
    check(passages=(Passage("abc", id="abc", title="abc"),) * 2, limits=limits)


@pytest.mark.parametrize(
    ("path", "request_parts"),
    [
        ("query", {"query": "a\ud800"}),
        ("passages[0].text", {"passages": (Passage("a\udfff"),)}),
        ("passages[0].title", {"passages": (Passage("a", title="a\ud800"),)}),
        ("passages[0].id", {"passages": (Passage("a", id="a\ud800"),)}),
    ],
)
def test_lone_surrogates_are_refused(path: str, request_parts: dict[str, Any]) -> None:
    """They cannot be encoded, so tokenizer and RE2 would raise their own errors later."""
    ((field, description),) = faults(**request_parts)
    assert field == path
    assert "at code point" in description


# "👍 ok. é終" is 8 code points, 14 UTF-8 bytes and 9 UTF-16 units long
@pytest.mark.parametrize(
    ("unit", "given"),
    [
        (OffsetUnit.CODE_POINT, spans((0, 5), (6, 8))),
        (OffsetUnit.UTF8_BYTE, spans((0, 8), (9, 14))),
        (OffsetUnit.UTF16_CODE_UNIT, spans((0, 6), (7, 9))),
    ],
)
def test_sentences_count_in_the_offset_unit(unit: OffsetUnit, given: tuple[TextSpan, ...]) -> None:
    """Offsets that leave in bytes must come back in bytes."""
    passage = Passage("👍 ok. é終", sentences=given)
    check(passages=(passage,), options=PruneOptions(offset_unit=unit))
    for other in set(OffsetUnit) - {unit}:
        found = fields(passages=(passage,), options=PruneOptions(offset_unit=other))
        assert found


@pytest.mark.parametrize(
    ("given", "faulty"),
    [
        (spans((0, 3), (4, 7)), []),
        (spans((0, 7)), []),
        (spans((0, 2), (2, 7)), []),
        (spans((4, 7), (0, 3)), [0, 1]),  # out of order
        (spans((0, 5), (4, 7)), [1]),  # overlap
        (spans((0, 3)), [0]),  # text after the last
        (spans((4, 7)), [0]),  # text before the first
        (spans((0, 2), (4, 7)), [1]),  # text between
        (spans((0, 4), (4, 7)), [0]),  # ends on white space
        (spans((0, 3), (3, 7)), [1]),  # starts on white space
        (spans((0, 3), (4, 4), (4, 7)), [1]),  # empty
        (spans((3, 0), (4, 8)), [0, 1]),  # backwards; beyond the end
        (spans((-3, 3), (4, 7)), [0]),  # negative
        (spans((0, 3), (3, 4), (4, 7)), [1]),  # white space only
    ],
)
def test_given_sentences_obey_the_rules(given: tuple[TextSpan, ...], faulty: list[int]) -> None:
    """The rules of the splitter's own sentences hold for given ones too."""
    passage = Passage("Ab. Cd.", sentences=given)
    if not faulty:
        check(passages=(passage,))
        return
    found = fields(passages=(Passage("ok"), passage))
    assert sorted(set(found)) == [f"passages[1].sentences[{j}]" for j in faulty]


def test_sentences_inside_a_character() -> None:
    """A border between the bytes of one character has no code point."""
    options = PruneOptions(offset_unit=OffsetUnit.UTF8_BYTE)
    ((field, description),) = faults(
        passages=(Passage("é.", sentences=spans((1, 3))),), options=options
    )
    assert field == "passages[0].sentences[0]"
    assert "[1, 3)" in description
    assert "3 (utf8_byte offsets)" in description


def test_sentences_of_a_blank_passage() -> None:
    """There is nothing in it that a sentence could start on."""
    assert fields(passages=(Passage("  ", sentences=spans((0, 1))),))


@pytest.mark.parametrize("text", ["", "  \n", "...", "🙂", "\u200b"])
def test_odd_passages_are_valid(text: str) -> None:
    """F13: they have a result; refusing them would fail the other passages' call."""
    check(passages=(Passage(text),))


def test_keep_rules_of_other_models() -> None:
    """A rule that the model has no outputs for is refused, not replaced."""
    with pytest.raises(UnsupportedByModelError, match=r"options\.keep_rule.*mean_probability") as e:
        check(options=PruneOptions(keep_rule=KeepRule.SENTENCE_HEAD))
    assert e.value.field == "options.keep_rule"
    info = replace(INFO, keep_rules=(KeepRule.SENTENCE_HEAD,))
    validate_options(PruneOptions(keep_rule=KeepRule.SENTENCE_HEAD), info, LIMITS)
    with pytest.raises(UnsupportedByModelError):
        validate_options(PruneOptions(keep_rule=KeepRule.MAJORITY), info, LIMITS)


def test_a_model_without_token_head() -> None:
    """A plain reranker must not return whole passages as if it had pruned them."""
    info = replace(INFO, can_prune=False, id="plain")
    with pytest.raises(UnsupportedByModelError, match="plain scores whole passages only"):
        validate("valve", (), PruneOptions(), LIMITS, info)


def test_max_context_tokens_is_refused_by_name() -> None:
    """An option whose work has not landed is never ignored."""
    with pytest.raises(NotImplementedOptionError, match=r"options\.max_context_tokens"):
        check(options=PruneOptions(max_context_tokens=1))


def test_violations_come_before_missing_support() -> None:
    """A request with both learns its own faults first."""
    assert fields(options=PruneOptions(max_context_tokens=1, top_k=-1)) == ["options.top_k"]


def test_parts_for_streams() -> None:
    """A stream checks its start and each passage on its own, with the stream's index."""
    with pytest.raises(InvalidRequestError, match=r"passages\[70000\]\.title"):
        validate_passage(Passage("a", title="x" * 2_001), 70_000, PruneOptions(), LIMITS, INFO)
    with pytest.raises(InvalidRequestError, match="top_k"):
        validate_options(PruneOptions(top_k=-1), INFO, LIMITS)


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (lambda: validate_highlight(PruneOptions(), "x" * 257, "", FragmentFormat.RAW), "pre_tag"),
        (lambda: validate_highlight(PruneOptions(), "", "\ud800", FragmentFormat.RAW), "post_tag"),
        (lambda: validate_highlight(PruneOptions(), "", "", "html"), "fragment_format"),  # type: ignore[arg-type]
        (
            lambda: validate_highlight(
                PruneOptions(include_tokens=True), "", "", FragmentFormat.RAW
            ),
            "options.include_tokens",
        ),
    ],
)
def test_highlight_requests(call: Callable[[], None], path: str) -> None:
    """Tags repeat with every span, so they are bounded; options without a place are refused."""
    with pytest.raises(SecateurError) as caught:
        call()
    assert isinstance(caught.value, InvalidRequestError)
    assert [v.field for v in caught.value.violations] == [path]
