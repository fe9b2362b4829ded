"""Search hits for people: what matters stands out, or is marked where it cannot."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from secateur._render import counted, is_marked, print_indented, printable
from secateur.milvus.types import SearchAnswer, SearchHit

HIGHLIGHT_MARKS = ("[+", "+]")
"""Around what matters where it cannot be set in bold."""


def render_search(console: Console, query: str, answer: SearchAnswer) -> None:
    """Print the hits with their kept sentences highlighted, and where time went.

    Offsets must count code points.
    """
    console.print(Text(f"Query: {printable(query)}", style="bold"))
    how = "marked {}…{}".format(*HIGHLIGHT_MARKS) if is_marked(console) else "bold"
    console.print(Text(f"What matters is {how}." if answer.hits else "No hits.", style="dim"))
    for rank, hit in enumerate(answer.hits, 1):
        console.print()
        console.print(_headline(rank, hit), no_wrap=True, overflow="ellipsis")
        print_indented(console, _body(console, hit))
    console.print()
    for line in _summary(answer):
        console.print(Text(line, style="dim"))


def _headline(rank: int, hit: SearchHit) -> Text:
    candidate, passage = hit.candidate, hit.passage
    score = None if passage is None else passage.relevance_score
    line = Text(f"{rank:>2}. ", style="bold")
    line.append("  -   " if score is None else f"{score:.4f}", style="green")
    name = str(candidate.fields.get("document_id") or candidate.id)
    line.append(f"  {printable(' '.join(name.split()))}", style="bold cyan")
    if candidate.title:
        line.append(f"  {printable(' '.join(candidate.title.split()))}", style="bold")
    if passage is not None and passage.sentences:
        kept = sum(sentence.kept for sentence in passage.sentences)
        line.append(f"  {kept} of {counted(len(passage.sentences), 'sentence')}", style="dim")
    return line


def _body(console: Console, hit: SearchHit) -> Text:
    passage, text = hit.passage, hit.candidate.text
    if passage is not None and passage.error is not None:
        return Text(f"failed: {printable(passage.error.message)}", style="red")
    body = Text()
    position = 0
    for span in passage.kept_spans if passage is not None else ():
        body.append(printable(text[position : span.start_offset]), style="dim")
        kept = printable(text[span.start_offset : span.end_offset])
        if is_marked(console):
            body.append(kept.join(HIGHLIGHT_MARKS))
        else:
            body.append(kept, style="bold")
        position = span.end_offset
    return body.append(printable(text[position:]), style="dim")


def _summary(answer: SearchAnswer) -> Iterator[str]:
    parts = [f"{answer.applied_mode} search · {counted(answer.candidate_count, 'candidate')}"]
    if answer.embed_ms:
        parts.append(f"embedding {answer.embed_ms:.0f} ms")
    parts.append(f"retrieval {answer.retrieve_ms:.0f} ms")
    ranked = answer.ranked
    if ranked is None:
        yield " · ".join(parts)
        return
    parts.append(f"reranking {ranked.timing.total_ms:.0f} ms")
    yield " · ".join(parts)
    yield (
        f"Model {printable(ranked.model.id)} · threshold {ranked.applied_threshold:g} · "
        f"rule {ranked.applied_keep_rule or '-'}"
    )
    if ranked.query_truncated:
        yield "The query was cut to the model's limit."
    for warning in ranked.warnings:
        yield f"Warning: {warning}"
