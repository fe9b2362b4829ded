"""What a search request must obey before Milvus is asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from secateur.errors import FieldViolation, InvalidRequestError
from secateur.milvus.collection import NAME_RULE, Collection, is_name
from secateur.milvus.fragments import faults_of
from secateur.milvus.types import SearchMode, SearchRequest
from secateur.types import PruneOptions

MOST_FILTER_CHARACTERS: Final = 65_536


def faults_of_request(request: SearchRequest, most_candidates: int) -> list[FieldViolation]:
    """What is wrong with a request by itself, apart from query, filter values and options."""
    faults: list[FieldViolation] = []
    if not is_name(request.collection):
        faults.append(FieldViolation("collection", NAME_RULE))
    if not 1 <= request.candidate_count <= most_candidates:
        description = f"must be 1 to {most_candidates:,}, not {request.candidate_count}"
        faults.append(FieldViolation("candidate_count", description, limit=most_candidates))
    if not all(math.isfinite(number) for number in request.vector):
        faults.append(FieldViolation("vector", "must hold finite numbers only"))
    if len(request.filter) > MOST_FILTER_CHARACTERS:
        description = f"must be at most {MOST_FILTER_CHARACTERS:,} characters"
        faults.append(FieldViolation("filter", description, limit=MOST_FILTER_CHARACTERS))
    if request.highlight is not None:
        faults += faults_of(request.highlight, "highlight.")
    if request.mode is SearchMode.BM25:
        faults += [
            FieldViolation(name, "has no place in a bm25 search; leave it unset")
            for name in ("vector", "vector_field")
            if getattr(request, name)
        ]
    return faults + _faults_without_query(request)


def check_fields(request: SearchRequest, collection: Collection) -> None:
    """Raise InvalidRequestError for every field that the collection does not have."""
    faults: list[FieldViolation] = []

    def check(path: str, name: str, names: Mapping[str, Any] | frozenset[str], kind: str) -> None:
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            description = f"{collection.name} has no {kind} {name!r}; it has: {known}"
            faults.append(FieldViolation(path, description, "UNKNOWN_FIELD"))

    check("text_field", request.text_field, collection.texts, "text field")
    if request.title_field:
        check("title_field", request.title_field, collection.texts, "text field")
    if request.vector_field:
        check("vector_field", request.vector_field, collection.dense, "field of float vectors")
    for i, name in enumerate(request.output_fields):
        if not (collection.dynamic and is_name(name)) or name in collection.dense:
            check(f"output_fields[{i}]", name, collection.scalars, "scalar field")
    name = request.vector_field or next(iter(collection.dense), "")
    if request.vector and name in collection.dense:
        dimension = collection.dense[name]
        if len(request.vector) != dimension:
            description = f"has {len(request.vector)} numbers; {name} has {dimension} dimensions"
            faults.append(FieldViolation("vector", description))
    if faults:
        raise InvalidRequestError(faults)


def _faults_without_query(request: SearchRequest) -> list[FieldViolation]:
    """What a request without a query cannot ask for."""
    if request.query:
        return []
    if not request.vector:
        return [FieldViolation("query", "is required, unless a vector is given", "REQUIRED")]
    faults = []
    if request.options != PruneOptions():
        faults.append(FieldViolation("options", "needs a query"))
    if request.highlight is not None:
        faults.append(FieldViolation("highlight", "needs a query"))
    if request.mode not in {None, SearchMode.DENSE}:
        faults.append(FieldViolation("mode", f"{request.mode} needs a query"))
    return faults
