"""Our highlights in the results of ``MilvusClient.search``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from secateur.errors import FieldViolation, InvalidRequestError, SecateurError
from secateur.milvus.fragments import faults_of, highlight_field
from secateur.milvus.types import HighlightOptions
from secateur.types import (
    FragmentFormat,
    HighlightedPassages,
    Passage,
    PruneOptions,
    ResultOrder,
)

Results = TypeVar("Results", bound=Sequence[Any])

_BATCH_PASSAGES: Final = 64
_BATCH_CHARACTERS: Final = 100_000


class Highlighter(Protocol):
    """What ``secateur.Pruner`` and ``secateur.Client`` have in common here."""

    def highlight(
        self, query: str, passages: Sequence[Passage | str], options: PruneOptions | None = None, /
    ) -> HighlightedPassages: ...


@dataclass(frozen=True, slots=True)
class _Text:
    """A text to highlight, the hit and field that it is from, and how errors name these."""

    text: str
    field: str
    hit: Any
    path: str


def highlight_hits(
    results: Results,
    query: str | Sequence[str],
    *,
    pruner: Highlighter,
    input_fields: Sequence[str] = ("text",),
    pre_tags: Sequence[str] = ("<mark>",),
    post_tags: Sequence[str] = ("</mark>",),
    threshold: float | None = None,
    highlight_only: bool = True,
    escape_html: bool = True,
) -> Results:
    """Add ``highlight`` to each hit of a Milvus search, and return ``results`` itself.

    results: what ``MilvusClient.search`` or ``hybrid_search`` gave: a list of hits for each query
        vector, or one such list. Hits are changed in place:
        ``hit["highlight"] = {field: {"fragments": [...], "scores": [...]}}``. What a field holds
        there already, in this shape or the older ``{field: [text, ...]}``, is Milvus's own and
        stays as it is.
    query: the question; or a sequence of them, one for each list of hits.
    pruner: a ``secateur.Pruner`` or a ``secateur.Client``.
    input_fields to highlight_only: as in pymilvus's ``SemanticHighlighter``. The input fields
        must be among the search's output fields; a null or blank text has no fragments.
    threshold: of the model's keep rule, in [0, 1]; ``None`` takes the model's.
    escape_html: escapes the text between the tags, which are added last.
    Raises InvalidRequestError for bad arguments and hits without an input field, and what the
    pruner raises.
    """
    options = HighlightOptions(
        pre_tags=tuple(pre_tags),
        post_tags=tuple(post_tags),
        highlight_only=highlight_only,
        fragment_format=FragmentFormat.HTML_ESCAPED if escape_html else FragmentFormat.RAW,
    )
    lone = {"input_fields": input_fields, "pre_tags": pre_tags, "post_tags": post_tags}
    faults = [
        FieldViolation(name, "must be a list of texts, not one text")
        for name, value in lone.items()
        if isinstance(value, str)
    ]
    if faults := faults or faults_of(options, ""):
        raise InvalidRequestError(faults)
    lists = list(_by_query(results, query))
    wanted = [(text, _texts(hits, input_fields, path)) for text, hits, path in lists]
    for asked, texts in wanted:
        for batch in _batches(texts):
            _highlight(asked, batch, pruner, threshold, options)
    return results


async def highlight_hits_async(
    results: Results, query: str | Sequence[str], *, pruner: Highlighter, **options: Any
) -> Results:
    """:func:`highlight_hits` for asyncio programs: it works in a thread."""
    return await asyncio.to_thread(lambda: highlight_hits(results, query, pruner=pruner, **options))


def _by_query(
    results: Sequence[Any], query: str | Sequence[str]
) -> Iterator[tuple[str, Sequence[Any], str]]:
    """Each query with its hits, and how error messages name them."""
    flat = bool(len(results)) and isinstance(results[0], Mapping)
    lists = [results] if flat else list(results)
    queries = [query] * len(lists) if isinstance(query, str) else list(query)
    if len(queries) != len(lists):
        description = f"has {len(queries)} texts for {len(lists)} lists of hits"
        raise InvalidRequestError([FieldViolation("query", description)])
    for number, (asked, hits) in enumerate(zip(queries, lists, strict=True)):
        yield asked, hits, "results" if flat else f"results[{number}]"


def _texts(hits: Sequence[Any], fields: Sequence[str], path: str) -> list[_Text]:
    """The texts that Milvus has not highlighted; blank ones get an empty highlight at once."""
    texts = []
    for position, hit in enumerate(hits):
        present = hit.get("highlight") or {}
        for field in fields:
            if field in present:
                continue
            place = f"{path}[{position}]"
            text = _text_of(hit, field, place)
            if text.strip():
                texts.append(_Text(text, field, hit, f"{place}[{field!r}]"))
            else:
                _add(hit, field, (), ())
    return texts


def _text_of(hit: Any, field: str, path: str) -> str:
    entity = hit.get("entity")
    holder = entity if isinstance(entity, Mapping) and field in entity else hit
    if field not in holder:
        description = f"has no field {field!r}; name it in the search's output_fields"
        raise InvalidRequestError([FieldViolation(path, description)])
    text = holder[field]
    if text is not None and not isinstance(text, str):
        description = f"is {type(text).__name__}, not text"
        raise InvalidRequestError([FieldViolation(f"{path}[{field!r}]", description)])
    return text or ""


def _highlight(
    query: str,
    texts: Sequence[_Text],
    pruner: Highlighter,
    threshold: float | None,
    options: HighlightOptions,
) -> None:
    try:
        answer = pruner.highlight(
            query,
            [Passage(item.text) for item in texts],
            PruneOptions(threshold=threshold, order=ResultOrder.INPUT),
        )
    except InvalidRequestError as error:
        raise InvalidRequestError([_of_hits(v, texts) for v in error.violations]) from None
    for result in answer.results:
        if result.error is not None:
            path = texts[result.index].path
            raise SecateurError(f"{path} could not be highlighted: {result.error.message}")
        item = texts[result.index]
        shown = highlight_field(item.text, result.spans, options)
        _add(item.hit, item.field, shown.fragments, shown.scores)


def _of_hits(violation: FieldViolation, texts: Sequence[_Text]) -> FieldViolation:
    """A fault in the words of the caller, who has hits for passages."""
    field = violation.field.removeprefix("options.")
    number = field.removeprefix("passages[").partition("]")[0]
    return replace(violation, field=texts[int(number)].path if number.isdigit() else field)


def _add(hit: Any, field: str, fragments: Sequence[str], scores: Sequence[float]) -> None:
    present = hit.get("highlight") or {}
    hit["highlight"] = {**present, field: {"fragments": [*fragments], "scores": [*scores]}}


def _batches(texts: Sequence[_Text]) -> Iterator[Sequence[_Text]]:
    """Pieces that a request's limits allow, in order; a text's result does not depend on them."""
    first = characters = 0
    for position, item in enumerate(texts):
        characters += len(item.text)
        if position + 1 - first == _BATCH_PASSAGES or characters >= _BATCH_CHARACTERS:
            yield texts[first : position + 1]
            first, characters = position + 1, 0
    if first < len(texts):
        yield texts[first:]
