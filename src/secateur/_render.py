"""Results for people: a ranking with dropped sentences dimmed, or marked where colour is off.

Text from passages never reaches the terminal raw: control characters are replaced, so that a
passage cannot move the cursor or change the title.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from secateur.types import ModelInfo, Passage, PrunedPassage, RankedPassages

PLAIN_WIDTH = 100
"""Columns where the output is no terminal and COLUMNS is not set."""

DROPPED_MARKS = ("[-", "-]")
"""Around dropped text where it cannot be dimmed."""

_INDENT = "    "

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command line decide; rich would exit with 1."""
        raise BrokenPipeError


def console_for_output() -> Console:
    """The console of stdout: colours only for a terminal, and never under NO_COLOR."""
    console = _Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


def render_ranked(
    console: Console, query: str, passages: Sequence[Passage], answer: RankedPassages
) -> None:
    """Print the ranking with each passage's text, then what was saved and where time went.

    ``passages`` are those of the request; offsets must count code points.
    """
    console.print(Text(f"Query: {printable(query)}", style="bold"))
    how = "marked {}…{}".format(*DROPPED_MARKS) if is_marked(console) else "grey"
    console.print(Text(f"Dropped sentences are {how}.", style="dim"))
    for rank, result in enumerate(answer.results, 1):
        console.print()
        console.print(_headline(rank, passages[result.index], result))
        print_indented(console, _body(console, passages[result.index], result))
    console.print()
    for line in _summary(passages, answer):
        console.print(Text(line))


def render_model_info(console: Console, info: ModelInfo) -> None:
    """Print a model's identity, capabilities, defaults and limits as two columns."""
    rows = [(name, printable(_shown(value))) for name, value in _rows(info)]
    width = max(len(name) for name, _ in rows)
    for name, shown in rows:
        console.print(Text(f"{name:<{width}}  ", style="bold").append(shown, style="not bold"))


def printable(text: str) -> str:
    """``text`` with control characters, except line feed and tab, replaced by U+FFFD."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def print_indented(console: Console, body: Text) -> None:
    """Print a text wrapped and indented."""
    for line in body.wrap(console, max(20, console.width - len(_INDENT)), tab_size=4):
        line.rstrip()
        console.print(Text(_INDENT) + line if line.plain.strip() else "", soft_wrap=True)


def _headline(rank: int, passage: Passage, result: PrunedPassage) -> Text:
    score = result.relevance_score
    colour = "dim" if score is None else "green" if score >= 0.5 else "yellow"
    line = Text(f"{rank:>2}. ", style="bold")
    line.append("  -   " if score is None else f"{score:.4f}", style=colour)
    name = printable(" ".join((result.id or f"#{result.index}").split()))
    line.append(f"  {name}", style="bold cyan")
    if passage.title:
        line.append(f"  {printable(' '.join(passage.title.split()))}", style="bold")
    if result.sentences:
        kept = sum(sentence.kept for sentence in result.sentences)
        line.append(f"  {kept} of {counted(len(result.sentences), 'sentence')} kept", style="dim")
    return line


def _body(console: Console, passage: Passage, result: PrunedPassage) -> Text:
    if result.error is not None:
        message = f"failed: {result.error.code}: {printable(result.error.message)}"
        return Text(message, style="red")
    if not result.sentences:
        return Text("(blank)", style="dim")
    marked = is_marked(console)
    body = Text()
    for text, dropped in _runs(passage.text, result):
        if dropped and marked:
            body.append(printable(text).join(DROPPED_MARKS))
        else:
            body.append(printable(text), style="dim" if dropped else "")
    return body


def is_marked(console: Console) -> bool:
    """Whether dropped text needs marks, because it cannot be dimmed or should not be."""
    return not console.is_terminal or console.color_system is None or console.no_color


def _runs(text: str, result: PrunedPassage) -> Iterator[tuple[str, bool]]:
    """The source in pieces: runs of kept or of dropped sentences, and the gaps between runs."""
    end = result.sentences[0].start_offset
    for kept, group in groupby(result.sentences, key=lambda sentence: sentence.kept):
        run = list(group)
        yield text[end : run[0].start_offset], False
        end = run[-1].end_offset
        yield text[run[0].start_offset : end], not kept


def _summary(passages: Sequence[Passage], answer: RankedPassages) -> Iterator[str]:
    results = answer.results
    if answer.omitted_passage_count:
        yield f"{counted(answer.omitted_passage_count, 'passage')} left out by top_k or score"
    sentences = [sentence for result in results for sentence in result.sentences]
    kept = sum(sentence.kept for sentence in sentences)
    parts = [f"Kept {kept} of {counted(len(sentences), 'sentence')}"]
    if tokens := sum(len(result.tokens) for result in results):
        parts.append(_saved("tokens", tokens, sum(_kept_tokens(passages, r) for r in results)))
    characters = sum(len(passages[result.index].text) for result in results)
    parts.append(_saved("characters", characters, sum(len(r.pruned_text) for r in results)))
    yield " · ".join(parts)
    timing, cached = answer.timing, answer.usage.cached_passage_count
    yield (
        f"Time {timing.total_ms:.1f} ms · queue {timing.queue_ms:.1f} · "
        f"tokenise {timing.tokenize_ms:.1f} · inference {timing.inference_ms:.1f}"
        + (f" · {counted(cached, 'passage')} from the cache" if cached else "")
    )
    model = answer.model
    name = " ".join(part for part in (model.id, model.revision, model.dtype) if part)
    yield (
        f"Model {printable(name)} · threshold {answer.applied_threshold:g} · "
        f"rule {answer.applied_keep_rule or '-'}"
    )
    if answer.query_truncated:
        yield "The query was cut to the model's limit."
    for warning in answer.warnings:
        yield f"Warning: {warning}"


def _kept_tokens(passages: Sequence[Passage], result: PrunedPassage) -> int:
    """Tokens in kept sentences; a token belongs where its first non-space character does."""
    text = passages[result.index].text
    starts = [span.start_offset for span in result.kept_spans]
    count = 0
    for token in result.tokens:
        covered = text[token.start_offset : token.end_offset]
        first = token.start_offset + len(covered) - len(covered.lstrip())
        span = bisect_right(starts, first) - 1
        count += span >= 0 and first < result.kept_spans[span].end_offset
    return count


def _saved(unit: str, before: int, after: int) -> str:
    share = 1 - after / before if before else 0.0
    return f"{unit} {before:,} → {after:,} ({share:.0%} saved)"


def counted(number: int, noun: str) -> str:
    """``1 hit``, ``2 hits``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _rows(value: Any) -> Iterator[tuple[str, Any]]:
    for item in fields(value):
        inner = getattr(value, item.name)
        if item.name == "limits":
            yield from _rows(inner)
        else:
            yield item.name, inner


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    return f"{value:,}" if isinstance(value, int) else str(value) or "-"
