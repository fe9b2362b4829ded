"""Protected patterns: RE2 syntax, code-point offsets, bounded work."""

from __future__ import annotations

import numpy as np
import pytest

from secateur.errors import InvalidRequestError
from secateur.model import protect
from secateur.model.protect import compile_patterns

TEXT = "👍 ok. Café é. 終。 Part 7-b"
SENTENCES = np.array([(0, 5), (6, 13), (14, 16), (17, 25)])


def mask(*patterns: str, text: str = TEXT, sentences: np.ndarray = SENTENCES) -> list[bool]:
    return [bool(found) for found in compile_patterns(patterns).mask(text, sentences, 0)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("👍", [True, False, False, False]),
        ("é", [False, True, False, False]),
        ("終", [False, False, True, False]),
        (r"\d+-\w", [False, False, False, True]),
        ("(?i)PART", [False, False, False, True]),
        (r"ok\. Caf", [True, True, False, False]),  # across a border
        (r"\s", [True, True, False, True]),  # inside sentences, and in the gaps
        (r"\. ", [True, True, False, False]),  # begins in the sentence, ends in the gap
        ("^.", [True, False, False, False]),
        ("b$", [False, False, False, True]),
        ("nothing", [False, False, False, False]),
        ("x*", [False, False, False, False]),  # empty matches protect nothing
        (".*", [True, True, True, True]),
    ],
)
def test_a_sentence_is_protected_when_a_match_overlaps_it(
    pattern: str, expected: list[bool]
) -> None:
    """RE2 matches bytes: taken for characters, its offsets drift behind every `é` and `終`."""
    assert mask(pattern) == expected


def test_a_match_in_the_gap_alone_protects_nothing() -> None:
    """Sentences are half-open: touching is not overlapping."""
    assert mask(r"\n+", text="A.\n\nB.", sentences=np.array([(0, 2), (4, 6)])) == [False, False]


def test_all_patterns_count() -> None:
    """Any one of them protects; without patterns or sentences there is nothing to do."""
    assert mask("終", "Part") == [False, False, True, True]
    assert mask() == [False] * 4
    assert mask("a", text=" ", sentences=np.zeros((0, 2), dtype=np.int64)) == []


def test_every_invalid_pattern_is_named() -> None:
    """Look-around and back-references are not RE2; the caller learns which pattern has them."""
    with pytest.raises(InvalidRequestError) as caught:
        compile_patterns(["(", "ok", r"(a)\1", "(?<=a)b"])
    assert [v.field for v in caught.value.violations] == [
        f"options.protected_patterns[{i}]" for i in (0, 2, 3)
    ]
    assert "missing )" in caught.value.violations[0].description


def test_work_is_bounded() -> None:
    """64 one-character patterns over a long text would hold a thread for minutes."""
    text = "ab" * 5_000 + " end."
    sentences = np.array([(0, 10_000), (10_001, 10_005)])
    with pytest.raises(InvalidRequestError, match=r"protected_patterns\[2\].*10005 characters"):
        mask("a", "b", "[ab]", text=text, sentences=sentences)
    assert mask("[ab]+", "a", text=text, sentences=sentences) == [True, False]


def test_searches_that_read_to_the_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`a.*z|a` reads the rest of the text for every `a`: minutes for a million characters."""
    monkeypatch.setattr(protect, "_READS_PER_CHARACTER", 100)
    text = "ab" * 1_000 + " end."
    sentences = np.array([(0, 2_000), (2_001, 2_005)])
    with pytest.raises(InvalidRequestError, match="match too often"):
        mask("a.*z|a", text=text, sentences=sentences)
    assert mask("end", "abab", text=text[-40:], sentences=np.array([(0, 35), (36, 40)])) == [
        True,
        True,
    ]


def test_a_catastrophic_pattern_is_linear() -> None:
    """`(a+)+$` takes a back-tracking engine for ever; RE2 does not back-track."""
    assert mask("(a+)+$", text="a" * 20_000 + "b", sentences=np.array([(0, 20_001)])) == [False]


def test_a_pattern_too_complex_for_a_long_text_is_refused() -> None:
    """One search of it would take minutes, and cannot be stopped."""
    pattern = "[ab]*a" + "[ab]{1000}" * 90 + "c"
    assert mask(pattern, text="ab", sentences=np.array([(0, 2)])) == [False]
    text = "ab" * 20_000
    with pytest.raises(InvalidRequestError, match="too complex to search passages") as caught:
        mask("x", pattern, text=text, sentences=np.array([(0, len(text))]))
    (violation,) = caught.value.violations
    assert (violation.field, violation.reason) == ("options.protected_patterns[1]", "TOO_COMPLEX")


def test_patterns_of_one_request_share_a_budget_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of many passages whose every search is slow used to take hours."""
    clock = iter(range(1_000))
    monkeypatch.setattr("secateur.model.protect.time.thread_time", lambda: next(clock) * 0.4)
    patterns = compile_patterns(["x", "y"])
    sentences = np.array([(0, 2)])
    assert not patterns.mask("ab", sentences, 0).any()  # two searches of 0.4 s
    assert not patterns.mask("ab", sentences, 1).any()
    with pytest.raises(InvalidRequestError, match=r"take too long, .* passages\[2\]") as caught:
        patterns.mask("ab", sentences, 2)
    assert caught.value.violations[0].reason == "TOO_SLOW"
    assert not compile_patterns(["x"]).mask("ab", sentences, 0).any()
    longer = compile_patterns(["x"] * 6)
    assert not longer.mask("a" * 1_000_000, sentences, 0).any()  # more text, more time
