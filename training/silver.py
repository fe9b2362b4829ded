"""Silver labels: a language model cites the sentences that answer a question.

A row with a question gets labels for it; a row without one gets a question of each kind of
``silver_prompt.KINDS`` with its labels. Any endpoint with OpenAI's chat completions will do.
docs/training-data.md has the format of the rows that come out.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from tqdm import tqdm

from secateur.model.splitter import SentenceSplitter
from secateur.training.silver_chat import Endpoint, RowSkippedError, ask
from secateur.training.silver_file import SilverFile
from secateur.training.silver_prompt import (
    KINDS,
    Cited,
    is_valid_text,
    messages_for_labels,
    messages_for_questions,
    read_labels,
    read_questions,
)

logger = logging.getLogger(__name__)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows of the input: labelled now, skipped, there from an earlier run; rows written now."""

    labelled: int
    skipped: int
    done_before: int
    written: int


def label(
    rows: Iterable[Row], out: Path, endpoint: Endpoint, *, questions: int = 1, concurrency: int = 8
) -> Summary:
    """Label rows and append them to ``out``, as they get done; rows that are there stay.

    questions: of each kind for a row without one. concurrency: rows in work at a time.
    A row without a valid answer is logged with its id and left out.
    Raises ValueError for a wrong row or file, SecateurError when the endpoint cannot be used;
    what is done until then is in the file, and the next run takes it up from there.
    """
    tasks = list(_tasks(rows, questions))
    with SilverFile(out) as file:
        pending = [task for task in tasks if not file.ids.issuperset(task.out_ids)]
        done_before, had = len(tasks) - len(pending), len(file.ids)
        with tqdm(total=len(tasks), initial=done_before, desc="label", unit="row") as bar:
            skipped = asyncio.run(_label_all(pending, file, endpoint, concurrency, bar))
        return Summary(len(pending) - skipped, skipped, done_before, len(file.ids) - had)


@dataclass(frozen=True, slots=True)
class _Task:
    """A row of the input. out_ids: ids of the rows that it becomes. each: questions of a kind."""

    id: str
    row: Row
    out_ids: tuple[str, ...]
    each: int


def _tasks(rows: Iterable[Row], each: int) -> Iterator[_Task]:
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        wrong = _fault(row)
        if wrong:
            raise ValueError(f"row {number}: {wrong}")
        name = str(row["id"]) if row.get("id") is not None else _content_id(row)
        out_ids = (
            (name,)
            if _question(row)
            else tuple(f"{name}-{kind}-{i}" for kind in KINDS for i in range(1, each + 1))
        )
        if not seen.isdisjoint(out_ids):
            raise ValueError(f"row {number}: the id {name!r} (or, without one, the row) repeats")
        seen.update(out_ids)
        yield _Task(name, row, out_ids, each)


def _fault(row: Any) -> str | None:
    if not isinstance(row, dict) or not isinstance(row.get("passage"), str):
        return "expected an object with a text 'passage'"
    for name in ("passage", "question", "title", "lang"):
        if not isinstance(row.get(name), str | None):
            return f"{name} is {row[name]!r}, expected a text"
        if not is_valid_text(row.get(name) or ""):
            return f"{name} holds a lone surrogate, which is not valid Unicode"
    return None


def _question(row: Row) -> str:
    return (row.get("question") or "").strip()


def _content_id(row: Row) -> str:
    content = json.dumps([row.get("question"), row.get("title"), row["passage"]])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


async def _label_all(
    tasks: Sequence[_Task], file: SilverFile, endpoint: Endpoint, concurrency: int, bar: tqdm
) -> int:
    """Work through the tasks; how many were skipped."""
    splitter = SentenceSplitter()
    pending = iter(tasks)  # shared: each worker takes the next task when it is free
    skipped = 0

    async def work(client: openai.AsyncOpenAI) -> None:
        nonlocal skipped
        for task in pending:
            try:
                file.append(await _label_row(task, client, endpoint, splitter))
            except RowSkippedError as reason:
                logger.warning("%s: skipped: %s", task.id, reason)
                skipped += 1
            bar.update()

    async with endpoint.client() as client:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(tasks))):
                    group.create_task(work(client))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
    return skipped


async def _label_row(
    task: _Task, client: openai.AsyncOpenAI, endpoint: Endpoint, splitter: SentenceSplitter
) -> list[Row]:
    """The rows that come out, in the order of ``task.out_ids``."""
    row = task.row
    question, title = _question(row), (row.get("title") or "").replace("_", " ")
    spans = _spans(row, splitter)
    sentences = [row["passage"][start:end] for start, end in spans]
    count = len(sentences)
    found: list[tuple[Row, Cited]]
    if question:
        asked = messages_for_labels(question, title, sentences)
        cited = await ask(client, endpoint, asked, lambda text: read_labels(text, count))
        kept = {name: row[name] for name in ("qid", "kind") if row.get(name) is not None}
        found = [({**kept, "question": question}, cited)]
    else:
        if count < KINDS["multi"]:
            raise RowSkippedError(f"{count} sentences are too few for a question over several")
        asked = messages_for_questions(title, sentences, task.each)
        written = await ask(
            client, endpoint, asked, lambda text: read_questions(text, count, task.each)
        )
        found = [({"kind": one.kind, "question": one.question}, one.cited) for one in written]
    return [
        {
            "id": out_id,
            **about,
            **({"lang": row["lang"]} if row.get("lang") else {}),
            "title": row.get("title"),
            "passage": row["passage"],
            "sentences": [list(span) for span in spans],
            "labels": [int(index in cited.support) for index in range(count)],
            "optional": list(cited.optional),
            "relevant": bool(cited.support),
            "source": f"silver:{endpoint.model}",
        }
        for out_id, (about, cited) in zip(task.out_ids, found, strict=True)
    ]


def _spans(row: Row, splitter: SentenceSplitter) -> list[tuple[int, int]]:
    """The row's own sentences, else those of our splitter."""
    passage = row["passage"]
    if row.get("sentences") is None:
        try:
            spans = list(splitter.split(passage, row.get("lang") or "").spans)
        except ValueError as error:
            raise RowSkippedError(str(error)) from None
    else:
        try:
            spans = [(int(start), int(end)) for start, end in row["sentences"]]
        except (TypeError, ValueError):
            raise RowSkippedError("sentences: expected [[start, end], ...]") from None
        borders = [border for span in spans for border in span]
        if borders != sorted(borders) or not all(0 <= b <= len(passage) for b in borders):
            raise RowSkippedError("sentences: not ascending inside the passage")
    if not spans:
        raise RowSkippedError("the passage has no sentences")
    return spans
