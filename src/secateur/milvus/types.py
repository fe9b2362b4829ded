"""The words of searching and indexing in Milvus, as frozen value types.

Standard library only. Names equal those of ``proto/secateur/v1/search.proto``; offsets count
code points unless ``PruneOptions.offset_unit`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from secateur.types import (
    FragmentFormat,
    HighlightSpan,
    PrunedPassage,
    PruneOptions,
    RankedPassages,
)


class SearchMode(StrEnum):
    """How candidates are found."""

    DENSE = "dense"
    """By the distance of dense vectors."""
    BM25 = "bm25"
    """By Milvus's full-text search."""
    HYBRID = "hybrid"
    """Both, merged by reciprocal ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HighlightOptions:
    """How to highlight; the names are those of pymilvus's SemanticHighlighter.

    pre_tags, post_tags: used in turn for successive spans; as many of one as of the other.
    threshold: highlights sentences whose probability is greater, in [0, 1]; ``None``: those that
        pruning keeps.
    highlight_only: one fragment for each span; else one fragment with the whole text.
    fragment_format: HTML_ESCAPED, which is safe in an HTML page, or RAW.
    """

    pre_tags: tuple[str, ...] = ("<mark>",)
    post_tags: tuple[str, ...] = ("</mark>",)
    threshold: float | None = None
    highlight_only: bool = True
    fragment_format: FragmentFormat = FragmentFormat.HTML_ESCAPED


@dataclass(frozen=True, slots=True)
class FieldHighlight:
    """Highlighted text of one field: fragments, each with its score, and the exact spans."""

    fragments: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    spans: tuple[HighlightSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What to search, and what to do with the candidates.

    query: may be empty when ``vector`` is given; then nothing is reranked.
    mode: ``None`` takes the richest mode that works.
    candidate_count: how many candidates to take from Milvus, > 0.
    filter: a Milvus expression; ``filter_params`` has the values of its ``{name}`` placeholders.
    vector_field: may be empty when the collection has one dense field.
    """

    collection: str
    query: str = ""
    vector: tuple[float, ...] = ()
    mode: SearchMode | None = None
    candidate_count: int = 50
    filter: str = ""
    filter_params: Mapping[str, Any] = field(default_factory=dict)
    output_fields: tuple[str, ...] = ()
    text_field: str = "text"
    title_field: str = ""
    vector_field: str = ""
    options: PruneOptions = field(default_factory=PruneOptions)
    highlight: HighlightOptions | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """What Milvus found: primary key, Milvus's own score, text, title, and the fields asked for."""

    id: str
    vector_score: float
    text: str
    title: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A candidate after reranking. ``passage`` is ``None`` when there was no query.

    highlight: by the name of the text field; empty unless it was asked for.
    """

    candidate: Candidate
    passage: PrunedPassage | None = None
    highlight: Mapping[str, FieldHighlight] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The answer to one search.

    ranked: what reranking said of all candidates, without ``results``; ``None`` when there was
        no query.
    embed_ms, retrieve_ms: wall-clock milliseconds of embedding the query and of Milvus.
    """

    hits: tuple[SearchHit, ...]
    applied_mode: SearchMode
    candidate_count: int
    ranked: RankedPassages | None
    embed_ms: float
    retrieve_ms: float


@dataclass(frozen=True, slots=True)
class Document:
    """One document to store; ``id`` is its name, and a blank text removes it."""

    id: str
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """How a document is cut into passages.

    max_characters: the longest passage, 50 to 16,000. language: chooses the sentence splitter.
    """

    max_characters: int = 1_000
    language: str = ""


@dataclass(frozen=True, slots=True)
class IndexCounts:
    """What indexing did: documents, their passages, and of these what was added and removed."""

    document_count: int = 0
    passage_count: int = 0
    added_passage_count: int = 0
    removed_passage_count: int = 0

    def __add__(self, other: IndexCounts) -> IndexCounts:
        return IndexCounts(
            self.document_count + other.document_count,
            self.passage_count + other.passage_count,
            self.added_passage_count + other.added_passage_count,
            self.removed_passage_count + other.removed_passage_count,
        )
