"""OffsetMap: one text, three units, exact both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.model.offsets import OffsetMap
from secateur.types import OffsetUnit

MIXED = "👍 ok. Café é. 終。"
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)  # lone surrogates too


@pytest.mark.parametrize(
    ("unit", "spans", "length"),
    [
        (OffsetUnit.CODE_POINT, [(0, 5), (6, 13), (14, 16)], 16),
        (OffsetUnit.UTF8_BYTE, [(0, 8), (9, 18), (19, 25)], 25),
        (OffsetUnit.UTF16_CODE_UNIT, [(0, 6), (7, 14), (15, 17)], 17),
    ],
)
def test_spans_of_a_mixed_text(unit: OffsetUnit, spans: list[tuple[int, int]], length: int) -> None:
    offsets = OffsetMap(MIXED, unit)
    sentences = [(0, 5), (6, 13), (14, 16)]
    assert [(offsets.from_code_point(a), offsets.from_code_point(b)) for a, b in sentences] == spans
    assert [(offsets.to_code_point(a), offsets.to_code_point(b)) for a, b in spans] == sentences
    assert offsets.length == length


@pytest.mark.parametrize(
    ("unit", "inside"),
    [(OffsetUnit.UTF8_BYTE, [1, 2, 3]), (OffsetUnit.UTF16_CODE_UNIT, [1])],
)
def test_an_offset_inside_a_character_has_no_code_point(
    unit: OffsetUnit, inside: list[int]
) -> None:
    offsets = OffsetMap("👍!", unit)
    assert [offsets.to_code_point(offset) for offset in inside] == [None] * len(inside)


@pytest.mark.parametrize("unit", OffsetUnit)
@pytest.mark.parametrize("text", ["", "abc", MIXED])
def test_offsets_out_of_range(unit: OffsetUnit, text: str) -> None:
    offsets = OffsetMap(text, unit)
    assert offsets.to_code_point(-1) is None
    assert offsets.to_code_point(offsets.length + 1) is None
    assert offsets.to_code_point(2**40) is None
    for outside in (-1, len(text) + 1):
        with pytest.raises(IndexError):
            offsets.from_code_point(outside)


@pytest.mark.parametrize(
    ("unit", "length"), [(OffsetUnit.UTF8_BYTE, 5), (OffsetUnit.UTF16_CODE_UNIT, 3)]
)
def test_a_lone_surrogate_counts_as_its_own_encoding(unit: OffsetUnit, length: int) -> None:
    assert OffsetMap("a\ud83db", unit).length == length


@given(ANY_TEXT)
def test_offsets_equal_the_length_of_the_encoded_prefix(text: str) -> None:
    utf8 = OffsetMap(text, OffsetUnit.UTF8_BYTE)
    utf16 = OffsetMap(text, OffsetUnit.UTF16_CODE_UNIT)
    for index in range(len(text) + 1):
        prefix = text[:index]
        assert utf8.from_code_point(index) == len(prefix.encode("utf-8", "surrogatepass"))
        # Encoded one by one: two lone surrogates side by side stay two characters.
        units = sum(len(c.encode("utf-16-le", "surrogatepass")) // 2 for c in prefix)
        assert utf16.from_code_point(index) == units


@given(ANY_TEXT, st.sampled_from(OffsetUnit))
def test_exactly_the_character_borders_come_back(text: str, unit: OffsetUnit) -> None:
    offsets = OffsetMap(text, unit)
    borders = {offsets.from_code_point(index): index for index in range(len(text) + 1)}
    for offset in range(offsets.length + 1):
        assert offsets.to_code_point(offset) == borders.get(offset)
