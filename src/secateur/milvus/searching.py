"""One search: candidates from Milvus, then rerank, prune and highlight."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from secateur.errors import (
    DeadlineExceededError,
    FieldViolation,
    InvalidRequestError,
    SecateurError,
    UnsupportedByMilvusError,
)
from secateur.milvus.checks import check_fields, faults_of_request
from secateur.milvus.collection import Collection
from secateur.milvus.embedder import Embedder, check_embedder
from secateur.milvus.filters import render_filter
from secateur.milvus.fragments import highlight_field, spans_of
from secateur.milvus.store import MilvusStore, Version
from secateur.milvus.types import (
    Candidate,
    FieldHighlight,
    SearchAnswer,
    SearchHit,
    SearchMode,
    SearchRequest,
)
from secateur.model.offsets import OffsetMap
from secateur.types import (
    HighlightSpan,
    Passage,
    PrunedPassage,
    PruneOptions,
    RankedPassages,
)


class Ranker(Protocol):
    """Reranks and prunes: a model in this process, or a server's pipeline."""

    async def check(self, query: str, options: PruneOptions, /) -> None:
        """Raise what ``rank`` would raise of the query and the options alone."""
        ...

    async def rank(
        self,
        query: str,
        passages: Sequence[Passage],
        options: PruneOptions,
        /,
        *,
        remaining: float | None,
    ) -> RankedPassages:
        """Rank passages within ``remaining`` seconds; ``None``: however long it takes."""
        ...


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to ask Milvus: the mode, and the field of each kind that it searches."""

    mode: SearchMode
    dense: str = ""
    sparse: str = ""
    bm25_sign: float = 1.0  # milvus-lite gives BM25 scores as negative distances


class Searcher:
    """Searches one Milvus.

    embedder: for dense searches by text; ``None`` refuses them.
    most_candidates: the largest ``candidate_count`` that is allowed.
    """

    def __init__(
        self,
        store: MilvusStore,
        *,
        ranker: Ranker,
        embedder: Embedder | None = None,
        most_candidates: int = 1_000,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self._ranker = ranker
        self._embedder = embedder
        self._most_candidates = most_candidates
        self._clock = clock

    async def search(
        self, request: SearchRequest, *, remaining: float | None = None
    ) -> SearchAnswer:
        """Answer a request within ``remaining`` seconds.

        Raises InvalidRequestError with every fault of the request, CollectionNotFoundError,
        UnsupportedByMilvusError, DeadlineExceededError, UnavailableError, and what the ranker does.
        """
        deadline = math.inf if remaining is None else self._clock() + remaining
        expression = await self._check(request)
        began = self._clock()
        collection = await self._store.describe(request.collection, remaining=self._left(deadline))
        version = await self._store.version(remaining=self._left(deadline))
        check_fields(request, collection)
        plan = self._plan(request, collection, version)
        vector, embedding = request.vector, 0.0
        if plan.dense and not vector and self._embedder is not None:
            started = self._clock()
            vector = tuple(await self._embedder.embed_query(request.query))
            embedding = self._clock() - started
        candidates = await self._retrieve(
            request, collection.primary, plan, vector, expression, self._left(deadline)
        )
        retrieving = self._clock() - began - embedding
        ranked = None
        hits = [SearchHit(candidate) for candidate in candidates]
        if request.query:
            ranked = await self._ranked(request, candidates, self._left(deadline))
            hits = [_hit(request, candidates[r.index], r) for r in ranked.results]
        return SearchAnswer(
            hits=tuple(hits),
            applied_mode=plan.mode,
            candidate_count=len(candidates),
            ranked=ranked and replace(ranked, results=()),
            embed_ms=embedding * 1_000,
            retrieve_ms=retrieving * 1_000,
        )

    async def _check(self, request: SearchRequest) -> str:
        """The filter with its values.

        Raises InvalidRequestError with all that is wrong before Milvus is asked, and what the
        ranker says of options that the model does not have.
        """
        faults = faults_of_request(request, self._most_candidates)
        expression, refusal = "", None
        try:
            expression = render_filter(request.filter, request.filter_params)
        except InvalidRequestError as error:
            faults += error.violations
        if request.query:
            try:
                await self._ranker.check(request.query, request.options)
            except InvalidRequestError as error:
                faults += error.violations
            except SecateurError as error:
                refusal = error
        if faults:
            raise InvalidRequestError(faults)
        if refusal is not None:
            raise refusal
        return expression

    def _plan(self, request: SearchRequest, collection: Collection, version: Version) -> _Plan:
        """What to ask Milvus. Raises UnsupportedByMilvusError when the mode cannot work."""
        dense = _attempt(lambda: self._dense(request, collection))
        sparse = _attempt(lambda: _sparse(request, collection, version))
        mode = request.mode
        if mode is None and isinstance(dense, str):
            mode = SearchMode.HYBRID if isinstance(sparse, str) else SearchMode.DENSE
        mode = mode or SearchMode.BM25
        needed = {
            SearchMode.DENSE: (dense,),
            SearchMode.BM25: (sparse,),
            SearchMode.HYBRID: (sparse, dense),
        }
        for part in needed[mode]:
            if isinstance(part, UnsupportedByMilvusError):
                raise part
        return _Plan(
            mode,
            dense=dense if isinstance(dense, str) and mode is not SearchMode.BM25 else "",
            sparse=sparse if isinstance(sparse, str) and mode is not SearchMode.DENSE else "",
            bm25_sign=-1.0 if version.lite else 1.0,
        )

    def _dense(self, request: SearchRequest, collection: Collection) -> str:
        """The dense field to search."""
        names = [request.vector_field] if request.vector_field else sorted(collection.dense)
        if len(names) != 1:
            what = f"several: {', '.join(names)}; name one" if names else "no dense field"
            raise UnsupportedByMilvusError("vector_field", f"{collection.name} has {what}")
        if not request.vector:
            if self._embedder is None:
                raise UnsupportedByMilvusError(
                    "mode",
                    "a dense search by text needs an embedder, and none is configured; send a "
                    "vector, or search by bm25",
                )
            check_embedder(collection, names[0], self._embedder)
        return names[0]

    async def _retrieve(
        self,
        request: SearchRequest,
        primary: str,
        plan: _Plan,
        vector: Sequence[float],
        expression: str,
        remaining: float | None,
    ) -> list[Candidate]:
        wanted = [request.text_field, request.title_field, *request.output_fields]
        common: dict[str, Any] = {
            "limit": request.candidate_count,
            "filter": expression,
            "output_fields": list(dict.fromkeys(name for name in wanted if name)),
            "remaining": remaining,
        }
        name = request.collection
        if plan.mode is SearchMode.HYBRID:
            queries: dict[str, str | list[float]] = {
                plan.sparse: request.query,
                plan.dense: list(vector),
            }
            found = await self._store.hybrid_search(name, queries, **common)
        elif plan.mode is SearchMode.BM25:
            found = await self._store.search(name, plan.sparse, request.query, **common)
        else:
            found = await self._store.search(name, plan.dense, list(vector), **common)
        sign = plan.bm25_sign if plan.mode is SearchMode.BM25 else 1.0
        return [_candidate(hit, request, primary, sign) for hit in found]

    async def _ranked(
        self, request: SearchRequest, candidates: Sequence[Candidate], remaining: float | None
    ) -> RankedPassages:
        passages = [Passage(c.text, id=c.id, title=c.title) for c in candidates]
        try:
            return await self._ranker.rank(
                request.query, passages, request.options, remaining=remaining
            )
        except InvalidRequestError as error:
            raise InvalidRequestError(
                [_of_search(v, candidates) for v in error.violations]
            ) from None

    def _left(self, deadline: float) -> float | None:
        """Seconds until the deadline. Raises DeadlineExceededError when there are none."""
        if math.isinf(deadline):
            return None
        left = deadline - self._clock()
        if left <= 0:
            raise DeadlineExceededError("the deadline passed before the search was done")
        return left


def _attempt(find: Callable[[], str]) -> str | UnsupportedByMilvusError:
    try:
        return find()
    except UnsupportedByMilvusError as error:
        return error


def _sparse(request: SearchRequest, collection: Collection, version: Version) -> str:
    """The sparse field to search."""
    if not request.query:
        raise UnsupportedByMilvusError("mode", "bm25 needs a query")
    if not version.at_least(2, 5):
        raise UnsupportedByMilvusError(
            "mode",
            "bm25 and hybrid search need Milvus 2.5 or newer, or milvus-lite; this one is "
            f"{version.text}",
        )
    field = collection.bm25.get(request.text_field)
    if field is None:
        raise UnsupportedByMilvusError(
            "mode", f"{collection.name} has no BM25 function on {request.text_field}"
        )
    return field


def _candidate(
    hit: Mapping[str, Any], request: SearchRequest, primary: str, sign: float
) -> Candidate:
    entity = hit["entity"]
    return Candidate(
        id=str(hit[primary]),
        vector_score=sign * float(hit["distance"]),
        text=entity.get(request.text_field) or "",
        title=(entity.get(request.title_field) or "") if request.title_field else "",
        fields={name: entity.get(name) for name in request.output_fields},
    )


def _hit(request: SearchRequest, candidate: Candidate, result: PrunedPassage) -> SearchHit:
    if request.highlight is None:
        return SearchHit(candidate, result)
    spans = spans_of(result.sentences, request.highlight.threshold)
    offsets = OffsetMap(candidate.text, request.options.offset_unit)

    def code_point(offset: int) -> int:
        return offsets.to_code_point(offset) or 0  # spans lie on borders of characters

    inner = [
        HighlightSpan(code_point(s.start_offset), code_point(s.end_offset), s.probability)
        for s in spans
    ]
    shown = replace(highlight_field(candidate.text, inner, request.highlight), spans=spans)
    found: dict[str, FieldHighlight] = {request.text_field: shown}
    return SearchHit(candidate, result, found)


def _of_search(violation: FieldViolation, candidates: Sequence[Candidate]) -> FieldViolation:
    """A fault of reranking in the words of the search, which has candidates for passages."""
    if not violation.field.startswith("passages"):
        return violation
    number = violation.field.removeprefix("passages[").partition("]")[0]
    whose = f"candidate {candidates[int(number)].id}: " if number.isdigit() else "candidates: "
    field = "title_field" if violation.field.endswith(".title") else "candidate_count"
    return replace(violation, field=field, description=whose + violation.description)
