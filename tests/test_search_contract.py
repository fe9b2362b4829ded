"""The types of searching say the same as search.proto, and its comments state the limits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from secateur.milvus import checks, chunks, fragments, indexing, types
from secateur.types import Limits
from secateur.v1 import search_pb2

CONTRACT = Path(__file__).parents[1] / "proto/secateur/v1/search.proto"


@pytest.mark.parametrize(
    "domain",
    [
        types.SearchRequest,
        types.HighlightOptions,
        types.FieldHighlight,
        types.Document,
        types.ChunkOptions,
        types.IndexCounts,
    ],
    ids=lambda domain: domain.__name__,
)
def test_fields_equal(domain: Any) -> None:
    name = domain.__name__.replace("IndexCounts", "IndexResponse")
    message = search_pb2.DESCRIPTOR.message_types_by_name[name]
    assert {f.name for f in dataclasses.fields(domain)} == set(message.fields_by_name)


def test_comments_state_limits_and_defaults() -> None:
    text = " ".join(CONTRACT.read_text(encoding="utf-8").replace("//", " ").split())
    for sentence in (
        f"0 or unset: {types.SearchRequest(collection='').candidate_count}.",
        f"at most {checks.MOST_FILTER_CHARACTERS:,} characters",
        f"at most {fragments.MAX_TAGS} of at most {fragments.MAX_TAG_CHARACTERS} characters each",
        f"{chunks.LEAST_CHARACTERS} to {chunks.MOST_CHARACTERS:,}.",
        f"unset: {types.ChunkOptions().max_characters:,}.",
        f"`Limits.max_id_characters` characters (at most {indexing.MOST_ID_CHARACTERS:,})",
        f"`Limits.max_title_characters` (at most {indexing.MOST_TITLE_CHARACTERS:,})",
    ):
        assert sentence in text, sentence
    limits = Limits()
    assert limits.max_id_characters == indexing.MOST_ID_CHARACTERS
    assert limits.max_title_characters == indexing.MOST_TITLE_CHARACTERS
