"""``secateur search``: ask what ``secateur index`` stored, or any collection with a text field."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.exits import BadInputError, extra_needed
from secateur.cli.milvus import MilvusArguments, check_file, load_embedder, open_store
from secateur.cli.options import Json, Model, command
from secateur.milvus.types import HighlightOptions, SearchMode, SearchRequest
from secateur.types import PruneOptions

if TYPE_CHECKING:
    from secateur.milvus.store import MilvusStore
    from secateur.milvus.types import SearchAnswer, SearchHit

_CANDIDATES = "Candidates"


@command
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The question.")],
    store: MilvusArguments,
    mode: Annotated[
        SearchMode | None,
        typer.Option(
            case_sensitive=False,
            metavar="MODE",
            rich_help_panel=_CANDIDATES,
            help="dense, bm25 or hybrid. Default: the richest that works.",
        ),
    ] = None,
    candidates: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=_CANDIDATES, help="How many to take from Milvus."
        ),
    ] = 50,
    filter_: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="EXPRESSION",
            rich_help_panel=_CANDIDATES,
            help="Milvus filter; {name} stands for the value of a --filter-param.",
        ),
    ] = "",
    filter_params: Annotated[
        list[str] | None,
        typer.Option(
            "--filter-param",
            metavar="NAME=VALUE",
            rich_help_panel=_CANDIDATES,
            help="A value, as JSON or else as text. May be repeated.",
        ),
    ] = None,
    text_field: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_CANDIDATES, help="Field of the text.")
    ] = "text",
    title_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_CANDIDATES,
            help="Field of the title. Default: title, in a collection made by index.",
        ),
    ] = None,
    top_k: Annotated[int, typer.Option(metavar="N", help="How many hits to show; 0 is all.")] = 5,
    threshold: Annotated[
        float | None, typer.Option(help="From 0 to 1. Default: the model's.")
    ] = None,
    min_relevance_score: Annotated[
        float | None, typer.Option(help="Leave out hits that score lower.")
    ] = None,
    model: Model = None,
    json_output: Json = False,
) -> None:
    """Search, rerank, and show what matters in each hit."""
    opened = open_store(store)
    with extra_needed("serve"):
        from secateur import Pruner
        from secateur.milvus.ranker import ThreadRanker
        from secateur.milvus.searching import Searcher

    request = SearchRequest(
        collection=store.collection,
        query=query,
        mode=mode,
        candidate_count=candidates,
        filter=filter_,
        filter_params=_filter_params(filter_params or ()),
        text_field=text_field,
        title_field=title_field or "",
        options=PruneOptions(
            threshold=threshold, top_k=top_k, min_relevance_score=min_relevance_score
        ),
        highlight=HighlightOptions() if json_output else None,
    )
    if not query:
        raise BadInputError("QUERY is empty")
    check_file(store)
    pruner = Pruner.load(model)
    embedder = load_embedder(store)

    async def run() -> SearchAnswer:
        async with opened:
            searcher = Searcher(opened, ranker=ThreadRanker(pruner), embedder=embedder)
            return await searcher.search(await _completed(request, opened, title_field))

    answer = asyncio.run(run())
    if json_output:
        json.dump(_as_json(answer), sys.stdout, ensure_ascii=False, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        return
    from secateur._render import console_for_output
    from secateur._render_search import render_search

    render_search(console_for_output(), query, answer)


async def _completed(
    request: SearchRequest, store: MilvusStore, title_field: str | None
) -> SearchRequest:
    """The request with the fields that only collections made by ``index`` have."""
    from secateur.milvus import collection as names
    from secateur.milvus.collection import is_name

    if not is_name(request.collection):
        return request  # refused with all that is wrong
    found = await store.describe(request.collection)
    if not found.is_ours:
        return request
    return replace(
        request,
        title_field=names.TITLE if title_field is None else title_field,
        output_fields=(names.DOCUMENT_ID, names.START_OFFSET),
    )


def _filter_params(given: Any) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for param in given:
        name, equals, value = param.partition("=")
        if not equals:
            raise BadInputError(f"--filter-param {param}: expected NAME=VALUE")
        try:
            params[name] = json.loads(value)
        except (ValueError, RecursionError):
            params[name] = value
    return params


def _as_json(answer: SearchAnswer) -> dict[str, Any]:
    """The contract's names in snake_case."""
    from secateur._json import to_json

    shown: dict[str, Any] = {
        "hits": [_hit_as_json(hit) for hit in answer.hits],
        "applied_mode": answer.applied_mode.value,
        "candidate_count": answer.candidate_count,
    }
    timing = {"embed_ms": answer.embed_ms, "retrieve_ms": answer.retrieve_ms}
    if answer.ranked is not None:
        for item in fields(answer.ranked):
            if item.name not in {"results", "omitted_passage_count", "timing"}:
                shown[item.name] = to_json(getattr(answer.ranked, item.name))
        shown["omitted_hit_count"] = answer.ranked.omitted_passage_count
        timing["rerank"] = to_json(answer.ranked.timing)
    return {**shown, "timing": timing}


def _hit_as_json(hit: SearchHit) -> dict[str, Any]:
    from secateur._json import to_json

    return {
        "id": hit.candidate.id,
        "vector_score": hit.candidate.vector_score,
        "text": hit.candidate.text,
        "fields": dict(hit.candidate.fields),
        "passage": to_json(hit.passage),
        "highlight": {name: to_json(value) for name, value in hit.highlight.items()},
    }
