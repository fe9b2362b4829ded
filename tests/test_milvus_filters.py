"""Values in filter expressions: no text can become part of the expression."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.errors import InvalidRequestError
from secateur.milvus import filter_literal, render_filter

HOSTILE = ['a"b', "a\\", '") or true or ("', "a\nb", "it's", "a\tb", "終", "{x}", "\u2028"]


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ("plain", '"plain"'),
        ('a"b', '"a\\"b"'),
        ("a\\", '"a\\\\"'),
        ('") or true or ("', '"\\") or true or (\\""'),
        ("a\nb\r\t", '"a\\nb\\r\\t"'),
        (3, "3"),
        (-1.5, "-1.5"),
        (True, "true"),
        (["a", 'b"'], '["a", "b\\""]'),
        ([1, 2.5], "[1, 2.5]"),
        ([], "[]"),
    ],
)
def test_literals(value: object, literal: str) -> None:
    assert filter_literal(value) == literal


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("a\x00b", r"U\+0000"),
        ("\x85", r"U\+0085"),
        ("\ud800", r"U\+D800"),
        (2**63, "64 bits"),
        (float("nan"), "finite"),
        (None, "null"),
        ({"a": 1}, "dict"),
        (["a", 1], "one kind"),
        ([True, 1], "one kind"),
    ],
)
def test_what_cannot_be_written_is_refused(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        filter_literal(value)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_a_text_is_one_quoted_token(text: str) -> None:
    literal = filter_literal(text)
    assert re.fullmatch(r'"(?:[^"\\]|\\["\\nrt])*"', literal)
    assert re.sub(r"\\(.)", r"\1", literal[1:-1]) == text


def test_placeholders_are_filled() -> None:
    filled = render_filter("id in {ids} and year > {year}", {"ids": ['a"b'], "year": 2020})
    assert filled == 'id in ["a\\"b"] and year > 2020'


def test_a_value_is_not_read_for_placeholders() -> None:
    assert render_filter("id == {x}", {"x": "{y}"}) == 'id == "{y}"'


@pytest.mark.parametrize("quoted", ['"{x}"', "'{x}'", '"\\"{x}"'])
def test_a_placeholder_inside_quotes_is_text(quoted: str) -> None:
    assert render_filter(f"id == {quoted}", {}) == f"id == {quoted}"


def test_all_faults_are_named() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render_filter('a == {a} and b == "{b}" and c == {c}', {"b": 1, "c": None})
    found = {(v.field, v.description) for v in caught.value.violations}
    assert {field for field, _ in found} == {"filter", "filter_params[b]", "filter_params[c]"}
    assert any("{a} has no value" in text for _, text in found)
    assert any("outside of quotes" in text for _, text in found)
