"""Collections: what one has, and how Index makes one. Knows pymilvus's schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pymilvus import DataType, Function, FunctionType, MilvusClient

EMBEDDER_PROPERTY: Final = "secateur.embedder"

ID, DOCUMENT_ID, TITLE, TEXT, START_OFFSET = "id", "document_id", "title", "text", "start_offset"
DENSE, SPARSE = "dense", "sparse"
"""Fields of the collections that Index makes."""

_BYTES: Final = {ID: 64, DOCUMENT_ID: 4_096, TITLE: 8_000, TEXT: 65_535}
"""Size of each text field in bytes: 4 for each of the most characters that Index allows."""

_VECTORS: Final = {kind for kind in DataType if kind.name.endswith("_VECTOR")}
NAME_RULE: Final = "must be 1 to 255 letters, digits and _, and not begin with a digit"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Collection:
    """The fields of a collection.

    texts: names of VARCHAR fields. dense: dimension of each field of float vectors. bm25: the
    sparse field that a BM25 function fills, by its text field. scalars: names of all fields that
    are no vectors. dynamic: any other name may be a field, too. embedder: the name of the
    embedder that filled the dense field, when Index made the collection.
    """

    name: str
    primary: str
    texts: frozenset[str]
    scalars: frozenset[str]
    dense: Mapping[str, int]
    bm25: Mapping[str, str]
    dynamic: bool = False
    embedder: str = ""

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Collection:
        """From what ``describe_collection`` says."""
        fields = {field["name"]: field for field in description["fields"]}
        kinds = {name: field["type"] for name, field in fields.items()}
        return cls(
            name=description["collection_name"],
            primary=next(name for name, field in fields.items() if field.get("is_primary")),
            texts=frozenset(name for name, kind in kinds.items() if kind == DataType.VARCHAR),
            scalars=frozenset(name for name, kind in kinds.items() if kind not in _VECTORS),
            dense={
                name: int(fields[name]["params"]["dim"])
                for name, kind in kinds.items()
                if kind == DataType.FLOAT_VECTOR
            },
            bm25={
                function["input_field_names"][0]: function["output_field_names"][0]
                for function in description.get("functions") or ()
                if function["type"] == FunctionType.BM25
            },
            dynamic=bool(description.get("enable_dynamic_field")),
            embedder=str((description.get("properties") or {}).get(EMBEDDER_PROPERTY, "")),
        )

    @property
    def is_ours(self) -> bool:
        """Whether it has the fields that Index writes, and no other that it would leave out."""
        vectors = {DENSE} & set(self.dense)
        return (
            self.primary == ID
            and self.scalars == {ID, DOCUMENT_ID, TITLE, TEXT, START_OFFSET}
            and {ID, DOCUMENT_ID, TITLE, TEXT} == self.texts
            and set(self.dense) == vectors
            and self.bm25 in ({}, {TEXT: SPARSE})
        )


def is_name(name: str) -> bool:
    """Whether Milvus allows it as the name of a collection or field."""
    return _NAME.fullmatch(name) is not None


def new_schema(*, bm25: bool, dimension: int | None) -> tuple[Any, Any]:
    """Schema and indexes of a collection for Index.

    bm25: with full-text search. dimension: of the dense field; ``None`` makes none. At least one
    of both is needed, as Milvus has no collection without vectors.
    """
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    indexes = MilvusClient.prepare_index_params()
    for name, size in _BYTES.items():
        analyzed = {"enable_analyzer": True} if bm25 and name == TEXT else {}
        schema.add_field(name, DataType.VARCHAR, max_length=size, is_primary=name == ID, **analyzed)
    schema.add_field(START_OFFSET, DataType.INT64)
    if bm25:
        schema.add_field(SPARSE, DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(
            Function(
                name="bm25",
                function_type=FunctionType.BM25,
                input_field_names=[TEXT],
                output_field_names=[SPARSE],
            )
        )
        indexes.add_index(SPARSE, index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
    if dimension is not None:
        schema.add_field(DENSE, DataType.FLOAT_VECTOR, dim=dimension)
        indexes.add_index(DENSE, index_type="AUTOINDEX", metric_type="COSINE")
    return schema, indexes
