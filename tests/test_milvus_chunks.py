"""Documents become passages: nothing is lost, and nothing is too long for Milvus."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from milvus_harness import sentences

from secateur.milvus import chunks
from secateur.milvus.chunks import Chunk, cut, faults_of
from secateur.milvus.collection import new_schema
from secateur.milvus.indexing import MOST_ID_CHARACTERS, MOST_TITLE_CHARACTERS
from secateur.milvus.types import ChunkOptions, Document
from secateur.model.splitter import SentenceSplitter


def texts(text: str, most: int) -> list[str]:
    return [chunk.text for chunk in cut(Document("d", text), sentences(text), most)]


def test_whole_sentences_are_taken_while_they_fit() -> None:
    text = "One two. Three four.  Five six.\nSeven."
    assert texts(text, 20) == ["One two. Three four.", "Five six.\nSeven."]
    assert texts(text, 1_000) == [text]


def test_a_long_sentence_is_cut_at_white_space() -> None:
    assert texts("Short. " + "word " * 30 + "end.", 50)[:2] == [
        "Short.",
        " ".join(["word"] * 10),
    ]


def test_without_white_space_it_is_cut_between_characters() -> None:
    pieces = texts("é" * 120, 50)
    assert pieces == ["é" * 50, "é" * 50, "é" * 20]


def test_offsets_find_the_text() -> None:
    text = "  Alpha one. Beta two.\n\nGamma three. "
    for chunk in cut(Document("d", text), sentences(text), 15):
        assert text[chunk.start_offset :][: len(chunk.text)] == chunk.text


@given(st.text(alphabet="ab .\n\u3000終👍", max_size=300), st.integers(50, 80))
def test_only_white_space_lies_outside(text: str, most: int) -> None:
    spans = SentenceSplitter().split(text).spans
    found = cut(Document("d", text), spans, most)
    position = 0
    for chunk in found:
        assert 0 < len(chunk.text) <= most
        assert not text[position : chunk.start_offset].strip()
        assert text.startswith(chunk.text, chunk.start_offset)
        position = chunk.start_offset + len(chunk.text)
    assert not text[position:].strip()


def test_every_stored_text_fits_into_its_field() -> None:
    """Milvus counts bytes, of which a character takes at most four."""
    schema, _ = new_schema(bm25=True, dimension=8)
    size = {field.name: field.params.get("max_length", 0) for field in schema.fields}
    longest = {
        "text": chunks.MOST_CHARACTERS,
        "document_id": MOST_ID_CHARACTERS,
        "title": MOST_TITLE_CHARACTERS,
    }
    assert all(size[name] >= 4 * most for name, most in longest.items())
    assert max(size.values()) <= 65_535
    assert size["id"] == len(Chunk(Document("d", ""), 0, "").id)


def test_ids_tell_contents_apart() -> None:
    parts = [
        Chunk(Document("a", "", "bc"), 0, "d"),
        Chunk(Document("ab", "", "c"), 0, "d"),
        Chunk(Document("a", "", "bc"), 1, "d"),
        Chunk(Document("a", "", "bc"), 0, "e"),
    ]
    assert len({chunk.id for chunk in parts}) == len(parts)
    assert parts[0].id == Chunk(Document("a", "other text", "bc"), 0, "d").id


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (ChunkOptions(49), "max_characters"),
        (ChunkOptions(16_001), "max_characters"),
        (ChunkOptions(language="xx"), "language"),
    ],
)
def test_bad_options(options: ChunkOptions, field: str) -> None:
    (fault,) = faults_of(options, ["en"], "start.")
    assert fault.field == f"start.{field}"
